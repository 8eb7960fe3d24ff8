"""The command `resispec replay-trees`."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .terminal import Json, console

if TYPE_CHECKING:
    from rich.console import RenderableType


def tree_replay_command(
    folder: Path, /, *, rules: str | None = None, json_output: Json = False
) -> int:
    """Replay recorded trees: the coins of every rule enumerated on the recorded candidates.

    Parameters
    ----------
    folder : Path
        What resispec decode --record wrote.
    rules : str, optional
        Comma list of rules for siblings drawn in the same way. Default: the rule that decoded.
    """
    from .progress import position_progress
    from .tree_dumps import TreeDump
    from .tree_replay import replay_trees

    with position_progress(len(TreeDump(folder)), "replay trees") as advance:
        found = replay_trees(folder, rules, advance=advance)
    if json_output:
        print(json.dumps(found))
    else:
        console().print(table(found))
    return 0


def table(found: dict[str, Any]) -> "RenderableType":
    """Tokens per step as a table."""
    from rich import box
    from rich.table import Table

    grid = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{found['n_steps']} steps of {found['n_texts']} texts, tree {found['tree']}; "
        f"{found['n_cut']} more were cut short",
        title_justify="left",
    )
    for name in ("", "tokens per step", "95% over texts", "accepted by level"):
        grid.add_column(name)
    grid.add_row(f"live, {found['recorded_rule']}", *_shown(found["live"]), "")
    for label, figures in found["rules"].items():
        levels = "  ".join(f"{value:.3f}" for value in found["by_depth"][label])
        grid.add_row(f"coins enumerated, {label}", *_shown(figures), levels)
    return grid


def _shown(figures: dict[str, float]) -> tuple[str, str]:
    interval = (
        "n/a: one text"
        if math.isnan(figures["low"])
        else f"[{figures['low']:.3f}, {figures['high']:.3f}]"
    )
    return f"{figures['tokens_per_step']:.3f}", interval
