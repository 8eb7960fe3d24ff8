"""Grow maps: ordered draft trees of any shape, their JSON form, and Sequoia's files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from .checks import as_list, check_whole
from .errors import GrowMapError, InputError
from .trees import CompleteTree, parse_tree

SCHEMA_VERSION = 1
MAX_NODES = 65_536


@dataclass(frozen=True)
class GrowMap:
    """An ordered draft tree: node 0 is the root, the text that is already there.

    Parameters
    ----------
    children : sequence of sequence of int
        For every node its children: sibling 1, sibling 2, and so on, in ascending node numbers.

    Raises
    ------
    GrowMapError
        If this is no tree with root 0, or siblings are out of order; names node and value.

    Examples
    --------
    >>> tree = GrowMap([[1, 2], [3], [], []])
    >>> tree.n_nodes, tree.depth, tree.child_counts
    (4, 3, (2, 1, 0, 0))
    >>> tree.levels
    ((0,), (1, 2), (3,))
    """

    children: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        # Callers may give lists; a frozen value holds tuples.
        object.__setattr__(self, "children", _as_children(self.children))
        _check_parents(self.children)
        reached = {node for level in self.levels for node in level}
        for node in range(len(self.children)):
            if node not in reached:
                raise GrowMapError(
                    f"node {node} of the grow map cannot be reached from the root: its ancestors form "
                    "a cycle"
                )

    @property
    def n_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.children)

    @property
    def depth(self) -> int:
        """Levels, the root's included."""
        return len(self.levels)

    @property
    def n_levels(self) -> int:
        """Drafted levels ``D``: a step yields at most ``D + 1`` tokens."""
        return self.depth - 1

    @property
    def child_counts(self) -> tuple[int, ...]:
        """Children of every node."""
        return tuple(map(len, self.children))

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Nodes by level, the root's first."""
        # Ends for any graph in which every node has one parent and the root has none.
        found: list[tuple[int, ...]] = [(0,)]
        while below := tuple(child for node in found[-1] for child in self.children[node]):
            found.append(below)
        return tuple(found)

    @property
    def branching(self) -> tuple[int, ...]:
        """Largest number of children on every level but the last."""
        return tuple(max(len(self.children[node]) for node in level) for level in self.levels[:-1])

    def __str__(self) -> str:
        for level in self.levels[:-1]:
            if {len(self.children[node]) for node in level} != {self.branching[0]}:
                break
        else:
            if self.depth > 1:
                return f"d{self.depth}b{self.branching[0]}"
        return f"{self.n_nodes} node{'s' if self.n_nodes > 1 else ''} on {self.depth} levels"

    @classmethod
    def complete(cls, tree: str | CompleteTree) -> GrowMap:
        """The grow map of a complete tree, numbered level by level.

        Parameters
        ----------
        tree : str or CompleteTree
            Such as ``"d5b3"``.

        Raises
        ------
        InputError
            If there is no such tree, or it has more than 65,536 nodes.

        Examples
        --------
        >>> GrowMap.complete("d3b2").children
        ((1, 2), (3, 4), (5, 6), (), (), (), ())
        """
        shape = parse_tree(tree) if isinstance(tree, str) else tree
        if shape.n_nodes > MAX_NODES:
            raise InputError(f"tree {shape} has {shape.n_nodes:,} nodes: at most {MAX_NODES:,}")
        b = shape.branching
        n_inner = sum(b**level for level in range(shape.n_levels))
        inner = [tuple(range(1 + b * node, 1 + b * (node + 1))) for node in range(n_inner)]
        return cls((*inner, *[()] * (shape.n_nodes - n_inner)))

    def to_json(self) -> str:
        """Return the JSON form: ``schema_version`` and the ``children`` of every node.

        Examples
        --------
        >>> GrowMap([[1], []]).to_json()
        '{"schema_version":1,"children":[[1],[]]}'
        """
        return msgspec.json.encode(_Stored(SCHEMA_VERSION, _as_children(self.children))).decode()

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the grow map") -> GrowMap:
        """Read the JSON form; `where` names it in errors.

        Raises
        ------
        GrowMapError
            If it is not that form: another version, an unknown field, no tree.
        """
        try:
            version = msgspec.json.decode(text, type=_VersionOnly).schema_version
            if version != SCHEMA_VERSION:
                raise GrowMapError(
                    f"{where}: schema version {version}, but this release reads version "
                    f"{SCHEMA_VERSION}"
                )
            stored = msgspec.json.decode(text, type=_Stored)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise GrowMapError(f"{where}: not the JSON form of a grow map: {error}") from error
        return _named(where, stored.children)


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    children: tuple[tuple[int, ...], ...]


