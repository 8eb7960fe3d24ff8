"""Distances of a law to the target, and rigorous bounds of them where part of the law is unknown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.distance_kernels import (
    divergences,
    excess_and_gain,
    excess_over,
    raising_level,
    sum_and_gain_of_logs,
)

FloatArray = NDArray[np.float64]


def total_variation(law: FloatArray, target: FloatArray) -> float:
    """Half the L1 distance of two distributions (V,)."""
    return 0.5 * float(np.abs(law - target).sum())


def kl_divergence(law: FloatArray, target: FloatArray) -> float:
    """``sum M log(M / p)`` in nats; infinite where ``M > 0 = p``, never below 0.

    Summed as ``M log(M/p) - M + p``, whose terms are all non-negative: the plain sum of a law that is
    exact but for rounding would be the rounding of its total. Where M and p nearly agree, a term is a
    series in ``M/p - 1``, so that the figure of a law that is off by rounding is its square.

    Examples
    --------
    >>> round(kl_divergence(np.array([0.5, 0.5]), np.array([0.25, 0.75])), 12)
    0.143841036226
    >>> kl_divergence(np.array([0.5, 0.5]), np.array([5e-324, 1.0])) > 370  # no overflow
    True
    """
    return tv_and_kl(law, target)[1]


def tv_and_kl(law: FloatArray, target: FloatArray) -> tuple[float, float]:
    """`total_variation` and `kl_divergence` of a law (V,), in one pass."""
    return figures_and_sum(law, target)[:2]


def figures_and_sum(law: FloatArray, target: FloatArray) -> tuple[float, float, float]:
    """`total_variation`, `kl_divergence` and sum of a law (V,), in one pass."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        tv, kl, overflow, total = divergences(
            np.ascontiguousarray(law), np.ascontiguousarray(target)
        )
    # a target that is subnormal can make the ratio overflow; the difference of logarithms cannot
    kl = _kl_terms(law, target).sum() if overflow else kl
    return float(tv), float(kl), float(total)


def excess_mass(accepted_by_token: FloatArray, target: FloatArray) -> float:
    """``sum (A - p)+`` with A (V,) the sum of the masses (K, V)."""
    return float(excess_over(np.ascontiguousarray(accepted_by_token), np.ascontiguousarray(target)))


def _kl_terms(law: FloatArray, target: FloatArray) -> FloatArray:
    terms = target.copy()
    on = law > 0
    if (target[on] <= 0).any():
        return np.array([np.inf])
    with np.errstate(over="ignore"):
        ratio = (law[on] - target[on]) / target[on]
        near = np.abs(ratio) < 0.5
        logs = np.log1p(np.where(near, ratio, 0.0))
    logs = np.where(near, logs, np.log(law[on]) - np.log(target[on]))
    terms[on] = law[on] * logs - law[on] + target[on]
    return np.maximum(terms, 0.0)


def tv_bounds(certain: FloatArray, target: FloatArray) -> FloatArray:
    """Bounds of the TV of every law that is at least `certain` and lives where the target does.

    The TV is convex in the law: it is greatest where all the missing mass goes to a single token.
    """
    missing = max(1.0 - float(certain.sum()), 0.0)
    low, gain = excess_and_gain(
        np.ascontiguousarray(certain), np.ascontiguousarray(target), missing
    )
    return np.array([low, min(low + gain, 1.0)])


def kl_bounds(certain: FloatArray, target: FloatArray) -> FloatArray:
    """Bounds of the KL of every law that is at least `certain` and lives where the target does.

    The KL is convex in the law: it is least where the missing mass raises the lowest ratios to one
    level, and greatest where all of it goes to a single token.
    """
    missing = max(1.0 - float(certain.sum()), 0.0)
    if missing <= 0.0:
        value = kl_divergence(certain, target)
        return np.array([value, value])
    c, p = np.ascontiguousarray(certain), np.ascontiguousarray(target)
    on = p > 0
    if not on.all():
        c, p = c[on], p[on]
    raised = np.maximum(raising_level(c, p, missing) * p, c)
    low = kl_divergence(raised / raised.sum(), p / p.sum())
    with np.errstate(over="ignore"):
        base, gain, overflow = sum_and_gain_of_logs(c, p, missing)
    if overflow:
        base = _xlogy(c, p).sum()
        gain = (_xlogy(c + missing, p) - _xlogy(c, p)).max()
    high = float(base + gain)
    return np.array([max(min(low, high), 0.0), high])


def _xlogy(mass: FloatArray, target: FloatArray) -> FloatArray:
    result = np.zeros_like(mass)
    on = mass > 0
    result[on] = mass[on] * (np.log(mass[on]) - np.log(target[on]))
    return result


def batch_interval(
    figure: Callable[[FloatArray, FloatArray], float], laws: FloatArray, target: FloatArray
) -> FloatArray:
    """Jackknife over independent estimates of a law (G, V): bias removed, +-1.96 standard errors."""
    n = laws.shape[0]
    total = laws.sum(axis=0)

    def of(law: FloatArray) -> float:
        law = np.maximum(law, 0.0)
        return figure(law / law.sum(), target)

    whole = of(total)
    if not np.isfinite(whole):
        return np.array([whole, whole])
    without = np.array([of(total - laws[g]) for g in range(n)])
    center = n * whole - (n - 1) * float(without.mean())
    half = 1.96 * float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))
    return np.maximum(np.array([center - half, center + half]), 0.0)
