"""The audit in exact mode: laws, counterexamples, patterns, failures, adapters, and the command."""

import json
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim.audit import audit, law_of_verifier, torch_batch
from resispec_sim.audit.command import audit_command, load_function
from resispec_sim.audit.drafting import Drafter, count_tuples, enumerate_siblings
from resispec_sim.audit.known_faults import FAULTS
from resispec_sim.audit.patterns import law_of_fault
from resispec_sim.audit.pool import pairs_to_check, simple_pairs
from resispec_sim.engine.oracle import enumerate_law
from resispec_sim.errors import InputError, VerifierError
from resispec_sim.rules import ResiSpec, SpecInfer
from tests import fault_verifiers as verifiers
from tests.strategies import EDGE_PAIRS, prob_pairs

TARGET, DRAFT = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])


def floats(pair):
    return [np.array([float(mass) for mass in probs]) for probs in pair]


def pick(residual, coin):
    edges = np.cumsum(residual)
    return int(np.searchsorted(edges, coin * edges[-1], side="right"))


def vectorised(target_probs, draft_probs, sibling_ids, uniforms):
    """SpecInfer that looks at all uniforms at once, through plain arrays."""
    coins, residual = np.asarray(uniforms), target_probs
    for idx, token in enumerate(sibling_ids):
        if coins[idx] * draft_probs[token] < residual[token]:
            return token, idx
        left = np.maximum(residual - draft_probs, 0)
        residual = left / left.sum()
    return pick(residual, coins[-1]), None


RULES = [(SpecInfer(), verifiers.specinfer), (ResiSpec(), verifiers.resispec)]


@pytest.mark.parametrize(("rule", "verify"), RULES, ids=lambda x: getattr(x, "label", ""))
@given(pair=prob_pairs(max_vocab=3, min_vocab=2), n_siblings=st.integers(1, 2))
@settings(max_examples=25)
def test_the_law_is_that_of_the_rule_in_rationals(rule, verify, pair, n_siblings):
    right = enumerate_law(rule, *pair, n_siblings)
    law = law_of_verifier(verify, *floats(pair), n_siblings)
    assert law.output_probs == pytest.approx(floats([right.output_probs])[0], rel=0, abs=1e-12)
    assert law.accepted == pytest.approx(floats([right.accepted])[0], rel=0, abs=1e-12)
    assert law.accepted_by_token.sum(axis=1) == pytest.approx(law.accepted)
    assert law.unsettled == 0


@pytest.mark.parametrize("pair", [p for p in EDGE_PAIRS if len(p[1]) <= 4], ids=lambda p: p.name)
def test_edge_pairs_with_three_siblings(pair):
    law = law_of_verifier(verifiers.specinfer, *floats(pair[1:]), 3)
    assert law.tv < 1e-12 and law.output_probs.sum() == pytest.approx(1, abs=1e-12)


def test_reading_all_uniforms_at_once_changes_nothing():
    law = law_of_verifier(vectorised, TARGET, DRAFT, 3)
    assert law.output_probs == pytest.approx(TARGET, abs=1e-12)
    assert any("all 4 uniforms may matter" in text for text in law.assumptions) or law.n_calls > 0
    sparing = law_of_verifier(verifiers.specinfer, TARGET, DRAFT, 3)
    assert sparing.accepted == pytest.approx(law.accepted, abs=1e-12)
    assert sparing.n_calls < law.n_calls


def hidden(target_probs, draft_probs, sibling_ids, uniforms):
    """Reads the first uniform openly and the second behind the audit's back."""
    if uniforms[0] < 0.5:
        return 0, None
    return (1 if np.asarray(uniforms)[1] < 0.25 else 2), None


def test_a_uniform_that_is_read_in_secret_is_found():
    law = law_of_verifier(hidden, TARGET, DRAFT, 1)
    assert law.output_probs == pytest.approx([0.5, 0.125, 0.375], abs=1e-12)
    assert "all 2 uniforms may matter" in law.assumptions[1]


@pytest.mark.parametrize("width", [1e-3, 1e-6, 1e-9])
def test_a_narrow_token_is_not_missed(width):
    target = np.array([0.5, width, 0.5 - width])
    law = law_of_verifier(verifiers.target_sample, target, DRAFT, 1)
    assert law.output_probs == pytest.approx(target, rel=1e-6, abs=1e-15)


