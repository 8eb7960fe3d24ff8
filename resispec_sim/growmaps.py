"""Grow maps: ordered draft trees of any shape, their JSON form, and Sequoia's files."""

from __future__ import annotations

import json
import operator
import os
import reprlib
import stat
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from .errors import GrowMapError, InputError
from .trees import CompleteTree, parse_tree

SCHEMA_VERSION = 1
MAX_NODES = 65_536
MAX_LEVELS = 1024  # far beyond any draft, and few enough for an array per level
MAX_JSON_BYTES = 2 << 20  # the largest map takes 0.7 MB, 1.7 MB where it is indented


@dataclass(frozen=True)
class GrowMap:
    """An ordered draft tree: node 0 is the root, the text that is already there.

    Parameters
    ----------
    children : sequence of sequence of int
        For every node its children: sibling 1, sibling 2, and so on, in ascending node numbers. At
        most 65,536 nodes on 1,024 levels, the root's included.

    Raises
    ------
    GrowMapError
        If this is no tree with root 0, it is too large, or siblings are out of order; names node and
        value.

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
        if self.depth > MAX_LEVELS:
            raise GrowMapError(
                f"the grow map has {self.depth:,} levels, the root's included: at most {MAX_LEVELS:,}"
            )
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
        counts = {len(self.children[node]) for level in self.levels[:-1] for node in level}
        if len(counts) == 1:
            return f"d{self.depth}b{counts.pop()}"
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
        stored = {"schema_version": SCHEMA_VERSION, "children": self.children}
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the grow map") -> GrowMap:
        """Read the JSON form; `where` names it in errors.

        Raises
        ------
        GrowMapError
            If it is not that form: another version, an unknown or repeated field, no tree, or more
            than 2 MiB.
        """
        stored = _parse_json(text, where)
        if not isinstance(stored, dict):
            raise GrowMapError(
                f"{where}: not the JSON form of a grow map: no object, but {short(stored)}"
            )
        for key in stored:
            if key not in ("schema_version", "children"):
                raise GrowMapError(
                    f"{where}: unknown field {short(key)}; the JSON form has schema_version and children"
                )
        version = stored.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            found = (
                "lacks its schema_version"
                if version is None
                else f"schema version {short(version)}"
            )
            raise GrowMapError(f"{where}: {found}; this release reads version {SCHEMA_VERSION}")
        if not isinstance(stored.get("children"), list):
            raise GrowMapError(
                f"{where}: children is {short(stored.get('children'))}, not a list with the children of "
                "every node"
            )
        try:
            return cls(stored["children"])
        except GrowMapError as error:
            raise GrowMapError(f"{where}: {error}") from None


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
        return GrowMap.from_json(read_file(path, MAX_JSON_BYTES), str(path))
    if path.suffix == ".pt":
        from .sequoia import read_sequoia

        return read_sequoia(path)
    try:
        return GrowMap.complete(str(tree))
    except InputError as error:
        raise InputError(f"{error}; a grow map's file ends in .json or .pt") from None


def check_file(path: Path, largest: int) -> int:
    """Return the size of a regular file of at most `largest` bytes (`GrowMapError`)."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = str(path).replace("\0", "\\0")
        raise GrowMapError(f"{shown}: cannot be read ({reason})") from None
    if not stat.S_ISREG(found.st_mode):
        raise GrowMapError(f"{path}: cannot be read (it is not a file)")
    if found.st_size > largest:
        raise GrowMapError(
            f"{path}: has {found.st_size:,} bytes; a file of a grow map has at most {largest:,}"
        )
    return found.st_size


def read_file(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes (`GrowMapError`)."""
    check_file(path, largest)
    try:
        return path.read_bytes()
    except OSError as error:
        raise GrowMapError(f"{path}: cannot be read ({error.strerror})") from None


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print more than 4,300 digits.
        return repr(x) if x.bit_length() < 200 else f"an int of {x.bit_length()} bits"


def short(value: Any) -> str:
    """A value for an error message, in at most 60 characters, whatever its size and nesting."""
    text = _Short().repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parse_json(text: str | bytes, where: str) -> Any:
    if len(text) > MAX_JSON_BYTES:
        raise GrowMapError(
            f"{where}: has {len(text):,} bytes; the JSON form of a grow map has at most "
            f"{MAX_JSON_BYTES:,}"
        )

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
            raise GrowMapError(f"{where}: the field {short(twice)} occurs twice")
        return found

    try:
        # Bytes would be guessed to be UTF-16 or UTF-32 too.
        return json.loads(
            text.decode() if isinstance(text, bytes) else text, object_pairs_hook=once
        )
    except GrowMapError:
        raise
    except RecursionError:
        raise GrowMapError(f"{where}: not the JSON form of a grow map: nested too deeply") from None
    except ValueError as error:
        raise GrowMapError(f"{where}: not the JSON form of a grow map: {error}") from error


def _as_children(children: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(children, str | bytes) or not isinstance(children, Iterable):
        raise GrowMapError(f"children is {short(children)}: give a list of children per node")
    given = list(islice(children, MAX_NODES + 1))
    if not 1 <= len(given) <= MAX_NODES:
        count = len(children) if isinstance(children, Sized) else len(given)
        raise GrowMapError(f"the grow map has {count:,} nodes: give 1 to {MAX_NODES:,}")
    found = []
    n_children = 0
    for node, of_node in enumerate(given):
        if isinstance(of_node, str | bytes) or not isinstance(of_node, Sequence):
            raise GrowMapError(f"children of node {node}: {short(of_node)} is not a list of nodes")
        n_children += len(of_node)
        if n_children > MAX_NODES:
            raise GrowMapError(
                f"nodes 0 to {node} of the grow map have {n_children:,} children: at most "
                f"{MAX_NODES:,} nodes"
            )
        found.append(tuple(_as_node(node, child) for child in of_node))
    return tuple(found)


def _as_node(node: int, child: Any) -> int:
    try:
        if not isinstance(child, bool):
            return operator.index(child)
    except TypeError:
        pass
    raise GrowMapError(
        f"children of node {node}: a child is {short(child)}: it must be a whole number"
    )


def _check_parents(children: Sequence[Sequence[int]]) -> None:
    parents: dict[int, int] = {}
    for node, of_node in enumerate(children):
        for child in of_node:
            if not 0 <= child < len(children):
                raise GrowMapError(
                    f"node {node} has the child {short(child)}, but the nodes are 0 to {len(children) - 1}"
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
