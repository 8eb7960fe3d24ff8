"""The constants of exact shaping and K-SEQ, solved for all pairs of a batch at once.

Both need ``m(c) = sum min(p, c q)`` at many ``c``. The tokens are sorted by ``p/q`` once; ``m`` is then
a look-up in prefix sums. The root is found by cutting the bracket into many parts at a time, for a
fixed number of rounds: nothing on the host waits for a value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...rules import exact_shaping, k_seq
from ...rules.formulas import ascending, is_k_seq_exact, namespace, take, total, unspent
from .arrays import as_type, search, to_float64

PARTS = 128
ROUNDS = 8
"""Rounds of 7 bits each: all digits."""


@dataclass(frozen=True)
class OverlapTable:
    """``m(c)`` of B pairs as a look-up: p below each ratio, q from it on.

    ``ratio`` (B, V) rises; ``below`` and ``from_on`` (B, V + 1) are sums. All are in float64.
    """

    ratio: Any
    below: Any
    from_on: Any

    def __call__(self, scale: Any) -> Any:
        """``m(c)`` at each of `scale` (B, M); 0 where it is negative."""
        scale = scale.clip(min=0)
        k = search(self.ratio, scale)
        return take(self.below, k) + scale * take(self.from_on, k)


def overlap_table(target: Any, draft: Any) -> OverlapTable:
    """Sort the tokens of each pair (B, V) by ``p/q``.

    In float64 and divided by their sums whatever the type: a level can hang on whether ``m`` reaches 1.
    """
    xp = namespace(target)
    p, q = to_float64(target), to_float64(draft)
    p, q = p / total(p), q / total(q)
    # beyond every bracket where q = 0; where p is as small, the token does not matter
    ratio = p / q.clip(min=xp.finfo(xp.float64).tiny)
    order = ascending(ratio, stable=False)
    ratio, p, q = take(ratio, order), take(p, order), take(q, order)
    nothing = 0 * p[..., :1]
    below = xp.concatenate([nothing, xp.cumsum(p, -1)], -1)
    from_on = xp.concatenate([xp.flip(xp.cumsum(xp.flip(q, (-1,)), -1), (-1,)), nothing], -1)
    return OverlapTable(ratio, below, from_on)


def solve_levels(target: Any, draft: Any, counts: Any, n_most: int) -> Any:
    """The least ``S`` with ``C_n = S`` for each pair, (B, 1); see `exact_shaping.solve_level`."""
    xp, overlap = namespace(target), overlap_table(target, draft)
    least = -exact_shaping.ROUNDING * counts

    def is_enough(level: Any) -> Any:
        left = level - 1
        for place, rest in enumerate(unspent(level, overlap, n_most), 1):
            left = xp.where(counts >= place, rest, left)
        return left >= least

    return _least(is_enough, counts, target)


def solve_factors(target: Any, draft: Any, counts: Any) -> Any:
    """The root ``c`` of K-SEQ for each pair, (B, 1); see `k_seq.solve_factor`."""
    overlap = overlap_table(target, draft)

    def is_enough(factor: Any) -> Any:
        return is_k_seq_exact(overlap(factor), factor, counts, k_seq.ROUNDING)

    return _least(is_enough, counts, target)


def _least(is_enough: Callable[[Any], Any], counts: Any, target: Any) -> Any:
    """The least number on ``[1, n]`` from which on a condition holds, (B, 1), in the target's type.

    As a bisection does it, with `PARTS` parts: the condition holds at the end, or the end is returned.
    """
    xp = namespace(target)
    low, high = 0 * counts + 1, counts.clip(min=1)
    at_start = is_enough(low)
    parts = xp.arange(PARTS + 1, dtype=xp.float64, device=target.device)[None] / PARTS
    first = low
    for _ in range(ROUNDS):
        grid = low + (high - low) * parts
        k = total(~is_enough(grid[:, 1:])).clip(max=PARTS - 1)
        low, high = take(grid, k), take(grid, k + 1)
    return as_type(xp.where(at_start, first, high), target.dtype)
