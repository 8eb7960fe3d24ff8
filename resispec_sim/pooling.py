"""Pools the rows of single positions into the figures of a report."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from .config import REPLAY
from .engine.bounds import ROUNDING
from .trees import CompleteTree, bootstrap_ratio, path_eal, path_tokens_per_step
from .verdict import RIGOROUS, verdict

Figures = dict[str, Any]


@dataclass(frozen=True)
class EalContext:
    """What the accepted length needs beside the rows.

    Attributes
    ----------
    tree : CompleteTree
    claims_exact : dict of str to bool
        By rule label.
    unavailable : dict of float to str
        Temperatures at which the dump's text was not sampled, with the reason as text.
    undefined : dict of str to str
        Labels of the rules that have no law for the tree's branching, with the reason as text.
    """

    tree: CompleteTree
    claims_exact: dict[str, bool]
    unavailable: dict[float, str]
    undefined: dict[str, str] = field(default_factory=dict)


def pool(frame: pd.DataFrame, context: EalContext) -> list[Figures]:
    """Pool per-position rows by temperature and sibling count, then by rule.

    Parameters
    ----------
    frame : DataFrame
        One row per position, temperature, sibling count and rule.
    context : EalContext

    Returns
    -------
    list of dict
        One entry per temperature and sibling count in order of appearance, with ``temperature``,
        ``siblings``, ``n_positions``, ``n_prompts`` and ``rules``, a list of figures per rule. Figures
        that come from intervals are dicts with ``mean``, ``low`` and ``high``, and ``sampled``: whether
        the ends are 1.96 standard errors away and not bounds.
    """
    groups = []
    for (temperature, siblings), of_group in frame.groupby(["temperature", "siblings"], sort=False):
        groups.append(
            {
                "temperature": float(temperature),
                "siblings": int(siblings),
                "n_positions": int(of_group["position"].nunique()),
                "n_prompts": int(of_group["prompt"].nunique()),
                "rules": [
                    _pool_rule(str(label), rows.sort_values("position"), int(siblings), context)
                    for label, rows in of_group.groupby("rule", sort=False)
                ],
            }
        )
    return groups


def _pool_rule(label: str, rows: pd.DataFrame, n_siblings: int, context: EalContext) -> Figures:
    accepted = [pooled_mean(rows, f"accepted_{i}") for i in range(1, n_siblings + 1)]
    claims_exact = context.claims_exact[label]
    decided = verdict(rows, claims_exact)
    return {
        "rule": label,
        "claims_exact": claims_exact,
        "scheme": str(rows["scheme"].iloc[0]),
        "accepted": accepted,
        "conditional_acceptance": _conditional(accepted),
        "acceptance": pooled_mean(rows, "acceptance"),
        "optimum": float(rows["optimum"].mean()),
        "share_above_optimum": _share_above(rows),
        **_pool_tree(label, rows, context, decided["verdict"]),
        "kl": _mean_of(rows, "kl") | _max_of(rows, "kl"),
        "tv": _mean_of(rows, "tv") | _max_of(rows, "tv"),
        "tv_lower_bound": {
            "mean": float(rows["tv_lower_bound"].mean()),
            "max": float(rows["tv_lower_bound"].max()),
        },
        "appendix_b_kl": {
            "mean": float(rows["appendix_b_kl"].mean()),
            "max": float(rows["appendix_b_kl"].max()),
        },
        "appendix_b_kl_random": {
            "mean": float(rows["appendix_b_kl_random"].mean()),
            "max": float(rows["appendix_b_kl_random"].max()),
        },
        "methods": {
            str(method): {
                "positions": len(paths),
                "paths": int(paths.sum()),
                "most_paths": int(paths.max()),
            }
            for method, paths in rows.groupby("method", sort=True)["n_paths"]
        },
        "notes": {
            str(note): int(count)
            for note, count in rows["notes"].value_counts().sort_index().items()
            if note
        },
        **decided,
    }


def pooled_mean(rows: pd.DataFrame, name: str) -> Figures:
    """Mean over positions of a figure with an interval, by the columns `name`, ``_low``, ``_high``.

    Bounds add up. Standard errors of sampled positions add up in quadrature, since every position has
    a random stream of its own.

    Returns
    -------
    dict
        ``mean``, ``low``, ``high``, ``sampled``.
    """
    value, low, high = (rows[f"{name}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    drawn = ~rows["method"].isin(RIGOROUS).to_numpy() & (high > low)
    if not drawn.any():
        return _mean_of(rows, name)
    half = np.sqrt((((high - low)[drawn] / 2.0) ** 2).sum()) / len(rows)
    return {
        "mean": float(value.mean()),
        "low": float(np.where(drawn, value, low).mean() - half),
        "high": float(np.where(drawn, value, high).mean() + half),
        "sampled": True,
    }


def _mean_of(rows: pd.DataFrame, name: str) -> Figures:
    drawn = ~rows["method"].isin(RIGOROUS) & (rows[f"{name}_high"] > rows[f"{name}_low"])
    return {
        "sampled": bool(drawn.any()),
        "mean": float(rows[name].mean()),
        "low": float(rows[f"{name}_low"].mean()),
        "high": float(rows[f"{name}_high"].mean()),
    }


def _max_of(rows: pd.DataFrame, name: str) -> Figures:
    return {
        "max": float(rows[name].max()),
        "max_low": float(rows[f"{name}_low"].max()),
        "max_high": float(rows[f"{name}_high"].max()),
    }


def _conditional(accepted: list[Figures]) -> list[Figures]:
    """Ratio of sums; it grows with the sibling's own mass and with the mass accepted before."""
    before = {"mean": 0.0, "low": 0.0, "high": 0.0}
    found: list[Figures] = []
    for mass in accepted:
        found.append(
            {
                key: float(np.clip(mass[key] / (1.0 - before[key]), 0.0, 1.0))
                if before[key] < 1.0
                else np.nan
                for key in before
            }
            | {"sampled": mass["sampled"]}
        )
        before = {key: before[key] + mass[key] for key in before}
    return found


