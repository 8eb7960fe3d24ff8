"""Which engine computes a rule: one made for it, or the generic one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from resispec_sim.config import ENGINE
from resispec_sim.engine.closed_forms import nss_outcome, spechub_outcome
from resispec_sim.engine.generic import cost_of_all, generic_outcome
from resispec_sim.engine.resispec import resispec_outcome
from resispec_sim.engine.resispec_wor import resispec_wor_outcome
from resispec_sim.engine.result import Outcome, check_mass
from resispec_sim.engine.rrs_wor import rrs_wor_outcome
from resispec_sim.engine.single_path import single_path_outcome
from resispec_sim.engine.specinfer import specinfer_outcome
from resispec_sim.rules import (
    RULES,
    Nss,
    PositionRule,
    ResiSpec,
    ResiSpecEagle,
    ResiSpecWor,
    RrsWor,
    SequentialRule,
    SpecHub,
    SpecInfer,
)

FloatArray = NDArray[np.float64]
Engine = Callable[[FloatArray, FloatArray, int], Outcome]


def outcome_of(
    rule: PositionRule,
    target_probs: FloatArray,
    draft_probs: FloatArray,
    n_siblings: int,
    *,
    method: str,
    max_paths: float,
    seed: int,
    tolerance: float = ENGINE.tolerance,
) -> Outcome:
    """Compute one position with the engine of the rule; parameters as in `exact_law`.

    Raises
    ------
    MassError
        If a law that is called exact does not sum to 1 within 1e-12.
    """
    budget = {"method": method, "max_paths": max_paths, "seed": seed}
    if _needs_definition(rule, target_probs, draft_probs, n_siblings, method, max_paths):
        engine = _generic(rule, budget)
    else:
        engine = _engine_of(rule, budget, tolerance)
    outcome = engine(target_probs, draft_probs, n_siblings)
    if outcome.method == "exact":
        check_mass(outcome.output_probs, f"the law of {rule.label}")
    if rule.siblings == "iid":
        return outcome
    n_drafted = int(np.count_nonzero(draft_probs))
    if n_drafted >= n_siblings:
        return outcome
    token, sibling = ("tokens", "siblings") if n_drafted > 1 else ("token", "sibling")
    note = f"the draft has {n_drafted} {token}: {n_drafted} {sibling} in place of {n_siblings}"
    return replace(outcome, notes=(*outcome.notes, note))


def _needs_definition(
    rule: PositionRule, p: FloatArray, q: FloatArray, n: int, method: str, max_paths: float
) -> bool:
    """Whether the engine made for a rule without replacement does not serve at this position."""
    if rule.siblings != "without_replacement" or n == 1:
        return False
    # Those engines count tokens with p/q beyond the float range as never drafted; here such a token
    # can come to hold nearly all the draft that is left.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if (np.isinf(p / q) & (q > 0)).any():
            return True
    # beyond three siblings RRS has drawn paths only: few tokens are better walked
    walkable = method == "exact" or (method != "sampled" and cost_of_all(rule, q, n) <= max_paths)
    return type(rule) is RrsWor and n > 3 and walkable


def _engine_of(rule: PositionRule, budget: dict, tolerance: float) -> Engine:
    # By the class itself: a subclass may change what the engine takes for granted.
    kind = type(rule)
    if kind is SpecInfer:
        return specinfer_outcome
    if kind is Nss:
        return nss_outcome
    if kind is SpecHub:
        return lambda p, q, n: spechub_outcome(p, q)
    if kind is RrsWor:
        return lambda p, q, n: rrs_wor_outcome(p, q, n, **budget)
    if isinstance(rule, ResiSpec) and kind is ResiSpec and rule.fill != "index":
        return lambda p, q, n: resispec_outcome(rule, p, q, n, tolerance=tolerance, **budget)
    if isinstance(rule, ResiSpecWor | ResiSpecEagle) and kind in (ResiSpecWor, ResiSpecEagle):
        softmax = kind is ResiSpecWor or getattr(rule, "reading", None) == "softmax"
        if softmax and rule.fill != "index":
            return lambda p, q, n: resispec_wor_outcome(rule.fill, p, q, n, **budget)
    if isinstance(rule, SequentialRule):
        one_path = (rule.path_free and rule.siblings == "iid") or rule.siblings == "topk"
        if one_path:
            trusted = kind in RULES.values()
            return lambda p, q, n: single_path_outcome(rule, p, q, n, trusted=trusted)
    return _generic(rule, budget)


def _generic(rule: PositionRule, budget: dict) -> Engine:
    return lambda p, q, n: generic_outcome(rule, p, q, n, **budget)
