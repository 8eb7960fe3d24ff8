"""Sampling mode: a sequential test that an emitted token follows the target, valid at any stop.

Bets are made against the target: a bet is a law ``g`` made from the past only, and its wealth is
multiplied by ``g(x)/p(x)`` at every token ``x``. If tokens follow ``p``, whatever the past was, wealth is
a martingale that starts at 1, and so is the mean of several: the probability that it ever reaches
``1/alpha`` is at most ``alpha`` (Ville's inequality).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resispec_sim.audit.calling import NONE, OUTSIDE, Caller, Finding, Floats
from resispec_sim.audit.drafting import Drafter, Drafting
from resispec_sim.audit.pool import Pair
from resispec_sim.audit.report import AuditReport
from resispec_sim.config import AUDIT
from resispec_sim.errors import VerifierError

_RATIOS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
_HEAD = 32  # likeliest tokens that are watched one by one
_LEAN = (0.1, 0.4)  # shares of the draft in the bets that the law leans towards it
_SETTLED = 4000  # tokens that are drawn for the figures of a bias that shows earlier


@dataclass
class _Learner:
    """A bet on groups of tokens: the shares seen so far, smoothed towards the target's."""

    groups: Any  # (V,) group of each token
    mass: Floats  # (G,) the target's mass of each group
    prior: float
    counts: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.mass))

    def log_factors(self, tokens: Any) -> Floats:
        """log g/p at each of `tokens`."""
        where = self.groups[tokens]
        total = self.counts.sum() + self.prior
        shares = (self.counts[where] + self.prior * self.mass[where]) / total
        return np.log(shares) - np.log(self.mass[where])

    def learn(self, tokens: Any) -> None:
        """Add tokens to the past."""
        self.counts += np.bincount(self.groups[tokens], minlength=len(self.counts))


class PairBets:
    """The bets at one pair, and how much the verifier emits of each token.

    Parameters
    ----------
    target, draft : ndarray of float64, (V,)
    """

    def __init__(self, target: Floats, draft: Floats) -> None:
        self.target, self.draft = target, draft
        self.seen = np.zeros(len(target))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(draft > 0, target / draft, np.inf)
            self.lean = np.where(target > 0, draft / target, 0.0)
        bins = np.searchsorted(_RATIOS, ratio, side="right")
        by_target, by_draft = (_apart(probs) for probs in (target, draft))
        self.learners = [
            self._learner(np.arange(len(target)), 200.0),
            self._learner(np.arange(len(target)), 5.0),
            self._learner(bins, 10.0),
            self._learner((ratio > 1).astype(np.intp), 5.0),
            self._learner(by_target, 20.0),
            self._learner(by_draft, 20.0),
        ]
        # the likeliest tokens one by one, the rest by their ratio: what the bias is measured on
        fine = np.where(by_target < _HEAD, by_target, _HEAD + bins)
        self.watched = self._learner(fine, 5.0)

    def _learner(self, groups: NDArray[np.intp], prior: float) -> _Learner:
        _, places = np.unique(groups, return_inverse=True)
        mass = np.bincount(places, weights=self.target).astype(np.float64)
        return _Learner(places, mass, prior)

    def bet(self, tokens: Any) -> Floats:
        """Log of what each bet gains on a batch, (S,); the batch then joins the past."""
        gains = [learner.log_factors(tokens).sum() for learner in self.learners]
        with np.errstate(divide="ignore"):
            gains += [np.log1p(share * (self.lean[tokens] - 1)).sum() for share in _LEAN]
        for learner in self.learners:
            learner.learn(tokens)
        self.seen += np.bincount(tokens, minlength=len(self.seen))
        return np.array(gains)

    def excess(self, tokens: Any) -> float:
        """Sum over a batch of ``1[x in A] - p(A)``; A are the groups that had too much so far."""
        counts, mass = self.watched.counts, self.watched.mass
        chosen = counts > counts.sum() * mass
        hits = float(chosen[self.watched.groups[tokens]].sum())
        self.watched.learn(tokens)
        return hits - len(tokens) * float(mass[chosen].sum())


def _apart(probs: Floats) -> Any:
    """Group of each token: the `_HEAD` likeliest have one each, the others share the last."""
    groups = np.full(len(probs), _HEAD)
    head = np.argsort(-probs, kind="stable")[:_HEAD]
    groups[head] = np.arange(len(head))
    return groups


def excess_interval(total: float, count: int, alpha: float) -> tuple[float, float]:
    """Interval for the mean of `count` bounded terms with sum `total`, valid at any time of stopping.

    The terms lie in an interval of length 1, so their sum is sub-Gaussian with variance 1/4 each; the
    interval is that of the normal mixture.

    Examples
    --------
    >>> low, high = excess_interval(300.0, 1000, 0.05)
    >>> round(low, 3), round(high, 3)
    (0.242, 0.358)
    """
    prior, variance = 250.0, count / 4
    spread = variance + prior
    reach = math.sqrt(spread * (math.log(spread / prior) + 2 * math.log(1 / alpha)))
    return max(-1.0, (total - reach) / count), min(1.0, (total + reach) / count)


