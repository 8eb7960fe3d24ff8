"""The dynamic programme against every ordered tree, its limits, and its speed."""

import time
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec_sim.errors import InputError
from resispec_sim.growmaps import GrowMap
from resispec_sim.tree_search import TreeSearch, model_eal, optimise_tree

LARGEST = 7


def ordered_trees(n_nodes):
    """Every ordered tree of `n_nodes` nodes, as nested tuples."""
    if n_nodes == 1:
        return [()]
    found = []
    for first in range(1, n_nodes):
        # The first child's subtree, and the tree without it.
        found += [
            (child, *rest)
            for child, rest in product(ordered_trees(first), ordered_trees(n_nodes - first))
        ]
    return found


EVERY = {n: ordered_trees(n) for n in range(1, LARGEST + 1)}


def depth_of(tree):
    return 1 + max(map(depth_of, tree), default=0)


def widest(tree):
    return max(len(tree), *map(widest, tree)) if tree else 0


def value_of(tree, rows):
    """Sum over nodes of the product of acceptances on the way; -inf with a count that has no row."""

    def add(node, reach):
        if node and len(node) not in rows:
            return -np.inf
        total = reach
        for i, child in enumerate(node):
            total += add(child, reach * rows[len(node)][i])
        return total

    return add(tree, 1.0)


def nested(growmap, node=0):
    return tuple(nested(growmap, child) for child in growmap.children[node])


def random_rows(rng, counts):
    """Acceptance that depends on the count, with ties, zeros and certain acceptance among it."""
    rows = {}
    for count in counts:
        row = rng.dirichlet(np.ones(count + 1))[:count]
        style = rng.integers(4)
        if style == 1:
            row = np.round(row, 1)
        elif style == 2:
            row = np.where(rng.random(count) < 0.5, 0.0, row)
        elif style == 3:
            row = np.eye(count)[0]
        rows[count] = row * min(1.0, 1.0 / max(row.sum(), 1e-9))
    return rows


def test_there_are_as_many_ordered_trees_as_catalan_numbers():
    assert [len(set(EVERY[n])) for n in EVERY] == [1, 1, 2, 5, 14, 42, 132]


@pytest.mark.parametrize("seed", range(60))
def test_the_optimum_is_that_of_every_ordered_tree(seed):
    rng = np.random.default_rng(seed)
    counts = [k for k in range(1, LARGEST) if seed % 3 or rng.random() < 0.6] or [2]
    rows = random_rows(rng, counts)
    if seed % 4 == 0:  # acceptance that does not depend on the count, as a vector
        vector = rng.dirichlet(np.ones(LARGEST + 2))[:LARGEST]
        rows = {k: vector[:k] for k in range(1, LARGEST + 1)}
    for budget in range(1, LARGEST + 1):
        for depth, branching in ((2, LARGEST), (3, 2), (3, LARGEST), (LARGEST, 3), (64, LARGEST)):
            given_rows = vector if seed % 4 == 0 else rows
            plan = optimise_tree(given_rows, budget, depth, max_branching=branching)
            best = max(
                value_of(tree, rows)
                for n in range(1, budget + 1)
                for tree in EVERY[n]
                if depth_of(tree) <= depth and widest(tree) <= branching
            )
            assert plan.model_eal == pytest.approx(best, rel=1e-13)
            found = nested(plan.growmap)
            assert value_of(found, rows) == pytest.approx(best, rel=1e-13)
            assert model_eal(plan.growmap, given_rows) == pytest.approx(best, rel=1e-13)
            assert plan.growmap.n_nodes <= budget and depth_of(found) <= depth
            assert widest(found) <= branching


def test_acceptance_is_that_of_the_nodes_own_count():
    """Two children at .5 each, but alone only .1: rows must not be mixed."""
    rows = {1: [0.1], 2: [0.5, 0.5]}
    plan = optimise_tree(rows, 4)
    assert plan.growmap.children == ((1, 2), (3,), (), ())
    assert plan.model_eal == pytest.approx(1 + 0.5 * 1.1 + 0.5)
    assert optimise_tree(rows, 5).growmap.children == ((1, 2), (3, 4), (), (), ())


@given(
    conditional=st.lists(st.floats(0, 1), min_size=11, max_size=11),
    falloff=st.floats(0, 1),
    name=st.sampled_from(["d5b3", "d7b2", "d4b5", "d3b11", "d2b4", "d9b1"]),
)
def test_never_below_a_complete_tree_of_equal_size(conditional, falloff, name):
    complete = GrowMap.complete(name)
    left, row = 1.0, []
    for i, accept in enumerate(conditional):
        row.append(left * accept * falloff**i)
        left -= row[-1]
    rows = {k: np.array(row[:k]) * (1 + 0.1 * k) / 2.2 for k in range(1, 12)}
    for acceptance in (row, rows):
        plan = optimise_tree(acceptance, complete.n_nodes, complete.depth)
        assert plan.model_eal >= model_eal(complete, acceptance) - 1e-12
        assert plan.growmap.n_nodes <= complete.n_nodes and plan.growmap.depth <= complete.depth


def test_a_chain_and_a_star_are_best_where_they_should_be():
    assert optimise_tree([1.0, 0.0], 5).growmap == GrowMap.complete("d5b1")
    assert optimise_tree([0.2] * 5, 6).growmap == GrowMap.complete("d2b5")
    assert optimise_tree([0.2] * 5, 6).model_eal == pytest.approx(2.0)


