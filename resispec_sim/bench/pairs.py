"""Made-up positions of any vocabulary size that resemble recorded ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resispec_sim.checks import check_whole
from resispec_sim.probs import logits_to_probs

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]

ZIPF, SHARED, OWN = 1.0, 2.7, 1.3  # of the log-rank; standard deviations of noise
SHARPNESS = 1.15, 0.95  # of target and draft

DESCRIPTION = (
    f"logits -{ZIPF:g} log(rank) + {SHARED:g} N common to both models + {OWN:g} N of each model's own (N "
    f"standard normal), times {SHARPNESS[0]:g} for the target and {SHARPNESS[1]:g} for the draft, tokens "
    "in random order; the most frequent tokens are the same at every V. At V = 49,152 the medians are "
    "close to those of smollm2-t1.0: acceptance of one sibling 0.38 (recorded 0.34), correlation of the "
    "log-probabilities 0.83 (0.82), path-steps at n = 3 7e5 (9e5)"
)


def synthetic_pair(vocab_size: int, seed: int, pair: int = 0) -> Pair:
    """Target and draft probabilities of one made-up position.

    Zipf's law for the ranks, since token frequencies follow it; noise that both models share, which is
    the context; and noise of each model's own, which is what the draft gets wrong.

    Parameters
    ----------
    vocab_size : int
        2 or more.
    seed, pair : int
        Stream of random numbers and number of the pair within it.

    Returns
    -------
    target_probs, draft_probs : ndarray of float64, (V,)

    Examples
    --------
    >>> target, draft = synthetic_pair(1000, seed=0)
    >>> target.shape, bool(abs(draft.sum() - 1) < 1e-12), bool((target > 0).all())
    ((1000,), True, True)
    """
    vocab_size = check_whole("vocab_size", vocab_size, at_least=2)
    # a stream each, so that a larger vocabulary goes on where a smaller one ends
    shared, target, draft, places = (
        np.random.default_rng([seed, pair, stream]) for stream in range(4)
    )
    common = -ZIPF * np.log(np.arange(1.0, vocab_size + 1.0))
    common += SHARED * shared.normal(size=vocab_size)
    order = places.permutation(vocab_size)
    probs = [
        logits_to_probs(sharp * (common + OWN * own.normal(size=vocab_size)))[order]
        for sharp, own in zip(SHARPNESS, (target, draft), strict=True)
    ]
    return probs[0], probs[1]
