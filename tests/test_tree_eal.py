"""Accepted length of any tree: against full enumeration, against paths, and its starts on a dump."""

from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from tree_helpers import LENGTHS, make_dump
from vectors import EAL_MARKOV

import resispec_sim.tree_eal as measuring
from resispec_sim import exact_law
from resispec_sim.growmaps import GrowMap, parse_growmap
from resispec_sim.rules import RULES, parse_rule
from resispec_sim.tree_eal import growmap_eal, growmap_path_eal, measure_siblings
from resispec_sim.trees import path_eal

# Context 1 follows the third token, context 0 any other.
TARGET, DRAFT = ([EAL_MARKOV[f"{which}{c}"] for c in (0, 1)] for which in "pq")
V = 3
SHAPES = {
    "two siblings, three levels": [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12], [13, 14]]
    + [[]] * 8,
    "a heavy first child": [[1, 2, 3], [4, 5], [6], [], [7], [], [8, 9], [], [], []],
    "a heavy last child": [[1, 2], [], [3, 4, 5], [], [], [6], [7, 8], [], []],
    "a chain": [[1], [2], [3], []],
    "a star": [[1, 2, 3], [], [], []],
}


def next_residual(rule, residual, q, token):
    """The two rules as published (ResiSpec: fill capacity, budget minimal), independent of `rules`."""
    if rule == "specinfer":
        rest = [max(r - k, F(0)) for r, k in zip(residual, q, strict=True)]
    else:
        z = q[token] - residual[token]
        kept = [min(z * k, r) for k, r in zip(q, residual, strict=True)]
        kept[token] = F(0)
        room = [r - k for r, k in zip(residual, kept, strict=True)]
        room[token] = F(0)
        lacking = z - sum(kept)
        if lacking:
            kept = [k + lacking * g / sum(room) for k, g in zip(kept, room, strict=True)]
        rest = kept
    return [r / sum(rest) for r in rest]


def accepted_mass(rule, context, n_siblings):
    """(sibling, token): probability that this sibling is accepted and is this token."""
    p, q = TARGET[context], DRAFT[context]
    found = {}
    for siblings in product(range(V), repeat=n_siblings):
        mass, residual = F(1), list(p)
        for x in siblings:
            mass *= q[x]
        for i, x in enumerate(siblings):
            accept = min(F(1), residual[x] / q[x])
            found[i, x] = found.get((i, x), F(0)) + mass * accept
            mass *= 1 - accept
            if mass == 0:
                break
            residual = next_residual(rule, residual, q, x)
    return found


def levels_of_procedure(rule, children, node, context):
    """Expected accepted levels below a node, by walking the procedure itself down the tree."""
    below = children[node]
    if not below:
        return F(0)
    return sum(
        mass * (1 + levels_of_procedure(rule, children, below[i], int(token == 2)))
        for (i, token), mass in accepted_mass(rule, context, len(below)).items()
    )


def expected_estimate(rule, tree, estimator):
    """The estimator averaged over every text from context 0, figures from the engine."""
    counts = sorted(set(tree.child_counts) - {0})
    laws = {
        (c, k): exact_law(
            rule, np.array(TARGET[c], float), np.array(DRAFT[c], float), k, by_token=True
        )
        for c in (0, 1)
        for k in counts
    }
    total = 0.0
    for tokens in product(range(V), repeat=tree.n_levels):
        contexts = [0, *(int(token == 2) for token in tokens)][: tree.n_levels]
        at = list(zip(contexts, tokens, strict=True))
        weight = float(np.prod([TARGET[c][x] for c, x in at]))
        w = {
            k: np.array([laws[c, k].accepted_by_token[:, x] / float(TARGET[c][x]) for c, x in at])
            for k in counts
        }
        accepted = {k: np.array([laws[c, k].accepted for c, _ in at]) for k in counts}
        (estimate,) = estimator(w, accepted, tree)
        total += weight * estimate
    return total


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["specinfer", "resispec"])
def test_the_estimator_equals_full_enumeration(rule, shape):
    tree = GrowMap(SHAPES[shape])
    right = 1 + levels_of_procedure(rule, SHAPES[shape], 0, 0)
    assert expected_estimate(rule, tree, growmap_path_eal) == pytest.approx(float(right), rel=1e-12)
    if tree == GrowMap.complete("d4b2"):
        assert right == 1 + EAL_MARKOV[f"accepted_levels_{rule}"]


@pytest.mark.parametrize("shape", ["a heavy first child", "a heavy last child"])
@pytest.mark.parametrize("rule", ["specinfer", "resispec"])
def test_the_enumeration_tells_wrong_estimators(rule, shape):
    """Siblings in the wrong order, or every factor replaced by its expectation."""
    tree = GrowMap(SHAPES[shape])
    right = float(1 + levels_of_procedure(rule, SHAPES[shape], 0, 0))

    def turned(w, accepted, tree):
        return growmap_path_eal({k: v[:, ::-1] for k, v in w.items()}, accepted, tree)

    def expected(w, accepted, tree):
        return growmap_path_eal(accepted, accepted, tree)

    for wrong in (turned, expected):
        assert abs(expected_estimate(rule, tree, wrong) - right) > 1e-4


