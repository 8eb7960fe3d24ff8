"""The result of a replay of recorded trees: frame, JSON, table and files."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .report import dumps, save_parts


@dataclass(frozen=True, eq=False)
class TreeReplay:
    """Figures of recorded trees, as they were recorded and over all coins.

    Attributes
    ----------
    frame : DataFrame
        One row per step with its whole tree: ``text``, ``step``, ``n_nodes``, ``tokens`` (emitted, bonus
        included), ``expected RULE`` per rule, and ``variance`` of the tokens over the coins of the
        recorded rule.
    summary : dict
        ``recorded`` and, per rule, ``rules``: ``tokens_per_step`` with a 95 % bootstrap interval over
        texts (NaN with one text), and ``by_depth``, the probability of accepting at least 1, 2, ... nodes.
        ``agreement``: recorded minus expected tokens per step of the recorded rule, the standard error
        of that over the coins given the candidates, and whether it is within 1.96 of them. A token
        that ends the text is the last one of its step, whether it was drafted or not.
    provenance : dict
    """

    frame: pd.DataFrame
    summary: dict[str, Any]
    provenance: dict[str, Any]

    def to_json(self) -> str:
        """Figures and provenance as JSON; what does not exist is null."""
        return dumps({**self.summary, "provenance": self.provenance})

    def save(self, out_dir: str | os.PathLike[str]) -> Path:
        """Write ``summary.json``, ``steps.csv`` and ``provenance.json`` to a folder."""
        return save_parts(out_dir, "steps.csv", self.frame, self.summary, self.provenance)

    def table(self) -> RenderableType:
        """The figures for a terminal, as a rich renderable."""
        found = self.summary
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        grid.add_column("", no_wrap=True)
        grid.add_column("tokens per step", justify="right")
        grid.add_column("95% over texts")
        for depth in range(1, len(found["recorded"]["by_depth"]) + 1):
            grid.add_column(f"P(n >= {depth})", justify="right")
        grid.add_row(f"recorded, {found['recorded']['rule']}", *_cells(found["recorded"]))
        for figures in found["rules"]:
            grid.add_row(f"all coins, {figures['rule']}", *_cells(figures))
        title = (
            f"{found['n_steps']} steps of {found['n_texts']} texts, tree {found['tree']}, siblings "
            f"{found['siblings']}; {found['n_cut']} more were cut short. n: accepted tokens of a step, "
            "one that ends the text aside"
        )
        return Group(Text(title), grid, *(Text(line) for line in self._notes()))

    def _notes(self) -> list[str]:
        found = self.summary["agreement"]
        agrees = "they agree" if found["agrees"] else "they do NOT agree: more than 1.96 of it"
        lines = [
            f"recorded - all coins, {found['rule']}: {found['difference']:+.3f}; standard error of the "
            f"coins {found['stderr']:.3f}: {agrees}"
        ]
        if len(self.summary["rules"]) > 1:
            lines.append(f"The other rules: on the trees and contexts that {found['rule']} led to")
        inexact = [figures["rule"] for figures in self.summary["rules"] if not figures["exact"]]
        if inexact:
            lines.append(f"Not exact, so not comparable by acceptance alone: {', '.join(inexact)}")
        return lines


def _cells(figures: dict[str, Any]) -> list[str]:
    interval = (
        "n/a: one text"
        if math.isnan(figures["low"])
        else f"[{figures['low']:.3f}, {figures['high']:.3f}]"
    )
    levels = [f"{value:.3f}" for value in figures["by_depth"]]
    return [f"{figures['tokens_per_step']:.3f}", interval, *levels]
