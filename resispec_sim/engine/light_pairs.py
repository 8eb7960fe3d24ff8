"""What light children two levels from the end add to a law: one by one, and all at once as series.

A light child (``w' <= rho`` of all tokens with p > 0) has no children but the tokens rejected before and
those with p = 0, and what hangs below it does not depend on its weight: with ``F`` the draft mass off the
rejected tokens, a token e below it spreads ``t_e = q_e (1 - F) / (1 - q_e F)``. Legend as in `closing`.
"""

from __future__ import annotations

from resispec_sim.engine.closing import zero_sums
from resispec_sim.engine.jit import inlined, kernel
from resispec_sim.engine.series import (
    add_points,
    at,
    fill_g,
    sum_series,
    times_linear,
    times_powers,
)
from resispec_sim.engine.tail import DEGREE

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
        once, twice = zero_sums(free, table)
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


@inlined
def sum_light(space, table, w, k, open_q, tokens, n_tokens, scale, scratch, accepted, terms):
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
    accepted.series[k, 0] -= scale * w
    accepted.series[k, 1] += scale
    # sums of w (a - b) and w (a - b)(Q - a)
    low_w = w * moments[1] - moments[2]
    low_mass = open_q * low_w - (w * moments[3] - moments[4])
    if space.n_zero > 0:
        low_w += w * zeros[1]
        low_mass += w * zeros[1] * open_q
        # a child with p = 0: P and H at a = 0 without its own repeat, t = a r / (1 - a Q)
        below, kept = rest * phi[0], weight - rest * chi[0]
        once, twice = zero_sums(open_q, table)
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