def slanted(target_probs, draft_probs, sibling_ids, uniforms):
    """An exact sampler whose result is not constant on boxes."""
    return int(np.argmax(np.asarray(uniforms)[:3] ** (1 / target_probs))), None


def test_what_is_not_constant_on_boxes_is_not_called_anything():
    law = law_of_verifier(slanted, TARGET, DRAFT, 1, n_uniforms=3)
    assert law.unsettled > 0.1
    pairs = [(TARGET, DRAFT)]
    assert audit(slanted, 1, n_uniforms=3, pairs=pairs, mode="exact").verdict == "undecided"
    report = audit(slanted, 1, n_uniforms=3, pairs=pairs, max_samples=1000)
    assert (report.mode, report.verdict) == ("sampling", "undecided")


@pytest.mark.parametrize("scheme", ["iid", "without_replacement", "topk", "hub"])
def test_tuples_are_counted_without_making_them(scheme):
    for n_siblings, (target, draft, _) in product((1, 2, 3, 4), pairs_to_check(0, 4)):
        made = enumerate_siblings(scheme, target, draft, n_siblings)
        assert count_tuples(scheme, target, draft, n_siblings) == len(made)


def test_siblings_are_enumerated_and_drawn_alike():
    rng = np.random.default_rng(3)
    for scheme in ("iid", "without_replacement", "topk", "hub", verifiers.draft_top_two):
        tuples = enumerate_siblings(scheme, TARGET, DRAFT, 2)
        assert sum(weight for weight, _ in tuples) == pytest.approx(1)
        drawn = Drafter(scheme, TARGET, DRAFT, 2).draw(rng, 4000)
        assert set(drawn) == {ids for _, ids in tuples}
        for weight, ids in tuples:
            # 6 standard errors: a false alarm about once in 10^8
            assert drawn.count(ids) / 4000 == pytest.approx(weight, abs=6 * 0.5 / 4000**0.5)


def test_drawing_without_replacement_stops_at_the_support():
    draft = np.array([0.0, 1.0, 0.0])
    assert Drafter("without_replacement", TARGET, draft, 3).draw(np.random.default_rng(0), 2) == [
        (1,),
        (1,),
    ]


NAMED = [
    (verifiers.frozen_residual, 2, "iid", "residual not updated between siblings"),
    (verifiers.frozen_residual, 2, "without_replacement", "residual not updated between siblings"),
    (verifiers.one_hot_residual, 1, "iid", "one-hot residual although the draft was sampled"),
    (verifiers.resampled_from_target, 1, "iid", "resampled from the target after a rejection"),
    (verifiers.duplicates_skipped, 2, "iid", "duplicates skipped"),
    (verifiers.residual_by_position, 1, "iid", "residual aligned by position, not by token id"),
    (verifiers.untempered, 1, "iid", "temperature mismatch: both rows"),
    (verifiers.resispec, 2, "iid", "resispec[capacity,minimal]'s law"),
    (verifiers.positions_misaligned, 1, "iid", "draft probabilities read one token late"),
    (verifiers.accepts_at_coin_zero, 1, "iid", "accepts a token of target probability 0"),
    (verifiers.specinfer, 2, "without_replacement", "draft not renormalised without replacement"),
    (verifiers.without_replacement, 2, "iid", "independent siblings verified as if drawn without"),
    (verifiers.single_draft, 1, verifiers.draft_argmax, "drafted and verified with different"),
    (verifiers.single_draft, 1, verifiers.draft_top_two, "drafted and verified with different"),
]


@pytest.mark.parametrize(("verify", "n_siblings", "siblings", "name"), NAMED)
def test_known_faults_are_named(verify, n_siblings, siblings, name):
    report = audit(verify, n_siblings, siblings=siblings, max_shrink_calls=5000)
    assert report.verdict == "biased"
    assert report.pattern is not None and report.pattern.name.startswith(name)


def test_known_faults_differ_from_the_target_and_emit_distributions():
    pairs = [pair for pair in pairs_to_check(0, 4) if pair.simple][:9]
    for fault in FAULTS:
        scheme = fault.siblings or (verifiers.draft_argmax if fault.of_drafting else "iid")
        laws = [
            law_of_fault(fault, p, q, enumerate_siblings(scheme, p, q, 2))[0] for p, q, _ in pairs
        ]
        for law in laws:
            assert law.sum() == pytest.approx(1, abs=1e-9) and law.min() > -1e-12
        gaps = [np.abs(law - pair.target).max() for law, pair in zip(laws, pairs, strict=True)]
        assert max(gaps) > 1e-3, fault.name


