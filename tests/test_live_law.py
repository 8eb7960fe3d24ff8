"""Decoded text has the law that the engine computes: tokens, and pairs across levels and steps.

The tree has two drafted levels, so the second token of a text is drafted below the first where that was
accepted, and in a step of its own where it was not: either way at a position with two siblings.
"""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from live_law import TREE, by_hand, computed, of_target, p_value, small_pair  # noqa: E402
from live_law import sample as draw_texts  # noqa: E402

from resispec_sim.rules import parse_rule  # noqa: E402
from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.drafters import TopKTree  # noqa: E402

N_STEPS = int(os.environ.get("RESISPEC_LIVE_STEPS", "20000"))
# Of a test that must not fail: one in ten thousand runs with other seeds would.
LEVEL = 1e-4
LONG = N_STEPS > 20_000  # make live
EXACT = ["specinfer", "rrs-wor", "exact-shaping", *(["k-seq", "rejection"] if LONG else [])]
BIASED = ["resispec", *(["resispec:fill=water", "resispec-wor", "resispec-eagle"] if LONG else [])]


@pytest.fixture(scope="module")
def pair():
    return small_pair()


def sample(pair, rule, tree=TREE, n_steps=N_STEPS, **options):
    torch.set_num_threads(1)
    return draw_texts(pair, rule, tree, n_steps=n_steps, **options)


@pytest.mark.parametrize("rule", EXACT)
def test_exact_rules_emit_the_target(pair, rule):
    law = computed(pair, rule)
    assert np.allclose(law, of_target(pair), atol=1e-12)
    assert np.allclose(law, computed(pair, rule, by_hand), atol=1e-12)
    counts = sample(pair, rule)
    assert p_value(counts, law) > LEVEL
    assert p_value(counts.sum(axis=1), law.sum(axis=1)) > LEVEL


@pytest.mark.parametrize("rule", BIASED)
def test_biased_rules_emit_what_the_engine_computes_and_not_the_target(pair, rule):
    law = computed(pair, rule)
    assert np.allclose(law, computed(pair, rule, by_hand), atol=1e-12)
    counts = sample(pair, rule)
    assert p_value(counts, law) > LEVEL
    assert p_value(counts.sum(axis=1), law.sum(axis=1)) > LEVEL
    assert p_value(counts, of_target(pair)) < 1e-12


def test_top_k_tree_emits_the_target(pair):
    counts = sample(pair, "target-only", TopKTree(depth=4, width=2, budget=6))
    assert p_value(counts, of_target(pair)) > LEVEL


def test_float32_probabilities_emit_the_same(pair):
    counts = sample(pair, "specinfer", n_steps=N_STEPS // 4, dtype="float32")
    assert p_value(counts, of_target(pair)) > LEVEL


def test_siblings_drawn_for_another_rule_are_caught(monkeypatch):
    """Without replacement under a rule for independent siblings: the first fault that users report."""
    pair = small_pair(draft_spread=1.0)
    monkeypatch.setattr(Decoder, "_scheme", lambda self: "without_replacement")
    assert parse_rule("specinfer").siblings == "iid"
    assert p_value(sample(pair, "specinfer", n_steps=N_STEPS // 4), of_target(pair)) < 1e-6
