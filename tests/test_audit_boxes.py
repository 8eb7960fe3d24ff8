"""Where an audit could be wrong about the boxes of a verifier, or say more than it looked at."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from resispec_sim.audit import audit, law_of_verifier, torch_batch
from resispec_sim.audit import run as run_module
from resispec_sim.audit.exact import compute_law, contradictions
from resispec_sim.audit.pool import pairs_to_check
from resispec_sim.cli import run_command
from resispec_sim.config import AUDIT
from resispec_sim.errors import InputError, VerifierError
from tests import fault_verifiers as verifiers

TARGET, DRAFT = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])


def excess(residual, draft):
    rest = np.maximum(residual - draft, 0)
    return rest / rest.sum() if rest.sum() > 0 else residual


def inverse(residual, coin):
    edges = np.cumsum(residual)
    place = int(np.searchsorted(edges, coin * edges[-1], side="right"))
    return min(place, int(np.flatnonzero(residual > 0)[-1]))


def alias(residual, coin):
    """Walker's alias table: one token has several intervals of the uniform."""
    size = len(residual)
    scaled, kept, other = [float(r) * size for r in residual], [1.0] * size, list(range(size))
    small = [x for x in range(size) if scaled[x] < 1]
    large = [x for x in range(size) if scaled[x] >= 1]
    while small and large:
        less, more = small.pop(), large.pop()
        kept[less], other[less] = scaled[less], more
        scaled[more] -= 1 - scaled[less]
        (small if scaled[more] < 1 else large).append(more)
    place = min(int(coin * size), size - 1)
    return place if coin * size - place < kept[place] else other[place]


def all_at_once(sampler, coins_of):
    """Recursive rejection sampling that copies its uniforms first; `coins_of` says which is whose."""

    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        values = np.array(uniforms)
        coins, last = coins_of(values)
        residual = target_probs
        for idx, token in enumerate(sibling_ids):
            if coins[idx] * draft_probs[token] < residual[token]:
                return token, idx
            residual = excess(residual, draft_probs)
        return sampler(residual, float(last)), None

    return verify


ORDERS = {
    "coins first": lambda u: (u[:-1], u[-1]),
    "residual first": lambda u: (u[1:], u[0]),
    "backwards": lambda u: (u[:0:-1], u[0]),
}


@pytest.mark.parametrize(
    ("order", "n_siblings"),
    [("coins first", 1), ("residual first", 1), ("residual first", 2), ("backwards", 2)],
)
def test_the_order_of_the_uniforms_changes_nothing(order, n_siblings):
    verify = all_at_once(inverse, ORDERS[order])
    report = audit(verify, n_siblings, mode="exact")
    assert report.verdict == "exact", report


def test_alias_tables_are_called_exact():
    verify = all_at_once(alias, ORDERS["residual first"])
    assert audit(verify, 1, mode="exact").verdict == "exact"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_torch_functions_may_draw_the_residual_first(dtype):
    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        x = sibling_ids[:, :1]
        drafted, wanted = draft_probs.gather(1, x)[:, 0], target_probs.gather(1, x)[:, 0]
        took = uniforms[:, 1] * drafted < wanted
        edges = (target_probs - draft_probs).clamp(min=0).cumsum(1)
        token = torch.searchsorted(edges, uniforms[:, :1] * edges[:, -1:], right=True)[:, 0]
        token = token.clamp(max=target_probs.shape[1] - 1)
        return torch.where(took, x[:, 0], token), torch.where(took, 0, -1)

    pairs = [pair[:2] for pair in pairs_to_check(0, 4)[:8]]
    report = audit(torch_batch(verify, dtype=dtype), 1, pairs=pairs, mode="exact")
    assert report.verdict == "exact", report


def one_uniform(target_probs, draft_probs, sibling_ids, uniforms):
    """The uniform is rescaled after a rejection and goes into an alias table."""
    left, residual = float(uniforms[0]), target_probs
    for idx, token in enumerate(sibling_ids):
        limit = min(1.0, residual[token] / draft_probs[token])
        if left < limit:
            return token, idx
        left = (left - limit) / (1 - limit) if limit < 1 else 0.0
        residual = excess(residual, draft_probs)
    return alias(residual, min(left, 1 - 2.0**-53)), None


