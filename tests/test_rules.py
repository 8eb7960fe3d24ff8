"""Laws of the verification rules as such: what becomes of a residual, and how rules are named."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec_sim.errors import InfeasibleBudgetError, InputError, RuleError
from resispec_sim.rules import RULES, ResiSpec, SpecInfer, parse_rule
from tests.oracles import residual_by_hand
from tests.strategies import EDGE_PAIRS, prob_pairs

FILLS = ("capacity", "water", "index")
ALL_RULES = [SpecInfer(), *map(ResiSpec, FILLS), ResiSpec("capacity", "clipped")]
label = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.label)


def rejections(target, draft):
    """The tokens that can be rejected."""
    return [x for x in range(len(target)) if draft[x] > target[x]]


@label
@given(pair=prob_pairs())
def test_residual_is_a_distribution(rule, pair):
    target, draft = pair
    for token in rejections(target, draft):
        residual = rule.residual_after(target, draft, token)
        assert type(residual) is tuple
        assert all(isinstance(mass, Fraction) and mass >= 0 for mass in residual)
        assert sum(residual) == 1
        assert residual[token] == 0


@label
@given(pair=prob_pairs())
def test_residual_is_what_the_proxy_leaves(rule, pair):
    target, draft = pair
    for token in rejections(target, draft):
        proxy = rule.proxy(target, draft, token)
        left = [max(r - k, Fraction(0)) for r, k in zip(target, proxy, strict=True)]
        assert proxy[token] == draft[token]
        assert [mass / sum(left) for mass in left] == list(
            rule.residual_after(target, draft, token)
        )


@label
@given(pair=prob_pairs())
def test_floats_agree_with_rationals(rule, pair):
    target, draft = pair
    floats = [np.array([float(mass) for mass in probs]) for probs in pair]
    for token in rejections(target, draft):
        # a difference of nearly equal floats, or a budget below the rounding, has no accuracy left
        if draft[token] - target[token] < Fraction(1, 1000):
            continue
        exact = rule.residual_after(list(target), list(draft), token)
        assert type(exact) is list
        assert rule.residual_after(*floats, token) == pytest.approx(
            [float(mass) for mass in exact], abs=1e-12
        )
        assert rule.proxy(*floats, token) == pytest.approx(
            [float(mass) for mass in rule.proxy(target, draft, token)], abs=1e-12
        )


@label
@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_floats_stay_finite(rule, pair):
    target, draft = (np.array([float(m) for m in probs]) for probs in pair[1:])
    for token in rejections(target, draft):
        residual = rule.residual_after(target, draft, token)
        assert residual.sum() == pytest.approx(1, abs=1e-12)
        assert (residual >= 0).all()
        # the same token drawn again is rejected with certainty
        again = rule.residual_after(residual, draft, token)
        assert again.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("fill", FILLS)
@given(pair=prob_pairs())
def test_resispec_follows_the_published_steps(fill, pair):
    target, draft = pair
    for token in rejections(target, draft):
        expected = residual_by_hand(fill, target, draft, token)
        assert list(ResiSpec(fill).residual_after(target, draft, token)) == expected
        # a second draw of the same token: R = 0 there, Z = q
        if rejections(expected, draft).count(token):
            twice = residual_by_hand(fill, expected, draft, token)
            assert ResiSpec(fill).residual_after(expected, draft, token) == twice
            assert ResiSpec(fill).residual_mass(expected, draft, token).mass == draft[token]


@given(pair=prob_pairs())
def test_minimal_proxy_sums_to_one(pair):
    target, draft = pair
    for token in rejections(target, draft):
        for fill in FILLS:
            assert sum(ResiSpec(fill).proxy(target, draft, token)) == 1


@label
@given(pair=prob_pairs(), data=st.data())
def test_inputs_are_never_modified(rule, pair, data):
    possible = rejections(*pair)
    if not possible:
        return
    token = data.draw(st.sampled_from(possible))
    lists = [list(probs) for probs in pair]
    arrays = [np.array([float(mass) for mass in probs]) for probs in pair]
    before = [array.copy() for array in arrays]
    for method in (rule.proxy, rule.residual_after):
        method(*lists, token)
        assert lists == [list(probs) for probs in pair]
        if arrays[1][token] > arrays[0][token]:
            result = method(*arrays, token)
            assert not any(np.shares_memory(result, array) for array in arrays)
        assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


def test_applied_budget_that_is_infeasible_is_an_error():
    target, draft = (Fraction(2, 5), Fraction(3, 5)), (Fraction(1, 2), Fraction(1, 2))
    with pytest.raises(InfeasibleBudgetError, match="Z = 4/5 .* token 0, .* only 3/5"):
        ResiSpec(budget="applied").residual_after(target, draft, 0)
    with pytest.raises(InfeasibleBudgetError, match="0.8"):
        ResiSpec(budget="applied").proxy(np.array([0.4, 0.6]), np.array([0.5, 0.5]), 0)
    mass = ResiSpec(budget="clipped").residual_mass(target, draft, 0)
    assert mass == (Fraction(3, 5), True)
    assert ResiSpec(budget="clipped").proxy(target, draft, 0) == (Fraction(1, 2), 0)


def test_applied_budget_can_leave_less_than_a_whole_proxy():
    target = (Fraction(1, 6), Fraction(1, 3), Fraction(1, 2))
    draft = (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4))
    rule = ResiSpec(budget="applied")
    assert rule.residual_mass(target, draft, 0) == (Fraction(2, 3), False)
    assert sum(rule.proxy(target, draft, 0)) == 1 - (Fraction(2, 3) - Fraction(1, 12))
    assert sum(rule.residual_after(target, draft, 0)) == 1


@given(pair=prob_pairs())
def test_budgets_are_ordered(pair):
    target, draft = pair
    for token in rejections(target, draft):
        least = ResiSpec().residual_mass(target, draft, token)
        cut = ResiSpec(budget="clipped").residual_mass(target, draft, token)
        assert least == (draft[token] - target[token], False)
        assert least.mass <= cut.mass <= 1 - target[token]
        if cut.clipped:
            with pytest.raises(InfeasibleBudgetError):
                ResiSpec(budget="applied").residual_mass(target, draft, token)
        else:
            assert cut == ResiSpec(budget="applied").residual_mass(target, draft, token)


def test_a_token_that_cannot_be_rejected_is_refused():
    with pytest.raises(InputError, match="token 1 cannot be rejected"):
        ResiSpec().residual_after([0.4, 0.6], [0.5, 0.5], 1)


@label
def test_labels_read_back(rule):
    assert parse_rule(rule.label) == rule
    assert parse_rule(rule) is rule


def test_rule_text():
    assert set(RULES) == {
        *(
            "rejection",
            "specinfer",
            "resispec",
            "rrs-wor",
            "k-seq",
            "spechub",
            "nss",
            "target-only",
        ),
        *("exact-shaping", "resispec-wor", "resispec-eagle", "block", "traversal"),
    }
    assert parse_rule("specinfer") == SpecInfer()
    assert parse_rule("resispec").label == "resispec[capacity,minimal]"
    assert parse_rule(" resispec:fill=water, budget=applied ") == ResiSpec("water", "applied")
    assert parse_rule("resispec:budget=clipped", fill="index") == ResiSpec("index", "clipped")
    assert parse_rule("resispec[water]") == ResiSpec("water")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rrs",
        "resispec:fill",
        "resispec:fill=",
        "resispec:",
        "resispec:depth=3",
        "resispec:fill=lava",
        "resispec:fill=water,fill=index",
        "resispec[water,minimal,3]",
        "resispec[]",
        "resispec(water)",
        "specinfer:fill=water",
        "specinfer[water]",
    ],
)
def test_bad_rule_text_is_a_named_error(text):
    with pytest.raises(RuleError):
        parse_rule(text)


def test_options_of_an_instance_are_fixed():
    with pytest.raises(RuleError, match="instance"):
        parse_rule(SpecInfer(), fill="water")