@pytest.mark.parametrize("name", ["d2b1", "d2b4", "d5b3", "d7b2", "d4b5", "d9b1"])
def test_complete_trees_have_the_figures_of_their_paths(name):
    tree = parse_growmap(name)
    rng = np.random.default_rng(1)
    for n_positions in (0, 1, 5, 30):
        branching = tree.branching[0]
        w = rng.gamma(2.0, 0.5 / branching, size=(n_positions, branching))
        accepted = rng.dirichlet(np.ones(branching + 1), size=n_positions)[:, :branching]
        found = growmap_path_eal({branching: w}, {branching: accepted}, tree)
        paths = path_eal(w.sum(axis=1), accepted.sum(axis=1), tree.n_levels)
        assert found.shape == paths.shape
        np.testing.assert_allclose(found, paths, rtol=1e-12)


def test_the_root_alone_gives_the_bonus_token():
    assert growmap_path_eal({1: np.ones((2, 1))}, {1: np.ones((2, 1))}, GrowMap([[]]))[0] == 1.0


def test_the_estimator_leaves_its_arguments_alone():
    w, accepted = {1: np.full((4, 1), 0.5)}, {1: np.full((4, 1), 0.25)}
    growmap_path_eal(w, accepted, parse_growmap("d3b1"))
    assert (w[1] == 0.5).all() and (accepted[1] == 0.25).all()


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    with make_dump(tmp_path_factory.mktemp("dumps") / "small") as opened:
        yield opened


OF_ONE_POSITION = [name for name, rule in RULES.items() if rule.siblings not in ("chain", "tree")]


@pytest.mark.parametrize("name", OF_ONE_POSITION)
def test_figures_are_those_of_the_laws_at_each_count(dump, name):
    rule = parse_rule(name)
    figures = measure_siblings(dump, rule, 3)
    assert figures.n_not_exact == 0 and set(figures.counts) <= {1, 2, 3}
    assert figures.prompts.tolist() == [i for i, n in enumerate(LENGTHS) for _ in range(n)]
    assert figures.offsets.tolist() == [t for n in LENGTHS for t in range(n)]
    accepted, w = figures.by_count("accepted"), figures.by_count("w")
    for count in figures.counts:
        assert accepted[count].shape == w[count].shape == (dump.n_positions, count)
        for i in (0, 8, dump.n_positions - 1):
            p, q = dump.probs(i)
            token = dump.read(i).token_id
            law = exact_law(rule, p, q, count, by_token=True)
            np.testing.assert_allclose(accepted[count][i], law.accepted, atol=1e-14)
            np.testing.assert_allclose(
                w[count][i], law.accepted_by_token[:, token] / p[token], atol=1e-12
            )


def test_a_rule_that_looks_ahead_is_computed_at_every_count(dump, monkeypatch):
    asked = []

    def counted(rule, p, q, count, **options):
        asked.append(count)
        return exact_law(rule, p, q, count, **options)

    monkeypatch.setattr(measuring, "exact_law", counted)
    measure_siblings(dump, parse_rule("specinfer"), 4)
    assert set(asked) == {4}
    asked.clear()
    figures = measure_siblings(dump, parse_rule("k-seq"), 4)
    assert set(asked) == {1, 2, 3, 4} and figures.counts == (1, 2, 3, 4)
    first = [of_count[:, 0].mean() for of_count in figures.by_count("accepted").values()]
    assert len({round(value, 6) for value in first}) > 1


def test_starts_need_room_and_known_ratios(dump):
    figures = measure_siblings(dump, parse_rule("specinfer"), 2)
    every = np.ones(dump.n_positions, dtype=bool)
    tree = parse_growmap("d4b2")
    found = growmap_eal(figures, tree, every)
    assert found["n_starts"] == sum(max(n - 2, 0) for n in LENGTHS)
    assert found["n_prompts"] == 4
    assert growmap_eal(figures, tree, every, n_left=7)["n_starts"] == 1 + 3 + 2
    figures.w[2][2] = np.nan  # offset 2 of the first prompt: starts 3 and 4 stay
    assert growmap_eal(figures, tree, every)["n_starts"] == found["n_starts"] - 3
    none = growmap_eal(figures, parse_growmap("d11b2"), every)
    assert none["mean"] is None and "10 consecutive positions" in none["reason"]
    one = growmap_eal(figures, tree, figures.prompts == 1)
    assert one["mean"] > 1 and one["low"] is None and "one prompt" in one["reason"]
