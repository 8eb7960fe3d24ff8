"""The path walk of ResiSpec in ratio space, as one iterative kernel.

State of a path: its weight ``w`` and its set ``E`` of rejected tokens. With ``U`` the residual times
the weight, rejecting ``x`` from ``w`` gives ``w' = w q_x - p_x`` (``w q_x`` for a token of ``E``) and, for
fill ``capacity``, ``U' = c min(w' q, p) + (1 - c) U`` off ``E``. A law is therefore a sum of terms
``c min(w q, p)`` with corrections at single tokens, and a term is two additions at the index ``k(w)``:
one to a count, one to a weighted count. Differences of prefix sums would lose mass to cancellation.

Legend: V = tokens, K = siblings, k = index of a weight in ratio order, e = a rejected token.
"""

from __future__ import annotations

from resispec_sim.engine.acceptance import close_acceptance
from resispec_sim.engine.acceptance_pairs import close_acceptance_pairs
from resispec_sim.engine.closing import (
    LIGHTEST,
    clipped_mass,
    close_capacity,
    contains,
    count_fresh,
    first_token,
    spread_share,
)
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.pairs import NOT_HANDED, close_pairs
from resispec_sim.engine.tail import index_of
from resispec_sim.engine.terms import accept_next, add_exactly, add_term
from resispec_sim.engine.water import add_level, close_pairs_water, close_water

SUM_COST = 0.1  # path-steps per token of a sum that a water level needs
VISIT_COST = 8  # path-steps that opening a state costs, measured against one step of a closed level


