"""Results of the benchmark as tables, JSON and CSV files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from resispec_sim.report import dumps
from resispec_sim.rounding import UP, outward_short

Results = dict[str, Any]


def table(results: Results) -> RenderableType:
    """The results for a terminal, as a rich renderable."""
    parts: list[RenderableType] = [Text(_machine(results), style="bold")]
    if results["partial"]:
        parts.append(Text("PARTIAL: interrupted", style="bold yellow"))
    if results["quick"]:
        parts.append(
            Text(
                "quick: shows that everything runs, with so small a budget of paths that fewer "
                "positions are exact; not to be quoted",
                style="yellow",
            )
        )
    for name, lay_out in _LAYOUTS.items():
        if name in results:
            parts += [Text(), lay_out(results[name])]
    notes = _counts_differ(results.get("rates", []))
    notes += [f"{text[0].upper()}{text[1:]}." for text in results["definitions"].values()]
    if "scaling" in results:
        notes.append(f"Made-up pairs: {results['scaling']['pairs']}.")
    return Group(*parts, Text(), *[Text(note, style="dim") for note in notes])


def to_json(results: Results) -> str:
    """The results as JSON text."""
    return dumps(results)


def save(results: Results, out_dir: str | os.PathLike[str]) -> Path:
    """Write ``bench.json`` and a CSV file per table; the folder is made if it does not exist."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(to_json(results) + "\n", encoding="utf-8")
    for name, rows in frames(results).items():
        rows.to_csv(folder / f"{name}.csv", index=False)
    return folder


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """The rows of every part that has any, by name of the file."""
    found: dict[str, pd.DataFrame] = {}
    for name in ("rates", "preparation", "positions", "siblings"):
        if name in results:
            rows = results[name] if name == "rates" else results[name]["rows"]
            found[name] = pd.DataFrame(rows)
    if "scaling" in results:
        found["scaling"] = scaling_frame(results["scaling"])
    return found


def scaling_frame(scaling: Results) -> pd.DataFrame:
    """Cost against V and n as one frame, with the fitted exponent in every row of a figure."""
    rows = []
    for against, key in (("V", "by_vocab"), ("n", "by_siblings")):
        for row in scaling[key]:
            slope = scaling["slopes"][key].get(row["figure"])
            flat = {k: v for k, v in row.items() if k != "methods"}
            rows.append({"against": against, **flat, "slope": slope, "methods": _join(row)})
    return pd.DataFrame(rows)


def _machine(results: Results) -> str:
    machine, packages = results["machine"], results["provenance"]["packages"]
    versions = ", ".join(
        f"{name} {packages[name]}"
        for name in ("resispec-sim", "numba", "numpy", "torch")
        if name in packages
    )
    load = "" if machine["load"] is None else f", load before {machine['load']}"
    return (
        f"{machine['cpu']}, {machine['cores']} cores{load}; {machine['system']}, Python "
        f"{machine['python']}, {versions}; {machine['date']}"
    )


def _grid(title: str, *columns: str) -> Table:
    grid = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for i, name in enumerate(columns):
        grid.add_column(Text(name), justify="left" if i == 0 else "right")
    return grid


def _rates(rows: list[Results]) -> Table:
    columns = ("path-steps", "figure", "position", "counted", "M steps/s", "naive steps/s", "ratio")
    grid = _grid("path-steps per second", *columns)
    for row in rows:
        grid.add_row(
            row["class"],
            f"{row['figure']}, n = {row['n']}",
            f"{row['position']} of {row['dump']}",
            f"{row['steps']:,}",
            f"{row['steps_per_second'] / 1e6:.1f}",
            f"{row['naive_steps_per_second']:,.0f}",
            f"{row['ratio']:,.0f}",
        )
    return grid


def _counts_differ(rows: list[Results]) -> list[str]:
    off = max((abs(row["engine_steps"] / row["steps"] - 1) for row in rows), default=0.0)
    if off <= 1e-3:
        return []
    return [
        f"The engine's own counts of path-steps differ by up to {100 * off:.0f} %: not used here."
    ]


