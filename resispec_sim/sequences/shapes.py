"""Shapes of drafted trees, as nested tuples: a node is the tuple of its children."""

from typing import Any

from ..checks import check_whole
from ..errors import InputError
from ..trees import MAX_DEPTH, CompleteTree

Shape = tuple[Any, ...]
"""A node as the tuple of its children; a leaf is ``()``."""


def as_shape(tree: Any) -> Shape:
    """Bring a tree to its nested form.

    Parameters
    ----------
    tree : int, nested sequence, CompleteTree or grow map
        Nested counts: a whole number is a node with that many leaves, a sequence a node with these
        children. A grow map is anything with ``children``: lists of child indices, node 0 the root.

    Returns
    -------
    nested tuples

    Raises
    ------
    InputError
        If it is none of these, has no drafted level, or more than 64 levels.

    Examples
    --------
    >>> as_shape((2, 0))
    (((), ()), ())
    >>> as_shape(CompleteTree(depth=3, branching=1)) == chain_shape(2)
    True
    """
    if isinstance(tree, CompleteTree):
        shape: Shape = ()
        for _ in range(tree.n_levels):
            shape = (shape,) * tree.branching
    elif hasattr(tree, "children"):
        shape = _from_children(tree.children, 0, 0)
    else:
        shape = _from_counts(tree, 0)
    if not shape:
        raise InputError(f"tree {tree!r} has no drafted level: give the root at least one child")
    return shape


def chain_shape(depth: int) -> Shape:
    """One drafted token per level, on `depth` levels."""
    check_whole("the depth of a chain", depth, at_least=1)
    return as_shape(CompleteTree(depth=depth + 1, branching=1))


def n_levels(shape: Shape) -> int:
    """Drafted levels ``D``, the root not counted."""
    return max((1 + n_levels(child) for child in shape), default=0)


def n_drafted(shape: Shape) -> int:
    """Drafted nodes, the root not counted."""
    return sum(1 + n_drafted(child) for child in shape)


def is_chain(shape: Shape) -> bool:
    """Whether no node has two children."""
    return len(shape) <= 1 and all(map(is_chain, shape))


def _from_counts(tree: Any, level: int) -> Shape:
    _check_level(level)
    if isinstance(tree, list | tuple):
        return tuple(_from_counts(child, level + 1) for child in tree)
    return ((),) * check_whole("a number of children", tree, at_least=0)


def _from_children(children: Any, node: int, level: int) -> Shape:
    _check_level(level)
    return tuple(_from_children(children, child, level + 1) for child in children[node])


def _check_level(level: int) -> None:
    if level >= MAX_DEPTH:
        raise InputError(f"a tree of more than {MAX_DEPTH} levels, or one that contains itself")
