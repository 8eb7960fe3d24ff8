"""The benchmark: `benchmark` measures the engine on this machine; `resispec bench` prints it."""

from typing import Any

__all__ = ["benchmark"]


def __getattr__(name: str) -> Any:
    if name == "benchmark":
        from resispec_sim.bench.run import benchmark

        return benchmark
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
