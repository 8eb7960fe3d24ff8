"""Defaults of the audit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AuditConfig:
    """Defaults of an audit.

    Attributes
    ----------
    siblings : str
        How siblings are drawn.
    tolerance : float
        Total variation distance up to which a computed law counts as the target.
    least_bias : float
        Total variation distance that a shrunk counterexample keeps at least.
    max_tuples : int
        Sibling tuples of one pair up to which every one is enumerated.
    max_shrink_calls : int
        Calls of the verifier that are spent on shrinking a counterexample.
    n_pattern_pairs : int
        Pairs at which a known fault must agree with the verifier before it is named.
    seed : int
        Seed of everything random.
    alpha : float
        Probability with which an exact verifier may be called biased in sampling mode.
    max_samples : int
        Tokens drawn at most in sampling mode.
    batch_size : int
        Tokens drawn between two updates of the bets in sampling mode.
    """

    siblings: str = "iid"
    tolerance: float = 1e-9
    least_bias: float = 1e-6
    max_tuples: int = 1500
    max_shrink_calls: int = 40_000
    n_pattern_pairs: int = 8
    seed: int = 0
    alpha: float = 1e-3
    max_samples: int = 20_000
    batch_size: int = 256


AUDIT = AuditConfig()
