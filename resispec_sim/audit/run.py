"""The audit of a verifier: chooses the mode, runs it, and reports."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from resispec_sim.audit.deciding import certain_tv, exact_audit
from resispec_sim.audit.drafting import (
    Drafting,
    check_siblings,
    count_tuples,
    scheme_name,
)
from resispec_sim.audit.exact import VerifierLaw, compute_law
from resispec_sim.audit.pool import Pair, pairs_to_check
from resispec_sim.audit.report import AuditReport
from resispec_sim.checks import check_n_siblings, check_number, check_whole
from resispec_sim.config import AUDIT
from resispec_sim.errors import InputError, ResispecError, VerifierError
from resispec_sim.probs import check_probs
from resispec_sim.provenance import provenance
from resispec_sim.rules.siblings import POSITION_SCHEMES

Mode = Literal["auto", "exact", "sampling"]


def audit(
    verify: Any,
    n_siblings: int,
    *,
    n_uniforms: int | None = None,
    siblings: str | Drafting = AUDIT.siblings,
    pairs: Sequence[tuple[ArrayLike, ArrayLike]] | None = None,
    mode: Mode = "auto",
    tolerance: float | None = None,
    seed: int = AUDIT.seed,
    alpha: float = AUDIT.alpha,
    max_samples: int = AUDIT.max_samples,
    max_shrink_calls: int = AUDIT.max_shrink_calls,
) -> AuditReport:
    """Find out whether a verifier emits tokens that follow the target.

    Parameters
    ----------
    verify : callable
        ``verify(target_probs, draft_probs, sibling_ids, uniforms) -> (token, accepted_idx)`` on numpy
        arrays (V,), (V,), (K,) and (n_uniforms,), the uniforms in [0, 1); ``accepted_idx`` is None if
        no sibling was accepted. `torch_batch` makes one from a torch function on batches.
    n_siblings : int
        Number K of siblings.
    n_uniforms : int, optional
        Uniforms that a call may use. Default: K + 1.
    siblings : str or callable
        ``"iid"``, ``"without_replacement"``, ``"topk"``, ``"hub"``, or a function ``(target_probs,
        draft_probs, n) -> iterable of (probability, ids)``, which may draft from something else than
        `draft_probs`. Fewer ids than n are allowed.
    pairs : sequence of (target_probs, draft_probs), optional
        Default: written and random pairs of 2 to 4 tokens.
    mode : {"auto", "exact", "sampling"}
        ``"exact"`` computes laws (see `law_of_verifier`); ``"sampling"`` is a sequential test for large
        vocabularies, or a verifier that draws from a generator of its own. ``"auto"`` tries the first.
    tolerance : float, optional
        Total variation distance that counts as rounding. Default: 1e-9, or what `verify` says.
    seed : int
    alpha : float
        Sampling mode: probability with which an exact verifier may be called biased.
    max_samples : int
        Sampling mode: tokens drawn at most.
    max_shrink_calls : int
        Calls of the verifier that are spent on a simpler counterexample. At 0 nothing is spent on that,
        nor on more pairs to tell known faults apart.

    Returns
    -------
    AuditReport

    Raises
    ------
    VerifierError
        If no call succeeds, or, in mode "exact", if the same arguments give different results.
    DistributionError, InputError
        If an argument is out of its range.

    Examples
    --------
    >>> def verify(p, q, ids, u):
    ...     if u[0] < p[ids[0]] / q[ids[0]]:
    ...         return ids[0], 0
    ...     return int(np.searchsorted(np.cumsum(p), u[1], side="right")), None
    >>> report = audit(verify, 1)
    >>> report.verdict, report.pattern.name
    ('biased', 'resampled from the target after a rejection')
    """
    n_siblings = check_n_siblings(n_siblings)
    n_uniforms = check_whole(
        "n_uniforms", n_siblings + 1 if n_uniforms is None else n_uniforms, at_least=1
    )
    siblings = check_siblings(siblings)
    seed = check_whole("seed", seed, at_least=0)
    max_samples = check_whole("max_samples", max_samples, at_least=1)
    if not 0 < check_number("alpha", alpha) < 1:
        raise InputError(f"alpha is {alpha}: it must be between 0 and 1")
    if mode not in ("auto", "exact", "sampling"):
        raise InputError(f"mode is {mode!r}: use auto, exact or sampling")
    if tolerance is None:
        tolerance = float(getattr(verify, "tolerance", AUDIT.tolerance))
    chosen = _pairs(pairs) if pairs is not None else pairs_to_check(seed, 4)
    kept = [pair for pair in chosen if _size(siblings, pair, n_siblings) <= AUDIT.max_tuples]
    rich = [sum(_is_rich(pair) for pair in some) for some in (chosen, kept)]
    common: dict[str, Any] = {
        "verifier": getattr(verify, "__name__", type(verify).__name__),
        "siblings": scheme_name(siblings),
        "n_siblings": n_siblings,
        "n_uniforms": n_uniforms,
    }
    record = provenance(
        **common, mode=mode, seed=seed, alpha=alpha, max_samples=max_samples, tolerance=tolerance
    )
    too_large = pairs is not None and len(kept) < len(chosen) or not any(map(_is_wide, kept))
    why = "the vocabulary is too large to enumerate siblings" if too_large else ""
    if mode == "exact" and too_large:
        raise InputError(
            f"mode 'exact' enumerates at most {AUDIT.max_tuples} sibling tuples (AUDIT.max_tuples), "
            f"which {n_siblings} siblings exceed: use mode='sampling', or give pairs of fewer tokens"
        )
    limit = ""
    if rich[1] < min(_MIN_RICH, rich[0]):
        limit = (
            f"with {n_siblings} siblings only {rich[1]} of {rich[0]} pairs with 3 drafted tokens or more "
            f"have at most {AUDIT.max_tuples} sibling tuples (AUDIT.max_tuples), and rules that are wrong "
            f"can be right for 2: audit fewer siblings, or use mode='sampling'"
        )

    def law_at(pair: Pair, n_probes: int) -> VerifierLaw:
        size = _size(siblings, pair, n_siblings)
        if size > AUDIT.max_tuples:
            raise InputError(f"{size} sibling tuples are more than {AUDIT.max_tuples}")
        return compute_law(
            verify, pair.target, pair.draft, n_siblings,
            n_uniforms=n_uniforms, siblings=siblings, seed=seed, n_probes=n_probes,
        )  # fmt: skip

    if mode != "sampling" and not too_large:
        try:
            report = exact_audit(
                verify, law_at, kept, siblings, tolerance, max_shrink_calls, seed, common
            )
            if report.verdict != "exact" and max_shrink_calls and isinstance(siblings, str):
                asked = partial(compute_law, verify, n_uniforms=n_uniforms, seed=seed)
                if hint := other_draws(asked, kept, siblings, n_siblings, tolerance):
                    report = replace(report, notes=(*report.notes, hint))
            if report.verdict == "exact" and limit:
                report = replace(report, verdict="undecided", notes=(limit,))
            if mode == "exact" or report.verdict != "undecided" or report.findings:
                return replace(report, provenance=record)
            why = limit or "its result was not seen to be constant on boxes of the uniforms"
        except VerifierError as error:
            if mode == "exact" or "same arguments" not in str(error):
                raise
            why = "the same arguments gave different results: it draws from a generator of its own"

    from resispec_sim.audit.sampling import sample_audit

    if pairs is None:
        # two tokens show less than three
        simple = [pair for pair in chosen if pair.simple]
        chosen = [pair for pair in simple if _is_rich(pair) or not limit][:6]
    report = sample_audit(
        verify, chosen, siblings, n_siblings, n_uniforms,
        seed=seed, alpha=alpha, max_samples=max_samples, common=common,
    )  # fmt: skip
    notes = (f"sampled, since {why}",) if why else ()
    return replace(report, assumptions=notes + report.assumptions, provenance=record)


def other_draws(
    law_of: Callable[..., VerifierLaw],
    pairs: Sequence[Pair],
    siblings: str,
    n_siblings: int,
    tolerance: float,
) -> str | None:
    """Words for a verifier that is right for siblings drawn in another way than those it was given.

    `law_of` takes target, draft and number of siblings, and the way of drawing as ``siblings=``.
    """
    wide = [p for p in pairs if _is_rich(p)][:_HINT_PAIRS]
    for other in POSITION_SCHEMES:
        if not wide or other == siblings or (other == "hub" and n_siblings != 2):
            continue
        try:
            right = all(
                not (law := law_of(p.target, p.draft, n_siblings, siblings=other)).findings
                and certain_tv(law) + law.unsettled <= tolerance
                for p in wide
            )
        except ResispecError:
            continue
        if right:
            return (
                f"its law is the target at {len(wide)} pairs where siblings are drawn as {other!r}: if "
                f"yours are, audit it with --draws {other} (in Python siblings={other!r})"
            )
    return None


_HINT_PAIRS = 6
_MIN_RICH = 8
_MAX_VOCAB = 64


def _size(siblings: str | Drafting, pair: Pair, n_siblings: int) -> int:
    if len(pair.target) > _MAX_VOCAB:
        return int(len(pair.target) ** n_siblings)  # many probes, however few the tuples are
    return count_tuples(siblings, pair.target, pair.draft, n_siblings)


def _is_rich(pair: Pair) -> bool:
    return int((pair.draft > 0).sum()) >= 3


def _is_wide(pair: Pair) -> bool:
    return int((pair.draft > 0).sum()) >= 2


def _pairs(pairs: Sequence[tuple[ArrayLike, ArrayLike]]) -> list[Pair]:
    found = []
    for pair in pairs:
        try:
            target_probs, draft_probs = pair
        except (TypeError, ValueError):
            raise InputError(
                f"pairs holds {pair!r}: give pairs (target_probs, draft_probs)"
            ) from None
        target = check_probs(target_probs, "target_probs")
        draft = check_probs(draft_probs, "draft_probs")
        if target.ndim != 1 or target.shape != draft.shape:
            raise InputError(f"pairs: {target.shape} and {draft.shape} must both be (V,)")
        given = (
            np.asarray(target_probs, dtype=np.float64),
            np.asarray(draft_probs, dtype=np.float64),
        )
        found.append(Pair(*given, simple=None))
    if not found:
        raise InputError("pairs is empty: give at least one (target_probs, draft_probs)")
    return found
