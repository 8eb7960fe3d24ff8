"""Shrinks a counterexample: fewest tokens, then the simplest fractions, that still show the fault."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from resispec_sim.audit.exact import VerifierLaw
from resispec_sim.audit.pool import DENOMINATORS, Exact, Pair, exact_pair, simple_pairs
from resispec_sim.errors import ResispecError


def shrink(
    law_at: Callable[[Pair], VerifierLaw],
    pair: Pair,
    law: VerifierLaw,
    *,
    least_bias: float,
    max_calls: int,
) -> tuple[Pair, VerifierLaw]:
    """The simplest pair found at which the verifier has the same fault.

    Pairs are tried from the simplest on until one is faulty or `max_calls` calls of the verifier are
    spent; no pair is tried that has more tokens than the one given, or larger denominators. A law that
    is less than `least_bias` away from the target is left where it was found.

    Parameters
    ----------
    law_at : callable
        The law at a pair.
    pair, law
        What is to be shrunk, and its law.
    least_bias : float
        Total variation distance that the result keeps.
    max_calls : int

    Returns
    -------
    pair, law
    """
    kinds = {finding.kind for finding in law.findings}
    biased = law.tv > least_bias
    if not biased and not kinds:
        return pair, law
    spent = {vocab_size: 0 for vocab_size in range(2, len(pair.target) + 1)}

    def same_fault(other: VerifierLaw) -> bool:
        found = {finding.kind for finding in other.findings}
        # a fault of another kind, such as an exception for 2 tokens, would hide the first one
        if other.unsettled > least_bias or not found <= kinds:
            return False
        # mass that leaves the vocabulary is another fault than mass on the wrong tokens
        if law.outside > least_bias:
            return other.outside > least_bias
        return other.tv > least_bias if biased else bool(found)

    for simpler in simple_pairs(len(pair.target)):
        vocab_size = len(simpler.target)
        if vocab_size == len(pair.target) and _size(simpler) >= _size(pair):
            break
        if all(calls >= max_calls / len(spent) for calls in spent.values()):
            break
        if spent[vocab_size] >= max_calls / len(spent):
            continue
        try:
            other = law_at(simpler)
        except ResispecError:
            continue  # a way of drafting, or a verifier, that is made for other sizes
        spent[vocab_size] += other.n_calls
        if same_fault(other):
            return simpler, other
    return pair, law


def _size(pair: Pair) -> tuple[Any, ...]:
    if pair.simple is None:
        return (max(DENOMINATORS) + 1,)
    parts = [max(2, math.lcm(*[mass.denominator for mass in probs])) for probs in pair.simple]
    return max(parts), sum(parts)


def as_fractions(pair: Pair) -> Pair:
    """The pair with its fractions filled in where its floats are fractions of small numbers."""
    if pair.simple is not None:
        return pair
    sides: list[Exact] = []
    for probs in (pair.target, pair.draft):
        exact = tuple(_simple(float(mass)) for mass in probs)
        if sum(exact) != 1:
            return pair
        sides.append(exact)
    return exact_pair(sides[0], sides[1])


def _simple(value: float) -> Fraction:
    near = Fraction(value).limit_denominator(1000)
    return near if abs(float(near) - value) < 1e-15 else Fraction(value)
