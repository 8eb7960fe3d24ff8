"""Drafting trees with an EAGLE head; see `EagleHead` for what its cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from .draft_tree import DraftTree, tree_mask
from .drafters import Drafter
from .eagle import EagleHead
from .models import import_torch, on_device


class EagleDrafter(Drafter):
    """A head that continues the target's features; the target hands them over after every step."""

    needs_states = True

    def __init__(self, head: EagleHead) -> None:
        self._head = head
        self._torch, _ = import_torch()
        self._device = head.target.device
        self.start([0], None)

    def start(self, prompt_ids: Sequence[int], states: Any) -> None:
        torch = self._torch
        self._cache = self._head.new_cache()
        self._n_true = 0
        width = self._head.module["fc"].weight.shape[0]
        dtype = self._head.target.model.dtype
        zero = torch.zeros((1, width), dtype=dtype, device=self._device)
        # a token is fed with the feature of the token before it; the first has none
        self._waiting = list(prompt_ids[:-1])
        if states is not None and states.shape[1] != width:
            raise InputError(
                f"the target's states have {states.shape[1]} numbers, the head's features {width}"
            )
        # a target on several GPUs has its last states on another than its embedding
        self._features = zero if states is None else torch.cat((zero, states.to(self._device)))
        self._slots: list[int] = []
        self._predicted: dict[int, Any] = {}

    def feed(self, tree: DraftTree, nodes: Sequence[int]) -> Any:
        torch = self._torch
        with torch.inference_mode():
            if not self._slots:
                tokens = [*self._waiting, tree.tokens[0]]
                features, mask = self._features, None
                positions = list(range(self._n_true, self._n_true + len(tokens)))
                self._n_true += len(tokens)
                # the last feature stays: it is the next root's where nothing of this tree is accepted
                self._waiting, self._features = [], self._features[-1:]
                self._slots = [0]
            else:
                below = [node for node in self._slots if node] + list(nodes)
                seen = tree_mask(tree, nodes, self._n_true - 1, [0, *below])
                mask = on_device(seen, self._device)[None, None]
                self._slots = [0, *below]
                tokens = [tree.tokens[node] for node in nodes]
                features = torch.stack([self._predicted[tree.parents[node]] for node in nodes])
                positions = [self._n_true - 1 + tree.depths[node] for node in nodes]
            predicted, logits = self._head.forward(
                on_device([tokens], self._device),
                features[None],
                on_device([positions], self._device),
                mask,
                self._cache,
            )
        fed = [0] if mask is None else list(nodes)
        rows = predicted[0][-1:] if mask is None else predicted[0]
        self._predicted |= dict(zip(fed, rows, strict=True))
        return logits[0][-1:] if mask is None else logits[0]

    def commit(self, tree: DraftTree, path: Sequence[int], states: Any) -> None:
        torch, states = self._torch, states.to(self._device)
        accepted = [tree.tokens[node] for node in path]
        if self._slots:
            self._head.crop(self._cache, self._n_true)
            self._waiting, self._features = accepted, states
        else:
            # the tree was the root alone, which has not been fed
            self._waiting += [tree.tokens[0], *accepted]
            self._features = torch.cat((self._features, states))
        self._slots, self._predicted = [], {}
