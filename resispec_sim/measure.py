"""The figures of one position: everything that a replay keeps of its laws."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import REPLAY
from .engine import Law, appendix_b_kl, exact_law
from .engine.bounds import optimum_for
from .errors import RuleError
from .rules import ResidualRule, Rule
from .trees import CompleteTree
from .types import Method

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured at every position.

    Attributes
    ----------
    rules : tuple of Rule
    siblings : tuple of int
        Sibling counts of the per-position figures.
    tree : CompleteTree
        Its branching is the sibling count behind the accepted length.
    method, max_paths, seed
        Passed on to the engine.
    """

    rules: tuple[Rule, ...]
    siblings: tuple[int, ...]
    tree: CompleteTree
    method: Method = REPLAY.method
    max_paths: int = REPLAY.max_paths
    seed: int = REPLAY.seed


@dataclass(frozen=True)
class Place:
    """Where a row comes from: position in the dump, prompt, offset in it, token recorded there."""

    position: int
    prompt: int
    offset: int
    token: int


def measure(
    place: Place,
    temperature: float,
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    plan: Plan,
    *,
    with_tree: bool,
) -> list[Row]:
    """Compute the laws of one position and keep their scalars, one row per rule and sibling count.

    Random streams depend on the seed, the position and the sibling count only, so the rows do not
    depend on the order in which positions are computed. A rule has no rows for the sibling counts that
    it is not defined for.

    Parameters
    ----------
    place : Place
    temperature : float
        Only copied into the rows.
    target_probs, draft_probs : ndarray (V,)
    plan : Plan
    with_tree : bool
        Whether the recorded token was sampled from `target_probs`; only then can its ratio ``W``
        enter an accepted length.

    Returns
    -------
    list of dict
    """
    rows: list[Row] = []
    tree_figures: dict[str, Row] = {}
    branching = plan.tree.branching
    counts = plan.siblings
    if with_tree and branching not in counts:
        counts = (*counts, branching)
    for n_siblings in counts:
        shown = n_siblings in plan.siblings
        rules = [rule for rule in plan.rules if is_defined(rule, n_siblings)]
        optima = {
            scheme: float(optimum_for(scheme, target_probs, draft_probs, n_siblings))
            for scheme in dict.fromkeys(rule.siblings for rule in rules)
            if shown
        }
        random_kl = np.nan
        if shown and rules:
            random_kl = _appendix_b("random", place, target_probs, draft_probs, n_siblings, plan)
        for rule in rules:
            law = exact_law(
                rule,
                target_probs,
                draft_probs,
                n_siblings,
                method=plan.method,
                by_token=with_tree and n_siblings == branching,
                max_paths=plan.max_paths,
                seed=seed_of(plan.seed, place.position, n_siblings),
            )
            if with_tree and n_siblings == branching:
                tree_figures[rule.label] = _tree_row(law, target_probs, place.token)
            if shown:
                rows.append(
                    {
                        "position": place.position,
                        "prompt": place.prompt,
                        "offset": place.offset,
                        "token": place.token,
                        "temperature": temperature,
                        "siblings": n_siblings,
                        "rule": rule.label,
                        "scheme": rule.siblings,
                        **_law_row(law, target_probs),
                        "optimum": optima[rule.siblings],
                        "appendix_b_kl_random": random_kl,
                        "appendix_b_kl": _appendix_b(
                            rule, place, target_probs, draft_probs, n_siblings, plan
                        ),
                    }
                )
    for row in rows:
        row.update(tree_figures.get(row["rule"], _NO_TREE))
    return rows


def is_defined(rule: Rule, n_siblings: int) -> bool:
    """Whether the rule has a law for this number of siblings."""
    try:
        rule.check_count(n_siblings)
    except RuleError:
        return False
    return True


_NO_TREE: Row = {"tree_w": np.nan, "tree_alpha": np.nan, "tree_method": ""}


def _tree_row(law: Law, target_probs: NDArray[np.float64], token: int) -> Row:
    w, p_token = np.nan, target_probs[token]
    if law.accepted_by_token is not None and p_token > 0:
        w = float(law.accepted_by_token[:, token].sum() / p_token)
    return {
        "tree_w": w,
        "tree_alpha": float(np.sum(law.accepted)),
        "tree_method": str(law.method),
    }


def _law_row(law: Law, target_probs: NDArray[np.float64]) -> Row:
    row: Row = {}
    low, high = np.asarray(law.accepted_interval, dtype=float).T
    for i, mass in enumerate(np.asarray(law.accepted, dtype=float), start=1):
        row[f"accepted_{i}"] = float(mass)
        row[f"accepted_{i}_low"] = float(low[i - 1])
        row[f"accepted_{i}_high"] = float(high[i - 1])
    excess = law.output_probs - target_probs
    token = int(np.argmax(excess))
    return row | {
        "acceptance": float(np.sum(law.accepted)),
        "acceptance_low": float(low.sum()),
        "acceptance_high": float(high.sum()),
        "kl": float(law.kl),
        "kl_low": float(law.kl_interval[0]),
        "kl_high": float(law.kl_interval[1]),
        "tv": float(law.tv),
        "tv_low": float(law.tv_interval[0]),
        "tv_high": float(law.tv_interval[1]),
        "tv_lower_bound": float(law.tv_lower_bound),
        "excess_token": token,
        "excess_mass": float(excess[token]),
        "method": str(law.method),
        "n_paths": int(law.n_paths),
        "notes": "; ".join(law.notes),
    }


def _appendix_b(
    rule: Rule | str,
    place: Place,
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    plan: Plan,
) -> float:
    if isinstance(rule, Rule) and not isinstance(rule, ResidualRule):
        return np.nan  # no proxies to reconstruct from
    return float(
        appendix_b_kl(
            target_probs,
            draft_probs,
            n_siblings,
            rule=rule,
            rng=np.random.default_rng(seed_of(plan.seed, place.position, n_siblings)),
            n_trajectories=REPLAY.appendix_b_trajectories,
        )
    )


def seed_of(seed: int, position: int, n_siblings: int) -> int:
    """The seed of one position and sibling count in a run with `seed`."""
    return int(np.random.SeedSequence([seed, position, n_siblings]).generate_state(1)[0])
