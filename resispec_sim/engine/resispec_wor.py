"""ResiSpec on siblings without replacement: every path where they are few, else drawn ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.generic import N_BATCHES, sampled_result
from resispec_sim.engine.ratio_look_up import sum_below
from resispec_sim.engine.ratio_space import RatioSpace, to_ratio_space
from resispec_sim.engine.resispec_wor_walk import predict_steps, walk_all, walk_drawn
from resispec_sim.engine.result import Outcome, check_walkable, to_token_order
from resispec_sim.rules.resispec_schemes import ResiSpecWor

FloatArray = NDArray[np.float64]

STEP_COST = 48  # path-steps of the budget that one rejection counts as
DRAWN_COST = 64  # the same for a rejection that has to be drawn
MAX_PATHS = 32_768


def resispec_wor_outcome(
    fill: str,
    target_probs: FloatArray,
    draft_probs: FloatArray,
    n_siblings: int,
    *,
    method: str = "auto",
    max_paths: float = 5e7,
    seed: int = 0,
) -> Outcome:
    """Law of ResiSpec with siblings drawn without replacement, budget "minimal".

    Parameters
    ----------
    fill : {"capacity", "water"}
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
        Where the draft has fewer tokens, siblings stop at its support.
    method : {"auto", "exact", "certified", "sampled"}
        ``auto`` walks all paths if they turn out to fit `max_paths`, else draws some; ``certified`` is
        answered as ``auto``.
    max_paths : int
        Budget of path-steps; ``exact`` disregards it.
    seed : int
        Of the sampled method.
    """
    space = to_ratio_space(target_probs, draft_probs)
    n = min(n_siblings, space.n_drafted)
    outcome: Outcome | None = None
    if method != "sampled":
        most = np.inf if method == "exact" else max_paths / STEP_COST
        predicted = predict_steps(space, n, fill == "water")
        if method == "exact":
            check_walkable(ResiSpecWor(fill), predicted)  # type: ignore[arg-type]
        if predicted <= 2 * most:
            outcome = _all_paths(space, n, fill == "water", most)
    if outcome is None:
        outcome = _drawn_paths(space, n, fill == "water", max_paths, seed)
    return to_token_order(outcome, space.order, n_siblings)


def _all_paths(space: RatioSpace, n: int, water: bool, most: float) -> Outcome | None:
    vocab = space.p.size
    sums = tuple(np.zeros((n + 1, size)) for size in (vocab + 1, vocab + 1, vocab))
    totals, tail, steps, complete = walk_all(space, n, water, most, sums)
    if not complete:
        return None
    masses = _by_token(space, sums, tail)
    by_token = np.maximum(masses[:n], 0.0)
    return Outcome(masses.sum(axis=0), totals, by_token, "exact", int(steps))


def _drawn_paths(space: RatioSpace, n: int, water: bool, max_paths: float, seed: int) -> Outcome:
    vocab = space.p.size
    most = max_paths / (DRAWN_COST * n)
    per_batch = int(np.clip(most, N_BATCHES * N_BATCHES, MAX_PATHS)) // N_BATCHES
    rng = np.random.default_rng(seed)
    prefix_q = np.concatenate(([0.0], np.cumsum(space.q)))
    masses = np.zeros((N_BATCHES, n + 1, vocab))
    for batch in range(N_BATCHES):
        uniforms = rng.random((per_batch, n))
        uniforms[:, 0] = (np.arange(per_batch) + uniforms[:, 0]) / per_batch
        sums = tuple(np.zeros((n + 1, size)) for size in (vocab + 1, vocab + 1, vocab))
        tail = walk_drawn(space, prefix_q, n, water, uniforms, sums)
        masses[batch] = _by_token(space, sums, tail)
    masses = np.maximum(masses, 0.0)
    return sampled_result(masses[:, :n], masses[:, n], per_batch * N_BATCHES)


def _by_token(space: RatioSpace, sums: tuple[FloatArray, ...], tail: float) -> FloatArray:
    """Accepted mass per sibling and, in the last row, what is emitted after the last rejection."""
    cnt, cw, point = sums
    masses = sum_below(space, cnt, cw) + point
    masses[:, space.n_drafted :] = 0.0
    masses[-1, space.n_drafted :] = tail * space.p[space.n_drafted :]
    return masses
