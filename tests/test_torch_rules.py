"""The batched rules: equal to the rules of one position, and to the engine's laws; no value is waited for."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from rule_batches import (
    FEASIBLE,
    FLOAT32_ERROR,
    SETTINGS,
    SOLVED,
    masses_of,
    node_batches,
    normalise,
    softmax,
    to_tensors,
)

from resispec_sim import exact_law
from resispec_sim.errors import InfeasibleBudgetError, InputError, RuleError
from resispec_sim.rules import exact_shaping, k_seq
from resispec_sim.rules.siblings import sibling_tuples
from resispec_sim.runtime.torch_rules import (
    BATCHED,
    PHASES,
    NoClock,
    decide,
    supported,
    to_probs,
    verify,
)
from resispec_sim.runtime.torch_rules.levels import solve_factors, solve_levels

torch.set_num_threads(1)

every_rule = pytest.mark.parametrize("rule", SETTINGS, ids=lambda rule: rule.label)


def batches(rule, n_siblings=4, seed=0):
    """Batches (p, q, siblings, decisions of the rule), one for each V up to 8 and one for the large V."""
    for p, q, siblings in node_batches(rule, n_siblings, seed):
        yield collect(rule, zip(p, q, siblings, strict=True))


def collect(rule, nodes):
    kept = []
    for p, q, siblings in nodes:
        try:
            decision = rule.decide(p, q, siblings[siblings >= 0].tolist())
        except InfeasibleBudgetError:
            with pytest.raises(InfeasibleBudgetError, match="row 0"):
                decide(rule, *to_tensors(p[None], q[None], siblings[None]))
            continue
        kept.append((p, q, siblings, decision))
    p, q, siblings, decisions = zip(*kept, strict=True)
    return np.array(p), np.array(q), np.array(siblings), decisions


@every_rule
def test_decisions_are_those_of_the_rule(rule):
    for p, q, siblings, decisions in batches(rule):
        accept, residual = (t.numpy() for t in decide(rule, *to_tensors(p, q, siblings)))
        assert accept.min() >= 0 and accept.max() <= 1 and residual.min() >= 0
        masses, none = masses_of(accept)
        # a level at the largest p/q of many tokens hangs on the last bits of a sum; the total does not
        near = 1e-9 if rule.label in SOLVED and p.shape[1] > 8 else 1e-12
        for b, decision in enumerate(decisions):
            given = siblings[b] >= 0
            assert not accept[b][~given].any()
            assert masses[b][given] == pytest.approx(decision.accepted, rel=0, abs=near)
            assert masses[b].sum() == pytest.approx(sum(decision.accepted), rel=0, abs=1e-12)
            # what is left of the mass by rounding alone has no law
            far = np.abs(residual[b] - decision.residual).max()
            assert far * none[b] <= near
            assert none[b] < 1e-3 or far <= near


@pytest.mark.parametrize("rule", FEASIBLE, ids=lambda rule: rule.label)
def test_float32_is_float64_to_its_digits(rule):
    for p, q, siblings, _ in batches(rule):
        nodes = to_tensors(p, q, siblings, dtype=torch.float32)
        low = decide(rule, *nodes)
        exact = [(side.double() / side.double().sum(-1, keepdim=True)) for side in nodes[:2]]
        high = decide(rule, *exact, nodes[2])
        assert low.accept.dtype == low.residual.dtype == torch.float32
        masses, none = masses_of(low.accept.double().numpy())
        expected, left = masses_of(high.accept.numpy())
        assert masses == pytest.approx(expected, rel=0, abs=FLOAT32_ERROR)
        far = low.residual.double().numpy() * none[:, None] - high.residual.numpy() * left[:, None]
        assert np.abs(far).sum(1).max() <= 2 * FLOAT32_ERROR


@every_rule
def test_rows_do_not_touch_one_another(rule):
    for p, q, siblings, _ in batches(rule, seed=1):
        together = decide(rule, *to_tensors(p, q, siblings))
        last = len(p) - 1
        alone = decide(rule, *to_tensors(p[last:], q[last:], siblings[last:]))
        p[0] = np.nan
        if getattr(rule, "budget", "") != "applied":
            damaged = decide(rule, *to_tensors(p, q, siblings))
            for before, after in zip(together, damaged, strict=True):
                assert torch.equal(before[1:], after[1:])
        for before, after in zip(together, alone, strict=True):
            torch.testing.assert_close(before[last:], after, rtol=0, atol=1e-12)


@every_rule
def test_the_law_assembled_forward_is_the_engines(rule):
    rng = np.random.default_rng(2)
    for (vocab, n), _ in product([(2, 3), (3, 3), (4, 2), (6, 2)], range(3)):
        p, q = rng.dirichlet(np.ones(vocab), 2)
        q = normalise(q * (np.arange(vocab) != 2))
        weights, drawn = zip(*sibling_tuples(rule.siblings, q, n), strict=True)
        siblings = np.full((len(drawn), n), -1)
        for row, tokens in zip(siblings, drawn, strict=True):
            row[: len(tokens)] = tokens
        pairs = [np.repeat(side[None], len(drawn), 0) for side in (p, q)]
        try:
            law = exact_law(rule, p, q, n)
        except InfeasibleBudgetError:
            continue
        accept, residual = (t.numpy() for t in decide(rule, *to_tensors(*pairs, siblings)))
        masses, none = masses_of(accept)
        weights = np.array(weights, dtype=float)
        output = (weights * none) @ residual
        np.add.at(output, siblings.clip(0), weights[:, None] * masses)
        assert output == pytest.approx(law.output_probs, rel=0, abs=1e-12)
        assert weights @ masses == pytest.approx(law.accepted, rel=0, abs=1e-12)
        if rule.exact and (n == 2 or rule.name != "k-seq"):
            assert output == pytest.approx(p, rel=0, abs=1e-12)


@pytest.mark.parametrize("n_siblings", [1, 2, 3, 5])
def test_constants_are_those_of_one_position(n_siblings):
    rng = np.random.default_rng(n_siblings)
    rows = [
        (softmax(z), softmax(z + s * rng.normal(size=z.size)))
        for s in (0.3, 1, 2, 4)
        for z in rng.normal(size=(3, 500))
    ]
    p, q = (torch.tensor(np.array(side)) for side in zip(*rows, strict=True))
    counts = torch.full((len(rows), 1), float(n_siblings), dtype=torch.float64)
    counts[::2] = 1
    levels, factors = solve_levels(p, q, counts, n_siblings), solve_factors(p, q, counts)
    for row, n, level, factor in zip(
        rows, counts[:, 0].int().tolist(), levels, factors, strict=True
    ):
        assert level.item() == pytest.approx(exact_shaping.solve_level(*row, n), rel=1e-11)
        assert factor.item() == pytest.approx(k_seq.solve_factor(*row, n), rel=1e-11)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_value_is_waited_for(rule, dtype):
    """On the device "meta" tensors have no values, so whoever asks for one gets an error."""
    nodes = torch.zeros((2, 3, 50), dtype=dtype, device="meta")
    siblings = torch.zeros((3, 4), dtype=torch.int64, device="meta")
    uniforms = torch.zeros((3, 5), dtype=torch.float64, device="meta")
    if rule.label == "resispec[capacity,applied]":
        with pytest.raises((RuntimeError, NotImplementedError)):
            verify(rule, *nodes, siblings, uniforms)
        return
    sibling, token = verify(rule, *nodes, siblings, uniforms)
    assert sibling.shape == token.shape == (3,) and token.device.type == "meta"


def test_logits_become_probabilities_without_waiting():
    logits = torch.zeros((2, 30), device="meta")
    for temperature, top_k, top_p in product((0, 0.6), (None, 4), (None, 0.9)):
        assert to_probs(logits, temperature, top_k, top_p).shape == (2, 30)


@every_rule
def test_numpy_arrays_serve_as_well_and_nothing_is_edited(rule):
    p, q, siblings, _ = next(batches(rule, seed=3))
    tensors = to_tensors(p, q, siblings)
    copies = [array.copy() for array in (p, q, siblings)]
    accept, residual = decide(rule, p, q, siblings)
    torch.testing.assert_close(
        decide(rule, *tensors), (torch.tensor(accept), torch.tensor(residual))
    )
    for before, array, tensor in zip(copies, (p, q, siblings), tensors, strict=True):
        assert (before == array).all() and (before == tensor.numpy()).all()


class Recorder(NoClock):
    def __init__(self):
        self.names = []

    def phase(self, name):
        self.names.append(name)
        return super().phase(name)


def test_the_parts_of_shaping_are_marked():
    nodes = to_tensors(
        np.array([[0.25, 0.25, 0.5]]), np.array([[0.5, 0.5, 0.0]]), np.array([[0, 1]])
    )
    for rule, parts in (
        ("resispec", 2 * PHASES),
        ("resispec-eagle:reading=proxy", 2 * PHASES),
        ("specinfer", ()),
    ):
        clock = Recorder()
        timed = decide(rule, *nodes, clock=clock)
        assert tuple(clock.names) == parts
        torch.testing.assert_close(timed, decide(rule, *nodes), rtol=0, atol=0)


def test_what_is_not_supported_is_refused():
    nodes = to_tensors(
        np.full((2, 4), 0.25), np.full((2, 4), 0.25), np.zeros((2, 3), dtype=np.int64)
    )
    assert all(supported(name) for name in BATCHED) and not supported("traversal")
    with pytest.raises(
        RuleError, match="block has no batched form; use one of rejection, specinfer"
    ):
        decide("block", *nodes)
    p, q, siblings = nodes
    for wrong in (
        (p, q[:, :3], siblings),
        (p[0], q[0], siblings),
        (p, q, siblings[:1]),
        (p, q.float(), siblings),
        (p.half(), q.half(), siblings),
        (p, q, siblings.int()),
    ):
        with pytest.raises(InputError, match="must"):
            decide("specinfer", *wrong)
    for uniforms in (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 4)):
        with pytest.raises(InputError, match="uniforms"):
            verify("specinfer", *nodes, uniforms)


def test_no_module_imports_torch():
    code = "import resispec_sim.runtime.torch_rules, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
