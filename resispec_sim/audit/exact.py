"""The law of a verifier at one pair, from every sibling tuple and every box of its uniforms."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from resispec_sim.audit.calling import (
    NONE,
    OUTSIDE,
    Caller,
    Finding,
    Floats,
    Seen,
)
from resispec_sim.audit.drafting import Drafting, Tuples, check_siblings, enumerate_siblings
from resispec_sim.audit.splitting import Asking, Split, split
from resispec_sim.checks import check_n_siblings, check_whole
from resispec_sim.errors import InputError
from resispec_sim.probs import check_probs


@dataclass(frozen=True)
class VerifierLaw:
    """What a verifier does at one position.

    Attributes
    ----------
    target_probs, draft_probs : ndarray of float64, (V,)
    output_probs : ndarray of float64, (V,)
        The probability that each token is emitted. Calls that fail emit none, so the sum can be
        under 1; so it is where tokens lie outside the vocabulary.
    accepted : ndarray of float64, (K,)
        The probability that each sibling is the accepted one.
    accepted_by_token : ndarray of float64, (K, V)
    unsettled : float
        Probability of the sibling tuples and uniforms where the verifier was not seen to be constant
        on a box; the law may be off by as much.
    n_cells : int
        Boxes, over all sibling tuples.
    n_calls: int
        Calls of the verifier.
    outside : float
        The probability that what is emitted is no token of the vocabulary.
    assumptions : tuple of str
    findings : tuple of Finding
    splits : tuple of (float, tuple of int, Split)
        Every sibling tuple with its probability and its boxes.
    """

    target_probs: Floats
    draft_probs: Floats
    output_probs: Floats
    accepted: Floats
    accepted_by_token: Floats
    unsettled: float
    n_cells: int
    n_calls: int
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]
    outside: float = 0.0
    splits: tuple[tuple[float, tuple[int, ...], Split], ...] = field(default=(), repr=False)

    @property
    def excess(self) -> float:
        """Mass that tokens get beyond the target, whatever the calls that fail would emit.

        Tokens outside the vocabulary should get none.
        """
        return float(np.maximum(self.output_probs - self.target_probs, 0).sum()) + self.outside

    @property
    def failed(self) -> float:
        """The probability that a call fails; 0 where it is a matter of rounding."""
        missing = 1 - float(self.output_probs.sum()) - self.outside
        return missing if missing > 1e-12 else 0.0

    @property
    def tv(self) -> float:
        """Total variation distance of the law from the target; a call that fails counts as wrong."""
        return float(np.maximum(self.target_probs - self.output_probs, 0).sum())


def law_of_verifier(
    verify: Any,
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    n_siblings: int,
    *,
    n_uniforms: int | None = None,
    siblings: str | Drafting = "iid",
    seed: int = 0,
) -> VerifierLaw:
    """The law of what a verifier emits at one position.

    Every tuple of siblings is enumerated. For each, the interval of every uniform that the verifier
    reads is split where its result changes: between probes whose results differ the change is found
    by bisection, and the probes lie between all ratios and cumulated sums of the inputs. Random calls check
    the boxes; where one differs, more probes are spent, and what stays in doubt counts as unsettled.

    Parameters
    ----------
    verify : callable
        ``verify(target_probs, draft_probs, sibling_ids, uniforms) -> (token, accepted_idx)``, or what
        `torch_batch` makes.
    target_probs, draft_probs : array_like, (V,)
    n_siblings : int
        Number K of siblings.
    n_uniforms : int, optional
        Default: K + 1.
    siblings : str or callable
        ``"iid"``, ``"without_replacement"``, ``"topk"``, ``"hub"``, or a function ``(target_probs,
        draft_probs, n) -> iterable of (probability, ids)``.
    seed : int
        Seed of the points that check the boxes.

    Returns
    -------
    VerifierLaw

    Raises
    ------
    VerifierError
        If the verifier gives different results for the same arguments.
    DistributionError, InputError
        If an argument is out of its range.

    Examples
    --------
    >>> def verify(p, q, ids, u):
    ...     if u[0] < p[ids[0]] / q[ids[0]]:
    ...         return ids[0], 0
    ...     return int(np.searchsorted(np.cumsum(p), u[1], side="right")), None
    >>> law_of_verifier(verify, [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 1).output_probs.round(9).tolist()
    [0.4, 0.32, 0.28]
    """
    arguments = (verify, target_probs, draft_probs, n_siblings)
    for n_probes in PROBES:
        law = compute_law(
            *arguments, n_uniforms=n_uniforms, siblings=siblings, seed=seed, n_probes=n_probes
        )
        wrong = contradictions(verify, law, seed, _CHECK_CALLS)
        if not wrong:
            return law
    unseen = (wrong + 6 * math.sqrt(wrong) + 14) / _CHECK_CALLS
    return replace(law, unsettled=min(1.0, law.unsettled + unseen))


PROBES = (0, 64, 512)
"""Probes of every uniform besides those that the inputs suggest: more of them where random calls show
that boxes are not what they seemed to be."""

_CHECK_CALLS = 500


def compute_law(
    verify: Any,
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    n_siblings: int,
    *,
    n_uniforms: int | None = None,
    siblings: str | Drafting = "iid",
    seed: int = 0,
    n_probes: int = 0,
) -> VerifierLaw:
    """As `law_of_verifier`, with `n_probes` more probes of every uniform, and not checked afterwards."""
    target = check_probs(target_probs, "target_probs")
    draft = check_probs(draft_probs, "draft_probs")
    if target.ndim != 1 or target.shape != draft.shape:
        raise InputError(
            f"target_probs {target.shape} and draft_probs {draft.shape} must both be (V,)"
        )
    n_siblings = check_n_siblings(n_siblings)
    n_uniforms = check_whole(
        "n_uniforms", n_siblings + 1 if n_uniforms is None else n_uniforms, at_least=1
    )
    tuples = enumerate_siblings(check_siblings(siblings), target, draft, n_siblings)
    # distributions that sum to 1 as given reach the verifier as given
    caller = Caller(verify, _as_given(target_probs, target), _as_given(draft_probs, draft))
    _check_repeats(caller, tuples, n_uniforms, seed)
    splits = _split_all(caller, tuples, n_uniforms, n_siblings, seed, n_probes)
    if any(found.hidden_reads for found in splits):
        caller.trusts_reads = False
        splits = _split_all(caller, tuples, n_uniforms, n_siblings, seed, n_probes)
    return _assemble(caller, tuples, splits, n_siblings, n_uniforms)


def contradictions(verify: Any, law: VerifierLaw, seed: int, n_calls: int) -> int:
    """How many of `n_calls` random calls do not return what their box says.

    If the law of the boxes is wrong by a total variation distance t, each does with probability t or
    more: none of n does with probability ``exp(-n t)`` at most.
    """
    caller = Caller(verify, law.target_probs, law.draft_probs)
    rng = np.random.default_rng([seed, n_calls])
    chances = np.array([weight for weight, _, _ in law.splits])
    counts = rng.multinomial(n_calls, chances / chances.sum())
    n_uniforms = len(law.splits[0][2].boxes[0].low)
    drawn = [rng.random((count, n_uniforms)) for count in counts]
    rows = [
        ids for (_, ids, _), count in zip(law.splits, counts, strict=True) for _ in range(count)
    ]
    seen = iter(caller.see_each(rows, np.concatenate(drawn)))
    return sum(
        len(found.differing(points, [next(seen) for _ in points]))
        for (_, _, found), points in zip(law.splits, drawn, strict=True)
    )


def _as_given(probs: ArrayLike, checked: Floats) -> Floats:
    given = np.array(probs, dtype=np.float64)
    return given if abs(math.fsum(given) - 1) < 1e-15 else checked


def _check_repeats(caller: Caller, tuples: Tuples, n_uniforms: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _, ids in tuples[:: max(1, len(tuples) // 4)]:
        caller.check_repeats(ids, rng.random((3, n_uniforms)))


def _split_all(
    caller: Caller,
    tuples: Tuples,
    n_uniforms: int,
    n_siblings: int,
    seed: int,
    n_probes: int,
) -> list[Split]:
    common = residual_edges(caller.target, caller.draft, n_siblings)
    max_scans = 100 + 24 * n_uniforms**2
    found, asking = [], []
    for number, (_, ids) in enumerate(tuples):
        edges = np.concatenate([common, ratio_edges(caller.target, caller.draft, ids, n_siblings)])
        rng = np.random.default_rng([seed, number])
        spread = (np.arange(n_probes) + rng.random(n_probes)) / max(n_probes, 1)
        edges = _apart(np.concatenate([edges, spread]))
        found.append(Split())
        asking.append(split(n_uniforms, edges, rng, caller.top, found[-1], max_scans))
        if not caller.batched:
            _drive(caller, ids, asking.pop())
            if found[-1].unsettled:
                # what is not constant on boxes for one tuple seldom is for another
                max_scans = min(max_scans, 20)
    if not caller.batched:
        return found
    waiting = [
        (ids, generator, next(generator))
        for (_, ids), generator in zip(tuples, asking, strict=True)
    ]
    while waiting:
        answers = _see_together(caller, [(ids, points) for ids, _, points in waiting])
        still = []
        for (ids, generator, _), seen in zip(waiting, answers, strict=True):
            try:
                still.append((ids, generator, generator.send(seen)))
            except StopIteration:
                pass
        waiting = still
    return found


def _drive(caller: Caller, ids: Sequence[int], generator: Asking) -> None:
    points = next(generator)
    with suppress(StopIteration):
        while True:
            points = generator.send(caller.see(ids, points))


def _see_together(
    caller: Caller, questions: Sequence[tuple[tuple[int, ...], Floats]]
) -> list[list[Seen]]:
    """Ask all questions at once."""
    rows = [ids for ids, points in questions for _ in points]
    seen = iter(caller.see_each(rows, np.concatenate([points for _, points in questions])))
    return [[next(seen) for _ in points] for _, points in questions]


def residual_edges(target: Floats, draft: Floats, n_siblings: int) -> Floats:
    """Cumulated sums of the target, the draft and the residuals: where samplers change tokens."""
    parts = [np.linspace(0, 1, 9)]
    for residual in [*_residuals(target, draft, n_siblings), draft]:
        parts += [np.cumsum(residual), residual]
    return np.concatenate(parts)


def ratio_edges(target: Floats, draft: Floats, ids: Sequence[int], n_siblings: int) -> Floats:
    """Ratios of the residuals to the draft at the siblings: where coins change acceptance."""
    drafted = [x for x in dict.fromkeys(ids) if draft[x] > 0]
    with np.errstate(over="ignore"):
        ratios = [r[drafted] / draft[drafted] for r in _residuals(target, draft, n_siblings)]
    return np.concatenate(ratios)


def _residuals(target: Floats, draft: Floats, n_siblings: int) -> list[Floats]:
    found = [target]
    for _ in range(n_siblings):
        rest = np.maximum(found[-1] - draft, 0)
        if not rest.sum() > 0:
            break
        found.append(rest / rest.sum())
    return found


def _apart(edges: Floats) -> Floats:
    """Sorted, without those that differ by rounding only."""
    ordered = np.sort(edges[np.isfinite(edges)])
    return ordered[np.diff(ordered, prepend=-1.0) > 1e-14]


def _assemble(
    caller: Caller, tuples: Tuples, splits: Sequence[Split], n_siblings: int, n_uniforms: int
) -> VerifierLaw:
    vocab_size = len(caller.target)
    emitted: list[list[float]] = [[] for _ in range(vocab_size)]
    outside: list[float] = []
    accepted: list[list[list[float]]] = [[[] for _ in range(vocab_size)] for _ in range(n_siblings)]
    for (weight, _), found in zip(tuples, splits, strict=True):
        for box in found.boxes:
            seen, volume = box.seen, box.volume
            if seen.token == OUTSIDE:
                outside.append(weight * volume)
            if seen.token < 0:
                continue
            emitted[seen.token].append(weight * volume)
            if seen.accepted != NONE:
                accepted[seen.accepted][seen.token].append(weight * volume)
    by_token = np.array([[math.fsum(masses) for masses in row] for row in accepted])
    output_probs = np.array([math.fsum(masses) for masses in emitted])
    unsettled = math.fsum(w * found.unsettled for (w, _), found in zip(tuples, splits, strict=True))
    return VerifierLaw(
        target_probs=caller.target,
        draft_probs=caller.draft,
        output_probs=output_probs,
        accepted=by_token.sum(axis=1),
        accepted_by_token=by_token,
        unsettled=unsettled,
        n_cells=sum(len(found.boxes) for found in splits),
        n_calls=caller.n_calls,
        assumptions=_assumptions(caller, n_uniforms),
        findings=tuple(_refine(finding, output_probs) for finding in caller.findings.values()),
        outside=math.fsum(outside),
        splits=tuple((w, ids, part) for (w, ids), part in zip(tuples, splits, strict=True)),
    )


def _refine(finding: Finding, output_probs: Floats) -> Finding:
    """Note the single value of a uniform at which a token without mass was emitted."""
    uniforms = finding.inputs["uniforms"]
    if finding.token is None or not output_probs[finding.token] < 1e-12:
        return finding
    at = 0.0 if 0.0 in uniforms else max(uniforms)
    message = finding.message.replace(" (", f", at u = {at:.17g} (", 1)
    return replace(finding, message=message, at=at)


def _assumptions(caller: Caller, n_uniforms: int) -> tuple[str, ...]:
    reads = (
        "a uniform that was not seen to be read does not matter (random values of it were tried)"
        if caller.trusts_reads and not caller.batched
        else f"all {n_uniforms} uniforms may matter"
    )
    return (
        "the result is constant on boxes of the uniforms; it was probed between all ratios and "
        "cumulated sums of the inputs, at 0 and just below 1, and at random points of every box, so "
        "a change that starts and ends between two probes goes unseen",
        reads,
        "the uniforms are independent and uniform on [0, 1), the siblings independent of them",
    )
