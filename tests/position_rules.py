"""Every rule of one position, every way to compute it, and a wrong constant for each."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from resispec_sim.engine.closed_forms import nss_outcome, spechub_outcome
from resispec_sim.engine.generic import generic_outcome
from resispec_sim.engine.result import Outcome
from resispec_sim.engine.rrs_wor import rrs_wor_outcome
from resispec_sim.engine.single_path import single_path_outcome
from resispec_sim.engine.specinfer import specinfer_outcome
from resispec_sim.rules import (
    ExactShaping,
    KSeq,
    Nss,
    PositionRule,
    Rejection,
    ResiSpec,
    ResiSpecEagle,
    ResiSpecWor,
    RrsWor,
    SpecHub,
    SpecInfer,
    TargetOnly,
)
from resispec_sim.rules.base import Decision

EXACT = [
    Rejection(),
    SpecInfer(),
    RrsWor(),
    KSeq(),
    KSeq(factor=8),
    SpecHub(),
    Nss(),
    TargetOnly(),
    ExactShaping(),
    ExactShaping(level=Fraction(3, 2)),
    ResiSpecEagle(reading="one-hot"),
]
INEXACT = [
    *[ResiSpec(fill) for fill in ("capacity", "water", "index")],
    ResiSpec("capacity", "clipped"),
    *[ResiSpecWor(fill) for fill in ("capacity", "water", "index")],
    ResiSpecEagle("capacity", "softmax"),
    ResiSpecEagle("water", "softmax"),
    ResiSpecEagle("capacity", "proxy"),
    ResiSpecEagle("water", "proxy"),
]
EVERY = EXACT + INEXACT


def counts_of(rule: PositionRule, most: int = 3) -> list[int]:
    """The numbers of siblings that a rule is defined for, up to `most`."""
    return [n for n in range(1, most + 1) if rule.only_count in (None, n)]


def by_definition(rule, p, q, n, method="exact", seed=0) -> Outcome:
    """The engine that knows no rule."""
    return generic_outcome(rule, p, q, n, method=method, max_paths=4e6, seed=seed)


# Wrong constants. Each class is a rule with one number changed; each function an engine with one.


@dataclass(frozen=True)
class WrongRejection(Rejection):
    def start(self, target, draft, n_siblings):
        first, accept, _ = super().start(target, draft, n_siblings)
        rest = np.maximum(target - draft * 3 / 2, 0)
        return first, accept, rest / rest.sum() if rest.any() else target


@dataclass(frozen=True)
class WrongSpecInfer(SpecInfer):
    def proxy(self, residual, draft, token):
        return draft * 5 / 4


@dataclass(frozen=True)
class WrongRrsWor(RrsWor):
    def draft_after(self, draft, token):
        return draft  # not renormalised off the rejected tokens


@dataclass(frozen=True)
class WrongNss(Nss):
    def after_rejection(self, state, token):
        return state  # the rejected token stays in


@dataclass(frozen=True)
class WrongTargetOnly(TargetOnly):
    def after_rejection(self, state, token):
        return state


@dataclass(frozen=True)
class WrongShaping(ExactShaping):
    def accept_probs(self, state):
        return super().accept_probs(state) * 9 / 10


@dataclass(frozen=True)
class WrongSpecHub(SpecHub):
    def decide(self, target, draft, siblings):
        accepted, residual = super().decide(target, draft, siblings)
        return Decision([a * 9 / 10 for a in accepted], residual)


WRONG = [
    WrongRejection(),
    WrongSpecInfer(),
    WrongRrsWor(),
    KSeq(factor=1),
    WrongSpecHub(),
    WrongNss(),
    WrongTargetOnly(),
    WrongShaping(),
]

WRONG_ENGINES = {
    "specinfer": lambda p, q, n: specinfer_outcome(p, q, n, multipliers=[1.25] * n),
    "rrs-wor": lambda p, q, n: rrs_wor_outcome(p, q, n, multiplier_scale=1.25),
    "spechub": lambda p, q, n: spechub_outcome(p, q, transport_scale=0.9),
    "k-seq": lambda p, q, n: single_path_outcome(KSeq(factor=1.0), p, q, n),
    "exact-shaping": lambda p, q, n: single_path_outcome(WrongShaping(), p, q, n),
    "nss": lambda p, q, n: nss_outcome(p, np.minimum(q * 1.25, 1.0), n),
}
