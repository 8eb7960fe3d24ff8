"""Acceptance per sibling along a dump, and the expected accepted length (EAL) of any tree on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray

from .checks import check_whole
from .config import REPLAY
from .dumps import Dump, Position
from .engine import Law, exact_law
from .engine.law import check_engine
from .errors import InputError
from .growmaps import GrowMap
from .parallel import check_workers, run_positions
from .progress import position_progress
from .rules import Rule
from .tree_search import check_branching
from .trees import bootstrap_ratio
from .types import Backend, Method

FloatArray = NDArray[np.float64]

SLOW_SECONDS = 30.0  # from here on a command says beforehand what it will take


@dataclass(frozen=True, eq=False)
class SiblingFigures:
    """What a rule accepts at N positions of a dump, for nodes with different numbers of children.

    Attributes
    ----------
    counts : tuple of int
        Numbers of children that a node may have.
    accepted, w : dict of int to ndarray (N, k)
        By number of children: the mass of sibling i, and ``W_i(x) = A_i(x) / p(x)`` at the recorded
        token, NaN where its p is 0. A rule that does not look ahead has one entry, the largest.
    prompts, offsets : ndarray (N,)
        Where the positions lie.
    n_not_exact : int
        Positions whose law was not walked in full at some count.
    """

    counts: tuple[int, ...]
    accepted: Mapping[int, FloatArray]
    w: Mapping[int, FloatArray]
    prompts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    n_not_exact: int

    def acceptance(self, chosen: NDArray[np.bool_]) -> dict[int, FloatArray]:
        """Mean accepted mass per number of children and sibling over the chosen positions (N,).

        Raises
        ------
        InputError
            If no position is chosen.
        """
        if not chosen.any():
            raise InputError("no position is chosen to take the acceptance from")
        return {
            k: of_count[chosen].mean(axis=0) for k, of_count in self.by_count("accepted").items()
        }

    def by_count(self, name: str) -> dict[int, FloatArray]:
        """``accepted`` or ``w`` for every number of children."""
        stored: Mapping[int, FloatArray] = getattr(self, name)
        return {k: stored.get(k, stored[max(stored)][:, :k]) for k in self.counts}


def measure_siblings(
    dump: Dump,
    rule: Rule,
    max_branching: int,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    method: Method = REPLAY.method,
    max_paths: int = REPLAY.max_paths,
    seed: int = REPLAY.seed,
    n_jobs: int = REPLAY.n_jobs,
    backend: Backend = REPLAY.backend,
    scheduler: str | None = None,
    progress: bool = False,
) -> SiblingFigures:
    """Compute a rule's laws at every position for nodes with 1 to `max_branching` children.

    A rule whose acceptance of a sibling does not depend on the siblings after it is computed once, at
    the largest count.

    Parameters
    ----------
    dump : Dump
    rule : Rule
    max_branching : int
        Children of a node at most; counts that the rule is not defined for are left out.
    temperature, top_k, top_p : optional
        Default: the dump's own.
    method, max_paths, seed
        Passed on to the engine.
    n_jobs, backend, scheduler
        As in `resispec_sim.replay`; the figures do not depend on them.
    progress : bool
        Show a progress bar on stderr.

    Raises
    ------
    RuleError
        If the engine has no law of the rule at one position, or none up to `max_branching` siblings.
    InputError, DumpError
        As in `resispec_sim.replay`.
    """
    counts = _counts_of(rule, max_branching)
    measured = counts if rule.depends_on_count else counts[-1:]
    workers = check_workers(n_jobs, backend, scheduler)
    check_whole("max_paths", max_paths, at_least=1)
    check_whole("seed", seed, at_least=0)

    durations: list[float] = []

    def note_time(found: list[_AtPosition]) -> None:
        durations.append(found[0].seconds)
        # The first position may have waited for kernels to be compiled.
        if progress and len(durations) == 2:
            _warn_of_time(min(durations), dump.n_positions, max_branching, n_jobs)

    found, partial = run_positions(
        _Siblings(rule, measured, temperature, top_k, top_p, method, max_paths, seed),
        dump,
        0,
        dump.n_positions,
        workers,
        position_progress(dump.n_positions, "tree") if progress else None,
        note_time,
    )
    if partial:
        raise KeyboardInterrupt  # a tree from some of the prompts would not be the one asked for
    rows = [item.at_counts for item in found]
    places = np.array([dump.prompt_of(i) for i in range(dump.n_positions)], dtype=np.int64)
    return SiblingFigures(
        counts=counts,
        accepted={k: np.stack([row[i].accepted for row in rows]) for i, k in enumerate(measured)},
        w={k: np.stack([row[i].w for row in rows]) for i, k in enumerate(measured)},
        prompts=places[:, 0],
        offsets=places[:, 1],
        n_not_exact=sum(any(not item.is_exact for item in row) for row in rows),
    )


def growmap_path_eal(
    w: Mapping[int, FloatArray], accepted: Mapping[int, FloatArray], growmap: GrowMap
) -> FloatArray:
    """Per-position EAL estimate of a tree, at every start with as many positions left as it has levels.

    ``V(node) = alpha + sum_i W_i(x) V(child_i)`` along the text, with the figures for the node's own
    number of children and ``alpha`` the expectation of ``sum_i W_i``: a product of ratios weighs the
    recorded text by how likely the rule accepts it, and only its last factor is replaced by its
    expectation. The estimate is ``1 + V(root)``; it is unbiased for inexact rules too.

    Parameters
    ----------
    w, accepted : mapping of int to ndarray (L, k)
        By number of children, at L consecutive positions of one text.
    growmap : GrowMap

    Returns
    -------
    ndarray (max(L - D + 1, 0),)
        Tokens per step, bonus included; ``D`` is the number of drafted levels.

    Raises
    ------
    InputError
        If a number of children is missing.

    Examples
    --------
    >>> w, accepted = {1: np.array([[0.5], [1.0]])}, {1: np.array([[0.8], [0.4]])}
    >>> growmap_path_eal(w, accepted, GrowMap.complete("d3b1"))
    array([2.])
    """
    n_positions = len(next(iter(accepted.values())))
    eal = _eal_everywhere(w, accepted, growmap)
    return eal[: max(n_positions - growmap.n_levels + 1, 0)]


def growmap_eal(
    figures: SiblingFigures,
    growmap: GrowMap,
    chosen: NDArray[np.bool_],
    *,
    n_left: int | None = None,
) -> dict[str, Any]:
    """EAL of a tree on the chosen positions of a dump, with a bootstrap interval over prompts.

    Parameters
    ----------
    figures : SiblingFigures
    growmap : GrowMap
    chosen : ndarray of bool (N,)
    n_left : int, optional
        Recorded positions, its own included, that a start must have left; default: as many as the tree
        has levels below the root. A larger number gives trees of different depths the same starts.

    Returns
    -------
    dict
        ``mean``, ``low``, ``high`` (tokens per step; None where there is no figure, with the
        ``reason``), ``n_starts``, ``n_prompts``, ``confidence``.

    Raises
    ------
    InputError
        If the tree has a number of children that `figures` lack.
    """
    n_left = growmap.n_levels if n_left is None else max(n_left, growmap.n_levels)
    starts = chosen & _starts(figures, n_left)
    eal = _eal_everywhere(figures.by_count("w"), figures.by_count("accepted"), growmap)
    inside = figures.prompts[starts]
    of_prompts, prompt_idxs = np.unique(inside, return_inverse=True)
    n_starts = len(inside)
    found: dict[str, Any] = {"mean": None, "low": None, "high": None, "reason": None}
    if n_starts == 0:
        found["reason"] = f"no prompt has {n_left} consecutive positions"
    else:
        totals = np.bincount(prompt_idxs, weights=eal[starts])
        value, low, high = bootstrap_ratio(totals, np.bincount(prompt_idxs))
        found |= {"mean": value}
        if np.isfinite(low):
            found |= {"low": low, "high": high}
        else:
            found["reason"] = "one prompt: no interval"
    return found | {
        "n_starts": n_starts,
        "n_prompts": len(of_prompts),
        "confidence": REPLAY.confidence,
    }


@dataclass(frozen=True, eq=False)
class _AtCount:
    """What is kept of one law: its (V,) arrays are too large to hold for every position."""

    accepted: FloatArray
    w: FloatArray
    is_exact: bool


@dataclass(frozen=True, eq=False)
class _AtPosition:
    """What is kept of one position, and how long it took."""

    at_counts: list[_AtCount]
    seconds: float


@dataclass(frozen=True)
class _Siblings:
    """The laws of a rule at a position, for every number of children that has one of its own."""

    rule: Rule
    counts: tuple[int, ...]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    method: Method
    max_paths: int
    seed: int

    def __call__(self, dump: Dump, index: int, position: Position, /) -> list[_AtPosition]:
        start = time.perf_counter()
        p, q = dump.probs(position, self.temperature, self.top_k, self.top_p)
        found = []
        for count in self.counts:
            stream = np.random.SeedSequence([self.seed, index, count]).generate_state(1)[0]
            law = exact_law(
                self.rule,
                p,
                q,
                count,
                method=self.method,
                by_token=True,
                max_paths=self.max_paths,
                seed=int(stream),
            )
            found.append(_keep(law, p, position.token_id))
        return [_AtPosition(found, time.perf_counter() - start)]


def say(line: str) -> None:
    """Print a line on stderr, above a progress bar."""
    print(f"resispec: {line}", file=sys.stderr)


def _warn_of_time(seconds: float, n_positions: int, max_branching: int, n_jobs: int) -> None:
    jobs = max(effective_n_jobs(n_jobs), 1)
    total = seconds * n_positions / jobs
    if total > SLOW_SECONDS:
        say(
            f"{n_positions:,} positions at {seconds:.2g} s each, {jobs} at a time (--jobs), take about "
            f"{total / 60:.1f} minutes; a --max-branching below {max_branching}, or more --jobs, "
            "shortens it"
        )


def _keep(law: Law, target_probs: FloatArray, token: int) -> _AtCount:
    w = np.full(len(law.accepted), np.nan)
    if law.accepted_by_token is not None and target_probs[token] > 0:
        w = law.accepted_by_token[:, token] / target_probs[token]
    return _AtCount(np.array(law.accepted, dtype=np.float64), w, law.method == "exact")


def _counts_of(rule: Rule, max_branching: int) -> tuple[int, ...]:
    check_branching(max_branching)
    check_engine(rule)
    counts = []
    refusal = None
    for count in range(1, max_branching + 1):
        try:
            rule.check_count(count)
        except InputError as error:
            refusal = error
        else:
            counts.append(count)
    if refusal is not None and not counts:
        raise refusal
    return tuple(counts)


def _starts(figures: SiblingFigures, n_left: int) -> NDArray[np.bool_]:
    """Whether each position and the `n_left - 1` after it lie in one text with known ratios."""
    known = ~np.isnan(figures.w[max(figures.w)][:, 0])
    follows = np.diff(figures.prompts) == 0
    run = np.zeros(len(known), dtype=np.int64)
    for t in range(len(known) - 1, -1, -1):
        if known[t]:
            run[t] = 1 + (run[t + 1] if t + 1 < len(known) and follows[t] else 0)
    return run >= n_left


def _eal_everywhere(
    w: Mapping[int, FloatArray], accepted: Mapping[int, FloatArray], growmap: GrowMap
) -> FloatArray:
    """``1 + V(root)`` at every position; meaningless where fewer positions follow than it needs."""
    n_positions = len(next(iter(accepted.values())))
    # Equal subtrees have equal values: a complete tree takes one pass per level.
    shape_of: dict[tuple[int, ...], int] = {(): 0}
    values: list[FloatArray | None] = [None]
    shapes = [0] * growmap.n_nodes
    for nodes in reversed(growmap.levels):
        for node in nodes:
            below = tuple(shapes[child] for child in growmap.children[node])
            if below not in shape_of:
                shape_of[below] = len(values)
                values.append(_value(below, values, w, accepted, node))
            shapes[node] = shape_of[below]
    root = values[shapes[0]]
    return np.ones(n_positions) if root is None else 1.0 + root


def _value(
    below: tuple[int, ...],
    values: list[FloatArray | None],
    w: Mapping[int, FloatArray],
    accepted: Mapping[int, FloatArray],
    node: int,
) -> FloatArray:
    count = len(below)
    if count not in accepted:
        raise InputError(
            f"node {node} has {count} children, but acceptance was measured for "
            f"{', '.join(map(str, accepted))}; raise max_branching (--max-branching)"
        )
    value = accepted[count].sum(axis=1)
    for i, shape in enumerate(below):
        child = values[shape]
        if child is not None:
            value[:-1] += w[count][:-1, i] * child[1:]
    return value
