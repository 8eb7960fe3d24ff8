"""The optimal acceptance against a transport programme and enumeration, never against its own formula."""

import warnings
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec_sim.engine.bounds import optimal_acceptance, optimum_for
from resispec_sim.engine.oracle import enumerate_law
from resispec_sim.engine.without_replacement import prob_all_in_prefix
from resispec_sim.errors import DistributionError, InputError, RuleError
from resispec_sim.rules import RULES, PositionRule, ResiSpec, SpecInfer
from resispec_sim.rules.base import to_array
from resispec_sim.rules.siblings import sibling_tuples
from tests.oracles import sibling_sets, transport_of_sets, transport_optimum
from tests.strategies import EDGE_PAIRS, normalise, prob_pairs
from tests.vectors import ROWS

# what the linear programme's own tolerance allows
LP_ERROR = 1e-8


def floats(probs):
    return np.array([float(mass) for mass in probs])


@pytest.mark.nojit
@pytest.mark.parametrize("row", ROWS)
def test_reference_values(row):
    p, q = floats(row["p"]), floats(row["q"])
    assert optimal_acceptance(p, q, row["n"]) == pytest.approx(float(row["opt_iid"]), abs=1e-14)
    assert optimal_acceptance(p, q, row["n"], replacement=False) == pytest.approx(
        float(row["opt_wor"]), abs=1e-11
    )


@pytest.mark.parametrize("replacement", [True, False])
@given(pair=prob_pairs(max_vocab=6), n_siblings=st.integers(1, 4))
def test_transport_programme(replacement, pair, n_siblings):
    bound = optimal_acceptance(floats(pair[0]), floats(pair[1]), n_siblings, replacement)
    assert bound == pytest.approx(transport_optimum(*pair, n_siblings, replacement), abs=LP_ERROR)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_transport_programme_on_edge_pairs(replacement, pair):
    _, target, draft = pair
    for n_siblings in range(1, 5):
        bound = optimal_acceptance(floats(target), floats(draft), n_siblings, replacement)
        optimum = transport_optimum(target, draft, n_siblings, replacement)
        assert bound == pytest.approx(optimum, abs=LP_ERROR)


@given(pair=prob_pairs(max_vocab=7), n_siblings=st.integers(1, 5))
def test_draws_without_replacement_by_enumeration(pair, n_siblings):
    _, draft = pair
    sets = sibling_sets(draft, n_siblings, replacement=False)
    expected = [
        float(sum(mass for members, mass in sets.items() if members <= set(range(length + 1))))
        for length in range(len(draft))
    ]
    probs, error = prob_all_in_prefix(floats(draft), n_siblings)
    assert error <= 1e-10
    assert probs == pytest.approx(expected, abs=1e-12)


def test_a_large_vocabulary_without_replacement():
    """Uniform draws: P(all n in H) is a ratio of binomials, known at any size."""
    vocab_size, n_siblings = 50_000, 4
    probs, error = prob_all_in_prefix(np.full(vocab_size, 1 / vocab_size), n_siblings)
    length = np.arange(1, vocab_size + 1)
    expected = np.prod([(length - i) / (vocab_size - i) for i in range(n_siblings)], axis=0)
    assert error <= 1e-10
    assert np.abs(probs - np.maximum(expected, 0)).max() < 1e-11


@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_two_draws_over_many_scales(spread):
    """n = 2 has a closed form: sum over ordered pairs of q_x q_y / (1 - q_x)."""
    rng = np.random.default_rng(5)
    q = np.exp(spread * rng.normal(size=2000))
    q /= q.sum()
    # pairs inside a prefix: q_x (q(H) - q_x) / (1 - q_x) over its members
    odds = q / (1 - q)
    expected = np.cumsum(odds) * np.cumsum(q) - np.cumsum(odds * q)
    probs, _ = prob_all_in_prefix(q, 2)
    assert probs == pytest.approx(expected, abs=1e-11)


@given(pair=prob_pairs(max_vocab=5), n_siblings=st.integers(1, 3))
def test_exact_rules_never_pass_the_optimum(pair, n_siblings):
    bound = optimal_acceptance(floats(pair[0]), floats(pair[1]), n_siblings)
    law = enumerate_law(SpecInfer(), *pair, n_siblings)
    assert float(sum(law.accepted)) <= bound + 1e-14
    if n_siblings == 1:
        assert float(law.accepted[0]) == pytest.approx(bound, abs=1e-14)


SCHEMES = ["iid", "without_replacement", "topk", "hub"]


