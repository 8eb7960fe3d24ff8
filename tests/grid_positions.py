"""Positions with many tokens: made from a seed, of the kinds that sums over light tokens depend on."""

import numpy as np

LOG_SMALLEST = -570.0  # exp of it is 1e-248


def to_floats(values):
    """Numbers of any kind as float64, (V,)."""
    return np.array([float(value) for value in values])


def wide_position(kind, vocab, seed):
    """Target and draft probabilities of one position, each (V,).

    ``zipf``: a target of falling probabilities and a draft that errs by a factor of e; ``top-p``: the
    same cut to its heaviest tokens; ``flat`` and ``peaked``: likewise, and the draft much flatter or
    more peaked; ``wide``: ratios over 15 decades and few heavy tokens; ``raised``: ratios from 1e-5 on,
    so that budget ``clipped`` raises the light weights and leaves the heavy ones; ``extreme``: ratios
    over 1e-250 to 1e250, subnormal and exact zeros on both sides.
    """
    rng = np.random.default_rng((vocab, seed))
    log_p = -1.1 * np.log1p(np.arange(vocab)) + rng.normal(0.0, 0.5, vocab)
    log_q = log_p + rng.normal(0.0, 1.0, vocab)
    if kind in ("top-p", "flat", "peaked"):
        log_q *= {"flat": 0.4, "peaked": 2.5}.get(kind, 1.0)
        order = np.argsort(-log_p)
        p = np.exp(log_p[order] - log_p.max())
        log_p[order[np.cumsum(p) > 0.9 * p.sum()]] = -np.inf
    if kind in ("wide", "raised"):
        log_q = rng.uniform(-6.0, 0.0, vocab)
        log_p = log_q + (
            rng.uniform(-33.0, 1.0, vocab) if kind == "wide" else rng.uniform(-11.5, 1.5, vocab)
        )
        heavy = np.log(vocab) + np.array([-1.0, -2.0, -4.0])
        log_q[:3], log_p[:3] = heavy, heavy - 1.0
    if kind == "extreme":
        log_p = np.where(rng.random(vocab) < 0.5, log_p, rng.uniform(LOG_SMALLEST, 0.0, vocab))
        log_q = np.where(rng.random(vocab) < 0.5, log_q, rng.uniform(LOG_SMALLEST, 0.0, vocab))
        log_p[rng.integers(0, vocab, 4)] = -np.inf
        log_q[rng.integers(0, vocab, 4)] = -np.inf
        log_q[rng.integers(0, vocab, 3)] = log_p[rng.integers(0, vocab, 3)] = -740.0
    return tuple(np.exp(side) / np.exp(side).sum() for side in (log_p, log_q))
