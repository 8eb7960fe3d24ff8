"""The last two levels of a path at once, fill capacity: nearly all states of a walk are here.

Light children are summed (see `light_pairs`), each of the others is closed by itself or, for an estimate,
handed to nodes (see `law_grid`). Legend as in `closing`.
"""

from __future__ import annotations

from resispec_sim.engine.closing import (
    BLOCK_MASK,
    HEAVY_WORK,
    LIGHTEST_SERIES,
    block_of,
    child_at,
    clipped_mass,
    close_capacity,
    count_fresh,
    is_left_out,
    last_octave,
    open_draft,
    spread_share,
)
from resispec_sim.engine.jit import inlined
from resispec_sim.engine.light_pairs import light_child, sum_light
from resispec_sim.engine.nodes import node_below, three_nodes
from resispec_sim.engine.tail import TAIL_OCTAVE, index_of, octave
from resispec_sim.engine.terms import accept_next, add_term

PAIR_SERIES_WORK = 80
HANDED_OCTAVE = 9  # heavier tokens change too much of a path that rejected them
NOT_HANDED, SHARED, PRIVATE = 0, 1, 2  # whether heavy children are handed to nodes, and to whose


@inlined
def close_pairs(
    space,
    table,
    w,
    k_end,
    tokens,
    n_tokens,
    scale,
    level,
    theta,
    accepted,
    scratch,
    handing,
    second,
    terms,
):
    """Walk all children of a state two levels from the end, and close each.

    `level` is the index of the last sibling. Children lighter than `theta` that would need a loop of
    their own are cut off. Where `handing` is not 0, those of the tail are handed to the nodes of `second`
    instead (see `law_grid`). Returns ``(spread0, spread1, steps, work)``: the sums of ``t`` times what
    hangs below, of the closed and of the cut paths, the paths, and what they cost.
    """
    p, q = space.p, space.q
    n_zero, rho_low = space.n_zero, table.rho_low
    point = terms.point
    open_q = open_draft(table, space, tokens, n_tokens)
    low_w, low_mass, low_cw, low_spread = 0.0, 0.0, 0.0, 0.0
    spread0, spread1 = 0.0, 0.0
    n_heavy, n_heavy_zero, n_below = 0, 0, 0
    series = k_end >= table.pair_from and table.moments.shape[0] > 0 and w > LIGHTEST_SERIES
    if series:
        work = PAIR_SERIES_WORK
        low_w, low_mass, low_cw, low_spread = sum_light(
            space,
            table,
            w,
            k_end,
            open_q,
            tokens,
            n_tokens,
            scale,
            scratch,
            accepted,
            terms,
        )
        for i in range(n_tokens):
            e = tokens[i]
            if e < k_end and octave(q[e]) >= TAIL_OCTAVE:
                a, b = q[e], p[e] / w
                hanging, cw = light_child(a, b, False, open_q, table, space, tokens, n_tokens)
                low_w -= w * (a - b)
                low_mass -= w * (a - b) * (open_q - a)
                low_spread -= hanging
                low_cw -= w * cw
                accepted.point[level, e] += scale * w * (a - b) * a
                point[0, e] += scale * w * (cw * a + hanging * b)
        n_blocks = last_octave(w, table) + 1
    else:
        work = k_end
        n_blocks = 1
    block_w, block_mass, block_cw, block_spread = 0.0, 0.0, 0.0, 0.0
    for o in range(n_blocks + 1):
        first, stop, again = block_of(o, n_blocks, k_end, n_tokens, series, table)
        in_series = series and o >= TAIL_OCTAVE and not again
        for at_x in range(first, stop):
            if at_x & BLOCK_MASK == 0:
                low_w += block_w
                low_mass += block_mass
                low_cw += block_cw
                low_spread += block_spread
                block_w, block_mass, block_cw, block_spread = 0.0, 0.0, 0.0, 0.0
            x, qx, px, many = child_at(at_x, again, series, k_end, tokens, table, p, q)
            if x < 0:
                break
            wx = w * qx - px
            if is_left_out(x, wx, again, in_series, rho_low, tokens, n_tokens):
                continue
            zero = x < n_zero
            if (wx <= rho_low and not again) or in_series:
                # a heavy child that the series took for a light one is taken out of it again
                sign = many if wx <= rho_low else -many
                a, b = qx, px / w
                own = 0.0 if zero else a
                hanging, cw = light_child(a, b, zero, open_q, table, space, tokens, n_tokens)
                block_w += sign * wx
                block_mass += sign * wx * (open_q - own)
                block_spread += sign * hanging
                block_cw += sign * w * cw
                if not zero:
                    accepted.point[level, x] -= sign * scale * wx * a
                    point[0, x] -= sign * scale * w * (cw * a + hanging * b)
                work += 1
                if wx <= rho_low:
                    continue
            n_heavy += 1
            if handing > 0 and o >= HANDED_OCTAVE and not again and wx >= second.weight[0]:
                spread0 += many * _hand_over(
                    x, w, wx, px, qx, tokens, n_tokens, scale * many, handing, space, second, point
                )
                work += 2
                continue
            nt = n_tokens
            if zero:
                n_heavy_zero += 1
            elif not again:
                tokens[n_tokens] = x
                nt += 1
            s0, s1, below, cost = _heavy_child(
                space,
                table,
                w,
                wx,
                px,
                x,
                tokens,
                nt,
                scale * many,
                level,
                theta,
                accepted,
                scratch,
                second,
                terms,
            )
            spread0 += many * s0
            spread1 += many * s1
            n_below += below
            work += cost
    low_w += block_w
    low_mass += block_mass
    low_cw += block_cw
    low_spread += block_spread
    accepted.mass[level] += scale * low_mass
    add_term(accepted.terms[level], n_zero, 0.0, scale * low_w)
    add_term(terms.sums[0], n_zero, 0.0, scale * low_cw)
    for i in range(n_tokens):
        e = tokens[i]
        accepted.point[level, e] -= scale * low_w * q[e]
        point[0, e] -= scale * low_cw * q[e]
    fresh = count_fresh(k_end, tokens, n_tokens)
    n_light = fresh - (n_heavy - n_tokens)
    light_zero = min(n_zero, k_end) - n_heavy_zero
    # every light child has the rejected tokens and those with p = 0 below it, and itself if p > 0
    paths = n_light * (1 + n_tokens + n_zero) + (n_light - light_zero) + n_heavy + n_below
    return spread0 + low_spread, spread1, paths, work


