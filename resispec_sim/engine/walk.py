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

from resispec_sim.engine.closing import (
    LIGHTEST,
    add_level,
    clipped_mass,
    close_capacity,
    close_water,
    contains,
    spread_share,
)
from resispec_sim.engine.jit import njit
from resispec_sim.engine.pairs import close_acceptance, close_pairs
from resispec_sim.engine.ratio_space import count_below
from resispec_sim.engine.terms import add_exactly

SUM_COST = 0.1  # path-steps per token of a sum that a water level needs
VISIT_COST = 8  # path-steps that opening a state costs, measured against one step of a closed level


@njit
def walk(
    space,
    n,
    first_weight,
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
    terms,
):
    """Walk every path of weight at least `theta`; lighter ones are cut off where they get lighter.

    ``accepted``, ``lost``: (K,) and (K + 1,) accepted mass per sibling, and mass that was cut off
    before a sibling was tried (last: in all). ``acc_*``: (K, V+1) and (K, V) terms of the accepted mass
    per token. ``terms``: the law; a path that is cut off emits its residual as it stands, in row 1.
    Returns ``(steps, base0, base1, complete)``; ``base`` multiplies p itself.
    """
    p, q = space.p, space.q
    point = terms.point
    last = n - 1 if want_law else n - 2
    w = np.zeros(n + 1)
    share = np.zeros(n + 1)
    spread0 = np.zeros(n + 1)
    spread1 = np.zeros(n + 1)
    ks = np.zeros(n + 1, np.int64)
    pos = np.zeros(n + 1, np.int64)
    n_tok = np.zeros(n + 1, np.int64)
    tok = np.zeros(n + 1, np.int64)
    is_new = np.zeros(n + 1, np.bool_)
    steps = 0
    base = np.zeros((2, 1))
    base_low = np.zeros((2, 1))

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
                before = w[level - 1] if level > 1 else 1.0
                room = before - mass - (p[tok[nt - 1]] if is_new[level] else 0.0)
                share[level] = spread_share(wj, mass, room)
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
                        add_level(0, scale, wj, space, tok, nt, k, terms)
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
                            add_level(1, scale, wj, space, tok, nt, k, terms)
                        else:
                            spread1[level] = 1.0
                elif want_law and level == n - 2:
                    done = True
                    spread0[level], spread1[level], visited = close_pairs(
                        space,
                        wj,
                        k,
                        tok,
                        nt,
                        scale,
                        level + 1,
                        theta,
                        water,
                        accepted,
                        lost,
                        acc_cnt,
                        acc_cw,
                        acc_point,
                        terms,
                    )
                    steps += visited
                    if steps + SUM_COST * terms.work[0] > max_steps:
                        return steps, base[0, 0], base[1, 0], False
                elif level == last:
                    done = True
                    steps += k + nt
                    if not want_law:
                        close_acceptance(
                            space,
                            wj,
                            k,
                            tok,
                            nt,
                            scale,
                            level + 1,
                            accepted,
                            acc_cnt,
                            acc_cw,
                            acc_point,
                        )
                    elif water:
                        close_water(space, wj, k, tok, nt, scale, terms)
                    else:
                        spread0[level] = close_capacity(space, wj, k, tok, nt, scale, terms)
                    if steps + SUM_COST * terms.work[0] > max_steps:
                        return steps, base[0, 0], base[1, 0], False
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
                    if wx > LIGHTEST:
                        break
                pos[level] = i
                if wx > LIGHTEST:
                    is_child_new = i <= k
                    level += 1
                    w[level] = wx
                    pos[level] = -1
                    is_new[level] = is_child_new
                    n_tok[level] = nt
                    if is_child_new:
                        tok[nt] = x
                        n_tok[level] = nt + 1
                    steps += VISIT_COST
                    if steps + SUM_COST * terms.work[0] > max_steps:
                        return steps, base[0, 0], base[1, 0], False
                    continue
            # All descendants are done: add this state's own terms and hand its share up.
            t = share[level]
            k = count_below(wj, space.rho, space.bucket)
            if want_law and not water:
                for row in range(2):
                    spread = spread0[level] if row == 0 else spread1[level]
                    term = scale * (1.0 - t) * spread
                    if row == 1 and cut:
                        term -= scale
                    if spread == 0.0 and term == 0.0:
                        continue
                    add_exactly(terms.cnt, terms.cnt_low, row, k, term)
                    add_exactly(terms.cw, terms.cw_low, row, k, term * wj)
                    for i in range(nt):
                        e = tok[i]
                        point[row, e] -= term * min(p[e], wj * q[e])
                    if is_new[level]:
                        point[row, tok[nt - 1]] -= scale * t * spread * p[tok[nt - 1]]
                spread0[level - 1] += t * spread0[level]
                spread1[level - 1] += t * spread1[level]
            elif want_law and cut:
                # The next acceptance is counted where it belongs; only the rest is emitted here.
                add_exactly(terms.cnt, terms.cnt_low, 1, k, -scale)
                add_exactly(terms.cw, terms.cw_low, 1, k, -scale * wj)
                for i in range(nt):
                    e = tok[i]
                    point[1, e] += scale * min(p[e], wj * q[e])
            level -= 1
        add_exactly(base, base_low, 0, 0, scale * spread0[0])
        add_exactly(base, base_low, 1, 0, scale * spread1[0])
    base += base_low
    return steps, base[0, 0], base[1, 0], True