@kernel
def walk(
    space,
    table,
    n,
    first_weight,
    first_scale,
    theta,
    max_work,
    want_law,
    water,
    accepted,
    scratch,
    second,
    terms,
):
    """Walk every path of weight at least `theta`; lighter ones are cut off where they get lighter.

    `water` is None for fill ``capacity``: a test for None leaves the other fill out when it is compiled.
    A path that is cut off emits its residual as it stands, in row 1 of `terms`.
    ``scratch.base`` collects what multiplies p itself. Returns ``(paths, work, complete)``.
    """
    p, q = space.p, space.q
    n_zero = space.n_zero
    point = terms.point
    last = n - 1 if want_law else n - 2
    floats, counts = scratch.floats, scratch.counts
    w, share, spread0, spread1 = floats[0], floats[1], floats[2], floats[3]
    ks, pos, n_tok, is_new, tok = counts[0], counts[1], counts[2], counts[3], counts[4]
    base, base_low = scratch.base, scratch.base_low
    paths = 0
    work = 0.0
    chains = water is None and n_zero == 0 and n > 1

    for x1 in range(space.n_over):
        if first_weight[x1] <= LIGHTEST:
            continue
        scale = first_scale[x1]
        if chains and first_weight[x1] <= table.rho_low and first_weight[x1] >= theta:
            spread = _repeat(
                space,
                table,
                n,
                x1,
                first_weight[x1],
                scale,
                want_law,
                accepted,
                terms,
            )
            add_exactly(base, base_low, 0, 0, scale * spread)
            paths += n if want_law else n - 1
            work += 1.0
            continue
        level = 1
        w[1] = first_weight[x1]
        n_tok[1] = first_token(x1, space, tok)
        is_new[1] = n_tok[1]
        pos[1] = -1
        spread0[0] = 0.0
        spread1[0] = 0.0
        paths += 1
        work += 1.0
        while level > 0:
            wj = w[level]
            nt = n_tok[level]
            done = False
            cut = False
            if pos[level] < 0:
                # Entered for the first time.
                k = index_of(wj, table)
                ks[level] = k
                mass = clipped_mass(wj, k, table, space, tok, nt)
                before = w[level - 1] if level > 1 else 1.0
                room = before - mass - (p[tok[nt - 1]] if is_new[level] == 1 else 0.0)
                share[level] = spread_share(wj, mass, room)
                spread0[level] = 0.0
                spread1[level] = 0.0
                if level < n:
                    accepted.mass[level] += scale * mass
                    accept_next(level, wj, k, scale, space, tok, nt, accepted)
                if level == n:
                    # Only for n = 1: the walk closes the last level of a longer path by itself.
                    done = True
                    if water is None:
                        spread0[level] = 1.0
                    else:
                        add_level(0, scale, wj, space, tok, nt, k, terms)
                elif level > last:
                    done = True
                elif wj < theta:
                    done = True
                    cut = True
                    rest = scale * max(wj - mass, 0.0)
                    for i in range(level + 1, n):
                        accepted.lost[i] += rest
                    accepted.lost[n] += rest
                    if want_law:
                        if water is None:
                            spread1[level] = 1.0
                        else:
                            add_level(1, scale, wj, space, tok, nt, k, terms)
                elif want_law and level == n - 2:
                    done = True
                    if water is None:
                        spread0[level], spread1[level], below, cost = close_pairs(
                            space,
                            table,
                            wj,
                            k,
                            tok,
                            nt,
                            scale,
                            level + 1,
                            theta,
                            accepted,
                            scratch,
                            NOT_HANDED,
                            second,
                            terms,
                        )
                    else:
                        below, cost = close_pairs_water(
                            space,
                            table,
                            wj,
                            k,
                            tok,
                            nt,
                            scale,
                            level + 1,
                            theta,
                            accepted,
                            terms,
                        )
                    paths += below
                    work += cost
                elif level == last - 1:
                    # acceptance alone: with a law the pairs were closed above
                    done = True
                    below, cost = close_acceptance_pairs(
                        space, table, wj, k, tok, nt, scale, level + 1, theta, accepted
                    )
                    paths += below
                    work += cost
                elif level == last:
                    done = True
                    paths += count_fresh(k, tok, nt) + nt
                    if not want_law:
                        work += close_acceptance(
                            space,
                            table,
                            wj,
                            k,
                            tok,
                            nt,
                            scale,
                            level + 1,
                            accepted,
                        )
                    elif water is None:
                        spread0[level], cost = close_capacity(
                            space, table, wj, k, tok, nt, scale, scratch, second, terms
                        )
                        work += cost
                    else:
                        work += k + nt
                        close_water(space, table, wj, k, tok, nt, scale, terms)
                else:
                    pos[level] = 0
                if work + SUM_COST * terms.work[0] > max_work:
                    return paths, work, False
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
                    is_child_new = i <= k and p[x] > 0.0
                    level += 1
                    w[level] = wx
                    pos[level] = -1
                    is_new[level] = 1 if is_child_new else 0
                    n_tok[level] = nt
                    if is_child_new:
                        tok[nt] = x
                        n_tok[level] = nt + 1
                    paths += 1
                    work += VISIT_COST
                    continue
            # All descendants are done: add this state's own terms and hand its share up.
            t = share[level]
            k = ks[level]
            if want_law and water is None:
                for row in range(terms.sums.shape[0]):
                    spread = spread0[level] if row == 0 else spread1[level]
                    term = scale * (1.0 - t) * spread
                    if row == 1 and cut:
                        term -= scale
                    if spread == 0.0 and term == 0.0:
                        continue
                    add_term(terms.sums[row], k, term, term * wj)
                    for i in range(nt):
                        e = tok[i]
                        point[row, e] -= term * min(p[e], wj * q[e])
                    if is_new[level] == 1:
                        point[row, tok[nt - 1]] -= scale * t * spread * p[tok[nt - 1]]
                spread0[level - 1] += t * spread0[level]
                spread1[level - 1] += t * spread1[level]
            elif want_law and cut:
                # The next acceptance is counted where it belongs; only the rest is emitted here.
                add_term(terms.sums[1], k, -scale, -scale * wj)
                for i in range(nt):
                    e = tok[i]
                    point[1, e] += scale * min(p[e], wj * q[e])
            level -= 1
        add_exactly(base, base_low, 0, 0, scale * spread0[0])
        add_exactly(base, base_low, 1, 0, scale * spread1[0])
    return paths, work, True


@inlined
def _repeat(space, table, n, x, weight, scale, want_law, accepted, terms):
    """A first rejection after which nothing but the same token again can be rejected.

    The token is clipped on the draft's side at every weight, and so is every other: no look-up. Returns
    the path's share of p.
    """
    qx, px = space.q[x], space.p[x]
    free = max(table.rows[0, 2] - qx, 0.0)
    w = weight
    for i in range(1, n):
        accepted.mass[i] += scale * w * free
        add_term(accepted.terms[i], 0, 0.0, scale * w)
        accepted.point[i, x] -= scale * w * qx
        w *= qx
    if not want_law:
        return 0.0
    first = spread_share(weight, weight * free, 1.0 - weight * free - px)
    again = qx * (1.0 - free) / (1.0 - qx * free)
    # from the last level up: what is left of the mass of a path is spread over its parent's shape
    passed, cw = 1.0, 0.0
    for _ in range(n - 1):
        cw += (1.0 - again) * passed * w
        passed *= again
        w = w / qx if qx > 0.0 else 0.0
    cw += (1.0 - first) * passed * weight
    add_term(terms.sums[0], 0, 0.0, scale * cw)
    terms.point[0, x] -= scale * (cw * qx + first * passed * px)
    return first * passed
