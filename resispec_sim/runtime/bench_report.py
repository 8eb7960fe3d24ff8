"""The result of a decoding benchmark: tables, JSON and CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..config import REPLAY
from ..report import dumps, write_text
from ..run_config import RunConfig, public_name
from .bench_figures import Figures, gain_figures, phase_figures, system_figures
from .bench_log import PromptRecord

AllRecords = Mapping[tuple[str, str, bool], Mapping[int, PromptRecord]]


@dataclass(frozen=True, eq=False)
class BenchResults:
    """Figures of a decoding benchmark.

    Attributes
    ----------
    name : str
    config : RunConfig
    systems : list of dict
        One entry per set of prompts and method; see `resispec_sim.runtime.bench_figures`.
    phases : list of dict
        One per set of prompts, method and phase.
    prompts : list of dict
        One per measured prompt.
    loaded : list of dict
        Models, device and threads of every process.
    partial : bool
        Whether the run was interrupted.
    replaced : tuple of str
        Entries of the configuration that were replaced for this run.
    provenance : dict
    """

    name: str
    config: RunConfig
    systems: list[Figures]
    phases: list[Figures]
    prompts: list[Figures]
    loaded: list[Figures]
    partial: bool
    replaced: tuple[str, ...]
    provenance: Figures

    def to_json(self) -> str:
        """Return everything but the prompts as JSON; figures that do not exist are null."""
        data = {
            "schema_version": 1,
            "kind": "bench-decode",
            "name": self.name,
            "about": self.config.about,
            "partial": self.partial,
            "replaced": list(self.replaced),
            "temperature": self.config.temperature,
            "systems": self.systems,
            "phases": self.phases,
            "loaded": self.loaded,
            "provenance": self.provenance,
        }
        return dumps(data)

    def save(self, folder: Path) -> None:
        """Write ``summary.csv``, ``phases.csv``, ``prompts.csv`` and ``results.json``, each atomically."""
        for stem, rows in (
            ("summary", self.systems),
            ("phases", self.phases),
            ("prompts", self.prompts),
        ):
            write_text(folder / f"{stem}.csv", to_csv(rows))
        write_text(folder / "results.json", self.to_json() + "\n")

    def table(self) -> RenderableType:
        """Return the report for a terminal, as a rich renderable."""
        parts: list[RenderableType] = [_systems_table(self)]
        if self.phases:
            parts += [_phases_table(self)]
        return Group(*parts, *[Text(note, style="dim") for note in _notes(self)])


def summarise(
    name: str,
    config: RunConfig,
    records: AllRecords,
    loaded: list[Figures],
    partial: bool,
    replaced: tuple[str, ...],
    provenance: Figures,
) -> BenchResults:
    """Pool the logs of a run.

    Parameters
    ----------
    records : mapping
        By set of prompts, method and whether phases were measured.
    """
    systems, phases, prompts = [], [], []
    first = config.methods[0].name
    for dataset in config.datasets:
        for method in config.methods:
            own = records[dataset, method.name, False]
            figures = system_figures(config, dataset, method, own)
            if method.name == first:
                figures |= {"baseline": None}
            else:
                gain = gain_figures(own, records[dataset, first, False])
                figures |= {"baseline": first, **gain}
            systems.append(figures)
            phases += phase_figures(config, dataset, method, records[dataset, method.name, True])
            prompts += [_of_prompt(dataset, method.name, own[index]) for index in sorted(own)]
    return BenchResults(
        name, config, systems, phases, prompts, loaded, partial, replaced, provenance
    )


def to_csv(rows: Sequence[Figures]) -> str:
    """CSV text with the columns of all rows; None and NaN are empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if _missing(value) else value for key, value in row.items()})
    return text.getvalue()


def _of_prompt(dataset: str, method: str, record: PromptRecord) -> Figures:
    prompt = record.prompt
    whole = [step.n_tokens for step in record.steps if not step.cut]
    return {
        "dataset": dataset,
        "method": method,
        "prompt": prompt.prompt,
        "seed": prompt.seed,
        "n_prompt_tokens": prompt.n_prompt_tokens,
        "n_tokens": len(prompt.token_ids),
        "n_steps": len(record.steps),
        "accepted_length": sum(whole) / len(whole) if whole else None,
        "seconds": prompt.seconds,
        "tokens_per_second": len(prompt.token_ids) / prompt.seconds if prompt.seconds else None,
        "finished": prompt.finished,
        "peak_memory_bytes": prompt.peak_memory_bytes,
        "peak_process_bytes": prompt.peak_process_bytes,
    }