def low_digits(target_probs, draft_probs, sibling_ids, uniforms):
    """The coin is the fraction of 16 times the uniform."""
    token = sibling_ids[0]
    if uniforms[0] * 16 % 1 * draft_probs[token] < target_probs[token]:
        return token, 0
    return inverse(excess(target_probs, draft_probs), uniforms[1]), None


@pytest.mark.parametrize("seed", [0, 1])
def test_what_changes_and_changes_back_between_probes_is_not_called_biased(seed):
    assert audit(one_uniform, 1, mode="exact", seed=seed).verdict == "exact"
    pairs = [pair[:2] for pair in pairs_to_check(0, 4)[1:3]]
    report = audit(low_digits, 1, pairs=pairs, mode="exact", seed=seed)
    assert report.verdict != "biased", report
    assert report.verdict == "exact" or report.notes


@pytest.mark.parametrize(("verify", "n_pairs"), [(one_uniform, 9), (low_digits, 1)])
def test_the_law_is_right_up_to_what_is_unsettled(verify, n_pairs):
    for target, draft, _ in pairs_to_check(0, 4)[:n_pairs]:
        law = law_of_verifier(verify, target, draft, 1)
        assert law.tv <= law.unsettled + 1e-9


def narrow(target_probs, draft_probs, sibling_ids, uniforms):
    """A comb too fine for any number of probes."""
    if uniforms[0] * 2**24 % 1 < 0.25:
        return 1, None
    return 0, None


def test_random_calls_contradict_boxes_that_are_wrong():
    law = compute_law(narrow, TARGET, DRAFT, 1)
    box = law.splits[0][2].boxes[0]
    wrong = replace(law.splits[0][2], boxes=[replace(box, low=0 * box.low, high=0 * box.high + 1)])
    forged = replace(law, splits=((1.0, (0,), wrong),))
    # 300 calls, each of them differs with probability 1/4 at least
    assert contradictions(narrow, forged, 0, 300) > 30
    right = compute_law(verifiers.specinfer, TARGET, DRAFT, 2)
    assert contradictions(verifiers.specinfer, right, 0, 1000) == 0
    # a quarter and the rest: never a law of which the audit is sure and which is wrong
    assert law_of_verifier(narrow, TARGET, DRAFT, 1).unsettled > 0.1
    assert audit(narrow, 1, pairs=[([0.75, 0.25], [0.5, 0.5])], mode="exact").verdict != "biased"


def test_small_biases_stay_biased_and_say_what_confirmed_them():
    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        token = sibling_ids[0]
        if uniforms[0] * draft_probs[token] < target_probs[token] * (1 - 1e-5):
            return token, 0
        return inverse(excess(target_probs, draft_probs), uniforms[1]), None

    report = audit(verify, 1, max_shrink_calls=2000)
    assert report.verdict == "biased" and "more probes" in report.assumptions[-1]
    report = audit(verifiers.resampled_from_target, 1, max_shrink_calls=2000)
    assert report.verdict == "biased" and "with probability 1e-06 at most" in report.assumptions[-1]


@pytest.fixture
def few_tuples(monkeypatch):
    """So few tuples that three siblings leave pairs with two drafted tokens only."""
    monkeypatch.setattr(run_module, "AUDIT", replace(AUDIT, max_tuples=8))


@pytest.mark.usefixtures("few_tuples")
@pytest.mark.parametrize("verify", [verifiers.resispec, verifiers.specinfer])
def test_pairs_of_two_tokens_are_not_enough_to_say_exact(verify):
    report = audit(verify, 3, mode="exact")
    assert report.verdict != "exact"
    report = audit(verify, 3, max_samples=6000)
    wrong = verify is verifiers.resispec
    assert report.verdict == ("biased" if wrong else "undecided")


@pytest.mark.usefixtures("few_tuples")
def test_the_limit_and_the_remedy_are_named():
    report = audit(verifiers.specinfer, 3, mode="exact")
    assert "AUDIT.max_tuples" in report.notes[0] and "mode='sampling'" in report.notes[0]
    report = audit(verifiers.specinfer, 3, max_samples=500)
    assert "AUDIT.max_tuples" in report.assumptions[0]
    # one tuple a pair: nothing is left out
    assert audit(verifiers.target_only, 3, siblings="topk", mode="exact").verdict == "exact"
    with pytest.raises(InputError, match=r"max_tuples.*mode='sampling'"):
        audit(verifiers.specinfer, 4, mode="exact")


