"""Times as ratios: what is compared is measured in turn, in one run, and the best of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def best_seconds(
    *functions: Callable[[], Any], repeats: int, least_seconds: float = 0.0
) -> list[float]:
    """The shortest time of each function, called in turn; a first round, untimed, warms up.

    Another process on the machine can only make a call longer, so the shortest is closest to what the
    work costs; in turn, so that all of them meet the same machine.

    Parameters
    ----------
    *functions : callable
    repeats : int
        Timed rounds at least.
    least_seconds : float
        More rounds are added until so much time was spent, but no more than ten times as many.

    Examples
    --------
    >>> once, twice = best_seconds(lambda: sum(range(1000)), lambda: sum(range(100_000)), repeats=5)
    >>> once < twice
    True
    """
    for function in functions:
        function()
    best = [float("inf")] * len(functions)
    begin, rounds = time.perf_counter(), 0
    while rounds < repeats or (
        rounds < 10 * repeats and time.perf_counter() - begin < least_seconds
    ):
        for i, function in enumerate(functions):
            best[i] = min(best[i], seconds_of(function))
        rounds += 1
    return best


def seconds_of(function: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of log y over log x: the exponent of a power law.

    Examples
    --------
    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 12)
    2.0
    """
    import numpy as np

    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