class _VersionOnly(msgspec.Struct):
    schema_version: int


def parse_growmap(tree: str | os.PathLike[str] | CompleteTree | GrowMap) -> GrowMap:
    """Take a grow map as it is, or read one: ``d5b3``, a ``.json`` file, or Sequoia's ``.pt`` file.

    Parameters
    ----------
    tree : str, path, CompleteTree or GrowMap

    Raises
    ------
    GrowMapError
        If the file holds no grow map.
    InputError
        If the text is neither such a path nor the name of a tree.
    ModelError
        If torch, which reads ``.pt`` files, is not installed.

    Examples
    --------
    >>> parse_growmap("d2b3").n_nodes
    4
    """
    if isinstance(tree, GrowMap):
        return tree
    if isinstance(tree, CompleteTree):
        return GrowMap.complete(tree)
    if not isinstance(tree, str | os.PathLike):
        raise InputError(f"tree is {tree!r}: give a name such as d5b3, a file, or a GrowMap")
    path = Path(tree)
    if path.suffix == ".json":
        return GrowMap.from_json(_read(path), str(path))
    if path.suffix == ".pt":
        from .sequoia import read_sequoia

        return read_sequoia(path)
    try:
        return GrowMap.complete(str(tree))
    except InputError as error:
        raise InputError(f"{error}; a grow map's file ends in .json or .pt") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GrowMapError(f"{path}: cannot be read ({error.strerror})") from error


def _named(where: str, children: Any) -> GrowMap:
    try:
        return GrowMap(children)
    except GrowMapError as error:
        raise GrowMapError(f"{where}: {error}") from None


def _as_children(children: Any) -> tuple[tuple[int, ...], ...]:
    found = []
    for node, of_node in enumerate(as_list(children)):
        if isinstance(of_node, str) or not isinstance(of_node, Sequence):
            raise GrowMapError(f"children of node {node}: {of_node!r} is not a list of nodes")
        try:
            found.append(tuple(check_whole("a child", child) for child in of_node))
        except InputError as error:
            raise GrowMapError(f"children of node {node}: {error}") from None
    if not 1 <= len(found) <= MAX_NODES:
        raise GrowMapError(f"the grow map has {len(found):,} nodes: give 1 to {MAX_NODES:,}")
    return tuple(found)


def _check_parents(children: Sequence[Sequence[int]]) -> None:
    parents: dict[int, int] = {}
    for node, of_node in enumerate(children):
        for child in of_node:
            if not 0 <= child < len(children):
                raise GrowMapError(
                    f"node {node} has the child {child}, but the nodes are 0 to {len(children) - 1}"
                )
            if child == 0:
                raise GrowMapError(f"node {node} has the child 0, which is the root")
            if child in parents:
                raise GrowMapError(f"node {child} has two parents: {parents[child]} and {node}")
            parents[child] = node
        for earlier, later in pairwise(of_node):
            if later < earlier:
                raise GrowMapError(
                    f"children of node {node}: {later} comes after {earlier}; list siblings in "
                    "ascending order, the first tested first"
                )
    for node in range(1, len(children)):
        if node not in parents:
            raise GrowMapError(
                f"node {node} of the grow map is an orphan: no node has it as a child"
            )
