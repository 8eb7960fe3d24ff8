"""Verification over several levels: the law of whole emitted texts, by enumeration."""

from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import EDGE_PAIRS, prob_pairs

from resispec_sim.rules.block import verify_chain
from resispec_sim.rules.traversal import DraftedTree, verify_tree
from resispec_sim.sequences import (
    as_shape,
    chain_shape,
    history_model,
    iid_model,
    markov_model,
    sequence_law,
)
from resispec_sim.sequences.oracle import drafted_trees, enumerate_sequence_law
from resispec_sim.trees import CompleteTree

DEPTH = 3
SHAPES = {
    "chain": chain_shape(DEPTH),
    "complete": CompleteTree(depth=4, branching=2),
    "comb": ((2, 0), 0),
    "leaves first": (0, (1,)),
    "uneven": ((1, 2), 0, 1),
}
SMALL = ["chain", "comb", "leaves first"]
SCHEMES = ["iid", "without_replacement", "topk"]

TARGET = [[F(1, 2), F(1, 3), F(1, 6)], [F(1, 5), F(3, 10), F(1, 2)]]
DRAFT = [[F(1, 3), F(1, 2), F(1, 6)], [F(2, 5), F(1, 5), F(2, 5)]]
MODELS = {
    # context 1 follows the third token, context 0 any other and the start
    "markov": markov_model(*[[rows[0], rows[0], rows[1], rows[0]] for rows in (TARGET, DRAFT)]),
    "history": history_model(3, seed=5),
    "history with zeros": history_model(3, seed=8, most=2),
    "zeros in the draft": iid_model((F(1, 4), F(1, 4), F(1, 2)), (F(1, 2), F(1, 2), F(0))),
    "equal": iid_model(TARGET[0], TARGET[0]),
}


def at_least(law):
    """P(accepted length >= i), i = 1..D."""
    return np.cumsum(law.lengths[::-1])[::-1][1:]


def same(one, other):
    return one.output == other.output and one.lengths.tolist() == other.lengths.tolist()


# --- exactness -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("siblings", SCHEMES)
@pytest.mark.parametrize("tree", SHAPES.values(), ids=SHAPES)
def test_traversal_emits_the_target(tree, siblings, model):
    law = sequence_law("traversal", model, tree, siblings)
    assert law.output == law.target
    assert len(law.output) == 3 ** (DEPTH + 1) and sum(law.output.values()) == 1
    assert sum(law.lengths) == 1 and min(law.lengths) >= 0


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_block_emits_the_target_and_is_traversal_on_a_chain(model):
    law = sequence_law("block", model, SHAPES["chain"])
    assert law.output == law.target
    for siblings in ("iid", "without_replacement"):
        assert same(law, sequence_law("traversal", model, SHAPES["chain"], siblings))


def test_they_agree_draft_by_draft():
    model = MODELS["history"]
    for _, (children, texts) in drafted_trees(model, SHAPES["chain"], "iid"):
        rows = [model.probs(text) for text in texts]
        p, q, tokens = [p for p, _ in rows], [q for _, q in rows], [0, *texts[-1]]
        tree = verify_tree(DraftedTree(children, tokens, p, q))
        chain = verify_chain(p, q[:-1], texts[-1])
        assert tree.order == (3, 2, 1, 0)
        assert tree.accepted.tolist() == chain.lengths.tolist()
        used = chain.lengths > 0
        assert (tree.next_probs == chain.next_probs)[used].all()


@pytest.mark.parametrize("name", ["chain", "complete", "comb", "leaves first", "uneven"])
@pytest.mark.parametrize("rule", ["specinfer", "rejection", "rrs-wor", "target-only", "nss"])
def test_token_wise_rules_emit_the_target(rule, name):
    law = sequence_law(rule, MODELS["history"], SHAPES[name])
    assert law.output == law.target


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rule", ["resispec", "resispec:fill=water"])
def test_resispec_does_not(rule, name):
    law = sequence_law(rule, MODELS["history"], SHAPES[name])
    assert law.tv > F(1, 20)
    assert sum(law.output.values()) == 1


def test_the_target_law_is_the_product_of_its_rows():
    law = sequence_law("block", MODELS["markov"], chain_shape(2))
    for x, y, z in product(range(3), repeat=3):
        rows = TARGET[0], TARGET[x == 2], TARGET[y == 2]
        assert law.target[x, y, z] == rows[0][x] * rows[1][y] * rows[2][z]


# --- the definition --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "rule, siblings",
    [
        *[("traversal", s) for s in SCHEMES],
        ("specinfer", None),
        ("resispec", None),
        ("rrs-wor", None),
    ],
)
def test_drawing_whole_trees_first_changes_nothing(rule, siblings, name):
    arguments = rule, MODELS["history with zeros"], SHAPES[name], siblings
    assert same(sequence_law(*arguments), enumerate_sequence_law(*arguments))


