"""The audit of a verifier: chooses the mode, runs it, and reports."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from resispec_sim.audit.drafting import Drafting, check_siblings, scheme_name
from resispec_sim.audit.exact import VerifierLaw, law_of_verifier
from resispec_sim.audit.patterns import recognise
from resispec_sim.audit.pool import Pair, pairs_to_check
from resispec_sim.audit.report import AuditReport, Counterexample, Verdict
from resispec_sim.audit.shrink import as_fractions, shrink
from resispec_sim.checks import check_n_siblings, check_number, check_whole
from resispec_sim.config import AUDIT
from resispec_sim.errors import InputError, ResispecError, VerifierError
from resispec_sim.probs import check_probs
from resispec_sim.provenance import provenance

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
    max_vocab = int(AUDIT.max_tuples ** (1 / n_siblings) + 1e-9)
    chosen = _pairs(pairs) if pairs is not None else pairs_to_check(seed, max_vocab)
    common: dict[str, Any] = {
        "verifier": getattr(verify, "__name__", type(verify).__name__),
        "siblings": scheme_name(siblings),
        "n_siblings": n_siblings,
        "n_uniforms": n_uniforms,
    }
    record = provenance(
        **common, mode=mode, seed=seed, alpha=alpha, max_samples=max_samples, tolerance=tolerance
    )
    too_large = not chosen or max(len(pair.target) for pair in chosen) > max_vocab
    why = "the vocabulary is too large to enumerate siblings" if too_large else ""
    if mode == "exact" and too_large:
        raise InputError(
            f"mode 'exact' enumerates at most {AUDIT.max_tuples} sibling tuples: {n_siblings} siblings "
            f"allow {max_vocab} tokens; use mode='sampling'"
        )

    def law_at(pair: Pair) -> VerifierLaw:
        return law_of_verifier(
            verify, pair.target, pair.draft, n_siblings,
            n_uniforms=n_uniforms, siblings=siblings, seed=seed,
        )  # fmt: skip

    if mode != "sampling" and not too_large:
        try:
            report = _exact(
                law_at, chosen, siblings, tolerance, max_shrink_calls, max_vocab, common
            )
            if mode == "exact" or report.verdict != "undecided":
                return replace(report, provenance=record)
            why = "its result is not constant on boxes of the uniforms"
        except VerifierError as error:
            if mode == "exact" or "same arguments" not in str(error):
                raise
            why = "the same arguments gave different results: it draws from a generator of its own"

    from resispec_sim.audit.sampling import sample_audit

    if pairs is None:
        chosen = [pair for pair in pairs_to_check(seed, 4) if pair.simple][:6]
    report = sample_audit(
        verify, chosen, siblings, n_siblings, n_uniforms,
        seed=seed, alpha=alpha, max_samples=max_samples, common=common,
    )  # fmt: skip
    notes = (f"sampled, since {why}",) if why else ()
    return replace(report, assumptions=notes + report.assumptions, provenance=record)


def _pairs(pairs: Sequence[tuple[ArrayLike, ArrayLike]]) -> list[Pair]:
    found = []
    for target_probs, draft_probs in pairs:
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


def _exact(
    law_at: Any,
    pairs: Sequence[Pair],
    siblings: str | Drafting,
    tolerance: float,
    max_shrink_calls: int,
    max_vocab: int,
    common: dict[str, Any],
) -> AuditReport:
    seen: list[tuple[Pair, VerifierLaw]] = []
    worst: tuple[Pair, VerifierLaw] | None = None
    for pair in pairs:
        law = law_at(pair)
        seen.append((pair, law))
        if len(seen) == 1:
            _check_some_success(law)
        if law.tv - law.unsettled > tolerance or law.findings:
            worst = worst or (pair, law)
        elif law.unsettled > tolerance and worst is None:
            return _summary("undecided", seen, tolerance, common)
        if worst is not None and len(seen) >= AUDIT.n_pattern_pairs:
            break
    if worst is None:
        return _summary("exact", seen, tolerance, common)
    pair, law = shrink(
        law_at, *worst, least_bias=max(AUDIT.least_bias, tolerance), max_calls=max_shrink_calls
    )
    compared = [*seen, (pair, law)]
    for other in pairs_to_check(AUDIT.seed, max_vocab) if max_shrink_calls else []:
        if len(compared) > AUDIT.n_pattern_pairs:
            break
        with suppress(ResispecError):  # a way of drafting that is made for the caller's pairs
            compared.append((other, law_at(other)))
    pattern = recognise(compared, siblings, common["n_siblings"], tolerance)
    found = {(f.kind): f for _, other in seen for f in other.findings}
    found.update({f.kind: f for f in law.findings})
    pair = as_fractions(pair)
    counterexample = Counterexample(
        target_probs=law.target_probs,
        draft_probs=law.draft_probs,
        simple=pair.simple,
        n_siblings=common["n_siblings"],
        law=law.output_probs,
        right=law.target_probs,
        accepted=law.accepted,
        tv=law.tv,
    )
    report = _summary("biased", seen, tolerance, common)
    return replace(
        report, counterexample=counterexample, pattern=pattern, findings=tuple(found.values())
    )


def _check_some_success(law: VerifierLaw) -> None:
    failed = [f for f in law.findings if f.kind in ("raises", "bad result")]
    if failed and not law.output_probs.any():
        raise VerifierError(f"every call of the verifier fails: it {failed[0].message}")


def _summary(
    verdict: Verdict,
    seen: Sequence[tuple[Pair, VerifierLaw]],
    tolerance: float,
    common: dict[str, Any],
) -> AuditReport:
    laws = [law for _, law in seen]
    sizes = sorted({len(law.output_probs) for law in laws})
    checked = {
        "pairs": len(laws),
        "vocabulary_sizes": f"{sizes[0]} to {sizes[-1]}",
        "calls": sum(law.n_calls for law in laws),
        "boxes": sum(law.n_cells for law in laws),
        "largest_tv": float(f"{max(law.tv for law in laws):.3g}"),
        "tolerance": tolerance,
    }
    assumptions = dict.fromkeys(text for law in laws for text in law.assumptions)
    return AuditReport(
        **common, verdict=verdict, mode="exact", checked=checked, assumptions=tuple(assumptions)
    )
