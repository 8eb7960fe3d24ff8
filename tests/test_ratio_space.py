"""The ratio order and its sums: a stable sort and exact sums, whatever the two rows hold."""

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

from resispec_sim.engine import ratio_order, ratio_space
from resispec_sim.engine.ratio_order import LARGEST_RATIO
from resispec_sim.engine.ratio_space import count_below, to_ratio_space


def plain_ratios(p, q):
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(q > 0, p / q, np.inf)
        return np.where(ratio < LARGEST_RATIO, ratio, np.inf)


def row(rng, kind, size):
    """Two rows (V,) whose ratios have ties, gaps, clusters an ulp apart, or all of these."""
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    if kind == "sparse":
        p, q = rng.dirichlet(np.full(size, 0.02)), rng.dirichlet(np.full(size, 0.02))
    elif kind == "ties":
        p, q = rng.integers(0, 4, size) + 0.0, rng.integers(0, 4, size) + 0.0
    elif kind == "whole float range":
        p, q = np.exp(-745 * rng.random((2, size)))
    elif kind == "equal":
        q = p.copy()
    elif kind == "ulps":
        q = p * (1 + rng.integers(-3, 4, size) * 2.0**-52)
    elif kind == "16-bit logits":
        steps = np.round(rng.normal(size=size) * 20) / 16
        q = p * np.exp(steps) * (1 + rng.integers(-20, 20, size) * 2.0**-52)
    elif kind == "nested":  # every bucket of the coarse sort but one is empty, again and again
        p = np.ones(size)
        q = 1 / (1 + 2.0 ** -rng.integers(1, 53, size))
    elif kind == "one token":
        p, q = np.full(size, -0.0), np.zeros(size)
    p[rng.integers(size)] += 1.0
    q[rng.integers(size)] += 1.0
    return p / p.sum(), q / q.sum()


KINDS = (
    "any", "sparse", "ties", "whole float range", "equal", "ulps", "16-bit logits", "nested",
    "one token",
)  # fmt: skip


@pytest.mark.nojit
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_the_stable_order_of_the_ratios(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for size in (1, 2, 3, 40, 700):
        p, q = row(rng, kind, size)
        rho = plain_ratios(p, q)
        order = np.argsort(rho, kind="stable")
        space = to_ratio_space(p, q)
        assert np.array_equal(space.order, order)
        assert np.array_equal(space.rho, rho[order])
        assert np.array_equal(space.p, p[order])
        assert np.array_equal(space.q, np.where(np.isinf(rho), 0, q)[order])
        assert space.n_zero == (rho == 0).sum()
        assert space.n_over == (rho < 1).sum()
        assert space.n_drafted == np.isfinite(rho).sum()
        assert space.n_overflow == (np.isinf(rho) & (q > 0)).sum()


@pytest.mark.nojit
@pytest.mark.parametrize("kind", KINDS)
def test_look_ups_count_the_ratios_below_a_weight(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    space = to_ratio_space(*row(rng, kind, 300))
    own = space.rho[(space.rho > 0) & (space.rho <= 1)]
    weights = [
        1.0,
        2.0**-79,
        5e-324,
        1e-300,
        *rng.random(50),
        *own[:100],
        *np.nextafter(own[:50], 0),
    ]
    for weight in weights:
        if weight > 0:
            assert count_below(weight, space.rho, space.bucket) == (space.rho < weight).sum()


@pytest.mark.nojit
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_right_beyond_float64(kind):
    space = to_ratio_space(*row(np.random.default_rng(KINDS.index(kind)), kind, 500))
    before = list(accumulate(map(Fraction, space.p), initial=Fraction(0)))
    after = list(accumulate(map(Fraction, space.q[::-1]), initial=Fraction(0)))[::-1]
    for exact, high, low in (
        (before, space.prefix_p, space.prefix_p_low),
        (after, space.suffix_q, space.suffix_q_low),
    ):
        assert all(h == float(x) for x, h in zip(exact, high, strict=True))
        for x, h, part in zip(exact, high, low, strict=True):
            assert abs(x - Fraction(h) - Fraction(part)) <= x * Fraction(1, 10**24)


def test_a_large_vocabulary_is_sorted_and_summed_alike():
    p, q = row(np.random.default_rng(0), "16-bit logits", 60_000)
    space = to_ratio_space(p, q)
    assert np.array_equal(space.order, np.argsort(plain_ratios(p, q), kind="stable"))
    exact = np.cumsum(space.p, dtype=np.longdouble)
    assert np.abs(space.prefix_p[1:] - exact).max() < 1e-15


def test_rows_are_not_changed():
    p, q = row(np.random.default_rng(0), "sparse", 100)
    copies = p.copy(), q.copy()
    to_ratio_space(p, q)
    assert np.array_equal(p, copies[0]) and np.array_equal(q, copies[1])


def test_strided_and_read_only_rows_are_taken():
    p, q = row(np.random.default_rng(0), "any", 100)
    pair = np.stack((p, q), axis=1)
    pair.flags.writeable = False
    assert np.array_equal(to_ratio_space(pair[:, 0], pair[:, 1]).order, to_ratio_space(p, q).order)


@pytest.mark.parametrize("fault", ["unstable", "unfinished"])
def test_a_faulty_sort_is_seen(fault, monkeypatch):
    """The test of the order fails when the sort goes wrong."""

    def faulty(keys, sorted_keys, order):
        if fault == "unstable":
            order[:] = np.argsort(keys[::-1], kind="stable")
            order[:] = keys.size - 1 - order
        else:
            order[:] = np.argsort(keys >> 46, kind="stable")
        sorted_keys[:] = keys[order]

    assert ratio_space.sort_keys is ratio_order.sort_keys
    monkeypatch.setattr(ratio_space, "sort_keys", faulty)
    with pytest.raises(AssertionError):
        for kind in ("ties", "ulps"):
            test_the_order_is_the_stable_order_of_the_ratios(kind)
