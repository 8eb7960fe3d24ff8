"""The kernel of SpecInfer's law beside its definition in whole arrays."""

import numpy as np
import pytest

from resispec_sim.engine.specinfer import specinfer_outcome


def plain_law(p, q, n, multipliers=None):
    """The same recursion, one array operation at a time: accepted by token (K, V) and the law (V,)."""
    by_token = np.zeros((n, p.size))
    residual, reach, multiplier = p, 1.0, 1.0
    for i in range(n):
        by_token[i] = reach * np.minimum(residual, q)
        reach *= 1.0 - min(np.minimum(residual, q).sum(), 1.0)
        multiplier = multiplier if multipliers is None else multipliers[i]
        rest = np.maximum(p - multiplier * q, 0.0)
        if reach <= 0.0 or rest.sum() <= 0.0:
            break
        residual = rest / rest.sum()
        multiplier += rest.sum()
    return by_token, by_token.sum(axis=0) + reach * residual


def pairs():
    rng = np.random.default_rng(0)
    for size in (1, 3, 511, 512, 513, 5000):
        for sparsity in (1.0, 0.05):
            p, q = rng.dirichlet(np.full(size, sparsity), 2)
            yield p, q
            yield p, p * (1 + rng.integers(-2, 3, size) * 2.0**-52)
            yield p, np.where(np.arange(size) % 2 == 0, q, 0.0) / q[::2].sum()


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("wrong", [False, True])
def test_law_agrees_with_its_definition(n, wrong):
    multipliers = list(1.25 ** np.arange(n)) if wrong else None
    for p, q in pairs():
        by_token, law = plain_law(p, q, n, multipliers)
        outcome = specinfer_outcome(p, q, n, multipliers=multipliers)
        assert np.abs(outcome.accepted_by_token - by_token).max() < 1e-14
        assert np.abs(outcome.accepted - by_token.sum(axis=1)).max() < 1e-14
        assert np.abs(outcome.output_probs - law).max() < 1e-14


def test_the_law_is_the_target_only_with_the_right_multipliers():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(2000, 0.1), 2)
    assert np.abs(specinfer_outcome(p, q, 8).output_probs - p).max() < 1e-15
    for wrong in ([1.0] * 8, [1.3] * 8, [1.0, 1.4, *[2.0] * 6]):
        law = specinfer_outcome(p, q, 8, multipliers=wrong).output_probs
        assert np.abs(law - p).sum() > 1e-3
