"""A drafted tree of tokens, and the attention mask that lets a model score it in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class DraftTree:
    """Tokens that a draft proposes, as a tree whose root is the last committed token.

    Nodes are numbered in the order in which they were added; a parent comes before its children.

    Attributes
    ----------
    tokens : list of int
        (N,) token of every node.
    parents : list of int
        (N,) parent of every node, -1 for the root.
    depths : list of int
        (N,) levels below the root.
    children : list of list of int
        (N,) children in the order in which they were drawn: sibling 1, sibling 2, ...
    rows : list of tensor or None
        (N,) for every node with children the distribution (V,) that they were drawn from.
    logits : list of tensor or None
        (N,) the draft's logits (V_draft,) behind each of `rows`.
    origin : list of int
        (N,) the numbers that the nodes had when they were fed to the draft; empty where they have them
        still.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    children: list[list[int]] = field(default_factory=lambda: [[]])
    rows: list[Any] = field(default_factory=lambda: [None])
    logits: list[Any] = field(default_factory=lambda: [None])
    origin: list[int] = field(default_factory=list)

    @classmethod
    def rooted(cls, token: int) -> DraftTree:
        """The tree of a root alone."""
        return cls([token])

    @property
    def n_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.tokens)

    def add(self, parent: int, token: int) -> int:
        """Append a child to a node; returns the child's number."""
        node = self.n_nodes
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.children.append([])
        self.rows.append(None)
        self.logits.append(None)
        self.children[parent].append(node)
        return node

    def ancestors(self, nodes: Sequence[int]) -> list[list[int]]:
        """For each of the nodes itself and everything above it."""
        found = []
        for node in nodes:
            line = []
            while node >= 0:
                line.append(node)
                node = self.parents[node]
            found.append(line)
        return found


def tree_mask(
    tree: DraftTree, nodes: Sequence[int], n_prefix: int, slots: Sequence[int]
) -> NDArray[np.bool_]:
    """Which entries of a cache the nodes may attend to.

    Parameters
    ----------
    tree : DraftTree
    nodes : sequence of int
        The M nodes that are fed now.
    n_prefix : int
        Entries of committed tokens, which every node sees.
    slots : sequence of int
        (S,) the node in every entry behind them, those of `nodes` included.

    Returns
    -------
    ndarray of bool, shape (M, n_prefix + S)
        True where a node attends: to the prefix, its ancestors and itself.

    Examples
    --------
    >>> tree = DraftTree.rooted(7)
    >>> tree.add(0, 3), tree.add(0, 4), tree.add(1, 5)
    (1, 2, 3)
    >>> tree_mask(tree, [2, 3], 1, [0, 1, 2, 3]).astype(int).tolist()
    [[1, 1, 0, 1, 0], [1, 1, 1, 0, 1]]
    """
    place = {node: i for i, node in enumerate(slots)}
    mask = np.zeros((len(nodes), n_prefix + len(slots)), dtype=bool)
    mask[:, :n_prefix] = True
    for i, line in enumerate(tree.ancestors(nodes)):
        mask[i, [n_prefix + place[node] for node in line]] = True
    return mask
