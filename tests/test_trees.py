"""Tree names, the accepted-length estimators against full enumeration, the bootstrap."""

from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest

from resispec_sim.engine import exact_law
from resispec_sim.errors import InputError
from resispec_sim.trees import (
    CompleteTree,
    bootstrap_ratio,
    parse_tree,
    path_eal,
    path_tokens_per_step,
    step_start_probs,
)

# A Markov pair over three tokens: context 1 follows the third token, context 0 any other.
TARGET = [[F(1, 2), F(1, 3), F(1, 6)], [F(1, 5), F(3, 10), F(1, 2)]]
DRAFT = [[F(1, 3), F(1, 2), F(1, 6)], [F(2, 5), F(1, 5), F(2, 5)]]
V, TREE = 3, parse_tree("d4b2")
# Drafted levels accepted per step from context 0; computed in rationals outside this package.
ACCEPTED_LEVELS = {"specinfer": F(4369211, 1822500), "resispec": F(3073003, 1215000)}


def context_after(token):
    return int(token == 2)


def paths(length):
    """Every text of `length` tokens from context 0: tokens, contexts and probability."""
    for tokens in product(range(V), repeat=length):
        contexts = [0, *map(context_after, tokens)][:length]
        yield (
            tokens,
            contexts,
            float(np.prod([TARGET[c][x] for c, x in zip(contexts, tokens, strict=True)])),
        )


def ratios(rule):
    """W (2, V) and total acceptance (2,) from the engine."""
    laws = [
        exact_law(rule, np.array(p, float), np.array(q, float), TREE.branching, by_token=True)
        for p, q in zip(TARGET, DRAFT, strict=True)
    ]
    w = [
        law.accepted_by_token.sum(axis=0) / np.array(p, float)
        for law, p in zip(laws, TARGET, strict=True)
    ]
    return np.array(w), np.array([law.accepted.sum() for law in laws])


def next_residual(rule, residual, q, token):
    """The two rules as published (ResiSpec: fill capacity, budget minimal), independent of `rules`."""
    if rule == "specinfer":
        rest = [max(r - k, F(0)) for r, k in zip(residual, q, strict=True)]
    else:
        z = q[token] - residual[token]
        kept = [
            min(z * k, r) if y != token else F(0)
            for y, (k, r) in enumerate(zip(q, residual, strict=True))
        ]
        room = [residual[y] - kept[y] if y != token else F(0) for y in range(V)]
        lacking = z - sum(kept)
        rest = [
            k + (lacking * g / sum(room) if lacking else F(0))
            for k, g in zip(kept, room, strict=True)
        ]
    return [r / sum(rest) for r in rest]


def step_outcomes(rule, context):
    """Run one node forward over all sibling pairs: {(token, accepted?): probability}."""
    p, q = TARGET[context], DRAFT[context]
    found = {}

    def add(token, accepted, mass):
        found[token, accepted] = found.get((token, accepted), F(0)) + mass

    for siblings in product(range(V), repeat=TREE.branching):
        mass, residual = F(1), p
        for x in siblings:
            mass *= q[x]
        for x in siblings:
            accept = min(F(1), residual[x] / q[x])
            add(x, True, mass * accept)
            mass *= 1 - accept
            if mass == 0:
                break
            residual = next_residual(rule, residual, q, x)
        else:
            for y in range(V):
                add(y, False, mass * residual[y])
    return found


def levels_of_procedure(rule, context, n_levels):
    """Expected accepted levels of the procedure itself, walked down the tree."""
    if n_levels == 0:
        return F(0)
    return sum(
        mass * (1 + levels_of_procedure(rule, context_after(token), n_levels - 1))
        for (token, accepted), mass in step_outcomes(rule, context).items()
        if accepted
    )


@pytest.mark.parametrize("rule", ACCEPTED_LEVELS)
def test_the_procedure_accepts_what_was_computed_elsewhere(rule):
    assert levels_of_procedure(rule, 0, TREE.n_levels) == ACCEPTED_LEVELS[rule]


@pytest.mark.nojit
@pytest.mark.parametrize("rule", ACCEPTED_LEVELS)
def test_eal_estimator_is_unbiased(rule):
    w, alpha = ratios(rule)
    expected = 0.0
    for tokens, contexts, weight in paths(TREE.n_levels):
        estimate = path_eal(w[contexts, list(tokens)], alpha[contexts], TREE.n_levels)
        assert estimate.shape == (1,)
        expected += weight * estimate[0]
    assert expected == pytest.approx(float(1 + ACCEPTED_LEVELS[rule]), rel=1e-13)


def test_the_unbiasedness_test_can_fail():
    w, alpha = ratios("resispec")
    wrong = 0.0
    for _, contexts, weight in paths(TREE.n_levels):
        # every factor replaced by its expectation, not only the last: wrong where contexts differ
        wrong += weight * path_eal(alpha[contexts], alpha[contexts], TREE.n_levels)[0]
    assert abs(wrong - float(1 + ACCEPTED_LEVELS["resispec"])) > 1e-4


