"""The whole benchmark: its parts in turn, with the machine they ran on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from resispec_sim.bench.machine import describe_machine
from resispec_sim.bench.positions import MODEL, measure_positions, summarise
from resispec_sim.bench.preparation import measure_preparation
from resispec_sim.bench.rates import NAIVE, PATH_STEP, measure_rates, typical_rates
from resispec_sim.bench.scaling import measure_scaling
from resispec_sim.bench.settings import QUICK, Bar, Settings, no_bar
from resispec_sim.bench.workers import measure_large_dump, measure_processes
from resispec_sim.checks import as_list, check_number
from resispec_sim.config import BENCH
from resispec_sim.errors import InputError
from resispec_sim.provenance import provenance

Results = dict[str, Any]


def benchmark(
    parts: str | Sequence[str] = BENCH.parts,
    *,
    quick: bool = False,
    scale_gb: float | None = None,
    bar: Bar = no_bar,
) -> Results:
    """Measure the engine on this machine.

    Every figure to compare is a ratio of times that were taken in turn within this run, on one core
    except for ``processes``.

    Parameters
    ----------
    parts : str or sequence of str
        ``"rates"``: path-steps per second, beside a walk that keeps every path's residual.
        ``"preparation"``: in units of a softmax of both rows. ``"positions"``: every recorded position
        at three siblings against the model of its cost, which takes ``"rates"`` too.
        ``"siblings"``: more siblings over whole dumps. ``"processes"``: two against one.
        ``"scaling"``: against the vocabulary's size and the number of siblings. A comma list may be given.
    quick : bool
        Seconds in place of minutes, over a few positions and small vocabularies: a check that everything
        runs, no figure to quote.
    scale_gb : float, optional
        Also replay a made-up dump of so many GB, written to the temporary folder.
    bar : callable
        ``bar(label, total)`` is a context manager that gives the function to advance by one.

    Returns
    -------
    dict
        JSON data: ``machine``, ``provenance``, ``partial`` (interrupted by Ctrl-C: the parts that were
        finished), ``definitions``, and an entry per part.

    Raises
    ------
    InputError
        If a part is unknown, or the size is not above 0.
    DumpError
        If a shipped dump is missing.
    KeyboardInterrupt
        If no part was finished.

    Examples
    --------
    >>> found = benchmark("preparation", quick=True)
    >>> found["quick"], found["partial"], [row["figure"] for row in found["preparation"]["rows"]][-1]
    (True, False, 'SpecInfer n = 8: law from logits')
    """
    chosen = _as_parts(parts)
    if scale_gb is not None and not check_number("scale_gb", scale_gb) > 0:
        raise InputError(f"scale_gb is {scale_gb}: give a size above 0 GB")
    settings = replace(QUICK if quick else Settings(), scale_gb=scale_gb, bar=bar)
    results: Results = {
        "schema_version": 1,
        "kind": "bench",
        "quick": quick,
        "partial": False,
        "machine": describe_machine(),
        "definitions": {"path_step": PATH_STEP, "naive": NAIVE, "model": MODEL},
        "provenance": provenance(
            command="bench", parts=list(chosen), quick=quick, scale_gb=scale_gb
        ),
    }
    try:
        for name in [part for part in _PARTS if part in chosen]:
            results[name] = _PARTS[name](settings, results)
        if scale_gb is not None:
            results["large_dump"] = measure_large_dump(settings)
    except KeyboardInterrupt:
        results["partial"] = True
        if not any(name in results for name in _PARTS):
            raise
    return results


def _positions(settings: Settings, results: Results) -> Results:
    rates = typical_rates(results.get("rates", ()))
    rows = measure_positions(settings, settings.siblings, rates)
    return {"summary": summarise(rows), "rows": rows}


def _siblings(settings: Settings, results: Results) -> Results:
    rows = [row for n in settings.more_siblings for row in measure_positions(settings, n, ())]
    by_count = [[row for row in rows if row["n"] == n] for n in settings.more_siblings]
    return {"summary": [line for of_n in by_count for line in summarise(of_n)], "rows": rows}


_PARTS: dict[str, Callable[[Settings, Results], Any]] = {
    "rates": lambda settings, results: measure_rates(settings),
    "preparation": lambda settings, results: measure_preparation(settings),
    "positions": _positions,
    "siblings": _siblings,
    "processes": lambda settings, results: measure_processes(settings),
    "scaling": lambda settings, results: measure_scaling(settings),
}


def _as_parts(parts: str | Sequence[str]) -> list[str]:
    chosen = [
        name.strip() for item in as_list(parts) for name in str(item).split(",") if name.strip()
    ]
    unknown = [name for name in chosen if name not in _PARTS]
    if unknown or not chosen:
        raise InputError(
            f"parts holds {', '.join(unknown) or 'nothing'}: choose from {', '.join(_PARTS)}"
        )
    return chosen
