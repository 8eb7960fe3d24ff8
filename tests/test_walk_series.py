"""The walk's two ways to sum light children, as series and one by one, against the oracle and each other."""

from fractions import Fraction

import numpy as np
import pytest
from grid_positions import to_floats, wide_position

from resispec_sim.bench.count import count_rejected_prefixes
from resispec_sim.engine import enumerate_law
from resispec_sim.engine.paths import first_rejection, run_walk
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.engine.tail import TAIL_OCTAVE, to_table
from resispec_sim.rules import ResiSpec

RULES = [
    ResiSpec(fill, budget) for fill in ("capacity", "water") for budget in ("minimal", "clipped")
]
IDS = [rule.label for rule in RULES]
TOLERANCE = 1e-13
# n = 5 in a small vocabulary only: the oracle visits every prefix
SIZES = [(2, 5), (3, 4), (4, 3), (5, 3), (6, 2), (7, 2), (7, 3), (3, 5), (4, 4), (7, 1)]


def tables(space):
    """Plain loops, series from one child on, and series where they are usually used."""
    return {
        "loops": to_table(space, with_moments=False),
        "series": to_table(space, with_moments=True, series_from=(1, 1, 1)),
        "mixed": to_table(space, with_moments=True, series_from=(1, 10**9, 10**9)),
    }


