"""RRS without replacement from paths of rejections drawn at their own probabilities.

Every path's acceptance is a look-up and its residual depends on one multiplier, so the only noise left
is which draft mass the rejected tokens take away.
"""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.generic import N_BATCHES, sampled_result
from resispec_sim.engine.jit import njit
from resispec_sim.engine.ratio_look_up import index_below, sum_above, sum_below, uncovered
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.result import Outcome

MAX_PATHS = 16_384
LEVEL_COST = 64  # path-steps that one level of a path counts as
TINY = 1e-13  # residual mass below which what is left is rounding: paths weigh as much


def sampled_rrs_wor(
    space: RatioSpace, n_siblings: int, max_paths: float, seed: int, multiplier_scale: float
) -> Outcome:
    """Law of any number of siblings, with standard errors; rows in ratio order."""
    most = max_paths / (LEVEL_COST * n_siblings)
    per_batch = int(np.clip(most, N_BATCHES * N_BATCHES, MAX_PATHS)) // N_BATCHES
    rng = np.random.default_rng(seed)
    vocab = space.p.size
    by_token = np.zeros((N_BATCHES, n_siblings, vocab))
    rest = np.zeros((N_BATCHES, vocab))
    prefix_q = np.concatenate(([0.0], np.cumsum(space.q)))
    for batch in range(N_BATCHES):
        uniforms = rng.random((per_batch, n_siblings))
        uniforms[:, 0] = (np.arange(per_batch) + uniforms[:, 0]) / per_batch
        plus, minus = (np.zeros((2, n_siblings, vocab + 1)) for _ in range(2))
        emitted = np.zeros((2, vocab + 1))
        stuck = walk_drawn(
            space, prefix_q, n_siblings, uniforms, multiplier_scale, plus, minus, emitted
        )
        by_token[batch] = sum_below(space, *plus) - sum_below(space, *minus)
        rest[batch] = sum_above(space, *emitted) + stuck * space.p
    return sampled_result(np.maximum(by_token, 0.0), rest, per_batch * N_BATCHES)


@njit
def walk_drawn(space, prefix_q, n_siblings, uniforms, scale, plus, minus, emitted):
    """Follow paths; the sums take ``c`` and ``c l`` at the index of a level l, for each sibling."""
    q, rho, n_drafted = space.q, space.rho, space.n_drafted
    n_paths = uniforms.shape[0]
    tokens = np.zeros(n_siblings, np.int64)
    stuck = 0.0
    for path in range(n_paths):
        reach, multiplier, left, k_left = 1.0 / n_paths, 0.0, 1.0, 0
        n_tokens = 0
        open_mass = 1.0
        for i in range(n_siblings):
            if i > 0:
                before = open_mass
                open_mass -= q[tokens[n_tokens - 1]]
                if open_mass < 1e-3 * before:
                    # the difference has lost its digits: sum anew
                    open_mass = 0.0
                    for y in range(n_drafted):
                        if not _contains(tokens, n_tokens, y):
                            open_mass += q[y]
            if open_mass <= 0.0 or left <= TINY:
                break
            level = multiplier + left / open_mass
            k = index_below(level, rho, n_drafted)
            still = uncovered(level, k, space)
            plus[0, i, k] += reach / left
            plus[1, i, k] += reach / left * level
            minus[0, i, k_left] += reach / left
            minus[1, i, k_left] += reach / left * multiplier
            token = -1
            if k > 0:
                state = (level, multiplier, k_left)
                token = _draw(uniforms[path, i], k, state, prefix_q, space, tokens, n_tokens)
            if token < 0:
                reach = 0.0
                break
            reach *= min(still / left, 1.0)
            if reach <= 0.0:
                break
            tokens[n_tokens] = token
            n_tokens += 1
            multiplier += scale * left / open_mass
            k_left = index_below(multiplier, rho, n_drafted)
            left = uncovered(multiplier, k_left, space)
        if reach > 0.0 and left > TINY:
            emitted[0, k_left] += reach / left
            emitted[1, k_left] += reach / left * multiplier
        else:
            stuck += reach
    return stuck


@njit
def _draw(uniform, k, state, prefix_q, space, tokens, n_tokens):
    """Token at a quantile of the rejected mass, summed in ratio order off the rejected tokens.

    Returns -1 where nothing can be rejected.
    """
    at = uniform * _rejected_before(k, state, prefix_q, space, tokens, n_tokens)
    lo, hi = 0, k - 1
    while lo < hi:
        mid = (lo + hi) >> 1
        if _rejected_before(mid + 1, state, prefix_q, space, tokens, n_tokens) > at:
            hi = mid
        else:
            lo = mid + 1
    if not _contains(tokens, n_tokens, lo) and _rejected_at(lo, state, space) > 0.0:
        return lo
    # what is open is next to nothing beside the rejected tokens: sum it
    total, last = 0.0, -1
    for turn in range(2):
        run = 0.0
        for y in range(k):
            mass = _rejected_at(y, state, space)
            if mass <= 0.0 or _contains(tokens, n_tokens, y):
                continue
            run += mass
            last = y
            if turn == 1 and run > uniform * total:
                return y
        total = run
    return last


@njit
def _rejected_at(y, state, space):
    """Mass ``level q - max(p, multiplier q)`` of one token, up to a factor."""
    level, multiplier, k_left = state
    if y < k_left:
        return (level - multiplier) * space.q[y]
    return level * space.q[y] - space.p[y]


@njit
def _rejected_before(end, state, prefix_q, space, tokens, n_tokens):
    """The same of all tokens before `end` but the rejected ones."""
    level, multiplier, k_left = state
    mass = (level - multiplier) * prefix_q[min(end, k_left)]
    if end > k_left:
        mass += level * (prefix_q[end] - prefix_q[k_left])
        mass -= space.prefix_p[end] - space.prefix_p[k_left]
    for i in range(n_tokens):
        if tokens[i] < end:
            mass -= _rejected_at(tokens[i], state, space)
    return mass


@njit
def _contains(tokens, n_tokens, x):
    for i in range(n_tokens):
        if tokens[i] == x:
            return True
    return False
