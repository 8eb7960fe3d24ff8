"""Figures of a decoding benchmark from its logs: accepted length, speed, phases, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..config import REPLAY
from ..growmaps import parse_growmap
from ..rules import parse_rule
from ..run_config import AUTOREGRESSIVE, Method, RunConfig, TopKShape, public_name
from ..trees import bootstrap_ratio
from .bench_log import PromptRecord

Figures = dict[str, Any]
Records = Mapping[int, PromptRecord]

MAIN_PHASES = ("drafting", "verification", "shaping")
SHAPING_PARTS = ("budgeting", "redistribution", "proxy")


def ratio_of_ratios(
    ones: tuple[ArrayLike, ArrayLike],
    others: tuple[ArrayLike, ArrayLike],
    *,
    confidence: float = REPLAY.confidence,
    n_resamples: int = REPLAY.bootstrap_resamples,
    seed: int = REPLAY.bootstrap_seed,
) -> tuple[float, float, float]:
    """One pooled ratio over another, with a percentile bootstrap interval over prompts.

    Both systems keep the prompts that a resample holds, so what prompts have in common cancels.

    Parameters
    ----------
    ones, others : pairs of array_like (N,)
        Numerators and denominators of the two systems, by prompt.
    confidence, n_resamples, seed
        As in `resispec_sim.trees.bootstrap_ratio`.

    Returns
    -------
    ratio, low, high : float
        NaN where there is nothing to divide; the interval is NaN with fewer than two prompts.

    Examples
    --------
    >>> ratio_of_ratios(([4.0, 8.0], [1.0, 2.0]), ([2.0, 2.0], [1.0, 1.0]))
    (2.0, 2.0, 2.0)
    """
    sums = np.array([*ones, *others], dtype=np.float64)
    n_prompts = sums.shape[1]

    def divide(totals: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return totals[0] / totals[1] / (totals[2] / totals[3])

    value = float(divide(sums.sum(axis=1)))
    if n_prompts < 2 or not np.isfinite(value):
        return value, float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), size=n_resamples)
    ratios = divide(sums @ weights.T)
    tail = (1.0 - confidence) / 2.0
    low, high = np.nanquantile(ratios, [tail, 1.0 - tail])
    return value, float(low), float(high)


def system_figures(config: RunConfig, dataset: str, method: Method, records: Records) -> Figures:
    """Figures of one method on one set of prompts.

    Accepted length: emitted tokens per step, the bonus included, over the steps that the end of the
    text did not cut. Tokens per second: all new tokens over the wall time of all steps; the prompt's own
    pass is not in it.

    Returns
    -------
    dict
        What identifies the system, counts, and ``accepted_length`` and ``tokens_per_second`` with
        ``_low`` and ``_high``; NaN where there is no figure. ``exact`` is the rule's own claim.
    """
    prompts = [records[index].prompt for index in sorted(records)]
    tokens, steps = _accepted_sums(records)
    new_tokens = [len(prompt.token_ids) for prompt in prompts]
    seconds = [prompt.seconds for prompt in prompts]
    n_steps = sum(len(records[index].steps) for index in records)
    gpu = [p.peak_memory_bytes for p in prompts if p.peak_memory_bytes is not None]
    return {
        "dataset": dataset,
        "method": method.name,
        **describe(config, method),
        "n_prompts": len(prompts),
        "n_tokens": sum(new_tokens),
        "n_steps": n_steps,
        "n_cut_steps": n_steps - int(sum(steps)),
        "n_eos": sum(prompt.finished == "eos" for prompt in prompts),
        **_interval("accepted_length", bootstrap_ratio(tokens, steps)),
        **_interval("tokens_per_second", bootstrap_ratio(new_tokens, seconds)),
        "seconds_per_step": sum(seconds) / n_steps if n_steps else float("nan"),
        "peak_memory_bytes": max(gpu, default=None),
        "peak_process_bytes": max((p.peak_process_bytes for p in prompts), default=None),
    }


def gain_figures(records: Records, baseline: Records) -> Figures:
    """Accepted length and speed over the baseline's, on the prompts that both have."""
    both = sorted(set(records) & set(baseline))
    ones, others = ({i: r[i] for i in both} for r in (records, baseline))

    def speed(of: Records) -> tuple[ArrayLike, ArrayLike]:
        return (
            [len(of[i].prompt.token_ids) for i in both],
            [of[i].prompt.seconds for i in both],
        )

    gain = ratio_of_ratios(_accepted_sums(ones), _accepted_sums(others))
    return {
        **_interval("accepted_gain", gain),
        **_interval("speedup", ratio_of_ratios(speed(ones), speed(others))),
        "n_paired": len(both),
    }


def phase_figures(
    config: RunConfig, dataset: str, method: Method, records: Records
) -> list[Figures]:
    """Seconds per step and phase of profiled prompts, one row per phase.

    ``share`` is the part of drafting, verification and shaping together; budgeting, redistribution
    and proxy are parts of shaping. Steps that were cut are left out, since their trees
    may be smaller.
    """
    whole = {
        index: [step for step in records[index].steps if not step.cut] for index in sorted(records)
    }
    counts = [len(steps) for steps in whole.values()]
    flat = [step for steps in whole.values() for step in steps]
    if not flat:
        return []
    found = {name for step in flat for name in step.phases}
    order = [*MAIN_PHASES, *SHAPING_PARTS]
    names = [n for n in order if n in found] + sorted(found - set(order))
    step_seconds = sum(step.phases.get(name, 0.0) for step in flat for name in MAIN_PHASES)
    shared = {
        "dataset": dataset,
        "method": method.name,
        **describe(config, method),
        "n_nodes": float(np.mean([step.n_nodes for step in flat])),
        "accepted_length": float(np.mean([step.n_tokens for step in flat])),
        "n_prompts": len(counts),
        "n_steps": len(flat),
    }
    rows = []
    for name in names:
        sums = [sum(s.phases.get(name, 0.0) for s in steps) for steps in whole.values()]
        seconds = _interval("seconds", bootstrap_ratio(sums, counts))
        share = sum(sums) / step_seconds if step_seconds > 0 else float("nan")
        rows.append({**shared, "phase": name, **seconds, "share": share})
    return rows


def describe(config: RunConfig, method: Method) -> Figures:
    """Rule, draft and tree of a method, with what a projection needs: levels, and exact or not."""
    if method.rule == AUTOREGRESSIVE:
        return {"rule": AUTOREGRESSIVE, "exact": True, "draft": None, "tree": None, "n_levels": 0}
    rule, tree = parse_rule(method.rule), config.tree_of(method)
    assert tree is not None
    levels = tree.depth - 1 if isinstance(tree, TopKShape) else parse_growmap(tree).n_levels
    name = str(tree).rpartition("/")[2]
    draft = config.draft_of(method)
    return {
        "rule": rule.label,
        "exact": rule.exact,
        "draft": None if draft is None else public_name(draft),
        "tree": name,
        "n_levels": levels,
    }


def _accepted_sums(records: Records) -> tuple[Sequence[int], Sequence[int]]:
    whole = [[s.n_tokens for s in records[i].steps if not s.cut] for i in sorted(records)]
    return [sum(tokens) for tokens in whole], [len(tokens) for tokens in whole]


def _interval(name: str, found: tuple[float, float, float]) -> Figures:
    return {name: found[0], f"{name}_low": found[1], f"{name}_high": found[2]}
