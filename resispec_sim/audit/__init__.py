"""Audits a verifier: is the law of what it emits the target? If not, where and how is it wrong?

Importing this loads no torch; `torch_batch` loads it when it is called.
"""

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
