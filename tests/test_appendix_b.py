"""Appendix B's reconstruction passes for any proxy, so it says nothing about what a rule emits."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec_sim.engine import appendix_b
from resispec_sim.engine.appendix_b import appendix_b_kl, reconstruct_marginal
from resispec_sim.engine.oracle import enumerate_law
from resispec_sim.errors import InputError, RuleError
from resispec_sim.rules import ResidualRule, ResiSpec, SpecInfer
from tests.strategies import EDGE_PAIRS, normalise, prob_pairs

RULES = ["specinfer", "resispec", "resispec:fill=water", "resispec:fill=index"]


def floats(probs):
    return np.array([float(mass) for mass in probs])


class FixedProxies(ResidualRule):
    """A rule whose proxy for each rejected token was fixed beforehand."""

    name = "fixed"
    exact = False

    def __init__(self, proxies):
        object.__setattr__(self, "proxies", proxies)

    def proxy(self, residual, draft, token):
        return self.proxies[token]


@pytest.mark.parametrize("rule", [*RULES, "resispec:budget=clipped", "random"])
@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_every_rule_passes(rule, pair):
    rng = np.random.default_rng(0)
    p, q = floats(pair.target_probs), floats(pair.draft_probs)
    kl = appendix_b_kl(p, q, 4, rule=rule, rng=rng, n_trajectories=5)
    assert abs(kl) < (1e-12 if rule == "random" else 1e-8)


@pytest.mark.parametrize("rule", [*RULES, "random"])
def test_a_real_vocabulary(rule):
    rng = np.random.default_rng(1)
    p, q = np.exp(3 * rng.normal(size=(2, 49_152)))
    kl = appendix_b_kl(p / p.sum(), q / q.sum(), 3, rule=rule, rng=rng, n_trajectories=2)
    assert 0 <= kl < 1e-12


@given(pair=prob_pairs(min_vocab=2), data=st.data())
def test_any_density_is_reconstructed_to_the_target(pair, data):
    target = floats(pair[0])
    densities = st.lists(st.floats(0, 2), min_size=len(target), max_size=len(target))
    proxies = data.draw(st.lists(densities, min_size=1, max_size=5))
    assert reconstruct_marginal(target, proxies) == pytest.approx(target, abs=1e-13)


def test_random_proxies_pass_while_their_law_is_wrong():
    """The same random proxies, used as a rule, emit something else; the reconstruction is blind to it."""
    rng = np.random.default_rng(2)
    target = normalise([3, 1, 2, 4, 2])
    draft = normalise([1, 4, 1, 2, 4])
    worst = 0.0
    for _ in range(20):
        proxies = [
            normalise([int(weight) for weight in rng.integers(1, 50, size=5)]) for _ in draft
        ]
        law = enumerate_law(FixedProxies(proxies), target, draft, 2)
        tv = sum(abs(m - p) for m, p in zip(law.output_probs, target, strict=True)) / 2
        marginal = reconstruct_marginal(floats(target), [floats(k) for k in proxies])
        kl = float((marginal * np.log(marginal / floats(target))).sum())
        assert abs(kl) < 1e-12
        assert tv > Fraction(1, 1000)
        worst = max(worst, float(tv))
    assert worst > 0.05
    assert abs(appendix_b_kl(floats(target), floats(draft), 2, rule="random", rng=rng)) < 1e-12


def test_resispec_passes_while_its_law_is_wrong():
    target = normalise([1, 1, 2])
    draft = normalise([1, 1, 0])
    law = enumerate_law(ResiSpec(), target, draft, 3)
    assert law.output_probs[2] == Fraction(1, 45)
    kl = appendix_b_kl(floats(target), floats(draft), 3, rng=np.random.default_rng(0))
    assert abs(kl) < 1e-12


@pytest.mark.parametrize("loss", [1e-7, 0.1])
def test_a_reconstruction_that_loses_mass_is_seen(monkeypatch, loss):
    monkeypatch.setattr(appendix_b, "reconstruct_marginal", lambda p, _proxies: (1 - loss) * p)
    kl = appendix_b_kl([0.2, 0.8], [0.5, 0.5], 2, rng=np.random.default_rng(0))
    assert kl == pytest.approx((1 - loss) * np.log1p(-loss), rel=1e-6)


def test_a_reconstruction_that_moves_mass_is_seen(monkeypatch):
    moved = np.array([1e-4, -1e-4])
    monkeypatch.setattr(appendix_b, "reconstruct_marginal", lambda p, _proxies: p + moved)
    kl = appendix_b_kl([0.5, 0.5], [0.5, 0.5], 2, rng=np.random.default_rng(0))
    assert kl == pytest.approx(2e-8, rel=1e-3)


def test_the_same_generator_gives_the_same_figure():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(500), size=2)
    figures = [
        appendix_b_kl(p, q, 3, rule="random", rng=np.random.default_rng(9)) for _ in range(2)
    ]
    assert figures[0] == figures[1]


def test_instances_are_accepted_and_inputs_kept():
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])
    before = p.copy(), q.copy()
    for rule in (SpecInfer(), ResiSpec("water")):
        assert abs(appendix_b_kl(p, q, 3, rule=rule, rng=np.random.default_rng(0))) < 1e-12
    assert (p == before[0]).all() and (q == before[1]).all()


def test_bad_arguments():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="one position"):
        appendix_b_kl([[1.0]], [[1.0]], 1, rng=rng)
    with pytest.raises(InputError, match="at least 1"):
        appendix_b_kl([1.0], [1.0], 0, rng=rng)
    for n in (True, 2.0, "2"):
        with pytest.raises(InputError, match="n_siblings is"):
            appendix_b_kl([1.0], [1.0], n, rng=rng)
    with pytest.raises(InputError, match="rng is None"):
        appendix_b_kl([1.0], [1.0], 1, rng=None)
    with pytest.raises(RuleError):
        appendix_b_kl([1.0], [1.0], 1, rule="nonesuch", rng=rng)
