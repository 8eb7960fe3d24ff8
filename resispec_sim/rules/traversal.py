"""Traversal verification: a drafted tree is judged leaf by leaf, from whole paths upwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from resispec_sim.checks import check_whole
from resispec_sim.errors import InputError
from resispec_sim.rules.base import Rule, normalised, to_array, total_of
from resispec_sim.rules.block import as_rows, next_ceiling, stop_prob
from resispec_sim.rules.siblings import Siblings, next_draw


@dataclass(frozen=True)
class Traversal(Rule):
    """Traversal verification of a drafted tree.

    Every node has a ceiling ``a``, a target ``M_b`` and a draft ``M_s``, the law of its next child. The
    root has ``a = 1``; a child of token ``x`` gets ``a = min(1, a M_b(x) / M_s(x))`` from its parent's
    values at the time when it is reached. The first leaf is accepted, with its whole path, with probability
    ``a``; the next token is then drawn from its ``M_b``. Else the leaf is deleted and its parent
    changes: with ``S = sum (a M_b - M_s)+``, ``M_b`` becomes ``norm((a M_b - M_s)+)`` and ``a`` becomes
    ``S / (S + 1 - a)``; ``M_s`` then becomes the law of the next child given the deleted ones, which
    is another one only if siblings are not independent. A parent without children left is a leaf.

    Exact for every target, draft and tree. On a chain it is block verification, never behind token-wise
    rejection; on a tree with branches a token-wise rule can accept more.

    References
    ----------
    Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding", arXiv:2505.12398.

    Examples
    --------
    >>> Traversal().label, Traversal.siblings
    ('traversal', 'tree')
    """

    name: ClassVar[str] = "traversal"
    exact: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = "tree"
    complexity: ClassVar[str] = "N V for a tree of N nodes"
    paper: ClassVar[str] = "Weng et al., arXiv:2505.12398"


@dataclass(frozen=True, eq=False)
class DraftedTree:
    """A drafted tree with what its nodes were drawn from.

    Parameters
    ----------
    children : sequence of sequence of int, (N,)
        Children of each node in the order in which they were drawn; node 0 is the root.
    tokens : sequence of int, (N,)
        The root's entry is not looked at.
    target_probs : (N, V) of Fraction or of float
        The target after the path to each node.
    draft_probs : (N, V) of Fraction or of float
        The draft after the path to each node. Those of leaves are not looked at.
    siblings : {"iid", "without_replacement", "topk"}
        How children are drawn from it.

    Raises
    ------
    InputError
        If the parts do not fit together, some node is not reached once from the root, or a child
        cannot have been drawn.
    DistributionError
        If a row is no distribution.
    """

    children: Sequence[Sequence[int]]
    tokens: Sequence[int]
    target_probs: Any
    draft_probs: Any
    siblings: Siblings = "iid"

    def __post_init__(self) -> None:
        n_nodes = len(self.children)
        sizes = {n_nodes, len(self.tokens), len(self.target_probs), len(self.draft_probs)}
        if len(sizes) != 1 or _reached(self.children) != list(range(n_nodes)):
            raise InputError(
                f"children {self.children}, {len(self.tokens)} tokens, {len(self.target_probs)} target "
                f"and {len(self.draft_probs)} draft rows are no tree: each node but the root, 0, must be "
                "the child of one other and have a token and two rows"
            )
        rows = as_rows("target_probs", self.target_probs), as_rows("draft_probs", self.draft_probs)
        object.__setattr__(self, "target_probs", rows[0])
        object.__setattr__(self, "draft_probs", rows[1])


def _reached(children: Sequence[Sequence[int]]) -> list[int]:
    """Nodes in the order of their numbers, as often as they are reached from the root."""
    found = [0]
    for node in found:
        if not 0 <= node < len(children) or len(found) > len(children):
            break
        found += children[node]
    return sorted(found)


class TreeLaw(NamedTuple):
    """What traversal verification does with one drafted tree of ``N`` nodes.

    Attributes
    ----------
    order : tuple of int, (N,)
        Nodes in the order in which they are judged.
    accepted : ndarray (N,)
        Probability that the path to each node is the accepted one, by node.
    next_probs : ndarray (N, V)
        Law of the bonus token after each node.
    """

    order: tuple[int, ...]
    accepted: np.ndarray
    next_probs: np.ndarray


class Node(NamedTuple):
    """State of a node: ceiling ``a``, target ``M_b`` (V,), draft ``M_s`` (V,) of its next child."""

    ceiling: Any
    target: np.ndarray
    draft: np.ndarray | None  # None where no further child can be drawn


def child_ceiling(node: Node, token: int) -> Any:
    """The ceiling ``min(1, a M_b(token) / M_s(token))`` of a child."""
    assert node.draft is not None
    return next_ceiling(node.ceiling, node.target[token], node.draft[token])


def after_deletion(node: Node, next_draft: np.ndarray | None) -> Node:
    """The state of a node once a child of it was deleted.

    Parameters
    ----------
    node : Node
    next_draft : ndarray (V,), optional
        Law of the next child given the deleted ones.
    """
    # The old draft judges the deleted child; the new one only takes over afterwards.
    excess = np.maximum(node.ceiling * node.target - node.draft, 0)
    ceiling = stop_prob(total_of(excess), node.ceiling)
    return Node(ceiling, normalised(excess, node.target), next_draft)


def verify_tree(tree: DraftedTree) -> TreeLaw:
    """Law of the accepted node and of the bonus token, given the drafted tree.

    Parameters
    ----------
    tree : DraftedTree

    Returns
    -------
    TreeLaw

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))
    >>> tree = DraftedTree([[1, 2], [], []], [0, 0, 0], [p] * 3, [q] * 3)
    >>> [str(mass) for mass in verify_tree(tree).accepted]
    ['1/2', '1/2', '0']
    """
    accepted: list[Any] = [None] * len(tree.children)
    bonus: list[Any] = [None] * len(tree.children)
    order: list[int] = []

    def visit(index: int, ceiling: Any, reach: Any) -> Any:
        """Judge a subtree; gives the probability that nothing was accepted up to its end."""
        draft, drawn = tree.draft_probs[index], list[int]()
        node = Node(ceiling, tree.target_probs[index], next_draw(tree.siblings, draft, drawn))
        for child in tree.children[index]:
            token = check_whole("a drafted token", tree.tokens[child], at_least=0)
            if node.draft is None or token >= len(node.draft) or not node.draft[token] > 0:
                raise InputError(
                    f"node {child}: token {token} cannot be drawn after {drawn} as a child of node "
                    f"{index} ({tree.siblings}); give the rows that it was drawn from"
                )
            reach = visit(child, child_ceiling(node, token), reach)
            drawn.append(token)
            node = after_deletion(node, next_draw(tree.siblings, draft, drawn))
        accepted[index], bonus[index] = reach * node.ceiling, node.target
        order.append(index)
        return reach * (1 - node.ceiling)

    one = to_array([1])[0] if tree.target_probs[0].dtype == object else np.float64(1)
    visit(0, one, one)
    return TreeLaw(tuple(order), np.array(accepted), np.stack(bonus))
