"""The walk that the engine replaces: every path of rejections keeps its residual, V numbers long.

Written as one would write Algorithm 1 down, though compiled and without needless passes: what the
engine's rate is a multiple of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import njit

Floats = NDArray[np.float64]


class NaiveLaw(NamedTuple):
    """What a naive walk found.

    `output_probs` (V,) and `accepted` (K,) are the law of ResiSpec where `complete`; else the walk was
    cut after `n_steps` path-steps.
    """

    output_probs: Floats
    accepted: Floats
    n_steps: int
    complete: bool


def naive_law(
    target_probs: Floats,
    draft_probs: Floats,
    n_siblings: int,
    max_steps: int = 2**62,
) -> NaiveLaw:
    """The law of ResiSpec (fill "capacity", budget "minimal") with a dense residual per path.

    O(V) per path-step and n + 1 residuals in memory.

    Parameters
    ----------
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
    max_steps : int
        Path-steps after which the walk is cut.

    Returns
    -------
    NaiveLaw

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    >>> found = naive_law(p, q, 1)
    >>> found.output_probs.round(12).tolist(), found.n_steps
    ([0.4, 0.4, 0.2], 2)
    """
    law, accepted = np.zeros(target_probs.size), np.zeros(n_siblings)
    steps, complete = _walk(target_probs, draft_probs, n_siblings, max_steps, law, accepted)
    return NaiveLaw(law, accepted, int(steps), bool(complete))


# residuals (K + 1, V): that of the current path after j rejections; chance (K + 1,): the probability of
# those rejections; at (K + 1,): the next token to reject there
@njit
def _walk(
    p: Floats, q: Floats, n: int, max_steps: int, law: Floats, accepted: Floats
) -> tuple[int, bool]:
    residuals = np.empty((n + 1, p.size))
    chance = np.empty(n + 1)
    at = np.zeros(n + 1, np.int64)
    residuals[0] = p
    chance[0] = 1.0
    accepted[0] = _accept(residuals[0], q, 1.0, law)
    depth, steps = 0, 0
    while True:
        if at[depth] == p.size:
            if depth == 0:
                return steps, True
            depth -= 1
            continue
        x = at[depth]
        at[depth] += 1
        budget = q[x] - residuals[depth, x]
        if budget <= 0.0:
            continue
        reached = chance[depth] * budget
        if reached <= 0.0:
            continue
        if steps == max_steps:
            return steps, False
        steps += 1
        after = residuals[depth + 1]
        _reject(residuals[depth], q, x, budget, after)
        if depth + 1 == n:
            for y in range(p.size):
                law[y] += reached * after[y]
            continue
        depth += 1
        chance[depth] = reached
        at[depth] = 0
        accepted[depth] += _accept(after, q, reached, law)


@njit
def _accept(residual: Floats, q: Floats, reached: float, law: Floats) -> float:
    """Add what the next sibling has accepted, per token, to the law."""
    total = 0.0
    for y in range(q.size):
        mass = residual[y] if residual[y] < q[y] else q[y]
        law[y] += reached * mass
        total += mass
    return reached * total


@njit
def _reject(residual: Floats, q: Floats, x: int, budget: float, after: Floats) -> None:
    """The residual after the rejection of x: ``min(Z q, R)`` and a share of the room, over Z."""
    kept, room = 0.0, 0.0
    # x itself is taken out afterwards, so that the loops have no branch
    for y in range(q.size):
        limit = budget * q[y]
        low = limit if limit < residual[y] else residual[y]
        after[y] = low
        kept += low
        room += residual[y] - low
    kept -= after[x]
    room -= residual[x] - after[x]
    deficit = budget - kept
    share = min(deficit / room, 1.0) if deficit > 0.0 and room > 0.0 else 0.0
    scale = 1.0 / budget
    for y in range(q.size):
        after[y] = (after[y] + share * (residual[y] - after[y])) * scale
    after[x] = 0.0
