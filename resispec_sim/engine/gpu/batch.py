"""Laws of many positions on a GPU; what its kernels do not take is computed by the CPU engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from resispec_sim.config import GPU
from resispec_sim.engine.gpu.arrays import BatchLaw, prepare
from resispec_sim.engine.gpu.closed_forms import (
    excess,
    kl_divergence,
    specinfer_laws,
    total_variation,
)
from resispec_sim.engine.gpu.devices import require_gpu, to_device
from resispec_sim.engine.gpu.layout import MAX_SIBLINGS
from resispec_sim.engine.law import Law, exact_law
from resispec_sim.engine.result import MASS_TOLERANCE
from resispec_sim.errors import InputError
from resispec_sim.probs import SUM_TOLERANCE, check_probs
from resispec_sim.rules import PositionRule, ResiSpec, SpecInfer
from resispec_sim.types import Method

Array = Any
OnCpu = Callable[[int, np.ndarray, np.ndarray], Law]

SLACK = 2  # a walk may take this many times the budget before it is given up
WALK_LIMIT = 1e13  # path-steps beyond which no walk is begun


def laws_of_batch(
    rule: PositionRule,
    target_probs: Array,
    draft_probs: Array,
    n_siblings: int,
    *,
    method: str,
    by_token: bool,
    max_paths: float,
    on_cpu: OnCpu,
    blocks: Any = None,
) -> list[Law]:
    """Laws at each of B positions whose arrays are on one device.

    Parameters
    ----------
    rule : PositionRule
        SpecInfer, and ResiSpec with the fills ``capacity`` and ``water`` at up to 8 siblings, are
        computed where the arrays are. Any other rule, a method other than ``auto`` and ``exact``, a
        position whose predicted path-steps pass `max_paths` and one that fails a check are left to
        the CPU engine, with a note.
    target_probs, draft_probs : array (B, V)
        Of one library that follows the array API standard (cupy on a GPU); never modified.
    n_siblings : int
    method, by_token, max_paths
        As in `resispec_sim.exact_law`.
    on_cpu : callable
        Computes what is left to the CPU engine: ``on_cpu(b, p, q)`` with the index of the position and
        its rows in numpy returns a `Law`.
    blocks : Blocks, optional
        Sizes of the blocks of a launch.

    Returns
    -------
    list of Law
        One per position, in numpy.

    Raises
    ------
    DistributionError
        If a row is not a distribution; names row, token and value.
    """
    target = check_rows(target_probs, "target_probs")
    draft = check_rows(draft_probs, "draft_probs")
    reason = _not_here(rule, n_siblings, method)
    laws: list[Law] = []
    per_launch = positions_per_launch(int(target.shape[1]), n_siblings, by_token)
    n_positions = int(target.shape[0])
    for start in range(0, n_positions, per_launch):
        stop = min(start + per_launch, n_positions)
        p, q = (rows[start:stop, :] for rows in (target, draft))
        why = [reason] * int(p.shape[0])
        found: list[Law | None] = [None] * int(p.shape[0])
        if not reason:
            found, why = _launch(rule, p, q, n_siblings, method, by_token, max_paths, blocks)
        for i, law in enumerate(found):
            if law is None:
                row = to_numpy(p[i, :]), to_numpy(q[i, :])
                law = on_cpu(start + i, *row)
                law = replace(law, notes=(*law.notes, f"computed on the CPU: {why[i]}"))
            laws.append(law)
    return laws


def laws_on_gpu(
    rule: PositionRule,
    target_probs: Array,
    draft_probs: Array,
    n_siblings: int,
    *,
    method: Method,
    by_token: bool,
    max_paths: int,
    seeds: Sequence[int],
) -> list[Law]:
    """Laws at each of B positions, on the current GPU, with a seed for each.

    What a caller that has positions in hand wants, such as a replay: the result at a position does not
    depend on which others are in the batch.

    Parameters
    ----------
    rule : PositionRule
    target_probs, draft_probs : array (B, V)
        Of any library, on the GPU or not.
    n_siblings : int
    method, by_token, max_paths
        As in `resispec_sim.exact_law`.
    seeds : sequence of int, (B,)

    Returns
    -------
    list of Law

    Raises
    ------
    DeviceError
        If there is no GPU, or a package is missing.
    InputError
        If the rows are not (B, V), or not one for each seed.
    """
    cupy = require_gpu()
    target = to_device("target_probs", target_probs, cupy)
    draft = to_device("draft_probs", draft_probs, cupy)
    if target.shape != draft.shape or target.ndim != 2 or target.shape[0] != len(seeds):
        raise InputError(
            f"target_probs {target.shape} and draft_probs {draft.shape} must be (B, V) with one row "
            f"for each of {len(seeds)} seeds"
        )

    def on_cpu(b: int, p: np.ndarray, q: np.ndarray) -> Law:
        options: dict[str, Any] = {"method": method, "by_token": by_token, "max_paths": max_paths}
        return exact_law(rule, p, q, n_siblings, seed=seeds[b], **options)

    return laws_of_batch(
        rule,
        target,
        draft,
        n_siblings,
        method=method,
        by_token=by_token,
        max_paths=max_paths,
        on_cpu=on_cpu,
    )


def positions_per_launch(vocab_size: int, n_siblings: int, by_token: bool) -> int:
    """How many positions fit the memory that a launch may take."""
    from resispec_sim.engine.gpu.launch import bytes_per_position

    return max(int(GPU.memory_bytes // bytes_per_position(vocab_size, n_siblings, by_token)), 1)


def _not_here(rule: PositionRule, n_siblings: int, method: str) -> str:
    """Why no position of a batch is computed where its arrays are; empty if they are."""
    if type(rule) is SpecInfer:
        return ""
    if type(rule) is not ResiSpec or rule.fill == "index":
        return f"the GPU engine has no {rule.label}"
    if method not in ("auto", "exact"):
        return f"the GPU engine has no method {method!r}"
    if n_siblings > MAX_SIBLINGS:
        return f"the GPU engine takes up to {MAX_SIBLINGS} siblings"
    return ""


def _launch(
    rule: PositionRule,
    p: Array,
    q: Array,
    n_siblings: int,
    method: str,
    by_token: bool,
    max_paths: float,
    blocks: Any,
) -> tuple[list[Law | None], list[str]]:
    """Laws of one launch, None where a position is left to the CPU engine, and why it is."""
    n_positions = int(p.shape[0])
    why = [""] * n_positions
    notes: list[tuple[str, ...]] = [()] * n_positions
    if isinstance(rule, SpecInfer):
        batch = specinfer_laws(p, q, n_siblings, by_token=by_token)
        steps = np.full(n_positions, n_siblings)
    else:
        assert isinstance(rule, ResiSpec)
        batch, steps = _walk(
            rule, p, q, n_siblings, method, by_token, max_paths, blocks, why, notes
        )
    error = to_numpy(batch.error)
    for i in range(n_positions):
        if not why[i] and not error[i] <= MASS_TOLERANCE:
            why[i] = f"a check was missed by {error[i]:.1e}"
    return _to_laws(batch, p, steps, why, notes), why


def _walk(
    rule: ResiSpec,
    p: Array,
    q: Array,
    n_siblings: int,
    method: str,
    by_token: bool,
    max_paths: float,
    blocks: Any,
    why: list[str],
    notes: list[tuple[str, ...]],
) -> tuple[BatchLaw, np.ndarray]:
    """Walk a batch; fills in why a position is left out, and notes."""
    from resispec_sim.engine.gpu import launch

    blocks = blocks or launch.DEFAULT_BLOCKS
    space = prepare(p, q)
    xp = array_namespace(p)
    buckets = launch.find_buckets(space, blocks)
    predicted = to_numpy(launch.predict_steps(space, buckets, n_siblings, blocks=blocks))
    limit = max_paths if method == "auto" else WALK_LIMIT
    overflow = to_numpy(space.n_overflow)
    for i, steps in enumerate(predicted):
        if not steps <= limit:
            why[i] = f"{steps:.1e} path-steps predicted"
        elif rule.fill == "water" and overflow[i]:
            why[i] = f"{overflow[i]} drafted tokens have p/q beyond the float range"
    active = xp.asarray([not reason for reason in why], device=device(p))
    walked = launch.walk_batch(
        space,
        buckets,
        n_siblings,
        fill=rule.fill,
        budget=rule.budget,
        active=active,
        by_token=by_token,
        max_steps=SLACK * max_paths if method == "auto" else math.inf,
        blocks=blocks,
    )
    steps, n_cut, beyond = map(to_numpy, (walked.steps, walked.n_cut, walked.excess))
    n_over = to_numpy(space.sizes)[:, 2]
    for i in range(len(why)):
        if not why[i] and method == "auto" and steps[i] > SLACK * max_paths:
            why[i] = f"{steps[i]:.1e} path-steps were not enough"
        elif not why[i] and rule.budget == "applied" and n_cut[i]:
            why[i] = f"a budget passes the mass off its token by {beyond[i]:.1e}"
        elif n_cut[i]:
            notes[i] = (
                f"budget cut to the capacity at {int(n_cut[i])} of {n_over[i]} first rejections",
            )
    return walked.laws, steps


def _to_laws(
    batch: BatchLaw, p: Array, steps: np.ndarray, why: list[str], notes: list[tuple[str, ...]]
) -> list[Law | None]:
    tv, kl = to_numpy(total_variation(batch.law, p)), to_numpy(kl_divergence(batch.law, p))
    bound = to_numpy(excess(batch.accepted_total, p))
    law, accepted = to_numpy(batch.law), to_numpy(batch.accepted)
    by_token = None if batch.accepted_by_token is None else to_numpy(batch.accepted_by_token)
    return [
        None
        if why[i]
        else Law(
            output_probs=law[i],
            accepted=accepted[i],
            accepted_by_token=None if by_token is None else by_token[i],
            kl=float(kl[i]),
            tv=float(tv[i]),
            accepted_interval=np.stack((accepted[i], accepted[i]), axis=1),
            total_interval=np.full(2, accepted[i].sum()),
            tv_interval=np.array([tv[i], tv[i]]),
            kl_interval=np.array([kl[i], kl[i]]),
            stderr=None,
            tv_lower_bound=float(bound[i]),
            method="exact",
            n_paths=int(steps[i]),
            notes=notes[i],
        )
        for i in range(len(why))
    ]


def check_rows(probs: Array, name: str) -> Array:
    """Rows (B, V) in float64, divided by their sums; `DistributionError` as in `check_probs`."""
    xp = array_namespace(probs)
    rows = xp.astype(probs, xp.float64)
    total = xp.sum(rows, axis=1, keepdims=True)
    good = xp.all(xp.isfinite(rows) & (rows >= 0.0)) & xp.all(xp.abs(total - 1.0) <= SUM_TOLERANCE)
    if not bool(good):
        check_probs(to_numpy(probs), name)  # names the row, the token and the value
    return rows / total


def to_numpy(array: Array) -> np.ndarray:
    """A copy in the CPU's memory."""
    if hasattr(array, "get"):
        return np.asarray(array.get())
    return np.asarray(array) if isinstance(array, np.ndarray) else np.from_dlpack(array)
