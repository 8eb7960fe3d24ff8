"""The figures of one position: everything that a replay keeps of its laws."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import REPLAY
from .engine.appendix_b import mean_kl
from .engine.bounds import optimum_of_row
from .engine.figures import Figures, figures_of_row
from .engine.law import check_engine, check_method
from .engine.seeded_proxies import seeded_proxies
from .engine.specinfer_summary import Summary, specinfer_summary
from .errors import RuleError
from .rules import ResidualRule, Rule, SpecInfer
from .trees import CompleteTree
from .types import Device, Method

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
    method, max_paths, tolerance, device, seed
        Passed on to the engine; a method that there is not is refused (`InputError`).
    """

    rules: tuple[Rule, ...]
    siblings: tuple[int, ...]
    tree: CompleteTree
    method: Method = REPLAY.method
    max_paths: int = REPLAY.max_paths
    tolerance: float = REPLAY.tolerance
    device: Device = "cpu"
    seed: int = REPLAY.seed

    def __post_init__(self) -> None:
        check_method(self.method)


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
        Distributions, as `resispec_sim.probs.logits_to_probs` makes them: they are not checked again.
    plan : Plan
        Of rules that were checked (`resispec_sim.engine.law.check_engine`).
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
            scheme: optimum_of_row(scheme, target_probs, draft_probs, n_siblings)
            for scheme in dict.fromkeys(rule.siblings for rule in rules)
            if shown
        }
        laws, random_kl = _laws(rules, place, target_probs, draft_probs, n_siblings, plan)
        for rule, (figures, own_kl) in zip(rules, laws, strict=True):
            if with_tree and n_siblings == branching:
                tree_figures[rule.label] = _tree_row(figures, target_probs[place.token])
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
                        **_law_row(figures),
                        "optimum": optima[rule.siblings],
                        "appendix_b_kl_random": random_kl,
                        "appendix_b_kl": own_kl,
                    }
                )
    for row in rows:
        row.update(tree_figures.get(row["rule"], _NO_TREE))
    return rows


def _laws(
    rules: list[Rule],
    place: Place,
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    n_siblings: int,
    plan: Plan,
) -> tuple[list[tuple[Figures | Summary, float]], float]:
    """Figures and Appendix B KL of every rule, and that KL for random proxies."""
    summary = None
    if REPLAY.appendix_b_trajectories == 1 and any(type(rule) is SpecInfer for rule in rules):
        proxies = seeded_proxies(p.size, n_siblings, plan.seed, place.position)
        summary = specinfer_summary(p, q, n_siblings, place.token, proxies)
        if summary is not None and len(rules) == 1:
            return [(summary, summary.appendix_b_kl)], summary.appendix_b_kl_random
    seed = seed_of(plan.seed, place.position, n_siblings)

    def appendix_b(rule: ResidualRule | None) -> float:
        rng = np.random.default_rng(seed)
        return mean_kl(rule, p, q, n_siblings, rng, REPLAY.appendix_b_trajectories)

    laws: list[tuple[Figures | Summary, float]] = []
    for rule in rules:
        if type(rule) is SpecInfer and summary is not None:
            laws.append((summary, summary.appendix_b_kl))
            continue
        figures = figures_of_row(
            check_engine(rule),
            p,
            q,
            n_siblings,
            token=place.token,
            method=plan.method,
            max_paths=plan.max_paths,
            seed=seed,
            tolerance=plan.tolerance,
            device=plan.device,
        )
        # other rules take no proxies off a residual, so that there is nothing to reconstruct from
        laws.append((figures, appendix_b(rule) if isinstance(rule, ResidualRule) else np.nan))
    random_kl = appendix_b(None) if summary is None else summary.appendix_b_kl_random
    return laws, random_kl


def is_defined(rule: Rule, n_siblings: int) -> bool:
    """Whether the rule has a law for this number of siblings."""
    try:
        rule.check_count(n_siblings)
    except RuleError:
        return False
    return True


_NO_TREE: Row = {"tree_w": np.nan, "tree_alpha": np.nan, "tree_method": ""}


def _tree_row(figures: Figures | Summary, p_token: float) -> Row:
    p_token = float(p_token)
    return {
        "tree_w": figures.accepted_here / p_token if p_token > 0 else np.nan,
        "tree_alpha": sum(figures.accepted.tolist()),
        "tree_method": figures.method,
    }


def _law_row(figures: Figures | Summary) -> Row:
    masses = figures.accepted.tolist()
    total = sum(masses)
    kl, tv = float(figures.kl), float(figures.tv)
    if isinstance(figures, Summary):
        # a law in closed form: every interval is a point
        low = high = masses
        low_total = high_total = total
        (kl_low, kl_high), (tv_low, tv_high) = (kl, kl), (tv, tv)
    else:
        low, high = figures.accepted_interval.T.tolist()
        low_total, high_total = figures.total_interval.tolist()
        kl_low, kl_high = figures.kl_interval.tolist()
        tv_low, tv_high = figures.tv_interval.tolist()
    row: Row = {}
    for i, (mass, least, most) in enumerate(zip(masses, low, high, strict=True), start=1):
        row[f"accepted_{i}"] = mass
        row[f"accepted_{i}_low"] = least
        row[f"accepted_{i}_high"] = most
    row |= {
        "acceptance": total,
        "acceptance_low": low_total,
        "acceptance_high": high_total,
        "kl": kl,
        "kl_low": kl_low,
        "kl_high": kl_high,
        "tv": tv,
        "tv_low": tv_low,
        "tv_high": tv_high,
        "tv_lower_bound": float(figures.tv_lower_bound),
        "excess_token": figures.excess_token,
        "excess_mass": figures.excess_mass,
        "method": figures.method,
        "n_paths": int(figures.n_paths),
        "notes": "; ".join(figures.notes),
    }
    return row


def seed_of(seed: int, position: int, n_siblings: int) -> int:
    """The seed of one position and sibling count in a run with `seed`."""
    return int(np.random.SeedSequence([seed, position, n_siblings]).generate_state(1)[0])