def procedure_steps(rule, n_tokens):
    """Of the procedure: expected steps that start at tokens 0..n_tokens-1, and their tokens."""
    starts = [{0: F(1)}] + [{} for _ in range(n_tokens + TREE.n_levels + 1)]
    outcomes = [step_outcomes(rule, context) for context in (0, 1)]
    steps = tokens_out = F(0)
    for t in range(n_tokens):
        alive = starts[t]
        steps += sum(alive.values())
        for level in range(TREE.n_levels + 1):
            tokens_out += sum(alive.values())
            after = {}
            for context, mass in alive.items():
                if level == TREE.n_levels:  # the bonus token: from the target, not tested
                    for token in range(V):
                        end = starts[t + level + 1]
                        key = context_after(token)
                        end[key] = end.get(key, F(0)) + mass * TARGET[context][token]
                    continue
                for (token, accepted), part in outcomes[context].items():
                    into = after if accepted else starts[t + level + 1]
                    key = context_after(token)
                    into[key] = into.get(key, F(0)) + mass * part
            alive = after
    return float(tokens_out), float(steps)


@pytest.mark.parametrize("n_starts", [1, 2, 4])
def test_tokens_per_step_equal_the_procedure(n_starts):
    w, alpha = ratios("specinfer")
    tokens_out = steps = 0.0
    for tokens, contexts, weight in paths(n_starts + TREE.n_levels - 1):
        at = w[contexts, list(tokens)], alpha[contexts]
        more_tokens, more_steps = path_tokens_per_step(*at, TREE.n_levels)
        tokens_out += weight * more_tokens
        steps += weight * more_steps
    assert (tokens_out, steps) == pytest.approx(procedure_steps("specinfer", n_starts), rel=1e-12)


def test_step_starts_add_up_to_the_tokens():
    """Long text, constant ratio: one start in (expected step length) tokens."""
    w, n_levels = 0.7, 4
    starts = step_start_probs(np.full(400, w), n_levels)
    length = sum(w**j for j in range(n_levels + 1))
    assert starts[-1] == pytest.approx(1 / length, rel=1e-9)
    assert path_eal(np.full(4, w), np.full(4, w), n_levels)[0] == pytest.approx(length)


@pytest.mark.parametrize("n_positions", [0, 1, 2])
def test_a_text_shorter_than_the_tree_has_no_start(n_positions):
    assert path_eal(np.ones(n_positions), np.ones(n_positions), 3).shape == (0,)


def test_estimators_leave_their_arguments_alone():
    w, alpha = np.array([0.5, 1.0000001, 0.2]), np.array([0.5, 0.6, 0.7])
    kept = w.copy(), alpha.copy()
    path_tokens_per_step(w, alpha, 2)
    assert (w == kept[0]).all() and (alpha == kept[1]).all()


def test_tree_names():
    tree = parse_tree("d5b3")
    assert tree == CompleteTree(depth=5, branching=3)
    assert (tree.n_nodes, tree.n_levels, str(tree)) == (121, 4, "d5b3")
    assert parse_tree("d7b2").n_nodes == 127


@pytest.mark.parametrize(
    "text", ["", "b3", "d5", "d5b3x", "5b3", "d1b3", "d0b2", "d5b0", "d-5b3", "d65b1", "d2b1025"]
)
def test_bad_tree_names(text):
    with pytest.raises(InputError, match="tree"):
        parse_tree(text)


@pytest.mark.parametrize(
    "w, alpha, n_levels", [([1.0], [1.0, 1.0], 1), ([[1.0]], [[1.0]], 1), ([1.0], [1.0], 0)]
)
def test_bad_paths(w, alpha, n_levels):
    with pytest.raises(InputError):
        path_eal(w, alpha, n_levels)


def test_bootstrap():
    rng = np.random.default_rng(3)
    bottom = rng.integers(1, 9, size=50)
    top = bottom * 2 + rng.normal(size=50)
    ratio, low, high = bootstrap_ratio(top, bottom)
    assert ratio == pytest.approx(top.sum() / bottom.sum())
    assert low < ratio < high
    assert bootstrap_ratio(top, bottom) == (ratio, low, high)
    narrow = bootstrap_ratio(top, bottom, confidence=0.5)
    assert low < narrow[1] < narrow[2] < high
    # The spread of a ratio of sums, from the usual linearisation; 10,000 resamples give a few per cent.
    spread = np.sqrt(((top - ratio * bottom) ** 2).sum()) / bottom.sum()
    assert (high - low) / (2 * 1.96) == pytest.approx(spread, rel=0.1)


def test_bootstrap_without_enough_prompts():
    assert np.isnan(bootstrap_ratio([], [])).all()
    assert np.isnan(bootstrap_ratio([0.0], [0.0])).all()
    ratio, low, high = bootstrap_ratio([3.0, 0.0], [2.0, 0.0])
    assert ratio == 1.5 and np.isnan([low, high]).all()
