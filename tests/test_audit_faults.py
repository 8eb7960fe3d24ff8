"""Faults that were reported in public, each rebuilt as a small verifier: what it emits, what is right."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from resispec_sim.audit import audit, law_of_verifier
from resispec_sim.engine.law import exact_law
from resispec_sim.errors import DistributionError, LogitsError
from resispec_sim.probs import logits_to_probs
from resispec_sim.rules import SpecInfer
from resispec_sim.rules.siblings import sibling_tuples
from tests import fault_verifiers as verifiers
from tests.exact_paths import path_law
from tests.strategies import EDGE_PAIRS

ROUNDED_TO_ONE = Fraction(1, 2**25)
"""Coins from ``1 - 2**-25`` on are 1 as float32; ``1 - x`` is 1 there for x up to it."""


def exact(text: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(part) for part in text.split())


A = exact("1/2 3/10 1/5"), exact("1/5 1/5 3/5")


@dataclass(frozen=True)
class Fault:
    """A verifier, how it is fed, and its law in one small case."""

    source: str
    verify: Any
    target_probs: tuple[Fraction, ...]
    draft_probs: tuple[Fraction, ...]
    law: tuple[Fraction, ...]
    n_siblings: int = 1
    siblings: Any = "iid"
    # floats only: what is at fault is rounding
    rational: bool = True
    # biased for some pairs of some sizes only; the others search the audit's own pairs
    needs_pair: bool = False

    @property
    def pair(self):
        return np.array(self.target_probs, float), np.array(self.draft_probs, float)

    @property
    def setting(self):
        return {"n_siblings": self.n_siblings, "siblings": self.siblings}


def _float32_case() -> tuple[tuple[Fraction, ...], ...]:
    """Token 0 has a ratio that float32 loses; the residual is then the target on tokens 0 and 1."""
    target = exact("3/8 1/2 1/8")
    small = target[0] * ROUNDED_TO_ONE
    draft = (small, Fraction(0), 1 - small)
    rejected = draft[2] - target[2]
    law = (small + rejected * Fraction(3, 7), rejected * Fraction(4, 7), target[2])
    return target, draft, law


V = verifiers
FAULTS = [
    Fault("transformers #32867", V.single_draft, *map(exact, ("2/5 3/5", "3/5 2/5", "2/3 1/3")),
          siblings=V.draft_argmax),
    Fault("transformers #47932", V.single_draft,
          *map(exact, ("1/2 3/10 1/5", "1/2 1/4 1/4", "2/3 1/3 0")), siblings=V.draft_top_two),
    Fault("TensorRT-LLM #12588, independent", V.frozen_residual, *A, exact("2/5 8/25 7/25"), 2),
    Fault("TensorRT-LLM #12588, without replacement", V.frozen_residual, *A, exact("2/5 2/5 1/5"),
          2, "without_replacement"),
    Fault("llama.cpp #5625, #27694", V.residual_by_position,
          *map(exact, ("1/2 3/10 0 1/5", "1/5 0 2/5 2/5", "4/5 0 0 1/5"))),
    Fault("xLLM #2175", V.one_hot_residual, *A, exact("9/20 7/20 1/5")),
    Fault("Spec-RL #14", V.resampled_from_target, *A, exact("2/5 8/25 7/25")),
    Fault("vLLM #41834", V.nan_draft_row, *A, exact("1 0 0"), rational=False),
    Fault("MTPLX #82", V.nan_past_the_fallback, A[0], A[0],
          tuple((1 - ROUNDED_TO_ONE) * p + ROUNDED_TO_ONE * (x == 0) for x, p in enumerate(A[0])),
          rational=False, needs_pair=True),
    Fault("vLLM #46665", V.float32_log_residual, *_float32_case(), rational=False, needs_pair=True),
    Fault("vLLM #5203, #10913, #42775", V.cut_to_the_draft,
          *map(exact, ("2/5 3/10 1/5 1/10", "1/2 3/10 1/5 0", "4/9 1/3 2/9 0")), needs_pair=True),
    Fault("verl #66, EAGLE #222", V.unmapped_draft_row,
          *map(exact, ("2/5 3/10 1/5 1/10", "1/2 0 1/2 0", "2/5 0 17/30 1/30")), needs_pair=True),
    Fault("positions misaligned", V.positions_misaligned, *A, exact("3/10 1/10 3/5")),
    Fault("duplicates skipped", V.duplicates_skipped, *A, exact("23/50 17/50 1/5"), 2),
    Fault("siblings without replacement verified as if independent", V.specinfer, *A,
          exact("2/5 2/5 1/5"), 2, "without_replacement"),
    Fault("independent siblings verified as if without replacement", V.without_replacement, *A,
          exact("14/25 6/25 1/5"), 2),
    Fault("ResiSpec, one sibling", V.resispec, *A, exact("7/16 29/80 1/5")),
    Fault("ResiSpec, two siblings", V.resispec, *A, exact("127/304 581/1520 1/5"), 2),
]  # fmt: skip
IDS = [fault.source for fault in FAULTS]


def in_fractions(scheme):
    """A sibling scheme, or a callable, for the enumeration in rationals."""
    if callable(scheme) or scheme == "iid":
        return None if scheme == "iid" else scheme

    def siblings(target_probs, draft_probs, n_siblings):
        return sibling_tuples(scheme, np.array(draft_probs, dtype=object), n_siblings)

    return siblings


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.rational], ids=lambda f: f.source)
def test_the_stated_law_in_rationals(fault):
    law = path_law(
        fault.verify,
        fault.target_probs,
        fault.draft_probs,
        fault.n_siblings,
        siblings=in_fractions(fault.siblings),
    )
    assert law.output_probs == list(fault.law) != list(fault.target_probs)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_the_stated_law_in_exact_mode(fault):
    law = law_of_verifier(fault.verify, *fault.pair, **fault.setting)
    assert law.output_probs == pytest.approx(np.array(fault.law, float), rel=0, abs=1e-9)
    # further apart than the tolerance, or the line above would say nothing
    assert np.abs(law.output_probs - fault.pair[0]).max() > 3e-9


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_faults_are_called_biased(fault):
    pairs = [fault.pair] if fault.needs_pair else None
    report = audit(fault.verify, **fault.setting, pairs=pairs, mode="exact", max_shrink_calls=9000)
    assert report.verdict == "biased"
    found = report.counterexample
    assert np.array_equal(found.right, found.target_probs) and found.tv > 3e-9
    if fault.rational:
        law = path_law(
            fault.verify, *found.simple, fault.n_siblings, siblings=in_fractions(fault.siblings)
        )
        assert found.law == pytest.approx(np.array(law.output_probs, float), rel=0, abs=1e-9)


CORRECT = [
    ("SpecInfer", V.specinfer, "iid", 3),
    ("without replacement", V.without_replacement, "without_replacement", 3),
    ("K-SEQ", V.k_seq, "iid", 2),
    ("single draft", V.single_draft, "iid", 1),
    ("target only: acceptance with q = 1 and distinct siblings", V.target_only, "topk", 3),
    ("target only, repeated siblings", V.target_only, "iid", 2),
    ("target-sample matching", V.target_sample, "iid", 3),
    ("target-sample matching, distinct siblings", V.target_sample, "topk", 3),
]


@pytest.mark.parametrize(
    ("name", "verify", "siblings", "n_max"), CORRECT, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_correct_verifiers_in_rationals(name, verify, siblings, n_max):
    for _, target, draft in EDGE_PAIRS:
        for n_siblings in range(1, n_max + 1) if len(target) <= 4 else [1]:
            law = path_law(verify, target, draft, n_siblings, siblings=in_fractions(siblings))
            assert law.output_probs == list(target)


@pytest.mark.parametrize(
    ("name", "verify", "siblings", "n_max"), CORRECT, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_correct_verifiers_are_called_exact(name, verify, siblings, n_max):
    report = audit(verify, n_max, siblings=siblings, mode="exact")
    assert report.verdict == "exact", report


def test_temperature_at_drafting_only():
    """Logits (2, 1, 0) and (1, 2, 0), the user's temperature 1/2, the verifier's 1."""
    (target, draft), (verified, tested) = (
        [logits_to_probs(logits, temperature=t) for logits in ([2.0, 1, 0], [1.0, 2, 0])]
        for t in (0.5, 1.0)
    )
    accepted = draft * np.minimum(1, verified / tested)
    left = np.maximum(verified - tested, 0)
    wrong = accepted + (1 - accepted.sum()) * left / left.sum()
    assert wrong == pytest.approx([0.665241, 0.318883, 0.015876], abs=5e-7)
    assert target == pytest.approx([0.866813, 0.117310, 0.015876], abs=5e-7)
    law = law_of_verifier(V.untempered, target, draft, 1)
    assert law.output_probs == pytest.approx(wrong, rel=0, abs=1e-9)
    assert audit(V.untempered, 1, mode="exact").verdict == "biased"
    # the same rows for both: right
    law = law_of_verifier(V.single_draft, target, draft, 1)
    assert law.output_probs == pytest.approx(target, rel=0, abs=1e-12)


def test_a_coin_of_zero_accepts_what_the_target_never_emits():
    target, draft = np.array([0.0, 0.5, 0.5]), np.array([0.5, 0.25, 0.25])
    coins = np.array([0.0, 0.25])
    assert V.accepts_at_coin_zero(target, draft, np.array([0]), coins) == (0, 0)
    assert V.single_draft(target, draft, np.array([0]), coins) == (1, None)
    report = audit(V.accepts_at_coin_zero, 1, mode="exact")
    assert report.verdict != "exact"
    assert any(finding.kind.startswith("zero probability") for finding in report.findings)


def test_a_target_edited_in_place_is_named():
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    ids, coins = np.array([2, 1]), np.array([0.9, 0.9, 0.5])
    first, second = (V.edits_target_in_place(target, draft, ids, coins) for _ in range(2))
    assert first == (0, None) and target.tolist() != [0.5, 0.3, 0.2]
    report = audit(V.edits_target_in_place, 2, siblings="without_replacement", mode="exact")
    assert report.verdict != "exact"
    assert "edits its inputs" in {finding.kind for finding in report.findings}


def test_a_nan_is_a_named_error_everywhere():
    with pytest.raises(LogitsError, match="token 1: logit is nan"):
        logits_to_probs([0.0, np.nan, 1.0])
    spoilt = [0.5, np.nan, 0.5]
    with pytest.raises(DistributionError, match="token 1: probability is nan"):
        exact_law(SpecInfer(), [0.5, 0.3, 0.2], spoilt, 1)
    with pytest.raises(DistributionError, match="token 1: probability is nan"):
        audit(V.single_draft, 1, pairs=[([0.5, 0.3, 0.2], spoilt)], mode="exact")
    with pytest.raises(DistributionError, match="token 1: probability is nan"):
        law_of_verifier(V.single_draft, [0.5, 0.3, 0.2], spoilt, 1)