def _systems_table(results: BenchResults) -> Table:
    config = results.config
    models = f"{public_name(config.target)} with {public_name(config.draft)}"
    table = _new_table(f"{results.name}   {models}   T = {config.temperature:g}")
    for name in ("method", "tree", "steps", "per step (1)", "tokens/s (2)", "gain (3)"):
        _add_column(table, name, foldable=name in ("method", "tree"))
    for name in ("speed-up (3)", "memory", "rule"):
        _add_column(table, name)
    for dataset, rows in _by_dataset(results.systems).items():
        _add_heading(table, results, dataset)
        for row in rows:
            memory = row["peak_memory_bytes"] or row["peak_process_bytes"]
            table.add_row(
                row["method"],
                row["tree"] or "none",
                str(row["n_steps"]),
                _figure(row, "accepted_length", 2),
                _figure(row, "tokens_per_second", 1),
                _figure(row, "accepted_gain", 2),
                _figure(row, "speedup", 2),
                "n/a" if not memory else f"{memory / 1e9:.2f} GB",
                "exact" if row["exact"] else "biased",
            )
    return table


def _phases_table(results: BenchResults) -> Table:
    table = _new_table("Milliseconds per step, from separate runs with a synchronised clock")
    names = list(dict.fromkeys(row["phase"] for row in results.phases))
    for name in ("method", "steps", *names):
        _add_column(table, name, foldable=name == "method")
    for dataset, rows in _by_dataset(results.phases).items():
        _add_heading(table, results, dataset)
        for method in dict.fromkeys(row["method"] for row in rows):
            own = {row["phase"]: row for row in rows if row["method"] == method}
            cells = [
                f"{1e3 * own[n]['seconds']:.2f} ({own[n]['share']:.0%})" if n in own else "n/a"
                for n in names
            ]
            table.add_row(method, str(next(iter(own.values()))["n_steps"]), *cells)
    return table


def _by_dataset(rows: Sequence[Figures]) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for row in rows:
        found.setdefault(row["dataset"], []).append(row)
    return found


def _add_heading(table: Table, results: BenchResults, dataset: str) -> None:
    if len(results.config.datasets) > 1:
        table.add_section()
        table.add_row(Text(dataset, style="bold"))


def _add_column(table: Table, name: str, foldable: bool = False) -> None:
    # names may be long; figures must not be cut
    table.add_column(
        name, no_wrap=not foldable, overflow="fold", min_width=12 if foldable else None
    )


def _notes(results: BenchResults) -> list[str]:
    confidence = f"{REPLAY.confidence:.0%} bootstrap over prompts"
    notes = [
        "(1) The bonus token counts; steps whose tree was cut down to what was left of the text do not.",
        f"(2) New tokens by the wall time of the steps; the prompt's own pass is not in it. Brackets: "
        f"{confidence}.",
    ]
    if len(results.config.methods) > 1:
        notes.append(f"(3) Over {results.config.methods[0].name}, on the same prompts and seeds.")
    if any(row["peak_memory_bytes"] is None for row in results.systems):
        notes.append("Without a GPU, memory is the largest resident set of the process.")
    if any(not row["exact"] for row in results.systems):
        notes.append(
            "A biased rule emits other text than the target would: its speed buys another output."
        )
    notes.append(f"Configuration: {results.config.about}.")
    if results.replaced:
        notes.append(
            f"(!) Replaced in it: {', '.join(results.replaced)}. The paper's figures are not these."
        )
    if results.partial:
        notes.append("(!) Interrupted: the same command goes on from here.")
    return notes


def _new_table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _figure(row: Figures, name: str, digits: int) -> str:
    value = row.get(name)
    if _missing(value):
        return "" if name not in row else "n/a"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if _missing(low):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f}\n[{low:.{digits}f}, {high:.{digits}f}]"


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