def test_a_fault_that_is_not_known_is_not_named():
    def odd(target_probs, draft_probs, sibling_ids, uniforms):
        return pick(0.9 * target_probs + 0.1 * target_probs[::-1], uniforms[0]), None

    report = audit(odd, 1, max_shrink_calls=2000)
    assert report.verdict == "biased" and report.pattern is None


def test_counterexamples_are_shrunk():
    report = audit(verifiers.frozen_residual, 2, mode="exact")
    found = report.counterexample
    assert len(found.law) == 2
    assert max(m.denominator for probs in found.simple for m in probs) <= 2
    again = law_of_verifier(verifiers.frozen_residual, found.target_probs, found.draft_probs, 2)
    assert again.output_probs == pytest.approx(found.law, abs=1e-12)
    assert found.tv == pytest.approx(np.abs(found.law - found.right).sum() / 2)
    # exact for two tokens, so the smallest counterexample has three
    assert len(audit(verifiers.resispec, 1).counterexample.law) == 3


def test_simple_pairs_come_in_order():
    found = [pair for pair, _ in zip(simple_pairs(3), range(400), strict=False)]
    sizes = [len(pair.target) for pair in found]
    assert sizes == sorted(sizes)
    keys = {(pair.simple) for pair in found}
    assert len(keys) == len(found)
    assert all(sum(probs) == 1 for pair in found for probs in pair.simple)


def test_exact_says_what_was_checked():
    report = audit(verifiers.specinfer, 1)
    assert report.verdict == "exact" and report.counterexample is None
    assert report.checked["pairs"] > 30 and report.checked["largest_tv"] < 1e-12
    assert report.checked["tolerance"] == 1e-9 and len(report.assumptions) == 3


def failing(kind):
    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        if sibling_ids[0] != 0:
            return verifiers.single_draft(target_probs, draft_probs, sibling_ids, uniforms)
        match kind:
            case "raises":
                raise ZeroDivisionError("by zero")
            case "bad result":
                return 0
            case "bad token":
                return len(target_probs), None
            case "bad accepted index":
                return 1, 0
            case "edits its inputs":
                sibling_ids[0] = 1
                return 1, None

    return verify


KINDS = ["raises", "bad result", "bad token", "bad accepted index", "edits its inputs"]


@pytest.mark.parametrize("kind", KINDS)
def test_failures_are_findings_that_name_the_inputs(kind):
    report = audit(failing(kind), 1, pairs=[(TARGET, DRAFT)], max_shrink_calls=0)
    # these emit token 1, or one that does not exist, whenever token 0 is drafted
    emits = kind in ("bad token", "bad accepted index", "edits its inputs")
    assert report.verdict == ("biased" if emits else "undecided")
    finding = next(f for f in report.findings if f.kind == kind)
    assert finding.inputs["sibling_ids"] == [0]
    assert finding.inputs["target_probs"] == TARGET.tolist()
    assert "sibling_ids=[0]" in finding.message


def test_a_verifier_that_never_succeeds_is_an_error():
    with pytest.raises(VerifierError, match="every call .* raises TypeError"):
        audit(lambda target_probs: (0, None), 1)


