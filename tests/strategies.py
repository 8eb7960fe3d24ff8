"""Pairs of target and draft probabilities in exact rationals: drawn, or written by hand."""

from fractions import Fraction
from typing import NamedTuple

from hypothesis import strategies as st

Exact = tuple[Fraction, ...]

# the last is subnormal as a float64
TINY = (Fraction(1, 10**9), Fraction(1, 2**60), Fraction(1, 2**1060))


class Pair(NamedTuple):
    """A named target and draft, each (V,)."""

    name: str
    target_probs: Exact
    draft_probs: Exact


def normalise(weights: list[Fraction] | list[int]) -> Exact:
    """Weights as a distribution; all on the first token where every weight is 0."""
    total = sum(weights, Fraction(0))
    if total == 0:
        return (Fraction(1), *[Fraction(0)] * (len(weights) - 1))
    return tuple(Fraction(weight) / total for weight in weights)


@st.composite
def prob_pairs(draw: st.DrawFn, max_vocab: int = 8, min_vocab: int = 1) -> tuple[Exact, Exact]:
    """Pairs (target, draft): zeros, ties, tiny values on either side, and degenerate kinds."""
    vocab_size = draw(st.integers(min_vocab, max_vocab))
    # few small integers: zeros and ties between the ratios are common
    weight = st.integers(0, 6).map(Fraction)
    if draw(st.integers(0, 3)) == 0:
        weight = st.one_of(weight, st.sampled_from(TINY))
    weights = st.lists(weight, min_size=vocab_size, max_size=vocab_size)
    target, draft = draw(weights), draw(weights)
    kind = draw(st.sampled_from(["any"] * 4 + ["equal", "disjoint", "one token", "conditional"]))
    members = draw(st.sets(st.integers(0, vocab_size - 1)))
    if kind == "equal":
        target = draft
    elif kind == "disjoint" and 0 < len(members) < vocab_size:
        target = [w + 1 if x in members else Fraction(0) for x, w in enumerate(target)]
        draft = [w + 1 if x not in members else Fraction(0) for x, w in enumerate(draft)]
    elif kind == "one token":
        one_hot = [Fraction(x == draw(st.integers(0, vocab_size - 1))) for x in range(vocab_size)]
        target, draft = draw(st.sampled_from([(target, one_hot), (one_hot, draft)]))
    elif kind == "conditional":
        target = [w if x in members else Fraction(0) for x, w in enumerate(draft)]
    return normalise(target), normalise(draft)


def _pair(name: str, target: str, draft: str) -> Pair:
    p, q = (tuple(Fraction(part) for part in text.split()) for text in (target, draft))
    assert sum(p) == sum(q) == 1 and len(p) == len(q), name
    return Pair(name, p, q)


_ULP = Fraction(1, 2**53)

EDGE_PAIRS = [
    _pair("one token", "1", "1"),
    _pair("two tokens", "2/5 3/5", "1/2 1/2"),
    _pair("equal", "1/2 1/3 1/6", "1/2 1/3 1/6"),
    _pair("equal with zeros", "0 2/3 0 1/3", "0 2/3 0 1/3"),
    _pair("uniform", "1/4 1/4 1/4 1/4", "1/4 1/4 1/4 1/4"),
    Pair(
        "one ulp apart",
        (Fraction(1, 2), Fraction(1, 2)),
        (Fraction(1, 2) + _ULP, Fraction(1, 2) - _ULP),
    ),
    _pair("disjoint", "1/3 2/3 0 0", "0 0 1/4 3/4"),
    _pair("disjoint, one token each", "1 0", "0 1"),
    _pair("draft on one token", "1/4 1/4 1/2", "0 1 0"),
    _pair("target on one token", "0 0 1", "1/2 1/4 1/4"),
    _pair("target on one undrafted token", "0 0 1", "1/2 1/2 0"),
    _pair("one token the same", "0 1 0", "0 1 0"),
    _pair("zeros in the draft", "1/4 1/4 1/2", "1/2 1/2 0"),
    _pair("zeros in the target", "1/2 1/2 0 0", "1/4 1/4 1/4 1/4"),
    _pair("zeros on both sides", "1/2 1/4 0 1/4 0", "1/4 1/2 1/4 0 0"),
    _pair("ties in the ratio", "1/8 1/8 1/4 1/4 1/8 1/8", "1/4 1/4 1/8 1/8 1/8 1/8"),
    _pair("one over-estimated token", "1/4 1/4 1/4 1/4", "7/10 1/10 1/10 1/10"),
    _pair("conditional on a set", "3/5 0 2/5 0", "3/10 3/10 1/5 1/5"),
    _pair("reversed", "1/6 1/3 1/2", "1/2 1/3 1/6"),
    _pair("both orders of rejection", "2/5 3/10 3/10", "3/5 3/10 1/10"),
    Pair("tiny draft", *map(normalise, ([1, 2, 3], [3, 2, TINY[1]]))),
    Pair("tiny target", *map(normalise, ([1, 3, TINY[1], TINY[0]], [1, 1, 1, 1]))),
    Pair("subnormal", *map(normalise, ([1, 3, TINY[2], 1], [3, 1, 1, TINY[2]]))),
]
"""Pairs that broke, or could break, an implementation; each test over them runs every one."""
