"""Drafts: what proposes a tree of tokens, and what it has to remember between steps.

A cache holds the committed tokens, or all but the last few of them: the root of a tree is the last
committed token, which is fed with the first level.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..growmaps import GrowMap, parse_growmap
from ..trees import CompleteTree
from .cached_model import CachedModel
from .draft_tree import DraftTree, tree_mask
from .drawing import draw_siblings
from .models import import_torch, on_device

ToProbs = Callable[[Any], Any]
"""Logits (B, V) to probabilities (B, V_target)."""


@dataclass(frozen=True)
class TopKTree:
    """A tree that follows the draft's most probable tokens, as EAGLE-2 grows it.

    On every level the `width` nodes of the largest path probability get their `width` most probable
    tokens as children; of all nodes the `budget` with the largest path probability are kept.

    Parameters
    ----------
    depth : int
        Levels, the root included: at least 2.
    width : int
        Nodes that are expanded on a level, and children of each: at least 1.
    budget : int
        Nodes, the root included: at least 2.
    """

    depth: int
    width: int
    budget: int

    def __post_init__(self) -> None:
        for name, least in (("depth", 2), ("width", 1), ("budget", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} of a top-k tree is {value!r}: at least {least} is needed")

    @property
    def n_levels(self) -> int:
        """Drafted levels ``D``: a step yields at most ``D + 1`` tokens."""
        return self.depth - 1

    def __str__(self) -> str:
        return f"topk:{self.depth},{self.width},{self.budget}"


def parse_plan(tree: str | Path | CompleteTree | GrowMap | TopKTree) -> GrowMap | TopKTree:
    """Read a tree's name: ``d5b3``, a grow map's file, or ``topk:DEPTH,WIDTH,BUDGET``.

    Raises
    ------
    InputError, GrowMapError
        If there is no such tree.

    Examples
    --------
    >>> parse_plan("topk:6,4,24")
    TopKTree(depth=6, width=4, budget=24)
    """
    if isinstance(tree, TopKTree):
        return tree
    if isinstance(tree, str) and tree.startswith("topk:"):
        match = re.fullmatch(r"topk:(\d+),(\d+),(\d+)", tree)
        if match is None:
            raise InputError(f"tree {tree!r} is not of the form topk:DEPTH,WIDTH,BUDGET")
        return TopKTree(*map(int, match.groups()))
    return parse_growmap(tree)


class Drafter(ABC):
    """Something that drafts. `start`, then `grow` and `commit` in turn.

    Attributes
    ----------
    needs_states : bool
        Whether `commit` is to be given the target's final states.
    window : int or None
        Tokens that it has positions for.
    """

    needs_states = False
    window: int | None = None

    @abstractmethod
    def start(self, prompt_ids: Sequence[int], states: Any) -> None:
        """Begin a text; `states` (L, d) are the target's for all prompt tokens but the last, if needed."""

    @abstractmethod
    def feed(self, tree: DraftTree, nodes: Sequence[int]) -> Any:
        """Draft logits (M, V_draft) for what follows each of the nodes; their parents were fed before."""

    @abstractmethod
    def commit(self, tree: DraftTree, path: Sequence[int], states: Any) -> None:
        """Keep the root and the accepted nodes `path`; the step's last token is the next root.

        `states` (1 + len(path), d) are the target's, of the root and of the accepted nodes.
        """

    def grow(
        self,
        root_token: int,
        plan: GrowMap | TopKTree,
        scheme: str,
        to_probs: ToProbs,
        uniforms: NDArray[np.float64],
    ) -> DraftTree:
        """Draft one tree.

        Parameters
        ----------
        root_token : int
            The last committed token.
        plan : GrowMap or TopKTree
        scheme : {"iid", "without_replacement", "topk"}
        to_probs : callable
        uniforms : ndarray of float64, shape (n_nodes of the plan,)
            One per drawn node of a grow map; a `TopKTree` draws nothing.

        Returns
        -------
        DraftTree
            Without the nodes for which the draft had no token left, and what hangs below them.
        """
        tree = DraftTree.rooted(root_token)
        if isinstance(plan, TopKTree):
            return _grow_top(self, tree, plan, to_probs)
        # pairs of (node of the tree, node of the plan) that have children
        level = [(0, 0)] if plan.children[0] else []
        while level:
            logits = self.feed(tree, [node for node, _ in level])
            probs = to_probs(logits)
            widest = max(len(plan.children[planned]) for _, planned in level)
            numbers = np.zeros((len(level), widest))
            for i, (_, planned) in enumerate(level):
                kids = plan.children[planned]
                numbers[i, : len(kids)] = uniforms[list(kids)]
            drawn = draw_siblings(scheme, probs, on_device(numbers, probs.device)).tolist()
            following = []
            for (node, planned), row, raw, tokens in zip(level, probs, logits, drawn, strict=True):
                tree.rows[node], tree.logits[node] = row, raw
                for kid, token in zip(plan.children[planned], tokens, strict=False):
                    if token >= 0:
                        added = tree.add(node, token)
                        if plan.children[kid]:
                            following.append((added, kid))
            level = following
        return tree


