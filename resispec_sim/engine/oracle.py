"""A rule's law by definition: every sibling tuple, every acceptance coin, exact rationals."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from resispec_sim.errors import DistributionError, InputError
from resispec_sim.rules.base import Rule


@dataclass(frozen=True)
class OracleLaw:
    """What a rule does at one position, in exact rationals.

    Attributes
    ----------
    output_probs : list of Fraction, (V,)
        The probability that the position emits each token.
    accepted : list of Fraction, (K,)
        The mass with which each sibling is the accepted one.
    accepted_by_token : list of list of Fraction, (K, V)
        The same mass split by token.
    """

    output_probs: list[Fraction]
    accepted: list[Fraction]
    accepted_by_token: list[list[Fraction]]


def enumerate_law(
    rule: Rule, target_probs: Sequence[Fraction], draft_probs: Sequence[Fraction], n_siblings: int
) -> OracleLaw:
    """Run the procedure along every path, forward, and add up what it emits.

    Siblings are drawn independently from the draft. Paths whose residual is the same have the same
    future and are walked together. The cost grows as ``V**n_siblings``: this is the standard that
    the engine is checked against, for small vocabularies.

    Parameters
    ----------
    rule : Rule
        Any sequential rule.
    target_probs, draft_probs : sequence of Fraction, (V,)
        Exact distributions.
    n_siblings : int
        Number K of siblings, 0 or more.

    Raises
    ------
    DistributionError
        If the probabilities are negative or do not sum to exactly 1.
    InputError
        If the lengths differ or `n_siblings` is negative.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> from resispec_sim.rules import ResiSpec
    >>> law = enumerate_law(ResiSpec(), [F(1, 4), F(1, 4), F(1, 2)], [F(1, 2), F(1, 2), F(0)], 1)
    >>> [str(mass) for mass in law.output_probs], str(law.accepted[0])
    (['2/5', '2/5', '1/5'], '1/2')
    """
    target, draft = _check_exact(target_probs, "target"), _check_exact(draft_probs, "draft")
    vocab_size = len(target)
    if len(draft) != vocab_size:
        raise InputError(
            f"the target has {vocab_size} tokens, the draft {len(draft)}; align them first"
        )
    if n_siblings < 0:
        raise InputError(f"n_siblings is {n_siblings}; it must be 0 or more")

    accepted_by_token = [[Fraction(0)] * vocab_size for _ in range(n_siblings)]
    reached: dict[tuple[Fraction, ...], Fraction] = {target: Fraction(1)}
    for accepted in accepted_by_token:
        rejected: defaultdict[tuple[Fraction, ...], Fraction] = defaultdict(Fraction)
        for residual, path_weight in reached.items():
            for token, draft_prob in enumerate(draft):
                if draft_prob == 0:
                    continue
                accept_prob = min(Fraction(1), residual[token] / draft_prob)
                drawn = path_weight * draft_prob
                accepted[token] += drawn * accept_prob
                if accept_prob < 1:
                    next_residual = rule.residual_after(residual, draft, token)
                    rejected[next_residual] += drawn * (1 - accept_prob)
        reached = rejected

    output_probs = [sum(column, Fraction(0)) for column in zip(*accepted_by_token, strict=True)]
    output_probs = output_probs or [Fraction(0)] * vocab_size
    for residual, path_weight in reached.items():
        for token, prob in enumerate(residual):
            output_probs[token] += path_weight * prob
    return OracleLaw(
        output_probs, [sum(row, Fraction(0)) for row in accepted_by_token], accepted_by_token
    )


def _check_exact(probs: Sequence[Fraction], name: str) -> tuple[Fraction, ...]:
    exact = tuple(Fraction(prob) for prob in probs)
    if sum(exact) != 1 or min(exact) < 0:
        raise DistributionError(
            f"{name} probabilities sum to {sum(exact)}, the least is {min(exact, default=0)}; the "
            "oracle needs exact distributions: give Fractions that sum to 1"
        )
    return exact
