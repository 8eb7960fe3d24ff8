"""The softmax of rows of logits in float64. Legend: B = rows, V = tokens."""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.elementary import exp_in_place, sum_side_by_side, two_sum
from resispec_sim.engine.jit import njit

BLOCK = 512  # tokens whose exponentials stay in the first-level cache until they are summed


@njit
def softmax_rows(logits, peak, temperature, probs):
    """Write ``exp((logits - peak) / temperature)`` divided by its sum, row by row, into `probs`.

    Shapes: logits and probs (B, V), peak (B,), the finite largest logit of each row.
    """
    for row in range(logits.shape[0]):
        scores, out = logits[row], probs[row]
        highest = np.float64(peak[row])
        total = low = 0.0
        for start in range(0, out.size, BLOCK):
            # slices, since the compiler takes an index that may be negative one by one
            given, block = scores[start : start + BLOCK], out[start : start + BLOCK]
            if temperature == 1.0:
                for i in range(block.size):
                    block[i] = np.float64(given[i]) - highest
            else:
                for i in range(block.size):
                    block[i] = (np.float64(given[i]) - highest) / temperature
            exp_in_place(block)
            piece = sum_side_by_side(block)
            total, low = two_sum(total, low, piece, 0.0)
        total += low
        for i in range(out.size):
            out[i] /= total


@njit
def softmax_of_codes(codes, exponentials, probs):
    """Write into `probs` the exponentials of the codes of one row, divided by their sum; return that.

    Sums as `softmax_rows` does, in the same order: the same figures to the last bit.
    Shapes: codes (V,) uint16, exponentials (65536,) by code, probs (V,).
    """
    total = low = 0.0
    for start in range(0, probs.size, BLOCK):
        given, block = codes[start : start + BLOCK], probs[start : start + BLOCK]
        for i in range(block.size):
            block[i] = exponentials[given[i]]
        piece = sum_side_by_side(block)
        total, low = two_sum(total, low, piece, 0.0)
    total += low
    for i in range(probs.size):
        probs[i] /= total
    return total


@njit
def exponentials_of(logits, temperature, out):
    """``exp(logits / temperature)`` as `softmax_rows` computes it for a largest logit of 0."""
    for i in range(out.size):
        out[i] = logits[i]
    if temperature != 1.0:
        for i in range(out.size):
            out[i] = logits[i] / temperature
    exp_in_place(out)
