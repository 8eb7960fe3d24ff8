"""The last two levels of a path at once, fill capacity: nearly all states of a walk are here.

A light child (``w' <= rho`` of all tokens with p > 0) has no children but the tokens rejected before and
those with p = 0, and what hangs below it does not depend on its weight: with ``F`` the draft mass off the
rejected tokens, a token e below it spreads ``t_e = q_e (1 - F) / (1 - q_e F)``. Legend as in `closing`.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.closing import (
    BLOCK_MASK,
    LIGHTEST,
    LIGHTEST_SERIES,
    clipped_mass,
    close_capacity,
    contains,
    count_fresh,
    last_octave,
    open_draft,
    spread_share,
)
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.nodes import node_below, three_nodes
from resispec_sim.engine.series import (
    add_points,
    at,
    fill_g,
    sum_series,
    times_linear,
    times_powers,
)
from resispec_sim.engine.tail import DEGREE, TAIL_OCTAVE, index_of, octave
from resispec_sim.engine.terms import add_term

PAIR_SERIES_WORK = 80
HEAVY_WORK = 4  # path-steps that a state with a look-up costs, against one without
HANDED_OCTAVE = 9  # heavier tokens change too much of a path that rejected them
NOT_HANDED, SHARED, PRIVATE = 0, 1, 2  # whether heavy children are handed to nodes, and to whose
# rows of the scratch space for series
G, T, TH, WHOLE, X = 0, 1, 2, 3, 4


@inlined
def below_light(free, table, space, tokens, n_tokens):
    """``(sum of t, sum of q (1 - t))`` over what can be rejected below a light state, its own token apart."""
    held = 1.0 - free
    q = space.q
    spread, weight = 0.0, 0.0
    for i in range(n_tokens):
        qe = q[tokens[i]]
        t = qe * held / (1.0 - qe * free)
        spread += t
        weight += qe * (1.0 - t)
    if space.n_zero > 0:
        for qe in table.zero_head:
            t = qe * held / (1.0 - qe * free)
            spread += t
            weight += qe * (1.0 - t)
        power, once, twice = 1.0, 0.0, 0.0
        for m in range(1, 6):
            once += power * table.zero_moments[m]
            if m < 5:
                twice += power * table.zero_moments[m + 1]
            power *= free
        spread += held * once
        weight += table.zero_moments[1] - held * twice
    return spread, weight


@inlined
def light_child(a, b, zero, open_q, table, space, tokens, n_tokens):
    """``(t H, c w' of all below over w)`` of one light child; H is the sum of t below it."""
    rest = 1.0 - open_q
    if zero:
        spread, weight = below_light(open_q, table, space, tokens, n_tokens)
        t = a * rest / (1.0 - a * open_q)
    else:
        free = open_q - a
        spread, weight = below_light(free, table, space, tokens, n_tokens)
        again = a * (rest + a) / (1.0 - a * free)
        spread += again
        weight += a * (1.0 - again)
        t = (rest + a) * (a - b) / (1.0 - (a * open_q + b * rest - a * a + a * b))
    return t * spread, (a - b) * (weight + (1.0 - t) * spread)


@kernel
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
    lost,
    acc,
    acc_point,
    acc_series,
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
        low_w, low_mass, low_cw, low_spread = _sum_light(
            space,
            table,
            w,
            k_end,
            open_q,
            tokens,
            n_tokens,
            scale,
            scratch,
            acc_series,
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
                acc_point[level, e] += scale * w * (a - b) * a
                point[0, e] += scale * w * (cw * a + hanging * b)
        n_blocks = last_octave(w, table) + 1
    else:
        work = k_end
        n_blocks = 1
    block_w, block_mass, block_cw, block_spread = 0.0, 0.0, 0.0, 0.0
    # the last block holds the tokens rejected before
    for o in range(n_blocks + 1):
        again = o == n_blocks
        first, stop = 0, k_end
        if again:
            first, stop = 0, n_tokens
        elif series:
            first, stop = np.int64(table.start[o]), np.int64(table.start[o + 1])
        for at_x in range(first, stop):
            if at_x & BLOCK_MASK == 0:
                low_w += block_w
                low_mass += block_mass
                low_cw += block_cw
                low_spread += block_spread
                block_w, block_mass, block_cw, block_spread = 0.0, 0.0, 0.0, 0.0
            many = 1.0
            if again:
                x = tokens[at_x]
                qx, px = q[x], 0.0
            elif series:
                x = np.int64(table.index[at_x])
                if x >= k_end:
                    break
                qx, px = table.by_octave[at_x, 0], table.by_octave[at_x, 1]
                many = table.by_octave[at_x, 2]
            else:
                x = at_x
                qx, px = q[x], p[x]
            wx = w * qx - px
            in_series = series and o >= TAIL_OCTAVE and not again
            if wx <= LIGHTEST or (in_series and wx <= rho_low):
                continue
            if not again and contains(tokens, n_tokens, x):
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
                    acc_point[level, x] -= sign * scale * wx * a
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
                lost,
                acc,
                acc_point,
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
    accepted[level] += scale * low_mass
    acc[level, n_zero, 1] += scale * low_w
    add_term(terms.sums[0], n_zero, 0.0, scale * low_cw)
    for i in range(n_tokens):
        e = tokens[i]
        acc_point[level, e] -= scale * low_w * q[e]
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
        count = second.count[i]
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
    lost,
    acc,
    acc_point,
    scratch,
    second,
    terms,
):
    """A child with a loop of its own; `px` is 0 for a token that was rejected before."""
    p, q = space.p, space.q
    k = index_of(wx, table)
    mass = clipped_mass(wx, k, table, space, tokens, nt)
    accepted[level] += scale * mass
    acc[level, k, 0] += scale
    acc[level, k, 1] += scale * wx
    for i in range(nt):
        acc_point[level, tokens[i]] -= scale * min(p[tokens[i]], wx * q[tokens[i]])
    t = spread_share(wx, mass, w - mass - px)
    cut = wx < theta
    row = 0
    below, work = 0, HEAVY_WORK
    if cut:
        # cut off: the residual as it stands, less the acceptance that is counted already
        row = 1
        lost[level + 1] += scale * max(wx - mass, 0.0)
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


@kernel
def _sum_light(space, table, w, k, open_q, tokens, n_tokens, scale, scratch, acc_series, terms):
    """Sums over all children of the tail as if they were light: weights, masses, c w', t H."""
    rest = 1.0 - open_q
    moments = table.moments[k]
    zeros = table.zero_moments
    powers = scratch.powers
    phi, chi, spread, held, again = powers[0], powers[1], powers[2], powers[3], powers[4]
    for m in range(DEGREE + 1):
        phi[m] = 0.0
        chi[m] = 0.0
    weight = 0.0
    for i in range(n_tokens):
        weight += _add_powers(space.q[tokens[i]], open_q, phi, chi)
    if space.n_zero > 0:
        for qe in table.zero_head:
            weight += _add_powers(qe, open_q, phi, chi)
        weight += zeros[1]
        for m in range(DEGREE + 1):
            # sum of q**(m + 1) (1 - q Q)**-(m + 1) and of q times that, as series in q Q
            factor = 1.0
            for more in range(DEGREE + 1 - m):
                phi[m] += factor * zeros[m + 1 + more]
                if m + 2 + more <= 5:
                    chi[m] += factor * zeros[m + 2 + more]
                factor *= open_q * (m + 1 + more) / (more + 1)
    # H and P, the sums of t and of q (1 - t) below a light child, as powers of a
    # its own repeat spreads a (r + a) / (1 - a Q + a**2)
    again[0], again[1] = 1.0, open_q
    for m in range(2, DEGREE + 1):
        again[m] = open_q * again[m - 1] - again[m - 2]
    own_before, sign = 0.0, 1.0
    for m in range(DEGREE + 1):
        own = (rest * again[m - 1] if m > 0 else 0.0) + (again[m - 2] if m > 1 else 0.0)
        spread[m] = sign * (rest * phi[m] - (phi[m - 1] if m > 0 else 0.0)) + own
        held[m] = -sign * (rest * chi[m] - (chi[m - 1] if m > 0 else 0.0)) - own_before
        own_before, sign = own, -sign
    held[0] += weight
    held[1] += 1.0
    series = scratch.series
    g, t, t_spread, whole = series[G], series[T], series[TH], series[WHOLE]
    fill_g(open_q, g)
    times_linear(rest, 1.0, g, t)
    times_powers(spread, t, t_spread)
    # (a - b)(P + H) - (a - b) t H
    for m in range(DEGREE + 1):
        held[m] += spread[m]
    for degree in range(DEGREE + 1):
        for j in range(degree + 1):
            i = degree - j
            value = 0.0
            if i > 0:
                value -= t_spread[at(i - 1, j)]
                if j == 0:
                    value += held[i - 1]
            if j > 0:
                value += t_spread[at(i, j - 1)]
                if j == 1:
                    value -= held[i]
            whole[at(i, j)] = value
    low_spread = sum_series(t_spread, w, moments)
    low_cw = w * sum_series(whole, w, moments)
    point = series[X]
    for degree in range(DEGREE + 1):
        for j in range(degree + 1):
            i = degree - j
            value = 0.0
            if i > 0:
                value += whole[at(i - 1, j)]
            if j > 0:
                value += t_spread[at(i, j - 1)]
            point[at(i, j)] = value
    add_points(-scale * w, point, w, terms.series[k])
    acc_series[k, 0] -= scale * w
    acc_series[k, 1] += scale
    # sums of w (a - b) and w (a - b)(Q - a)
    low_w = w * moments[1] - moments[2]
    low_mass = open_q * low_w - (w * moments[3] - moments[4])
    if space.n_zero > 0:
        low_w += w * zeros[1]
        low_mass += w * zeros[1] * open_q
        # a child with p = 0: P and H at a = 0 without its own repeat, t = a r / (1 - a Q)
        below, kept = rest * phi[0], weight - rest * chi[0]
        once, twice, power = 0.0, 0.0, 1.0
        for m in range(1, 6):
            once += power * zeros[m]
            if m < 5:
                twice += power * zeros[m + 1]
            power *= open_q
        low_spread += below * rest * once
        low_cw += w * (zeros[1] * (kept + below) - below * rest * twice)
    return low_w, low_mass, low_cw, low_spread


@kernel
def _add_powers(qe, open_q, phi, chi):
    """Powers of ``q / (1 - q Q)`` of one token that can be rejected below; returns its q."""
    unit = qe / (1.0 - qe * open_q)
    power = unit
    for m in range(DEGREE + 1):
        phi[m] += power
        chi[m] += qe * power
        power *= unit
    return qe


@kernel
def close_acceptance(
    space, table, w, k_end, tokens, n_tokens, scale, level, accepted, acc, acc_point, acc_series
):
    """Mass accepted of sibling `level` (an index), over all ways to reject the one before it.

    Returns the path-steps it cost.
    """
    p, q = space.p, space.q
    n_zero, rho_low = space.n_zero, table.rho_low
    open_q = open_draft(table, space, tokens, n_tokens)
    total, low_w, low_mass = 0.0, 0.0, 0.0
    series = k_end >= table.accept_from and table.moments.shape[0] > 0
    n_blocks, work = 1, k_end
    if series:
        moments = table.moments[k_end]
        low_w = w * moments[1] - moments[2]
        low_mass = open_q * low_w - (w * moments[3] - moments[4])
        low_w += w * table.zero_moments[1]
        low_mass += w * table.zero_moments[1] * open_q
        acc_series[k_end, 0] -= scale * w
        acc_series[k_end, 1] += scale
        for i in range(n_tokens):
            e = tokens[i]
            if e < k_end and octave(q[e]) >= TAIL_OCTAVE:
                wx = w * q[e] - p[e]
                low_w -= wx
                low_mass -= wx * (open_q - q[e])
                acc_point[level, e] += scale * wx * q[e]
        n_blocks, work = last_octave(w, table) + 1, HEAVY_WORK
    for o in range(n_blocks):
        first, stop = 0, k_end
        if series:
            first, stop = table.start[o], table.start[o + 1]
        for at_x in range(first, stop):
            if series:
                x = np.int64(table.index[at_x])
                if x >= k_end:
                    break
                qx, px = table.by_octave[at_x, 0], table.by_octave[at_x, 1]
            else:
                x = at_x
                qx, px = q[x], p[x]
            wx = w * qx - px
            in_series = series and o >= TAIL_OCTAVE
            if wx <= LIGHTEST or (in_series and wx <= rho_low):
                continue
            if contains(tokens, n_tokens, x):
                continue
            own = qx if x >= n_zero else 0.0
            if wx <= rho_low:
                low_w += wx
                low_mass += wx * max(open_q - own, 0.0)
                acc_point[level, x] -= scale * wx * own
                continue
            work += 1
            k = index_of(wx, table)
            held = min(px, wx * qx)
            mass = table.rows[k, 1] + wx * table.rows[k, 2] - held
            for i in range(n_tokens):
                e = tokens[i]
                left_out = min(p[e], wx * q[e])
                mass -= left_out
                acc_point[level, e] -= scale * left_out
            total += max(mass, 0.0)
            acc[level, k, 0] += scale
            acc[level, k, 1] += scale * wx
            if in_series:
                low_w -= wx
                low_mass -= wx * (open_q - own)
                held -= wx * own
            acc_point[level, x] -= scale * held
    for i in range(n_tokens):
        wx = w * q[tokens[i]]
        if wx <= LIGHTEST:
            continue
        k = index_of(wx, table)
        total += clipped_mass(wx, k, table, space, tokens, n_tokens)
        acc[level, k, 0] += scale
        acc[level, k, 1] += scale * wx
        for j in range(n_tokens):
            e = tokens[j]
            acc_point[level, e] -= scale * min(p[e], wx * q[e])
    accepted[level] += scale * (total + low_mass)
    acc[level, n_zero, 1] += scale * low_w
    for i in range(n_tokens):
        acc_point[level, tokens[i]] -= scale * low_w * q[tokens[i]]
    return work
