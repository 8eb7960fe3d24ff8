"""The audit of verifiers that emit what is no token, of odd ways of drafting, and its largest distance."""

import json

import numpy as np
import pytest

from resispec_sim.audit import audit, law_of_verifier
from resispec_sim.audit.run import other_draws
from resispec_sim.audit.shrink import shrink
from tests import fault_verifiers as verifiers

TARGET, DRAFT = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])


def not_normalised(target_probs, draft_probs, sibling_ids, uniforms):
    """The residual's cumulated sum ends below 1, and coins above it give token V."""
    token = sibling_ids[0]
    if uniforms[0] * draft_probs[token] < target_probs[token]:
        return token, 0
    residual = np.maximum(target_probs - draft_probs, 0)
    return int(np.searchsorted(np.cumsum(residual), uniforms[1], side="right")), None


def minus_one(target_probs, draft_probs, sibling_ids, uniforms):
    """Token -1 in a fifth of the calls, and the right law else."""
    if uniforms[0] < 0.2:
        return -1, None
    edges = np.cumsum(target_probs)
    return int(np.searchsorted(edges, uniforms[1] * edges[-1], side="right")), None


def raising(target_probs, draft_probs, sibling_ids, uniforms):
    """Fails in a quarter of the calls; the law of the others is right."""
    if uniforms[0] < 0.25:
        raise RuntimeError("out of memory")
    return minus_one(target_probs, draft_probs, sibling_ids, np.array([1.0, uniforms[1]]))


def shown(report):
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(width=200, file=out).print(report.table())
    return " ".join(out.getvalue().split())


def test_mass_outside_the_vocabulary_is_in_the_law():
    law = law_of_verifier(not_normalised, TARGET, DRAFT, 1)
    # rejected with probability 0.4, and the residual sums to 0.4
    assert law.outside == pytest.approx(0.4 * 0.6, abs=1e-12)
    assert law.tv == pytest.approx(law.outside, abs=1e-12)
    assert law.failed == 0 and law.excess == pytest.approx(law.outside, abs=1e-12)
    assert law_of_verifier(verifiers.specinfer, TARGET, DRAFT, 1).outside == 0
    failing = law_of_verifier(raising, TARGET, DRAFT, 1)
    assert failing.failed == pytest.approx(0.25, abs=1e-12) and failing.outside == 0


def test_a_residual_that_is_not_normalised_is_called_so():
    report = audit(not_normalised, 1)
    assert report.verdict == "biased" and report.pattern.name == "residual not normalised"
    found = report.counterexample
    assert found.outside == pytest.approx(found.tv, abs=1e-12) and found.outside > 0.1
    assert json.loads(report.to_json())["counterexample"]["outside"] == found.outside
    text = shown(report)
    assert f"a mass of {found.outside:.6g} leaves the vocabulary" in text
    assert "none of these" in text and "right where it could be computed" not in text


def test_tokens_that_do_not_exist_are_a_bias_of_another_kind():
    report = audit(minus_one, 1)
    assert report.verdict == "biased" and report.counterexample.outside == pytest.approx(0.2)

    def both(target_probs, draft_probs, sibling_ids, uniforms):
        token, idx = not_normalised(target_probs, draft_probs, sibling_ids, uniforms)
        return (token, idx) if idx is None or uniforms[0] < 0.5 else (0, None)

    report = audit(both, 1)
    assert report.verdict == "biased" and report.pattern is None


@pytest.mark.parametrize("verify", [not_normalised, minus_one])
def test_sampling_sees_them_too(verify):
    report = audit(verify, 1, mode="sampling", max_samples=600)
    assert report.verdict == "biased" and report.p_value == 0
    assert "do not exist in the vocabulary" in report.notes[0]
    outside = audit(lambda *call: (99, None), 1, mode="sampling", max_samples=64)
    assert outside.verdict == "biased" and outside.notes[0].startswith("64 of 64")


def test_calls_that_fail_are_counted_and_no_distance():
    report = audit(raising, 1)
    assert report.verdict == "undecided"
    assert "calls fail with probability 0.25" in report.notes[0]
    # what those calls would emit is not known
    assert report.checked["largest_tv"] < 1e-12


def test_a_token_that_is_no_number_is_a_call_that_fails():
    report = audit(lambda p, q, ids, u: (0.5, None) if u[0] < 0.1 else (0, None), 1)
    assert any(finding.kind == "bad result" for finding in report.findings)
    assert all(finding.kind != "bad token" for finding in report.findings)


def test_the_largest_distance_is_not_below_the_counterexample(monkeypatch):
    seen = []

    def remember(*arguments, **options):
        pair, law = shrink(*arguments, **options)
        seen.append(law.tv)
        return pair, law

    monkeypatch.setattr("resispec_sim.audit.deciding.shrink", remember)
    pairs = [([0.41, 0.39, 0.2], [0.4, 0.4, 0.2])] * 2
    report = audit(verifiers.resampled_from_target, 1, pairs=pairs)
    law = law_of_verifier(verifiers.resampled_from_target, *pairs[0], 1)
    assert report.counterexample.tv == seen[0] > law.tv
    assert report.checked["largest_tv"] == pytest.approx(seen[0], rel=1e-2)


def test_the_way_of_drawing_is_hinted_at():
    report = audit(verifiers.without_replacement, 2, max_shrink_calls=2000)
    assert report.verdict == "biased"
    assert any("--draws without_replacement" in note for note in report.notes)
    again = audit(verifiers.without_replacement, 2, siblings="without_replacement")
    assert again.verdict == "exact" and not again.notes
    # wrong for every way of drawing: no hint
    frozen = audit(verifiers.frozen_residual, 2, max_shrink_calls=2000)
    assert not any("--draws" in note for note in frozen.notes)


def test_no_hint_without_pairs_that_could_show_it():
    def law_of(*arguments, **options):
        raise AssertionError

    assert other_draws(law_of, [], "iid", 2, 1e-9) is None
