"""Closing the last level of a path, fill capacity: sums over its last rejected sibling, and their terms.

A token with p = 0 is never accepted, so drawing it again is no different from drawing another one: such
tokens are never put among the rejected ones. `tokens` holds the rejected tokens of a path, the first
`n_tokens` places of it.

Legend: V = tokens, K = siblings, k = index of a weight in ratio order, e = a rejected token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.jit import inlined
from resispec_sim.engine.nodes import node_below
from resispec_sim.engine.tail import DEGREE, N_MOMENTS, TAIL_OCTAVE, index_of, octave
from resispec_sim.engine.terms import add_term

TINY = 1e-300
# Lighter paths count as none: they carry nothing that could be seen, and subnormal numbers are slow.
LIGHTEST = 1e-250
# Powers of 1/w must not overflow in a series.
LIGHTEST_SERIES = 1e-60
BLOCK_MASK = 255  # terms per block of a sum, less one
SERIES_WORK = 24  # path-steps that a series costs, measured against one step of a closed level
HEAVY_WORK = 4  # path-steps that a state with a look-up costs, against one without
# Rows of the scratch space that the series of one state need.
N_SERIES = 5
N_POWERS = 5


class Scratch(NamedTuple):
    """What a walk of up to n rejections writes to and reads again."""

    series: NDArray[np.float64]  # (6, 15)
    powers: NDArray[np.float64]  # (5, 5)
    held: NDArray[np.float64]  # (n + 1,) what rejected tokens hold of one state's terms
    floats: NDArray[np.float64]  # (4, n + 1) of the states on the path: weight, share, two spreads
    counts: NDArray[
        np.int64
    ]  # (5, n + 1) of them: k, next child, rejected tokens, is new; the tokens
    base: NDArray[np.float64]  # (2, 1) multiples of p for both rows
    base_low: NDArray[np.float64]  # (2, 1) their rounding


def new_scratch(n_siblings: int) -> Scratch:
    """Scratch space for a walk."""
    n = n_siblings + 1
    return Scratch(
        series=np.zeros((N_SERIES, N_MOMENTS)),
        powers=np.zeros((N_POWERS, DEGREE + 1)),
        held=np.zeros(n),
        floats=np.zeros((4, n)),
        counts=np.zeros((5, n), np.int64),
        base=np.zeros((2, 1)),
        base_low=np.zeros((2, 1)),
    )


@inlined
def clipped_mass(w, k, table, space, tokens, n_tokens):
    """``G_E(w) = sum over y not in E of min(p_y, w q_y)``; absolute accuracy is all that is needed."""
    mass = table.rows[k, 1] + w * table.rows[k, 2]
    for i in range(n_tokens):
        e = tokens[i]
        mass -= min(space.p[e], w * space.q[e])
    return max(mass, 0.0)


@inlined
def spread_share(weight, clipped, room):
    """``t`` of the capacity fill, the deficit over the room; the term's factor ``c`` is ``1 - t``.

    Formed from the deficit itself: as ``1 - c`` it would lose the small ones, and a path's mass with
    them. Without room the two shapes that it mixes are the same.
    """
    if room <= TINY:
        return 0.0
    return min(max(weight - clipped, 0.0) / room, 1.0)


@inlined
def contains(tokens, n_tokens, x):
    for i in range(n_tokens):
        if tokens[i] == x:
            return True
    return False


@inlined
def first_token(x, space, tokens):
    """Put the first rejected token among the rejected ones; returns how many there are."""
    if space.p[x] <= 0.0:
        return 0
    tokens[0] = x
    return 1


@inlined
def open_draft(table, space, tokens, n_tokens):
    """Draft mass of the tokens with p > 0 that were not rejected."""
    mass = table.rows[space.n_zero, 2] if space.n_zero <= space.n_over else 0.0
    for i in range(n_tokens):
        mass -= space.q[tokens[i]]
    return max(mass, 0.0)


@inlined
def last_octave(w, table):
    """Octave beyond which no child of a state is heavy."""
    lightest = max(octave(min(table.rho_low / w, 1.0)), TAIL_OCTAVE - 1)
    return min(lightest, table.deepest)


@inlined
def count_fresh(k, tokens, n_tokens):
    """Tokens below an index that were not rejected before."""
    n = k
    for i in range(n_tokens):
        if tokens[i] < k:
            n -= 1
    return n


@inlined
def zero_sums(free, table):
    """Sums of ``q / (1 - q F)`` and of q times that over the tail's tokens with p = 0."""
    power, once, twice = 1.0, 0.0, 0.0
    for i in range(1, 6):
        once += power * table.zero_moments[i]
        if i < 5:
            twice += power * table.zero_moments[i + 1]
        power *= free
    return once, twice