def small_pair(vocab, seed):
    """A pair in exact rationals with a tail, zeros on both sides, ties, or none of these."""
    rng = np.random.default_rng((vocab, seed))
    p, q = (rng.integers(1, 40, vocab) * 2**40 for _ in range(2))
    p, q = p.tolist(), q.tolist()
    if seed % 2:  # tokens of the tail, over-estimated or not
        for x in range(vocab // 2, vocab):
            q[x] >>= int(rng.integers(TAIL_OCTAVE + 1, 22))
            p[x] >>= int(rng.integers(TAIL_OCTAVE, 30))
    if seed % 3 == 0:
        p[int(rng.integers(vocab))] = 0
    if seed % 5 == 0:
        q[int(rng.integers(vocab))] = 0
    if seed % 7 < 2:  # most of the target cut off, the way that top-p does
        p[(vocab + 1) // 2 :] = [0] * (vocab // 2)
    if seed % 4 == 3 and vocab > 2:
        p[-1], q[-1] = p[-2], q[-2]
    if not any(p) or not any(q):
        return small_pair(vocab, seed + 1000)
    return tuple([Fraction(w, sum(side)) for w in side] for side in (p, q))


def in_token_order(space, values):
    result = np.empty_like(values)
    result[..., space.order] = values
    return result


@pytest.mark.nojit
@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_series_and_loops_are_the_oracle(rule):
    for vocab, n in SIZES:
        for seed in range(14):
            p, q = small_pair(vocab, seed)
            oracle = enumerate_law(rule, p, q, n)
            space = to_ratio_space(to_floats(p), to_floats(q))
            first = first_rejection(rule, space)
            by_token = np.array([to_floats(row) for row in oracle.accepted_by_token])
            for how, table in tables(space).items():
                where = f"{how}, V = {vocab}, n = {n}, seed {seed}"
                found = run_walk(rule, space, table, first, n)
                law = found.accepted_by_token.sum(axis=0) + found.closed
                for result, expected in (
                    (in_token_order(space, law), to_floats(oracle.output_probs)),
                    (found.accepted, to_floats(oracle.accepted)),
                    (in_token_order(space, found.accepted_by_token), by_token),
                ):
                    np.testing.assert_allclose(
                        result, expected, rtol=0, atol=TOLERANCE, err_msg=where
                    )
                if n == 1:
                    continue
                alone = run_walk(rule, space, table, first, n, want_law=False)
                np.testing.assert_allclose(
                    alone.accepted, found.accepted, rtol=0, atol=TOLERANCE, err_msg=where
                )
                np.testing.assert_allclose(
                    in_token_order(space, alone.accepted_by_token),
                    by_token,
                    rtol=0,
                    atol=TOLERANCE,
                    err_msg=where,
                )


def test_small_pairs_reach_the_tail():
    # else the oracle would say nothing about a series
    rejected = 0
    for vocab, _ in SIZES:
        for seed in range(14):
            p, q = small_pair(vocab, seed)
            rejected += any(
                0 < a < b < Fraction(1, 2**TAIL_OCTAVE) for a, b in zip(p, q, strict=True)
            )
    assert rejected > 20


def check_modes(rule, p, q, n, *, want_law, lightest=False):
    """Series and loops agree in all that they return; so do their steps, with a count apart.

    Paths lighter than 1e-250 are not walked one by one; where there may be some (`lightest`) the count
    apart is not compared.
    """
    space = to_ratio_space(p, q)
    first = first_rejection(rule, space)
    plain, *others = (
        run_walk(rule, space, table, first, n, want_law=want_law)
        for table in tables(space).values()
    )
    for found in others:
        for name in ("accepted", "accepted_by_token", "closed"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(plain, name), rtol=0, atol=TOLERANCE, err_msg=name
            )
        assert found.steps == plain.steps
    total = plain.accepted_by_token.sum() + plain.closed.sum()
    assert not want_law or total == pytest.approx(1.0, abs=TOLERANCE)
    length = n if want_law else n - 1
    if length <= 3 and rule.budget == "minimal":
        counted = count_rejected_prefixes(p, q, length)
        assert lightest or plain.steps == counted


KINDS = ["zipf", "top-p", "flat", "peaked", "wide", "raised", "extreme"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", ["minimal", "clipped"])
def test_series_are_the_loops_in_a_large_vocabulary(kind, budget):
    rule = ResiSpec("capacity", budget)
    extreme = kind == "extreme"
    sizes = [(300, 3, True), (300, 4, False), (3000, 2, True), (3000, 3, False)]
    if not extreme:
        sizes.append((900, 3, True))
    for seed, (vocab, n, want_law) in enumerate(sizes):
        p, q = wide_position(kind, vocab, seed)
        check_modes(rule, p, q, n, want_law=want_law, lightest=extreme)


@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_by_series_does_not_depend_on_the_fill(kind):
    p, q = wide_position(kind, 1000, seed=6)
    check_modes(ResiSpec("water"), p, q, 3, want_law=False)
    check_modes(ResiSpec("water"), p, q, 2, want_law=True)


@pytest.mark.parametrize("kind", KINDS)
def test_deeper_walks_sum_the_same_in_both_ways(kind):
    # levels above the last two visit their states one by one, with the tokens rejected before
    check_modes(ResiSpec(), *wide_position(kind, 40, seed=7), 4, want_law=True)
    check_modes(ResiSpec(), *wide_position(kind, 40, seed=8), 5, want_law=False)
    check_modes(ResiSpec(), *wide_position(kind, 14, seed=9), 5, want_law=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_walk_loses_the_same_in_both_ways(kind):
    p, q = wide_position(kind, 300, seed=10)
    space = to_ratio_space(p, q)
    rule = ResiSpec()
    first = first_rejection(rule, space)
    for theta in (1e-2, 1e-4, 1e-7):
        plain, series, _ = (
            run_walk(rule, space, table, first, 3, theta=theta) for table in tables(space).values()
        )
        for name in ("accepted", "accepted_by_token", "closed", "cut", "lost"):
            np.testing.assert_allclose(
                getattr(series, name), getattr(plain, name), rtol=0, atol=TOLERANCE, err_msg=name
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [4, 5])
def test_cut_acceptance_is_the_same_in_both_ways_and_its_bounds_hold(kind, n):
    p, q = wide_position(kind, 300 if n == 4 else 40, seed=11)
    space = to_ratio_space(p, q)
    rule = ResiSpec()
    first = first_rejection(rule, space)
    whole = run_walk(rule, space, tables(space)["loops"], first, n, want_law=False)
    for theta in (1e-2, 1e-4, 1e-7):
        plain, series, _ = (
            run_walk(rule, space, table, first, n, theta=theta, want_law=False)
            for table in tables(space).values()
        )
        for name in ("accepted", "accepted_by_token", "lost"):
            np.testing.assert_allclose(
                getattr(series, name), getattr(plain, name), rtol=0, atol=TOLERANCE, err_msg=name
            )
        # whatever was cut off might have reached the last sibling
        assert plain.lost[n] == pytest.approx(plain.lost[n - 1], rel=1e-9, abs=TOLERANCE)
        assert (plain.accepted <= whole.accepted + TOLERANCE).all()
        assert (whole.accepted <= plain.accepted + plain.lost[:n] + TOLERANCE).all()
        total = whole.accepted.sum()
        assert total <= plain.accepted.sum() + plain.lost[:n].max() + TOLERANCE
