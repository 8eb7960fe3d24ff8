"""Recorded trees written by hand: models, rules and decoders are not needed to read them."""

import itertools
from fractions import Fraction

import msgspec
import numpy as np

from resispec_sim.tree_dumps import TreeManifest, TreeStep
from resispec_sim.tree_files import write_step

PARENTS = [-1, 0, 0, 1, 1, 2, 2]  # d3b2
INNER = [0, 1, 2]
VOCAB_SIZE = 4


def fractions(rng, positive):
    """Probabilities with small denominators; some are 0 unless they must be positive."""
    weights = [int(w) for w in rng.integers(1 if positive else 0, 6, size=VOCAB_SIZE)]
    weights[int(rng.integers(VOCAB_SIZE))] += 1
    return [Fraction(w, sum(weights)) for w in weights]


def random_tree(rng, siblings):
    """Tokens, and exact target and draft rows per node, of a tree whose siblings are drawn in a way."""
    targets = [fractions(rng, False) for _ in PARENTS]
    drafts = {node: fractions(rng, True) for node in INNER}
    tokens = [0] * len(PARENTS)
    for node in INNER:
        kids = [kid for kid, parent in enumerate(PARENTS) if parent == node]
        if siblings == "iid":
            drawn = rng.integers(VOCAB_SIZE, size=len(kids))
        elif siblings == "without_replacement":
            drawn = rng.permutation(VOCAB_SIZE)[: len(kids)]
        else:
            drawn = sorted(range(VOCAB_SIZE), key=lambda x: (-drafts[node][x], x))[: len(kids)]
        for kid, token in zip(kids, drawn, strict=True):
            tokens[kid] = int(token)
    return tokens, targets, drafts


def exact_step(tokens, targets, drafts):
    """The tree as a step whose "logits" are the probabilities themselves, as fractions."""
    none = np.zeros(0, dtype=np.int64)
    return TreeStep(
        text=0, step=0, prefix=np.array([0]), tokens=np.array(tokens), parents=np.array(PARENTS),
        target_logits=targets, draft_logits=drafts, path=none, emitted=none, cut=False,
    )  # fmt: skip


def write_manifest(folder, rule="specinfer", siblings="iid", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "schema_version": 1, "kind": "trees", "target": {"name": "a"}, "draft": {"name": "b"},
        "rule": rule, "siblings": siblings, "tree": "d3b2", "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": VOCAB_SIZE, "temperature": 1.0, "top_k": None, "top_p": None,
        "dtype": "float32", "provenance": {},
    }  # fmt: skip
    signed = msgspec.convert(manifest | changes, TreeManifest).signed()
    (folder / "manifest.json").write_bytes(msgspec.json.encode(signed))


def write_tree(folder, text, step, tree, path=(), last=0, cut=False, **changes):
    tokens, targets, drafts = tree
    with np.errstate(divide="ignore"):
        arrays = {
            "prefix": np.array([3, 1, 0]),
            "tokens": np.array(tokens),
            "parents": np.array(PARENTS),
            "inner": np.array(INNER),
            "end_tokens": np.zeros(0, dtype=np.int64),
            "path": np.array(path, dtype=np.int64),
            "emitted": np.array([*(tokens[node] for node in path), last]),
            "target_logits": np.log(np.array(targets, dtype=np.float64)).astype(np.float32),
            "draft_logits": np.log(
                np.array([drafts[node] for node in INNER], dtype=np.float64)
            ).astype(np.float32),
        }
    return write_step(folder, text, step, arrays | changes, {"cut": str(int(cut))})


def write_trees(folder, rule="specinfer", siblings="iid", *, n_texts=3, n_steps=4, seed=0):
    """A dump of random trees with random accepted paths; the last step of every text is cut."""
    rng = np.random.default_rng(seed)
    write_manifest(folder, rule, siblings)
    trees = {}
    for text, step in itertools.product(range(n_texts), range(n_steps)):
        trees[text, step] = random_tree(rng, siblings)
        path = [(), (1,), (1, 4), (2, 5)][int(rng.integers(4))]
        write_tree(folder, text, step, trees[text, step], path, cut=step == n_steps - 1)
    return trees
