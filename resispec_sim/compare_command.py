"""The command `resispec compare`: a paired interval for a difference."""

from typing import TYPE_CHECKING, Any

from .config import REPLAY
from .terminal import (
    ENGINE_OPTIONS,
    INTERRUPTED,
    DumpName,
    EngineOptions,
    Json,
    Positions,
    console,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_LABELS = {
    "acceptance": "total acceptance",
    "eal": "EAL",
    "kl": "KL(law || target), nats",
    "tv": "TV(law, target)",
}


def compare_command(
    dump: DumpName,
    other: str | None = None,
    /,
    *,
    rules: str | None = None,
    siblings: int = REPLAY.siblings,
    tree: str = REPLAY.tree,
    positions: Positions = None,
    engine: EngineOptions = ENGINE_OPTIONS,
    json_output: Json = False,
) -> int:
    """Compare two rules on one dump, or two dumps under one rule, with an interval of the difference.

    Parameters
    ----------
    other : str, optional
        A second dump; then give one rule.
    rules : str, optional
        Two rules for one dump (default specinfer,resispec), one for two dumps (default specinfer).
    siblings : int
        Candidates per position; one number.
    tree : str
        Complete tree of the expected accepted length, such as d5b3. Grow maps are compared by resispec
        tree with --beside.
    """
    from .compare import compare

    found = compare(
        dump,
        other,
        rules=rules,
        siblings=siblings,
        tree=tree,
        positions=positions,
        **engine.arguments(),
    )
    if json_output:
        print(found.to_json())
    else:
        console().print(table(found.summary))
    return INTERRUPTED if found.partial else 0


def table(summary: dict[str, Any]) -> "RenderableType":
    """Lay out the summary of a `resispec_sim.compare.Comparison`."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from .tables import bounded_eal

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("per position")
    for name in (summary["a"], summary["b"], "difference [interval]"):
        grid.add_column(Text(name))
    for name, value in summary["figures"].items():
        label = _LABELS.get(name, f"sibling {name.removeprefix('accepted_')}: accepted")
        if value["difference"] is None:
            grid.add_row(Text(label), "", "", Text(f"n/a: {value['reason']}"))
            continue
        interval = (
            f"({value['reason']})"
            if value["low"] is None
            else f"[{_number(value['low'])}, {_number(value['high'])}]"
        )
        cells = [_number(value["a"]), _number(value["b"])]
        cells.append(f"{_number(value['difference'])} {interval}")
        grid.add_row(Text(label), *map(Text, cells))
    n_positions, n_prompts = summary["n_positions"], summary["n_prompts"]
    notes = [
        f"{summary['siblings']} siblings; {_each(n_positions)} positions of {_each(n_prompts)} prompts; "
        f"{summary['pairing']}. Intervals: {summary['confidence']:.0%} bootstrap over prompts, widened "
        "by the bounds or 1.96 standard errors of laws that were not computed in full.",
    ]
    walked = summary["figures"]["eal"].get("n_not_exact")
    if walked:
        notes.append(bounded_eal(walked))
    if summary["partial"]:
        notes.append("PARTIAL: the run was interrupted.")
    words = Text(summary["words"], style="bold")
    return Group(words, grid, *[Text(note, style="dim") for note in notes])


def _each(counts: list[int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} and {counts[1]}"


def _number(value: float) -> str:
    if abs(value) <= REPLAY.exact_tolerance:
        return "0"  # rounding of a law
    return f"{value:.4f}" if abs(value) >= 1e-3 else f"{value:.1e}"
