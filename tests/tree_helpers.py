"""A grow map, Sequoia's form of any, and a small dump sampled from its target."""

import numpy as np
import torch

from resispec_sim import write_dump

SMALL = [[1, 2], [3], [4, 5], [], [], []]
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


def sequoia_data(children):
    """The dict that Sequoia stores, from the description of its parts."""
    n = len(children)
    levels, level_of = [[0]], {0: 0}
    while True:
        below = [child for node in levels[-1] for child in children[node]]
        if not below:
            break
        level_of |= dict.fromkeys(below, len(levels))
        levels.append(below)
    parent = {child: node for node in range(n) for child in children[node]}
    mask = torch.zeros(n, n, dtype=torch.long)
    for node in range(n):
        above = node
        mask[node, above] = 1
        while above in parent:
            above = parent[above]
            mask[node, above] = 1
    return {
        "roots": levels,
        "branches": [[len(children[node]) for node in level] for level in levels],
        "Successors": [list(of_node) for of_node in children],
        "mask": mask,
        "depth": torch.tensor([level_of[node] for node in range(n)]),
        "size": n,
    }
