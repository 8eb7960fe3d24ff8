"""The engine against the oracle, and the laws that every rule and every engine path must obey."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import EDGE_PAIRS, prob_pairs
from vectors import RESISPEC, ROWS

from resispec_sim import exact_law, optimal_acceptance
from resispec_sim.engine import enumerate_law
from resispec_sim.engine.specinfer import specinfer_outcome
from resispec_sim.errors import (
    DistributionError,
    InfeasibleBudgetError,
    InputError,
    RuleError,
    VocabularyError,
)
from resispec_sim.rules import ResiSpec, SpecInfer

WALKED = [
    ResiSpec(fill, budget) for fill in ("capacity", "water") for budget in ("minimal", "clipped")
]
RULES = [SpecInfer(), *WALKED]
IDS = [rule.label for rule in RULES]


def to_float(values):
    return np.array([float(value) for value in values])


def without_overflow(pair):
    """What the engine documents: where p/q passes the float range, the token is never drafted."""
    target, draft = pair
    kept = [
        Fraction(0) if float(q) == 0 or p / q > 2**1023 else q for p, q in zip(*pair, strict=True)
    ]
    total = sum(kept)
    return (target, draft) if total == 0 else (target, [q / total for q in kept])


def check_against_oracle(rule, pair, n_siblings):
    pair = without_overflow(pair)
    oracle = enumerate_law(rule, *pair, n_siblings)
    law = exact_law(rule, *map(to_float, pair), n_siblings, by_token=True, method="exact")
    assert law.method in ("exact", "estimated")
    np.testing.assert_allclose(law.output_probs, to_float(oracle.output_probs), rtol=0, atol=1e-12)
    np.testing.assert_allclose(law.accepted, to_float(oracle.accepted), rtol=0, atol=1e-12)
    by_token = np.array([to_float(row) for row in oracle.accepted_by_token])
    np.testing.assert_allclose(law.accepted_by_token, by_token, rtol=0, atol=1e-12)
    return law


@pytest.mark.nojit
@pytest.mark.parametrize("rule", RULES, ids=IDS)
@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_oracle_on_edge_pairs(rule, pair):
    for n_siblings in (1, 2, 3):
        law = check_against_oracle(rule, pair[1:], n_siblings)
        assert np.isfinite(law.kl) and np.isfinite(law.tv)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@given(pair=prob_pairs(max_vocab=8), n_siblings=st.integers(1, 3))
def test_oracle_on_random_pairs(rule, pair, n_siblings):
    check_against_oracle(rule, pair, n_siblings)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@settings(max_examples=25)
@given(pair=prob_pairs(max_vocab=5))
def test_oracle_with_four_siblings(rule, pair):
    check_against_oracle(rule, pair, 4)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_oracle_at_the_largest_size(rule):
    pair = ([Fraction(w, 100) for w in (1, 30, 0, 9, 20, 25, 5, 10)],
            [Fraction(w, 100) for w in (30, 9, 10, 1, 20, 0, 25, 5)])  # fmt: skip
    check_against_oracle(rule, pair, 4)


@pytest.mark.parametrize("row", RESISPEC)
def test_known_laws_of_resispec(row):
    fills = row["fill"] if isinstance(row["fill"], (list, tuple)) else [row["fill"]]
    p, q = (to_float(map(Fraction, row[side])) for side in ("p", "q"))
    for fill in fills:
        if fill == "index":
            continue  # no engine: the oracle's tests hold this value
        law = exact_law("resispec", p, q, row["n"], fill=fill)
        np.testing.assert_allclose(
            law.output_probs, to_float(map(Fraction, row["law"])), rtol=0, atol=1e-14
        )
        if "alpha" in row:
            assert law.accepted.sum() == pytest.approx(float(Fraction(row["alpha"])), abs=1e-14)
        if "accepted" in row:
            expected = to_float(map(Fraction, row["accepted"]))
            np.testing.assert_allclose(law.accepted, expected, rtol=0, atol=1e-14)
        if row.get("alpha_of_specinfer"):
            rrs = exact_law("specinfer", p, q, row["n"])
            np.testing.assert_allclose(law.accepted, rrs.accepted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["p"]))
def test_known_acceptance_of_specinfer(row):
    p, q = (to_float(map(Fraction, row[side])) for side in ("p", "q"))
    law = exact_law("specinfer", p, q, row["n"])
    assert law.accepted.sum() == pytest.approx(float(Fraction(row["rrs_iid"])), abs=1e-14)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@given(pair=prob_pairs(max_vocab=6), seed=st.integers(0, 10))
def test_permuting_the_vocabulary_permutes_the_law(rule, pair, seed):
    p, q = map(to_float, pair)
    order = np.random.default_rng(seed).permutation(p.size)
    law, permuted = (exact_law(rule, *rows, 3) for rows in ((p, q), (p[order], q[order])))
    np.testing.assert_allclose(permuted.output_probs, law.output_probs[order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(permuted.accepted, law.accepted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@given(pair=prob_pairs())
def test_first_sibling_is_accepted_like_a_single_draft(rule, pair):
    p, q = map(to_float, pair)
    law = exact_law(rule, p, q, 2)
    assert law.accepted[0] == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@given(pair=prob_pairs())
def test_equal_distributions_accept_the_first_sibling(rule, pair):
    p = to_float(pair[0])
    for q in (p, np.nextafter(p, 1.0)):
        law = exact_law(rule, p, q, 3)
        assert law.accepted.sum() == pytest.approx(1.0, abs=1e-12)
        assert law.tv < 1e-12 and law.kl < 1e-12


@given(pair=prob_pairs(), n_siblings=st.integers(1, 8))
def test_specinfer_returns_the_target_and_never_beats_the_optimum(pair, n_siblings):
    p, q = map(to_float, pair)
    law = exact_law("specinfer", p, q, n_siblings)
    assert law.tv < 1e-12 and law.kl < 1e-12
    assert law.accepted.sum() <= optimal_acceptance(p, q, n_siblings) + 1e-12


@given(pair=prob_pairs(), n_siblings=st.integers(1, 4))
@example(pair=([0.25, 0.25, 0.5], [0.5, 0.5, 0.0]), n_siblings=2)
def test_acceptance_is_the_same_for_every_fill_and_bounds_the_distance(pair, n_siblings):
    p, q = map(to_float, pair)
    capacity, water = (
        exact_law("resispec", p, q, n_siblings, by_token=True, fill=fill)
        for fill in ("capacity", "water")
    )
    np.testing.assert_allclose(
        capacity.accepted_by_token, water.accepted_by_token, rtol=0, atol=1e-13
    )
    for law in (capacity, water):
        assert law.tv_lower_bound <= law.tv + 1e-13
        # an acceptance above the optimum is a proof of bias
        assert law.accepted.sum() - optimal_acceptance(p, q, n_siblings) <= law.tv + 1e-12


def test_a_wrong_multiplier_breaks_specinfers_law():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    right = [1.0]
    for _ in range(3):
        right.append(right[-1] + np.maximum(p - right[-1] * q, 0).sum())
    assert np.abs(specinfer_outcome(p, q, 4, multipliers=right).output_probs - p).max() < 1e-15
    for i in range(4):
        wrong = list(right)
        wrong[i] *= 1.1
        law = specinfer_outcome(p, q, 4, multipliers=wrong).output_probs
        assert abs(law.sum() - 1) < 1e-12
        assert np.abs(law - p).sum() > 1e-4


def test_specinfer_at_a_large_vocabulary():
    rng = np.random.default_rng(1)
    p, q = (rng.dirichlet(np.full(128_256, 0.05)) for _ in range(2))
    law = exact_law("specinfer", p, q, 8)
    assert np.abs(law.output_probs - p).max() < 1e-12 and law.tv < 1e-12


@pytest.mark.parametrize("rule", WALKED, ids=IDS[1:])
@given(pair=prob_pairs(), n_siblings=st.integers(1, 4), budget=st.integers(1, 60))
def test_certified_bounds_hold_the_exact_figures(rule, pair, n_siblings, budget):
    p, q = map(to_float, pair)
    exact = exact_law(rule, p, q, n_siblings, method="exact")
    bounded = exact_law(rule, p, q, n_siblings, method="certified", max_paths=budget)
    low, high = bounded.accepted_interval.T
    assert (low <= exact.accepted + 1e-13).all() and (exact.accepted <= high + 1e-13).all()
    low, high = bounded.total_interval
    assert low - 1e-13 <= exact.accepted.sum() <= high + 1e-13 and high <= 1.0 + 1e-13
    assert low - 1e-13 <= bounded.accepted.sum() <= high + 1e-13
    for name in ("tv", "kl"):
        low, high = getattr(bounded, f"{name}_interval")
        assert low - 1e-12 <= getattr(exact, name) <= high + 1e-12
    assert abs(bounded.output_probs - exact.output_probs).sum() / 2 <= (
        bounded.tv_interval[1] - bounded.tv_interval[0] + 1e-12
    )


def test_ratios_near_the_end_of_the_float_range():
    """Water levels of single paths are finite there, their sums over paths are not."""
    p = np.array([0.74, 0.25] + [0.0025] * 4)
    q = np.array([0, 1.45e-309] + [0.25] * 4)
    for n_siblings, first in ((1, 0.96), (2, 0.87)):
        for method in ("auto", "exact", "certified", "sampled"):
            law = exact_law("resispec", p, q, n_siblings, fill="water", method=method)
            assert abs(law.output_probs.sum() - 1) < 1e-9
            off = np.abs(law.output_probs[:2].sum() - first)
            assert off < (0.05 if law.method == "sampled" else 1e-12)


@pytest.mark.parametrize("rejected", [2, 3])
def test_tokens_with_ratios_past_the_float_range_fill_up_in_their_order(rejected):
    p, q = np.array([0.8, 0.1, 0.05, 0.05]), np.array([1e-312, 1e-311, 0.6, 0.4])
    rule = ResiSpec("water")
    exact = rule.residual_after(tuple(map(Fraction, p)), tuple(map(Fraction, q)), rejected)
    assert np.allclose(rule.residual_after(p, q, rejected), to_float(exact), atol=1e-12)
    for name in ("resispec-wor:fill=water", "resispec-eagle:fill=water"):
        law = exact_law(name, p, q, 2)
        assert abs(law.output_probs.sum() - 1) < 1e-12


def test_the_estimate_of_a_bounded_law_lies_in_its_bounds():
    """Three siblings, fill capacity: what is estimated is the share of the mass that is not certain."""
    rng = np.random.default_rng(5)
    n_bounded = 0
    for _ in range(25):
        p, q = (rng.dirichlet(np.full(60, 0.2)) for _ in range(2))
        for budget in (1, 1_000, 10_000):
            law = exact_law("resispec", p, q, 3, method="certified", max_paths=budget)
            n_bounded += law.method == "certified"
            for name in ("tv", "kl"):
                low, high = getattr(law, f"{name}_interval")
                assert low - 1e-12 <= getattr(law, name) <= high + 1e-12
    assert n_bounded > 20


def test_a_small_budget_leaves_an_interval_and_a_large_one_none():
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.full(200, 0.3)), rng.dirichlet(np.full(200, 0.3))
    few = exact_law("resispec", p, q, 4, max_paths=10_000)
    assert few.method == "certified" and (np.ptp(few.accepted_interval, axis=1)[2:] > 0).all()
    assert np.ptp(few.tv_interval) > 0
    # siblings 3 and 4 cannot both accept what was cut off before them
    widths = np.ptp(few.accepted_interval, axis=1)
    assert widths.max() - 1e-12 <= np.ptp(few.total_interval) < 0.75 * widths.sum()
    many = exact_law("resispec", p, q, 4, method="certified", max_paths=10**9)
    assert many.method == "exact" and np.ptp(many.tv_interval) == 0


@pytest.mark.parametrize("fill", ["capacity", "water"])
@pytest.mark.parametrize("n_siblings", [2, 3, 4])
def test_sampled_law_is_unbiased(fill, n_siblings):
    # Fixed seeds; 4.5 standard errors of 16 batches are passed by chance in 1 of 2,400 comparisons.
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.full(30, 0.3)), rng.dirichlet(np.full(30, 0.3))
    exact = exact_law("resispec", p, q, n_siblings, fill=fill, method="exact")
    drawn = exact_law(
        "resispec", p, q, n_siblings, fill=fill, method="sampled", max_paths=10_000_000, seed=1
    )
    assert drawn.method == "sampled" and drawn.stderr.shape == (n_siblings,)
    assert (abs(drawn.accepted - exact.accepted) <= 4.5 * drawn.stderr + 1e-12).all()
    assert abs(drawn.output_probs - exact.output_probs).sum() < 0.01
    assert abs(drawn.tv - exact.tv) < 0.005
    again = exact_law(
        "resispec", p, q, n_siblings, fill=fill, method="sampled", max_paths=10_000_000, seed=1
    )
    np.testing.assert_array_equal(again.output_probs, drawn.output_probs)


def test_supports_that_differ_give_finite_laws():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.full(500, 0.5)), rng.dirichlet(np.full(500, 0.5))
    p[np.argsort(p)[:450]] = 0.0
    q[np.argsort(q)[:470]] = 0.0
    p, q = p / p.sum(), q / q.sum()
    for rule in RULES:
        law = exact_law(rule, p, q, 3)
        assert np.isfinite(law.kl) and (law.output_probs[p == 0] == 0).all()
        assert abs(law.output_probs.sum() - 1) < 1e-12


def test_a_target_on_one_token_against_a_flat_draft():
    # V equal terms: a plain sum of them is off by more than 1e-12
    vocab_size = 49_152
    p, q = np.zeros(vocab_size), np.full(vocab_size, 1 / vocab_size)
    p[5] = 1.0
    for n_siblings in (1, 2):
        law = exact_law("resispec", p, q, n_siblings, max_paths=10_000_000)
        assert law.tv_interval[1] < 1e-12


def test_a_ratio_beyond_the_float_range_is_no_exact_law_of_water():
    p, q = [0.1, 0.2, 0.3, 0.4], [0.6, 0.4, 1e-310, 1e-310]
    oracle = enumerate_law(ResiSpec("water"), *([*map(Fraction, row)] for row in (
        ("1/10", "1/5", "3/10", "2/5"), ("3/5", f"{2 * 10**310 - 10}/{5 * 10**310}",
                                         f"1/{10**310}", f"1/{10**310}"))), 1)  # fmt: skip
    law = exact_law("resispec", p, q, 1, fill="water")
    true_tv = np.abs(to_float(oracle.output_probs) - p).sum() / 2
    assert law.method == "estimated" and "float range" in law.notes[0]
    assert law.tv_interval[0] - 1e-12 <= true_tv <= law.tv_interval[1] + 1e-12
    np.testing.assert_allclose(law.accepted, to_float(oracle.accepted), rtol=0, atol=1e-12)
    assert exact_law("resispec", p, q, 1).method == "exact"


def test_a_batch_is_its_rows():
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(9), size=4), rng.dirichlet(np.ones(9), size=4)
    batch = exact_law("resispec", p, q, 3, by_token=True)
    assert batch.accepted_by_token.shape == (4, 3, 9) and batch.accepted_interval.shape == (4, 3, 2)
    assert batch.method == ("exact",) * 4 and batch.stderr is None
    for b in range(4):
        row = exact_law("resispec", p[b], q[b], 3)
        np.testing.assert_array_equal(batch.output_probs[b], row.output_probs)
        assert batch.kl[b] == row.kl


def test_inputs_are_never_modified():
    p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    before = p.copy(), q.copy()
    for rule in RULES:
        for method in ("exact", "certified", "sampled"):
            first = exact_law(rule, p, q, 3, method=method)
            second = exact_law(rule, p, q, 3, method=method)
            np.testing.assert_array_equal(first.output_probs, second.output_probs)
    np.testing.assert_array_equal((p, q), before)


@pytest.mark.parametrize(
    ("p", "q", "n", "options", "error", "says"),
    [
        ([0.5, np.nan], [0.5, 0.5], 1, {}, DistributionError, "nan"),
        ([0.5, 0.5], [np.inf, 0.5], 1, {}, DistributionError, "inf"),
        ([1.5, -0.5], [0.5, 0.5], 1, {}, DistributionError, "-0.5"),
        ([0.5, 0.4], [0.5, 0.5], 1, {}, DistributionError, "0.9"),
        ([0.5, 0.5], [0.5, 0.25, 0.25], 1, {}, VocabularyError, "3"),
        ([], [], 1, {}, InputError, "shape|empty"),
        ([0.5, 0.5], [0.5, 0.5], 0, {}, InputError, "n_siblings"),
        ([0.5, 0.5], [0.5, 0.5], 1.5, {}, InputError, "n_siblings"),
        ([0.5, 0.5], [0.5, 0.5], 1, {"method": "guess"}, InputError, "guess"),
        ([0.5, 0.5], [0.5, 0.5], 1, {"max_paths": 0}, InputError, "max_paths"),
        ([0.5, 0.5], [0.5, 0.5], 1, {"fill": "sand"}, RuleError, "sand"),
        ([0.4, 0.6], [0.5, 0.5], 1, {"budget": "applied"}, InfeasibleBudgetError, "0.8"),
    ],
)  # fmt: skip
def test_bad_input_is_named(p, q, n, options, error, says):
    with pytest.raises(error, match=says):
        exact_law("resispec", p, q, n, **options)


def test_the_applied_budget_where_it_is_feasible():
    # Z* = min p/q = 3/5 at token 1 and 1 - p is 0.7 there
    pair = (
        [Fraction(3, 10), Fraction(3, 10), Fraction(4, 10)],
        [Fraction(5, 10), Fraction(1, 10), Fraction(4, 10)],
    )
    check_against_oracle(ResiSpec(budget="applied"), pair, 3)
    minimal = exact_law("resispec", *map(to_float, pair), 3)
    applied = exact_law("resispec", *map(to_float, pair), 3, budget="applied")
    assert np.abs(minimal.output_probs - applied.output_probs).max() > 1e-3
    cut = exact_law("resispec", [0.4, 0.6], [0.5, 0.5], 1, budget="clipped")
    assert any("cut" in note for note in cut.notes)
