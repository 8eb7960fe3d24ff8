"""The residual after three rejections, estimated on a grid, for positions with too many paths to walk.

What hangs below a rejected token depends on the path's weight and, unless it is a token of the head, hardly
on the token itself. So heavy second rejections of the tail are handed to the two nodes around their
weight, and light first rejections likewise, with amounts that keep the mass; tokens of the head are
walked. Linear interpolation between 32 nodes an octave is off by 1e-4 of what is handed over.

Legend: V = tokens, N = grid nodes, k = index of a weight in ratio order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.closing import (
    LIGHTEST,
    close_capacity,
    first_token,
    last_octave,
    new_scratch,
    spread_share,
)
from resispec_sim.engine.grid import choose_step, is_summed
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.nodes import N_NODES, Grid, new_second, node_below, three_nodes
from resispec_sim.engine.pairs import HANDED_OCTAVE, NOT_HANDED, PRIVATE, SHARED, close_pairs
from resispec_sim.engine.paths import FirstRejection
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.tail import N_OCTAVES, TAIL_OCTAVE, Table, index_of, octave
from resispec_sim.engine.terms import add_term, new_accepted, new_terms, sum_law

FloatArray = NDArray[np.float64]
SHARED_STRIDE = 8  # 16 nodes an octave for what light first rejections lead to
PRIVATE_STRIDE = 16  # 8 for what one token of the head leads to
LAW_WORK = 50_000  # path-steps up to which every node is used for first rejections
NEGLIGIBLE = 1e-6  # draft mass whose clipping on the target's side is left out
MERGE_SHIFT = 51  # 2 cells an octave of q and of p / q
PRIVATE_FROM = 300  # heavy children of a token of the head from which they are handed over


def merge_tail(space: RatioSpace, table: Table) -> Table:
    """Merge tokens of the tail with nearly the same p and q into one that counts as many.

    Sums over tokens do not use them: it is only the weights of paths that become a little coarser, and
    with means of p and q the error is of second order.
    """
    first = int(table.start[TAIL_OCTAVE])
    q, p, _ = table.by_octave[first:].T
    if not q.size:
        return table
    with np.errstate(divide="ignore"):
        key = (q.view(np.int64) >> MERGE_SHIFT) << 32
        key += np.where(p > 0, (p / q).view(np.int64) >> MERGE_SHIFT, 0)
    _, cell, many = np.unique(key, return_inverse=True, return_counts=True)
    merged = np.stack(
        (np.bincount(cell, q) / many, np.bincount(cell, p) / many, many.astype(np.float64)), axis=1
    )
    index = np.searchsorted(space.rho[: space.n_over], merged[:, 1] / merged[:, 0])
    index = np.minimum(index, space.n_over - 1)
    # what has p = 0 is told by its place
    index[merged[:, 1] == 0] = 0
    exponent = np.clip(1022 - (merged[:, 0].view(np.int64) >> 52), 0, N_OCTAVES - 1)
    order = np.lexsort((index, exponent))
    counts = np.bincount(exponent, minlength=table.start.size - 1)[TAIL_OCTAVE:]
    start = table.start.copy()
    start[TAIL_OCTAVE + 1 :] = first + np.cumsum(counts)
    return table._replace(
        by_octave=np.concatenate((table.by_octave[:first], merged[order])),
        place=np.concatenate((table.place[:first], index[order].astype(np.int32))),
        start=start.astype(np.int32),
    )


def estimate_residual(
    space: RatioSpace, table: Table, first: FirstRejection, grid: Grid
) -> tuple[FloatArray, int]:
    """Mass emitted after three rejections, by token in ratio order; and the path-steps it cost.

    Parameters
    ----------
    space : RatioSpace
    table : Table
        With moments.
    first : FirstRejection
    grid : Grid
    """
    places = space.n_over + 1
    # as if the tokens of the lowest ratios were never clipped on the target's side
    draft = space.suffix_q[space.n_zero] - space.suffix_q[space.n_zero : places]
    lowest = space.n_zero + int(np.searchsorted(draft, NEGLIGIBLE))
    rho_low = space.rho[min(lowest, space.n_over - 1)]
    table = merge_tail(space, table)
    by_weight = np.sort(space.q[: space.n_over])
    at = min(int(np.searchsorted(np.cumsum(by_weight), NEGLIGIBLE)), by_weight.size - 1)
    small = by_weight[at] if by_weight.size else 1.0
    table = table._replace(
        rho_low=max(table.rho_low, float(rho_low)), deepest=max(int(octave(small)), TAIL_OCTAVE)
    )
    terms = new_terms(space, water=False, cuts=False, series=True)
    scratch = new_scratch(3)
    third = np.zeros(N_NODES)
    work = _estimate(
        space,
        table,
        first.weight,
        first.scale,
        grid,
        np.zeros((2, N_NODES)),
        new_accepted(space, 3, series=True),
        scratch,
        new_second(grid, SHARED_STRIDE, third),
        new_second(grid, PRIVATE_STRIDE, third),
        terms,
    )
    law = sum_law(space, terms, scratch.base[:1, 0])[0]
    return np.maximum(law, 0.0), int(work)


@kernel
def _estimate(
    space,
    table,
    first_weight,
    first_scale,
    grid,
    handed,
    accepted,
    scratch,
    shared,
    private,
    terms,
):
    q = space.q
    tok = scratch.counts[4]
    work = 0
    amounts, spreads = handed[0], handed[1]
    step = choose_step(space, table, first_weight, grid, HANDED_OCTAVE, LAW_WORK, amounts)
    # no token that is handed over is heavier
    highest = node_below(2.0**-HANDED_OCTAVE) // shared.stride * shared.stride + shared.stride
    for node in range(0, highest + 1, shared.stride):
        w = grid.weight[node]
        k = index_of(w, table)
        if k > 0:
            shared.spread[node], cost = close_capacity(
                space, table, w, k, tok, 0, 0.0, scratch, shared, terms
            )
            work += cost
    for node in range(0, highest + 1, private.stride):
        private.spread[node] = shared.spread[node]
    for x in range(space.n_over):
        w, scale = first_weight[x], first_scale[x]
        if w <= LIGHTEST:
            continue
        n_tok = first_token(x, space, tok)
        k = index_of(w, table)
        node = node_below(w)
        if not is_summed(x, w, k, node, q, table, HANDED_OCTAVE):
            amount = scale * _make_up(x, w, k, table, space)
            node, before, here, after = three_nodes(w, step, grid.weight)
            amounts[node - step] += amount * before
            amounts[node] += amount * here
            amounts[node + step] += amount * after
            continue
        many = table.start[last_octave(w, table) + 1] >= PRIVATE_FROM
        spread, _, _, cost = close_pairs(
            space,
            table,
            w,
            k,
            tok,
            n_tok,
            scale,
            2,
            0.0,
            accepted,
            scratch,
            PRIVATE if many else NOT_HANDED,
            private,
            terms,
        )
        work += cost
        if many:
            passed, cost = _close_nodes(space, table, private, tok, n_tok, scratch, terms)
            spread += passed / scale
            work += cost
        _add_first(x, w, k, scale, spread, table, space, scratch.base, terms)
    for node in range(0, N_NODES, step):
        if amounts[node] != 0.0:
            w = grid.weight[node]
            spreads[node], _, _, cost = close_pairs(
                space,
                table,
                w,
                index_of(w, table),
                tok,
                0,
                amounts[node],
                2,
                0.0,
                accepted,
                scratch,
                SHARED,
                shared,
                terms,
            )
            work += cost
    _, cost = _close_nodes(space, table, shared, tok, 0, scratch, terms)
    work += cost
    for node in range(N_NODES):
        amount = shared.third[node]
        if amount != 0.0:
            w = grid.weight[node]
            add_term(terms.sums[0], index_of(w, table), amount, amount * w)
    for x in range(space.n_over):
        w, scale = first_weight[x], first_scale[x]
        if w <= LIGHTEST:
            continue
        k = index_of(w, table)
        node = node_below(w)
        if is_summed(x, w, k, node, q, table, HANDED_OCTAVE):
            continue
        node, before, here, after = three_nodes(w, step, grid.weight)
        spread = before * spreads[node - step] + here * spreads[node]
        spread += after * spreads[node + step]
        spread *= _make_up(x, w, k, table, space)
        _add_first(x, w, k, scale, spread, table, space, scratch.base, terms)
    return work


@inlined
def _make_up(x, w, k, table, space):
    """What is rejected below a first token, over what is below a node where it was not rejected."""
    mass = table.rows[k, 1] + w * table.rows[k, 2]
    own = min(space.p[x], w * space.q[x])
    return (w - mass + own) / (w - mass) if w > mass else 1.0


@inlined
def _add_first(x, w, k, scale, spread, table, space, base, terms):
    """Terms of the residual after the first rejection, which the later ones spread."""
    px = space.p[x]
    own = min(px, w * space.q[x])
    mass = table.rows[k, 1] + w * table.rows[k, 2] - own
    t = spread_share(w, mass, 1.0 - mass - px)
    term = scale * (1.0 - t) * spread
    add_term(terms.sums[0], k, term, term * w)
    terms.point[0, x] -= term * own + scale * t * spread * px
    base[0, 0] += scale * t * spread


@kernel
def _close_nodes(space, table, second, tokens, n_tokens, scratch, terms):
    """Close what was handed to the nodes; returns what the parents' shape gets of it, and the cost."""
    passed, work = 0.0, 0
    for node in range(second.touched[0], second.touched[1] + 1, second.stride):
        amount, kept = second.counts[0, node], second.counts[1, node]
        if amount == 0.0:
            continue
        w = second.weight[node]
        k = index_of(w, table)
        spread, cost = close_capacity(
            space, table, w, k, tokens, n_tokens, amount, scratch, second, terms
        )
        work += cost
        term = kept * spread
        add_term(terms.sums[0], k, term, term * w)
        for i in range(n_tokens):
            e = tokens[i]
            terms.point[0, e] -= term * min(space.p[e], w * space.q[e])
        passed += (amount - kept) * spread
        second.counts[0, node] = 0.0
        second.counts[1, node] = 0.0
    second.touched[0] = second.weight.size
    second.touched[1] = -1
    return passed, work
