"""What a position costs before any path is walked, in units of a softmax of its two rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from resispec_sim.bench.settings import Place, Settings
from resispec_sim.bench.timing import best_seconds
from resispec_sim.bench.walks import prepare
from resispec_sim.engine import exact_law
from resispec_sim.rules import SpecInfer

N_POSITIONS = 6
N_SIBLINGS = 8


def measure_preparation(settings: Settings) -> dict[str, Any]:
    """Seconds of one position's preparation and of SpecInfer's law, over those of a softmax.

    Returns
    -------
    dict
        ``baseline`` says which softmax; ``rows`` has one entry per figure with the median over positions
        of ``seconds`` and ``ratio``, and ``worst_ratio``; ``baseline_seconds`` is the softmax's median.
    """
    with settings.places() as places:
        chosen = places[:: max(1, len(places) // N_POSITIONS)][:N_POSITIONS]
        name, make = softmax_baseline()
        times = []
        with settings.bar("preparation", len(chosen)) as advance:
            for place in chosen:
                pair = place.probs()
                logits = np.log(np.maximum(np.stack(pair), 1e-300))
                times.append(
                    best_seconds(
                        make(logits),
                        place.probs,
                        partial(prepare, *pair),
                        partial(_prepare, place),
                        partial(exact_law, SpecInfer(), *pair, N_SIBLINGS),
                        partial(_specinfer, place),
                        repeats=3 * settings.repeats,
                        least_seconds=0.02 * settings.repeats,
                    )
                )
                advance()
    figures = (
        "probabilities of both rows from logits",
        "ordering and prefix sums",
        "preparation: both of these",
        f"SpecInfer n = {N_SIBLINGS}: law from probabilities",
        f"SpecInfer n = {N_SIBLINGS}: law from logits",
    )
    seconds = np.array(times)
    ratios = seconds[:, 1:] / seconds[:, :1]
    return {
        "baseline": name,
        "baseline_seconds": float(np.median(seconds[:, 0])),
        "positions": len(chosen),
        "rows": [
            {
                "figure": figure,
                "seconds": float(np.median(seconds[:, i + 1])),
                "ratio": float(np.median(ratios[:, i])),
                "worst_ratio": float(ratios[:, i].max()),
            }
            for i, figure in enumerate(figures)
        ],
    }


def _prepare(place: Place) -> None:
    prepare(*place.probs())


def _specinfer(place: Place) -> None:
    target, draft = place.probs()
    exact_law(SpecInfer(), target, draft, N_SIBLINGS)


def softmax_baseline() -> tuple[str, Callable[[Any], Callable[[], Any]]]:
    """Name of a softmax, and what makes a call of it for rows (2, V): torch's, else one in numpy."""
    if importlib.util.find_spec("torch") is None:
        return "numpy, float64: exp(x - max) / sum", lambda rows: lambda: _numpy_softmax(rows)
    import torch

    def make(rows: Any) -> Callable[[], Any]:
        tensor = torch.from_numpy(np.array(rows))

        def call() -> Any:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                return torch.softmax(tensor, dim=-1)
            finally:
                torch.set_num_threads(threads)

        return call

    return f"torch.softmax {torch.__version__}, float64, one thread", make


def _numpy_softmax(rows: Any) -> Any:
    scores = np.exp(rows - rows.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