@inlined
def _hand_over(x, w, wx, px, qx, tokens, n_tokens, scale, handing, space, second, point):
    """Leave a rejection to the three nodes around its weight; returns its part of the spread, if known.

    A node stands for states that rejected `tokens` only: what is rejected below one of weight ``w`` is
    ``w - G``, and the amount makes up for the rejected token that the node's ``G`` still holds.
    """
    stride = second.stride
    node, before, here, after = three_nodes(wx, stride, second.weight)
    fine = node_below(wx)
    part = (wx - second.weight[fine]) / (second.weight[fine + 1] - second.weight[fine])
    mass = second.mass[fine] + part * (second.mass[fine + 1] - second.mass[fine])
    for i in range(n_tokens):
        mass -= min(space.p[tokens[i]], wx * space.q[tokens[i]])
    own = min(px, wx * qx)
    left = wx - mass
    t = spread_share(wx, mass - own, w - px - (mass - own))
    factor = (left + own) / left if left > 0.0 else 1.0
    amount = scale * factor
    kept = (1.0 - t) * amount
    spread = second.spread
    hanging = before * spread[node - stride] + here * spread[node] + after * spread[node + stride]
    for i in range(2):
        count = second.counts[i]
        share = amount if i == 0 else kept
        count[node - stride] += share * before
        count[node] += share * here
        count[node + stride] += share * after
    second.touched[0] = min(second.touched[0], node - stride)
    second.touched[1] = max(second.touched[1], node + stride)
    point[0, x] -= amount * hanging * ((1.0 - t) * own + t * px)
    return t * factor * hanging if handing == SHARED else 0.0


@inlined
def _heavy_child(
    space,
    table,
    w,
    wx,
    px,
    x,
    tokens,
    nt,
    scale,
    level,
    theta,
    accepted,
    scratch,
    second,
    terms,
):
    """A child with a loop of its own; `px` is 0 for a token that was rejected before."""
    p, q = space.p, space.q
    k = index_of(wx, table)
    mass = clipped_mass(wx, k, table, space, tokens, nt)
    accepted.mass[level] += scale * mass
    accept_next(level, wx, k, scale, space, tokens, nt, accepted)
    t = spread_share(wx, mass, w - mass - px)
    cut = wx < theta
    row = 0
    below, work = 0, HEAVY_WORK
    if cut:
        # cut off: the residual as it stands, less the acceptance that is counted already
        row = 1
        accepted.lost[level + 1] += scale * max(wx - mass, 0.0)
        hanging = 1.0
        term = -scale * t
    else:
        hanging, cost = close_capacity(
            space, table, wx, k, tokens, nt, scale, scratch, second, terms
        )
        below = count_fresh(k, tokens, nt) + nt
        work += cost
        term = scale * (1.0 - t) * hanging
    add_term(terms.sums[row], k, term, term * wx)
    for i in range(nt):
        terms.point[row, tokens[i]] -= term * min(p[tokens[i]], wx * q[tokens[i]])
    if px > 0.0:
        terms.point[row, x] -= scale * t * hanging * px
    if cut:
        return 0.0, t * hanging, below, work
    return t * hanging, 0.0, below, work
