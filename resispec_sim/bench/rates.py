"""Path-steps per second: the engine beside a walk that keeps every path's residual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from resispec_sim.bench.count import count_rejected_prefixes
from resispec_sim.bench.naive import naive_law
from resispec_sim.bench.settings import Place, Settings
from resispec_sim.bench.timing import best_seconds, seconds_of
from resispec_sim.bench.walks import prepare, walk

PATH_STEP = (
    "a path-step is one rejected prefix (x1 .. xj) of positive probability, counted once however it is "
    "summed: j <= n for the law of n siblings, j <= n - 1 for their acceptance alone"
)

NAIVE = (
    "the naive walk is compiled as well; it computes the law over prefixes of the same length, keeps the "
    "residual of the path, V numbers, and is cut after the steps that it can do in the time it is given"
)

LENGTHS = (2, 3)  # of prefixes
_MOST_PAIRS = 3e6  # beyond, three-token prefixes are counted at single positions only
_TRIPLES_PER_PAIR, _GUESSES = 2.5, 4  # a typical ratio, and how many positions are chosen by it


class Case(NamedTuple):
    """A position at which rates are measured: the class of sizes, the prefixes' length and number."""

    name: str
    place: Place
    length: int
    n_steps: int


def measure_rates(settings: Settings) -> list[dict[str, Any]]:
    """Rates of the engine's walk, law and acceptance, and of the naive walk, in steps per second.

    Returns
    -------
    list of dict
        Per class of sizes, length of prefixes and figure one row: place, ``n`` siblings, ``steps`` as
        counted here, ``engine_steps`` as the engine says, ``seconds``, ``steps_per_second``,
        ``naive_steps``, ``naive_steps_per_second``, ``ratio``.
    """
    with settings.places() as places:
        with settings.bar("counting path-steps", len(places)) as advance:
            cases = choose_cases(places, settings.ranges, advance)
        rows = []
        with settings.bar("path-steps per second", len(cases)) as advance:
            for case in cases:
                rows += _measure(case, settings)
                advance()
    return rows


def choose_cases(
    places: Sequence[Place], ranges: Sequence[tuple[str, float, float]], advance: Any
) -> list[Case]:
    """For every class of sizes and length of prefixes, the position nearest the middle of the class."""
    counts: dict[int, dict[int, int]] = {length: {} for length in LENGTHS}
    for i, place in enumerate(places):
        pair = place.probs()
        counts[2][i] = count_rejected_prefixes(*pair, 2)
        if counts[2][i] <= _MOST_PAIRS:
            counts[3][i] = count_rejected_prefixes(*pair, 3)
        advance()
    found = []
    for name, least, most in ranges:
        middle = math.sqrt(least * most)
        for at in _nearest(counts[2], middle / _TRIPLES_PER_PAIR, _GUESSES):
            if at not in counts[3] and counts[2][at] < most:
                counts[3][at] = count_rejected_prefixes(*places[at].probs(), 3)
        for length in LENGTHS:
            for at in _nearest(counts[length], middle, 1):
                if least <= counts[length][at] <= most:
                    found.append(Case(name, places[at], length, counts[length][at]))
    return found


def typical_rates(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Steps and steps per second of laws by class of sizes, ascending: the model of a position's cost.

    Of several rows of a class the slowest counts.
    """
    laws: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["figure"] == "law":
            laws.setdefault(row["class"], []).append(row)
    slowest = [min(of_class, key=lambda row: row["steps_per_second"]) for of_class in laws.values()]
    return sorted((row["steps"], row["steps_per_second"]) for row in slowest)


def rate_at(rates: Sequence[tuple[float, float]], n_steps: float) -> float:
    """The rate of the class whose size is nearest, by ratio.

    Examples
    --------
    >>> rate_at([(3e6, 2e8), (1e8, 1.5e8)], 1e4), rate_at([(3e6, 2e8), (1e8, 1.5e8)], 1e9)
    (200000000.0, 150000000.0)
    """
    return min(rates, key=lambda rate: abs(math.log(max(n_steps, 1.0) / rate[0])))[1]


def _nearest(counts: dict[int, int], wanted: float, n: int) -> list[int]:
    known = [i for i, count in counts.items() if count > 0]
    return sorted(known, key=lambda i: abs(math.log(counts[i] / wanted)))[:n]


def _measure(case: Case, settings: Settings) -> list[dict[str, Any]]:
    pair = case.place.probs()
    prepared = prepare(*pair)
    repeats = settings.repeats if case.n_steps < 3e7 else min(settings.repeats, 3)
    n = case.length
    said: dict[str, int] = {}

    def law_walk() -> None:
        said["law"] = walk(prepared, n, want_law=True).n_steps

    def acceptance_walk() -> None:
        said["acceptance"] = walk(prepared, n + 1, want_law=False).n_steps

    law, acceptance = best_seconds(law_walk, acceptance_walk, repeats=repeats)
    some = min(50, case.n_steps)
    naive_law(*pair, n, some)  # compiles
    each = seconds_of(lambda: naive_law(*pair, n, some)) / some
    n_naive = min(case.n_steps, max(some, int(settings.naive_seconds / each)))
    (naive,) = best_seconds(lambda: naive_law(*pair, n, n_naive), repeats=2)
    common = {"class": case.name, **case.place.about(), "prefix_length": n, "steps": case.n_steps}
    rows = []
    for figure, seconds, siblings in (("law", law, n), ("acceptance", acceptance, n + 1)):
        rows.append(
            {
                **common,
                "figure": figure,
                "n": siblings,
                "engine_steps": said[figure],
                "seconds": seconds,
                "steps_per_second": case.n_steps / seconds,
                "naive_steps": n_naive,
                "naive_steps_per_second": n_naive / naive,
                "ratio": case.n_steps / seconds / (n_naive / naive),
            }
        )
    return rows
