"""Exponential and logarithm of the kernels, against decimal arithmetic, and what follows from it."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from resispec_sim.engine import elementary
from resispec_sim.engine.elementary import exp_in_place, log_of
from resispec_sim.probs import logits_to_probs

RNG = np.random.default_rng(20)
POINTS = np.concatenate(
    (
        -700 * RNG.random(150),
        -RNG.random(100),
        -(np.arange(60) + 0.5) * np.log(2),  # the ends of the reduced range
        -np.exp2(-np.arange(0.0, 60.0)),
        [0.0, -0.0],
    )
)


def errors(points):
    """Errors in units in the last place of the exact value."""
    values = points.copy()
    exp_in_place(values)
    with localcontext() as context:
        context.prec = 40
        exact = [Decimal(x).exp() for x in points.tolist()]
        return np.array(
            [
                float((Decimal(v) - x) / Decimal(float(np.spacing(float(x)))))
                for v, x in zip(values.tolist(), exact, strict=True)
            ]
        )


@pytest.mark.nojit
def test_exp_is_within_one_unit_in_the_last_place():
    assert np.abs(errors(POINTS)).max() < 1.1


@pytest.mark.nojit
def test_log_is_within_one_unit_in_the_last_place():
    points = np.concatenate(
        (np.exp(-POINTS), np.exp(POINTS), 1 + POINTS[:40] / 1e5, np.sqrt(2.0 ** np.arange(-9, 9)))
    )
    with localcontext() as context:
        context.prec = 40
        for x in points[points > 1e-307].tolist():
            exact = Decimal(x).ln()
            error = Decimal(float(log_of(x))) - exact
            assert abs(error) <= Decimal(float(np.spacing(abs(float(exact))))), x


@pytest.mark.nojit
def test_exp_goes_through_the_subnormals_to_zero():
    points = np.linspace(-746, -708, 200)
    assert np.abs(errors(points)).max() < 1.1  # of the spacing of subnormals
    values = np.array([-746.0, -1e4, -1e308, -np.inf])
    exp_in_place(values)
    assert values.tolist() == [0.0] * 4


def test_a_wrong_coefficient_is_seen(monkeypatch):
    monkeypatch.setattr(elementary, "K7", elementary.K7 * (1 + 1e-3))
    monkeypatch.setattr(elementary, "exp_in_place", elementary.exp_in_place.py_func)
    values = POINTS.copy()
    elementary.exp_in_place(values)
    assert not np.allclose(values, np.exp(POINTS), rtol=1e-15, atol=0)


@pytest.mark.nojit
@pytest.mark.parametrize("temperature", [1.0, 0.6, 5e-324, 1e300])
def test_rows_do_not_depend_on_what_is_beside_them_or_on_their_type(temperature):
    logits = np.random.default_rng(0).normal(size=(3, 1300)).astype(np.float32) * 5
    logits[1, 7] = -np.inf
    together = logits_to_probs(logits, temperature=temperature)
    for row, probs in zip(logits, together, strict=True):
        assert np.array_equal(logits_to_probs(row, temperature=temperature), probs)
        assert np.array_equal(
            logits_to_probs(row.astype(np.float64)[::1], temperature=temperature), probs
        )
        assert abs(probs.sum() - 1) < 1e-15
    assert together[1, 7] == 0.0


@pytest.mark.nojit
def test_equal_logits_have_equal_probabilities_wherever_they_are():
    """What is left over at the end of a vector of tokens takes another path through the processor."""
    logits = np.tile(np.random.default_rng(1).normal(size=7), 187)  # 1309 tokens
    probs = logits_to_probs(logits, temperature=0.7)
    assert np.array_equal(probs, np.tile(probs[:7], 187))


def test_large_rows_agree_with_extended_precision():
    logits = (np.random.default_rng(2).normal(size=50_000) * 4).astype(np.float32)
    weights = np.exp(logits.astype(np.longdouble) - logits.max())
    exact = weights / weights.sum()
    assert np.abs(logits_to_probs(logits) / exact - 1).max() < 1e-15
