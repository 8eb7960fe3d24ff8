"""One suite of laws over every rule and every way to compute it."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import transport_optimum
from position_rules import (
    EVERY,
    EXACT,
    INEXACT,
    WRONG,
    WRONG_ENGINES,
    by_definition,
    counts_of,
)
from strategies import EDGE_PAIRS, prob_pairs
from vectors import ROWS

from resispec_sim import exact_law, optimal_acceptance
from resispec_sim.engine import enumerate_law
from resispec_sim.errors import InputError, RuleError
from resispec_sim.rules import (
    RULES,
    PositionRule,
    ResiSpecEagle,
    ResiSpecWor,
    RrsWor,
    TargetOnly,
    parse_rule,
)

ids = dict(ids=lambda value: getattr(value, "label", None) or getattr(value, "name", str(value)))
ENGINES = ("auto", "exact", "by definition")


def to_float(values):
    return np.array([float(value) for value in values])


def without_overflow(pair):
    """Tokens whose p/q passes the float range count as never drafted in the engines made for one rule."""
    target, draft = pair
    kept = [q if float(q) and p / q < 2**1023 else Fraction(0) for p, q in zip(*pair, strict=True)]
    total = sum(kept)
    return (target, draft) if total == 0 else (target, [q / total for q in kept])


def law_of(rule, p, q, n, engine):
    """Law, accepted mass and accepted mass by token, by one of the engines."""
    if engine == "by definition":
        outcome = by_definition(rule, p, q, n)
        return outcome.output_probs, outcome.accepted, outcome.accepted_by_token
    law = exact_law(rule, p, q, n, by_token=True, method=engine)
    assert law.method in ("exact", "estimated", "certified")
    return law.output_probs, law.accepted, law.accepted_by_token


def check_oracle(rule, pair, n, engine):
    pair = without_overflow(pair)
    oracle = enumerate_law(rule, *pair, n)
    output, accepted, by_token = law_of(rule, *map(to_float, pair), n, engine)
    np.testing.assert_allclose(output, to_float(oracle.output_probs), rtol=0, atol=1e-12)
    np.testing.assert_allclose(accepted, to_float(oracle.accepted), rtol=0, atol=1e-12)
    expected = np.array([to_float(row) for row in oracle.accepted_by_token])
    np.testing.assert_allclose(by_token, expected, rtol=0, atol=1e-12)


def test_the_suite_holds_every_rule():
    assert {rule.name for rule in EVERY} == {
        name for name, rule in RULES.items() if issubclass(rule, PositionRule)
    }
    assert {rule.name for rule in EXACT} - {"resispec-eagle"} == {
        name for name, rule in RULES.items() if issubclass(rule, PositionRule) and rule.exact
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", EVERY, **ids)
@pytest.mark.parametrize("pair", EDGE_PAIRS, **ids)
def test_engine_is_oracle_on_edge_pairs(rule, pair, engine):
    for n in counts_of(rule):
        check_oracle(rule, pair[1:], n, engine)


@pytest.mark.parametrize("rule", EVERY, **ids)
@settings(max_examples=25)
@given(pair=prob_pairs(max_vocab=6), n=st.integers(1, 3), engine=st.sampled_from(ENGINES))
def test_engine_is_oracle_on_random_pairs(rule, pair, n, engine):
    check_oracle(rule, pair, rule.only_count or n, engine)


@pytest.mark.parametrize("rule", EXACT, **ids)
@settings(max_examples=25)
@given(pair=prob_pairs(max_vocab=5), n=st.integers(1, 3))
def test_exact_rules_return_the_target_in_rationals(rule, pair, n):
    law = enumerate_law(rule, *pair, rule.only_count or n)
    assert law.output_probs == list(pair[0])


@pytest.mark.parametrize("rule", INEXACT, **ids)
def test_the_others_do_not(rule):
    pair = (
        [Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)],
        [Fraction(1, 2), Fraction(2, 5), Fraction(1, 10)],
    )
    for n in (1, 2, 3):
        assert enumerate_law(rule, *pair, n).output_probs != pair[0]


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: type(rule).__name__)
def test_a_wrong_constant_in_a_rule_breaks_its_law(rule):
    pair = ([Fraction(w, 20) for w in (8, 5, 4, 2, 1)], [Fraction(w, 20) for w in (3, 9, 2, 4, 2)])
    n = 2
    law = enumerate_law(rule, *pair, n)
    assert sum(abs(a - b) for a, b in zip(law.output_probs, pair[0], strict=True)) > Fraction(
        1, 1000
    )
    outcome = by_definition(rule, *map(to_float, pair), n)
    assert np.abs(outcome.output_probs - to_float(pair[0])).max() > 1e-3


@pytest.mark.parametrize("name", WRONG_ENGINES)
def test_a_wrong_constant_in_an_engine_breaks_its_law(name):
    rng = np.random.default_rng(7)
    p, q = rng.dirichlet(np.full(40, 0.5)), rng.dirichlet(np.full(40, 0.5))
    for n in (2,) if name == "spechub" else (2, 3, 4):
        outcome = WRONG_ENGINES[name](p, q, n)
        worst = np.abs(outcome.output_probs - p).max()
        if name == "nss":
            # what is emitted is the target's own sample: only the acceptance can be wrong
            right = by_definition(RULES["nss"](), p, q, 2).accepted
            assert np.abs(WRONG_ENGINES[name](p, q, 2).accepted - right).max() > 1e-3
        else:
            assert worst > 1e-3


@pytest.mark.parametrize("rule", EXACT, **ids)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_exact_at_a_real_vocabulary(rule, n):
    if rule.only_count not in (None, n):
        n = rule.only_count
    rng = np.random.default_rng(11)
    p, q = (rng.dirichlet(np.full(49_152, 0.02)) for _ in range(2))
    law = exact_law(rule, p, q, n)
    assert np.abs(law.output_probs - p).max() < 1e-12 and abs(law.output_probs.sum() - 1) < 1e-12
    if isinstance(rule, RrsWor):
        assert law.method == {1: "exact", 2: "exact", 3: "certified", 8: "sampled"}[n]
        assert (law.stderr is not None) == (n == 8)
        assert np.ptp(law.accepted_interval, axis=1).max() < (1e-3 if n == 8 else 1e-5)
        assert law.tv_interval[1] < 1e-5
    else:
        assert law.method == "exact" and law.tv < 1e-12 and law.kl < 1e-12


@pytest.mark.parametrize("rule", EXACT, **ids)
@given(pair=prob_pairs(max_vocab=6), n=st.integers(1, 4))
def test_no_exact_rule_passes_the_optimum_of_its_scheme(rule, pair, n):
    n = rule.only_count or n
    p, q = map(to_float, pair)
    total = exact_law(rule, p, q, n).accepted.sum()
    if rule.siblings == "iid":
        assert total <= optimal_acceptance(p, q, n) + 1e-12
    elif rule.siblings == "without_replacement":
        assert total <= optimal_acceptance(p, q, n, replacement=False) + 1e-9
    elif rule.siblings == "topk":
        chosen = [x for x in np.argsort(-q, kind="stable")[:n] if q[x] > 0]
        assert total <= p[chosen].sum() + 1e-12


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["p"]))
def test_known_acceptance(row):
    p, q = to_float(row["p"]), to_float(row["q"])
    assert exact_law("specinfer", p, q, row["n"]).accepted.sum() == pytest.approx(
        float(row["rrs_iid"]), abs=1e-14
    )
    oracle = enumerate_law(RrsWor(), row["p"], row["q"], row["n"])
    assert sum(oracle.accepted) == row["rrs_wor"]
    law = exact_law("rrs-wor", p, q, row["n"])
    assert law.accepted.sum() == pytest.approx(float(row["rrs_wor"]), abs=1e-14)


@given(pair=prob_pairs(max_vocab=6), n=st.integers(1, 6))
def test_order_of_the_exact_rules(pair, n):
    p, q = map(to_float, pair)
    rrs, k_seq, shaping = (
        exact_law(rule, p, q, n).accepted.sum() for rule in ("specinfer", "k-seq", "exact-shaping")
    )
    assert rrs - 1e-12 <= k_seq <= shaping + 1e-12
    assert shaping <= optimal_acceptance(p, q, n) + 1e-12
    one = exact_law("rejection", p, q, n).accepted
    assert one[0] == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12) and not one[1:].any()


@given(pair=prob_pairs(max_vocab=6), n=st.integers(1, 3))
@settings(max_examples=25)
def test_the_readings_of_eagle(pair, n):
    p, q = map(to_float, pair)
    for fill in ("capacity", "water", "index"):
        one_hot = by_definition(ResiSpecEagle(fill, "one-hot"), p, q, n)
        target_only = exact_law(TargetOnly(), p, q, n)
        np.testing.assert_allclose(
            one_hot.output_probs, target_only.output_probs, rtol=0, atol=1e-12
        )
        np.testing.assert_allclose(one_hot.accepted, target_only.accepted, rtol=0, atol=1e-12)
    softmax = exact_law(ResiSpecEagle("capacity", "softmax"), p, q, n)
    np.testing.assert_array_equal(
        softmax.output_probs, exact_law(ResiSpecWor(), p, q, n).output_probs
    )


SAMPLED = [RrsWor(), ResiSpecWor(), ResiSpecWor("water"), ResiSpecEagle("capacity", "proxy")]


@pytest.mark.parametrize("rule", SAMPLED, **ids)
@pytest.mark.parametrize("n", [2, 4])
def test_drawn_paths_are_unbiased(rule, n):
    # 3 comparisons of up to 4 siblings for each of 8 cases; 5 standard errors of 16 batches are
    # passed by chance in fewer than 1 of 5,000
    rng = np.random.default_rng(17)
    p, q = rng.dirichlet(np.full(9, 0.6)), rng.dirichlet(np.full(9, 0.6))
    right = by_definition(rule, p, q, n)
    for seed in range(3):
        law = exact_law(rule, p, q, n, method="sampled", max_paths=4_000_000, seed=seed)
        assert law.method == "sampled"
        assert (np.abs(law.accepted - right.accepted) <= 5 * law.stderr + 1e-12).all()
        assert np.abs(law.output_probs - right.output_probs).sum() < 0.03
        again = exact_law(rule, p, q, n, method="sampled", max_paths=4_000_000, seed=seed)
        np.testing.assert_array_equal(law.output_probs, again.output_probs)


@pytest.mark.parametrize("rule", [RrsWor(), ResiSpecWor(), ResiSpecWor("water")], **ids)
def test_drawn_paths_where_one_token_holds_nearly_all(rule):
    p = np.array([0.3, 0.3, 0.2, 0.1, 0.1])
    q = np.array([1 - 4e-9, 1e-9, 1e-9, 1e-9, 1e-9])
    right = by_definition(rule, p, q, 3)
    law = exact_law(rule, p, q, 3, method="exact")
    np.testing.assert_allclose(law.output_probs, right.output_probs, rtol=0, atol=1e-12)
    drawn = exact_law(rule, p, q, 3, method="sampled", max_paths=2_000_000)
    assert (np.abs(drawn.accepted - right.accepted) <= 5 * drawn.stderr + 1e-12).all()


@pytest.mark.parametrize(
    ("rule", "n", "p", "q"),
    [
        ("rrs-wor", 3, [0.2, 0.3, 0.5], [0.999999, 1e-6 / 3, 2e-6 / 3]),
        ("rrs-wor", 2, [4e-18, 1.0, 2e-17], [4.1e-18, 1.0, 1.9e-17]),
        ("resispec-wor", 2, [1e-11, 1e-20, 0.5, 0.5], [1e-311, 1.0, 1e-311, 1e-311]),
        ("resispec-wor:fill=water", 3, [1e-5, 0.3, 0.69999], [2e-5, 0.2, 0.79998]),
    ],
)
def test_without_replacement_at_the_edges_of_floats(rule, n, p, q):
    p, q = np.array(p) / np.sum(p), np.array(q) / np.sum(q)
    law, right = exact_law(rule, p, q, n), by_definition(parse_rule(rule), p, q, n)
    np.testing.assert_allclose(law.output_probs, right.output_probs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(law.accepted, right.accepted, rtol=0, atol=1e-12)


def test_many_siblings_overflow_nothing():
    flat = np.full(1000, 1e-3)
    for rule in ("specinfer", "k-seq", "exact-shaping", "nss", "rrs-wor"):
        assert exact_law(rule, flat, flat, 130).accepted[0] > 0


@pytest.mark.parametrize("n_distinct", [3, 400])
def test_classes_of_three_siblings_hold_the_exact_figures(n_distinct):
    rng = np.random.default_rng(19)
    p = rng.dirichlet(np.full(5000, 0.05))
    q = rng.dirichlet(np.full(n_distinct, 0.3))[rng.integers(0, n_distinct, 5000)]
    q /= q.sum()
    exact = exact_law("rrs-wor", p, q, 3, method="exact")
    assert exact.method == "exact"
    flat = rng.dirichlet(np.full(5000, 0.3))
    for draft in (q, flat):
        law = exact_law("rrs-wor", p, draft, 3, method="certified")
        true = exact_law("rrs-wor", p, draft, 3, method="exact")
        low, high = law.accepted_interval.T
        assert (low - 1e-13 <= true.accepted).all() and (true.accepted <= high + 1e-13).all()
        assert law.tv_interval[0] - 1e-13 <= true.tv <= law.tv_interval[1] + 1e-13
        assert np.ptp(law.accepted_interval, axis=1).max() < 1e-5


@pytest.mark.parametrize("rule", [rule for rule in EVERY if rule.siblings != "iid"], **ids)
def test_siblings_stop_at_the_support_of_the_draft_and_say_so(rule):
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.0, 1.0, 0.0])
    n = rule.only_count or 4
    law = exact_law(rule, p, q, n)
    assert law.accepted.shape == (n,) and not law.accepted[1:].any()
    assert abs(law.output_probs.sum() - 1) < 1e-12
    assert "the draft has 1 token: 1 sibling in place of" in law.notes[-1]


@pytest.mark.parametrize("rule", EVERY, **ids)
def test_inputs_are_never_modified_and_the_same_twice(rule):
    p, q = np.array([0.25, 0.25, 0.5]), np.array([0.4, 0.5, 0.1])
    before = p.copy(), q.copy()
    n = rule.only_count or 3
    first, second = (exact_law(rule, p, q, n).output_probs for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal((p, q), before)


@pytest.mark.parametrize(
    "rule", [rule for rule in EVERY if getattr(rule, "fill", "") != "index"], **ids
)
@settings(max_examples=20)
@given(pair=prob_pairs(max_vocab=6), seed=st.integers(0, 10))
def test_permuting_the_vocabulary_permutes_the_law(rule, pair, seed):
    p, q = map(to_float, pair)
    if rule.siblings in ("topk", "hub") and len(set(q)) < len(q):
        return  # ties of the draft are broken by token id
    order = np.random.default_rng(seed).permutation(p.size)
    n = rule.only_count or 2
    law, moved = (exact_law(rule, *rows, n) for rows in ((p, q), (p[order], q[order])))
    np.testing.assert_allclose(moved.output_probs, law.output_probs[order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(moved.accepted, law.accepted, rtol=0, atol=1e-12)


def test_optimum_against_transport():
    rng = np.random.default_rng(23)
    for _ in range(20):
        vocab, n = int(rng.integers(2, 7)), int(rng.integers(1, 4))
        weights = rng.integers(0, 9, size=(2, vocab)) + np.eye(2, vocab, dtype=int)
        pair = [[Fraction(int(w), int(row.sum())) for w in row] for row in weights]
        for replacement in (True, False):
            assert optimal_acceptance(
                *map(to_float, pair), n, replacement=replacement
            ) == pytest.approx(transport_optimum(*pair, n, replacement), abs=1e-8)


def test_refusals():
    p, q = [0.5, 0.5], [0.4, 0.6]
    with pytest.raises(RuleError, match="2 siblings, not 3"):
        exact_law("spechub", p, q, 3)
    for name in ("block", "traversal"):
        with pytest.raises(RuleError, match="not one position"):
            exact_law(name, p, q, 2)
        with pytest.raises(RuleError, match="several levels"):
            enumerate_law(RULES[name](), [Fraction(1)], [Fraction(1)], 1)
    for text in ("k-seq:factor=0.5", "k-seq:factor=x", "exact-shaping:level=nan"):
        with pytest.raises(RuleError, match="is not a number"):
            exact_law(text, p, q, 2)
    for text in ("resispec-wor:fill=sand", "resispec-eagle:reading=aloud"):
        with pytest.raises(RuleError, match="unknown; use one of"):
            exact_law(text, p, q, 2)
    rng = np.random.default_rng(0)
    flat = rng.dirichlet(np.ones(900), size=2)
    with pytest.raises(InputError, match="too many to walk"):
        exact_law("rrs-wor", *flat, 5, method="exact")


@pytest.mark.parametrize("values", [
    None, "ab", {}, [[1.0], [0.5, 0.5]], [0.5, 0.5j], ["0.5", "0.5"], [True, False], [10**400, 0],
    np.ma.masked_array([0.5, 0.5], [0, 1]), np.array(["2020"], "M8"), [[0.5, 0.5], None], [1e308, 1e308],
])  # fmt: skip
def test_what_is_no_array_of_probabilities_is_refused_by_name(values):
    for call in (
        lambda: exact_law("specinfer", values, [0.5, 0.5], 1),
        lambda: optimal_acceptance(values, [0.5, 0.5], 1),
        lambda: optimal_acceptance([0.5, 0.5], values, 1),
    ):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("rule", [None, 1, b"resispec", []])
def test_what_is_no_rule_is_refused_by_name(rule):
    with pytest.raises(RuleError, match="rule is"):
        exact_law(rule, [0.5, 0.5], [0.5, 0.5], 1)


@pytest.mark.parametrize("rule", ["resispec", "resispec:budget=clipped", "resispec:fill=water"])
def test_a_walk_of_days_is_not_begun(rule):
    with pytest.raises(InputError, match="too many to walk"):
        exact_law(rule, [0.997, 0.001, 0.001, 0.001], [0.25] * 4, 64, method="exact")


@pytest.mark.parametrize("method", ["auto", "sampled"])
@pytest.mark.parametrize("rule", ["resispec:fill=index", "resispec-eagle:reading=proxy"])
def test_drawn_paths_reject_only_what_can_be_rejected(rule, method):
    for p, q in (
        ([1.0, 0, 0, 0, 0], [1.0, 5e-324, 0, 0, 0]),
        ([0.3, 0, 0.3, 0.3, 0.1], [0.3, 5e-324, 0.30000000000000004, 0.3, 0.10000000000000002]),
        ([0.0, 0.0, 1.0], [0.5, 0.5, 0.0]),
    ):
        law = exact_law(rule, p, q, 3, method=method, max_paths=1, seed=1)
        assert abs(law.output_probs.sum() - 1) < 1e-12 and not np.isnan(law.kl_interval).any()


def test_few_tokens_without_replacement_are_walked_however_many_siblings():
    flat = [0.2] * 5
    law = exact_law("rrs-wor", flat, flat, 64, method="exact")
    assert law.method == "exact" and law.accepted[0] == pytest.approx(1)
