"""The small pair that travels with the package, and the script that trains such pairs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from held_out_text import PASSAGE
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim import open_dump
from resispec_sim.cli import run_command
from resispec_sim.errors import InputError
from resispec_sim.live_config import PairConfig, PairShape
from resispec_sim.runtime.models import (
    LoadedModel,
    check_same_tokenizer,
    load_model,
    resolve_model,
    tokenizer_fingerprint,
)
from resispec_sim.runtime.pair_figures import HeldOutFigures, measure_pair
from resispec_sim.runtime.pair_text import documents, split_held_out, token_ids, train_tokenizer
from resispec_sim.runtime.record import read_prompts
from resispec_sim.runtime.shipped import NAMES, pair_folder, prompts_file
from resispec_sim.runtime.train_pair import FIGURES_NAME, main, train_pair

ROOT = Path(__file__).resolve().parents[1]
SMALL = PairConfig(
    vocab_size=320,
    context=48,
    target=PairShape(32, 48, 2, 2, 1, n_steps=12, learning_rate=1e-2),
    draft=PairShape(16, 32, 1, 2, 1, n_steps=12, learning_rate=1e-2),
    batch_tokens=192,
    short_block=32,
)


@pytest.fixture(scope="module")
def pair() -> tuple[LoadedModel, LoadedModel]:
    target, draft = (load_model(name) for name in NAMES)
    return target, draft


@pytest.fixture(scope="module")
def stated() -> dict:
    return json.loads((pair_folder() / FIGURES_NAME).read_text())


@pytest.fixture(scope="module")
def prose() -> str:
    """About 20 KB in two chapters."""
    text = (ROOT / "logits_dumps" / "fit_text.txt").read_text()
    return f"Chapter I\n\n{text}\n\nCHAPTER 2.\n\n{text[::-1]}"


@pytest.fixture(scope="module")
def small(prose: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    train_pair([prose], folder, SMALL)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != FIGURES_NAME
    }


def test_the_shipped_pair_is_as_small_as_it_is_said_to_be(pair, stated):
    assert sum(path.stat().st_size for path in pair_folder().rglob("*") if path.is_file()) < 3e6
    for model, role, low, high in zip(
        pair, ("target", "draft"), (0.9e6, 0.12e6), (1.1e6, 0.18e6), strict=True
    ):
        n_parameters = model.model.num_parameters()
        assert low < n_parameters < high
        assert n_parameters == stated[f"n_{role}_parameters"]
        assert model.vocab_size == len(model.tokenizer) == 1024
        assert model.model.config.max_position_embeddings >= 512
        assert model.model.config.eos_token_id == model.tokenizer.eos_token_id is not None
        folder = Path(model.source.location)
        with safetensors.safe_open(folder / "model.safetensors", "pt") as weights:
            kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}
        assert kinds == {"F16"}


def test_the_aliases_are_the_folders(pair):
    for name, model in zip(NAMES, pair, strict=True):
        source = resolve_model(name)
        assert source.identity == name and source.gguf_file is None
        by_folder = load_model(str(pair_folder() / name))
        assert by_folder.fingerprint == model.fingerprint != ""
        assert by_folder.source.identity == name
    assert pair[0].fingerprint != pair[1].fingerprint


def test_both_tokenizers_are_one(pair):
    target, draft = (model.tokenizer for model in pair)
    assert tokenizer_fingerprint(target) == tokenizer_fingerprint(draft)
    check_same_tokenizer(target, draft, [PASSAGE, *read_prompts(prompts_file())])


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_every_text_comes_back_from_its_tokens(pair, text):
    tokenizer = pair[0].tokenizer
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_held_out_text_is_predicted_as_stated(pair, stated):
    """A passage of the held-out part lies within the range over windows of that part."""
    target, draft = pair
    window = 256
    found = measure_pair(
        target.model, draft.model, token_ids(target.tokenizer, documents(PASSAGE)), window
    )
    assert found.n_windows >= 2
    for figure in ("target_perplexity", "draft_perplexity", "overlap"):
        low, high = stated["held_out"][f"{figure}_range"]
        assert low < stated["held_out"][figure] < high
        assert low <= getattr(found, figure) <= high, figure
    assert found.target_perplexity < found.draft_perplexity


def test_the_draft_is_nearer_to_the_target_than_its_perplexity_asks_for(pair, stated):
    """Distilled: the cross-entropies differ by far less than the target's own entropy."""
    held_out = stated["held_out"]
    assert held_out["overlap"] > 0.6
    gap = np.log(held_out["draft_perplexity"] / held_out["target_perplexity"])
    assert 0 < gap < 0.4


def test_record_needs_no_names(tmp_path, capsys):
    assert run_command(["record", "--out", str(tmp_path / "dump"), "--new-tokens", "2"]) == 0
    n_prompts = len(read_prompts(prompts_file()))
    assert n_prompts >= 40 and f"{2 * n_prompts} positions" in capsys.readouterr().out
    with open_dump(tmp_path / "dump") as dump:
        manifest = dump.manifest
        assert (manifest.target["name"], manifest.draft["name"]) == NAMES
        p, q = dump.probs(0)
        assert 0.2 < np.minimum(p, q).sum() < 1


