"""The law of any rule from its definition: every path where they are few, else paths drawn at random.

Nothing here knows a rule: it follows `SequentialRule` (or `PositionRule.decide`) with dense arrays, so a
rule that a user writes has a law at once, and every engine made for one rule has a standard to meet.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine.result import (
    Outcome,
    check_accept_probs,
    check_residual,
    check_walkable,
)
from resispec_sim.rules.base import PositionRule, SequentialRule
from resispec_sim.rules.siblings import next_draw, sibling_tuples

FloatArray = NDArray[np.float64]

N_BATCHES = 16
MIN_PATHS = 256
LEAST_COST = 2000
"""Path-steps of the budget that a dense step counts as at least: what its overhead is worth."""


def generic_outcome(
    rule: PositionRule,
    target_probs: FloatArray,
    draft_probs: FloatArray,
    n_siblings: int,
    *,
    method: str,
    max_paths: float,
    seed: int,
) -> Outcome:
    """Law of any rule of one position, forward.

    Parameters
    ----------
    rule : PositionRule
    target_probs, draft_probs : ndarray (V,)
    n_siblings : int
    method : {"auto", "exact", "certified", "sampled"}
        ``auto`` walks every path where that fits `max_paths`, else draws some (``sampled``).
        ``certified`` is answered as ``auto``: there is no bound without knowing the rule.
    max_paths : int
        Budget of path-steps; a dense step counts for many. ``exact`` disregards it.
    seed : int
        Of the sampled method.

    Raises
    ------
    InputError
        If all paths are asked for and are so many that the walk would take days.
    """
    cost = dense_cost(target_probs.size)
    needed = cost_of_all(rule, draft_probs, n_siblings)
    if method == "exact" or not isinstance(rule, SequentialRule):
        check_walkable(rule, needed)
    # a rule that edits what it is given is stopped there, not believed
    target_probs, draft_probs = read_only(target_probs), read_only(draft_probs)
    few = method == "exact" or (method != "sampled" and needed <= max_paths)
    if not isinstance(rule, SequentialRule):
        return _every_tuple(rule, target_probs, draft_probs, n_siblings)
    if few:
        return _every_path(rule, target_probs, draft_probs, n_siblings)
    return _drawn_paths(rule, target_probs, draft_probs, n_siblings, max_paths / cost, seed)


def read_only(values: FloatArray) -> FloatArray:
    """A view that cannot be written to."""
    view = values.view()
    view.flags.writeable = False
    return view


def cost_of_all(rule: PositionRule, draft_probs: FloatArray, n_siblings: int) -> float:
    """Path-steps that walking every path of a rule counts as."""
    n_drafted = int(np.count_nonzero(draft_probs))
    if rule.siblings == "hub":
        n_paths = 2.0 * n_drafted
    else:
        # in logarithms: the count passes the float range before it is of any use
        log_paths = 0.0
        for i in range(0 if rule.siblings == "topk" else n_siblings):
            left = n_drafted - (i if rule.siblings == "without_replacement" else 0)
            if left <= 1 or log_paths > 700.0:
                break
            log_paths += math.log(left)
        n_paths = math.exp(log_paths) if log_paths < 700.0 else math.inf
    return n_paths * dense_cost(draft_probs.size)


def dense_cost(vocab_size: int) -> float:
    """Path-steps that one dense step counts as."""
    return max(vocab_size, LEAST_COST)


def _every_tuple(rule: PositionRule, p: FloatArray, q: FloatArray, n: int) -> Outcome:
    by_token, rest = np.zeros((n, p.size)), np.zeros(p.size)
    n_paths = 0
    for weight, siblings in sibling_tuples(rule.siblings, q, n):
        decision = rule.decide(p, q, siblings)
        chances = np.asarray(decision.accepted, dtype=np.float64)
        check_accept_probs(chances, np.ones(len(siblings)), rule.label)
        check_accept_probs(chances.sum(keepdims=True), np.ones(1), rule.label)
        left = 1.0
        for i, (token, accept) in enumerate(zip(siblings, decision.accepted, strict=True)):
            by_token[i, token] += weight * accept
            left -= accept
        rest += weight * max(left, 0.0) * check_residual(decision.residual, rule.label, weight)
        n_paths += 1
    return Outcome(by_token.sum(axis=0) + rest, by_token.sum(axis=1), by_token, "exact", n_paths)


def _every_path(rule: SequentialRule, p: FloatArray, q: FloatArray, n: int) -> Outcome:
    by_token, rest = np.zeros((n, p.size)), np.zeros(p.size)
    pending: list[tuple[float, tuple[int, ...], tuple[Any, ...]]] = [(1.0, (), rule.start(p, q, n))]
    n_paths = 0
    while pending:
        weight, drawn, state = pending.pop()
        law = next_draw(rule.siblings, q, drawn) if len(drawn) < n else None
        if law is None:
            rest += weight * check_residual(rule.last_residual(state), rule.label, weight)
            n_paths += 1
            continue
        accept = check_accept_probs(rule.accept_probs(state), law, rule.label)
        by_token[len(drawn)] += weight * law * accept
        rejected = law * (1.0 - accept)
        for token in np.flatnonzero(rejected > 0).tolist():
            after = rule.after_rejection(state, token)
            pending.append((weight * float(rejected[token]), (*drawn, token), after))
    return Outcome(by_token.sum(axis=0) + rest, by_token.sum(axis=1), by_token, "exact", n_paths)


def _drawn_paths(
    rule: SequentialRule, p: FloatArray, q: FloatArray, n: int, n_dense_steps: float, seed: int
) -> Outcome:
    """Paths of rejections at their own probabilities; the acceptance of every level is summed in full.

    The first rejections are stratified over all paths: path j of N takes the quantile (j + u)/N.
    """
    per_batch = max(int(n_dense_steps / n), MIN_PATHS) // N_BATCHES
    rng = np.random.default_rng(seed)
    by_token = np.zeros((N_BATCHES, n, p.size))
    rest = np.zeros((N_BATCHES, p.size))
    start = rule.start(p, q, n)
    for batch in range(N_BATCHES):
        strata = (np.arange(per_batch) + rng.random(per_batch)) / per_batch
        for at in strata:
            weight, state = 1.0 / per_batch, start
            drawn: tuple[int, ...] = ()
            for i in range(n):
                law = next_draw(rule.siblings, q, drawn)
                if law is None:
                    break
                accept = check_accept_probs(rule.accept_probs(state), law, rule.label)
                by_token[batch, i] += weight * law * accept
                rejected = law * (1.0 - accept)
                tokens = np.flatnonzero(rejected)
                if not len(tokens):
                    weight = 0.0
                    break
                cumulated = np.cumsum(rejected[tokens])
                weight *= float(cumulated[-1])
                level = (at if i == 0 else rng.random()) * cumulated[-1]
                place = min(int(np.searchsorted(cumulated, level, side="right")), len(tokens) - 1)
                token = int(tokens[place])
                state = rule.after_rejection(state, token)
                drawn = (*drawn, token)
            if weight > 0.0:
                rest[batch] += weight * check_residual(
                    rule.last_residual(state), rule.label, weight * per_batch
                )
    return sampled_result(by_token, rest, per_batch * N_BATCHES)


def sampled_result(by_token: FloatArray, rest: FloatArray, n_paths: int) -> Outcome:
    """Outcome of independent batches: masses (G, K, V) by token and (G, V) after the last rejection."""
    laws = by_token.sum(axis=1) + rest
    masses = by_token.sum(axis=2)
    output = laws.mean(axis=0)
    # Rejections rarer than one in all paths leave no trace in the batches: 3/N of the mass that is
    # rejected first bounds them at 95 %, and twice the error is what is claimed at that level.
    unseen = np.full(masses.shape[1], 1.5 * (1.0 - masses[:, 0].mean()) / n_paths)
    unseen[0] = 0.0
    return Outcome(
        output_probs=output / output.sum(),
        accepted=masses.mean(axis=0),
        accepted_by_token=by_token.mean(axis=0),
        method="sampled",
        n_paths=n_paths,
        stderr=np.maximum(masses.std(axis=0, ddof=1) / np.sqrt(len(masses)), unseen),
        batch_laws=laws,
        notes=(f"{n_paths} paths of rejections drawn",),
    )
