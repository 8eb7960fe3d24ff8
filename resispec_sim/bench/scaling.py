"""Cost of a position against the size of the vocabulary and the number of siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from resispec_sim.bench.pairs import DESCRIPTION, Pair, synthetic_pair
from resispec_sim.bench.settings import Settings
from resispec_sim.bench.timing import log_slope, seconds_of
from resispec_sim.bench.walks import prepare
from resispec_sim.engine import Law, exact_law

VOCAB_SIZE = 49_152  # of the cost against n
N_SPECINFER, N_RESISPEC = 8, 3  # siblings of the cost against V

_ROUNDS = 3


class Point(NamedTuple):
    """What is measured at one V or n (`x`): a function of a pair, over some pairs."""

    figure: str
    x: int
    pairs: Sequence[Pair]
    of: Callable[[Pair], Any]


def measure_scaling(settings: Settings) -> dict[str, Any]:
    """Median seconds over made-up pairs, by V and by n, with exponents fitted in log-log.

    Returns
    -------
    dict
        ``by_vocab`` and ``by_siblings``: rows with ``figure``, ``x`` (V or n), ``seconds``, ``steps``
        (median path-steps, ResiSpec only) and ``methods``; ``slopes`` by figure; ``pairs``, how the pairs
        are made.
    """
    by_vocab: list[Point] = []
    for vocab_size in settings.vocab_sizes:
        pairs = _pairs(settings, vocab_size)
        by_vocab += [
            Point("preparation", vocab_size, pairs, lambda pair: prepare(*pair)),
            _law_point(f"specinfer n = {N_SPECINFER}", "specinfer", N_SPECINFER, vocab_size, pairs),
            _law_point(f"resispec n = {N_RESISPEC}", "resispec", N_RESISPEC, vocab_size, pairs),
        ]
    pairs = _pairs(settings, VOCAB_SIZE)
    by_siblings = [
        _law_point(rule, rule, n, n, pairs)
        for n in settings.sibling_counts
        for rule in ("specinfer", "resispec")
    ]
    rows = _measure([*by_vocab, *by_siblings], settings)
    of_vocab, of_siblings = rows[: len(by_vocab)], rows[len(by_vocab) :]
    return {
        "by_vocab": of_vocab,
        "by_siblings": of_siblings,
        "slopes": {"by_vocab": _slopes(of_vocab), "by_siblings": _slopes(of_siblings)},
        "vocab_size": VOCAB_SIZE,
        "n_pairs": settings.pairs,
        "pairs": DESCRIPTION,
    }


def _pairs(settings: Settings, vocab_size: int) -> list[Pair]:
    return [synthetic_pair(vocab_size, settings.seed, i) for i in range(settings.pairs)]


def _law_point(figure: str, rule: str, n_siblings: int, x: int, pairs: Sequence[Pair]) -> Point:
    return Point(figure, x, pairs, lambda pair: exact_law(rule, *pair, n_siblings))


def _measure(points: Sequence[Point], settings: Settings) -> list[dict[str, Any]]:
    """One row per point. All are called in turn, so that a slope does not show the machine's moods."""
    repeats = min(settings.repeats, _ROUNDS)
    found: dict[tuple[int, int], Any] = {}
    calls = [(i, j) for i, point in enumerate(points) for j in range(len(point.pairs))]
    with settings.bar("cost against V and n", (repeats + 1) * len(calls)) as advance:

        def call(i: int, j: int) -> None:
            found[i, j] = points[i].of(points[i].pairs[j])

        best = [float("inf")] * len(calls)
        for a_round in range(repeats + 1):
            for at, (i, j) in enumerate(calls):
                seconds = seconds_of(partial(call, i, j))
                if a_round > 0:  # the first one warms up
                    best[at] = min(best[at], seconds)
                advance()
    rows = []
    for i, point in enumerate(points):
        seconds_here = [best[at] for at, (of, _) in enumerate(calls) if of == i]
        laws = [found[i, j] for j in range(len(point.pairs)) if isinstance(found[i, j], Law)]
        rows.append(
            {
                "figure": point.figure,
                "x": point.x,
                "seconds": float(np.median(seconds_here)),
                "steps": float(np.median([law.n_paths for law in laws])) if laws else None,
                "methods": dict(Counter(str(law.method) for law in laws)),
            }
        )
    return rows


def _slopes(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for figure in dict.fromkeys(row["figure"] for row in rows):
        of_figure = [row for row in rows if row["figure"] == figure]
        if len(of_figure) > 1:
            found[figure] = log_slope(
                [row["x"] for row in of_figure], [row["seconds"] for row in of_figure]
            )
    return found