@inlined
def child_at(at, again, series, k_end, tokens, table, p, q):
    """``(token, q, p, how many)`` of one child in a loop over blocks; token -1 ends the block.

    A token that was rejected before counts with p = 0. Blocks are octaves where the rest is in a series.
    """
    if again:
        x = tokens[at]
        return x, q[x], 0.0, 1.0
    if not series:
        return at, q[at], p[at], 1.0
    x = np.int64(table.place[at])
    if x >= k_end:
        x = -1
    return x, table.by_octave[at, 0], table.by_octave[at, 1], table.by_octave[at, 2]


@inlined
def block_of(o, n_blocks, k_end, n_tokens, series, table):
    """``(first, stop, again)`` of one block of children; the last holds the tokens rejected before."""
    if o == n_blocks:
        return 0, n_tokens, True
    if series:
        return np.int64(table.start[o]), np.int64(table.start[o + 1]), False
    return 0, k_end, False


@inlined
def is_left_out(x, wx, again, in_series, rho_low, tokens, n_tokens):
    """Whether a child weighs nothing, is summed by a series, or comes in the last block."""
    if wx <= LIGHTEST or (in_series and wx <= rho_low):
        return True
    return not again and contains(tokens, n_tokens, x)


@inlined
def light_leaf(a, b, open_q, zero):
    """``(t, c w', f)`` of a light last child, the second and third over w; see `series`."""
    rest = 1.0 - open_q
    if zero:
        t = a * rest / (1.0 - a * open_q)
        return t, a * (1.0 - t), 0.0
    g = (a - b) / (1.0 - (a * open_q + b * rest - a * a + a * b))
    return (rest + a) * g, (1.0 - a) * g, (a * (1.0 - a) + b * (rest + a)) * g


@inlined
def heavy_leaf(x, w, qx, px, many, table, space, tokens, n_tokens, scale, held, second, terms):
    """A last child that has to be looked up, `many` of them; returns their sum of t.

    `px` is 0 for a token that was rejected before. Adds what rejected tokens held to `held`.

    Where `second` has a `third`, the look-up is a chord on its nodes, which then hold the term.
    """
    p, q = space.p, space.q
    wx = w * qx - px
    own = min(px, wx * qx)
    on_nodes = second.third.size > 0 and wx >= second.weight[0]
    k, part = 0, 0.0
    if on_nodes:
        k = node_below(wx)
        part = (wx - second.weight[k]) / (second.weight[k + 1] - second.weight[k])
        clipped = second.mass[k] + part * (second.mass[k + 1] - second.mass[k]) - own
    else:
        k = index_of(wx, table)
        clipped = table.rows[k, 1] + wx * table.rows[k, 2] - own
    for i in range(n_tokens):
        e = tokens[i]
        clipped -= min(p[e], wx * q[e])
    t = spread_share(wx, max(clipped, 0.0), w - px - clipped)
    c = many * (1.0 - t)
    if on_nodes:
        second.third[k] += scale * c * (1.0 - part)
        second.third[k + 1] += scale * c * part
    else:
        add_term(terms.sums[0], k, scale * c, scale * c * wx)
    if px > 0.0:
        terms.point[0, x] -= scale * (c * own + many * t * px)
    for i in range(n_tokens):
        e = tokens[i]
        held[i] += c * min(p[e], wx * q[e])
    return many * t


