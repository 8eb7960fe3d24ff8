"""Names a biased verifier's fault by comparing its laws with those of known faults."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from resispec_sim.audit.drafting import Drafting, Tuples, enumerate_siblings
from resispec_sim.audit.exact import VerifierLaw
from resispec_sim.audit.known_faults import FAULTS, Fault
from resispec_sim.audit.pool import Pair
from resispec_sim.audit.report import Pattern
from resispec_sim.errors import ResispecError

_AT_COIN = Pattern(
    "accepts a token of target probability 0 at a coin of exactly 0",
    "The coin is compared with <= where < is meant: generators do return 0, and a ratio of 0 then "
    "accepts.",
)

_OFF_THE_END = Pattern(
    "residual not normalised",
    "No token gets too much, and mass leaves the vocabulary: so it is where the residual's cumulated "
    "sum ends below 1 and a coin above that runs off its end, to token V. Divide the residual by its "
    "sum, or multiply the coin by it.",
)


def recognise(
    laws: Sequence[tuple[Pair, VerifierLaw]],
    siblings: str | Drafting,
    n_siblings: int,
    tolerance: float,
) -> Pattern | None:
    """The first known fault whose law is the verifier's at every pair, or None.

    Parameters
    ----------
    laws : sequence of (Pair, VerifierLaw)
        What the verifier does; at one pair at least its law is not the target.
    siblings : str or callable
    n_siblings : int
    tolerance : float
        Largest difference of a probability that counts as agreement.
    """
    if any(law.outside > tolerance for _, law in laws):
        gone = all(law.excess - law.outside <= tolerance for _, law in laws)
        return replace(_OFF_THE_END, n_pairs=len(laws)) if gone else None
    # where calls fail the law is that of the failure
    whole = [law for _, law in laws if law.output_probs.sum() > 1 - 1e-9]
    biased = [law for law in whole if law.tv > tolerance]
    if not biased:
        edges = [f for _, law in laws for f in law.findings if f.at == 0]
        return _AT_COIN if edges else None
    known = [
        (law, enumerate_siblings(siblings, law.target_probs, law.draft_probs, n_siblings))
        for law in whole
    ]
    drafted_as_said = isinstance(siblings, str)
    matches = [
        (fault, gap)
        for fault in FAULTS
        if fault.of_drafting != drafted_as_said
        and fault.siblings in (None, siblings)
        and (gap := _acceptance_gap(fault, known, max(tolerance, 1e-9))) is not None
    ]
    if not matches:
        return None
    # faults with the same law differ in what they accept
    matches.sort(key=lambda match: match[1] > max(tolerance, 1e-9))
    first = matches[0][0]
    also = tuple(dict.fromkeys(f.name for f, _ in matches[1:] if f.name != first.name))
    return Pattern(first.name, first.explanation, n_pairs=len(known), also=also)


def _acceptance_gap(
    fault: Fault, known: Sequence[tuple[VerifierLaw, Tuples]], tolerance: float
) -> float | None:
    """Largest difference of the total acceptance, or None where a law differs."""
    gap = 0.0
    for law, tuples in known:
        try:
            emitted, accepted = law_of_fault(fault, law.target_probs, law.draft_probs, tuples)
        except ResispecError:
            return None
        if not np.abs(emitted - law.output_probs).max() <= tolerance:
            return None
        gap = max(gap, abs(accepted - float(law.accepted.sum())))
    return gap


def law_of_fault(
    fault: Fault, target: np.ndarray, draft: np.ndarray, tuples: Tuples
) -> tuple[np.ndarray, float]:
    """What a known fault emits, (V,), and its total acceptance.

    `tuples` are the siblings with their probabilities.
    """
    emitted, total = np.zeros(len(target)), 0.0
    with np.errstate(all="ignore"):
        for weight, ids in tuples:
            decision = fault.decide(target, draft, ids)
            for token, accepted in zip(decision.ids, decision.accepted, strict=True):
                emitted[token] += weight * accepted
                total += weight * accepted
            emitted += weight * (1 - sum(decision.accepted)) * decision.residual
    return emitted, float(total)
