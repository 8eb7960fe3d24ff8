"""A small dump whose text is sampled from its target, with prompts of different lengths."""

import numpy as np

from resispec_sim import write_dump

LENGTHS, SIZE = [7, 9, 1, 8, 6], 12


def make_dump(folder, seed=5, temperature=1.0, **options):
    rng = np.random.default_rng(seed)
    targets, drafts, tokens = [], [], []
    for n in LENGTHS:
        target = rng.normal(size=(n, SIZE)) * 2
        probs = np.exp(target / temperature)
        probs /= probs.sum(axis=1, keepdims=True)
        targets.append(target)
        drafts.append(target + rng.normal(size=(n, SIZE)))
        tokens.append([int(rng.choice(SIZE, p=row)) for row in probs])
    options = {"dtype": "float32", "temperature": temperature} | options
    return write_dump(folder, targets, drafts, tokens, **options)
