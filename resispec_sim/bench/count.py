"""Counts rejected prefixes on its own, so that no rate rests on what an engine says it did."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import njit
from resispec_sim.errors import InputError

Floats = NDArray[np.float64]

MAX_LENGTH = 3


def count_rejected_prefixes(target_probs: Floats, draft_probs: Floats, length: int) -> int:
    """The number of rejected prefixes ``(x_1 .. x_j)``, j from 1 to `length`, of ResiSpec.

    That is the definition of a path-step here: a prefix counts if its probability is positive, and once,
    however a law sums over it. The law of n siblings sums over ``j <= n``; their acceptance alone over
    ``j <= n - 1``. Nothing of the engine is used: a plain sort, and bisection for every prefix but the
    last token. O(V log V) for lengths 1 and 2, O(pairs log V) for 3.

    Parameters
    ----------
    target_probs, draft_probs : ndarray (V,)
    length : int
        1 to 3.

    Returns
    -------
    int

    Raises
    ------
    InputError
        If `length` is another one.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.5, 0.0])
    >>> [count_rejected_prefixes(p, q, n) for n in (1, 2, 3)]
    [2, 4, 6]
    """
    if length not in range(1, MAX_LENGTH + 1):
        raise InputError(f"length is {length!r}: prefixes of 1 to {MAX_LENGTH} tokens are counted")
    drafted = draft_probs > 0
    p, q = target_probs[drafted], draft_probs[drafted]
    with np.errstate(over="ignore"):
        ratio = p / q
    order = np.argsort(ratio, kind="stable")
    return int(_count(ratio[order], p[order], q[order], length))


# rho (V,): p / q ascending; w: weight of a prefix, the probability of its rejections over Z
@njit
def _count(rho: Floats, p: Floats, q: Floats, length: int) -> int:
    total = 0
    for first in range(rho.size):
        w1 = q[first] - p[first]
        if w1 <= 0.0:
            continue
        total += 1
        if length == 1:
            continue
        below = np.searchsorted(rho, w1)
        total += below - (first < below) + 1
        if length == 2:
            continue
        for second in range(below):
            w2 = w1 * q[second] - p[second]
            if second == first or w2 <= 0.0:
                continue
            third = np.searchsorted(rho, w2)
            total += third - (first < third) - (second < third) + 2
        third = np.searchsorted(rho, w1 * q[first])
        total += third - (first < third) + 1
    return total
