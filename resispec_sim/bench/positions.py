"""ResiSpec at every recorded position: time, method, width of the acceptance interval."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from resispec_sim.bench.rates import rate_at
from resispec_sim.bench.settings import Place, Settings
from resispec_sim.bench.timing import seconds_of
from resispec_sim.bench.walks import prepare
from resispec_sim.engine import Law, exact_law
from resispec_sim.rules import ResiSpec

MODEL = (
    "the model of a position's time is its preparation plus its path-steps at the rate of the walk, "
    "measured in this run at the class of sizes next to it; it is applied where every path was summed"
)

_SHORT, _ROUNDS = 0.1, 3  # seconds; the best of so many counts for calls that are shorter


def measure_positions(
    settings: Settings, n_siblings: int, rates: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    """One row per position: from logits to the law, once, or the best of three where that is short.

    Parameters
    ----------
    settings : Settings
    n_siblings : int
    rates : sequence of (float, float)
        Steps and steps per second, as `resispec_sim.bench.rates.typical_rates` gives them; may be empty.

    Returns
    -------
    list of dict
        Place, ``n``, ``method``, ``steps``, ``seconds``, ``preparation_seconds``, ``model_seconds`` and
        ``over_model`` (None where not every path was summed, or without rates), ``width`` of the interval
        of total acceptance.
    """
    with settings.places() as places:
        if places:
            _row(places[0], n_siblings, settings.max_paths, rates)  # compiles
            pair = places[0].probs()
            exact_law(ResiSpec(), *pair, n_siblings, method="certified", max_paths=1000)
        rows = []
        with settings.bar(f"every position, n = {n_siblings}", len(places)) as advance:
            for place in places:
                rows.append(_row(place, n_siblings, settings.max_paths, rates))
                advance()
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per dump: total and slowest time, methods, widest interval, worst ratio to the model."""
    found = []
    for name in dict.fromkeys(row["dump"] for row in rows):
        of_dump = [row for row in rows if row["dump"] == name]
        slowest = max(of_dump, key=lambda row: row["seconds"])
        modelled = [row for row in of_dump if row["over_model"] is not None]
        worst = max(modelled, key=lambda row: row["over_model"], default=None)
        found.append(
            {
                "dump": name,
                "temperature": of_dump[0]["temperature"],
                "n": of_dump[0]["n"],
                "positions": len(of_dump),
                "seconds": sum(row["seconds"] for row in of_dump),
                "median_seconds": float(np.median([row["seconds"] for row in of_dump])),
                "methods": dict(Counter(row["method"] for row in of_dump)),
                "widest": max(row["width"] for row in of_dump),
                "slowest": slowest,
                "worst_over_model": worst,
                "median_over_model": (
                    float(np.median([row["over_model"] for row in modelled])) if modelled else None
                ),
            }
        )
    return found


def _row(
    place: Place, n_siblings: int, max_paths: int, rates: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    def law_from_logits() -> Law:
        return exact_law(ResiSpec(), *place.probs(), n_siblings, max_paths=max_paths)

    begin = time.perf_counter()
    law = law_from_logits()
    seconds = time.perf_counter() - begin
    for _ in range(_ROUNDS - 1 if seconds < _SHORT else 0):
        seconds = min(seconds, seconds_of(law_from_logits))
    preparation = min(seconds_of(lambda: prepare(*place.probs())) for _ in range(_ROUNDS))
    low, high = law.total_interval
    row = {
        **place.about(),
        "n": n_siblings,
        "method": str(law.method),
        "steps": int(law.n_paths),
        "seconds": seconds,
        "preparation_seconds": preparation,
        "model_seconds": None,
        "over_model": None,
        "width": float(high - low),
    }
    if rates and law.method == "exact":
        model = preparation + law.n_paths / rate_at(rates, law.n_paths)
        row |= {"model_seconds": model, "over_model": seconds / model}
    return row
