"""What the decoder's rows must be: passes over the whole text, without a cache, on the model's device."""

import numpy as np
import torch

from resispec_sim.runtime.cached_model import CachedModel
from resispec_sim.runtime.decode import Decoder
from resispec_sim.runtime.draft_tree import DraftTree, tree_mask


def sequential(model, ids):
    """Logits (L, V) of a text."""
    with torch.inference_mode():
        tokens = torch.tensor([list(ids)], device=model.device)
        return model.model(input_ids=tokens, use_cache=False).logits[0]


def path_to(tree, node):
    """Tokens from the root of a tree to a node."""
    return [tree.tokens[i] for i in tree.ancestors([node])[0][::-1]]


def leaf_lines(tree):
    """For every leaf the nodes from the root to it."""
    leaves = [node for node in range(tree.n_nodes) if not tree.children[node]]
    return [line[::-1] for line in tree.ancestors(leaves)]


def random_tree(rng, n_nodes, vocab_size):
    """A tree whose nodes hang anywhere and carry any tokens but the two lowest, which are special."""
    tree = DraftTree.rooted(int(rng.integers(2, vocab_size)))
    for _ in range(n_nodes - 1):
        tree.add(int(rng.integers(tree.n_nodes)), int(rng.integers(2, vocab_size)))
    return tree


def tree_pass_error(model, n_steps, seed, n_nodes=20, text=(3, 50, 7, 120), n_lines=None):
    """Largest error of any logit of random trees, over steps that keep the deepest path.

    With `n_lines` only so many of a tree's longest paths are compared.
    """
    rng = np.random.default_rng(seed)
    cached = CachedModel(model)
    text = list(text)
    cached.feed(text, range(len(text)))
    error = 0.0
    for _ in range(n_steps):
        tree = random_tree(rng, n_nodes, model.vocab_size)
        n_prefix, nodes = cached.n_entries, range(n_nodes)
        positions = [n_prefix + depth for depth in tree.depths]
        states = cached.feed(tree.tokens, positions, tree_mask(tree, nodes, n_prefix, nodes))
        logits = cached.logits(states)
        lines = sorted(leaf_lines(tree), key=len, reverse=True)
        assert len(lines[0]) > 2
        for line in lines[:n_lines]:
            expected = sequential(model, [*text, *(tree.tokens[node] for node in line)])
            error = max(error, float((logits[line] - expected[len(text) :]).abs().max()))
        cached.keep(n_prefix, [n_prefix + node for node in lines[0]])
        text += [tree.tokens[node] for node in lines[0]]
    return error


def watched(target, draft, rule, tree, **options):
    """Decode, check every step's target rows against `sequential`, and give the draft's rows."""
    decoder = Decoder(target, draft, rule, tree, **options)
    logs = []
    found = decoder.decode(
        [3, 50, 7], max_new_tokens=14, seed=5, stop_at_eos=False, observe=logs.append
    )
    assert [token for log in logs for token in log.tokens] == found.token_ids
    for log in logs:
        drafted = log.tree
        logits = log.target_logits(range(drafted.n_nodes))
        for node in range(drafted.n_nodes):
            text = [*log.prefix[:-1], *path_to(drafted, node)]
            assert torch.allclose(logits[node], sequential(target, text)[-1], atol=1e-4)
            if drafted.rows[node] is not None:
                yield log, node, text, drafted.rows[node]


def model_row(draft, text):
    """Distribution (V,) of a second model after a text."""
    return torch.softmax(sequential(draft, text)[-1].double(), -1)


def exit_row(target, exit_draft, text):
    """The same of an early exit."""
    with torch.inference_mode():
        states = target.model(
            input_ids=torch.tensor([text], device=target.device),
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states
        return torch.softmax(exit_draft.logits(states[exit_draft.layer][0, -1]).double(), -1)


def eagle_row(head, prefix, text):
    """What a head says with true features up to the root and its own predictions below."""
    target = head.target
    device = target.device
    with torch.inference_mode():
        known = torch.tensor([prefix], device=device)
        features = target.model.base_model(known, use_cache=False)[0]
        features = torch.cat((0 * features[:, :1], features[:, :-1]), dim=1)
        while True:
            ids = torch.tensor([text[: features.shape[1]]], device=device)
            places = torch.arange(ids.shape[1], device=device)[None]
            predicted, logits = head.forward(ids, features, places)
            if ids.shape[1] == len(text):
                return torch.softmax(logits[0, -1].double(), -1)
            features = torch.cat((features, predicted[:, -1:]), dim=1)
