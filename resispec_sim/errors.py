"""Every error that the package raises on purpose.

All derive from `ResispecError`, so one ``except`` catches them. A message names the file, position or
token, the value found there and what to do about it.
"""


class ResispecError(Exception):
    """Base of all errors raised on purpose."""


class InputError(ResispecError, ValueError):
    """An argument is out of its range or has the wrong shape."""


class LogitsError(InputError):
    """Logits that define no distribution: NaN, +inf, or a row without one finite entry."""


class DistributionError(InputError):
    """Probabilities that are negative, not finite or do not sum to 1."""


class VocabularyError(InputError):
    """Vocabularies or tokenizers of target and draft that do not belong together."""


class RuleError(InputError):
    """An unknown verification rule, or an option that the rule does not have."""


class InfeasibleBudgetError(RuleError):
    """The residual budget Z exceeds the mass that is left off the rejected token."""


class MassError(ResispecError, ArithmeticError):
    """A computed law does not sum to 1: a fault of the engine, never of the caller."""


class DeviceError(ResispecError, RuntimeError):
    """A GPU, or a package that drives it, is missing."""


class DumpError(ResispecError):
    """A dump that cannot be read or written."""


class ManifestError(DumpError):
    """A manifest that is missing, malformed, of an unknown version or inconsistent."""


class IncompleteDumpError(DumpError):
    """A recording that was interrupted: some shards of its plan are not there yet."""


class ShardError(DumpError):
    """A shard that is missing, cut short, altered or not what the manifest says."""


class ModelError(ResispecError):
    """A model or tokenizer that cannot be loaded or used as asked."""


class GrowMapError(InputError):
    """A grow map that is no ordered tree, or a file that holds none."""


class VerifierError(ResispecError):
    """A verifier under audit that cannot be called, or does not repeat itself where it must."""


class WorkerError(ResispecError):
    """Work that other processes or machines could not do: unreachable, lost, or without the dump."""


class RunError(ResispecError):
    """A benchmark run that cannot go on: other settings in its folder, a log that cannot be read."""
