"""Every setting of the batched rules, and batches of nodes with all kinds of pairs for each."""

import numpy as np
import torch
from strategies import EDGE_PAIRS

from resispec_sim.rules import parse_rule

RESISPEC = [
    f"resispec[{fill},{b}]"
    for fill in ("capacity", "water", "index")
    for b in ("minimal", "clipped")
]
OTHERS = [
    *("rejection", "specinfer", "rrs-wor", "nss", "target-only", "resispec[capacity,applied]"),
    *("k-seq", "k-seq[1.5]", "exact-shaping", "exact-shaping[1.5]"),
    *(f"resispec-wor[{fill}]" for fill in ("capacity", "water", "index")),
    *(
        f"resispec-eagle[{fill},{r}]"
        for fill in ("capacity", "water")
        for r in ("softmax", "one-hot", "proxy")
    ),
]
SETTINGS = [parse_rule(label) for label in RESISPEC + OTHERS]
FEASIBLE = [rule for rule in SETTINGS if "applied" not in rule.label]
SOLVED = ("k-seq", "exact-shaping")
FLOAT32_ERROR = 3e-6  # of masses; what p = q to rounding and K-SEQ's slack leave


def to_floats(pair):
    return tuple(np.array([float(mass) for mass in probs]) for probs in pair)


def normalise(weights):
    return weights / weights.sum()


def random_pairs(rng, vocab, count, smooth=False):
    """Pairs with zeros, ties, equal and one-hot sides, disjoint supports, and smooth ones."""
    pairs = []
    for i in range(count):
        p, q = rng.integers(0, 5, (2, vocab))
        kind = i % 7
        if kind == 1:
            p = q
        elif kind == 2:
            p, q = (np.eye(vocab)[rng.integers(vocab)], q)[:: rng.choice([-1, 1])]
        elif kind == 3:
            side = rng.random(vocab) < 0.5
            p, q = (p + 1) * side, (q + 1) * ~side
        elif kind == 4:
            p = q * (rng.random(vocab) < 0.6)
        elif kind == 5:
            p, q = rng.dirichlet(np.full(vocab, 0.3), 2)
        elif kind == 6 and not smooth:
            p = q + 1e-9 * rng.random(vocab)
        if p.sum() > 0 and q.sum() > 0:
            pairs.append((normalise(p), normalise(q)))
    return pairs


def draw_siblings(rng, rule, draft, n_siblings):
    """Siblings as the rule draws them, in places of which some hold none."""
    if rule.siblings == "iid":
        drawn = rng.choice(draft.size, n_siblings, p=draft)
    else:
        drawn = rng.permutation(np.flatnonzero(draft))
    if rng.random() < 0.3:  # the same once more, however they are drawn
        drawn[1:] = drawn[0]
    kept = min(len(drawn), n_siblings if rng.random() < 0.5 else rng.integers(n_siblings + 1))
    siblings = np.full(n_siblings, -1)
    siblings[np.sort(rng.permutation(n_siblings)[:kept])] = drawn[:kept]
    return siblings


def node_batches(rule, n_siblings=4, seed=0):
    """Batches (p, q, siblings), one for each V up to 8 and one of a large V."""
    rng = np.random.default_rng(seed)
    # where the supports meet in almost no mass, the solved constants hang on the last bit of a sum
    edges = [
        to_floats(pair[1:])
        for pair in EDGE_PAIRS
        if rule.name not in SOLVED or "tiny" not in pair.name
    ]
    for vocab in range(1, 9):
        rows = [pair for pair in edges if pair[0].size == vocab] * 4 + random_pairs(
            rng, vocab, 40, rule.name in SOLVED
        )
        yield with_siblings(rng, rule, rows, n_siblings)
    smooth = rng.normal(size=(6, 3000)) * 2.5
    rows = [
        (softmax(z), softmax(z + s * rng.normal(size=z.size)))
        for s, z in zip((0.1, 1, 2) * 2, smooth, strict=True)
    ]
    yield with_siblings(rng, rule, rows, n_siblings)


def with_siblings(rng, rule, pairs, n_siblings):
    drawn = [draw_siblings(rng, rule, q, n_siblings) for _, q in pairs]
    p, q = zip(*pairs, strict=True)
    return np.array(p), np.array(q), np.array(drawn)


def softmax(z):
    return normalise(np.exp(z - z.max()))


def to_tensors(*arrays, dtype=torch.float64):
    tensors = [torch.tensor(array) for array in arrays]
    return [t.to(dtype) if t.is_floating_point() else t for t in tensors]


def masses_of(accept):
    """Unconditional masses (B, K) of acceptance, and the probability (B,) that none is."""
    reach = np.cumprod(np.concatenate([np.ones((len(accept), 1)), 1 - accept], 1), 1)
    return accept * reach[:, :-1], reach[:, -1]
