"""Fill water: residuals as one level, and the last two levels of a path in one loop.

Legend as in `closing`; `space` and `table` are two forms of the same position.
"""

from __future__ import annotations

from resispec_sim.engine.closing import (
    BLOCK_MASK,
    HEAVY_WORK,
    LIGHTEST,
    clipped_mass,
    contains,
    count_fresh,
    open_draft,
)
from resispec_sim.engine.elementary import two_sum
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.tail import index_of
from resispec_sim.engine.terms import accept_next, add_exactly, add_term


@inlined
def prefix_off(k, space, tokens, n_tokens):
    """Sum of p before index k, rejected tokens left out, with a relative error of rounding.

    The plain difference has the error of the whole sum, which a million light paths would add up.
    """
    total = space.prefix_p[k]
    error = space.prefix_p_low[k]
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            rest = total - space.p[e]
            error += (total - rest) - space.p[e]
            total = rest
    return total + error


@inlined
def suffix_off(k, space, tokens, n_tokens):
    """Sum of q from index k on, rejected tokens left out; see `prefix_off`."""
    total = space.suffix_q[k]
    error = space.suffix_q_low[k]
    for i in range(n_tokens):
        e = tokens[i]
        if e >= k:
            rest = total - space.q[e]
            error += (total - rest) - space.q[e]
            total = rest
    return total + error


@kernel
def water_level(mass, space, tokens, n_tokens, k_start):
    """Level ``tau`` with ``sum over y not in E of min(tau q, p) = mass``.

    Returns ``(tau, k(tau), s, cost)``; where the drafted tokens cannot hold the mass they are full
    (``k`` = all of them) and the never-drafted ones get the share ``s`` of their ``p``. ``cost`` counts
    tokens that had to be summed one by one.
    """
    q, rho = space.q, space.rho
    n_drafted = space.n_drafted
    held = prefix_off(n_drafted, space, tokens, n_tokens)
    if mass >= held:
        undrafted = space.prefix_p[q.size] - space.prefix_p[n_drafted]
        share = 0.0 if undrafted <= 0.0 else min((mass - held) / undrafted, 1.0)
        return 0.0, n_drafted, max(share, 0.0), 0
    lo, hi, stride = k_start, n_drafted, 16
    # tau is at least the path's weight: gallop from there, since it is usually near.
    while lo < hi:
        k = min(lo + stride, hi - 1) if stride > 0 else (lo + hi) >> 1
        level = rho[k]
        held = prefix_off(k, space, tokens, n_tokens)
        held += level * suffix_off(k, space, tokens, n_tokens)
        if held < mass:
            lo = k + 1
            stride *= 8
        else:
            hi = k
            stride = 0
    k = lo
    below = prefix_off(k, space, tokens, n_tokens)
    slope = suffix_off(k, space, tokens, n_tokens)
    cost = 0
    if slope < 1e-6 * space.suffix_q[k]:
        # Nearly all draft mass above k is rejected: the difference has no digits left, so sum anew.
        slope = 0.0
        cost = n_drafted - k
        for y in range(k, n_drafted):
            if not contains(tokens, n_tokens, y):
                slope += q[y]
    if slope <= 0.0:
        return 0.0, k, 0.0, cost
    return max(mass - below, 0.0) / slope, k, 0.0, cost


@kernel
def add_level(row, scale, mass, space, tokens, n_tokens, k_start, terms):
    """Add ``scale`` times the water-filled residual of a path of the given mass.

    A level can be high where little draft mass is left, and a rejected token would then hold much
    more than the path's mass: what is added and left out over a million paths must cancel exactly.
    """
    tau, k, share, cost = water_level(mass, space, tokens, n_tokens, k_start)
    terms.work[0] += cost
    add_term(terms.sums[row], k, scale, scale * tau)
    for i in range(n_tokens):
        e = tokens[i]
        if e < k:
            terms.full[row, e] += scale
        else:
            add_exactly(terms.full_w, terms.full_w_low, row, e, scale * tau)
    add_exactly(terms.tail, terms.tail_low, row, 0, scale * share)


