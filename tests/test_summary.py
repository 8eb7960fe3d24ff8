"""SpecInfer's figures block by block, beside those of the functions that compute one each."""

import numpy as np
import pytest

from resispec_sim.engine import specinfer_summary as module
from resispec_sim.engine.appendix_b import Proxies, random_proxies, reconstruct_marginal
from resispec_sim.engine.distances import tv_and_kl
from resispec_sim.engine.figures import figures_of_row
from resispec_sim.engine.seeded_proxies import seeded_proxies
from resispec_sim.engine.specinfer import specinfer_outcome
from resispec_sim.engine.specinfer_summary import specinfer_summary
from resispec_sim.errors import MassError
from resispec_sim.measure import Place, Plan, measure
from resispec_sim.rules import ResiSpec, SpecInfer
from resispec_sim.trees import parse_tree


def pairs():
    rng = np.random.default_rng(0)
    for size in (1, 2, 40, 1023, 1025, 3000):
        p, q = rng.dirichlet(np.ones(size), 2)
        yield p, q
        yield p, p
        yield p, p * (1 + rng.integers(-2, 3, size) * 2.0**-52)
        sparse = np.where(np.arange(size) % 3 == 0, q, 0)
        yield p, sparse / sparse.sum()
        yield sparse / sparse.sum(), p
        cold = np.exp(-600 * rng.random(size))
        yield cold / cold.sum(), q


def random_for(p, n):
    return random_proxies(p.size, n, np.random.default_rng(7))


@pytest.mark.parametrize("n", [1, 3, 8])
def test_every_figure_is_that_of_the_law_itself(n):
    for p, q in pairs():
        token = p.size // 2
        summary = specinfer_summary(p, q, n, token, random_for(p, n))
        assert summary is not None
        expected = figures_of_row(
            SpecInfer(), p, q, n, token=token, method="auto", max_paths=1, seed=0
        )
        # rounding decides which of equals is the token of the largest excess
        for name in ("accepted", "accepted_here", "kl", "tv", "tv_lower_bound", "excess_mass"):
            found, wanted = getattr(summary, name), getattr(expected, name)
            assert np.abs(np.asarray(found) - wanted).max() < 1e-14, name
        assert 0 <= summary.appendix_b_kl < 1e-14
        assert 0 <= summary.appendix_b_kl_random < 1e-14


def test_a_wrong_law_has_its_own_figures():
    """Figures are those of what is assembled, not of the target: wrong multipliers show."""
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(2500, 0.3), 2)
    wrong = [1.2, 1.5, 1.7]
    summary = specinfer_summary(p, q, 3, 0, random_for(p, 3), multipliers=wrong)
    assert summary is not None
    outcome = specinfer_outcome(p, q, 3, multipliers=wrong)
    tv, kl = tv_and_kl(outcome.output_probs, p)
    assert summary.tv == pytest.approx(tv, rel=1e-12) and tv > 1e-3
    assert summary.kl == pytest.approx(kl, rel=1e-12) and kl > 1e-3
    excess = outcome.output_probs - p
    assert summary.excess_token == excess.argmax()
    assert summary.excess_mass == pytest.approx(excess.max(), rel=1e-12)
    by_token = outcome.accepted_by_token.sum(axis=0)
    assert summary.tv_lower_bound == pytest.approx(np.maximum(by_token - p, 0).sum(), abs=1e-15)
    assert summary.accepted_here == pytest.approx(by_token[0], rel=1e-12)


def test_a_law_that_loses_mass_is_refused(monkeypatch):
    def lossy(p, q, n_siblings, multipliers):
        accepted, steps = take_steps(p, q, n_siblings, multipliers)
        steps[2, -1] *= 1 - 1e-9
        return accepted, steps

    take_steps = module.take_steps
    monkeypatch.setattr(module, "take_steps", lossy)
    p, q = np.random.default_rng(2).dirichlet(np.ones(50), 2)
    with pytest.raises(MassError, match="specinfer"):
        specinfer_summary(p, q, 3, 0, random_for(p, 3))


def test_random_proxies_lie_in_windows_of_a_large_vocabulary():
    size, n = 20_000, 4
    proxies = random_for(np.empty(size), n)
    rows = np.zeros((n, size))
    for row, at, scale, (first, end) in zip(
        rows, proxies.starts, proxies.scales, proxies.windows, strict=True
    ):
        assert 0 <= first < end <= size
        row[first:end] = scale * proxies.values[at + first : at + end]
    assert (0.5 <= rows.sum(axis=1)).all() and (rows.sum(axis=1) <= 1.5).all()
    p = np.random.default_rng(3).dirichlet(np.ones(size))
    # the same proxies written out give the same masses
    assert isinstance(proxies, Proxies)
    assert np.abs(reconstruct_marginal(p, rows) - reconstruct_marginal(p, proxies)).max() < 1e-18
    assert np.abs(reconstruct_marginal(p, proxies) / p - 1).max() < 1e-14


def test_rows_do_not_depend_on_the_other_rules():
    p, q = np.random.default_rng(4).dirichlet(np.ones(30), 2)
    place = Place(position=3, prompt=0, offset=3, token=2)
    tree = parse_tree("d3b3")

    def rows(*rules):
        plan = Plan(rules=rules, siblings=(2, 3), tree=tree)
        return measure(place, 1.0, p, q, plan, with_tree=True)

    both = rows(SpecInfer(), ResiSpec())
    assert [row for row in both if row["rule"] == "specinfer"] == rows(SpecInfer())
    alone = rows(ResiSpec())
    for row, expected in zip([r for r in both if r["rule"] != "specinfer"], alone, strict=True):
        # without SpecInfer the random proxies are summed apart
        assert row.pop("appendix_b_kl_random") == pytest.approx(
            expected.pop("appendix_b_kl_random"), abs=1e-15
        )
        assert row == expected


def test_proxies_of_a_position_have_a_stream_of_their_own():
    found = [
        seeded_proxies(20_000, 3, seed, position)
        for seed in (0, 1, 2**70)
        for position in range(40)
    ]
    again = seeded_proxies(20_000, 3, 0, 7)
    assert all(np.array_equal(a, b) for a, b in zip(again, found[7], strict=True))
    assert len({proxies.values.tobytes() for proxies in found}) == len(found)
    for proxies in found:
        sums = [
            scale * proxies.values[at + first : at + end].sum(dtype=np.int64)
            for at, scale, (first, end) in zip(
                proxies.starts, proxies.scales, proxies.windows, strict=True
            )
        ]
        assert 0.5 <= min(sums) and max(sums) <= 1.5
        assert (proxies.windows >= 0).all() and (proxies.windows <= 20_000).all()
    # uniform bytes: 120 streams of 2500 have a mean within 5 standard errors, as have the windows
    assert abs(np.mean([proxies.values.mean() for proxies in found]) - 127.5) < 0.7
    firsts = np.concatenate([proxies.windows[:, 0] for proxies in found])
    assert abs(firsts.mean() - 17_500 / 2) < 5 * 17_500 / np.sqrt(12 * firsts.size)
