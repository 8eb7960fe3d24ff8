"""The EAGLE head: drafting with a cache, alignment of tokens and features, training, files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_models import TEXTS, save_model

from resispec_sim.cli import run_command
from resispec_sim.errors import InputError, ModelError, VocabularyError
from resispec_sim.live_config import EagleConfig
from resispec_sim.runtime.eagle import CONFIG_NAME, EagleHead, load_eagle, new_head, parse_eagle
from resispec_sim.runtime.eagle_data import (
    FeatureBatch,
    build_corpus,
    sampled_batches,
    text_batches,
)
from resispec_sim.runtime.eagle_steps import Trainer
from resispec_sim.runtime.early_exit import early_exit
from resispec_sim.runtime.models import LoadedModel, load_model
from resispec_sim.runtime.overlap import overlap_by_depth, unroll
from resispec_sim.runtime.sampling import prompt_uniforms
from resispec_sim.runtime.train_eagle import fit_head, train_eagle

SETTINGS = EagleConfig(
    tokens=2_400,
    length=24,
    sampling_batch=50,
    batch_size=10,
    epochs=12,
    learning_rate=3e-3,
    held_out=0.2,
    save_every=40,
    exits=(0.5,),
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "target", seed=0)


@pytest.fixture(scope="module")
def target(folder: Path) -> LoadedModel:
    return load_model(str(folder))


@pytest.fixture(scope="module")
def head(target: LoadedModel) -> EagleHead:
    return new_head(target, seed=1)


@pytest.fixture(scope="module")
def batch(target: LoadedModel):
    ids = [target.tokenizer(text)["input_ids"] for text in TEXTS]
    return next(sampled_batches(target, ids, n_sequences=4, length=20, seed=3, batch_size=4))


@pytest.fixture(scope="module")
def trained(target: LoadedModel, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("heads") / "head"
    lines: list[str] = []
    trained_head = train_eagle(target, out=out, prompts=TEXTS, settings=SETTINGS, say=lines.append)
    return trained_head, out, lines


def before(features: torch.Tensor) -> torch.Tensor:
    """Features of the preceding tokens, zero for the first."""
    return torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], dim=1)


def walk(head: EagleHead, tokens: list[int], features: list[torch.Tensor], start: int = 0):
    """Feature and logits of the last of a chain of entries, uncached."""
    positions = torch.arange(start, start + len(tokens))[None]
    with torch.inference_mode():
        return [
            x[0, -1]
            for x in head.forward(torch.tensor([tokens]), torch.stack(features)[None], positions)
        ]


def test_sampled_features_and_tokens_are_the_targets_own(target: LoadedModel, batch) -> None:
    with torch.inference_mode():
        states = target.model(batch.token_ids, output_hidden_states=True).hidden_states
        logits = target.model(batch.token_ids).logits.double()
    torch.testing.assert_close(batch.features, states[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.last_inputs, states[-2], atol=1e-4, rtol=1e-4)
    for b in range(4):
        prompt = target.tokenizer(TEXTS[b])["input_ids"][:10]
        assert batch.token_ids[b, : len(prompt)].tolist() == prompt
        uniforms = prompt_uniforms(3, b, 20)
        cumulative = torch.softmax(logits[b], dim=-1).cumsum(dim=-1).numpy()
        for j in range(len(prompt), 20):
            token = int(batch.token_ids[b, j])
            low = cumulative[j - 1, token - 1] if token else 0.0
            assert low - 1e-5 <= uniforms[j - 1] <= cumulative[j - 1, token] + 1e-5


def knowing_head(target: LoadedModel, batch) -> EagleHead:
    """A head whose linear map looks up the true input of the last layer, so its predictions are true.

    It knows a table of every pair (token k, feature of k - 1) of the batch, and nothing else: a shift of
    either by one position finds other pairs.
    """
    ids, features, inputs = batch.token_ids, batch.features, batch.last_inputs
    head = new_head(target)
    table = torch.cat([target.model.get_input_embeddings()(ids), before(features)], dim=-1)
    table, inputs = table.detach().flatten(0, 1), inputs.flatten(0, 1)

    class Lookup(torch.nn.Linear):
        def forward(self, x):
            nearest = torch.cdist(x.flatten(0, 1), table).argmin(dim=1)
            return inputs[nearest].view(*x.shape[:2], -1)

    head.module["fc"] = Lookup(*head.module["fc"].weight.shape[::-1])
    return head


def test_an_entry_joins_a_token_with_the_feature_before_it_and_predicts_its_own(
    target: LoadedModel, batch
) -> None:
    ids, features = batch.token_ids, batch.features
    head = knowing_head(target, batch)
    positions = torch.arange(20)[None]
    with torch.inference_mode():
        own, logits = head.forward(ids, before(features), positions)
        expected = target.model(ids).logits
    torch.testing.assert_close(own, features, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(logits, expected, atol=1e-2, rtol=1e-3)
    for depth, predicted in enumerate(unroll(head, ids, features, 3)):
        torch.testing.assert_close(predicted, features[:, depth:], atol=2e-3, rtol=1e-3)
    overlap = overlap_by_depth(target, head, ids)
    assert overlap.shape == (4, 3)
    assert overlap.min() > 0.999


def test_cached_tree_with_mask_equals_uncached_chains(head: EagleHead, batch) -> None:
    """Two steps: catch up, draft a tree, crop to the true entries, feed accepted tokens again."""
    ids, features = batch.token_ids[0], batch.features[0]
    true_before = before(features[None])[0]
    cache = head.new_cache()
    done = 0
    for n, parents in ((8, [-1, -1, 0, 0, 1, 2]), (12, [-1, 0, 0, 1])):
        with torch.inference_mode():
            own, logits = head.forward(
                ids[None, done : n + 1],
                true_before[None, done : n + 1],
                torch.arange(done, n + 1)[None],
                None,
                cache,
            )
        done = n + 1
        assert cache.get_seq_length() == done
        chain = [ids[: n + 1].tolist(), list(true_before[: n + 1])]
        expected = walk(head, *chain)
        torch.testing.assert_close(own[0, -1], expected[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits[0, -1], expected[1], atol=1e-4, rtol=1e-4)
        root = own[0, -1]
        tokens = [(7 * i + n) % 250 for i in range(len(parents))]
        depth = [1] * len(parents)
        for i, parent in enumerate(parents):
            depth[i] = 1 if parent < 0 else depth[parent] + 1
        predicted: dict[int, torch.Tensor] = {-1: root}
        for level in range(1, max(depth) + 1):
            nodes = [i for i in range(len(parents)) if depth[i] == level]
            n_drafted = nodes[-1] + 1
            mask = torch.zeros(1, 1, len(nodes), done + n_drafted, dtype=torch.bool)
            mask[..., :done] = True
            paths = []
            for row, i in enumerate(nodes):
                path = [i]
                while parents[path[0]] >= 0:
                    path.insert(0, parents[path[0]])
                mask[0, 0, row, [done + k for k in path]] = True
                paths.append(path)
            with torch.inference_mode():
                own, logits = head.forward(
                    torch.tensor([[tokens[i] for i in nodes]]),
                    torch.stack([predicted[parents[i]] for i in nodes])[None],
                    torch.tensor([[n + level] * len(nodes)]),
                    mask,
                    cache,
                )
            for row, (i, path) in enumerate(zip(nodes, paths, strict=True)):
                predicted[i] = own[0, row]
                drafted = [tokens[k] for k in path]
                read = [predicted[parents[k]] for k in path]
                expected = walk(head, chain[0] + drafted, chain[1] + read)
                torch.testing.assert_close(own[0, row], expected[0], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(logits[0, row], expected[1], atol=1e-4, rtol=1e-4)
        head.crop(cache, done)


def test_depths_of_unrolling_equal_chains_walked_one_by_one(head: EagleHead, batch) -> None:
    ids, features = batch.token_ids[:1, :9], batch.features[:1, :9]
    true_before = list(before(features)[0])
    predicted = unroll(head, ids, features, 3)
    tokens = ids[0].tolist()
    for k in range(2, 9):
        read = true_before[: k - 1]
        for depth in range(3):
            at = k - 2 + depth
            own, _ = walk(head, tokens[: at + 1], read)
            torch.testing.assert_close(predicted[depth][0, at - depth], own, atol=1e-4, rtol=1e-4)
            read = [*read, own]


def test_overlap_is_one_minus_total_variation(target: LoadedModel, head: EagleHead, batch) -> None:
    ids = batch.token_ids[:, :10]
    found = overlap_by_depth(target, head, ids, batch_size=3)
    draft = early_exit(target, 2)
    exits = overlap_by_depth(target, draft, ids)
    with torch.inference_mode():
        output = target.model(ids, output_hidden_states=True)
        p = torch.softmax(output.logits, dim=-1)[:, 2:]
        own = unroll(head, ids, output.hidden_states[-1], 3)
        for depth in range(3):
            q = torch.softmax(head.logits(own[depth][:, 2 - depth :]), dim=-1)
            expected = 1 - (p - q).abs().sum(-1).mean(-1) / 2
            np.testing.assert_allclose(found[:, depth], expected, atol=1e-5)
            q = torch.softmax(draft.logits(output.hidden_states[2][:, 2:]), dim=-1)
            expected = 1 - (p - q).abs().sum(-1).mean(-1) / 2
            np.testing.assert_allclose(exits[:, depth], expected, atol=1e-5)
    with pytest.raises(InputError, match="give longer ones"):
        overlap_by_depth(target, head, ids[:, :3])


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


def test_save_and_load_return_the_same_head(
    target: LoadedModel, tmp_path: Path, head, batch
) -> None:
    head.save(tmp_path / "exact", dtype="float32")
    loaded = load_eagle(tmp_path / "exact", target)
    for name, tensor in head.module.state_dict().items():
        assert torch.equal(tensor, loaded.module.state_dict()[name])
    head.save(tmp_path / "half")
    assert load_eagle(tmp_path / "half", target).info["dtype"] == "float16"
    names = {p.name for p in (tmp_path / "half").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    # Embedding and output embedding stay with the target.
    assert head.n_parameters == sum(t.numel() for t in head.module.state_dict().values())
    assert (
        head.n_parameters < sum(p.numel() for p in target.model.model.layers[0].parameters()) + 2200
    )
    broken = new_head(target)
    with torch.no_grad():
        broken.module["fc"].weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        broken.save(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_a_head_of_another_target_is_refused(
    target: LoadedModel, head: EagleHead, tmp_path: Path
) -> None:
    head.save(tmp_path / "head")
    permuted = load_model(str(save_model(tmp_path / "permuted", seed=0, shift=3)))
    with pytest.raises(VocabularyError, match="tokenizer_sha256"):
        load_eagle(tmp_path / "head", permuted)
    padded = load_model(str(save_model(tmp_path / "padded", seed=0, vocab_size=264)))
    with pytest.raises(VocabularyError, match="vocab_size is 258"):
        load_eagle(tmp_path / "head", padded)
    config = json.loads((tmp_path / "head" / CONFIG_NAME).read_text())
    for key, value, match in (
        ("hidden_size", 64, "hidden_size"),
        ("architecture", "OtherForCausalLM", "architecture"),
        ("version", 99, "not of the format"),
    ):
        (tmp_path / "head" / CONFIG_NAME).write_text(json.dumps({**config, key: value}))
        with pytest.raises(ModelError, match=match):
            load_eagle(tmp_path / "head", target)
    (tmp_path / "head" / CONFIG_NAME).write_text(json.dumps(config))
    weights = tmp_path / "head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="does not hold this head"):
        load_eagle(tmp_path / "head", target)
    with pytest.raises(ModelError, match="train one with"):
        load_eagle(tmp_path / "nothing", target)


def test_wrong_shapes_and_masks_are_refused(head: EagleHead, batch) -> None:
    ids, features, positions = batch.token_ids[:1], batch.features[:1], torch.arange(20)[None]
    good = torch.ones(20, 20, dtype=torch.bool).tril()
    for mask in (good, good[None], good[None, None].float(), good[None, None, :, :19]):
        with pytest.raises(InputError, match="attention mask of shape"):
            head.forward(ids, features, positions, mask)
    with pytest.raises(InputError, match="features of shape"):
        head.forward(ids, features[:, :19], positions)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_hold_under_either_attention(folder: Path, batch, attention: str) -> None:
    model = load_model(str(folder))
    model.model.set_attn_implementation(attention)
    head = new_head(model, seed=1)
    ids, features, positions = batch.token_ids[:1], batch.features[:1], torch.arange(20)[None]
    mask = torch.eye(20, dtype=torch.bool)[None, None]
    with torch.inference_mode():
        own, _ = head.forward(ids, features, positions, mask)
    for k in (0, 7, 19):
        alone, _ = walk(head, [int(ids[0, k])], [features[0, k]], start=k)
        torch.testing.assert_close(own[0, k], alone, atol=1e-4, rtol=1e-4)


def test_a_gpt2_shape_has_a_head_too(tmp_path: Path) -> None:
    from runtime_models import save_tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=258, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    (tmp_path / "gpt2").mkdir()
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    save_tokenizer(tmp_path / "gpt2")
    model = load_model(str(tmp_path / "gpt2"))
    head = new_head(model)
    last = model.model.transformer.h[-1].state_dict()
    for name, tensor in head.module["body"].h[0].state_dict().items():
        assert torch.equal(tensor, last[name])
    small = replace(SETTINGS, tokens=480, epochs=1, depths=2)
    trained_head = train_eagle(model, out=tmp_path / "head", prompts=TEXTS, settings=small)
    again = load_eagle(tmp_path / "head", model)
    ids = torch.arange(10, 18)[None]
    features = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        a, _ = trained_head.forward(ids, features, torch.arange(8)[None])
        b, _ = again.forward(ids, features, torch.arange(8)[None])
    torch.testing.assert_close(a, b, atol=0.1, rtol=0.05)


def test_windowed_targets_are_refused_by_name(tmp_path: Path) -> None:
    from runtime_models import save_tokenizer
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    (tmp_path / "mistral").mkdir()
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    save_tokenizer(tmp_path / "mistral")
    with pytest.raises(ModelError, match="MistralForCausalLM attends within a sliding window"):
        new_head(load_model(str(tmp_path / "mistral")))


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
    from resispec_sim.runtime import eagle as module

    head.save(tmp_path / "head")
    calls = []

    def killed(source, destination):
        if len(calls) == n_written:
            raise SystemExit("killed")
        calls.append(destination)
        real(source, destination)

    real = module.os.replace
    monkeypatch.setattr(module.os, "replace", killed)
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


def test_draft_names() -> None:
    assert parse_eagle("eagle:a/b") == Path("a/b")
    assert parse_eagle("exit:3") is None
    with pytest.raises(InputError, match="eagle:FOLDER"):
        parse_eagle("eagle:")
