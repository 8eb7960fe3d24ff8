"""Distances and their bounds: against plain definitions, and laws that lie within the bounds."""

import numpy as np
import pytest

from resispec_sim.engine.distances import (
    excess_mass,
    kl_bounds,
    kl_divergence,
    tv_and_kl,
    tv_bounds,
)

RNG = np.random.default_rng(5)


def plain_kl(law, target):
    """``sum M log(M/p)`` in extended precision, through differences of logarithms."""
    on = law > 0
    if (target[on] == 0).any():
        return np.inf
    m, p = law[on].astype(np.longdouble), target[on].astype(np.longdouble)
    return float((m * (np.log(m) - np.log(p))).sum() + target.sum() - law.sum())


def laws(size):
    """Pairs (law, target) of one size: far apart, near, with zeros, with subnormal targets."""
    p, m = RNG.dirichlet(np.ones(size), 2)
    yield m, p
    yield p, p
    for step in (1e-14, 1e-6, 0.015, 0.1):
        near = p * (1 + step * RNG.normal(size=size).clip(-3, 3))
        yield near / near.sum(), p
    sparse, other = RNG.dirichlet(np.full(size, 0.05), 2)
    yield np.where(sparse > 0, m, 0) / m[sparse > 0].sum(), sparse
    yield other * (p > np.median(p)) / max((other * (p > np.median(p))).sum(), 1e-300), p
    yield m, np.where(np.arange(size) == 0, 1.0, 5e-324)


@pytest.mark.parametrize("size", [1, 2, 17, 512, 1300])
def test_divergences_agree_with_their_definitions(size):
    for law, target in laws(size):
        tv, kl = tv_and_kl(law, target)
        assert abs(tv - 0.5 * np.abs(law - target).sum()) < 1e-14
        expected = plain_kl(law, target)
        assert kl == expected or abs(kl - expected) < 1e-14 * max(1, expected)
        assert kl >= 0


def test_a_token_that_the_target_never_emits_makes_the_kl_infinite():
    assert kl_divergence(np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])) == np.inf
    assert kl_divergence(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(np.log(2))


def test_the_kl_of_rounding_is_its_square():
    p = RNG.dirichlet(np.ones(1000))
    assert kl_divergence(p * (1 + 2.0**-40), p) == pytest.approx(2.0**-81, rel=1e-9)
    assert kl_divergence(p, p) == 0.0


def test_excess_is_that_of_the_sum_of_rows():
    for size in (1, 600):
        rows, target = RNG.dirichlet(np.ones(size), 4) * 0.3, RNG.dirichlet(np.ones(size))
        expected = np.maximum(rows.sum(axis=0) - target, 0).sum()
        assert excess_mass(rows, target) == pytest.approx(expected, abs=1e-15)


def sorted_kl_low(certain, target, missing):
    """Least KL by sorting: the ratios below one level are raised to it."""
    order = np.argsort(certain / target)
    c, p = certain[order], target[order]
    levels = (np.cumsum(c) + missing) / np.cumsum(p)
    k = np.flatnonzero(c / p < levels)[-1]
    law = np.maximum(c, levels[k] * p)
    return plain_kl(law / law.sum(), p / p.sum())


@pytest.mark.parametrize("size", [2, 30, 900])
def test_laws_that_are_at_least_the_certain_mass_lie_within_the_bounds(size):
    for sparsity in (1.0, 0.1):
        target = RNG.dirichlet(np.full(size, sparsity))
        on = target > 0
        certain = np.where(on, RNG.dirichlet(np.full(size, sparsity)), 0) * RNG.uniform(0.5, 1)
        missing = 1 - certain.sum()
        tv, kl = tv_bounds(certain, target), kl_bounds(certain, target)
        assert kl[0] == pytest.approx(
            sorted_kl_low(certain[on], target[on], missing), rel=1e-9, abs=1e-14
        )
        single = [np.eye(size)[x] for x in np.flatnonzero(on)[:40]]
        spread = [np.where(on, share, 0) for share in RNG.dirichlet(np.full(size, 0.1), 20)]
        reached = np.zeros(2)
        for share in (*single, *spread):
            law = certain + missing * share / share.sum()
            found = np.array(tv_and_kl(law, target))
            assert tv[0] - 1e-12 <= found[0] <= tv[1] + 1e-12
            assert kl[0] - 1e-12 <= found[1] <= kl[1] + 1e-12
            reached = np.maximum(reached, found)
        if size <= 40:  # every single token was tried, so the upper ends are met
            assert reached == pytest.approx([tv[1], kl[1]], abs=1e-12)
