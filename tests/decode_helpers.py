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


def random_tree(rng, root, n_nodes):
    tree = DraftTree.rooted(root)
    for _ in range(n_nodes - 1):
        tree.add(int(rng.integers(tree.n_nodes)), int(rng.integers(2, 258)))
    return tree


def path_to(tree, node):
    return [tree.tokens[i] for i in tree.ancestors([node])[0][::-1]]


def tree_pass_error(model, n_steps, seed, n_nodes=20):
    """Largest error of any logit of random trees, over steps that keep the deepest path."""
    rng = np.random.default_rng(seed)
    cached = CachedModel(model)
    text = [3, 50, 7, 120]
    cached.feed(text, range(len(text)))
    error = 0.0
    for _ in range(n_steps):
        tree = random_tree(rng, int(rng.integers(2, 258)), n_nodes)
        n_prefix = cached.n_entries
        states = cached.feed(
            tree.tokens,
            [n_prefix + depth for depth in tree.depths],
            tree_mask(tree, range(n_nodes), n_prefix, range(n_nodes)),
        )
        logits = cached.logits(states)
        for node in range(tree.n_nodes):
            expected = sequential(model, [*text, *path_to(tree, node)])[-1]
            error = max(error, float((logits[node] - expected).abs().max()))
        deepest = max(range(n_nodes), key=lambda node: tree.depths[node])
        line = tree.ancestors([deepest])[0][::-1]
        cached.keep(n_prefix, [n_prefix + node for node in line])
        text += [tree.tokens[node] for node in line]
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