def transport_of_scheme(scheme, pair, n_siblings):
    """By the drawn tuples themselves, so that every way of drawing has its programme."""
    sets = defaultdict(Fraction)
    for weight, drawn in sibling_tuples(scheme, to_array(pair[1]), n_siblings):
        sets[frozenset(drawn)] += weight
    return transport_of_sets(dict(sets), pair[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@given(pair=prob_pairs(max_vocab=6), n_siblings=st.integers(1, 3))
def test_each_scheme_has_the_optimum_of_its_transport_programme(scheme, pair, n_siblings):
    n_siblings = 2 if scheme == "hub" else n_siblings
    bound = optimum_for(scheme, floats(pair[0]), floats(pair[1]), n_siblings)
    assert bound == pytest.approx(transport_of_scheme(scheme, pair, n_siblings), abs=LP_ERROR)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_each_scheme_on_edge_pairs(scheme, pair):
    _, *probs = pair
    for n_siblings in (2,) if scheme == "hub" else (1, 2, 3):
        bound = optimum_for(scheme, *map(floats, probs), n_siblings)
        assert bound == pytest.approx(transport_of_scheme(scheme, probs, n_siblings), abs=LP_ERROR)


POSITION_RULES = [name for name, kind in RULES.items() if issubclass(kind, PositionRule)]


@pytest.mark.parametrize("name", [name for name in POSITION_RULES if RULES[name].exact])
@given(pair=prob_pairs(max_vocab=4), n_siblings=st.integers(1, 3))
def test_no_exact_rule_passes_the_optimum_of_its_scheme(name, pair, n_siblings):
    rule = RULES[name]()
    n_siblings = rule.only_count or n_siblings
    bound = optimum_for(rule, *map(floats, pair), n_siblings)
    accepted = float(sum(enumerate_law(rule, *pair, n_siblings).accepted))
    assert accepted <= bound + 1e-10
    if name == "target-only":
        # the target's mass on its siblings is all that can be accepted, and it takes it
        assert accepted == pytest.approx(bound, abs=1e-12)


def test_optimum_for_takes_names_rules_and_batches():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.full(20, 0.3), size=(2, 5))
    for scheme, name in zip(
        SCHEMES, ("specinfer", "rrs-wor", "target-only", "spechub"), strict=True
    ):
        rows = [optimum_for(scheme, a, b, 2) for a, b in zip(p, q, strict=True)]
        for same in (scheme, name, RULES[name]()):
            assert optimum_for(same, p, q, 2) == pytest.approx(rows, abs=1e-15)


@pytest.mark.parametrize(
    "scheme, n_siblings, words",
    [
        ("hub", 3, "defined for 2 siblings"),
        ("spechub", 1, "defined for 2 siblings"),
        ("chain", 2, "no optimum of one position"),
        ("nonesuch", 2, "unknown rule"),
    ],
)
def test_schemes_without_an_optimum(scheme, n_siblings, words):
    with pytest.raises(RuleError, match=words):
        optimum_for(scheme, [0.5, 0.5], [0.5, 0.5], n_siblings)


def test_resispec_passes_the_optimum_somewhere():
    target, draft = normalise([1, 1, 2]), normalise([1, 1, 0])
    law = enumerate_law(ResiSpec(), target, draft, 3)
    # an exact rule accepts nothing outside the draft's support, which holds half of the target
    assert optimal_acceptance(floats(target), floats(draft), 3) == 0.5
    assert sum(law.accepted) == Fraction(7, 8)


@pytest.mark.parametrize("replacement", [True, False])
@given(pair=prob_pairs(max_vocab=8))
def test_more_siblings_never_hurt(replacement, pair):
    p, q = map(floats, pair)
    bounds = [optimal_acceptance(p, q, n, replacement) for n in range(1, 6)]
    assert all(low <= high + 1e-10 for low, high in pairwise(bounds))
    assert 0 <= bounds[0] == pytest.approx(np.minimum(p, q).sum(), abs=1e-10)
    # the optimum without replacement is no smaller: repeated siblings waste a draw
    if not replacement:
        assert bounds[2] >= optimal_acceptance(p, q, 3) - 1e-10


@pytest.mark.parametrize("replacement", [True, False])
def test_batches(replacement):
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.full(20, 0.3), size=(2, 5))
    rows = [optimal_acceptance(a, b, 3, replacement) for a, b in zip(p, q, strict=True)]
    assert optimal_acceptance(p, q, 3, replacement) == pytest.approx(rows, abs=1e-15)


def test_bad_arguments():
    with pytest.raises(InputError, match="shape"):
        optimal_acceptance([0.5, 0.5], [1.0], 2)
    for n in (0, -1, True, 2.0, "2", None, 4097, 2**63, 10**30):
        with pytest.raises(InputError, match="n_siblings is"):
            optimal_acceptance([0.5, 0.5], [0.5, 0.5], n)
    assert optimal_acceptance([0.5, 0.5], [0.5, 0.5], np.int64(2)) == 1.0
    with pytest.raises(DistributionError):
        optimal_acceptance([0.5, 0.6], [0.5, 0.5], 2)
    with warnings.catch_warnings(), pytest.raises(DistributionError, match="token 0: .* inf"):
        warnings.simplefilter("error")
        optimal_acceptance([np.inf, -np.inf], [0.5, 0.5], 2)