def sample_audit(
    verify: Any,
    pairs: Sequence[Pair],
    siblings: str | Drafting,
    n_siblings: int,
    n_uniforms: int,
    *,
    seed: int,
    alpha: float,
    max_samples: int,
    common: dict[str, Any],
) -> AuditReport:
    """Test a verifier on random siblings and uniforms; see `resispec_sim.audit.audit`.

    Raises
    ------
    VerifierError
        If no call of the first batch succeeds.
    """
    rng = np.random.default_rng(seed)
    callers = [Caller(verify, pair.target, pair.draft) for pair in pairs]
    drafters = [Drafter(siblings, pair.target, pair.draft, n_siblings) for pair in pairs]
    bets = [PairBets(pair.target, pair.draft) for pair in pairs]
    wealth = np.zeros((len(pairs), len(bets[0].learners) + len(_LEAN)))
    best, now, total, n_samples, impossible = 0.0, 0.0, 0.0, 0, False
    size, n_outside = 32, 0
    while n_samples < max_samples:
        for idx, (caller, drafter, bet) in enumerate(zip(callers, drafters, bets, strict=True)):
            count = min(size, max_samples - n_samples)
            if count == 0:
                break
            ids = drafter.draw(rng, count)
            emitted = [seen.token for seen in caller.see_each(ids, rng.random((count, n_uniforms)))]
            n_samples += count
            if all(token == NONE for token in emitted):
                _refuse(caller)
            tokens = np.array([token for token in emitted if token >= 0], dtype=np.intp)
            possible = tokens[caller.target[tokens] > 0]
            n_outside += emitted.count(OUTSIDE)
            impossible = impossible or OUTSIDE in emitted or len(possible) < len(tokens)
            wealth[idx] += bet.bet(possible)
            total += bet.excess(possible)
            now = mean_wealth(wealth)
            best = max(best, now)
        size = min(2 * size, AUDIT.batch_size)
        faulty = impossible or best >= math.log(1 / alpha) or any(c.findings for c in callers)
        if faulty and n_samples >= _SETTLED:
            break
    findings = {f.kind: f for caller in callers for f in caller.findings.values()}
    p_value = 0.0 if impossible else math.exp(-best)
    e_value = math.inf if impossible else math.exp(min(now, 700.0))
    # a test of the tokens that are left says little where calls fail
    failed = any(caller.n_failed or caller.n_unusable for caller in callers)
    at_fault = impossible or "edits its inputs" in findings
    biased = at_fault or (p_value <= alpha and not failed)
    interval = excess_interval(total, n_samples, alpha)
    checked = {
        "pairs": len(pairs),
        "vocabulary_sizes": f"{min(len(p.target) for p in pairs)} to "
        f"{max(len(p.target) for p in pairs)}",
        "tokens_drawn": n_samples,
        "alpha": alpha,
    }
    return AuditReport(
        **common,
        verdict="biased" if biased else "undecided",
        mode="sampling",
        checked=checked,
        findings=tuple(findings.values()),
        notes=_notes(tuple(findings.values()), biased, failed, n_outside, n_samples),
        assumptions=_assumptions(interval, total, n_samples, alpha),
        p_value=p_value,
        e_value=e_value,
        n_samples=n_samples,
        bias_interval=interval,
        tokens=_affected(bets),
    )


def _notes(
    findings: tuple[Finding, ...], biased: bool, failed: bool, n_outside: int, n_samples: int
) -> tuple[str, ...]:
    if n_outside:
        return (
            f"{n_outside:,} of {n_samples:,} emitted tokens do not exist in the vocabulary: the target "
            "gives them no mass",
        )
    if biased or not findings:
        return ()
    if failed:
        return (
            f"tokens cannot be tested where calls fail, and the verifier {findings[0].message}",
        )
    return (f"no bias was seen, but the verifier {findings[0].message}",)


def mean_wealth(wealth: Floats) -> float:
    """Log of the mean wealth over all bets, at each pair alone and over all pairs together."""
    every = np.concatenate([wealth.ravel(), wealth.sum(axis=0)])
    top = every.max()
    return float(top + np.log(np.exp(every - top).mean()))


def _refuse(caller: Caller) -> None:
    messages = [f.message for f in caller.findings.values()]
    raise VerifierError(f"every call of the verifier fails: it {messages[0]}")


def _affected(bets: Sequence[PairBets]) -> tuple[dict[str, Any], ...]:
    """Tokens whose share is off by 4 standard errors and more, the largest excess first."""
    rows = []
    for pair, bet in enumerate(bets):
        count = bet.seen.sum()
        p = bet.target
        # rare tokens: a floor under the variance, or one stray token would count as many
        z = (bet.seen - count * p) / np.sqrt(np.maximum(count * p * (1 - p), 4.0))
        for x in np.flatnonzero(np.abs(z) >= 4):
            row = {"target": float(p[x]), "emitted": float(bet.seen[x] / count), "z": float(z[x])}
            rows.append({"pair": pair, "token": int(x), **row})
    rows.sort(key=lambda row: -abs(float(row["emitted"]) - float(row["target"])))
    return tuple(rows[:10])


def _assumptions(
    interval: tuple[float, float], total: float, n_samples: int, alpha: float
) -> tuple[str, ...]:
    reach = interval[1] - total / n_samples
    return (
        f"siblings and uniforms are independent draws; an exact verifier is called biased with "
        f"probability {alpha:g} at most, whenever the test stops",
        f"sampling never says exact: a bias that moves less than about {reach:.3f} of the mass on the "
        f"tokens that are watched can go unseen with {n_samples:,} tokens",
    )