def _grow_top(drafter: Drafter, tree: DraftTree, plan: TopKTree, to_probs: ToProbs) -> DraftTree:
    torch, _ = import_torch()
    path_probs = [1.0]
    level = [0]
    for _ in range(plan.n_levels):
        logits = drafter.feed(tree, level)
        probs = to_probs(logits)
        numbers = torch.zeros((len(level), plan.width), dtype=torch.float64, device=probs.device)
        drawn = draw_siblings("topk", probs, numbers)
        weights = probs.gather(-1, drawn.clamp(min=0)).tolist()
        added = []
        drafted = zip(level, probs, logits, drawn.tolist(), weights, strict=True)
        for node, row, raw, tokens, masses in drafted:
            tree.rows[node], tree.logits[node] = row, raw
            for token, mass in zip(tokens, masses, strict=True):
                if token >= 0:
                    added.append(tree.add(node, token))
                    path_probs.append(path_probs[node] * mass)
        level = sorted(added, key=lambda node: (-path_probs[node], node))[: plan.width]
        level.sort()
        if not level:
            break
    # A path is never more probable than its beginning, and comes after it among equals.
    kept = sorted(range(tree.n_nodes), key=lambda node: (-path_probs[node], node))[: plan.budget]
    return _subtree(tree, sorted(kept))


def _subtree(tree: DraftTree, kept: Sequence[int]) -> DraftTree:
    """The tree of the kept nodes, parents included, numbered anew."""
    number = {0: 0}
    smaller = DraftTree.rooted(tree.tokens[0])
    for node in kept[1:]:
        number[node] = smaller.add(number[tree.parents[node]], tree.tokens[node])
    for node, new in number.items():
        if smaller.children[new]:
            smaller.rows[new], smaller.logits[new] = tree.rows[node], tree.logits[node]
    smaller.origin = list(number)
    return smaller


class ModelDrafter(Drafter):
    """A second model, or an early exit of the target, with a cache of its own."""

    def __init__(self, model: CachedModel) -> None:
        self._model = model
        self.window = model.window
        self._waiting: list[int] = []
        self._slots: list[int] = []

    def start(self, prompt_ids: Sequence[int], states: Any) -> None:
        self._model.reset()
        self._waiting = list(prompt_ids[:-1])
        self._slots = []

    def feed(self, tree: DraftTree, nodes: Sequence[int]) -> Any:
        model = self._model
        if not self._slots:
            # the root, and what was committed since the last pass
            tokens = [*self._waiting, tree.tokens[0]]
            first = model.n_entries
            states = model.feed(tokens, range(first, first + len(tokens)))
            self._waiting, self._slots = [], [0]
            return model.logits(states[-1:])
        n_prefix = model.n_entries - len(self._slots)
        self._slots += nodes
        mask = tree_mask(tree, nodes, n_prefix, self._slots)
        tokens = [tree.tokens[node] for node in nodes]
        return model.logits(
            model.feed(tokens, [n_prefix + tree.depths[node] for node in nodes], mask)
        )

    def commit(self, tree: DraftTree, path: Sequence[int], states: Any) -> None:
        model = self._model
        n_prefix = model.n_entries - len(self._slots)
        place = {tree.origin[i] if tree.origin else i: i for i in range(tree.n_nodes)}
        at = {place[node]: i for i, node in enumerate(self._slots) if node in place}
        committed = [0, *path]
        fed = [node for node in committed if node in at]
        model.keep(n_prefix, [n_prefix + at[node] for node in fed])
        # Leaves are not fed while a tree grows; nor is the root, where the tree is the root alone.
        self._waiting += [tree.tokens[node] for node in committed if node not in at]
        self._slots = []
