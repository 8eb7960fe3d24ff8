"""Batched verification: emitted tokens follow the law; logits become the probabilities of one position."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from resispec_sim import exact_law
from resispec_sim.errors import InputError, LogitsError
from resispec_sim.probs import logits_to_probs
from resispec_sim.rules import parse_rule
from resispec_sim.runtime.sampling import draw_token
from resispec_sim.runtime.torch_rules import check_logits, decide, draw_tokens, to_probs, verify

torch.set_num_threads(1)

LEVEL = 1e-4  # of one test; the seeds are fixed
LAST = 1 - 2.0**-53  # the largest uniform number
P = np.array([0.3, 0.05, 0.25, 0.2, 0.2, 0.0])
Q = np.array([0.1, 0.35, 0.05, 0.3, 0.0, 0.2])
RULES = [
    *("rejection", "specinfer", "resispec", "resispec:fill=water", "resispec:budget=clipped"),
    *("rrs-wor", "k-seq", "nss", "target-only", "exact-shaping", "resispec-wor"),
    *("resispec-eagle", "resispec-eagle:reading=proxy", "resispec-eagle:reading=one-hot"),
]


def draw_siblings(rng, scheme, count, n):
    if scheme == "topk":
        return np.repeat(np.argsort(-Q, kind="stable")[None, :n], count, 0)
    if scheme == "iid":
        return rng.choice(Q.size, (count, n), p=Q)
    # the order of exponential clocks is that of draws without replacement
    with np.errstate(divide="ignore"):
        return np.argsort(rng.exponential(size=(count, Q.size)) / Q, axis=1)[:, :n]


def p_value(tokens, law):
    counts = np.bincount(tokens, minlength=law.size)
    assert not counts[law == 0].any()
    return chisquare(counts[law > 0], law[law > 0] * counts.sum()).pvalue


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_emitted_tokens_follow_the_law(rule, dtype):
    rng, n = np.random.default_rng(7), 3
    count = 8000 if rule in ("k-seq", "exact-shaping") else 40_000  # these solve for every row
    siblings = draw_siblings(rng, parse_rule(rule).siblings, count, n)
    p, q = (torch.tensor(side, dtype=dtype).repeat(count, 1) for side in (P, Q))
    sibling, token = verify(
        rule, p, q, torch.tensor(siblings), torch.tensor(rng.random((count, n + 1)))
    )
    law = exact_law(rule, P, Q, n)
    assert p_value(token.numpy(), law.output_probs.round(15)) > LEVEL
    # place n: none is accepted
    accepted = np.append(law.accepted, 1 - law.accepted.sum()).clip(0).round(12)
    assert p_value(sibling.numpy() % (n + 1), accepted) > LEVEL
    taken = sibling.numpy() >= 0
    assert (siblings[taken, sibling.numpy()[taken]] == token.numpy()[taken]).all()
    if law.tv > 0.01:
        assert not P[token.numpy()].all() or p_value(token.numpy(), P) < LEVEL / 100
    else:
        assert p_value(token.numpy(), P) > LEVEL


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_of_probability_0_are_never_drawn(dtype):
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(40, 0.5), 3000) * (
        rng.random((3000, 40)) < rng.random((3000, 1))
    )
    weights[:, 7] += weights.sum(1) == 0
    weights[::3] *= 10.0 ** rng.integers(-300 if dtype is torch.float64 else -30, 3, (1000, 1))
    rows = torch.tensor(weights, dtype=dtype)
    for coins in (np.zeros(3000), np.full(3000, LAST), rng.random(3000)):
        tokens = draw_tokens(rows, torch.tensor(coins)[:, None])[:, 0]
        assert (rows[torch.arange(3000), tokens] > 0).all()
        drawn = [draw_token(row, u) for row, u in zip(rows.double().numpy(), coins, strict=True)]
        assert tokens.tolist() == drawn


def test_a_sum_that_rounds_upwards_at_a_zero_draws_no_zero(monkeypatch):
    """A parallel sum can grow by an ulp where the weight is 0."""
    weights = torch.tensor([[0.25, 0.0, 0.75, 0.0]], dtype=torch.float64)
    up = 2.0**-50
    sums = torch.tensor([[0.25, 0.25 + up, 1.0, 1.0 + up]], dtype=torch.float64)
    monkeypatch.setattr(torch, "cumsum", lambda *args, **kwargs: sums)
    for coin, expected in ((0.25, 2), (LAST, 2), (0.2, 0)):
        coins = torch.tensor([[coin]], dtype=torch.float64)
        assert draw_tokens(weights, coins).tolist() == [[expected]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_coins(dtype):
    """The largest coin, which float32 rounds to 1, passes where acceptance is certain; 0 passes nowhere
    where it is impossible."""
    p, q = (
        torch.tensor([[0.5, 0.5, 0.0]], dtype=dtype),
        torch.tensor([[0.25, 0.25, 0.5]], dtype=dtype),
    )
    high, low = (torch.full((1, 3), u, dtype=torch.float64) for u in (LAST, 0.0))
    assert [int(t) for t in verify("specinfer", p, q, torch.tensor([[2, 1]]), high)] == [1, 1]
    sibling, token = verify("specinfer", p, q, torch.tensor([[2, 2]]), low)
    assert int(sibling) == -1 and int(token) == 0
    sibling, token = verify("specinfer", p, q, torch.tensor([[-1, -1]]), high)
    assert int(sibling) == -1 and int(token) == 1
    sibling, token = verify("specinfer", p, q, torch.zeros((1, 0), dtype=torch.int64), high[:, :1])
    assert int(sibling) == -1 and int(token) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_rejection_by_rounding_alone_leaves_a_law(rule):
    """p = q but for an ulp: where only rounding rejects, a token that the target can emit follows."""
    p = torch.tensor([[1 / 3, 2 / 3, 0.0], [1 - 2.0**-53, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[1 / 3, 2 / 3, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    for siblings in ([[0, 1], [0, -1]], [[1, 0], [0, 0]]):
        decision = decide(rule, p, q, torch.tensor(siblings))
        assert torch.isfinite(decision.accept).all()
        assert decision.residual.sum(-1).tolist() == pytest.approx([1, 1])
        coins = torch.full((2, 3), LAST, dtype=torch.float64)
        _, token = verify(rule, p, q, torch.tensor(siblings), coins)
        assert (p[torch.arange(2), token] > 0).all()


LOGITS = [
    np.random.default_rng(1).normal(size=(20, 50)) * 3,
    np.random.default_rng(2).integers(-3, 3, (20, 12)) * 1.0,
    np.where(np.random.default_rng(3).random((20, 9)) < 0.4, -np.inf, 1.5 * np.arange(9) % 4),
    np.zeros((1, 10)),
    np.zeros((1, 4)),  # halves reached exactly
    np.array([[1e4, -1e4, 9999.0], [-700.0, -1400.0, -701.0]]),
    np.zeros((2, 1)),
]
LOGITS[2][:, 4] = 0.5


@pytest.mark.parametrize("top_p", [None, 1.0, 0.9, 0.5, 0.3, 1e-9])
@pytest.mark.parametrize("top_k", [None, 0, 1, 3, 100])
@pytest.mark.parametrize("temperature", [0, 0.6, 1, 1.0, 2.5])
def test_probabilities_are_those_of_one_position(temperature, top_k, top_p):
    settings = dict(temperature=temperature, top_k=top_k, top_p=top_p)
    for logits in LOGITS:
        expected = logits_to_probs(logits, **settings)
        high = to_probs(torch.tensor(logits), **settings)
        assert high.dtype == torch.float64
        assert high.numpy() == pytest.approx(expected, rel=0, abs=1e-12)
        assert ((high.numpy() > 0) == (expected > 0)).all()
        assert to_probs(logits, **settings) == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_probabilities_in_float32(stored):
    logits = torch.tensor(LOGITS[0]).to(stored)
    expected = logits_to_probs(logits.double().numpy(), temperature=0.6, top_k=20)
    low = to_probs(logits, 0.6, 20, dtype="float32")
    assert low.dtype == torch.float32
    assert low.double().numpy() == pytest.approx(expected, rel=0, abs=2e-6)
    assert to_probs(logits, 0.6, 20).numpy() == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("top_p", [None, 0.5])
def test_bad_logits_show_in_the_answer(temperature, top_p):
    logits = torch.zeros((4, 5))
    logits[1, 2], logits[2, 3], logits[3] = torch.nan, torch.inf, -torch.inf
    probs = to_probs(logits, temperature, top_p=top_p)
    assert probs.isnan().all(1).tolist() == [False, True, True, True]
    fine = to_probs(torch.zeros((4, 5)), temperature)
    siblings = torch.zeros((4, 2), dtype=torch.int64)
    for pair in ((probs, fine), (fine, probs)):
        sibling, token = verify(
            "resispec", *pair, siblings, torch.full((4, 3), 0.9, dtype=torch.float64)
        )
        assert (token >= 0).tolist() == [True, False, False, False]
        assert (sibling[1:] == -1).all()
    with pytest.raises(LogitsError, match="target: row 1, token 2: logit is nan"):
        check_logits(logits, "target")
    with pytest.raises(LogitsError, match="row 0, token 3: logit is inf"):
        check_logits(logits[2:], "target")
    with pytest.raises(LogitsError, match="row 0: every logit is -inf"):
        check_logits(logits[3:], "target")


def test_settings_are_checked():
    logits = torch.zeros((1, 3))
    for wrong in (
        dict(temperature=-1.0),
        dict(temperature=float("nan")),
        dict(top_k=-1),
        dict(top_p=0.0),
        dict(dtype="float16"),
    ):
        with pytest.raises(InputError):
            to_probs(logits, **wrong)
    with pytest.raises(InputError, match=r"\(B, V\)"):
        to_probs(logits[0])