def test_a_generator_of_its_own_is_sampled_or_refused():
    rng = np.random.default_rng(0)

    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        return pick(target_probs, rng.random()), None

    with pytest.raises(VerifierError, match="same arguments"):
        audit(verify, 1, mode="exact")
    report = audit(verify, 1, max_samples=500)
    assert report.mode == "sampling" and "generator of its own" in report.assumptions[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_siblings": 0}, "n_siblings"),
        ({"n_uniforms": 0}, "n_uniforms"),
        ({"siblings": "argmax"}, "siblings"),
        ({"mode": "fast"}, "mode"),
        ({"alpha": 0}, "alpha"),
        ({"pairs": []}, "pairs"),
        ({"pairs": [([0.5, 0.5], [1.0])]}, "pairs"),
        ({"pairs": [([0.5, 0.6], [1.0, 0])]}, "target_probs"),
        ({"n_siblings": 12, "mode": "exact"}, "sampling"),
        ({"siblings": lambda p, q, n: [(0.5, [0])]}, "sum to 0.5"),
        ({"siblings": lambda p, q, n: [(1, [7])]}, "ids of tokens"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(InputError, match=message):
        audit(verifiers.specinfer, **{"n_siblings": 1, **options})


def torch_specinfer(target_probs, draft_probs, sibling_ids, uniforms):
    """Batched SpecInfer."""
    rows = torch.arange(len(target_probs))
    tokens = torch.full((len(rows),), -1)
    accepted = torch.full((len(rows),), -1)
    residual = target_probs
    for idx in range(sibling_ids.shape[1]):
        x = sibling_ids[:, idx]
        took = (uniforms[:, idx] * draft_probs[rows, x] < residual[rows, x]) & (accepted < 0)
        tokens, accepted = torch.where(took, x, tokens), torch.where(took, idx, accepted)
        left = (residual - draft_probs).clamp(min=0)
        total = left.sum(dim=1, keepdim=True)
        residual = torch.where(total > 0, left / total, residual)
    edges = residual.cumsum(dim=1)
    coin = uniforms[:, -1:] * edges[:, -1:]
    drawn = torch.searchsorted(edges, coin, right=True)[:, 0]
    return torch.where(accepted < 0, drawn, tokens), accepted


def torch_frozen(target_probs, draft_probs, sibling_ids, uniforms):
    """The second sibling is tested as the first."""
    first = torch_specinfer(target_probs, draft_probs, sibling_ids[:, :1], uniforms[:, [0, -1]])
    second = torch_specinfer(target_probs, draft_probs, sibling_ids[:, 1:2], uniforms[:, [1, -1]])
    took = first[1] >= 0
    accepted = torch.where(second[1] >= 0, 1, -1)
    return torch.where(took, first[0], second[0]), torch.where(took, first[1], accepted)


def test_torch_functions_on_batches():
    law = law_of_verifier(torch_batch(torch_specinfer), TARGET, DRAFT, 2)
    plain = law_of_verifier(verifiers.specinfer, TARGET, DRAFT, 2)
    assert law.output_probs == pytest.approx(TARGET, abs=1e-12)
    assert law.accepted == pytest.approx(plain.accepted, abs=1e-12)
    report = audit(torch_batch(torch_frozen), 2, max_shrink_calls=5000)
    assert report.pattern.name == "residual not updated between siblings"
    low = audit(torch_batch(torch_specinfer, dtype="float32"), 1)
    assert low.verdict == "exact" and low.checked["tolerance"] == 1e-5


def test_torch_functions_are_checked():
    def in_place(target_probs, draft_probs, sibling_ids, uniforms):
        target_probs -= draft_probs
        return sibling_ids[:, 0], sibling_ids[:, 0] * 0

    with pytest.raises(InputError, match="dtype"):
        torch_batch(torch_specinfer, dtype="int8")
    for function, message in ((in_place, "in place"), (lambda *a: (a[0], a[0]), "integer tensors")):
        with pytest.raises(VerifierError, match=message):
            audit(torch_batch(function), 1)


def test_the_report_as_json_and_table(capsys):
    from rich.console import Console

    report = audit(verifiers.frozen_residual, 2, max_shrink_calls=5000)
    found = json.loads(report.to_json())
    assert found["verdict"] == "biased" and found["counterexample"]["target"][0] == "1/2"
    assert found["pattern"]["name"] == report.pattern.name
    assert found["provenance"]["parameters"]["n_siblings"] == 2
    Console(width=110).print(report.table())
    out = capsys.readouterr().out
    for text in ("biased", "right: target", "verifier's law", report.pattern.name, "assumed"):
        assert text in out


def test_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def verify(p, q, ids, u):\n"
        "    if u[0] * q[ids[0]] < p[ids[0]]:\n"
        "        return ids[0], 0\n"
        "    r = np.maximum(p - q, 0)\n"
        "    c = np.cumsum(r if r.any() else p)\n"
        "    return int(np.searchsorted(c, u[1] * c[-1], side='right')), None\n"
        "def again(p, q, ids, u):\n"
        "    return verify(p, p, ids, u)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert audit_command("mine:verify", siblings=1) == 0
    assert "exact" in capsys.readouterr().out
    assert audit_command("mine.py:again", siblings=1, json_output=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["pattern"]["name"] == "every sibling is accepted"
    assert audit_command("mine:verify", siblings=1, mode="sampling", max_samples=200) == 3
    assert str(tmp_path) not in sys.path
    for text in ("mine", "mine:nothing", "nowhere:verify", "nowhere.py:verify"):
        with pytest.raises(InputError, match=text.split(":")[0]):
            load_function(text)


def test_importing_the_audit_loads_no_torch():
    code = "import resispec_sim.audit, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