@inlined
def close_capacity(space, table, w, k_end, tokens, n_tokens, scale, scratch, second, terms):
    """All ways to reject the last sibling; returns the sum of t and the path-steps it cost."""
    p, q = space.p, space.q
    n_zero, rho_low = space.n_zero, table.rho_low
    open_q = open_draft(table, space, tokens, n_tokens)
    point, held = terms.point, scratch.held
    spread, low_cw = 0.0, 0.0
    for i in range(n_tokens):
        held[i] = 0.0
    series = k_end >= table.leaf_from and table.moments.shape[0] > 0 and w > LIGHTEST_SERIES
    n_blocks, work = 1, n_tokens
    if series:
        n_blocks, work = last_octave(w, table) + 1, SERIES_WORK
        spread, low_cw = _sum_leaves(space, table, w, k_end, open_q, scale, terms)
        for i in range(n_tokens):
            e = tokens[i]
            if e < k_end and octave(q[e]) >= TAIL_OCTAVE:
                t, cw, f = light_leaf(q[e], p[e] / w, open_q, False)
                spread -= t
                low_cw -= w * cw
                point[0, e] += scale * w * f
    # Sums of blocks: a plain sum of 1e5 equal terms is off by 1e-12.
    block_t, block_cw = 0.0, 0.0
    for o in range(n_blocks + 1):
        first, stop, again = block_of(o, n_blocks, k_end, n_tokens, series, table)
        in_series = series and o >= TAIL_OCTAVE and not again
        for at in range(first, stop):
            if at & BLOCK_MASK == 0:
                spread += block_t
                low_cw += block_cw
                block_t, block_cw = 0.0, 0.0
            x, qx, px, many = child_at(at, again, series, k_end, tokens, table, p, q)
            if x < 0:
                break
            wx = w * qx - px
            if is_left_out(x, wx, again, in_series, rho_low, tokens, n_tokens):
                continue
            work += 1
            if wx <= rho_low and again:
                t = spread_share(wx, wx * open_q, w - wx * open_q)
                block_t += t
                block_cw += (1.0 - t) * wx
                continue
            if wx <= rho_low or in_series:
                # a heavy child that the series took for a light one is taken out of it again
                sign = many if wx <= rho_low else -many
                t, cw, f = light_leaf(qx, px / w, open_q, x < n_zero)
                block_t += sign * t
                block_cw += sign * w * cw
                if px > 0.0:
                    point[0, x] -= sign * scale * w * f
                if wx <= rho_low:
                    continue
            block_t += heavy_leaf(
                x, w, qx, px, many, table, space, tokens, n_tokens, scale, held, second, terms
            )
    spread += block_t
    low_cw += block_cw
    # counts at the lowest place never matter: only tokens with p = 0 are below it
    add_term(terms.sums[0], n_zero, 0.0, scale * low_cw)
    for i in range(n_tokens):
        e = tokens[i]
        point[0, e] -= scale * (low_cw * q[e] + held[i])
    return spread, work


@inlined
def _sum_leaves(space, table, w, k, open_q, scale, terms):
    """Sums of t and of ``c w'`` over all children of the tail as if they were light, and their points.

    The series of `series` written out, since this is done once for every heavy state.
    """
    Q, r = open_q, 1.0 - open_q
    g20, g11, g02 = Q, r - Q, -r
    g30, g21, g12, g03 = Q * g20 - 1.0, Q * g11 + r * g20 + 2.0, Q * g02 + r * g11 - 1.0, r * g02
    g40, g31 = Q * g30 - g20, Q * g21 + r * g30 - g11 + g20
    g22, g13, g04 = Q * g12 + r * g21 - g02 + g11, Q * g03 + r * g12 + g02, r * g03
    m = table.moments[k]
    b1 = 1.0 / w
    b2 = b1 * b1
    b3, b4 = b2 * b1, b2 * b2
    # sums of g and of a g
    total = (m[1] - b1 * m[2]) + (g20 * m[3] + b1 * g11 * m[4] + b2 * g02 * m[5])
    total += g30 * m[6] + b1 * g21 * m[7] + b2 * g12 * m[8] + b3 * g03 * m[9]
    total += g40 * m[10] + b1 * g31 * m[11] + b2 * g22 * m[12] + b3 * g13 * m[13] + b4 * g04 * m[14]
    shifted = (m[3] - b1 * m[4]) + (g20 * m[6] + b1 * g11 * m[7] + b2 * g02 * m[8])
    shifted += g30 * m[10] + b1 * g21 * m[11] + b2 * g12 * m[12] + b3 * g03 * m[13]
    spread = r * total + shifted
    low_cw = w * (total - shifted)
    row = terms.series[k]
    s0 = -scale * w
    s1, s2, s3, s4 = s0 * b1, s0 * b2, s0 * b3, s0 * b4
    row[0] += s0
    row[1] += s1 * (r - 1.0)
    row[2] -= s2 * r
    row[3] += s0 * (g20 - 1.0)
    row[4] += s1 * (g11 + r * g20 + 2.0)
    row[5] += s2 * (g02 + r * g11 - 1.0)
    row[6] += s3 * r * g02
    row[7] += s0 * (g30 - g20)
    row[8] += s1 * (g21 - g11 + r * g30 + g20)
    row[9] += s2 * (g12 - g02 + r * g21 + g11)
    row[10] += s3 * (g03 + r * g12 + g02)
    row[11] += s4 * r * g03
    if space.n_zero > 0:
        once, twice = zero_sums(open_q, table)
        spread += r * once
        # a (1 - t) = a - a t
        low_cw += w * (table.zero_moments[1] - r * twice)
    return spread, low_cw
