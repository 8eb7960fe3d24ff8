"""Optimises trees for a dump and measures them on prompts that they were not fitted on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from .checks import as_list, check_number, check_whole
from .config import REPLAY, TREE
from .dumps import Dump, open_dump
from .errors import InputError
from .growmaps import GrowMap, parse_growmap
from .provenance import provenance
from .rules import ExactShaping, ResiSpec, ResiSpecEagle, ResiSpecWor, RrsWor, Rule, parse_rule
from .tree_eal import SLOW_SECONDS, SiblingFigures, growmap_eal, measure_siblings, say
from .tree_report import Figures, TreeReport
from .tree_search import (
    TreePlan,
    TreeSearch,
    check_branching,
    check_limits,
    model_eal,
    search_seconds,
)
from .trees import MAX_DEPTH, CompleteTree
from .types import Backend, Method

# Their laws take a walk over paths of rejections, which grow with every sibling.
_WALKED = (ResiSpec, ResiSpecWor, ResiSpecEagle, RrsWor)

Tree = str | PathLike[str] | CompleteTree | GrowMap


def plan_trees(
    dump: Dump | str | PathLike[str],
    rule: str | Rule = TREE.rule,
    budgets: int | Sequence[int] = TREE.budget,
    *,
    depth: int | None = None,
    max_branching: int | None = None,
    beside: Tree | Sequence[Tree] = TREE.beside,
    hold_out: bool = True,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    method: Method = REPLAY.method,
    max_paths: int = REPLAY.max_paths,
    seed: int = REPLAY.seed,
    n_jobs: int = REPLAY.n_jobs,
    backend: Backend = REPLAY.backend,
    scheduler: str | None = None,
    progress: bool = False,
) -> TreeReport:
    """Optimise trees for the exact acceptance of a rule on a dump, and measure them on held-out prompts.

    The acceptance comes from every other prompt, the first one included; the accepted length (EAL) on
    the rest stands beside the model's, whatever it is.

    Parameters
    ----------
    dump : Dump, path or name
        An open dump stays open.
    rule : str or Rule
        A rule that verifies one position at a time.
    budgets : int or sequence of int
        Nodes at most, the root included.
    depth : int, optional
        Levels at most, the root included. Default: those of the deepest tree in `beside`, or 64
        where that is empty.
    max_branching : int, optional
        Children per node at most. Default: 32; 12 for exact shaping, which is solved for every number
        of children; 4 for rules whose law walks paths of rejections.
    beside : tree or sequence of them
        Trees to show beside: names such as ``"d5b3"``, files of grow maps, or instances.
    hold_out : bool
        False takes the acceptance, and the EAL, from all prompts.
    temperature, top_k, top_p : optional
        Default: the dump's own; elsewhere there is no EAL of the dump, only the model's, since the
        recorded text was not sampled from that target.
    method, max_paths, seed
        Passed on to the engine.
    n_jobs, backend, scheduler
        As in `resispec_sim.replay`; the report does not depend on them.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    TreeReport

    Raises
    ------
    InputError, RuleError
        If an argument is out of its range, or the rule verifies several levels at once.
    DumpError
        If the dump is missing, incomplete or altered.

    Examples
    --------
    >>> report = plan_trees("smollm2-t1.0", budgets=16, beside="d4b2", max_branching=4)
    >>> [(tree["name"], round(tree["model_eal"], 2)) for tree in report.trees]
    [('16 nodes on 4 levels', 1.85), ('d4b2', 1.74)]
    """
    chosen = parse_rule(rule)
    limits = [check_whole("budgets", n, at_least=1) for n in as_list(budgets)]
    if not limits:
        raise InputError("budgets: give at least one")
    others = [(item, parse_growmap(item)) for item in as_list(beside)]
    unlimited = depth is None and not others
    if depth is None:
        depth = min(max([tree.depth for _, tree in others], default=MAX_DEPTH), MAX_DEPTH)
    _, depth = check_limits(max(limits), depth)
    if max_branching is None:
        max_branching = _default_branching(chosen)
    check_branching(max_branching)
    if progress:
        shared = not getattr(chosen, "depends_on_count", True)
        seconds = search_seconds(max(limits), depth, max_branching, shared)
        if seconds > SLOW_SECONDS:
            say(
                f"the search over {max(limits):,} nodes takes about {seconds / 60:.1f} minutes after the "
                "measurement; a smaller --budget, --depth or --max-branching shortens it"
            )
    with contextlib.ExitStack() as stack:
        if not isinstance(dump, Dump):
            dump = stack.enter_context(contextlib.closing(open_dump(dump)))
        heat = dump.temperature if temperature is None else check_number("temperature", temperature)
        settings: dict[str, Any] = {"temperature": heat, "top_k": top_k, "top_p": top_p}
        figures = measure_siblings(
            dump,
            chosen,
            max_branching,
            **settings,
            method=method,
            max_paths=max_paths,
            seed=seed,
            n_jobs=n_jobs,
            backend=backend,
            scheduler=scheduler,
            progress=progress,
        )
        reason = _no_eal(dump, **settings)
        fit = figures.prompts % 2 == 0 if hold_out else np.ones(len(figures.prompts), dtype=bool)
        acceptance = figures.acceptance(fit)
        search = TreeSearch(acceptance, max(limits), depth, max_branching=max_branching)
        plans = tuple(search.plan(budget) for budget in limits)
        parts = {"fit": fit, "held_out": ~fit if hold_out else None}
        every = [plan.growmap for plan in plans] + [tree for _, tree in others]
        n_left = max(tree.n_levels for tree in every)
        about = _about(dump, chosen, figures, fit, depth, max_branching)
        about |= {"hold_out": hold_out, "same_starts_levels": n_left}
        trees = [
            _entry("optimised", plan.growmap, figures, acceptance, parts, n_left, reason)
            | {"budget": plan.budget}
            for plan in plans
        ]
        for item, tree in others:
            entry = _entry("given", tree, figures, acceptance, parts, n_left, reason)
            trees.append(
                entry | {"name": entry["name"] if isinstance(item, GrowMap) else str(item)}
            )
        record = provenance(
            command="tree",
            **about,
            budgets=limits,
            beside=[str(item) for item, _ in others],
            method=method,
            max_paths=max_paths,
            seed=seed,
            **settings,
        )
    notes = _notes(chosen, figures, max_branching, parts)
    if unlimited:
        notes.append(
            f"No tree to show beside and no depth: trees may have up to {depth} levels. --depth limits "
            "them to what a draft can do."
        )
    widest = max(max(plan.growmap.child_counts) for plan in plans)
    if widest == max_branching > 1 and widest < max(limits) - 1:
        notes.append(f"A tree reaches the limit of {widest} children; --max-branching raises it.")
    notes += [_unspent(plan) for plan in plans if plan.growmap.n_nodes < plan.budget]
    return TreeReport(
        plans, trees, {k: row.tolist() for k, row in acceptance.items()}, about, notes, record
    )


def _default_branching(rule: Rule) -> int:
    if isinstance(rule, _WALKED):
        return TREE.walked_branching
    return TREE.shaped_branching if isinstance(rule, ExactShaping) else TREE.max_branching


def _entry(
    kind: str,
    tree: GrowMap,
    figures: SiblingFigures,
    acceptance: dict[int, Any],
    parts: dict[str, Any],
    n_left: int,
    reason: str | None,
) -> Figures:
    entry: Figures = {
        "kind": kind,
        "name": str(tree),
        "budget": None,
        "n_nodes": tree.n_nodes,
        "depth": tree.depth,
        "branching": list(tree.branching),
        "children": [list(below) for below in tree.children],
    }
    lacking = {count for count in tree.child_counts if count} - set(figures.counts)
    if lacking:
        reason = f"a node has {max(lacking)} children; measured: {_ranges(figures.counts)}"
    entry["model_eal"] = None if lacking else model_eal(tree, acceptance)
    last = parts["fit"] if parts["held_out"] is None else parts["held_out"]
    for part, positions, left in (
        ("fit", parts["fit"], None),
        ("held_out", parts["held_out"], None),
        ("same_starts", last, n_left),
    ):
        if positions is None:
            entry[part] = None
        elif reason is not None:
            entry[part] = {"mean": None, "low": None, "high": None, "reason": reason, "n_starts": 0}
        else:
            entry[part] = growmap_eal(figures, tree, positions, n_left=left)
    return entry


def _no_eal(dump: Dump, temperature: float, top_k: int | None, top_p: float | None) -> str | None:
    """Why the recorded text says nothing about these settings, if it does not."""
    own = dump.top_k or 0, dump.top_p or 1.0
    asked = own[0] if top_k is None else top_k, own[1] if top_p is None else top_p
    # A top-k of all tokens is off, and so is 0.
    own_k, asked_k = (k if 0 < k < dump.vocab_size else 0 for k in (own[0], asked[0]))
    if (own_k, own[1]) != (asked_k, asked[1]):
        return f"text sampled at top-k {own_k or 'off'}, top-p {dump.top_p or 'off'}"
    if temperature != dump.temperature:
        return f"text sampled at T = {dump.temperature:g}"
    return None


def _about(
    dump: Dump,
    rule: Rule,
    figures: SiblingFigures,
    fit: Any,
    depth: int,
    max_branching: int,
) -> Figures:
    return {
        "dump": dump.about(),
        "rule": rule.label,
        "max_depth": depth,
        "max_branching": max_branching,
        "counts": list(figures.counts),
        "fit_prompts": len(np.unique(figures.prompts[fit])),
        "fit_positions": int(fit.sum()),
        "held_out_prompts": len(np.unique(figures.prompts[~fit])),
        "held_out_positions": int((~fit).sum()),
    }


def _notes(
    rule: Rule,
    figures: SiblingFigures,
    max_branching: int,
    parts: dict[str, Any],
) -> list[str]:
    notes = []
    if isinstance(rule, _WALKED):
        notes.append(
            f"{rule.label} walks paths of rejections: nodes have at most {max_branching} children; "
            "another --max-branching costs accordingly."
        )
    if figures.counts != tuple(range(1, max_branching + 1)):
        notes.append(f"{rule.label} is defined for {_ranges(figures.counts)} siblings only.")
    if figures.n_not_exact:
        notes.append(f"The laws of {figures.n_not_exact} positions were not walked in full.")
    unknown = int(np.isnan(figures.w[max(figures.w)][:, 0]).sum())
    if unknown:
        notes.append(f"{unknown} positions whose target lacks the recorded token are left out.")
    if parts["held_out"] is not None and not parts["held_out"].any():
        notes.append("The dump has one prompt: nothing is held out.")
    return notes


def _unspent(plan: TreePlan) -> str:
    n_nodes = plan.growmap.n_nodes
    return (
        f"Budget {plan.budget}: the tree stops at {n_nodes} node{'s' if n_nodes > 1 else ''}, since no "
        f"larger one of at most {plan.depth} levels and {plan.max_branching} children per node has a "
        "larger EAL in the model: no further node gains more than rounding."
    )


def _ranges(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
