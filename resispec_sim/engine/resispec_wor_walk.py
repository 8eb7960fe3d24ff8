"""Kernels over the rejection paths of ResiSpec without replacement.

Legend: i = rejections so far; states[i] = the residual after them, as in `mixtures`; row i of the sums
takes what sibling i + 1 accepts, row n what is emitted after the last rejection.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.closing import contains
from resispec_sim.engine.jit import njit
from resispec_sim.engine.mixtures import (
    C_ALL,
    INDEX,
    TAIL,
    TAU,
    C,
    W,
    add_mixture,
    cut_at,
    open_mass,
    reject,
    value_at,
)
from resispec_sim.engine.ratio_look_up import index_below

PROBES = 64
ROUNDING = 8e-16  # share of a draw below which a rejection is rounding
LIGHTEST = 1e-250  # lighter paths carry nothing that could be seen


@njit
def walk_all(space, n, water, most, sums):
    """Every path of rejections, depth first. Returns accepted masses, tail, steps and completeness."""
    states = np.zeros((n + 1, n + 2, 3))
    n_terms = np.zeros(n + 1, np.int64)
    tokens = np.zeros(n + 1, np.int64)
    drawn = np.zeros(n + 1)
    clip, end, at = np.zeros(n + 1), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    totals = np.zeros(n)
    states[0, -1, C_ALL] = states[0, -1, TAIL] = states[0, -1, W] = 1.0
    tail, steps = 0.0, 0.0
    _enter(0, 1.0, states, n_terms, tokens, drawn, clip, end, space, totals, sums)
    i = 0
    while i >= 0:
        if at[i] >= end[i]:
            i -= 1
            continue
        x = at[i]
        at[i] += 1
        if contains(tokens, i, x):
            continue
        state = states[i]
        weight = clip[i] * space.q[x] - value_at(x, state, n_terms[i], space)
        if weight <= LIGHTEST or weight <= ROUNDING * clip[i] * space.q[x]:
            continue
        steps += 1
        if steps > most:
            return totals, tail, steps, False
        tokens[i] = x
        n_terms[i + 1] = reject(
            x,
            weight,
            weight * clip[i] / state[-1, W],
            state,
            n_terms[i],
            states[i + 1],
            space,
            tokens,
            i + 1,
            water,
        )
        drawn[i + 1] = drawn[i] + space.q[x]
        if i + 1 < n:
            i += 1
            at[i] = 0
            _enter(i, 1.0, states, n_terms, tokens, drawn, clip, end, space, totals, sums)
        else:
            tail += _leave(1.0, states[n], n_terms[n], space, tokens, n, sums)
    return totals, tail, steps, True


@njit
def predict_steps(space, n, water):
    """Rejections of all paths, from how many can follow an evenly spaced choice of first ones."""
    if n == 1:
        return float(space.n_over)
    states = np.zeros((2, n + 2, 3))
    tokens = np.zeros(1, np.int64)
    states[0, -1, C_ALL] = states[0, -1, TAIL] = states[0, -1, W] = 1.0
    followers, n_probed = 0.0, 0
    for at in range(min(PROBES, space.n_over)):
        x = at * space.n_over // min(PROBES, space.n_over)
        weight = space.q[x] - space.p[x]
        if weight <= LIGHTEST:
            continue
        tokens[0] = x
        k = reject(x, weight, weight, states[0], 0, states[1], space, tokens, 1, water)
        rest = open_mass(space.q[x], space, tokens, 1)
        if rest > 0.0:
            cut, _, _ = cut_at(states[1, -1, W] / rest, states[1], k)
            followers += index_below(cut, space.rho, space.n_drafted)
        n_probed += 1
    if n_probed == 0:
        return 0.0
    steps = float(space.n_over)
    for _ in range(n - 1):
        steps *= followers / n_probed
    return steps


@njit
def walk_drawn(space, prefix_q, n, water, uniforms, sums):
    """Paths whose rejections are drawn at their own probabilities. Returns the tail."""
    states = np.zeros((n + 1, n + 2, 3))
    n_terms = np.zeros(n + 1, np.int64)
    tokens = np.zeros(n + 1, np.int64)
    drawn, clip, end = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1, np.int64)
    totals = np.zeros(n)
    n_paths = uniforms.shape[0]
    tail = 0.0
    for path in range(n_paths):
        states[0, -1, C_ALL] = states[0, -1, TAIL] = states[0, -1, W] = 1.0
        n_terms[0] = 0
        reach = 1.0 / n_paths
        for i in range(n):
            scale = reach / states[i, -1, W]
            accepted = _enter(
                i, scale, states, n_terms, tokens, drawn, clip, end, space, totals, sums
            )
            state, k = states[i], n_terms[i]
            reach *= max(1.0 - accepted / state[-1, W], 0.0)
            x = -1
            if reach > 0.0 and end[i] > 0:
                x = _draw(uniforms[path, i], i, end[i], clip[i], state, k, prefix_q, space, tokens)
            if x < 0:
                reach = 0.0
                break
            weight = clip[i] * space.q[x] - value_at(x, state, k, space)
            if weight <= LIGHTEST or weight <= ROUNDING * clip[i] * space.q[x]:
                reach = 0.0
                break
            tokens[i] = x
            n_terms[i + 1] = reject(
                x,
                weight,
                weight * clip[i] / state[-1, W],
                state,
                k,
                states[i + 1],
                space,
                tokens,
                i + 1,
                water,
            )
            drawn[i + 1] = drawn[i] + space.q[x]
        if reach > 0.0:
            scale = reach / states[n, -1, W]
            tail += scale * _leave(scale, states[n], n_terms[n], space, tokens, n, sums)
    return tail


@njit
def _enter(i, scale, states, n_terms, tokens, drawn, clip, end, space, totals, sums):
    """Test sibling i + 1 at a state: what it accepts, and where it can be rejected."""
    state, k = states[i], n_terms[i]
    rest = open_mass(drawn[i], space, tokens, i)
    if rest <= 0.0:
        clip[i], end[i] = 0.0, 0
        return 0.0
    clip[i] = state[-1, W] / rest
    cut, n_below, above = cut_at(clip[i], state, k)
    end[i] = index_below(cut, space.rho, space.n_drafted)
    accepted = add_mixture(scale, state, k, cut, n_below, above, space, tokens, i, i, sums)
    totals[i] += scale * accepted
    return accepted


@njit
def _leave(scale, state, n_terms, space, tokens, n, sums):
    """Emit the residual after the last rejection; returns its multiple of p on undrafted tokens."""
    add_mixture(scale, state, n_terms, np.inf, n_terms, state[-1, C_ALL], space, tokens, n, n, sums)
    return state[-1, TAIL]


@njit
def _draw(uniform, i, end, clip, state, n_terms, prefix_q, space, tokens):
    """Token at a quantile of the rejected mass, summed in ratio order off the rejected tokens.

    Returns -1 where nothing can be rejected.
    """
    at = uniform * _rejected_before(end, i, clip, state, n_terms, prefix_q, space, tokens)
    lo, hi = 0, end - 1
    while lo < hi:
        mid = (lo + hi) >> 1
        if _rejected_before(mid + 1, i, clip, state, n_terms, prefix_q, space, tokens) > at:
            hi = mid
        else:
            lo = mid + 1
    if not contains(tokens, i, lo) and clip * space.q[lo] > value_at(lo, state, n_terms, space):
        return lo
    # what is open is next to nothing beside the rejected tokens: sum it
    total, last = 0.0, -1
    for turn in range(2):
        run = 0.0
        for y in range(end):
            mass = clip * space.q[y] - value_at(y, state, n_terms, space)
            if mass <= 0.0 or contains(tokens, i, y):
                continue
            run += mass
            last = y
            if turn == 1 and run > uniform * total:
                return y
        total = run
    return last


@njit
def _rejected_before(end, i, clip, state, n_terms, prefix_q, space, tokens):
    """``sum (clip q - U)`` over the tokens before `end` but the i rejected ones."""
    held = state[-1, C_ALL] * space.prefix_p[end]
    for j in range(n_terms):
        low = min(end, np.int64(state[j, INDEX]))
        held += state[j, C] * (
            space.prefix_p[low] + state[j, TAU] * (prefix_q[end] - prefix_q[low])
        )
    mass = clip * prefix_q[end] - held
    for k in range(i):
        e = tokens[k]
        if e < end:
            mass -= clip * space.q[e] - value_at(e, state, n_terms, space)
    return mass
