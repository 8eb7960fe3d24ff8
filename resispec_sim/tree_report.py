"""The result of a tree search on a dump: frame, JSON and table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .config import REPLAY
from .provenance import as_json_data
from .tree_search import TreePlan

Figures = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TreeReport:
    """Trees with their accepted length in the model and on the dump.

    Attributes
    ----------
    plans : tuple of TreePlan
        The optimised trees, in the order of the budgets.
    trees : list of dict
        One entry per tree as plain data: ``kind`` (``"optimised"`` or ``"given"``), ``name``,
        ``budget``, ``n_nodes``, ``depth``, ``branching``, ``children``, ``model_eal``, and the dump's
        figures ``fit``, ``held_out`` (None where no prompts were held out) and ``same_starts``: the
        latter, or ``fit``, on the starts that all trees of the report have.
    acceptance : dict of int to list of float
        What the trees were optimised for: accepted mass per sibling, by number of children.
    about : dict
        Dump, rule, limits, numbers of positions.
    notes : list of str
    provenance : dict
    """

    plans: tuple[TreePlan, ...]
    trees: list[Figures]
    acceptance: dict[int, list[float]]
    about: Figures
    notes: list[str]
    provenance: Figures

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per tree; intervals and starts in columns ``held_out_low``, ``fit_starts`` and so on."""
        rows = []
        for tree in self.trees:
            row = {key: tree[key] for key in ("kind", "name", "budget", "n_nodes", "depth")}
            row |= {"branching": "-".join(map(str, tree["branching"]))}
            row |= {"model_eal": _or_nan(tree["model_eal"])}
            for part in ("fit", "held_out", "same_starts"):
                eal = tree[part] or {}
                row |= {f"{part}_eal": _or_nan(eal.get("mean"))}
                row |= {f"{part}_{end}": _or_nan(eal.get(end)) for end in ("low", "high")}
                row |= {f"{part}_starts": eal.get("n_starts", 0)}
            rows.append(row)
        return pd.DataFrame(rows)

    def table(self) -> RenderableType:
        """Return the report for a terminal, as a rich renderable."""
        return _render(self)

    def to_json(self) -> str:
        """Return the figures, grow maps, acceptance and provenance as JSON; missing figures are null."""
        data = {
            "schema_version": 1,
            "kind": "tree",
            **self.about,
            "acceptance": self.acceptance,
            "trees": self.trees,
            "notes": self.notes,
            "provenance": self.provenance,
        }
        return json.dumps(as_json_data(data), indent=2, allow_nan=False)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _render(report: TreeReport) -> RenderableType:
    about, dump = report.about, report.about["dump"]
    table = Table(
        title=Text(
            f"EAL on {dump['name']}   {about['rule']}   at most {about['max_depth']} levels, "
            f"{about['max_branching']} children per node",
            style="bold",
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    last = "held_out" if about["hold_out"] else "fit"
    columns = {"tree": "left", "nodes": "right", "levels": "right", "children (1)": "left"}
    columns |= {"model": "right"} | ({"fit": "right"} if about["hold_out"] else {})
    columns |= {"held-out" if about["hold_out"] else "dump": "left"}
    for name, justify in (columns | {"starts": "right", "same (2)": "left"}).items():
        # names of files may be long; figures must not be cut
        foldable = name in ("tree", "children (1)")
        table.add_column(
            Text(name),
            justify=justify,  # type: ignore[arg-type]
            no_wrap=not foldable,
            overflow="fold",
            min_width=10 if foldable else None,
        )
    for i, tree in enumerate(report.trees):
        cells = [_row_name(tree), str(tree["n_nodes"]), str(tree["depth"])]
        cells += [_branching(tree["branching"])]
        cells += ["n/a" if tree["model_eal"] is None else f"{tree['model_eal']:.3f}"]
        cells += [_eal(tree["fit"], interval=False)] if about["hold_out"] else []
        cells += [_eal(tree[last], interval=True), str(tree[last]["n_starts"])]
        cells += [_eal(tree["same_starts"], interval=False)]
        ends = tree["kind"] == "optimised" and i + 1 == len(report.plans)
        table.add_row(*map(Text, cells), end_section=ends)
    held_out = (
        f"Fitted on {about['fit_prompts']} prompts ({about['fit_positions']} positions), held out: "
        f"{about['held_out_prompts']} ({about['held_out_positions']})."
        if about["hold_out"]
        else f"Fitted and measured on all {about['fit_prompts']} prompts: nothing is held out."
    )
    notes = [
        "(1) Most children of a node on each level.",
        f"(2) The {'held-out figure' if about['hold_out'] else 'figure'} on the starts that all these "
        f"trees have: those with {about['same_starts_levels']} recorded positions left.",
        f"{held_out} The bonus token and the root count. The model takes acceptance as the same at "
        "every node; the dump's EAL does not. It is the mean over the starts with as many recorded "
        f"positions left as the tree has levels below the root; brackets: {REPLAY.confidence:.0%} "
        "bootstrap over prompts.",
        *[f"(!) {note}" for note in [*report.notes, *_reasons(report.trees)]],
    ]
    return Group(table, Text(), *[Text(note, style="dim") for note in notes])


def _branching(counts: list[int]) -> str:
    shown = [str(count) for count in counts[:8]] + ["..."] * (len(counts) > 8)
    return "-".join(shown) or "none"


def _eal(eal: Figures, interval: bool) -> str:
    if eal["mean"] is None:
        return "n/a"
    if not interval or eal["low"] is None:
        return f"{eal['mean']:.3f}"
    return f"{eal['mean']:.3f}\n[{eal['low']:.3f}, {eal['high']:.3f}]"


def _reasons(trees: list[Figures]) -> list[str]:
    """Why figures or intervals are missing, and in which rows of the table."""
    found: dict[str, list[str]] = {}
    for tree in trees:
        parts = [tree[part] for part in ("fit", "held_out", "same_starts") if tree[part]]
        for reason in dict.fromkeys(str(part["reason"]) for part in parts if part["reason"]):
            found.setdefault(reason, []).append(_row_name(tree))
    return [f"{', '.join(names)}: {reason}." for reason, names in found.items()]


def _row_name(tree: Figures) -> str:
    return f"budget {tree['budget']}" if tree["kind"] == "optimised" else tree["name"]