def test_training_gives_a_pair_that_loads(prose, small):
    target, draft = (load_model(str(small / name)) for name in NAMES)
    check_same_tokenizer(target.tokenizer, draft.tokenizer, [PASSAGE])
    assert target.vocab_size == SMALL.vocab_size
    stated = json.loads((small / FIGURES_NAME).read_text())
    held_out = stated["held_out"]
    assert 1 < held_out["target_perplexity"] < SMALL.vocab_size
    assert stated["settings"]["target"]["n_steps"] == 12
    # What is stated was measured with the weights that were stored.
    held_out_text = split_held_out([documents(prose)], SMALL.held_out_share)[1]
    ids = token_ids(target.tokenizer, held_out_text)
    again = measure_pair(target.model, draft.model, ids, SMALL.context)
    assert len(ids) == stated["n_held_out_tokens"]
    assert again.overlap == pytest.approx(held_out["overlap"], abs=1e-6)
    assert again.draft_perplexity == pytest.approx(held_out["draft_perplexity"], rel=1e-6)


def test_training_repeats_itself_and_depends_on_its_seed(prose, small, tmp_path):
    state = torch.random.get_rng_state()
    train_pair([prose], tmp_path / "again", SMALL)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert files_of(tmp_path / "again") == files_of(small)
    train_pair([prose], tmp_path / "other", replace(SMALL, seed=1))
    other = files_of(tmp_path / "other")
    changed = {name for name, content in files_of(small).items() if other[name] != content}
    assert changed == {f"{name}/model.safetensors" for name in NAMES}


def test_the_draft_learns_from_the_target(prose, tmp_path):
    """More steps of the draft alone, with the same target, bring it nearer to the target."""
    overlaps = []
    for n_steps in (1, 60):
        draft = replace(SMALL.draft, n_steps=n_steps)
        target = replace(SMALL.target, n_steps=60)
        found = train_pair(
            [prose], tmp_path / str(n_steps), replace(SMALL, target=target, draft=draft)
        )
        overlaps.append(found.held_out.overlap)
    assert overlaps[1] > overlaps[0] + 0.1


def test_the_script_takes_files(prose, tmp_path, capsys):
    (tmp_path / "book.txt").write_text(prose)
    main([str(tmp_path / "book.txt"), "--out", str(tmp_path / "pair")], SMALL)
    output = capsys.readouterr()
    assert json.loads(output.out)["held_out"]["overlap"] > 0
    assert "step 12 of 12" in output.err
    assert sorted(path.name for path in (tmp_path / "pair").iterdir()) == [
        FIGURES_NAME, *sorted(NAMES)
    ]  # fmt: skip


@given(
    st.lists(
        st.text("ab \n", min_size=1, max_size=40).filter(lambda text: text.strip()), min_size=1
    ),
    st.floats(0, 1),
)
@settings(max_examples=100)
def test_splitting_loses_and_moves_no_word(texts, share):
    training, held_out = split_held_out([texts], share)
    words = [word for text in texts for word in text.split()]
    assert [word for text in [*training, *held_out] for word in text.split()] == words
    n_held_out = sum(map(len, held_out))
    longest_word = max(map(len, texts))
    assert abs(n_held_out - share * sum(map(len, texts))) <= longest_word + 1


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_end_of_every_book_is_held_out(share):
    books = [[f"{name} {'word ' * 200}end{name}"] for name in "abc"]
    training, held_out = split_held_out(books, share)
    assert [text.split()[0] for text in training] == ["a", "b", "c"]
    assert [text.split()[-1] for text in held_out] == ["enda", "endb", "endc"]


def test_figures_of_a_model_that_is_its_own_draft(pair):
    target = pair[0]
    ids = token_ids(target.tokenizer, documents(PASSAGE))
    found = measure_pair(target.model, target.model, ids, 128)
    assert isinstance(found, HeldOutFigures)
    assert found.overlap == pytest.approx(1, abs=1e-5)
    assert found.target_perplexity == found.draft_perplexity
    # In one window the mean cross-entropy is what the model itself calls its loss.
    block = torch.from_numpy(ids[:129])[None]
    with torch.inference_mode():
        loss = float(target.model(input_ids=block, labels=block).loss)
    one = measure_pair(target.model, target.model, ids[:129], 128)
    assert np.log(one.target_perplexity) == pytest.approx(loss, rel=1e-5)


def test_texts_that_are_too_short_are_refused(prose, tmp_path):
    with pytest.raises(InputError, match=r"held-out tokens; each needs more than 9000"):
        train_pair([prose], tmp_path, replace(SMALL, context=9000))
    with pytest.raises(InputError, match="at least 257 entries, got 256"):
        train_tokenizer([prose], 256)
    with pytest.raises(InputError, match="not 1024: give more text"):
        train_tokenizer(["one short text"], 1024)
    with pytest.raises(InputError, match="do not fill one window of 10"):
        measure_pair(None, None, np.zeros(10, dtype=np.int64), 10)
    assert not any(tmp_path.iterdir())
