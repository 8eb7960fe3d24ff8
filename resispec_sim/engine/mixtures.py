"""Residuals as mixtures ``U = sum_j c_j min(tau_j q, p) + c p``: ResiSpec without replacement.

Without replacement the draft that a residual is clipped at grows with every rejection, so a path is more
than one weight. But clipping ``U`` at a multiple of ``q`` keeps it a mixture: with ``rho*`` the ratio at
which ``U = lambda q``, the terms below ``rho*`` stay and all others become one term at ``rho*``. The
coefficients are never negative, so sums of mixtures lose nothing to cancellation.

Legend, for one path: w = sum of U off the rejected tokens, the path's probability (or a multiple of it);
J = terms, in ascending tau; c_all multiplies p on drafted tokens, tail on those never drafted; `state`
is (J + 1, 4): c, tau, index of tau; its last row holds c_all, tail, w.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.closing import contains, spread_share
from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_look_up import index_below
from resispec_sim.engine.water import prefix_off, suffix_off, water_level

C, TAU, INDEX = 0, 1, 2
C_ALL, TAIL, W = 0, 1, 2


@njit
def value_at(y, state, n_terms, space):
    """``U(y)`` of a drafted token that was not rejected."""
    py, qy = space.p[y], space.q[y]
    value = state[-1, C_ALL] * py
    for j in range(n_terms):
        value += state[j, C] * (py if y < state[j, INDEX] else state[j, TAU] * qy)
    return value


@njit
def cut_at(clip, state, n_terms):
    """``(rho*, number of terms below it, coefficient of those above)`` of ``min(clip q, U)``."""
    flat = 0.0
    for j in range(n_terms + 1):
        slope = state[-1, C_ALL]
        for i in range(j, n_terms):
            slope += state[i, C]
        if j == n_terms or flat + slope * state[j, TAU] >= clip:
            if slope <= 0.0:
                return np.inf, j, 0.0
            return max(clip - flat, 0.0) / slope, j, slope
        flat += state[j, C] * state[j, TAU]
    return np.inf, n_terms, 0.0


@njit
def mass_below(level, index, space, tokens, n_tokens):
    """``sum min(level q, p)`` over drafted tokens that were not rejected."""
    mass = prefix_off(index, space, tokens, n_tokens)
    if index < space.n_drafted:
        mass += level * suffix_off(index, space, tokens, n_tokens)
    return max(mass, 0.0)


@njit
def open_mass(drawn, space, tokens, n_tokens):
    """Draft mass off the rejected tokens; summed anew where the difference would lose digits."""
    rest = 1.0 - drawn
    if rest >= 1e-3:
        return rest
    rest = 0.0
    for y in range(space.n_drafted):
        if not contains(tokens, n_tokens, y):
            rest += space.q[y]
    return rest


@njit
def reject(x, weight, clip, before, n_before, after, space, tokens, n_tokens, water):
    """Write the residual that follows the rejection of `x` to `after`; returns its number of terms.

    `weight` is the new path weight, `clip` its multiple of the draft; `tokens` holds x already.
    """
    if water:
        tau, index, share, _ = water_level(weight, space, tokens, n_tokens, 0)
        full = index >= space.n_drafted
        after[-1, C_ALL], after[-1, TAIL], after[-1, W] = 1.0 if full else 0.0, share, weight
        if full:
            return 0
        if tau <= 0.0 and index > 0:
            # every token that is left is full; the rejected ones above do not count
            tau = space.rho[index - 1]
        after[0, C], after[0, TAU], after[0, INDEX] = 1.0, tau, index
        return 1
    cut, n_below, above = cut_at(clip, before, n_before)
    index = index_below(cut, space.rho, space.n_drafted)
    clipped = 0.0
    for j in range(n_below):
        at = np.int64(before[j, INDEX])
        clipped += before[j, C] * mass_below(before[j, TAU], at, space, tokens, n_tokens)
        after[j] = before[j]
    if above > 0.0:
        clipped += above * mass_below(cut, index, space, tokens, n_tokens)
    room = before[-1, W] - value_at(x, before, n_before, space) - clipped
    share = spread_share(weight, clipped, room)
    n_after = n_below
    if above > 0.0 and share < 1.0:
        after[n_after, C], after[n_after, TAU] = (1.0 - share) * above, cut
        after[n_after, INDEX] = index
        n_after += 1
    if share > 0.0:
        for j in range(n_below, n_before):
            after[n_after] = before[j]
            after[n_after, C] *= share
            n_after += 1
    after[-1, C_ALL] = share * before[-1, C_ALL]
    after[-1, TAIL] = share * before[-1, TAIL]
    after[-1, W] = weight
    return n_after


@njit
def add_mixture(scale, state, n_terms, cut, n_below, above, space, tokens, n_tokens, row, sums):
    """Add ``scale`` times ``min(clip q, U)`` off the rejected tokens to row `row`; returns its mass.

    The cut is that of `cut_at`; with ``n_below = n_terms`` and ``cut = inf`` this is ``U`` itself.
    """
    mass = 0.0
    for j in range(n_below):
        tau, index = state[j, TAU], np.int64(state[j, INDEX])
        coefficient = state[j, C]
        _add_term(scale * coefficient, tau, index, space, tokens, n_tokens, row, sums)
        mass += coefficient * mass_below(tau, index, space, tokens, n_tokens)
    if above > 0.0:
        index = index_below(cut, space.rho, space.n_drafted)
        _add_term(scale * above, cut, index, space, tokens, n_tokens, row, sums)
        mass += above * mass_below(cut, index, space, tokens, n_tokens)
    return mass


@njit
def _add_term(coefficient, level, index, space, tokens, n_tokens, row, sums):
    """Add ``c min(level q, p)`` off the rejected tokens; beyond all drafted ones the level may be inf."""
    cnt, cw, point = sums
    cnt[row, index] += coefficient
    if index < space.n_drafted:
        cw[row, index] += coefficient * level
    for i in range(n_tokens):
        e = tokens[i]
        held = space.p[e] if e < index else level * space.q[e]
        point[row, e] -= coefficient * held