def test_of_equals_the_smallest_tree():
    assert optimise_tree([1.0, 0.0], 50, 4).growmap == GrowMap.complete("d4b1")
    assert optimise_tree([0.0, 0.0], 50).growmap.n_nodes == 1
    # 1.75 as a chain and as a pair
    assert optimise_tree([0.5, 0.25], 3).growmap == GrowMap.complete("d3b1")
    assert TreeSearch([0.5, 0.25], 12, 9).plan(3).growmap == GrowMap.complete("d3b1")
    # .5 for either child: the first one's subtree grows first
    assert optimise_tree({2: [0.5, 0.5]}, 6).growmap.children == ((1, 2), (3, 4), (), (), ())


def test_one_search_serves_all_budgets():
    rng = np.random.default_rng(2)
    rows = random_rows(rng, range(1, 9))
    rows[1] = rows[1] * 0 + 0.5  # ties: a chain of halves against pairs
    rows[2] = np.array([0.5, 0.25])
    search = TreeSearch(rows, 40, 5, max_branching=6)
    values = []
    for budget in range(1, 41):
        plan = search.plan(budget)
        assert plan == optimise_tree(rows, budget, 5, max_branching=6)
        assert plan.model_eal == pytest.approx(model_eal(plan.growmap, rows), rel=1e-13)
        values.append(plan.model_eal)
    assert values == sorted(values)
    deeper = [optimise_tree(rows, 40, depth).model_eal for depth in range(1, 10)]
    assert deeper == sorted(deeper) and deeper[0] == 1.0


def test_the_acceptance_is_left_alone():
    vector = np.array([0.5, 0.3])
    vector.flags.writeable = False
    optimise_tree(vector, 9)
    assert vector.tolist() == [0.5, 0.3]


@pytest.mark.timing
def test_256_nodes_take_seconds():
    """32 counts with rows of their own, 16 levels; the kernel may have to be compiled first."""
    rows = {k: v for k, v in random_rows(np.random.default_rng(0), range(1, 33)).items()}
    start = time.perf_counter()
    plan = optimise_tree(rows, 256, 16)
    assert time.perf_counter() - start < 5
    assert plan.growmap.n_nodes <= 256


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 0},
        {"budget": 2.5},
        {"budget": 10**6},
        {"depth": 0},
        {"depth": 65},
        {"max_branching": 0},
        {"max_branching": 1025},
        {"max_branching": 2.0},
        {"acceptance": []},
        {"acceptance": [[0.5]]},
        {"acceptance": [1.5]},
        {"acceptance": [-0.1]},
        {"acceptance": [float("nan")]},
        {"acceptance": [0.6, 0.6]},
        {"acceptance": {}},
        {"acceptance": {2: [0.5]}},
        {"acceptance": {0: []}},
    ],
)
def test_bad_arguments(arguments):
    with pytest.raises(InputError):
        optimise_tree(**({"acceptance": [0.5], "budget": 4} | arguments))


@pytest.mark.parametrize(
    "acceptance, message",
    [
        ({1025: np.zeros(1025)}, "1025 children: at most 1024"),
        ({1: [0.5], 5000: np.zeros(5000)}, "5000 children"),
        (["a"], "acceptance has the type <U1"),
        ("ab", "acceptance has the type"),
        ([0.5 + 0j], "complex"),
        (np.array([0.5], dtype=complex), "complex"),
        ({1: ["a"]}, r"acceptance\[1\] has the type"),
        ({1: [[0.5], [0.1, 0.2]]}, r"acceptance\[1\] is not an array"),
        ([None], "type object"),
        ([True], "type bool"),
        (None, "type object"),
        ({None: [0.5]}, "number of children is None"),
        (np.ma.array([0.5, 0.2], mask=[False, True]), "masked"),
        ({2: np.ma.array([0.5, 0.2], mask=[True, False])}, r"acceptance\[2\] .*masked"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
        (0.5, "shape"),
    ],
)
def test_acceptance_that_is_no_row_of_numbers(acceptance, message):
    for function in (
        lambda a: optimise_tree(a, 4),
        lambda a: model_eal(GrowMap.complete("d2b1"), a),
    ):
        with pytest.raises(InputError, match=message):
            function(acceptance)


def test_other_types_of_numbers():
    expected = optimise_tree([0.5, 0.25], 6)
    row = np.array([0.5, 0.25], dtype=np.float32)
    for same in (row, np.ma.array(row), [Fraction(1, 2), Fraction(1, 4)], tuple(row)):
        assert optimise_tree(same, 6) == expected
    assert optimise_tree([1, 0], 3) == optimise_tree([1.0, 0.0], 3)
    assert optimise_tree(np.full(5000, 1e-4), 3).max_branching == 1024


def test_a_search_goes_no_further_than_its_budget():
    with pytest.raises(InputError, match="up to 4"):
        TreeSearch([0.5], 4).plan(5)


def test_a_tree_with_a_count_that_was_not_measured():
    with pytest.raises(InputError, match="node 0 has 3 children, .* counts 1, 2"):
        model_eal(GrowMap.complete("d2b3"), [0.5, 0.2])
