"""The last two rejections of a walk that wants acceptance alone.

A light child (``w' <= rho`` of all tokens with p > 0) has no children but what is never accepted again: the
tokens rejected before it, itself, and those with p = 0. With ``F`` the draft mass of all others, the next
sibling has ``w' F`` accepted after it, and the one behind that ``w' (1 - F) F``. Both are polynomials in q
and p, so that all light children together are sums of moments, without a remainder.

Legend as in `closing`.
"""

from __future__ import annotations

from resispec_sim.engine.acceptance import close_acceptance
from resispec_sim.engine.closing import (
    HEAVY_WORK,
    block_of,
    child_at,
    clipped_mass,
    count_fresh,
    is_left_out,
    last_octave,
    open_draft,
)
from resispec_sim.engine.jit import inlined
from resispec_sim.engine.tail import TAIL_OCTAVE, index_of, octave
from resispec_sim.engine.terms import accept_next, add_term

SUMS_WORK = 8  # path-steps that the sums over light children cost


@inlined
def close_acceptance_pairs(space, table, w, k_end, tokens, n_tokens, scale, level, theta, accepted):
    """Mass accepted of the siblings `level` and ``level + 1``, the last, below a state.

    Children lighter than `theta` that would need a loop of their own are cut off. Returns the paths and
    what they cost.
    """
    p, q = space.p, space.q
    n_zero, rho_low = space.n_zero, table.rho_low
    last = level + 1
    open_q = open_draft(table, space, tokens, n_tokens)
    # draft mass that a light child cannot have accepted, its own apart
    shut = table.rows[0, 2] - table.rows[n_zero, 2]
    for i in range(n_tokens):
        shut += q[tokens[i]]
    # sums over light children: w', w' F, w' (1 - F), w' (1 - F) F; then what heavy ones have accepted
    low_w, low_mass, low_shut, low_last, total = 0.0, 0.0, 0.0, 0.0, 0.0
    series = k_end >= table.accept_from and table.moments.shape[0] > 0
    n_blocks, work = 1, k_end + n_tokens
    if series:
        m = table.moments[k_end]
        plain, once, twice = w * m[1] - m[2], w * m[3] - m[4], w * m[6] - m[7]
        zeros = w * table.zero_moments[1]
        low_w = plain + zeros
        low_mass = open_q * (plain + zeros) - once
        low_shut = shut * (plain + zeros) + once
        low_last = shut * open_q * (plain + zeros) + (open_q - shut) * once - twice
        accepted.before[k_end, 0] -= scale * w
        accepted.before[k_end, 1] += scale
        accepted.series[k_end, 0] -= scale * w * shut
        accepted.series[k_end, 1] += scale * shut
        for i in range(n_tokens):
            e = tokens[i]
            if e < k_end and octave(q[e]) >= TAIL_OCTAVE:
                own = q[e]
                wx = w * own - p[e]
                low_w -= wx
                low_mass -= wx * (open_q - own)
                low_shut -= wx * (shut + own)
                low_last -= wx * (shut + own) * (open_q - own)
                accepted.point[level, e] += scale * wx * own
                accepted.point[last, e] += scale * wx * (shut + own) * own
        n_blocks, work = last_octave(w, table) + 1, SUMS_WORK
    n_heavy, n_heavy_zero, n_below = n_tokens, 0, 0
    for o in range(n_blocks + 1):
        first, stop, again = block_of(o, n_blocks, k_end, n_tokens, series, table)
        in_series = series and o >= TAIL_OCTAVE and not again
        for at_x in range(first, stop):
            x, qx, px, _ = child_at(at_x, again, series, k_end, tokens, table, p, q)
            if x < 0:
                break
            wx = w * qx - px
            if is_left_out(x, wx, again, in_series, rho_low, tokens, n_tokens):
                continue
            fresh = not again and x >= n_zero
            own = qx if fresh else 0.0
            if wx <= rho_low or in_series:
                # a heavy child that the series took for a light one is taken out of it again
                light = wx if wx <= rho_low else -wx
                low_w += light
                low_mass += light * max(open_q - own, 0.0)
                low_shut += light * (shut + own)
                low_last += light * (shut + own) * max(open_q - own, 0.0)
                accepted.point[level, x] -= scale * light * own
                accepted.point[last, x] -= scale * light * (shut + own) * own
                work += 1
                if wx <= rho_low:
                    n_below += n_tokens + n_zero if again else 0
                    continue
            nt = n_tokens
            if fresh:
                tokens[n_tokens] = x
                nt += 1
            if not again:
                n_heavy += 1
                n_heavy_zero += 0 if fresh else 1
            k = index_of(wx, table)
            mass = clipped_mass(wx, k, table, space, tokens, nt)
            total += mass
            accept_next(level, wx, k, scale, space, tokens, nt, accepted)
            n_below += count_fresh(k, tokens, nt) + nt
            work += HEAVY_WORK
            if wx < theta:
                rest = scale * max(wx - mass, 0.0)
                accepted.lost[last] += rest
                accepted.lost[last + 1] += rest
                continue
            work += close_acceptance(space, table, wx, k, tokens, nt, scale, last, accepted)
    accepted.mass[level] += scale * (total + low_mass)
    accepted.mass[last] += scale * low_last
    add_term(accepted.terms[level], n_zero, 0.0, scale * low_w)
    add_term(accepted.terms[last], n_zero, 0.0, scale * low_shut)
    for i in range(n_tokens):
        e = tokens[i]
        accepted.point[level, e] -= scale * low_w * q[e]
        accepted.point[last, e] -= scale * low_shut * q[e]
    # every light child has the rejected tokens and those with p = 0 below it, and itself if p > 0
    n_light = count_fresh(k_end, tokens, n_tokens) - (n_heavy - n_tokens)
    light_zero = min(n_zero, k_end) - n_heavy_zero
    paths = n_light * (1 + n_tokens + n_zero) + (n_light - light_zero) + n_heavy + n_below
    return paths, work
