"""The exact engine; its names load on first use, since they pull in numba."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resispec_sim.engine.appendix_b import appendix_b_kl, reconstruct_marginal
    from resispec_sim.engine.bounds import optimal_acceptance, optimum_for
    from resispec_sim.engine.law import Law, exact_law
    from resispec_sim.engine.oracle import OracleLaw, enumerate_law

_HOME = {
    "Law": "law",
    "OracleLaw": "oracle",
    "appendix_b_kl": "appendix_b",
    "enumerate_law": "oracle",
    "exact_law": "law",
    "optimal_acceptance": "bounds",
    "optimum_for": "bounds",
    "reconstruct_marginal": "appendix_b",
}

__all__ = [
    "Law",
    "OracleLaw",
    "appendix_b_kl",
    "enumerate_law",
    "exact_law",
    "optimal_acceptance",
    "optimum_for",
    "reconstruct_marginal",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
