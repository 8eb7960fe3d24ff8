"""A replay in one process against two, and of a dump far larger than memory."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from functools import partial
from typing import Any

from resispec_sim.bench.settings import Settings
from resispec_sim.bench.timing import seconds_of

N_WORKERS = 2
_LARGE = "resispec_sim.bench.large_dump"


def measure_processes(settings: Settings) -> dict[str, Any]:
    """Seconds of a replay of the first dump in one process and in two, start of the workers included.

    Returns
    -------
    dict
        ``seconds`` by number of processes and ``speed_up``; or ``note``, why there is no figure.
    """
    from resispec_sim.replay import replay

    if "backend" not in inspect.signature(replay).parameters:
        return {"note": "replay has no backend of processes here"}
    options: dict[str, Any] = {
        "rules": "specinfer,resispec",
        "siblings": settings.siblings,
        "positions": None if settings.most_positions is None else (0, settings.most_positions),
        "backend": "processes",
    }
    seconds: dict[int, float] = {}
    with settings.bar("processes", 2 * N_WORKERS) as advance:
        for _ in range(2):
            for n_jobs in (1, N_WORKERS):
                spent = seconds_of(partial(replay, settings.dumps[0], n_jobs=n_jobs, **options))
                seconds[n_jobs] = min(seconds.get(n_jobs, spent), spent)
                advance()
    return {
        "dump": settings.dumps[0],
        "seconds": {str(n): spent for n, spent in seconds.items()},
        "speed_up": seconds[1] / seconds[N_WORKERS],
    }


def measure_large_dump(settings: Settings) -> dict[str, Any]:
    """Replay of a made-up dump of `settings.scale_gb` GB against reading it; or ``note``."""
    if importlib.util.find_spec(_LARGE) is None:
        return {"note": "there is no measurement of a large dump here"}
    with settings.bar(f"a dump of {settings.scale_gb:g} GB", 1) as advance:
        found = importlib.import_module(_LARGE).measure(settings.scale_gb, seed=settings.seed)
        advance()
    return dict(found)
