"""Exact residual shaping and K-SEQ: their levels and factors, and the best sequential rule by an LP."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from strategies import EDGE_PAIRS, prob_pairs
from vectors import EXACT_SHAPING

from resispec_sim import exact_law, optimal_acceptance
from resispec_sim.engine import enumerate_law
from resispec_sim.rules import ExactShaping, KSeq, SpecInfer
from resispec_sim.rules.exact_shaping import solve_level
from resispec_sim.rules.k_seq import solve_factor

ids = dict(ids=lambda value: getattr(value, "name", str(value)))


def to_float(values):
    return np.array([float(value) for value in values])


@pytest.mark.parametrize("row", EXACT_SHAPING, ids=lambda row: str(row["n"]))
def test_known_values_of_exact_shaping(row):
    p, q, n = to_float(row["p"]), to_float(row["q"]), row["n"]
    oracle = enumerate_law(ExactShaping(), row["p"], row["q"], n)
    assert sum(oracle.accepted) == row["total"]
    law = exact_law("exact-shaping", p, q, n)
    assert law.accepted.sum() == pytest.approx(float(row["total"]), abs=1e-14)
    if "S" in row:
        exact = [np.array(row[side], dtype=object) for side in ("p", "q")]
        assert solve_level(*exact, n) == row["S"]
        assert solve_level(p, q, n) == pytest.approx(float(row["S"]), abs=1e-13)
    if "accepted" in row:
        assert oracle.accepted == list(row["accepted"])
        np.testing.assert_allclose(law.accepted, to_float(row["accepted"]), rtol=0, atol=1e-14)
        assert sum(enumerate_law(SpecInfer(), row["p"], row["q"], n).accepted) == row["rrs"]
    if "optimum" in row:
        assert optimal_acceptance(p, q, n) == pytest.approx(float(row["optimum"]), abs=1e-14)


@given(
    pair=prob_pairs(max_vocab=5), n=st.integers(1, 5), level=st.floats(1, 5), factor=st.floats(0, 2)
)
def test_every_level_is_exact_and_none_is_better(pair, n, level, factor):
    p, q = map(to_float, pair)
    best = exact_law("exact-shaping", p, q, n).accepted.sum()
    other = exact_law(ExactShaping(level=min(level, n)), p, q, n)
    assert other.tv < 1e-12 and other.accepted.sum() <= best + 1e-12
    root = solve_factor(p, q, n)
    larger = exact_law(KSeq(factor=root * (1 + factor)), p, q, n)
    assert larger.tv < 1e-12
    assert larger.accepted.sum() <= exact_law("k-seq", p, q, n).accepted.sum() + 1e-12


def shaping_by_linear_programme(p, q, n):
    """Largest acceptance of a rule that decides on one sibling after another: masses r_0 .. r_n."""
    vocab = len(p)
    variables = n * vocab  # r_1 .. r_n
    rows, limits = [], []
    for i in range(1, n + 1):
        for x in range(vocab):

            def unit(j, y, value, row):
                if j >= 1:
                    row[(j - 1) * vocab + y] += value
                    return 0.0
                return value * p[y]

            falls = np.zeros(variables)
            constant = unit(i, x, 1.0, falls) + unit(i - 1, x, -1.0, falls)
            rows.append(falls), limits.append(-constant)
            drop = np.zeros(variables)
            constant = unit(i - 1, x, 1.0, drop) + unit(i, x, -1.0, drop)
            for y in range(vocab):
                constant += unit(i - 1, y, -q[x], drop)
            rows.append(drop), limits.append(-constant)
    cost = np.zeros(variables)
    cost[-vocab:] = 1.0
    result = linprog(cost, A_ub=np.array(rows), b_ub=np.array(limits), method="highs")
    assert result.status == 0, result.message
    return 1.0 - result.fun


@pytest.mark.parametrize("pair", EDGE_PAIRS[:20], **ids)
def test_exact_shaping_is_the_best_sequential_rule_on_edge_pairs(pair):
    p, q = map(to_float, pair[1:])
    for n in (1, 2, 3, 4):
        total = exact_law("exact-shaping", p, q, n).accepted.sum()
        assert total == pytest.approx(shaping_by_linear_programme(p, q, n), abs=1e-9)


def test_exact_shaping_is_the_best_sequential_rule():
    rng = np.random.default_rng(13)
    for _ in range(60):
        vocab, n = int(rng.integers(2, 9)), int(rng.integers(1, 7))
        p, q = rng.dirichlet(np.full(vocab, 0.6)), rng.dirichlet(np.full(vocab, 0.6))
        total = exact_law("exact-shaping", p, q, n).accepted.sum()
        assert total == pytest.approx(shaping_by_linear_programme(p, q, n), abs=1e-9)
