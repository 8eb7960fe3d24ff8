"""Exact mode: the laws at all pairs, what they say together, and a simple counterexample."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from resispec_sim.audit.calling import Finding
from resispec_sim.audit.drafting import Drafting
from resispec_sim.audit.exact import PROBES, VerifierLaw, contradictions
from resispec_sim.audit.patterns import recognise
from resispec_sim.audit.pool import Pair, pairs_to_check
from resispec_sim.audit.report import AuditReport, Counterexample, Verdict
from resispec_sim.audit.shrink import as_fractions, shrink
from resispec_sim.config import AUDIT
from resispec_sim.errors import ResispecError, VerifierError

LawAt = Callable[[Pair, int], VerifierLaw]

FALSE_ALARM = 1e-6
"""Probability with which random calls may fail to contradict a law that is wrong by what they test."""

ROUNDING = 1e-6
"""Total variation distances below are the size of what float32 rounds."""

_MOST_CALLS = 20_000
_SANITY = 4, 500  # pairs, and calls at each
_DENSE_CALLS = 10_000
_LAW_IS_AT_FAULT = ("zero probability", "edits its inputs")


class ContradictedError(ResispecError):
    """Random calls differ from the boxes: more probes are needed."""


def exact_audit(
    verify: Any,
    law_at: LawAt,
    pairs: Sequence[Pair],
    siblings: str | Drafting,
    tolerance: float,
    max_shrink_calls: int,
    seed: int,
    common: dict[str, Any],
) -> AuditReport:
    """The report of exact mode; with more probes wherever random calls contradict the boxes.

    `law_at` gives the law at a pair with a number of additional probes; `common` are fields of the
    report.
    """
    seen: list[tuple[Pair, VerifierLaw]] = []
    for n_probes in PROBES:
        audit = _Exact(
            verify, partial(_law_at, law_at, n_probes), law_at, siblings, tolerance,
            max_shrink_calls, seed, common, n_probes,
        )  # fmt: skip
        try:
            return audit.run(pairs)
        except ContradictedError:
            seen = audit.seen
    note = (
        "random calls contradict the boxes on which the result was taken to be constant, even with "
        f"{PROBES[-1]} more probes of every uniform: no law can be stated; use mode='sampling'"
    )
    return replace(_summary("undecided", seen, tolerance, common), notes=(note,))


def _law_at(law_at: LawAt, n_probes: int, pair: Pair) -> VerifierLaw:
    return law_at(pair, n_probes)


class _Exact:
    """One pass over the pairs with a given number of additional probes."""

    def __init__(
        self,
        verify: Any,
        law_at: Callable[[Pair], VerifierLaw],
        law_with: LawAt,
        siblings: str | Drafting,
        tolerance: float,
        max_shrink_calls: int,
        seed: int,
        common: dict[str, Any],
        n_probes: int,
    ) -> None:
        self.verify, self.law_at, self.law_with = verify, law_at, law_with
        self.siblings, self.tolerance, self.seed = siblings, tolerance, seed
        self.max_shrink_calls, self.common, self.n_probes = max_shrink_calls, common, n_probes
        self.seen: list[tuple[Pair, VerifierLaw]] = []

    def run(self, pairs: Sequence[Pair]) -> AuditReport:
        """The verdict, or `ContradictedError`."""
        worst: tuple[Pair, VerifierLaw] | None = None
        loose = False
        for pair in pairs:
            law = self.law_at(pair)
            self.seen.append((pair, law))
            if len(self.seen) == 1:
                _check_some_success(law)
            if worst is None and self._is_wrong(law):
                worst = pair, law
            loose = loose or law.unsettled > self.tolerance
            # a verifier that is not constant on boxes is so nearly everywhere
            if loose and worst is None:
                break
            if worst is not None and len(self.seen) >= AUDIT.n_pattern_pairs:
                break
        if worst is not None:
            return self._biased(*worst)
        findings = self._findings()
        if loose or findings:
            failed = max(law.failed for _, law in self.seen)
            note = right_but(findings, failed) if findings else self._not_constant()
            return replace(self._summary("undecided"), findings=findings, notes=(note,))
        self._check_some_boxes()
        return self._summary("exact")

    def _is_wrong(self, law: VerifierLaw) -> bool:
        """Whether no result of the calls that fail could make the law right."""
        if any(finding.kind in _LAW_IS_AT_FAULT for finding in law.findings):
            return True
        return certain_tv(law) - law.unsettled > self.tolerance

    def _findings(self) -> tuple[Finding, ...]:
        found = {f.kind: f for _, law in reversed(self.seen) for f in law.findings}
        return tuple(found.values())

    def _not_constant(self) -> str:
        share = max(law.unsettled for _, law in self.seen)
        return (
            f"the result was not seen to be constant on boxes of the uniforms, on {share:.2g} of their "
            f"volume: no law can be stated there; use mode='sampling'"
        )

    def _check_some_boxes(self) -> None:
        n_pairs, n_calls = _SANITY
        most = sorted(self.seen, key=lambda both: -both[1].n_cells)[:n_pairs]
        if any(contradictions(self.verify, law, self.seed, n_calls) for _, law in most):
            raise ContradictedError

    def _confirm(self, pair: Pair, law: VerifierLaw) -> str:
        """What random calls say for the law, or `ContradictedError`."""
        bias = max(law.tv - law.unsettled, 1e-12)
        wanted = math.ceil(math.log(1 / FALSE_ALARM) / bias)
        n_calls = max(200, min(wanted, _MOST_CALLS))
        if contradictions(self.verify, law, self.seed, n_calls):
            raise ContradictedError
        if wanted <= n_calls:
            return (
                f"{n_calls} random calls at the counterexample return what their boxes say; were the law "
                f"the target, they would with probability {FALSE_ALARM:g} at most"
            )
        # too small a bias for random calls: look between the probes instead
        n_probes = self.n_probes + max(8, min(256, 32 * _DENSE_CALLS // max(law.n_calls, 1)))
        dense = self.law_with(pair, n_probes)
        if abs(dense.output_probs - law.output_probs).max() > max(self.tolerance, 1e-9):
            raise ContradictedError
        return (
            f"{n_calls} random calls at the counterexample return what their boxes say, and {n_probes} "
            f"more probes of every uniform find the same law; so small a bias could still be a change "
            f"that no probe met"
        )

    def _biased(self, pair: Pair, law: VerifierLaw) -> AuditReport:
        by_law = law.tv - law.unsettled > self.tolerance
        said = self._confirm(pair, law) if by_law else ""
        smaller, small_law = shrink(
            self.law_at, pair, law,
            least_bias=max(AUDIT.least_bias, self.tolerance), max_calls=self.max_shrink_calls,
        )  # fmt: skip
        if by_law and smaller is not pair:
            with suppress(ContradictedError):
                said = self._confirm(smaller, small_law)
                pair, law = smaller, small_law
        else:
            pair, law = smaller, small_law
        compared = [*self.seen, (pair, law)]
        for other in pairs_to_check(AUDIT.seed, 4) if self.max_shrink_calls else []:
            if len(compared) > AUDIT.n_pattern_pairs:
                break
            with suppress(ResispecError):  # a way of drafting that is made for the caller's pairs
                compared.append((other, self.law_at(other)))
        pattern = recognise(compared, self.siblings, self.common["n_siblings"], self.tolerance)
        found = {f.kind: f for f in self._findings()}
        found.update({f.kind: f for f in law.findings})
        pair = as_fractions(pair)
        counterexample = Counterexample(
            target_probs=law.target_probs,
            draft_probs=law.draft_probs,
            simple=pair.simple,
            n_siblings=self.common["n_siblings"],
            law=law.output_probs,
            right=law.target_probs,
            accepted=law.accepted,
            tv=law.tv,
            outside=law.outside,
        )
        report = self._summary("biased", law)
        largest = report.checked["largest_tv"]
        notes = (leaves_note(law.outside),) if law.outside > self.tolerance else ()
        return replace(
            report,
            counterexample=counterexample,
            pattern=pattern,
            findings=tuple(found.values()),
            notes=notes
            + ((rounding_note(largest),) if self.tolerance < largest < ROUNDING else ()),
            assumptions=report.assumptions + ((said,) if said else ()),
        )

    def _summary(self, verdict: Verdict, shrunk: VerifierLaw | None = None) -> AuditReport:
        return _summary(verdict, self.seen, self.tolerance, self.common, shrunk)


def certain_tv(law: VerifierLaw) -> float:
    """Total variation distance from the target, whatever the calls that fail would emit."""
    return law.excess if law.failed else law.tv


def right_but(findings: Sequence[Finding], failed: float = 0.0) -> str:
    """Words for a verifier whose calls fail with some probability, though no token gets too much."""
    text = f"the law is right where it could be computed, but the verifier {findings[0].message}"
    if failed > 0:
        return f"{text}; calls fail with probability {failed:.3g} at the worst pair: no law there"
    return text


def leaves_note(outside: float) -> str:
    """Words for a verifier that emits what is no token."""
    return (
        f"a mass of {outside:.6g} leaves the vocabulary at the counterexample below: the verifier "
        "emits tokens that do not exist, to which the target gives no mass"
    )


def rounding_note(tv: float) -> str:
    """Words for a bias that rounding explains."""
    return (
        f"a distance of {tv:.2g} is the size of float32 rounding: if that is what you expect, "
        f"tolerance={ROUNDING:g} (--tolerance {ROUNDING:g}) accepts it"
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
    shrunk: VerifierLaw | None = None,
) -> AuditReport:
    """The report of all pairs; the counterexample's law counts for the largest distance as well."""
    laws = [law for _, law in seen]
    compared = laws if shrunk is None else [*laws, shrunk]
    sizes = sorted({len(law.output_probs) for law in laws})
    checked = {
        "pairs": len(laws),
        "vocabulary_sizes": f"{sizes[0]} to {sizes[-1]}",
        "calls": sum(law.n_calls for law in laws),
        "boxes": sum(law.n_cells for law in laws),
        "largest_tv": float(f"{max(map(certain_tv, compared)):.3g}"),
        "tolerance": tolerance,
    }
    assumptions = dict.fromkeys(text for law in laws for text in law.assumptions)
    return AuditReport(
        **common, verdict=verdict, mode="exact", checked=checked, assumptions=tuple(assumptions)
    )