@kernel
def close_water(space, table, w, k_end, tokens, n_tokens, scale, terms):
    """Last level of a path: the final residual of each is one level."""
    p, q = space.p, space.q
    for x in range(k_end):
        if contains(tokens, n_tokens, x):
            continue
        wx = w * q[x] - p[x]
        if wx <= LIGHTEST:
            continue
        nt = n_tokens
        if p[x] > 0.0:
            tokens[n_tokens] = x
            nt += 1
        add_level(0, scale, wx, space, tokens, nt, index_of(wx, table), terms)
    for r in range(n_tokens):
        wx = w * q[tokens[r]]
        if wx <= LIGHTEST:
            continue
        add_level(0, scale, wx, space, tokens, n_tokens, index_of(wx, table), terms)


@kernel
def close_pairs_water(
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
    terms,
):
    """Walk all children of a state two levels from the end, and close each.

    `level` is the index of the last sibling. Children lighter than `theta` that would need a loop of
    their own are cut off. Returns ``(paths, work)``.
    """
    p, q = space.p, space.q
    # without tokens of p = 0 a light child has no children but the tokens rejected before
    rho_low = table.rho_low if space.n_zero == 0 else 0.0
    open_q = open_draft(table, space, tokens, n_tokens)
    low_w, low_mass, low_cw, low_cw_rest = 0.0, 0.0, 0.0, 0.0
    block_w, block_mass = 0.0, 0.0
    paths, work = 0, 0
    for at in range(k_end + n_tokens):
        if at & BLOCK_MASK == 0:
            low_w += block_w
            low_mass += block_mass
            block_w, block_mass = 0.0, 0.0
        fresh = at < k_end
        if fresh:
            x = at
            if contains(tokens, n_tokens, x):
                continue
            wx = w * q[x] - p[x]
        else:
            x = tokens[at - k_end]
            wx = w * q[x]
        if wx <= LIGHTEST:
            continue
        if fresh and wx <= rho_low:
            paths += n_tokens + 2
            work += 1
            qx = q[x]
            free = max(open_q - qx, 0.0)
            block_w += wx
            block_mass += wx * free
            accepted.point[level, x] -= scale * wx * qx
            child_cw = 0.0
            for i in range(n_tokens + 1):
                e = tokens[i] if i < n_tokens else x
                we = wx * q[e]
                if we > rho_low * free:
                    # its water level is above the lowest ratio after all
                    tokens[n_tokens] = x
                    add_level(0, scale, we, space, tokens, n_tokens + 1, 0, terms)
                elif free > 0.0:
                    child_cw += we / free
            add_exactly(terms.full_w, terms.full_w_low, 0, x, scale * child_cw)
            low_cw, low_cw_rest = two_sum(low_cw, low_cw_rest, child_cw, 0.0)
            continue
        k = index_of(wx, table)
        nt = n_tokens
        if fresh and p[x] > 0.0:
            tokens[nt] = x
            nt += 1
        mass = clipped_mass(wx, k, table, space, tokens, nt)
        accepted.mass[level] += scale * mass
        accept_next(level, wx, k, scale, space, tokens, nt, accepted)
        paths += 1
        work += HEAVY_WORK
        if wx < theta:
            # cut off: the residual as it stands, less the acceptance that is counted already
            accepted.lost[level + 1] += scale * max(wx - mass, 0.0)
            add_level(1, scale, wx, space, tokens, nt, k, terms)
            add_term(terms.sums[1], k, -scale, -scale * wx)
            for i in range(nt):
                terms.point[1, tokens[i]] += scale * min(p[tokens[i]], wx * q[tokens[i]])
            continue
        below = count_fresh(k, tokens, nt) + nt
        paths += below
        work += below
        close_water(space, table, wx, k, tokens, nt, scale, terms)
    low_w += block_w
    low_mass += block_mass
    accepted.mass[level] += scale * low_mass
    add_term(accepted.terms[level], 0, 0.0, scale * low_w)
    add_term(terms.sums[0], 0, 0.0, scale * low_cw)
    terms.sums[0, 0, 3] += scale * low_cw_rest
    for i in range(n_tokens):
        accepted.point[level, tokens[i]] -= scale * low_w * q[tokens[i]]
        add_exactly(terms.full_w, terms.full_w_low, 0, tokens[i], scale * low_cw)
        terms.full_w_low[0, tokens[i]] += scale * low_cw_rest
    return paths, work
