"""Acceptance of three siblings between rigorous bounds, for positions with too many paths to walk.

What sibling 3 accepts after the rejections ``x1, x2`` depends on ``w2 = w1 q2 - p2`` only, rejected tokens
apart, and what it accepts after ``x1`` on ``w1`` only:

    F(w1) = sum over x2 of m(w1 q2 - p2) - own,      m(w) = sum min(p, w q).

Both are looked up on a grid. ``m`` is concave, so a chord is below it and two tangents are above it; every
summand of F is concave from ``w1 = rho2`` on. A chord is below token by token as well, so that what is
handed to the grid is a lower bound of the mass accepted of every token. First tokens of the head are not
handed to the grid, and the first token's own part is taken out exactly or bounded.

Legend: V = tokens, N = grid nodes, k = index of a weight in ratio order, G = 128 nodes an octave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.acceptance import close_acceptance
from resispec_sim.engine.closing import (
    LIGHTEST,
    clipped_mass,
    first_token,
    last_octave,
    new_scratch,
)
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.nodes import N_NODES, Grid, node_below
from resispec_sim.engine.paths import FirstRejection
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.tail import TAIL_OCTAVE, Table, index_of, octave
from resispec_sim.engine.terms import accept_next, add_term, new_accepted, sum_accepted

FloatArray = NDArray[np.float64]
# Per term of a plain sum of masses that come to 1 at most.
ROUNDING = 4.0 * np.finfo(np.float64).eps
MOST_WORK = 5_000_000  # path-steps up to which every node is summed at first
LARGEST_STEP = 16
FEW = 48  # children that are summed one by one rather than left to the grid


class Handed(NamedTuple):
    """What first rejections leave to nodes, and what the nodes come to."""

    whole: FloatArray  # (N,) for second rejections below the node's index; then their F
    cut: FloatArray  # (N,) for those below the index of the node before; then their F
    second: FloatArray  # (N,) second rejections
    values: FloatArray  # (3, N) F, its slope, its gap, for second rejections below the node's index


@dataclass(frozen=True)
class Bracket:
    """Accepted masses in ratio order."""

    low: FloatArray  # (3,)
    high: FloatArray  # (3,)
    by_token: FloatArray  # (3, V) lower bounds
    work: int


def bracket_three(
    space: RatioSpace, table: Table, first: FirstRejection, grid: Grid, tolerance: float
) -> Bracket:
    """Bounds of what each of three siblings accepts; those of the first two allow for rounding only.

    Parameters
    ----------
    space : RatioSpace
    table : Table
        With moments.
    first : FirstRejection
    grid : Grid
    tolerance : float
        Width of the bounds above which more nodes are used, as far as there are any.

    Returns
    -------
    Bracket
    """
    used = np.zeros(N_NODES)
    step = choose_step(space, table, first.weight, grid, TAIL_OCTAVE, MOST_WORK, used)
    found = _bracket_at(space, table, first, grid, step)
    work = found.work
    width = float((found.high - found.low).sum())
    while width > tolerance and step > 1:
        # the gap between a chord and its tangents goes with the square of the step
        halvings = ceil(log2(width / max(tolerance, ROUNDING)) / 2)
        step = max(step >> max(halvings, 1), 1)
        found = _bracket_at(space, table, first, grid, step)
        work += found.work
        width = float((found.high - found.low).sum())
    return replace(found, work=work)


def _bracket_at(
    space: RatioSpace, table: Table, first: FirstRejection, grid: Grid, step: int
) -> Bracket:
    accepted = new_accepted(space, 3, series=True)
    handed = Handed(np.zeros(N_NODES), np.zeros(N_NODES), np.zeros(N_NODES), np.zeros((3, N_NODES)))
    extra, work = _bracket(
        space, table, first.weight, first.scale, grid, handed, accepted, new_scratch(3), step
    )
    low, high = accepted.mass.copy(), accepted.mass.copy()
    high[2] += extra
    margin = ROUNDING * space.n_over
    low[1:] -= margin
    high[1:] += margin
    by_token = sum_accepted(space, accepted)
    by_token[1:] *= 1.0 - margin
    return Bracket(
        np.maximum(low, 0.0), np.minimum(high, 1.0), np.maximum(by_token, 0.0), int(work)
    )


@kernel
def _bracket(space, table, first_weight, first_scale, grid, handed, accepted, scratch, step):
    q = space.q
    tok = scratch.counts[4]
    work = 0
    # first pass: what has few children or a token of the head is summed, the rest handed to nodes
    for x in range(space.n_over):
        w, scale = first_weight[x], first_scale[x]
        if w <= LIGHTEST:
            continue
        n_tok = first_token(x, space, tok)
        k = index_of(w, table)
        accepted.mass[1] += scale * clipped_mass(w, k, table, space, tok, n_tok)
        accept_next(1, w, k, scale, space, tok, n_tok, accepted)
        node = node_below(w)
        if is_summed(x, w, k, node, q, table, TAIL_OCTAVE):
            work += close_acceptance(space, table, w, k, tok, n_tok, scale, 2, accepted)
            continue
        work += 1
        node = node // step * step
        part = (w - grid.weight[node]) / (grid.weight[node + step] - grid.weight[node])
        handed.whole[node] += scale * (1.0 - part)
        handed.cut[node + step] += scale * part
    below = 0
    for node in range(0, grid.weight.size, step):
        k_below = below
        below = index_of(min(grid.weight[node], 1.0), table)
        if handed.whole[node] > 0.0 or handed.cut[node] > 0.0:
            work += _sum_node(space, table, grid, handed, node, below, k_below, accepted)
    for node in range(grid.weight.size):
        amount = handed.second[node]
        if amount != 0.0:
            k = index_of(min(grid.weight[node], 1.0), table)
            add_term(accepted.terms[2], k, amount, amount * grid.weight[node])
    # second pass: the first token's own part, and how far the sum can be above its chord
    extra = 0.0
    for x in range(space.n_over):
        w, scale = first_weight[x], first_scale[x]
        if w <= LIGHTEST:
            continue
        k = index_of(w, table)
        node = node_below(w)
        if is_summed(x, w, k, node, q, table, TAIL_OCTAVE):
            continue
        node = node // step * step
        extra += scale * _own_part(
            space, table, grid, handed, x, w, k, node, node + step, scale, accepted
        )
    return extra, work


@kernel
def choose_step(space, table, first_weight, grid, head, most, used):
    """Nodes between two that first weights are handed to: 1, or more where all nodes are too many."""
    for x in range(space.n_over):
        w = first_weight[x]
        if w > LIGHTEST:
            node = node_below(w)
            if not is_summed(x, w, index_of(w, table), node, space.q, table, head):
                used[node] = 1.0
    work = 0
    for node in range(grid.weight.size):
        if used[node] > 0.0:
            w = grid.weight[node]
            work += min(index_of(w, table), np.int64(table.start[last_octave(w, table) + 1]))
            used[node] = 0.0
    step = 1
    while work > most * step and step < LARGEST_STEP:
        step *= 2
    return step


@inlined
def is_summed(x, w, k, node, q, table, head):
    """Whether a first token is summed by itself: one of the head, or with few heavy children."""
    if octave(q[x]) < head or node < 0 or k < FEW:
        return True
    return table.start[last_octave(w, table) + 1] < FEW


@kernel
def _sum_node(space, table, grid, handed, node, k_end, k_below, accepted):
    """F of a node, with what was handed to it scattered over the tokens that it is accepted as."""
    n_zero, rho_low = space.n_zero, table.rho_low
    w = grid.weight[node]
    whole, cut = handed.whole[node], handed.cut[node]
    open_q = table.rows[n_zero, 2]
    value, value_cut, slope, gap, gap_cut = 0.0, 0.0, 0.0, 0.0, 0.0
    low_w, low_w_cut = 0.0, 0.0
    for side in range(2):
        k = k_end if side == 0 else k_below
        scale = whole if side == 0 else cut
        m = table.moments[k]
        zeros = table.zero_moments[1] if k >= n_zero else 0.0
        weight = w * m[1] - m[2]
        mass = open_q * weight - (w * m[3] - m[4]) + w * zeros * open_q
        weight += w * zeros
        accepted.series[k, 0] -= scale * w
        accepted.series[k, 1] += scale
        if side == 0:
            value, low_w = mass, weight
            slope = open_q * (m[1] + zeros) - m[3]
        else:
            value_cut, low_w_cut = mass, weight
    work = 4
    for o in range(last_octave(w, table) + 1):
        for at in range(table.start[o], table.start[o + 1]):
            x = table.place[at]
            if x >= k_end:
                break
            qx, px = table.by_octave[at, 0], table.by_octave[at, 1]
            wx = w * qx - px
            tail = o >= TAIL_OCTAVE
            if wx <= LIGHTEST or (tail and wx <= rho_low):
                if not tail:
                    # it weighs nothing at the node itself, but does from there on
                    slope += qx * open_q
                continue
            scale = whole
            if x < k_below:
                scale += cut
            own_q = qx if x >= n_zero else 0.0
            work += 1
            change, point, light = 0.0, 0.0, 0.0
            steep, over = 0.0, 0.0
            if wx <= rho_low:
                light = wx
                change = wx * (open_q - own_q)
                point = wx * own_q
                steep = qx * (open_q - own_q)
            else:
                at_node = node_below(wx)
                own = min(px, wx * qx)
                if at_node < 0:
                    # below the grid: the chord from 0
                    part = wx / grid.weight[0]
                    chord = part * grid.mass[0]
                    handed.second[0] += scale * part
                    over = wx * open_q - chord
                    steep = qx * open_q
                else:
                    start = grid.weight[at_node]
                    part = (wx - start) / (grid.weight[at_node + 1] - start)
                    chord = grid.mass[at_node] + part * (
                        grid.mass[at_node + 1] - grid.mass[at_node]
                    )
                    handed.second[at_node] += scale * (1.0 - part)
                    handed.second[at_node + 1] += scale * part
                    over = grid.gap[at_node]
                    steep = qx * grid.slope[at_node]
                if wx * qx < px:
                    steep -= qx * qx
                change = chord - own
                point = own
                if tail:
                    light = -wx
                    change -= wx * (open_q - own_q)
                    point -= wx * own_q
                    steep -= qx * (open_q - own_q)
            accepted.point[2, x] -= scale * point
            value += change
            slope += steep
            gap += over
            low_w += light
            if x < k_below:
                value_cut += change
                low_w_cut += light
                gap_cut += over
    accepted.mass[2] += whole * value + cut * value_cut
    add_term(accepted.terms[2], n_zero, 0.0, whole * low_w + cut * low_w_cut)
    handed.values[0, node] = value
    handed.values[1, node] = slope
    handed.values[2, node] = gap
    # what the chord of a first weight is made of is a lower bound already
    handed.whole[node] = value
    handed.cut[node] = value_cut
    return work


@inlined
def _own_part(space, table, grid, handed, x, w, k, node, after, scale, accepted):
    """Take the first token's own part out of what was handed to the grid; returns upper less lower."""
    p, q = space.p, space.q
    qx, px = q[x], p[x]
    start = grid.weight[node]
    part = (w - start) / (grid.weight[after] - start)
    chord = (1.0 - part) * handed.whole[node] + part * handed.cut[after]
    k_node = index_of(start, table)
    # tokens that can be rejected from w on, but not from the node on
    between = w * (table.rows[k_node, 2] - table.rows[k, 2])
    between -= table.rows[k, 1] - table.rows[k_node, 1]
    above = handed.values[0, node] + handed.values[2, node] + handed.values[1, node] * (w - start)
    extra = max(above + max(between, 0.0) - chord, 0.0)
    if px <= 0.0:
        return extra
    # the same token drawn again as if it had not been rejected
    wx = w * qx - px
    if x < k_node and wx > LIGHTEST:
        at = index_of(wx, table)
        own = min(px, wx * qx)
        accepted.mass[2] -= scale * (table.rows[at, 1] + wx * table.rows[at, 2] - own)
        add_term(accepted.terms[2], at, -scale, -scale * wx)
        accepted.point[2, x] += scale * own
    # it was rejected, so it is not accepted: at most q_x w2 or p_x for each x2
    m = table.moments[k]
    weight, count = w * m[1] - m[2], m[0]
    if x < k:
        weight -= wx
        count -= 1.0
    weight += w * table.zero_moments[1]
    count += table.zero_moments[0]
    most = min(qx * weight, px * count)
    least = qx * weight if w * 2.0**-TAIL_OCTAVE * qx <= px else 0.0
    head = 0.0
    for o in range(TAIL_OCTAVE):
        for at_x in range(table.start[o], table.start[o + 1]):
            if table.place[at_x] >= k:
                break
            head += min(px, max(w * table.by_octave[at_x, 0] - table.by_octave[at_x, 1], 0.0) * qx)
    accepted.mass[2] -= scale * (head + most)
    accepted.point[2, x] -= scale * (head + most)
    extra += most - min(least, most)
    # and drawn again it is rejected with certainty
    again = w * qx
    at = index_of(again, table)
    held = min(px, again * qx)
    accepted.mass[2] += scale * (table.rows[at, 1] + again * table.rows[at, 2] - held)
    add_term(accepted.terms[2], at, scale, scale * again)
    accepted.point[2, x] -= scale * held
    return extra
