"""Exact output laws of speculative-decoding verification rules.

The public names below are imported when they are first used: ``import resispec_sim`` alone loads no
numba, pandas, matplotlib, torch or cupy.

Examples
--------
>>> import numpy as np
>>> import resispec_sim as rs
>>> law = rs.exact_law("specinfer", np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]), 2)
>>> bool(law.tv < 1e-12)
True
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dumps import open_dump, write_dump
    from .engine import Law, appendix_b_kl, exact_law, optimal_acceptance
    from .errors import ResispecError
    from .replay import replay
    from .report import Report

__version__ = "0.1.0"

__all__ = [
    "Law",
    "Report",
    "ResispecError",
    "__version__",
    "appendix_b_kl",
    "exact_law",
    "open_dump",
    "optimal_acceptance",
    "replay",
    "write_dump",
]

_HOMES = {
    "Law": "engine",
    "Report": "report",
    "ResispecError": "errors",
    "appendix_b_kl": "engine",
    "exact_law": "engine",
    "open_dump": "dumps",
    "optimal_acceptance": "engine",
    "replay": "replay",
    "write_dump": "dumps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


class _Package(ModuleType):
    """The package as a module whose attribute ``replay`` is always the function.

    The import system binds a submodule to its parent when it loads it: without this,
    ``resispec_sim.replay`` would be the function or the module depending on earlier imports.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "replay" and isinstance(value, ModuleType):
            value = value.replay
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
