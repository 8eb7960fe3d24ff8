"""Mistakes that transformers answers with other logits and no error: the check on a tree's pass sees each."""

import numpy as np
import pytest
from runtime_models import save_gpt2, save_model

torch = pytest.importorskip("torch")

from resispec_sim.errors import ModelError  # noqa: E402
from resispec_sim.runtime.cached_model import CachedModel, check_takes_trees  # noqa: E402
from resispec_sim.runtime.draft_tree import DraftTree, tree_mask  # noqa: E402
from resispec_sim.runtime.models import cache_keyword, load_model  # noqa: E402

TEXT = [3, 50, 7, 120]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "llama": load_model(str(save_model(folder / "llama", seed=1, n_layers=2))),
        "gpt2": load_model(str(save_gpt2(folder / "gpt2", seed=3))),
    }


def worst_error(model, fault=None, attention="sdpa"):
    """Largest difference of a tree's logits, after one step with compaction, from sequential ones."""
    model.model.set_attn_implementation(attention)
    cached = CachedModel(model)
    cached.feed(TEXT[:-1], range(3))
    if fault is not None:
        module = cached._module
        cached._module = lambda **inputs: module(**fault(inputs))
    text = list(TEXT[:-1])
    worst = 0.0
    for step in range(2):
        tree = DraftTree.rooted(TEXT[-1] + step)
        for parent, token in [(0, 9), (0, 30), (1, 31), (1, 77), (2, 12), (5, 14)]:
            tree.add(parent, token)
        n = cached.n_entries
        mask = tree_mask(tree, range(7), n, range(7))
        logits = cached.logits(cached.feed(tree.tokens, [n + depth for depth in tree.depths], mask))
        for node, line in enumerate(tree.ancestors(range(7))):
            ids = torch.tensor([[*text, *(tree.tokens[i] for i in line[::-1])]])
            with torch.inference_mode():
                expected = model.model(input_ids=ids, use_cache=False).logits[0, -1]
            worst = max(worst, float((logits[node] - expected).abs().max()))
        cached.keep(n, [n, n + 2, n + 5])
        text += [tree.tokens[0], tree.tokens[2], tree.tokens[5]]
    model.model.set_attn_implementation("sdpa")
    return worst


def as_numbers(inputs):
    return inputs | {"attention_mask": inputs["attention_mask"].to(torch.float32)}


def two_dimensional(inputs):
    return inputs | {"attention_mask": inputs["attention_mask"][0, 0]}


def without(name):
    return lambda inputs: {key: value for key, value in inputs.items() if key != name}


def no_diagonal(inputs):
    mask = inputs["attention_mask"].clone()
    n = mask.shape[2]
    mask[:, :, torch.arange(n), mask.shape[3] - n + torch.arange(n)] = False
    return inputs | {"attention_mask": mask}


def boolean(inputs):
    return inputs | {"attention_mask": inputs["attention_mask"] == 0}


def positions_of_the_cache(inputs):
    first = int(inputs["position_ids"].min())
    n = inputs["position_ids"].shape[1]
    return inputs | {"position_ids": torch.arange(first, first + n)[None]}


FAULTS = {
    "a mask of ones and zeros": (as_numbers, "sdpa"),
    "a mask of two dimensions": (two_dimensional, "sdpa"),
    "no mask": (without("attention_mask"), "sdpa"),
    "no positions": (without("position_ids"), "sdpa"),
    "positions counted on from the cache": (positions_of_the_cache, "sdpa"),
    "a mask without its diagonal": (no_diagonal, "sdpa"),
    "a boolean mask under eager attention": (boolean, "eager"),
}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_our_pass_is_the_sequential_one(models, name, attention):
    assert worst_error(models[name], attention=attention) < 1e-4


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_seen(models, fault):
    change, attention = FAULTS[fault]
    try:
        error = worst_error(models["llama"], change, attention)
    except (RuntimeError, ValueError, ModelError):
        return  # loud in this version of the libraries
    finally:
        models["llama"].model.set_attn_implementation("sdpa")
    assert not error < 1e-2


def test_cache_that_is_not_extended_is_refused(models):
    """What a keyword does that the model swallows: the pass runs, without a past."""
    cached = CachedModel(models["llama"])
    module, keyword = cached._module, cache_keyword(models["llama"].model)
    cached._module = lambda **inputs: module(**without(keyword)(inputs), swallowed=inputs[keyword])
    with pytest.raises((ModelError, TypeError)):
        cached.feed(TEXT, range(4))


def test_number_of_entries_does_not_move_with_the_next_pass(models):
    """A static cache answers with a tensor that it goes on counting in; ours is a number of its own."""
    from transformers import StaticCache

    model = models["llama"].model
    static = StaticCache(config=model.config, max_cache_len=32)
    with torch.inference_mode():
        model(torch.tensor([TEXT]), **{cache_keyword(model): static})
        answer = static.get_seq_length()
        model(torch.tensor([[9, 30]]), **{cache_keyword(model): static})
    if torch.is_tensor(answer):
        assert int(answer) == 6  # it said 4
    cached = CachedModel(models["llama"])
    cached.feed(TEXT, range(4))
    before = cached.n_entries
    cached.feed([9, 30], [4, 5])
    assert type(before) is int and (before, cached.n_entries) == (4, 6)


def test_compaction_that_forgets_the_path_is_seen(models, monkeypatch):
    """Keeping the first rows behind the prefix, whatever was accepted."""
    right = CachedModel.keep

    def wrong(self, n_prefix, entries=()):
        right(self, n_prefix, [n_prefix + i for i in range(len(entries))])

    monkeypatch.setattr(CachedModel, "keep", wrong)
    assert worst_error(models["llama"]) > 1e-2


def test_models_that_misread_a_tree_are_refused(models):
    model = models["llama"].model
    for setting, value, message in (
        ("sliding_window", 16, "a window of 16 tokens"),
        ("layer_types", ["full_attention", "sliding_attention"], "sliding_attention"),
        ("_attn_implementation", "flash_attention_2", "flash_attention_2"),
    ):
        before = getattr(model.config, setting, None)
        setattr(model.config, setting, value)
        try:
            with pytest.raises(ModelError, match=message):
                check_takes_trees(model, "it")
        finally:
            setattr(model.config, setting, before)

    class NoPositions(torch.nn.Module):
        def forward(self, input_ids, past_key_values=None):
            return None

    with pytest.raises(ModelError, match="no position_ids"):
        check_takes_trees(NoPositions(), "it")


def test_masks_of_the_wrong_size_are_refused(models):
    cached = CachedModel(models["llama"])
    cached.feed(TEXT, range(4))
    with pytest.raises(ModelError, match="a mask of 2 x 6"):
        cached.feed([5, 6], [4, 4], np.ones((2, 5), dtype=bool))
