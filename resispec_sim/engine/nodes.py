"""Nodes on which a function of a path's weight is tabulated: 128 an octave, from 2**-120 to 1.

``m(w) = sum min(p, w q)`` is concave, so a chord between two nodes is below it and the tangents at both
are above it. Legend: N = nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.tail import Table, index_of

FloatArray = NDArray[np.float64]
NODE_SHIFT = 45
LOWEST_NODE = (1023 - 120) << 7
N_NODES = (120 << 7) + 1


class Grid(NamedTuple):
    """The concave function m on the nodes."""

    weight: FloatArray  # (N,) the node itself
    mass: FloatArray  # (N,) m there
    slope: FloatArray  # (N,) an upper bound of its slope from there on
    gap: FloatArray  # (N,) most that m passes its chord by up to the next node


class Second(NamedTuple):
    """What second rejections leave to nodes, for a law."""

    weight: FloatArray  # (N,)
    mass: FloatArray  # (N,)
    spread: (
        FloatArray  # (N,) sum of t over the last rejections below a node, nothing rejected before
    )
    counts: FloatArray  # (2, N) rejections handed to a node, and the same times 1 - t
    touched: NDArray[np.int64]  # (2,) first and last node that holds any
    third: FloatArray  # (N,) terms of last rejections, or (0,) where each goes to its own place
    stride: int  # nodes between two that are used


def new_grid(table: Table) -> Grid:
    """Tabulate m; O(N)."""
    weight = (np.arange(LOWEST_NODE, LOWEST_NODE + N_NODES) << NODE_SHIFT).view(np.float64)
    grid = Grid(weight, np.zeros(N_NODES), np.zeros(N_NODES), np.zeros(N_NODES))
    _fill_grid(table, *grid)
    return grid


def new_second(grid: Grid, stride: int, third: FloatArray) -> Second:
    """Empty counts."""
    return Second(
        grid.weight,
        grid.mass,
        np.zeros(N_NODES),
        np.zeros((2, N_NODES)),
        np.array([N_NODES, -1]),
        third,
        stride,
    )


def no_second() -> Second:
    """For a walk that hands nothing over."""
    none = np.zeros(0)
    return Second(none, none, none, np.zeros((2, 0)), np.zeros(2, np.int64), none, 1)


@inlined
def node_below(w):
    """The last node at or below a weight; negative below the grid."""
    return (np.float64(w).view(np.int64) >> NODE_SHIFT) - LOWEST_NODE


@inlined
def three_nodes(w, stride, weight):
    """The used node nearest to a weight, and what itself and its two neighbours count in a parabola."""
    half = stride >> 1
    node = (node_below(w) + half) // stride * stride
    node = min(max(node, stride), weight.size - 1 - stride)
    a, b, c = weight[node - stride], weight[node], weight[node + stride]
    first = (w - b) * (w - c) / ((a - b) * (a - c))
    last = (w - a) * (w - b) / ((c - a) * (c - b))
    return node, first, 1.0 - first - last, last


@kernel
def _fill_grid(table, weight, mass, slope, gap):
    n = weight.size
    for node in range(n):
        k = index_of(weight[node], table)
        mass[node] = table.rows[k, 1] + weight[node] * table.rows[k, 2]
        slope[node] = table.rows[k, 2]
    for node in range(n - 1):
        # the chord's largest gap is where the tangents of both ends meet
        width = weight[node + 1] - weight[node]
        rise = mass[node + 1] - mass[node]
        left, right = slope[node], slope[node + 1]
        if left > right:
            meet = min(max((rise - right * width) / (left - right), 0.0), width)
            gap[node] = max(meet * (left - rise / width), 0.0)
