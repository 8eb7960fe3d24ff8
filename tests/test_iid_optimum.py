"""The optimum of independent siblings without a sort, beside the formula over all sorted prefixes."""

import numpy as np
import pytest

from resispec_sim.engine import iid_optimum
from resispec_sim.engine.iid_optimum import largest_acceptance
from resispec_sim.probs import check_probs
from tests.test_ratio_space import KINDS, row


def by_sorting(p, q, n):
    """``1 + min over prefixes of p(H) - q(H)^n`` in extended precision."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        order = np.argsort(np.where(q > 0, p / q, np.inf), kind="stable")
    held = np.cumsum(p[order], dtype=np.longdouble)
    drawn = np.minimum(np.cumsum(q[order], dtype=np.longdouble), 1)
    return float(1 + min((held - drawn**n).min(), 0))


@pytest.mark.parametrize("kind", KINDS)
def test_value_is_that_of_the_best_prefix(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for size in (1, 2, 5, 40, 600):
        p, q = (check_probs(x, "probs") for x in row(rng, kind, size))
        for n in (1, 2, 3, 8, 101, 201):
            found = largest_acceptance(p, q, n)
            assert 0 <= found <= 1
            assert abs(found - by_sorting(p, q, n)) < 1e-15 * (n + 10)


def test_many_equal_tokens_do_not_add_up_their_rounding():
    size = 100_003
    q = np.full(size, 1 / size)
    p = np.where(np.arange(size) < 30_001, 2 / size, 0)
    p[-1] = 1 - p[:-1].sum()
    for n in (2, 8):
        assert abs(largest_acceptance(p, q, n) - by_sorting(p, q, n)) < 1e-13


def test_a_bucket_that_is_not_opened_is_seen(monkeypatch):
    for kernel in ("value_at", "fill_buckets", "least_value"):
        monkeypatch.setattr(iid_optimum, kernel, getattr(iid_optimum, kernel).py_func)
    # a bucket an octave: opening it takes time, but finds the value
    monkeypatch.setattr(iid_optimum, "SHIFT", 52)
    monkeypatch.setattr(iid_optimum, "LOWEST", 1023 - 30)
    rng = np.random.default_rng(3)
    pairs = [row(rng, "any", 60) for _ in range(20)]

    def worst():
        return max(abs(largest_acceptance(*pair, 3) - by_sorting(*pair, 3)) for pair in pairs)

    assert worst() < 1e-14
    monkeypatch.setattr(iid_optimum, "SLACK", 1.0)
    assert worst() > 1e-3
