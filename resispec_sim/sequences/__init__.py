"""Verification of several levels: laws of emitted sequences and of accepted lengths."""

from .chain_report import ChainReport, block_eal
from .law import SequenceLaw, sequence_law
from .models import SequenceModel, history_model, iid_model, markov_model
from .shapes import as_shape, chain_shape

__all__ = [
    "ChainReport",
    "SequenceLaw",
    "SequenceModel",
    "as_shape",
    "block_eal",
    "chain_shape",
    "history_model",
    "iid_model",
    "markov_model",
    "sequence_law",
]