def _preparation(found: Results) -> Table:
    title = (
        f"one position against {found['baseline']}: {_time(found['baseline_seconds'])} for both rows; "
        f"medians over {found['positions']} positions"
    )
    grid = _grid(title, "figure", "time", "ratio", "worst ratio")
    for row in found["rows"]:
        cells = (_time(row["seconds"]), f"{row['ratio']:.2f}", f"{row['worst_ratio']:.2f}")
        grid.add_row(row["figure"], *cells)
    return grid


def _positions(found: Results) -> Table:
    columns = ("dump", "n", "all", "median", "slowest", "widest interval", "time over model")
    grid = _grid("ResiSpec at every position, from logits to the law", *columns)
    for line in found["summary"]:
        slowest, worst = line["slowest"], line["worst_over_model"]
        methods = ", ".join(f"{count} {name}" for name, count in line["methods"].items())
        model = (
            "n/a"
            if worst is None
            else f"median {line['median_over_model']:.2f}\nworst {worst['over_model']:.2f} "
            f"({worst['position']})"
        )
        grid.add_row(
            f"{line['dump']}\n{methods}",
            str(line["n"]),
            _time(line["seconds"]),
            _time(line["median_seconds"]),
            f"{_time(slowest['seconds'])}\n{slowest['method']} ({slowest['position']})",
            "0" if line["widest"] == 0 else outward_short(line["widest"], UP),
            model,
        )
    return grid


def _processes(found: Results) -> RenderableType:
    if "note" in found:
        return Text(f"processes: {found['note']}")
    lines = []
    for row in found["rows"]:
        one, several = map(_time, row["seconds"])
        lines.append(
            f"replay of {row['dump']}: {one} in one process, {several} in {row['jobs']}, "
            f"{row['speed_up']:.2f} times as fast"
        )
    return Text("\n".join(lines))


def _large_dump(found: Results) -> Text:
    if "note" in found:
        return Text(f"large dump: {found['note']}")
    return Text(
        f"replay of a made-up dump of {found['gigabytes']:.2g} GB, {found['positions']:,} positions: "
        f"{found['speed']:.2f} of the speed of reading it, verifying its checksums and a softmax of both "
        f"rows; largest process {found['replay']['peak_mib']:.0f} MiB"
    )


def _scaling(found: Results) -> RenderableType:
    grids: list[RenderableType] = []
    for key, what in (("by_vocab", "V"), ("by_siblings", f"n, V = {found['vocab_size']:,}")):
        rows = found[key]
        xs = list(dict.fromkeys(row["x"] for row in rows))
        title = f"median time of a position against {what}, {found['n_pairs']} made-up pairs each"
        grid = _grid(title, "figure", *(f"{x:,}" for x in xs), "slope")
        for figure in dict.fromkeys(row["figure"] for row in rows):
            cells = [
                _time(row["seconds"]) + ("" if set(row["methods"]) <= {"exact"} else " *")
                for row in rows
                if row["figure"] == figure
            ]
            slope = found["slopes"][key].get(figure)
            grid.add_row(figure, *cells, "n/a" if slope is None else f"{slope:.2f}")
        grids.append(grid)
    inexact = [row for key in ("by_vocab", "by_siblings") for row in found[key]]
    if any(set(row["methods"]) - {"exact"} for row in inexact):
        grids.append(Text("* some positions not walked in full: the budget limits the time"))
    return Group(*grids)


_LAYOUTS: dict[str, Callable[[Any], RenderableType]] = {
    "rates": _rates,
    "preparation": _preparation,
    "positions": _positions,
    "siblings": _positions,
    "processes": _processes,
    "large_dump": _large_dump,
    "scaling": _scaling,
}


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _join(row: Results) -> str:
    return " ".join(f"{name}:{count}" for name, count in row["methods"].items())
