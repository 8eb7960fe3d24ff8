"""The result of a replay: frame, JSON, table and files."""

import json
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import RenderableType

from .files import write_whole
from .pooling import EalContext, pool
from .tables import render


@dataclass(frozen=True, eq=False)
class Report:
    """Exact figures of rules along a dump.

    Attributes
    ----------
    frame : DataFrame
        One row per temperature, sibling count, position and rule: accepted mass per sibling, total
        acceptance, optimum of siblings drawn in the rule's way (``scheme``), KL (nats) and TV of the
        output law, each with its bounds, the Appendix B figures, the method and the number of paths;
        ``tree_w`` and ``tree_alpha`` are the ratio at the recorded token and the acceptance for the
        tree's sibling count.
    context : EalContext
        Tree and conditions of the accepted length.
    dump, provenance : dict
        What was replayed, and by what.
    partial : bool
        Whether the run was interrupted.
    n_planned : int
        Positions that were asked for.
    left_out : tuple of str
        Rules and sibling counts that were not computed, and why.
    """

    frame: pd.DataFrame
    context: EalContext
    dump: dict[str, Any]
    provenance: dict[str, Any]
    partial: bool
    n_planned: int
    left_out: tuple[str, ...] = ()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The pooled figures as plain data; NaN and infinities are still floats here."""
        return {
            "schema_version": 1,
            "kind": "replay",
            "partial": self.partial,
            "n_positions": int(self.frame["position"].nunique()),
            "n_planned": self.n_planned,
            "left_out": list(self.left_out),
            "dump": self.dump,
            "tree": {
                "name": str(self.context.tree),
                "n_nodes": self.context.tree.n_nodes,
                "drafted_levels": self.context.tree.n_levels,
            },
            "groups": pool(self.frame, self.context),
        }

    def table(self) -> RenderableType:
        """Return the report for a terminal, as a rich renderable."""
        return render(self.summary)

    def to_json(self) -> str:
        """Return the pooled figures and the provenance as JSON.

        Figures that do not exist are null; infinities are the strings ``"Infinity"`` and
        ``"-Infinity"``.
        """
        return dumps({**self.summary, "provenance": self.provenance})

    def save(self, out_dir: str | os.PathLike[str]) -> Path:
        """Write ``summary.json``, ``positions.csv`` and ``provenance.json``, each atomically.

        Parameters
        ----------
        out_dir : path
            Made if it does not exist; files of an earlier report in it are replaced.

        Returns
        -------
        Path
        """
        return save_parts(out_dir, "positions.csv", self.frame, self.summary, self.provenance)


def save_parts(
    out_dir: str | os.PathLike[str],
    table: str,
    frame: pd.DataFrame,
    summary: dict[str, Any],
    provenance: dict[str, Any],
) -> Path:
    """Write a table, ``provenance.json`` and then ``summary.json`` to a folder, each atomically."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / table, frame.to_csv(index=False))
    write_text(folder / "provenance.json", dumps(provenance) + "\n")
    write_text(folder / "summary.json", dumps(summary) + "\n")
    return folder


def dumps(value: Any) -> str:
    """JSON text: NaN becomes null, infinities the strings ``"Infinity"`` and ``"-Infinity"``."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace the floats that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; a reader sees the old one or the whole new one."""
    write_whole(path, text.encode())
