"""`exact_law`: the law of a verification rule at one position, and the figures made of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resispec_sim.checks import check_n_siblings, check_number, check_whole
from resispec_sim.config import ENGINE, GPU
from resispec_sim.engine import distances
from resispec_sim.engine.choose import outcome_of
from resispec_sim.engine.gpu.devices import require_gpu, to_device, to_host
from resispec_sim.engine.result import Outcome, check_total
from resispec_sim.errors import InputError, RuleError, VocabularyError
from resispec_sim.probs import check_probs
from resispec_sim.rules import PositionRule, Rule, parse_rule
from resispec_sim.rules.siblings import POSITION_SCHEMES
from resispec_sim.types import Device, Method

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Law:
    """What a rule does at one position, or at each of B positions (then every field has a leading B).

    Attributes
    ----------
    output_probs : ndarray (V,)
        Probability that the procedure emits each token; the best estimate where `method` is not
        ``exact``.
    accepted : ndarray (K,)
        Probability that sibling i is the accepted one.
    accepted_by_token : ndarray (K, V) or None
        The same by token, on request; a lower bound where `method` is ``certified``.
    kl : float
        ``sum M log(M / p)`` of the output law M to the target, in nats.
    tv : float
        Total variation distance of the output law to the target.
    accepted_interval : ndarray (K, 2)
        Rigorous bounds (``exact``: both ends equal), or +-1.96 standard errors where sampled.
    tv_interval, kl_interval : ndarray (2,)
        Likewise.
    total_interval : ndarray (2,)
        The same for the total acceptance. Siblings share what was not walked, so it can be narrower than
        the sum of theirs.
    stderr : ndarray (K,) or None
        Standard errors of `accepted` where sampled, at least what prefixes too rare to be drawn could
        change.
    tv_lower_bound : float
        ``sum (A - p)+`` with A the accepted mass per token: bounds the TV from below whatever the
        residual's fill does. Meaningless noise is not removed: an exact rule shows up to 1e-15. NaN where
        sampled: the positive part of an estimate bounds nothing.
    method : {"exact", "certified", "estimated", "sampled"}
        How the figures were computed.
    n_paths : int
        Path-steps walked.
    notes : tuple of str
        What a reader of the figures should know, such as a budget that was cut.
    """

    output_probs: FloatArray
    accepted: FloatArray
    accepted_by_token: FloatArray | None
    kl: Any
    tv: Any
    accepted_interval: FloatArray
    total_interval: FloatArray
    tv_interval: FloatArray
    kl_interval: FloatArray
    stderr: FloatArray | None
    tv_lower_bound: Any
    method: Any
    n_paths: Any
    notes: Any


def exact_law(
    rule: str | Rule,
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    n_siblings: int,
    *,
    method: Method = "auto",
    by_token: bool = False,
    max_paths: int = ENGINE.max_paths,
    tolerance: float = ENGINE.tolerance,
    seed: int = ENGINE.seed,
    device: Device = GPU.device,
    **options: Any,
) -> Law:
    """Compute the law of a verification rule at one position, or at each of a batch.

    Siblings are drawn as the rule says (`Rule.siblings`). A rule of your own, derived from
    `resispec_sim.rules.SequentialRule`, has a law as those that are built in do.

    Parameters
    ----------
    rule : str or Rule
        Name such as ``"specinfer"`` or ``"resispec:fill=water"``, or an instance.
    target_probs, draft_probs : array_like, (V,) or (B, V)
        Probabilities p and q. They are never modified. Arrays of any library are taken through DLPack:
        on the CPU for device ``"cpu"``, on the GPU (cupy, torch) without a copy for ``"cuda"``.
    n_siblings : int
        Candidates K per position, 1 or more.
    method : {"auto", "exact", "certified", "sampled"}
        ``auto`` takes every path where their predicted number is within `max_paths`, else what the
        engine of the rule offers: rigorous bounds (``certified``) or, without replacement and for rules
        of your own, drawn paths (``sampled``). A rule in closed form is always ``exact``.
    by_token : bool
        Return `Law.accepted_by_token` too.
    max_paths : int
        Budget of path-steps per position that are walked one by one (many more are summed at once).
    tolerance : float
        Width of the interval of total acceptance that suffices where it is ``certified``: once it is
        reached no more paths are walked for it. A wider one is noted.
    seed : int
        Of the sampled method; position b of a batch uses the stream ``(seed, b)``.
    device : {"cpu", "cuda"}
        ``"cuda"`` computes ResiSpec and SpecInfer at all positions of a batch on the current GPU; what
        it does not take is computed on the CPU, and `Law.notes` says so.
    **options
        Options of a rule given by name, such as ``fill="water"``.

    Returns
    -------
    Law

    Raises
    ------
    DistributionError
        If a row is not a distribution; names row, token and value.
    VocabularyError
        If the two shapes differ.
    InputError
        If another argument is out of its range.
    RuleError
        If the rule or an option of it is unknown, or the engine has no method for it.
    MassError
        If a computed law does not sum to 1 within 1e-12.
    DeviceError
        If device ``"cuda"`` is asked for where there is no GPU, or no package to drive it.

    Examples
    --------
    >>> law = exact_law("resispec", [0.25, 0.25, 0.5], [0.5, 0.5, 0.0], 1)
    >>> law.output_probs.round(12).tolist()
    [0.4, 0.4, 0.2]
    >>> law.accepted.tolist(), round(law.tv, 12), law.method
    ([0.5], 0.3, 'exact')
    >>> exact_law("specinfer", [0.25, 0.25, 0.5], [0.5, 0.5, 0.0], 3).tv < 1e-12
    True
    """
    chosen = check_engine(parse_rule(rule, **options))
    if device not in get_args(Device):
        raise InputError(f"device is {device!r}; use one of {', '.join(get_args(Device))}")
    if device == "cpu":
        target, draft = _check_pair(
            to_host("target_probs", target_probs), to_host("draft_probs", draft_probs)
        )
    n_siblings = check_n_siblings(n_siblings)
    chosen.check_count(n_siblings)
    seed = check_whole("seed", seed, at_least=0)
    check_method(method)
    if not check_number("max_paths", max_paths) > 0:
        raise InputError(f"max_paths is {max_paths!r}; give a positive number of path-steps")
    check_tolerance(tolerance)
    if device == "cuda":
        cupy = require_gpu()
        pair = (
            to_device("target_probs", target_probs, cupy),
            to_device("draft_probs", draft_probs, cupy),
        )
        return _law_on_device(chosen, *pair, n_siblings, method, by_token, max_paths, seed)
    if target.ndim == 1:
        return law_of_row(
            chosen, target, draft, n_siblings, method, by_token, max_paths, seed, tolerance
        )
    rows = [
        law_of_row(
            chosen, p, q, n_siblings, method, by_token, max_paths, _row_seed(seed, b), tolerance
        )
        for b, (p, q) in enumerate(zip(target, draft, strict=True))
    ]
    return _stack(rows)


def check_method(method: str) -> None:
    """Raise `InputError` unless `exact_law` knows the method."""
    if method not in get_args(Method):
        raise InputError(f"method is {method!r}; use one of {', '.join(get_args(Method))}")


def check_tolerance(tolerance: float) -> float:
    """A width of an interval of acceptance, from 0 to 1 (`InputError`)."""
    if not 0 <= check_number("tolerance", tolerance) <= 1:
        raise InputError(f"tolerance is {tolerance!r}; give a width of an interval, 0 to 1")
    return float(tolerance)


def check_engine(rule: Rule) -> PositionRule:
    """Return a rule that `exact_law` can compute, or refuse it before any work is done for it.

    Raises
    ------
    RuleError
        If it verifies several levels at once, so that it has no law at one position, or draws its
        siblings in an unknown way.
    """
    if not isinstance(rule, PositionRule):
        raise RuleError(
            f"{rule.label} verifies a {rule.siblings}, not one position: use "
            "resispec_sim.sequences.sequence_law"
            + (" or `resispec chain`" if rule.siblings == "chain" else "")
        )
    if rule.siblings not in POSITION_SCHEMES:
        raise RuleError(
            f"{rule.label} draws siblings {rule.siblings!r}; use one of {', '.join(POSITION_SCHEMES)}"
        )
    return rule


def _check_pair(target_probs: ArrayLike, draft_probs: ArrayLike) -> tuple[FloatArray, FloatArray]:
    try:
        # first of all: a row that was cut would not sum to 1 either
        shapes = np.shape(target_probs), np.shape(draft_probs)
    except ValueError as error:
        raise InputError(f"probabilities have rows of different lengths ({error})") from None
    _check_shapes(*shapes)
    target = check_probs(target_probs, "target_probs")
    draft = check_probs(draft_probs, "draft_probs")
    return target, draft


def _check_shapes(target: tuple[int, ...], draft: tuple[int, ...]) -> None:
    if target != draft:
        raise VocabularyError(
            f"target_probs has shape {target} and draft_probs {draft}; pad the smaller "
            "vocabulary with probability 0 (resispec_sim.probs.align_vocabularies)"
        )
    if len(target) not in (1, 2) or 0 in target:
        raise InputError(f"probabilities have shape {target}; give (V,) or (B, V), not empty")


def _law_on_device(
    rule: PositionRule,
    target: Any,
    draft: Any,
    n_siblings: int,
    method: str,
    by_token: bool,
    max_paths: int,
    seed: int,
) -> Law:
    """`exact_law` where the arrays are; both have one namespace and lie on one device."""
    from resispec_sim.engine.gpu.batch import laws_of_batch

    _check_shapes(tuple(target.shape), tuple(draft.shape))
    single = target.ndim == 1

    def on_cpu(b: int, p: FloatArray, q: FloatArray) -> Law:
        row_seed = seed if single else _row_seed(seed, b)
        return law_of_row(rule, p, q, n_siblings, method, by_token, max_paths, row_seed)

    if single:
        target, draft = target[None, :], draft[None, :]
    rows = laws_of_batch(
        rule,
        target,
        draft,
        n_siblings,
        method=method,
        by_token=by_token,
        max_paths=max_paths,
        on_cpu=on_cpu,
    )
    return rows[0] if single else _stack(rows)


def _row_seed(seed: int, row: int) -> int:
    return int(np.random.SeedSequence([seed, row]).generate_state(1)[0])


def law_of_row(
    rule: PositionRule,
    p: FloatArray,
    q: FloatArray,
    n_siblings: int,
    method: str,
    by_token: bool,
    max_paths: int,
    seed: int,
    tolerance: float = ENGINE.tolerance,
) -> Law:
    """`exact_law` of one position with arguments that were checked."""
    outcome = outcome_of(
        rule,
        p,
        q,
        n_siblings,
        method=method,
        max_paths=max_paths,
        seed=seed,
        tolerance=tolerance,
    )
    return _make_law(outcome, p, by_token)


def _make_law(outcome: Outcome, p: FloatArray, by_token: bool) -> Law:
    law = outcome.output_probs
    if not np.isfinite(law).all():
        check_total(float(law.sum()), f"a law computed by method {outcome.method}")
    tv, kl = distances.tv_and_kl(law, p)
    accepted_interval = outcome.accepted_interval
    if outcome.certain is not None:
        tv_interval = distances.tv_bounds(outcome.certain, p)
        kl_interval = distances.kl_bounds(outcome.certain, p)
    elif outcome.batch_laws is not None:
        tv_interval = distances.batch_interval(distances.total_variation, outcome.batch_laws, p)
        kl_interval = distances.batch_interval(distances.kl_divergence, outcome.batch_laws, p)
    else:
        tv_interval, kl_interval = np.array([tv, tv]), np.array([kl, kl])
    if accepted_interval is None:
        half = 0.0 if outcome.stderr is None else 1.96 * outcome.stderr
        accepted_interval = np.stack((outcome.accepted - half, outcome.accepted + half), axis=1)
    return Law(
        output_probs=law,
        accepted=outcome.accepted,
        accepted_by_token=outcome.accepted_by_token if by_token else None,
        kl=kl,
        tv=tv,
        accepted_interval=accepted_interval,
        total_interval=_total_interval(outcome, accepted_interval),
        tv_interval=tv_interval,
        kl_interval=kl_interval,
        stderr=outcome.stderr,
        tv_lower_bound=(
            np.nan
            if outcome.method == "sampled"
            else distances.excess_mass(outcome.accepted_by_token, p)
        ),
        method=outcome.method,
        n_paths=outcome.n_paths,
        notes=outcome.notes,
    )


def _total_interval(outcome: Outcome, accepted_interval: FloatArray) -> FloatArray:
    if outcome.total_interval is not None:
        return outcome.total_interval
    if outcome.method == "exact":
        return np.full(2, outcome.accepted.sum())
    return np.clip(accepted_interval.sum(axis=0), 0.0, 1.0)


def _stack(rows: list[Law]) -> Law:
    columns: dict[str, Any] = {}
    for field in fields(Law):
        values = [getattr(row, field.name) for row in rows]
        if field.name in ("method", "notes"):
            columns[field.name] = tuple(values)
        elif field.name == "stderr":
            # NaN marks the rows that were not sampled
            sampled = any(value is not None for value in values)
            k = rows[0].accepted.shape
            columns["stderr"] = (
                np.stack([np.full(k, np.nan) if v is None else v for v in values])
                if sampled
                else None
            )
        elif values[0] is None:
            columns[field.name] = None
        else:
            columns[field.name] = np.stack([np.asarray(value) for value in values])
    return Law(**columns)
