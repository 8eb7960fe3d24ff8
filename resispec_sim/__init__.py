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
    from .compare import compare
    from .dumps import open_dump, write_dump
    from .engine import Law, appendix_b_kl, exact_law, optimal_acceptance, optimum_for
    from .errors import ResispecError
    from .gap import acceptance_table
    from .growmaps import GrowMap
    from .replay import replay
    from .report import Report
    from .sequences import block_eal, sequence_law
    from .tree_dumps import TreeDump
    from .tree_plan import plan_trees
    from .tree_replay import replay_trees
    from .tree_search import optimise_tree

__version__ = "0.1.0"

__all__ = [
    "GrowMap",
    "Law",
    "Report",
    "ResispecError",
    "TreeDump",
    "__version__",
    "acceptance_table",
    "appendix_b_kl",
    "block_eal",
    "compare",
    "exact_law",
    "open_dump",
    "optimal_acceptance",
    "optimise_tree",
    "optimum_for",
    "plan_trees",
    "replay",
    "replay_trees",
    "sequence_law",
    "write_dump",
]

_HOMES = {
    "GrowMap": "growmaps",
    "Law": "engine",
    "Report": "report",
    "ResispecError": "errors",
    "TreeDump": "tree_dumps",
    "acceptance_table": "gap",
    "appendix_b_kl": "engine",
    "block_eal": "sequences",
    "compare": "compare",
    "exact_law": "engine",
    "open_dump": "dumps",
    "optimal_acceptance": "engine",
    "optimise_tree": "tree_search",
    "optimum_for": "engine",
    "plan_trees": "tree_plan",
    "replay": "replay",
    "replay_trees": "tree_replay",
    "sequence_law": "sequences",
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
    """The package as a module whose ``replay`` and ``compare`` are always the functions.

    The import system binds a submodule to its parent when it loads it: without this,
    ``resispec_sim.replay`` would be the function or the module depending on earlier imports.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("replay", "compare") and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
