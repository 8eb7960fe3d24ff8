"""The oracle against reference values, and what it shows about the two rules."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec_sim.engine.oracle import enumerate_law
from resispec_sim.errors import DistributionError, InputError
from resispec_sim.rules import ResiSpec, SpecInfer
from tests.strategies import EDGE_PAIRS, normalise, prob_pairs
from tests.vectors import RESISPEC, ROWS

FILLS = ("capacity", "water", "index")
EXACT_FILLS = ("capacity", "water")
ALL_RULES = [SpecInfer(), *map(ResiSpec, FILLS)]


def law_by_tuples(rule, target, draft, n_siblings):
    """Every tuple of siblings by itself, no two paths merged: the words of the definition."""
    output = [Fraction(0)] * len(target)
    for siblings in product(range(len(draft)), repeat=n_siblings):
        reach, residual = Fraction(1), target
        for token in siblings:
            reach *= draft[token]
        for token in siblings:
            if reach == 0:
                break
            accept_prob = min(Fraction(1), residual[token] / draft[token])
            output[token] += reach * accept_prob
            reach *= 1 - accept_prob
            if reach > 0:
                residual = rule.residual_after(residual, draft, token)
        if reach > 0:
            output = [o + reach * r for o, r in zip(output, residual, strict=True)]
    return output


def over_estimated(target, draft):
    return [x for x in range(len(target)) if draft[x] > target[x]]


@pytest.mark.parametrize("row", ROWS)
def test_specinfer_values(row):
    law = enumerate_law(SpecInfer(), row["p"], row["q"], row["n"])
    assert law.output_probs == list(row["p"])
    assert sum(law.accepted) == row["rrs_iid"]


@pytest.mark.parametrize("row", RESISPEC)
def test_resispec_values(row):
    law = enumerate_law(ResiSpec(row["fill"]), row["p"], row["q"], row["n"])
    assert law.output_probs == list(row["law"])
    if "alpha" in row:
        assert sum(law.accepted) == row["alpha"]
    if "accepted" in row:
        assert law.accepted == list(row["accepted"])
    if "alpha_of_specinfer" in row:
        specinfer = enumerate_law(SpecInfer(), row["p"], row["q"], row["n"])
        assert sum(law.accepted) == sum(specinfer.accepted)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.label)
@given(pair=prob_pairs(max_vocab=4), n_siblings=st.integers(0, 3))
def test_merging_paths_changes_nothing(rule, pair, n_siblings):
    law = enumerate_law(rule, *pair, n_siblings)
    assert law.output_probs == law_by_tuples(rule, *pair, n_siblings)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.label)
@given(pair=prob_pairs(max_vocab=5), n_siblings=st.integers(1, 3))
def test_law_sums_to_one(rule, pair, n_siblings):
    law = enumerate_law(rule, *pair, n_siblings)
    assert sum(law.output_probs) == 1
    assert [sum(row) for row in law.accepted_by_token] == law.accepted
    # the first sibling is tested against the target, whatever the rule
    assert law.accepted_by_token[0] == [min(p, q) for p, q in zip(*pair, strict=True)]
    if pair[0] == pair[1]:
        assert law.accepted[0] == 1


@given(pair=prob_pairs(max_vocab=6), n_siblings=st.integers(1, 4))
def test_specinfer_is_exact(pair, n_siblings):
    assert enumerate_law(SpecInfer(), *pair, n_siblings).output_probs == list(pair[0])


@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_edge_pairs(pair):
    _, target, draft = pair
    for n_siblings in range(1, 4):
        assert enumerate_law(SpecInfer(), target, draft, n_siblings).output_probs == list(target)
        accepted = set()
        for fill in FILLS:
            law = enumerate_law(ResiSpec(fill), target, draft, n_siblings)
            assert sum(law.output_probs) == 1
            accepted.add(tuple(law.accepted))
        assert len(accepted) == 1


@given(pair=prob_pairs(max_vocab=5), n_siblings=st.integers(1, 3))
def test_acceptance_is_the_same_for_every_fill(pair, n_siblings):
    laws = [enumerate_law(ResiSpec(fill), *pair, n_siblings) for fill in FILLS]
    assert laws[0].accepted_by_token == laws[1].accepted_by_token == laws[2].accepted_by_token


@pytest.mark.parametrize("fill", EXACT_FILLS)
@given(pair=prob_pairs(max_vocab=5), n_siblings=st.integers(1, 3), data=st.data())
def test_permuting_the_vocabulary_permutes_the_law(fill, pair, n_siblings, data):
    order = data.draw(st.permutations(range(len(pair[0]))))
    law = enumerate_law(ResiSpec(fill), *pair, n_siblings)
    moved = enumerate_law(ResiSpec(fill), *([p[x] for x in order] for p in pair), n_siblings)
    assert moved.output_probs == [law.output_probs[x] for x in order]
    assert moved.accepted == law.accepted


@pytest.mark.parametrize("fill", FILLS)
@given(pair=prob_pairs(max_vocab=6))
def test_one_step_obligation_decides_exactness(fill, pair):
    """With one sibling the law is the target iff ``sum_{x: q>p} r_x = (p - q)+``."""
    target, draft = pair
    kept = [Fraction(0)] * len(target)
    for token in over_estimated(target, draft):
        residual = ResiSpec(fill).residual_after(target, draft, token)
        kept = [k + (draft[token] - target[token]) * r for k, r in zip(kept, residual, strict=True)]
    owed = [max(p - q, Fraction(0)) for p, q in zip(target, draft, strict=True)]
    law = enumerate_law(ResiSpec(fill), target, draft, 1)
    assert (kept == owed) == (law.output_probs == list(target))
    assert law.output_probs == [min(p, q) + k for p, q, k in zip(target, draft, kept, strict=True)]


@pytest.mark.parametrize("fill", FILLS)
@given(pair=prob_pairs(max_vocab=6))
def test_resispec_is_inexact_where_another_token_could_take_the_mass(fill, pair):
    """An over-estimated x and another y with 0 < p(y) <= q(y) make the law differ from the target."""
    target, draft = pair
    witness = any(
        x != y and 0 < target[y] <= draft[y]
        for x in over_estimated(target, draft)
        for y in range(len(target))
    )
    if witness:
        assert enumerate_law(ResiSpec(fill), target, draft, 1).output_probs != list(target)


@pytest.mark.parametrize("fill", FILLS)
@given(pair=prob_pairs(min_vocab=2, max_vocab=2), n_siblings=st.integers(1, 4))
def test_resispec_is_exact_for_two_tokens(fill, pair, n_siblings):
    assert enumerate_law(ResiSpec(fill), *pair, n_siblings).output_probs == list(pair[0])


@pytest.mark.parametrize("fill", FILLS)
@given(pair=prob_pairs(max_vocab=6))
def test_resispec_is_exact_for_equal_distributions(fill, pair):
    target, _ = pair
    assert enumerate_law(ResiSpec(fill), target, target, 3).output_probs == list(target)


weights = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.mark.parametrize("fill", EXACT_FILLS)
@given(inside=weights, outside=weights, n_siblings=st.integers(1, 3))
def test_resispec_is_exact_for_a_conditional_target(fill, inside, outside, n_siblings):
    draft = normalise(inside + outside)
    target = normalise(inside + [0] * len(outside))
    law = enumerate_law(ResiSpec(fill), target, draft, n_siblings)
    assert law.output_probs == list(target)


@pytest.mark.parametrize("fill", EXACT_FILLS)
@given(left=weights, right=weights, n_siblings=st.integers(1, 3))
def test_resispec_is_exact_for_disjoint_supports(fill, left, right, n_siblings):
    target = normalise(left + [0] * len(right))
    draft = normalise([0] * len(left) + right)
    law = enumerate_law(ResiSpec(fill), target, draft, n_siblings)
    assert law.output_probs == list(target)
    assert sum(law.accepted) == 0


@pytest.mark.parametrize("fill", EXACT_FILLS)
@given(
    others=weights, first=st.integers(1, 9), share=st.integers(0, 9), n_siblings=st.integers(1, 3)
)
def test_resispec_is_exact_for_one_over_estimated_token(fill, others, first, share, n_siblings):
    draft = normalise([first, *others])
    kept = draft[0] * share / 10
    target = (kept, *(mass * (1 - kept) for mass in normalise(others)))
    law = enumerate_law(ResiSpec(fill), target, draft, n_siblings)
    assert law.output_probs == list(target)


def test_index_fill_is_inexact_where_the_other_fills_are_exact():
    target = (Fraction(1, 4),) * 4
    draft = (Fraction(7, 10), *[Fraction(1, 10)] * 3)
    assert enumerate_law(ResiSpec("index"), target, draft, 3).output_probs != list(target)


@pytest.mark.parametrize("budget", ["applied", "clipped"])
def test_other_budgets_do_not_make_it_exact(budget):
    target = (Fraction(1, 4), Fraction(1, 4), Fraction(1, 2))
    draft = (Fraction(1, 2), Fraction(1, 2), Fraction(0))
    law = enumerate_law(ResiSpec(budget=budget), target, draft, 1)
    assert sum(law.output_probs) == 1
    assert law.output_probs != list(target)


def test_bad_arguments():
    half = (Fraction(1, 2), Fraction(1, 2))
    with pytest.raises(DistributionError, match="sum to 3/4"):
        enumerate_law(SpecInfer(), (Fraction(1, 2), Fraction(1, 4)), half, 1)
    with pytest.raises(DistributionError, match="least is -1/2"):
        enumerate_law(SpecInfer(), half, (Fraction(3, 2), Fraction(-1, 2)), 1)
    with pytest.raises(InputError, match="1 tokens, the draft 2"):
        enumerate_law(SpecInfer(), (Fraction(1),), half, 1)
    with pytest.raises(InputError, match="n_siblings is -1"):
        enumerate_law(SpecInfer(), half, half, -1)
