"""ResiSpec with many siblings, where nearly all paths draw rejected tokens again and weigh nothing."""

from fractions import Fraction

import numpy as np
import pytest

from resispec_sim import exact_law, open_dump
from resispec_sim.engine import enumerate_law
from resispec_sim.engine import resispec as resispec_module
from resispec_sim.engine.paths import first_rejection, run_walk
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.engine.tail import to_table
from resispec_sim.rules import ResiSpec

RULES = [ResiSpec(fill, "minimal") for fill in ("capacity", "water")]
IDS = ["capacity", "water"]


def long_tailed(seed, n_light, lightest=40.0):
    """Three heavy tokens, and light ones down to ``2**-lightest``, all as fractions of floats."""
    rng = np.random.default_rng((seed, n_light))
    q = np.concatenate(([0.5, 0.3, 0.2], np.exp2(-rng.uniform(10.0, lightest, n_light))))
    p = q * np.exp(rng.normal(0.0, 1.0, q.size))
    sides = []
    for side in (p, q):
        exact = [Fraction(value) for value in side]
        sides.append([value / sum(exact) for value in exact])
    return sides


def walk_all(rule, p, q, n, theta=0.0):
    space = to_ratio_space(p, q)
    first = first_rejection(rule, space)
    return run_walk(rule, space, to_table(space, with_moments=True), first, n, theta=theta), space


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@pytest.mark.parametrize("n", [5, 6])
def test_exact_fractions(rule, n):
    p, q = long_tailed(0, 2)
    expected = enumerate_law(rule, p, q, n)
    floats = [np.array(side, float) for side in (p, q)]
    for method in ("auto", "exact"):
        law = exact_law(rule, *floats, n, method=method, by_token=True)
        assert law.method == "exact"
        np.testing.assert_allclose(
            law.output_probs, np.array(expected.output_probs, float), rtol=0, atol=1e-14
        )
        np.testing.assert_allclose(
            law.accepted, np.array(expected.accepted, float), rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@pytest.mark.parametrize("n", [5, 6])
def test_what_is_left_out_is_rounding(rule, n):
    p, q = (np.array(side, float) for side in long_tailed(1, 8))
    whole, space = walk_all(rule, p, q, n)
    some, _ = walk_all(rule, p, q, n, theta=resispec_module.NO_WEIGHT)
    assert 0.0 < some.lost[-1] <= resispec_module.ROUNDING_MASS
    assert some.steps < 0.9 * whole.steps
    law = exact_law(rule, p, q, n, method="exact", by_token=True)
    assert law.method == "exact"
    expected = np.empty_like(p)
    expected[space.order] = whole.accepted_by_token.sum(axis=0) + whole.closed
    np.testing.assert_allclose(law.output_probs, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(law.accepted, whole.accepted, rtol=0, atol=1e-14)


def test_more_than_rounding_is_not_left_out(monkeypatch):
    rule = RULES[0]
    p, q = (np.array(side, float) for side in long_tailed(1, 8))
    monkeypatch.setattr(resispec_module, "NO_WEIGHT", 1e-6)
    some, _ = walk_all(rule, p, q, 5, theta=1e-6)
    assert some.lost[-1] > resispec_module.ROUNDING_MASS
    whole, space = walk_all(rule, p, q, 5)
    law = exact_law(rule, p, q, 5, method="exact")
    expected = np.empty_like(p)
    expected[space.order] = whole.accepted_by_token.sum(axis=0) + whole.closed
    np.testing.assert_allclose(law.output_probs, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("position", [8, 26, 30, 38])
def test_auto_goes_on_to_all_paths_where_they_are_few(position):
    """The bounds of a walk under a small budget enclose what all paths give."""
    with open_dump("smollm2-t1.0") as dump:
        p, q = dump.probs(position)
    law = exact_law("resispec", p, q, 8)
    assert law.method == "exact" and not law.tv_interval[1] > law.tv_interval[0]
    bounded = exact_law("resispec", p, q, 8, method="certified", max_paths=1e6)
    low, high = bounded.accepted_interval.T
    assert (low - 1e-13 <= law.accepted).all() and (law.accepted <= high + 1e-13).all()
    assert bounded.tv_interval[0] - 1e-12 <= law.tv <= bounded.tv_interval[1] + 1e-12


def test_auto_is_certified_where_they_are_many():
    with open_dump("smollm2-t1.0") as dump:
        law = exact_law("resispec", *dump.probs(16), 8)
    assert law.method == "certified"
    assert law.accepted_interval is not None


def test_sampled_paths_make_nothing_certain_where_ratios_overflow():
    # the last token is drafted, but its p/q is beyond the float range
    p, q = [0.3, 0.3, 0.4], [0.6, 0.4, 1e-309]
    rule = ResiSpec("water")
    for seed in range(20, 30):
        found = exact_law(rule, p, q, 4, method="sampled", max_paths=1000, seed=seed)
        assert found.method == "sampled"
        assert found.tv_interval == pytest.approx([found.tv, found.tv], abs=1e-9)
        assert np.isnan(found.tv_lower_bound)
        assert any("beyond the float range" in note for note in found.notes)
    assert exact_law(rule, p, q, 4, method="exact").method == "estimated"
