"""Live models against passes without a cache, and against the greedy search of transformers."""

from dataclasses import dataclass, field

import torch

from resispec_sim.growmaps import GrowMap
from resispec_sim.runtime.cached_model import CachedModel
from resispec_sim.runtime.draft_tree import DraftTree, tree_mask
from resispec_sim.runtime.drafters import TopKTree

LOPSIDED = GrowMap([[1, 2, 3], [4, 5], [6], [], [7], [], [], []])
# How far the logits of one text may differ between two passes in float32, and tokens that change places.
TOLERANCE = 1e-4
# Rules with the trees that they can walk: every kind of tree and of drawing.
GREEDY_CASES = [
    ("specinfer", "d3b2"),
    ("rrs-wor", LOPSIDED),
    ("target-only", TopKTree(4, 2, 6)),
    ("resispec", "d4b2"),
    ("exact-shaping", "d2b1"),
    ("resispec", "d3b2"),
    ("exact-shaping", "d4b2"),
]


def sequential(model, ids):
    """Logits (N, V) after every token of one text, in a pass without a cache."""
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


def path_to(tree, node):
    """Tokens from the root of a tree to a node."""
    return [tree.tokens[i] for i in tree.ancestors([node])[0][::-1]]


def leaf_lines(tree):
    """For every leaf the nodes from the root to it."""
    leaves = [node for node in range(tree.n_nodes) if not tree.children[node]]
    return [line[::-1] for line in tree.ancestors(leaves)]


def random_tree(rng, root, n_nodes, vocab_size):
    """A tree whose nodes hang anywhere and carry any tokens but the two lowest, which are special."""
    tree = DraftTree.rooted(root)
    for _ in range(n_nodes - 1):
        tree.add(int(rng.integers(tree.n_nodes)), int(rng.integers(2, vocab_size)))
    return tree


def worst_tree_error(model, text, rng, *, n_steps, n_nodes, n_lines=None):
    """Largest difference of a tree's logits from sequential ones, over steps that keep the deepest path.

    With `n_lines` only so many of a tree's longest paths are compared.
    """
    cached = CachedModel(model)
    text = list(text)
    cached.feed(text, range(len(text)))
    worst = 0.0
    for _ in range(n_steps):
        root = int(rng.integers(2, model.vocab_size))
        tree = random_tree(rng, root, n_nodes, model.vocab_size)
        n_prefix, nodes = cached.n_entries, range(n_nodes)
        positions = [n_prefix + depth for depth in tree.depths]
        states = cached.feed(tree.tokens, positions, tree_mask(tree, nodes, n_prefix, nodes))
        logits = cached.logits(states)
        lines = sorted(leaf_lines(tree), key=len, reverse=True)
        for line in lines[:n_lines]:
            expected = sequential(model, [*text, *(tree.tokens[node] for node in line)])
            error = (logits[line] - expected[len(text) :]).abs().max()
            worst = max(worst, float(error))
        assert len(lines[0]) > 2
        cached.keep(n_prefix, [n_prefix + node for node in lines[0]])
        text += [tree.tokens[node] for node in lines[0]]
    return worst


def generate_greedily(model, ids, n_tokens):
    """What `generate` of transformers appends, with no end-of-text token."""
    with torch.inference_mode():
        whole = model.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=n_tokens,
            eos_token_id=model.vocab_size,  # none of its tokens
            pad_token_id=0,
        )
    return whole[0, len(ids) :].tolist()


@dataclass
class GreedyRun:
    """Decoded texts beside those of `generate`: tokens that agree, near ties, accepted tokens."""

    n_equal: int = 0
    gaps: list[float] = field(default_factory=list)
    n_accepted: int = 0
    n_steps: int = 0

    def add(self, model, found, expected):
        """Compare a text to its end, or to a near tie: behind it the two are different texts."""
        assert len(found.token_ids) == len(expected)
        self.n_accepted += sum(step.n_accepted for step in found.steps)
        self.n_steps += len(found.steps)
        pairs = list(zip(found.token_ids, expected, strict=True))
        i = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
        self.n_equal += i
        if i < len(pairs):
            logits = sequential(model, [*found.prompt_ids, *expected[:i]])[-1]
            gap = float((logits.max() - logits[pairs[i][0]]).abs())
            assert gap < TOLERANCE, f"token {i} of {found.prompt_ids}: {pairs[i]}, gap {gap}"
            self.gaps.append(gap)
