"""The path walk of ResiSpec in ratio space, as one iterative kernel.

State of a path: its weight ``w`` and its set ``E`` of rejected tokens. With ``U`` the residual times
the weight, rejecting ``x`` from ``w`` gives ``w' = w q_x - p_x`` (``w q_x`` for a token of ``E``) and, for
fill ``capacity``, ``U' = c min(w' q, p) + (1 - c) U`` off ``E``. A law is therefore a sum of terms
``c min(w q, p)`` with corrections at single tokens, and a term is two additions at the index ``k(w)``:
one to a count, one to a weighted count. Differences of prefix sums would lose mass to cancellation.

Legend: V = tokens, K = siblings, k = index of a weight in ratio order, e = a rejected token.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.jit import inline, njit
from resispec_sim.engine.ratio_space import count_below

TINY = 1e-300
VISIT_COST = 8  # path-steps that opening a state costs, measured against one step of a closed level


@inline
def clipped_mass(w, k, space, tokens, n_tokens):
    """``G_E(w) = sum over y not in E of min(p_y, w q_y)``; absolute accuracy is all that is needed."""
    mass = space.prefix_p[k] + w * space.suffix_q[k]
    for i in range(n_tokens):
        e = tokens[i]
        mass -= min(space.p[e], w * space.q[e])
    return max(mass, 0.0)


@inline
def shape_factor(room, numerator):
    """``c`` of the capacity fill. Without room the two shapes it mixes are the same."""
    if room <= TINY:
        return 1.0
    return min(numerator / room, 1.0)


@inline
def contains(tokens, n_tokens, x):
    for i in range(n_tokens):
        if tokens[i] == x:
            return True
    return False


@njit
def water_level(mass, space, tokens, n_tokens, k_start):
    """Level ``tau`` with ``sum over y not in E of min(tau q, p) = mass``.

    Returns ``(tau, k(tau), s)``; where the drafted tokens cannot hold the mass they are full
    (``k`` = all of them) and the never-drafted ones get the share ``s`` of their ``p``.
    """
    p, q, rho = space.p, space.q, space.rho
    n_drafted = space.n_drafted
    held = space.prefix_p[n_drafted]
    for i in range(n_tokens):
        if tokens[i] < n_drafted:
            held -= p[tokens[i]]
    if mass >= held:
        undrafted = space.prefix_p[p.size] - space.prefix_p[n_drafted]
        share = 0.0 if undrafted <= 0.0 else min((mass - held) / undrafted, 1.0)
        return 0.0, n_drafted, max(share, 0.0)
    lo, hi, stride = k_start, n_drafted, 16
    # tau is at least the path's weight: gallop from there, since it is usually near.
    while lo < hi:
        k = min(lo + stride, hi - 1) if stride > 0 else (lo + hi) >> 1
        level = rho[k]
        f = space.prefix_p[k] + level * space.suffix_q[k]
        for i in range(n_tokens):
            f -= min(p[tokens[i]], level * q[tokens[i]])
        if f < mass:
            lo = k + 1
            stride *= 8
        else:
            hi = k
            stride = 0
    k = lo
    below = space.prefix_p[k]
    slope = space.suffix_q[k]
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            below -= p[e]
        else:
            slope -= q[e]
    if slope < 1e-3 * space.suffix_q[k]:
        # Nearly all draft mass above k is rejected: the difference has no digits left, so sum anew.
        slope = 0.0
        for y in range(k, n_drafted):
            if not contains(tokens, n_tokens, y):
                slope += q[y]
    if slope <= 0.0:
        return 0.0, n_drafted, 0.0
    return max(mass - below, 0.0) / slope, k, 0.0


@inline
def add_level(row, scale, mass, space, tokens, n_tokens, k_start, cnt, cw, point, tail):
    """Add ``scale`` times the water-filled residual of a path of the given mass."""
    tau, k, share = water_level(mass, space, tokens, n_tokens, k_start)
    cnt[row, k] += scale
    cw[row, k] += scale * tau
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            point[row, e] -= scale * space.p[e]
        elif e < space.n_drafted:
            point[row, e] -= scale * tau * space.q[e]
    tail[row] += scale * share


@njit
def close_capacity(space, w, k_end, tokens, n_tokens, scale, cnt, cw, point):
    """Last level of a path, fill capacity: all ways to reject the last sibling. Returns sum of 1 - c."""
    p, q = space.p, space.q
    n_zero = space.n_zero
    rho_low = space.rho[n_zero] if n_zero < p.size else np.inf
    q_rejected = 0.0
    for i in range(n_tokens):
        if tokens[i] >= n_zero:
            q_rejected += q[tokens[i]]
    q_open = space.suffix_q[n_zero] - q_rejected
    spread = 0.0
    low_c = 0.0
    low_cw = 0.0
    for x in range(k_end):
        if contains(tokens, n_tokens, x):
            continue
        wx = w * q[x] - p[x]
        if wx <= 0.0:
            continue
        if wx <= rho_low:
            # Every token but those of p = 0 is clipped on the draft's side: no look-up.
            own = q[x] if x >= n_zero else 0.0
            clipped = wx * max(q_open - own, 0.0)
            c = shape_factor(w - p[x] - clipped, w * (1.0 - q[x]))
            low_c += c
            low_cw += c * wx
            point[0, x] -= scale * (c * wx * own + (1.0 - c) * p[x])
        else:
            k = count_below(wx, space.rho, space.bucket)
            clipped = clipped_mass(wx, k, space, tokens, n_tokens) - min(p[x], wx * q[x])
            c = shape_factor(w - p[x] - clipped, w * (1.0 - q[x]))
            cnt[0, k] += scale * c
            cw[0, k] += scale * c * wx
            point[0, x] -= scale * (c * min(p[x], wx * q[x]) + (1.0 - c) * p[x])
            for i in range(n_tokens):
                e = tokens[i]
                point[0, e] -= scale * c * min(p[e], wx * q[e])
        spread += 1.0 - c
    for r in range(n_tokens):
        x = tokens[r]
        wx = w * q[x]
        if wx <= 0.0:
            continue
        k = count_below(wx, space.rho, space.bucket)
        c = shape_factor(w - clipped_mass(wx, k, space, tokens, n_tokens), w * (1.0 - q[x]))
        cnt[0, k] += scale * c
        cw[0, k] += scale * c * wx
        for i in range(n_tokens):
            e = tokens[i]
            point[0, e] -= scale * c * min(p[e], wx * q[e])
        spread += 1.0 - c
    cnt[0, n_zero] += scale * low_c
    cw[0, n_zero] += scale * low_cw
    for i in range(n_tokens):
        e = tokens[i]
        if e >= n_zero:
            point[0, e] -= scale * low_cw * q[e]
    return spread


@njit
def close_water(space, w, k_end, tokens, n_tokens, scale, cnt, cw, point, tail):
    """Last level of a path, fill water: the final residual of each is one level."""
    p, q = space.p, space.q
    for x in range(k_end):
        if contains(tokens, n_tokens, x):
            continue
        wx = w * q[x] - p[x]
        if wx <= 0.0:
            continue
        tokens[n_tokens] = x
        k = count_below(wx, space.rho, space.bucket)
        add_level(0, scale, wx, space, tokens, n_tokens + 1, k, cnt, cw, point, tail)
    for r in range(n_tokens):
        wx = w * q[tokens[r]]
        if wx <= 0.0:
            continue
        k = count_below(wx, space.rho, space.bucket)
        add_level(0, scale, wx, space, tokens, n_tokens, k, cnt, cw, point, tail)


@njit
def close_acceptance(space, w, k_end, tokens, n_tokens, scale, level, accepted, cnt, cw, point):
    """Mass accepted of the sibling after the next, over all ways to reject the next one."""
    p, q = space.p, space.q
    total = 0.0
    for x in range(k_end):
        if contains(tokens, n_tokens, x):
            continue
        wx = w * q[x] - p[x]
        if wx <= 0.0:
            continue
        k = count_below(wx, space.rho, space.bucket)
        own = min(p[x], wx * q[x])
        mass = clipped_mass(wx, k, space, tokens, n_tokens) - own
        total += max(mass, 0.0)
        cnt[level, k] += scale
        cw[level, k] += scale * wx
        point[level, x] -= scale * own
        for i in range(n_tokens):
            e = tokens[i]
            point[level, e] -= scale * min(p[e], wx * q[e])
    for r in range(n_tokens):
        wx = w * q[tokens[r]]
        if wx <= 0.0:
            continue
        k = count_below(wx, space.rho, space.bucket)
        total += clipped_mass(wx, k, space, tokens, n_tokens)
        cnt[level, k] += scale
        cw[level, k] += scale * wx
        for i in range(n_tokens):
            e = tokens[i]
            point[level, e] -= scale * min(p[e], wx * q[e])
    accepted[level] += scale * total


@njit
def walk(
    space,
    n,
    first_weight,
    first_numerator,
    first_scale,
    theta,
    max_steps,
    want_law,
    water,
    accepted,
    lost,
    acc_cnt,
    acc_cw,
    acc_point,
    cnt,
    cw,
    point,
    tail,
):
    """Walk every path of weight at least `theta`; lighter ones are cut off where they fall below it.

    ``accepted``, ``lost``: (K,) accepted mass per sibling, and mass cut off before a sibling was tried.
    ``acc_*``: (K, V+1) and (K, V) terms of the accepted mass per token. ``cnt, cw, point, tail``: two rows
    of law terms, row 0 of paths that were walked to their end, row 1 of those cut off, which emit their
    residual as it stands. Returns ``(steps, base0, base1, complete)``; ``base`` multiplies p itself.
    """
    p, q = space.p, space.q
    last = n - 1 if want_law else n - 2
    w = np.zeros(n + 1)
    scale_c = np.zeros(n + 1)
    spread0 = np.zeros(n + 1)
    spread1 = np.zeros(n + 1)
    ks = np.zeros(n + 1, np.int64)
    pos = np.zeros(n + 1, np.int64)
    n_tok = np.zeros(n + 1, np.int64)
    tok = np.zeros(n + 1, np.int64)
    is_new = np.zeros(n + 1, np.bool_)
    steps = 0
    base0 = 0.0
    base1 = 0.0

    for x1 in range(space.n_over):
        if first_weight[x1] <= 0.0:
            continue
        scale = first_scale[x1]
        level = 1
        w[1] = first_weight[x1]
        tok[0] = x1
        n_tok[1] = 1
        is_new[1] = True
        pos[1] = -1
        spread0[0] = 0.0
        spread1[0] = 0.0
        steps += 1
        while level > 0:
            wj = w[level]
            nt = n_tok[level]
            done = False
            cut = False
            if pos[level] < 0:
                # Entered for the first time.
                k = count_below(wj, space.rho, space.bucket)
                ks[level] = k
                mass = clipped_mass(wj, k, space, tok, nt)
                if level == 1:
                    before, numerator = 1.0, first_numerator[x1]
                else:
                    before = w[level - 1]
                    numerator = before * (1.0 - q[tok[nt - 1]])
                    if not is_new[level]:
                        numerator = before - wj
                room = before - mass - (p[tok[nt - 1]] if is_new[level] else 0.0)
                scale_c[level] = shape_factor(room, numerator)
                spread0[level] = 0.0
                spread1[level] = 0.0
                if level < n:
                    accepted[level] += scale * mass
                    acc_cnt[level, k] += scale
                    acc_cw[level, k] += scale * wj
                    for i in range(nt):
                        e = tok[i]
                        acc_point[level, e] -= scale * min(p[e], wj * q[e])
                if level == n:
                    # Only for n = 1: the walk closes the last level of a longer path by itself.
                    done = True
                    if water:
                        add_level(0, scale, wj, space, tok, nt, k, cnt, cw, point, tail)
                    else:
                        spread0[level] = 1.0
                elif level > last:
                    done = True
                elif wj < theta:
                    done = True
                    cut = True
                    rest = scale * max(wj - mass, 0.0)
                    for i in range(level + 1, n):
                        lost[i] += rest
                    lost[n] += rest
                    if want_law:
                        if water:
                            add_level(1, scale, wj, space, tok, nt, k, cnt, cw, point, tail)
                        else:
                            spread1[level] = 1.0
                elif level == last:
                    done = True
                    steps += k + nt
                    if not want_law:
                        close_acceptance(
                            space, wj, k, tok, nt, scale, level + 1, accepted,
                            acc_cnt, acc_cw, acc_point,
                        )
                    elif water:
                        close_water(space, wj, k, tok, nt, scale, cnt, cw, point, tail)
                    else:
                        spread0[level] = close_capacity(
                            space, wj, k, tok, nt, scale, cnt, cw, point
                        )
                    if steps > max_steps:
                        return steps, base0, base1, False
                else:
                    pos[level] = 0
            if not done:
                # Next child: new tokens in ratio order, then the tokens rejected before.
                i = pos[level]
                k = ks[level]
                wx = 0.0
                x = 0
                while i < k + nt:
                    if i < k:
                        x = i
                        if not contains(tok, nt, x):
                            wx = wj * q[x] - p[x]
                    else:
                        x = tok[i - k]
                        wx = wj * q[x]
                    i += 1
                    if wx > 0.0:
                        break
                pos[level] = i
                if wx > 0.0:
                    is_child_new = i <= k
                    level += 1
                    w[level] = wx
                    pos[level] = -1
                    is_new[level] = is_child_new
                    n_tok[level] = nt
                    if is_child_new:
                        tok[nt] = x
                        n_tok[level] = nt + 1
                    else:
                        # The numerator needs q of the repeated token: w (1 - q) = w - w q.
                        pass
                    steps += VISIT_COST
                    if steps > max_steps:
                        return steps, base0, base1, False
                    continue
            # All descendants are done: add this state's own terms and hand its share up.
            c = scale_c[level]
            k = count_below(wj, space.rho, space.bucket)
            if want_law and not water:
                for row in range(2):
                    spread = spread0[level] if row == 0 else spread1[level]
                    term = scale * c * spread
                    if row == 1 and cut:
                        term -= scale
                    if spread == 0.0 and term == 0.0:
                        continue
                    cnt[row, k] += term
                    cw[row, k] += term * wj
                    for i in range(nt):
                        e = tok[i]
                        point[row, e] -= term * min(p[e], wj * q[e])
                    if is_new[level]:
                        point[row, tok[nt - 1]] -= scale * (1.0 - c) * spread * p[tok[nt - 1]]
                spread0[level - 1] += (1.0 - c) * spread0[level]
                spread1[level - 1] += (1.0 - c) * spread1[level]
            elif want_law and cut:
                # The next acceptance is counted where it belongs; only the rest is emitted here.
                cnt[1, k] -= scale
                cw[1, k] -= scale * wj
                for i in range(nt):
                    e = tok[i]
                    point[1, e] += scale * min(p[e], wj * q[e])
            level -= 1
        base0 += scale * spread0[0]
        base1 += scale * spread1[0]
    return steps, base0, base1, True
