"""The pairs that an exact audit looks at, and simple distributions to shrink a counterexample to."""

import math
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np

from resispec_sim.audit.calling import Floats

Exact = tuple[Fraction, ...]

DENOMINATORS = (2, 3, 4, 5, 6, 10)


class Pair(NamedTuple):
    """A target and a draft, each (V,); `simple` are the same as fractions, where they are any."""

    target: Floats
    draft: Floats
    simple: tuple[Exact, Exact] | None


_WRITTEN = """
1/2 3/10 1/5 | 1/5 1/5 3/5
2/5 3/5 | 3/5 2/5
1/6 1/3 1/2 | 1/2 1/3 1/6
2/5 3/10 3/10 | 3/5 3/10 1/10
3/10 1/5 2/5 1/10 | 1/10 2/5 1/5 3/10
1/4 1/4 1/2 | 1/2 1/2 0
1/2 0 1/2 | 1/4 1/2 1/4
1/2 3/10 1/10 1/10 | 1/5 2/5 2/5 0
1/2 1/3 1/6 | 1/2 1/3 1/6
1/3 2/3 | 1/3 2/3
0 2/3 0 1/3 | 0 2/3 0 1/3
1/4 1/4 1/4 1/4 | 1/4 1/4 1/4 1/4
1/3 2/3 0 0 | 0 0 1/4 3/4
1 0 | 0 1
0 1 | 1 0
1 0 | 1/2 1/2
1/2 1/2 | 1 0
1/4 1/4 1/2 | 0 1 0
0 0 1 | 1/2 1/4 1/4
0 0 1 | 1/2 1/2 0
0 1 0 | 0 1 0
1/2 1/2 0 0 | 1/4 1/4 1/4 1/4
1/2 0 3/10 1/5 | 1/5 2/5 0 2/5
1/2 1/4 0 1/4 | 1/4 1/2 1/4 0
1/8 1/8 1/4 1/2 | 1/4 1/4 1/8 3/8
1/4 1/4 1/4 1/4 | 7/10 1/10 1/10 1/10
3/5 0 2/5 0 | 3/10 3/10 1/5 1/5
9/10 1/10 | 1/10 9/10
1/10 9/10 | 9/10 1/10
1/100 99/100 | 99/100 1/100
"""


def exact_pair(target: Exact, draft: Exact) -> Pair:
    """A pair from fractions."""
    mine, theirs = (np.array([float(mass) for mass in probs]) for probs in (target, draft))
    return Pair(mine, theirs, (target, draft))


def pairs_to_check(seed: int, max_vocab: int) -> list[Pair]:
    """Written pairs with ties, zeros, equal and disjoint ones; rounding; and random ones.

    The first differ in every respect at once, so that most faults show early.

    Examples
    --------
    >>> pairs_to_check(0, 4)[0].target.tolist()
    [0.5, 0.3, 0.2]
    """
    found = []
    for line in _WRITTEN.strip().splitlines():
        sides = [tuple(Fraction(part) for part in side.split()) for side in line.split("|")]
        found.append(exact_pair(*sides))
    ulp = 2.0**-53
    half, third = np.array([0.5, 0.5]), np.array([0.25, 0.25, 0.5])
    found.append(Pair(half, np.array([0.5 + 2 * ulp, 0.5 - 2 * ulp]), None))
    found.append(Pair(np.array([0.5 - ulp, 0.5 + ulp]), half, None))
    found.append(Pair(third, third + ulp * np.array([1, -1, 0]), None))
    found.append(Pair(np.array([1 - 1e-9, 1e-9]), np.array([0.5, 0.5]), None))
    found.append(Pair(np.array([0.5, 0.5]), np.array([1 - 1e-9, 1e-9]), None))
    rng = random.Random(seed)
    for vocab_size in (2, 3, 3, 3, 4, 4, 4, 4):
        sides = [_random_probs(rng, vocab_size) for _ in range(2)]
        found.insert(6 if vocab_size == 4 else len(found), exact_pair(*sides))
    return [pair for pair in found if len(pair.target) <= max_vocab]


def _random_probs(rng: random.Random, vocab_size: int) -> Exact:
    weights = [rng.randint(1, 40) for _ in range(vocab_size)]
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


def simple_pairs(max_vocab: int) -> Iterator[Pair]:
    """Pairs in order: fewest tokens first, then the smallest denominators."""
    for vocab_size in range(2, max_vocab + 1):
        by_size = {d: list(_fractions(vocab_size, d)) for d in DENOMINATORS}
        sizes = sorted(product(DENOMINATORS, repeat=2), key=lambda two: (max(two), sum(two)))
        for of_target, of_draft in sizes:
            for target, draft in product(by_size[of_target], by_size[of_draft]):
                yield exact_pair(target, draft)


def _fractions(vocab_size: int, denominator: int) -> Iterator[Exact]:
    """Distributions whose least common denominator is `denominator`; one-hot ones go with 2."""
    for weights in product(range(denominator, -1, -1), repeat=vocab_size - 1):
        last = denominator - sum(weights)
        if last < 0:
            continue
        probs = tuple(Fraction(weight, denominator) for weight in (*weights, last))
        if denominator == max(2, math.lcm(*[mass.denominator for mass in probs])):
            yield probs
