"""Training EAGLE heads: loss, overlap, determinism, interruption."""

import json
import os
from dataclasses import replace
from pathlib import Path

import eagle_helpers
import numpy as np
import pytest
import torch
from eagle_helpers import SETTINGS, knowing_head
from runtime_models import TEXTS

from resispec_sim.cli import run_command
from resispec_sim.errors import InputError, ModelError
from resispec_sim.runtime.eagle import CONFIG_NAME, EagleHead, load_eagle, new_head
from resispec_sim.runtime.eagle_data import (
    FeatureBatch,
    build_corpus,
    sampled_batches,
    text_batches,
)
from resispec_sim.runtime.eagle_steps import Trainer
from resispec_sim.runtime.models import LoadedModel, load_model
from resispec_sim.runtime.overlap import overlap_by_depth
from resispec_sim.runtime.train_eagle import fit_head, train_eagle

# fixtures
folder, target, head = eagle_helpers.folder, eagle_helpers.target, eagle_helpers.head
batch, trained, one_thread = eagle_helpers.batch, eagle_helpers.trained, eagle_helpers.one_thread


def test_training_lowers_the_loss_and_raises_the_overlap(target: LoadedModel, trained) -> None:
    trained_head, out, lines = trained
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert losses[-1] < 0.9 * losses[0]
    info = json.loads((out / CONFIG_NAME).read_text())
    overlap = info["overlap"]["eagle"]["mean"]
    ids = [target.tokenizer(text)["input_ids"] for text in TEXTS]
    fresh = next(sampled_batches(target, ids, n_sequences=20, length=24, seed=99, batch_size=20))
    after = overlap_by_depth(target, trained_head, fresh.token_ids).mean(axis=0)
    untrained = overlap_by_depth(target, new_head(target), fresh.token_ids).mean(axis=0)
    assert (after > untrained + 0.1).all()
    # The held-out figures are those of a fresh sample, up to what 20 sequences tell.
    np.testing.assert_allclose(overlap, after, atol=0.05)
    assert len(info["overlap"]["exit:2"]["mean"]) == 3
    assert info["training"]["steps_done"] == info["training"]["steps"] == 96


def test_held_out_sequences_leave_no_trace_in_the_head(target: LoadedModel, batch) -> None:
    """Neither the linear start nor a training step sees a sequence that is held out."""
    other = FeatureBatch(*(x.clone() for x in (batch.token_ids, batch.features, batch.last_inputs)))
    other.token_ids[3] = 7
    other.features[3] *= 2
    other.last_inputs[3] += 1
    corpora = [build_corpus(target, [b], 3) for b in (batch, other)]
    assert torch.equal(corpora[0].weight, corpora[1].weight)
    assert torch.equal(corpora[0].bias, corpora[1].bias)
    for n_fit, same in ((4, True), (8, False)):
        weights = [build_corpus(target, [batch, b], n_fit).weight for b in (batch, other)]
        assert torch.equal(*weights) == same
    settings = replace(SETTINGS, length=20, batch_size=4)
    losses = []
    for corpus in corpora:
        head = new_head(target)
        losses.append(Trainer(head, corpus, 3, settings).step(0))
    assert losses[0] == losses[1]


def test_training_leaves_the_target_as_it_was(folder: Path, trained) -> None:
    trained_head = trained[0]
    fresh = load_model(str(folder)).model.state_dict()
    for name, tensor in trained_head.target.model.state_dict().items():
        assert torch.equal(tensor, fresh[name]), name
    assert all(p.grad is None for p in trained_head.target.model.parameters())


def test_same_seed_same_head_other_seed_another(target: LoadedModel, tmp_path: Path) -> None:
    small = replace(SETTINGS, tokens=480, epochs=1)
    states = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        torch.manual_seed(len(states))
        head = train_eagle(
            target, out=tmp_path / name, prompts=TEXTS, settings=replace(small, seed=seed)
        )
        states.append(head.module.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["fc.weight"], states[2]["fc.weight"])


def test_the_loss_of_true_predictions_is_zero(target: LoadedModel, batch) -> None:
    """At every depth, and in each of its two parts: what is predicted is compared with its own token."""
    head = knowing_head(target, batch)
    corpus = build_corpus(target, [batch], 4)
    for parts in ({"logits_weight": 0.0}, {"feature_weight": 0.0}):
        for depths in (1, 3):
            settings = replace(SETTINGS, length=20, noise=0.0, depths=depths, **parts)
            with torch.no_grad():
                assert Trainer(head, corpus, 4, settings).loss(torch.arange(4)) < 1e-4
                wrong = Trainer(new_head(target), corpus, 4, settings).loss(torch.arange(4))
            assert wrong > 0.1


