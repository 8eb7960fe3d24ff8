"""A replay in one process against two, and of a dump far larger than memory."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from typing import Any

from resispec_sim.bench.settings import Settings

N_WORKERS = 2
_AT_SCALE = "resispec_sim.bench.scale"  # measures in processes of its own


def measure_processes(settings: Settings) -> dict[str, Any]:
    """A replay of each dump in one process against two, which run already.

    Returns
    -------
    dict
        ``rows``, one per dump: ``dump``, ``jobs``, ``seconds`` (one process, several), ``speed_up``; or
        ``note``, why there is no figure.
    """
    if importlib.util.find_spec(_AT_SCALE) is None:
        return {"note": "replay has no backend of processes here"}
    if settings.most_positions is not None:
        return {"note": "left out of a quick run"}
    at_scale = importlib.import_module(_AT_SCALE)
    with settings.places() as places:
        temperatures = {place.about()["dump"]: place.dump.temperature for place in places}
    rows = []
    with settings.bar(f"{N_WORKERS} processes", len(temperatures)) as advance:
        for dump, temperature in temperatures.items():
            rows.append(dict(at_scale.speed_up(dump, temperature, N_WORKERS)))
            advance()
    return {"rows": rows}


def measure_large_dump(settings: Settings) -> dict[str, Any]:
    """Replay of a made-up dump of `settings.scale_gb` GB against reading it; or ``note``.

    Returns
    -------
    dict
        ``gigabytes``, ``positions``, ``speed`` (the replay's over that of reading, verifying the
        checksums and a softmax of both rows), ``replay`` with the memory; see `resispec_sim.bench.scale`.
    """
    if settings.scale_gb is None or importlib.util.find_spec(_AT_SCALE) is None:
        return {"note": "there is no measurement of a large dump here"}
    at_scale = importlib.import_module(_AT_SCALE)
    with settings.bar(f"a dump of {settings.scale_gb:g} GB", 1) as advance:
        found = at_scale.large_dump(
            round(settings.scale_gb * 1e9), N_WORKERS, tempfile.gettempdir()
        )
        advance()
    return dict(found)
