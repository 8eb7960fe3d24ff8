"""How many path-steps a walk will take, told before it starts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.closing import LIGHTEST
from resispec_sim.engine.jit import kernel, njit
from resispec_sim.engine.ratio_space import RatioSpace, count_below
from resispec_sim.engine.tail import N_OCTAVES, octave

GRID_SIZE = 48
LOG2_LOWEST = -40.0  # lighter states are counted like this one


def predict_path_steps(
    space: RatioSpace, first_weight: NDArray[np.float64], n_siblings: int
) -> float:
    """Predict the steps of the last level of a walk: exact for n <= 2, else interpolated.

    The number of paths below a state grows with its weight only (rejected tokens aside), so one table
    over weights per level holds it; a table costs O(V) for each of its 48 weights.

    Parameters
    ----------
    space : RatioSpace
    first_weight : ndarray (n_over,)
        Weights after one rejection.
    n_siblings : int

    Returns
    -------
    float
        Steps; an estimate that tends to be low by a third, or more in a small vocabulary, since rejected
        tokens that are drawn again are left out from the second on.
    """
    weights = first_weight[first_weight > 0]
    if n_siblings <= 1 or weights.size == 0:
        return float(space.n_over)
    if n_siblings == 2:
        return float(weights.size + np.searchsorted(space.rho, weights).sum())
    grid = np.linspace(LOG2_LOWEST, 0.0, GRID_SIZE)
    table = np.searchsorted(space.rho, np.exp2(grid)).astype(np.float64)
    previous = table
    for _ in range(n_siblings - 2):
        previous = table
        table = next_table(space, grid, table)
    # The first token drawn again is a path of its own; later repeats are few in a large vocabulary.
    again = weights * space.q[: first_weight.size][first_weight > 0]
    total = np.interp(np.log2(weights), grid, table).sum()
    with np.errstate(divide="ignore"):
        total += np.interp(np.log2(again), grid, previous).sum()
    return float(max(total, space.n_over, repeated_paths(space, first_weight, n_siblings)))


def count_children(space: RatioSpace, first_weight: NDArray[np.float64]) -> tuple[int, int]:
    """Pairs of rejections of tokens not rejected before, and an upper bound of those with a look-up.

    A second token's weight is at most ``w1 q2``, so few are heavier than the smallest ratio; O(V).
    """
    pairs, heavy = _count_children(space, first_weight, np.zeros(N_OCTAVES + 1, np.int64))
    return int(pairs), int(heavy)


@kernel
def _count_children(space, first_weight, up_to):
    """`up_to` becomes the number of tokens in an octave of q or a heavier one."""
    for x in range(space.n_over):
        up_to[octave(space.q[x]) + 1] += 1
    for o in range(N_OCTAVES):
        up_to[o + 1] += up_to[o]
    rho_low = space.rho[space.n_zero] if space.n_zero < space.rho.size else np.inf
    pairs, heavy = 0, 0
    for x in range(space.n_over):
        w = first_weight[x]
        if w <= 0.0:
            continue
        k = count_below(w, space.rho, space.bucket)
        pairs += k
        if w > rho_low:
            heavy += min(k, up_to[octave(rho_low / w) + 1])
    return pairs, heavy


def repeated_paths(space: RatioSpace, first_weight: NDArray[np.float64], n_siblings: int) -> float:
    """A lower bound of the paths, from repeats alone: ``r`` rejected tokens, then any of them again.

    In a small vocabulary with many siblings these are nearly all paths there are.
    """
    weight, most, rejected = float(first_weight.max()), 1.0, [int(np.argmax(first_weight))]
    while weight > LIGHTEST and len(rejected) < n_siblings:
        # each repeat multiplies the weight by a draft probability; too light a path ends
        least = float(space.q[rejected].min())
        room = np.log(weight / LIGHTEST) / -np.log(least) if least < 1.0 else np.inf
        log_paths = min(n_siblings - len(rejected), room) * np.log(len(rejected))
        most = max(most, float(np.exp(min(log_paths, 700.0))))
        end = int(np.searchsorted(space.rho, weight))
        left = weight * space.q[:end] - space.p[:end]
        left[[x for x in rejected if x < end]] = 0.0
        if not (left > 0).any():
            break
        rejected.append(int(np.argmax(left)))
        weight = float(left.max())
    return most


@njit
def next_table(space, grid, table):
    """Paths of one level more from each weight of the grid."""
    step = grid[1] - grid[0]
    result = np.empty_like(table)
    for g in range(grid.size):
        w = 2.0 ** grid[g]
        total = 0.0
        for x in range(count_below(w, space.rho, space.bucket)):
            wx = w * space.q[x] - space.p[x]
            if wx <= 0.0:
                continue
            at = (np.log2(wx) - grid[0]) / step
            if at <= 0.0:
                total += table[0]
            else:
                i = min(int(at), grid.size - 2)
                total += table[i] + (at - i) * (table[i + 1] - table[i])
        result[g] = total
    return result
