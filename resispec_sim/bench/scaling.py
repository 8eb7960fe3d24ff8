"""Cost of a position against the size of the vocabulary and the number of siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from resispec_sim.bench.pairs import DESCRIPTION, Pair, synthetic_pair
from resispec_sim.bench.settings import Settings
from resispec_sim.bench.timing import best_seconds, log_slope
from resispec_sim.bench.walks import prepare
from resispec_sim.engine import exact_law

VOCAB_SIZE = 49_152  # of the cost against n
N_SPECINFER, N_RESISPEC = 8, 3  # siblings of the cost against V

Law = Callable[[Pair], Any]


def measure_scaling(settings: Settings) -> dict[str, Any]:
    """Median seconds over made-up pairs, by V and by n, with exponents fitted in log-log.

    Returns
    -------
    dict
        ``by_vocab`` and ``by_siblings``: rows with ``figure``, ``x`` (V or n), ``seconds``, ``steps``
        (median path-steps, ResiSpec only) and ``methods``; ``slopes`` by figure; ``pairs``, how the pairs
        are made.
    """
    total = len(settings.vocab_sizes) + len(settings.sibling_counts)
    by_vocab, by_siblings = [], []
    with settings.bar("cost against V and n", total) as advance:
        for vocab_size in settings.vocab_sizes:
            pairs = _pairs(settings, vocab_size)
            by_vocab += [
                _row("preparation", vocab_size, pairs, lambda pair: prepare(*pair), settings),
                _law_row("specinfer", N_SPECINFER, vocab_size, pairs, settings),
                _law_row("resispec", N_RESISPEC, vocab_size, pairs, settings),
            ]
            advance()
        pairs = _pairs(settings, VOCAB_SIZE)
        for n in settings.sibling_counts:
            for rule in ("specinfer", "resispec"):
                row = _law_row(rule, n, n, pairs, settings)
                by_siblings.append(row | {"figure": rule})
            advance()
    return {
        "by_vocab": by_vocab,
        "by_siblings": by_siblings,
        "slopes": {"by_vocab": _slopes(by_vocab), "by_siblings": _slopes(by_siblings)},
        "vocab_size": VOCAB_SIZE,
        "n_pairs": settings.pairs,
        "pairs": DESCRIPTION,
    }


def _pairs(settings: Settings, vocab_size: int) -> list[Pair]:
    return [synthetic_pair(vocab_size, settings.seed, i) for i in range(settings.pairs)]


def _law_row(
    rule: str, n_siblings: int, x: int, pairs: Sequence[Pair], settings: Settings
) -> dict[str, Any]:
    def law(pair: Pair) -> Any:
        return exact_law(rule, *pair, n_siblings)

    return _row(f"{rule} n = {n_siblings}", x, pairs, law, settings)


def _row(
    figure: str, x: int, pairs: Sequence[Pair], law: Law, settings: Settings
) -> dict[str, Any]:
    seconds, found = [], []
    for pair in pairs:
        found.append(law(pair))
        seconds += best_seconds(partial(law, pair), repeats=min(settings.repeats, 3))
    laws = [one for one in found if hasattr(one, "method")]
    return {
        "figure": figure,
        "x": x,
        "seconds": float(np.median(seconds)),
        "steps": float(np.median([one.n_paths for one in laws])) if laws else None,
        "methods": dict(Counter(str(one.method) for one in laws)),
    }


def _slopes(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for figure in dict.fromkeys(row["figure"] for row in rows):
        of_figure = [row for row in rows if row["figure"] == figure]
        if len(of_figure) > 1:
            found[figure] = log_slope(
                [row["x"] for row in of_figure], [row["seconds"] for row in of_figure]
            )
    return found
