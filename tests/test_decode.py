"""Tree decoding: a tree's pass is the sequential one, caches keep the path, texts end where they must."""

import pytest
from runtime_models import TEXTS, save_gpt2, save_model

from resispec_sim.errors import InputError, ModelError, RuleError, VocabularyError

torch = pytest.importorskip("torch")

from decode_helpers import eagle_row, exit_row, model_row, tree_pass_error, watched  # noqa: E402
from live_checks import LOPSIDED, TOLERANCE  # noqa: E402

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.drafters import TopKTree  # noqa: E402
from resispec_sim.runtime.eagle import new_head  # noqa: E402
from resispec_sim.runtime.early_exit import early_exit  # noqa: E402
from resispec_sim.runtime.models import load_model  # noqa: E402


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    found = {
        "target": save_model(folder / "target", seed=1, n_layers=2),
        "draft": save_model(folder / "draft", seed=2, n_layers=1),
        "gpt2": save_gpt2(folder / "gpt2", seed=3),
    }
    return {name: load_model(str(path)) for name, path in found.items()}


@pytest.mark.parametrize("name", ["target", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tree_pass_is_the_sequential_pass_over_steps_with_compaction(models, name, attention):
    model = models[name]
    model.model.set_attn_implementation(attention)
    error = tree_pass_error(model, n_steps=3, seed=4)
    model.model.set_attn_implementation("sdpa")
    assert error < TOLERANCE


@pytest.mark.parametrize("tree", ["d3b2", LOPSIDED])
@pytest.mark.parametrize("rule", ["specinfer", "rrs-wor"])
def test_draft_rows_are_those_of_the_draft_on_its_own(models, tree, rule):
    draft = models["draft"]
    n = 0
    for _, _, text, row in watched(models["target"], draft, rule, tree):
        expected = model_row(draft, text)
        assert torch.allclose(row, expected, atol=1e-5)
        n += 1
    assert n > 10


def test_rows_of_an_early_exit(models):
    target = models["target"]
    exit_draft = early_exit(target, 1)
    for _, _, text, row in watched(target, exit_draft, "specinfer", "d3b2"):
        expected = exit_row(target, exit_draft, text)
        assert torch.allclose(row, expected, atol=1e-5)


def test_rows_of_a_top_k_tree_and_its_choice(models):
    plan = TopKTree(depth=4, width=3, budget=9)
    draft = models["draft"]
    seen = set()
    for log, node, text, row in watched(models["target"], draft, "target-only", plan):
        expected = model_row(draft, text)
        assert torch.allclose(row, expected, atol=1e-5)
        tokens = [log.tree.tokens[kid] for kid in log.tree.children[node]]
        assert tokens == torch.argsort(expected, descending=True)[: len(tokens)].tolist()
        seen.add(log.tree.n_nodes)
    assert seen <= set(range(1, 10)) and 9 in seen


@pytest.mark.parametrize("tree, rule", [("d4b2", "specinfer"), (TopKTree(4, 2, 6), "target-only")])
def test_rows_of_an_eagle_head(models, tree, rule):
    """What the head says with true features up to the root and its own predictions below."""
    target = models["target"]
    head = new_head(target, seed=3)
    n = 0
    for log, node, text, row in watched(target, head, rule, tree):
        expected = eagle_row(head, log.prefix, text)
        assert torch.allclose(row, expected, atol=1e-5), node
        n += 1
    assert n > 10


@pytest.mark.parametrize("tree", ["d2b1", "d4b2", LOPSIDED])
@pytest.mark.parametrize("rule", ["specinfer", "resispec", "rrs-wor"])
def test_greedy_with_any_tree_is_plain_greedy(models, tree, rule):
    target = models["target"]
    plain = Decoder(target, None, temperature=0.0)
    decoder = Decoder(target, models["draft"], rule, tree, temperature=0.0)
    itself = Decoder(target, target, rule, tree, temperature=0.0)
    for prompt in TEXTS[:3]:
        expected = plain.decode(prompt, max_new_tokens=12, stop_at_eos=False).token_ids
        found = decoder.decode(prompt, max_new_tokens=12, stop_at_eos=False)
        assert found.token_ids == expected
        found = itself.decode(prompt, max_new_tokens=12, stop_at_eos=False)
        assert found.token_ids == expected
        whole = [step for step in found.steps if not step.cut]
        assert all(step.n_accepted == itself.plan.n_levels for step in whole)


def test_ends(models):
    target, draft = models["target"], models["draft"]
    decoder = Decoder(target, draft, "specinfer", "d4b2")
    eos = target.tokenizer.eos_token_id
    ended = 0
    for seed in range(16):
        found = decoder.decode("to be", max_new_tokens=60, seed=seed)
        assert found.finished in ("eos", "length")
        assert found.token_ids.count(eos) == (found.finished == "eos")
        assert len(found.token_ids) == 60 or found.token_ids[-1] == eos
        ended += found.finished == "eos"
        # only what is known before anything is drawn takes a step out of the means
        assert all(step.cut == (step.n_nodes < decoder.plan.n_nodes) for step in found.steps)
    assert ended > 0
    for n in range(1, 7):
        assert len(decoder.decode("to be", max_new_tokens=n, stop_at_eos=False).token_ids) == n


@pytest.mark.parametrize("n_prompt", [110, 126, 127, 128])
def test_window(models, n_prompt):
    """Text goes on exactly as far as the model has positions, whatever the tree."""
    target, draft = models["target"], models["draft"]
    for tree in ("d2b1", "d4b2"):
        decoder = Decoder(target, draft, "specinfer", tree)
        found = decoder.decode([5] * n_prompt, max_new_tokens=500, stop_at_eos=False)
        assert found.finished == "window"
        assert n_prompt + len(found.token_ids) == 129
    with pytest.raises(InputError, match="more than the 128"):
        decoder.decode([5] * 129)


def test_same_seed_same_text(models):
    decoder = Decoder(models["target"], models["draft"], "specinfer", "d4b2")
    first = decoder.decode("to be", seed=3).token_ids
    assert decoder.decode("the cat", seed=3).token_ids != first
    assert decoder.decode("to be", seed=3).token_ids == first
    assert decoder.decode("to be", seed=4).token_ids != first


def test_tokens_that_the_draft_does_not_know(models, tmp_path):
    """A target with padding above the tokenizer's last token, and a draft without."""
    padded = load_model(str(save_model(tmp_path / "padded", seed=1, vocab_size=300)))
    decoder = Decoder(padded, models["draft"], "specinfer", "d3b2")
    with pytest.raises(VocabularyError, match="tokens up to 257, but the text holds token 299"):
        decoder.decode([2, 299, 5])
    with pytest.raises(VocabularyError, match="tokens up to 257"):
        for seed in range(20):
            decoder.decode("to be", max_new_tokens=20, seed=seed, stop_at_eos=False)


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None])
def test_seeds_that_are_none(models, seed):
    with pytest.raises(InputError, match="seed"):
        Decoder(models["target"], None).decode("to be", seed=seed)


def test_refusals(models, tmp_path):
    target, draft = models["target"], models["draft"]
    with pytest.raises(RuleError, match="most probable tokens"):
        Decoder(target, draft, "specinfer", TopKTree(3, 2, 5))
    with pytest.raises(RuleError, match="single positions"):
        Decoder(target, draft, "traversal")
    decoder = Decoder(target, draft)
    with pytest.raises(InputError, match="no tokens"):
        decoder.decode("")
    with pytest.raises(InputError, match="258"):
        decoder.decode([258])
    other = load_model(str(save_model(tmp_path / "other", seed=1, shift=3)))
    with pytest.raises(VocabularyError, match="different tokenizers"):
        Decoder(target, other)
    target.model.config.sliding_window = 16
    try:
        with pytest.raises(ModelError, match="16 tokens"):
            Decoder(target, draft)
    finally:
        target.model.config.sliding_window = None
