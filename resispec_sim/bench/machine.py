"""Where a benchmark ran: a time means nothing without it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Processor, cores, load and the day, as JSON data.

    Returns
    -------
    dict
        ``cpu`` (model name), ``cores`` (those that this process may use), ``load`` (mean number of
        running processes in the last minute before the run, None where the system does not say),
        ``system``, ``python``, ``date`` (UTC).

    Examples
    --------
    >>> sorted(describe_machine())
    ['cores', 'cpu', 'date', 'load', 'python', 'system']
    """
    try:
        load: float | None = round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        load = None
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": load,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
