"""The command `resispec bounds`: total acceptance of rules beside the optima."""

from typing import TYPE_CHECKING, Any

from .config import BOUNDS
from .terminal import (
    ENGINE_OPTIONS,
    INTERRUPTED,
    DumpName,
    EngineOptions,
    Json,
    Positions,
    console,
    numbers,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


def bounds_command(
    dump: DumpName,
    /,
    *,
    siblings: str = ",".join(map(str, BOUNDS.siblings)),
    rules: str = ",".join(BOUNDS.rules),
    positions: Positions = None,
    engine: EngineOptions = ENGINE_OPTIONS,
    json_output: Json = False,
) -> int:
    """Show total acceptance of rules beside the optima, and the share of the gap each closes.

    Every way of drawing siblings that a rule uses has an optimum of its own.

    Parameters
    ----------
    siblings : str
        Comma list of sibling counts.
    rules : str
        Comma list, with options: specinfer,k-seq; exact or all for every rule of that kind.
    """
    from .gap import acceptance_table

    report = acceptance_table(
        dump,
        numbers("--siblings", siblings, int),
        rules,
        positions=positions,
        **engine.arguments(),
    )
    if json_output:
        print(report.to_json())
    else:
        console().print(table(report.summary))
    return INTERRUPTED if report.partial else 0


def table(summary: dict[str, Any]) -> "RenderableType":
    """Lay out the summary of a `resispec_sim.gap.GapReport`: rows are rules, columns counts."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from .tables import SAMPLED, WAYS_OF_DRAWING

    dump, counts = summary["dump"], summary["counts"]
    grid = Table(
        title=Text(
            f"{'PARTIAL: ' if summary['partial'] else ''}total acceptance, {dump['name']}   T = "
            f"{dump['temperature']:g}   {summary['n_positions']} position"
            f"{'s' if summary['n_positions'] > 1 else ''}   V = {dump['vocab_size']:,}",
            style="bold",
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    grid.add_column("share of the gap closed (1)")
    for count in counts:
        grid.add_column(f"{count['siblings']} siblings")
    for i, rule in enumerate(counts[0]["rules"]):
        last = i == len(counts[0]["rules"]) - 1
        cells = [Text(_cell(count["rules"][i])) for count in counts]
        mark = "" if rule["claims_exact"] else " (not exact)"
        grid.add_row(Text(rule["rule"] + mark), *cells, end_section=last)
    for scheme in counts[0]["optima"]:
        optima = [count["optima"][scheme] for count in counts]
        cells = [Text("n/a" if best is None else f"{best:.4f}") for best in optima]
        grid.add_row(Text(f"optimum, {WAYS_OF_DRAWING[scheme]}"), *cells)
    notes = [
        "(1) From recursive rejection sampling of independent siblings (specinfer, 0 %) to the optimum "
        "of independent siblings (100 %); in brackets, to the optimum of the rule's own siblings where "
        "they are drawn otherwise. n/a: no gap, or the rule is not defined there.",
        _check_words(summary["checks"]),
    ]
    methods = {m for c in counts for r in c["rules"] for m in r.get("methods", ())}
    if "sampled" in methods:
        notes.append(f"(+-) Sampled: {SAMPLED}. Ranges a..b are bounds.")
    return Group(grid, *[Text(note, style="dim") for note in notes])


def _cell(figures: dict[str, Any]) -> str:
    from .tables import with_range

    value = figures["acceptance"]
    if value is None:
        return "n/a"
    text = with_range(value["mean"], value["low"], value["high"], value["sampled"])
    share = f"{text}{chr(10) if value['sampled'] else '  '}{_percent(figures['share'])}"
    own = figures["share_own"]
    return share if figures["scheme"] == "iid" or own is None else f"{share} ({_percent(own)})"


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.0f} %"


def _check_words(checks: dict[str, Any]) -> str:
    parts = [
        f"exact-shaping below {other}: {count}"
        for other, count in checks["exact_shaping_below"].items()
    ]
    parts.append(f"exact rules above their optimum: {sum(checks['above_optimum'].values())}")
    return "Positions and counts that contradict the theory: " + "; ".join(parts) + "."
