"""Wrong constants show in the law of whole texts; wrong arguments are named."""

from fractions import Fraction as F
from types import SimpleNamespace

import numpy as np
import pytest
from test_sequences import MODELS, SHAPES

import resispec_sim.rules.block as block
import resispec_sim.rules.traversal as traversal
import resispec_sim.sequences.law as law_module
from resispec_sim.errors import DistributionError, InputError, MassError, RuleError
from resispec_sim.growmaps import GrowMap
from resispec_sim.rules.block import Block, verify_chain
from resispec_sim.rules.traversal import DraftedTree, Node, Traversal, verify_tree
from resispec_sim.sequences import SequenceModel, as_shape, chain_shape, iid_model, sequence_law
from resispec_sim.sequences.oracle import enumerate_sequence_law

# --- faults ----------------------------------------------------------------------------------------


NEXT, STOP, AFTER = block.next_ceiling, block.stop_prob, traversal.after_deletion

BLOCK_FAULTS = {
    "ceiling not carried on": ("next_ceiling", lambda b, p, q: NEXT(F(1), p, q)),
    "ceiling not capped": ("next_ceiling", lambda b, p, q: b * p / q),
    "ceiling halved": ("next_ceiling", lambda b, p, q: NEXT(b, p, q) / 2),
    "threshold is the ceiling": ("stop_prob", lambda s, b: b),
    "1 - b left out": ("stop_prob", lambda s, b: F(1) if s else F(b >= 1)),
    "1 in place of 1 - b": ("stop_prob", lambda s, b: F(1) if b >= 1 else s / (s + 1)),
    "excess halved": ("stop_prob", lambda s, b: STOP(s / 2, b)),
}


@pytest.mark.parametrize("fault", BLOCK_FAULTS)
def test_a_wrong_constant_shows_in_the_law_of_block(fault, monkeypatch):
    monkeypatch.setattr(block, *BLOCK_FAULTS[fault])
    try:
        law = sequence_law("block", MODELS["history"], SHAPES["chain"])
    except MassError:
        return
    assert law.tv > F(1, 1000) or min(law.lengths) < 0


def old_parent(node, next_draft):
    return Node(node.ceiling, AFTER(node, next_draft).target, next_draft)


def old_target(node, next_draft):
    return Node(AFTER(node, next_draft).ceiling, node.target, next_draft)


def new_draft_first(node, next_draft):
    judged_by = 0 * node.draft if next_draft is None else next_draft
    return AFTER(Node(node.ceiling, node.target, judged_by), next_draft)


def draft_kept(node, next_draft):
    return AFTER(node, node.draft)


def ceiling_not_in_the_excess(node, next_draft):
    changed = AFTER(Node(F(1), node.target, node.draft), next_draft)
    return Node(AFTER(node, next_draft).ceiling, changed.target, next_draft)


TREE_FAULTS = {
    "parent keeps its ceiling": ("after_deletion", old_parent, "iid"),
    "parent keeps its target": ("after_deletion", old_target, "iid"),
    "ceiling not in the excess": ("after_deletion", ceiling_not_in_the_excess, "iid"),
    "new draft before the excess": ("after_deletion", new_draft_first, "without_replacement"),
    "draft not renormalised": ("after_deletion", draft_kept, "without_replacement"),
    "child forgets its parent": (
        "child_ceiling",
        lambda node, token: NEXT(F(1), node.target[token], node.draft[token]),
        "iid",
    ),
    "threshold is the ceiling": ("stop_prob", lambda s, a: a, "iid"),
    "1 in place of 1 - a": ("stop_prob", lambda s, a: F(1) if a >= 1 else s / (s + 1), "iid"),
}


@pytest.mark.parametrize("fault", TREE_FAULTS)
@pytest.mark.parametrize("name", ["comb", "uneven"])
def test_a_wrong_constant_shows_in_the_law_of_traversal(name, fault, monkeypatch):
    function, wrong, siblings = TREE_FAULTS[fault]
    monkeypatch.setattr(traversal, function, wrong)
    if hasattr(law_module, function):
        monkeypatch.setattr(law_module, function, wrong)
    law = sequence_law("traversal", MODELS["history"], SHAPES[name], siblings)
    assert law.tv > F(1, 1000)


