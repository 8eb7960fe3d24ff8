"""Audits a verifier: is the law of what it emits the target? If not, where and how is it wrong?

The names below are imported when they are first used, so that the command line stays quick; torch only
when a function made by `torch_batch` is called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resispec_sim.audit.adapters import torch_batch
    from resispec_sim.audit.calling import Finding
    from resispec_sim.audit.exact import VerifierLaw, law_of_verifier
    from resispec_sim.audit.report import AuditReport, Counterexample, Pattern
    from resispec_sim.audit.run import audit

__all__ = [
    "AuditReport",
    "Counterexample",
    "Finding",
    "Pattern",
    "VerifierLaw",
    "audit",
    "law_of_verifier",
    "torch_batch",
]

_HOMES = {
    "AuditReport": "report",
    "Counterexample": "report",
    "Finding": "calling",
    "Pattern": "report",
    "VerifierLaw": "exact",
    "audit": "run",
    "law_of_verifier": "exact",
    "torch_batch": "adapters",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