def test_sampled_vocabulary_estimates_the_whole_one(target: LoadedModel, batch, tmp_path) -> None:
    """The mean loss over draws of the vocabulary is near the loss over all of it."""
    corpus = build_corpus(target, [batch], 4)
    head = new_head(target)
    head.module.float()
    losses = {}
    for size in (200, 258):
        settings = replace(SETTINGS, vocab_sample=size, noise=0.0, length=20)
        trainer = Trainer(head, corpus, 4, settings)
        columns, log_weights = trainer._columns()
        assert len(columns.unique()) == len(columns) == size
        assert float(log_weights.exp().sum()) == pytest.approx(258)
        with torch.no_grad():
            losses[size] = np.mean([float(trainer.loss(torch.arange(4))) for _ in range(60)])
    assert losses[200] == pytest.approx(losses[258], rel=0.03)


def test_text_windows_have_the_features_of_one_pass(target: LoadedModel, tmp_path: Path) -> None:
    text = "A text that is long enough for some windows. " * 4
    ids = target.tokenizer(text)["input_ids"]
    batches = list(text_batches(target, ids, length=24, batch_size=3, n_sequences=5))
    assert [len(b.token_ids) for b in batches] == [3, 2]
    assert torch.cat([b.token_ids for b in batches]).flatten().tolist() == ids[:120]
    with torch.inference_mode():
        states = target.model(batches[1].token_ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(batches[1].features, states[-1])
    small = replace(SETTINGS, epochs=1)
    with pytest.raises(InputError, match="less than two windows"):
        train_eagle(target, out=tmp_path / "head", text=text, settings=replace(small, length=100))
    with pytest.raises(InputError, match="give one of them"):
        train_eagle(target, out=tmp_path / "head", text=text, prompts=TEXTS, settings=small)
    with pytest.raises(InputError, match="has no tokens"):
        train_eagle(target, out=tmp_path / "head", prompts=["a", ""], settings=small)
    head = train_eagle(target, out=tmp_path / "head", text=text, settings=small)
    assert head.info["training"]["source"] == "a text"


def test_an_interrupted_training_leaves_a_head(
    target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def interrupt(self, number):
        if number == 5:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(Trainer, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_eagle(target, out=tmp_path / "head", prompts=TEXTS, settings=SETTINGS)
    loaded = load_eagle(tmp_path / "head", target)
    assert loaded.info["training"]["steps_done"] == 5
    assert "overlap" not in loaded.info
    monkeypatch.undo()
    # Unfinished, so that the same command may begin again; a finished one is kept.
    small = replace(SETTINGS, tokens=480, epochs=1)
    train_eagle(target, out=tmp_path / "head", prompts=TEXTS, settings=small)
    with pytest.raises(InputError, match="already holds"):
        train_eagle(target, out=tmp_path / "head", prompts=TEXTS, settings=small)


@pytest.mark.parametrize("n_written", [0, 1, 2])
def test_a_kill_while_saving_leaves_a_head(
    head: EagleHead, target: LoadedModel, tmp_path: Path, monkeypatch, n_written: int
) -> None:
    """Whichever of the files were in place already, what lies there is a whole head."""
    head.save(tmp_path / "head")
    calls = []

    def killed(source, destination):
        if len(calls) == n_written:
            raise SystemExit("killed")
        calls.append(destination)
        real(source, destination)

    real = os.replace
    monkeypatch.setattr(os, "replace", killed)
    other = new_head(target, seed=2)
    if n_written < 2:
        with pytest.raises(SystemExit):
            other.save(tmp_path / "head")
    else:
        other.save(tmp_path / "head")
    monkeypatch.undo()
    found = load_eagle(tmp_path / "head", target).module["fc"].weight
    expected = (head if n_written == 0 else other).module["fc"].weight
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"length": 3}, "length must be from 4"),
        ({"length": 1000}, "context of 128"),
        ({"tokens": 30}, "two sequences of 24"),
        ({"held_out": 1.0}, "held_out"),
        ({"learning_rate": 0.0}, "learning rate"),
    ],
)
def test_settings_out_of_range_are_refused(target, tmp_path, change, match) -> None:
    with pytest.raises(InputError, match=match):
        train_eagle(target, out=tmp_path / "head", settings=replace(SETTINGS, **change))
    assert not (tmp_path / "head").exists()


def test_divergence_is_an_error_that_keeps_the_last_head(target, batch, tmp_path) -> None:
    corpus = build_corpus(target, [batch], 4)
    corpus.features[0, 5] = float("inf")
    settings = replace(SETTINGS, length=20)
    with pytest.raises(ModelError, match="the loss is"):
        fit_head(target, corpus, out=tmp_path / "head", source="test", settings=settings)
    load_eagle(tmp_path / "head", target)


def test_command_trains_and_prints_the_table(
    folder: Path, target: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(TEXTS))
    options = "--tokens 480 --length 24 --epochs 1 --exits 1,2".split()
    command = ["train-eagle", str(folder), "--out", str(tmp_path / "head"), *options]
    assert run_command([*command, "--prompts", str(prompts)]) == 0
    shown = capsys.readouterr().out
    assert "exit:1" in shown and "exit:2" in shown and "depth 3" in shown
    assert load_eagle(tmp_path / "head", target).info["training"]["tokens"] == 456
    assert run_command(command) == 2
    assert "already holds" in capsys.readouterr().err