def test_seven_siblings_leave_too_few_pairs():
    """Nothing is called: the count of the tuples decides."""
    sizes = [
        run_module.count_tuples("iid", p, q, 7) <= AUDIT.max_tuples
        for p, q, _ in pairs_to_check(0, 4)
        if (q > 0).sum() >= 3
    ]
    assert sum(sizes) < 8


def claims_minus_one(target_probs, draft_probs, sibling_ids, uniforms):
    token, idx = verifiers.single_draft(target_probs, draft_probs, sibling_ids, uniforms)
    return token, -1 if idx is None else idx


@pytest.mark.parametrize(
    ("verify", "n_uniforms", "message"),
    [
        (claims_minus_one, 2, "return None where no sibling is accepted"),
        (verifiers.single_draft, 1, "asks for uniform 2 of 1: pass n_uniforms=2 / --uniforms 2"),
    ],
)
@pytest.mark.parametrize("mode", ["exact", "sampling"])
def test_calls_that_break_the_interface_are_no_bias(verify, n_uniforms, message, mode):
    report = audit(verify, 1, mode=mode, n_uniforms=n_uniforms, max_samples=400)
    assert report.verdict == "undecided" and report.counterexample is None
    assert message in report.findings[0].message and message in report.notes[0]
    said = "right where it could be computed" if mode == "exact" else "the verifier"
    assert said in report.notes[0]


def test_uniforms_that_are_copied_are_counted_too():
    """A plain array says nothing of uniforms when an index is out of its range."""
    verify = all_at_once(inverse, lambda u: (u[1:], u[1]))
    with pytest.raises(VerifierError, match="--uniforms 2"):
        audit(verify, 1, n_uniforms=1)


def test_a_law_that_is_wrong_stays_biased_though_calls_fail():
    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        if uniforms[0] > 0.95:
            raise RuntimeError("out of memory")
        return int(sibling_ids[0]), 0

    report = audit(verify, 1, max_shrink_calls=2000)
    assert report.verdict == "biased" and "raises" in {f.kind for f in report.findings}


def test_the_size_of_float32_rounding_is_named():
    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        rows = [probs.astype(np.float32) for probs in (target_probs, draft_probs)]
        coins = np.asarray(uniforms).astype(np.float32)
        token = sibling_ids[0]
        if coins[0] * rows[1][token] < rows[0][token]:
            return token, 0
        return inverse(excess(*rows), coins[1]), None

    report = audit(verify, 1, mode="exact", max_shrink_calls=2000)
    assert report.verdict == "biased"
    assert "float32 rounding" in report.notes[0] and "--tolerance 1e-06" in report.notes[0]
    assert audit(verify, 1, mode="exact", tolerance=1e-6).verdict == "exact"


MODULE = """
import sys
def right(p, q, ids, u):
    c = p.cumsum()
    return int(c.searchsorted(u[0] * c[-1], side="right")), None
def leaves(p, q, ids, u):
    sys.exit(0)
def leaves_at_times(p, q, ids, u):
    if u[0] > 0.9:
        sys.exit(0)
    return right(p, q, ids, u)
def minus_one(p, q, ids, u):
    return right(p, q, ids, u)[0], -1
def no_arguments():
    return []
def fails(p, q, n):
    raise KeyError("draft")
def exits(p, q, n):
    sys.exit(0)
def no_pairs(p, q, n):
    return [1, 2]
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.py:leaves"], "SystemExit"),
        (["mine.py:leaves", "--mode", "sampling"], "SystemExit"),
        (["mine.py:leaves_at_times"], "SystemExit"),
        (["mine.py:minus_one"], "return None where"),
        (["gone.py:verify"], "SystemExit"),
        (["mine.py:right", "--draws", "mine.py:no_arguments"], "TypeError"),
        (["mine.py:right", "--draws", "mine.py:fails"], "KeyError"),
        (["mine.py:right", "--draws", "mine.py:exits"], "SystemExit"),
        (["mine.py:right", "--draws", "mine.py:no_pairs"], "TypeError"),
        (["mine.py:right", "--draws", "mine.py:fails", "--mode", "sampling"], "KeyError"),
    ],
)
def test_whatever_is_no_verdict_has_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "gone.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    code = run_command(["audit", *arguments, "--siblings", "1", "--max-samples", "300"])
    shown = capsys.readouterr()
    assert code == 2
    assert message in shown.out + shown.err and "Traceback" not in shown.err