def test_drafted_trees_are_all_of_them():
    model = MODELS["history"]
    drafts = list(drafted_trees(model, as_shape(SHAPES["comb"]), "without_replacement"))
    assert sum(weight for weight, _ in drafts) == 1
    for weight, (children, texts) in drafts:
        assert weight > 0
        for row in children:
            assert len({texts[child] for child in row}) == len(row)


def test_accepted_length_is_the_last_coin_below_its_threshold():
    model = MODELS["history"]
    for text in product(range(3), repeat=DEPTH):
        rows = [model.probs(text[:i]) for i in range(DEPTH + 1)]
        if any(q[x] == 0 for (_, q), x in zip(rows, text, strict=False)):
            continue
        b = [F(1)]
        for (p, q), x in zip(rows, text, strict=False):
            b.append(min(F(1), b[-1] * p[x] / q[x]))
        h = []
        for i in range(DEPTH):
            s = sum(max(b[i] * p - q, F(0)) for p, q in zip(*rows[i], strict=True))
            h.append(F(1) if b[i] == 1 else s / (s + 1 - b[i]))
        h.append(b[DEPTH])
        expected = [F(0)] * (DEPTH + 1)
        for coins in product([False, True], repeat=DEPTH + 1):
            mass = F(1)
            for below, threshold in zip(coins, h, strict=True):
                mass *= threshold if below else 1 - threshold
            if mass:
                expected[max(i for i, below in enumerate(coins) if below)] += mass
        law = verify_chain([p for p, _ in rows], [q for _, q in rows[:-1]], text)
        assert law.lengths.tolist() == expected
        assert law.ceilings.tolist() == b


# --- accepted lengths ------------------------------------------------------------------------------


def test_published_example():
    p, q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))
    for rule, accepted in (("block", F(11, 9)), ("traversal", F(11, 9)), ("rejection", F(10, 9))):
        law = sequence_law(rule, iid_model(p, q), chain_shape(2))
        assert law.mean_accepted == accepted
        assert law.eal == accepted + 1


def test_levels_accepted_of_a_markov_pair():
    tree = CompleteTree(depth=4, branching=2)
    for rule, levels in (("specinfer", F(4369211, 1822500)), ("resispec", F(3073003, 1215000))):
        assert sequence_law(rule, MODELS["markov"], tree).mean_accepted == levels


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_block_reaches_every_length_at_least_as_often_as_rejection(model):
    chain = chain_shape(DEPTH)
    by_block, by_token = (at_least(sequence_law(r, model, chain)) for r in ("block", "rejection"))
    assert (by_block >= by_token).all() and by_block[0] == by_token[0]
    if model is MODELS["history"]:
        assert by_block[-1] > by_token[-1]


def test_traversal_is_not_always_ahead_on_a_tree():
    """Exact, but a token-wise rule accepts more on this tree: no general order holds off chains."""
    model, tree = history_model(3, seed=46, most=3), ((0, 1), 0)
    by_tree, by_token = (sequence_law(rule, model, tree) for rule in ("traversal", "specinfer"))
    assert by_tree.output == by_token.output == by_tree.target
    assert (by_tree.eal, by_token.eal) == (F(15, 8), F(137, 72))


@settings(max_examples=60)
@given(prob_pairs(max_vocab=4))
def test_block_on_any_pair(pair):
    check_pair(*pair)


@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_block_on_edge_pairs(pair):
    check_pair(pair.target_probs, pair.draft_probs)


def check_pair(p, q):
    model, floats = iid_model(p, q), iid_model(*np.array([p, q], dtype=float))
    law, by_token = (sequence_law(rule, model, chain_shape(2)) for rule in ("block", "rejection"))
    assert law.output == law.target
    assert (at_least(law) >= at_least(by_token)).all()
    # P(length >= i) is the mean of b_i over drafts
    expected = F(0)
    for text in product(range(len(p)), repeat=2):
        b, weight = F(1), F(1)
        for x in text:
            weight *= q[x]
            b = min(F(1), b * p[x] / q[x]) if q[x] else b
        expected += weight * b
    assert at_least(law)[-1] == expected
    for rule in ("block", "traversal"):
        rounded = sequence_law(rule, floats, chain_shape(2))
        assert rounded.tv < 1e-12
        assert np.abs(rounded.lengths - law.lengths.astype(float)).max() < 1e-12


@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
@pytest.mark.parametrize("siblings", SCHEMES)
def test_traversal_on_edge_pairs(siblings, pair):
    """More children than the draft has tokens, ties, disjoint supports: rationals and floats."""
    tree = ((2,), 1, 0)
    exact = sequence_law("traversal", iid_model(*pair[1:]), ((1,), 2), siblings)
    assert exact.output == exact.target
    if len(pair.target_probs) <= 4:
        model = iid_model(pair.target_probs, pair.draft_probs)
        floats = iid_model(*np.array(pair[1:], dtype=float))
        law, rounded = (sequence_law("traversal", m, tree, siblings) for m in (model, floats))
        assert law.output == law.target
        assert rounded.tv < 1e-12
