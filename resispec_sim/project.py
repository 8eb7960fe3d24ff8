"""Tokens per second of trees and rules that were not run: accepted length times measured phases."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .checks import as_list
from .config import REPLAY
from .dumps import Dump, open_dump
from .errors import InputError
from .growmaps import GrowMap, parse_growmap
from .live_config import PROJECT
from .phases import MeasuredStep, read_phases, step_cost
from .pooling import pool
from .provenance import provenance
from .replay import as_rules, replay
from .report import dumps
from .rules import Rule
from .tree_eal import growmap_eal, measure_siblings
from .trees import CompleteTree
from .types import Backend, Method

Figures = dict[str, Any]
PER_STEP, PER_POSITION = "tokens per step", "per position"


@dataclass(frozen=True, eq=False)
class Projection:
    """Projected speeds.

    Attributes
    ----------
    rows : list of dict
        One per tree and rule: ``accepted_length`` and ``tokens_per_second`` with ``_low`` and
        ``_high`` (None where the dump gives no figure, with the ``reason``), ``figure`` (which accepted
        length), ``step_seconds`` and its phases, ``notes``, and ``measured_tokens_per_second`` where
        that very system was run.
    measured : list of MeasuredStep
    about : dict
        Dump and file of phases.
    provenance : dict
    """

    rows: list[Figures]
    measured: list[MeasuredStep]
    about: Figures
    provenance: Figures

    def to_json(self) -> str:
        """Return everything as JSON."""
        data = {
            "schema_version": 1,
            "kind": "project",
            **self.about,
            "rows": self.rows,
            "measured": [dataclasses.asdict(step) for step in self.measured],
            "provenance": self.provenance,
        }
        return dumps(data)

    def table(self) -> RenderableType:
        """Return the projection for a terminal, as a rich renderable."""
        return _render(self)


def project(
    dump: Dump | str | PathLike[str],
    phases: str | Path | Sequence[MeasuredStep],
    rules: str | Rule | Sequence[str | Rule] = PROJECT.rules,
    trees: Any = PROJECT.trees,
    *,
    draft: str | None = None,
    method: Method = REPLAY.method,
    max_paths: int = REPLAY.max_paths,
    seed: int = REPLAY.seed,
    n_jobs: int = REPLAY.n_jobs,
    backend: Backend = REPLAY.backend,
    scheduler: str | None = None,
    progress: bool = False,
) -> Projection:
    """Project the speed of trees and rules from a dump and from measured phases.

    The accepted length comes from the dump at its own temperature: tokens per step where the rule is
    exact and the tree complete, which is what a decoder reports; else the mean over recorded positions.
    The interval is the accepted length's, a bootstrap over prompts; phases count as known.

    Parameters
    ----------
    dump : Dump, path or name
        Recorded from the models whose phases are given; this is not checked.
    phases : path or sequence of MeasuredStep
        See `resispec_sim.phases.read_phases`.
    rules : str, Rule or sequence of them
    trees : tree or sequence of them
        Names such as ``d5b3``, files of grow maps, or instances.
    draft : str, optional
        Draft whose phases are taken, where the file holds several.
    method, max_paths, seed, n_jobs, backend, scheduler, progress
        As in `resispec_sim.replay`.

    Returns
    -------
    Projection

    Raises
    ------
    InputError, RuleError, DumpError
        As in `resispec_sim.replay` and `resispec_sim.phases.read_phases`; if the phases are of several
        drafts and `draft` names none of them.
    """
    found = list(phases) if isinstance(phases, Sequence) and not isinstance(phases, str) else None
    measured = _of_draft(read_phases(phases) if found is None else found, draft)  # type: ignore[arg-type]
    chosen = as_rules(rules)
    shapes = [(_name(tree), parse_growmap(tree)) for tree in as_list(trees)]
    if not shapes:
        raise InputError("trees: give at least one")
    for name, tree in shapes:
        if tree.n_levels < 1:
            raise InputError(f"tree {name} has no drafted level")
    engine: Figures = {"method": method, "max_paths": max_paths, "seed": seed, "n_jobs": n_jobs}
    engine |= {"backend": backend, "scheduler": scheduler, "progress": progress}
    with contextlib.ExitStack() as stack:
        if not isinstance(dump, Dump):
            dump = stack.enter_context(contextlib.closing(open_dump(dump)))
        lengths = _of_complete(dump, chosen, [tree for _, tree in shapes], engine)
        lengths |= _of_growmaps(dump, chosen, [tree for _, tree in shapes], engine)
        about = {"dump": dump.about(), "phases": None if found is not None else str(phases)}
    rows = [
        _row(name, tree, rule, lengths[_key(tree), rule.label], measured)
        for name, tree in shapes
        for rule in chosen
    ]
    record = provenance(
        command="project",
        rules=[rule.label for rule in chosen],
        trees=[name for name, _ in shapes],
        draft=measured[-1].draft,
        method=method,
        max_paths=max_paths,
        seed=seed,
    )
    return Projection(rows, measured, about, record)


def _of_draft(measured: list[MeasuredStep], draft: str | None) -> list[MeasuredStep]:
    drafts = sorted({step.draft for step in measured if step.draft is not None})
    if draft is None and len(drafts) > 1:
        raise InputError(
            f"the phases are of the drafts {', '.join(drafts)}: choose one with --draft"
        )
    if draft is not None and draft not in drafts:
        raise InputError(
            f"draft {draft!r} has no phases; measured are: {', '.join(drafts) or 'none'}"
        )
    return [step for step in measured if draft is None or step.draft in (None, draft)]


def _name(tree: Any) -> str:
    return Path(tree).name if isinstance(tree, str | PathLike) else str(tree)


def _key(tree: GrowMap) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, tree.children))


def _as_complete(tree: GrowMap) -> CompleteTree | None:
    shape = CompleteTree(max(tree.depth, 2), max(tree.branching, default=1))
    same = shape.n_nodes == tree.n_nodes and _key(GrowMap.complete(shape)) == _key(tree)
    return shape if same else None


def _of_complete(
    dump: Dump, rules: Sequence[Rule], trees: Sequence[GrowMap], engine: Figures
) -> dict[Any, Figures]:
    """Accepted lengths of complete trees; one replay for all that have the same branching."""
    by_branching: dict[int, list[tuple[GrowMap, CompleteTree]]] = {}
    for tree in trees:
        shape = _as_complete(tree)
        if shape is not None:
            by_branching.setdefault(shape.branching, []).append((tree, shape))
    found: dict[Any, Figures] = {}
    for branching, pairs in by_branching.items():
        report = replay(dump, rules, branching, tree=pairs[0][1], **engine)
        if report.partial:
            raise KeyboardInterrupt  # a figure of some of the prompts is not the one asked for
        for tree, shape in pairs:
            (group,) = pool(report.frame, dataclasses.replace(report.context, tree=shape))
            of_rule = {figures["rule"]: figures for figures in group["rules"]}
            for rule in rules:
                figures = of_rule.get(rule.label)
                if figures is None:
                    reason = f"not defined for {branching} siblings"
                    found[_key(tree), rule.label] = _no_length(reason)
                    continue
                exact = figures["tokens_per_step"]["mean"] is not None
                kind = "tokens_per_step" if exact else "eal"
                name = PER_STEP if exact else PER_POSITION
                found[_key(tree), rule.label] = {**figures[kind], "figure": name}
    return found


def _of_growmaps(
    dump: Dump, rules: Sequence[Rule], trees: Sequence[GrowMap], engine: Figures
) -> dict[Any, Figures]:
    others = [tree for tree in trees if _as_complete(tree) is None]
    found: dict[Any, Figures] = {}
    if not others:
        return found
    widest = max(max(tree.child_counts) for tree in others)
    for rule in rules:
        figures = measure_siblings(dump, rule, widest, **engine)
        everywhere = np.ones(len(figures.prompts), dtype=bool)
        for tree in others:
            missing = set(tree.child_counts) - {0, *figures.counts}
            length = (
                _no_length(f"not defined for {min(missing)} siblings")
                if missing
                else growmap_eal(figures, tree, everywhere)
            )
            found[_key(tree), rule.label] = {**length, "figure": PER_POSITION}
    return found


def _no_length(reason: str) -> Figures:
    return {"mean": None, "low": None, "high": None, "reason": reason, "figure": PER_POSITION}


def _row(
    name: str, tree: GrowMap, rule: Rule, length: Figures, measured: Sequence[MeasuredStep]
) -> Figures:
    cost = step_cost(measured, rule.label, tree.n_levels, tree.n_nodes)
    row: Figures = {
        "tree": name,
        "rule": rule.label,
        "exact": rule.exact,
        "n_nodes": tree.n_nodes,
        "n_levels": tree.n_levels,
        "figure": length["figure"],
        "reason": length.get("reason"),
        "notes": list(cost.notes),
    }
    ends = {"": length["mean"], "_low": length["low"], "_high": length["high"]}
    for end, value in ends.items():
        known = value is not None and math.isfinite(value)
        row[f"accepted_length{end}"] = value if known else None
        row[f"tokens_per_second{end}"] = cost.tokens_per_second(value) if known else None
    mean = row["accepted_length"]
    row |= {
        "drafting_seconds": cost.drafting,
        "verification_seconds": cost.verification,
        "shaping_seconds": None if mean is None else cost.shaping_per_token * mean,
        "step_seconds": None if mean is None else cost.seconds(mean),
    }
    ran = [s.tokens_per_second for s in measured if (s.tree, s.rule) == (name, rule.label)]
    return row | {"measured_tokens_per_second": float(np.mean(ran)) if ran else None}


def _render(projection: Projection) -> RenderableType:
    dump = projection.about["dump"]
    table = Table(
        title=Text(f"Projected on {dump['name']}   T = {dump['temperature']:g}", style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in (
        "tree",
        "rule",
        "nodes",
        "tokens per step",
        "ms per step",
        "tokens/s",
        "measured",
    ):
        table.add_column(column, no_wrap=column not in ("tree", "rule"))
    table.add_column("verdict")
    notes: dict[str, list[str]] = {}
    for row in projection.rows:
        where = f"{row['tree']} {row['rule']}"
        for note in [*row["notes"], *([row["reason"]] if row["reason"] else [])]:
            notes.setdefault(note, []).append(where)
        star = "*" if row["figure"] == PER_POSITION and row["accepted_length"] is not None else ""
        step = row["step_seconds"]
        table.add_row(
            row["tree"],
            row["rule"],
            str(row["n_nodes"]),
            _figure(row, "accepted_length") + star,
            "n/a" if step is None else f"{1e3 * step:.2f}",
            _figure(row, "tokens_per_second"),
            _plain(row["measured_tokens_per_second"]),
            "exact" if row["exact"] else "biased",
        )
    lines = [
        f"Brackets: {REPLAY.confidence:.0%} bootstrap over the dump's prompts; phases count as known. "
        "Measured: the same steps with the clock on.",
    ]
    if any(row["figure"] == PER_POSITION for row in projection.rows):
        lines.append(
            "* Mean over recorded positions, not over the steps of a decoder: rules that are not exact "
            "visit other contexts, and grow maps have no renewal figure."
        )
    plain = [step for step in projection.measured if step.n_levels == 0]
    if plain:
        speed = float(np.mean([step.tokens_per_second for step in plain]))
        lines.append(f"Plain decoding, measured: {speed:.2f} tokens/s.")
    lines += [f"{', '.join(where)}: {note}." for note, where in notes.items()]
    return Group(table, *[Text(line, style="dim") for line in lines])


def _figure(row: Figures, name: str) -> str:
    if row[name] is None:
        return "n/a"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{row[name]:.2f}{ends}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
