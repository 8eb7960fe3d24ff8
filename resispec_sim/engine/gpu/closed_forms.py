"""Array code for laws in closed form and for distances: no kernel, any array library.

Written against the array API standard; B = positions, V = tokens, K = siblings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from resispec_sim.engine.gpu.arrays import BatchLaw

Array = Any


def specinfer_laws(
    target_probs: Array, draft_probs: Array, n_siblings: int, *, by_token: bool
) -> BatchLaw:
    """Laws of recursive rejection sampling at many positions, assembled forward; O(B K V).

    The residual after i rejections is ``norm((p - C_i q)+)`` with ``C_1 = 1`` and ``C_{i+1} = C_i +
    sum (p - C_i q)+``. A position that is never rejected again keeps its residual and a reach of 0.
    """
    p, q = target_probs, draft_probs
    xp = array_namespace(p, q)
    ones = xp.ones_like(p[:, :1])
    zeros = xp.zeros_like(p)
    residual, reach, multiplier = p, ones, ones
    rows: list[Array] = []
    masses: list[Array] = []
    alive = ones > 0.0
    for _ in range(n_siblings):
        accept = xp.where(alive, xp.minimum(residual, q), zeros)
        total = xp.minimum(xp.sum(accept, axis=1, keepdims=True), ones)
        rows.append(reach * accept)
        masses.append(reach * total)
        reach = xp.where(alive, reach * (1.0 - total), reach)
        rest = xp.maximum(p - multiplier * q, zeros)
        left = xp.sum(rest, axis=1, keepdims=True)
        alive = alive & (reach > 0.0) & (left > 0.0)
        residual = xp.where(alive, rest / xp.where(left > 0.0, left, ones), residual)
        multiplier = xp.where(alive, multiplier + left, multiplier)
    accepted_total = sum(rows[1:], rows[0])
    law = accepted_total + reach * residual
    accepted = xp.concat(masses, axis=1)
    error = xp.abs(xp.sum(law, axis=1) - 1.0)
    tokens = xp.stack(rows, axis=1) if by_token else None
    return BatchLaw(law, accepted, accepted_total, tokens, error)


def total_variation(law: Array, target_probs: Array) -> Array:
    """Half the L1 distance of rows (B, V); (B,)."""
    xp = array_namespace(law, target_probs)
    return 0.5 * xp.sum(xp.abs(law - target_probs), axis=1)


def kl_divergence(law: Array, target_probs: Array) -> Array:
    """``sum M log(M / p)`` of rows in nats; infinite where ``M > 0 = p``, never below 0; (B,).

    Summed as ``M log(M/p) - M + p``, whose terms are all non-negative: the plain sum of a law that is
    exact but for rounding would be the rounding of its total.
    """
    xp = array_namespace(law, target_probs)
    where = device(law)
    one, half, zero, inf = (
        xp.asarray(v, dtype=xp.float64, device=where) for v in (1.0, 0.5, 0.0, np.inf)
    )
    both = (law > 0.0) & (target_probs > 0.0)
    m, p = (xp.where(both, values, one) for values in (law, target_probs))
    with np.errstate(over="ignore"):
        ratio = (m - p) / p
    near = xp.abs(ratio) < half
    # a target that is subnormal can make the ratio overflow; the difference of logarithms cannot
    logs = xp.where(near, xp.log1p(xp.where(near, ratio, zero)), xp.log(m) - xp.log(p))
    terms = xp.where(both, m * logs - m + p, target_probs)
    terms = xp.where((law > 0.0) & (target_probs <= 0.0), inf, terms)
    return xp.sum(xp.maximum(terms, xp.zeros_like(terms)), axis=1)


def excess(mass: Array, target_probs: Array) -> Array:
    """``sum (A - p)+`` of rows; (B,)."""
    xp = array_namespace(mass, target_probs)
    return xp.sum(xp.maximum(mass - target_probs, xp.zeros_like(mass)), axis=1)
