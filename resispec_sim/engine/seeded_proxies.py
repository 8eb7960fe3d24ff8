"""Random proxies of Appendix B for a replay, from a stream that takes no time to start."""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.appendix_b import LEAST_WINDOW, Proxies, spread
from resispec_sim.engine.jit import njit


def seeded_proxies(vocab_size: int, n_siblings: int, seed: int, position: int) -> Proxies:
    """`random_proxies` of a stream of their own, that of a position in a run with `seed`.

    Drawn by splitmix64 (Steele, Lea and Flood 2014), since numpy takes longer to set up a generator than
    a position takes for anything else that is random.
    """
    size = min(vocab_size, max(vocab_size // 8, LEAST_WINDOW))
    levels = np.empty(-(-(size + n_siblings) // 8), dtype=np.uint64)
    first, totals = np.empty(n_siblings, dtype=np.int64), np.empty(n_siblings)
    if seed >= 2**63:
        seed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
    fill_at_random(levels, first, totals, vocab_size - size + 1, seed, position)
    bytes_ = levels.view(np.uint8)
    return Proxies(bytes_, *spread(bytes_, size, first, totals))


@njit
def mixed(word):
    """The output function of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit
def fill_at_random(levels, first, totals, n_first, seed, position):
    """Fill levels with random bits, `first` with numbers below `n_first`, totals with 1/2 to 3/2."""
    state = mixed(mixed(np.uint64(seed)) + np.uint64(position))
    state = mixed(state + np.uint64(first.size))
    step = np.uint64(0x9E3779B97F4A7C15)
    for i in range(levels.size):
        state += step
        levels[i] = mixed(state)
    for i in range(first.size):
        state += step
        # 53 bits, as a float holds
        first[i] = np.int64(np.float64(mixed(state) >> np.uint64(11)) * 2.0**-53 * n_first)
        state += step
        totals[i] = 0.5 + np.float64(mixed(state) >> np.uint64(11)) * 2.0**-53
