"""The last level of a walk that wants acceptance alone: it needs one level less than a law.

Legend as in `closing`.
"""

from __future__ import annotations

from resispec_sim.engine.closing import (
    LIGHTEST,
    block_of,
    child_at,
    clipped_mass,
    is_left_out,
    last_octave,
    open_draft,
)
from resispec_sim.engine.jit import inlined
from resispec_sim.engine.tail import TAIL_OCTAVE, index_of, octave
from resispec_sim.engine.terms import accept_next, add_term

SUMS_WORK = 4  # path-steps that the sums over light children cost


@inlined
def close_acceptance(space, table, w, k_end, tokens, n_tokens, scale, level, accepted):
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
        accepted.series[k_end, 0] -= scale * w
        accepted.series[k_end, 1] += scale
        for i in range(n_tokens):
            e = tokens[i]
            if e < k_end and octave(q[e]) >= TAIL_OCTAVE:
                wx = w * q[e] - p[e]
                low_w -= wx
                low_mass -= wx * (open_q - q[e])
                accepted.point[level, e] += scale * wx * q[e]
        n_blocks, work = last_octave(w, table) + 1, SUMS_WORK
    for o in range(n_blocks):
        first, stop, _ = block_of(o, n_blocks, k_end, n_tokens, series, table)
        for at_x in range(first, stop):
            x, qx, px, _ = child_at(at_x, False, series, k_end, tokens, table, p, q)
            if x < 0:
                break
            wx = w * qx - px
            in_series = series and o >= TAIL_OCTAVE
            if is_left_out(x, wx, False, in_series, rho_low, tokens, n_tokens):
                continue
            own = qx if x >= n_zero else 0.0
            if wx <= rho_low:
                low_w += wx
                low_mass += wx * max(open_q - own, 0.0)
                accepted.point[level, x] -= scale * wx * own
                continue
            work += 1
            k = index_of(wx, table)
            held = min(px, wx * qx)
            mass = table.rows[k, 1] + wx * table.rows[k, 2] - held
            for i in range(n_tokens):
                e = tokens[i]
                left_out = min(p[e], wx * q[e])
                mass -= left_out
                accepted.point[level, e] -= scale * left_out
            total += max(mass, 0.0)
            add_term(accepted.terms[level], k, scale, scale * wx)
            if in_series:
                low_w -= wx
                low_mass -= wx * (open_q - own)
                held -= wx * own
            accepted.point[level, x] -= scale * held
    for i in range(n_tokens):
        wx = w * q[tokens[i]]
        if wx <= LIGHTEST:
            continue
        k = index_of(wx, table)
        total += clipped_mass(wx, k, table, space, tokens, n_tokens)
        accept_next(level, wx, k, scale, space, tokens, n_tokens, accepted)
    accepted.mass[level] += scale * (total + low_mass)
    add_term(accepted.terms[level], n_zero, 0.0, scale * low_w)
    for i in range(n_tokens):
        accepted.point[level, tokens[i]] -= scale * low_w * q[tokens[i]]
    return work