def _share_above(rows: pd.DataFrame) -> Figures:
    limit = rows["optimum"] + ROUNDING[str(rows["scheme"].iloc[0])]
    return {
        "mean": float((rows["acceptance"] > limit).mean()),
        "low": float((rows["acceptance_low"] > limit).mean()),
        "high": float((rows["acceptance_high"] > limit).mean()),
    }


def _pool_tree(label: str, rows: pd.DataFrame, context: EalContext, decided: str) -> Figures:
    reason = context.undefined.get(label)
    reason = context.unavailable.get(float(rows["temperature"].iloc[0]), reason)
    if reason is not None:
        return {"eal": _no_figure(reason), "tokens_per_step": _no_figure(reason)}
    n_levels = context.tree.n_levels
    sums = tree_sums(rows, n_levels)
    eal_sums, step_sums = [pair[:2] for pair in sums], [pair[2:] for pair in sums]
    n_starts = int(sum(count for _, count in eal_sums))
    if n_starts == 0:
        reason = f"no prompt has {n_levels} consecutive positions"
        return {"eal": _no_figure(reason), "tokens_per_step": _no_figure(reason)}
    counts = {
        "n_starts": n_starts,
        "largest_w": float(rows["tree_w"].max()),
        "n_not_exact": int((rows["tree_method"] != "exact").sum()),
        "n_without_w": int(rows["tree_w"].isna().sum()),
    }
    # a verdict holds for its own number of siblings, a claim for every one
    shown_here = int(rows["siblings"].iloc[0]) == context.tree.branching and decided == "exact"
    if not (shown_here or (context.claims_exact[label] and decided != "biased")):
        per_step = _no_figure("not exact: visits other contexts")
    else:
        per_step = _bootstrapped(step_sums)
    return {"eal": _bootstrapped(eal_sums) | counts, "tokens_per_step": per_step}


def tree_sums(rows: pd.DataFrame, n_levels: int) -> list[tuple[float, float, float, float]]:
    """Per prompt in order: sum of EAL and its starts, tokens and steps of an exact rule.

    Parameters
    ----------
    rows : DataFrame
        The rows of one rule, temperature and sibling count, sorted by position.
    n_levels : int
        Drafted levels of the tree.
    """
    sums = []
    for _, of_prompt in rows.groupby("prompt", sort=True):
        eal_sum = n_starts = tokens = steps = 0.0
        for segment in _segments(of_prompt):
            w, alpha = segment["tree_w"].to_numpy(), segment["tree_alpha"].to_numpy()
            eal = path_eal(w, alpha, n_levels)
            eal_sum, n_starts = eal_sum + eal.sum(), n_starts + len(eal)
            more_tokens, more_steps = path_tokens_per_step(w, alpha, n_levels)
            tokens, steps = tokens + more_tokens, steps + more_steps
        sums.append((eal_sum, n_starts, tokens, steps))
    return sums


def _segments(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Split the rows of one prompt where offsets are missing or a ratio could not be formed."""
    offsets = rows["offset"].to_numpy()
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    pieces = []
    for start, stop in pairwise([0, *cuts.tolist(), len(rows)]):
        piece = rows.iloc[start:stop]
        known = piece["tree_w"].notna().to_numpy()
        inner = [-1, *np.flatnonzero(~known).tolist(), len(piece)]
        pieces += [piece.iloc[a + 1 : b] for a, b in pairwise(inner) if b > a + 1]
    return pieces


def _bootstrapped(sums: Sequence[tuple[float, ...]]) -> Figures:
    top, bottom = zip(*sums, strict=True)
    value, low, high = bootstrap_ratio(top, bottom)
    return {
        "mean": value,
        "low": low,
        "high": high,
        "confidence": REPLAY.confidence,
        "n_prompts": sum(1 for count in bottom if count > 0),
        "reason": None,
    }


def _no_figure(reason: str) -> Figures:
    return {"mean": None, "low": None, "high": None, "reason": reason}