# --- arguments -------------------------------------------------------------------------------------


def test_shapes():
    grow_map = SimpleNamespace(children=[[1, 3], [2], [], []])
    assert as_shape(grow_map) == as_shape((1, ())) == as_shape([(0,), 0]) == (((),), ())
    assert as_shape(GrowMap([[1, 2], [3], [], []])) == as_shape((1, 0))
    assert chain_shape(3) == as_shape(((1,),))
    for wrong in (0, (), -1, "ab", 1.5, SimpleNamespace(children=[[0]])):
        with pytest.raises(InputError):
            as_shape(wrong)


def test_rules_are_values_with_a_description():
    for rule, siblings in ((Block(), "chain"), (Traversal(), "tree")):
        assert rule == type(rule)() and rule.exact and rule.siblings == siblings
        assert rule.complexity and rule.paper


def test_inputs_are_not_modified():
    p, q = np.array([[0.5, 0.3, 0.2]] * 3), np.array([[0.2, 0.2, 0.6]] * 3)
    before = p.copy(), q.copy()
    verify_chain(p, q[:2], [2, 2])
    verify_tree(DraftedTree([[1, 2], [], []], [0, 2, 2], p, q, "iid"))
    assert (p == before[0]).all() and (q == before[1]).all()


HALF, SURE = (F(1, 2), F(1, 2)), (F(1), F(0))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: verify_chain([HALF], [], []), InputError, "D >= 1"),
        (lambda: verify_chain([HALF] * 2, [HALF] * 2, [0]), InputError, "2 draft rows"),
        (lambda: verify_chain([HALF] * 2, [SURE], [1]), InputError, "level 0: token 1"),
        (lambda: verify_chain([HALF] * 2, [HALF], [2]), InputError, "token 2"),
        (lambda: verify_chain([HALF] * 2, [HALF], [-1]), InputError, "at least 0"),
        (lambda: verify_chain([HALF] * 2, [(F(1), F(1))], [0]), DistributionError, "row 0"),
        (lambda: verify_chain([HALF] * 2, [(0.5, np.nan)], [0]), DistributionError, "nan"),
        (lambda: DraftedTree([[1], [0]], [0, 0], [HALF] * 2, [HALF] * 2), InputError, "no tree"),
        (lambda: DraftedTree([[], [1]], [0, 0], [HALF] * 2, [HALF] * 2), InputError, "no tree"),
        (lambda: DraftedTree([[3], []], [0, 0], [HALF] * 2, [HALF] * 2), InputError, "no tree"),
        (lambda: DraftedTree([[1], []], [0], [HALF] * 2, [HALF] * 2), InputError, "1 tokens"),
        (
            lambda: verify_tree(
                DraftedTree(
                    [[1, 2], [], []], [0, 1, 1], [HALF] * 3, [HALF] * 3, "without_replacement"
                )
            ),
            InputError,
            "node 2: token 1",
        ),
        (lambda: sequence_law("block", iid_model(HALF, HALF), 2), InputError, "branches"),
        (lambda: sequence_law("specinfer", iid_model(HALF, HALF), 2, "topk"), RuleError, "iid"),
        (lambda: sequence_law("traversal", iid_model(HALF, HALF), 2, "hub"), RuleError, "hub"),
        (
            lambda: sequence_law("block", iid_model(HALF, HALF), chain_shape(20)),
            InputError,
            "2,097,152 texts",
        ),
        (
            lambda: enumerate_sequence_law("traversal", MODELS["equal"], SHAPES["complete"]),
            InputError,
            "14 drafted",
        ),
        (
            lambda: SequenceModel(lambda text: HALF, lambda text: (F(1),)).probs((0,)),
            InputError,
            r"after \(0,\)",
        ),
    ],
)
def test_errors_name_the_place(call, error, words):
    with pytest.raises(error, match=words):
        call()
