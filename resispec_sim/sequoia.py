"""Reads the grow maps that Sequoia stores with torch.

Such a file holds a dict: ``Successors``, the children of every node; ``roots`` and ``branches``, per
drafting step the nodes that are expanded and their numbers of children; ``mask``, nonzero where the
column's node is the row's node or an ancestor of it; ``depth``, the level of every node; ``size``.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .checks import check_whole
from .errors import GrowMapError, InputError, ModelError
from .growmaps import GrowMap

KEYS = ("roots", "branches", "Successors", "mask", "depth", "size")


def read_sequoia(path: Path) -> GrowMap:
    """Read a grow map from Sequoia's ``.pt`` file; nothing in it is ever executed.

    Parameters
    ----------
    path : Path

    Raises
    ------
    GrowMapError
        If the file cannot be read as plain data, lacks a key, or its parts disagree; names the part.
    ModelError
        If torch is not installed.
    """
    torch = _import_torch()
    try:
        # weights_only: tensors and plain containers, no code
        data = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise GrowMapError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise GrowMapError(
            f"{path}: not a file of plain tensors and lists ({type(error).__name__}: {first}); "
            "other pickles are not opened"
        ) from error
    try:
        return _from_dict(data, torch)
    except InputError as error:
        raise GrowMapError(f"{path}: {error}") from None


def _import_torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"grow maps in .pt files are read with torch ({error}); install it with: "
            'pip install "resispec-sim[torch]", or use the JSON form'
        ) from error
    return torch


def _from_dict(data: Any, torch: ModuleType) -> GrowMap:
    if type(data) is not dict:
        raise GrowMapError(f"holds a {type(data).__name__}, not the dict of a grow map")
    for key in KEYS:
        if key not in data:
            raise GrowMapError(f"lacks {key!r}; a grow map has {', '.join(KEYS)}")
    for key in data:
        if key not in KEYS:
            raise GrowMapError(f"has the unknown key {key!r}; a grow map has {', '.join(KEYS)}")
    plain = {key: _plain(key, data[key], torch) for key in KEYS if key != "mask"}
    if not isinstance(plain["Successors"], list):
        raise GrowMapError("Successors is not a list with the children of every node")
    growmap = GrowMap(plain["Successors"])
    size = check_whole("size", plain["size"])
    if size != growmap.n_nodes:
        raise GrowMapError(f"size is {size}, but Successors lists {growmap.n_nodes} nodes")
    _check_depth(plain["depth"], growmap)
    _check_steps(plain["roots"], plain["branches"], growmap)
    _check_mask(data["mask"], growmap, torch)
    return growmap


def _plain(key: str, value: Any, torch: ModuleType, nested: int = 2) -> Any:
    """Nested lists of ints; a tensor becomes the list of its numbers."""
    if isinstance(value, torch.Tensor):
        value = value.tolist() if value.layout == torch.strided else None
    if isinstance(value, list | tuple) and nested:
        return [_plain(key, item, torch, nested - 1) for item in value]
    if type(value) is not int:
        raise GrowMapError(f"{key} holds {_short(value)} where a whole number belongs")
    return value


def _check_depth(depth: Any, growmap: GrowMap) -> None:
    if not isinstance(depth, list) or len(depth) != growmap.n_nodes:
        raise GrowMapError(f"depth does not hold one number for each of {growmap.n_nodes} nodes")
    for level, nodes in enumerate(growmap.levels):
        for node in nodes:
            if depth[node] != level:
                raise GrowMapError(
                    f"depth of node {node} is {depth[node]!r}, but Successors puts it on level {level}"
                )


def _check_steps(roots: Any, branches: Any, growmap: GrowMap) -> None:
    levels = [list(nodes) for nodes in growmap.levels]
    # The last level has nothing to expand: files with and without it exist.
    if roots not in (levels, levels[:-1]):
        raise GrowMapError(
            f"roots is {_short(roots)}, but the levels by Successors are {_short(levels)}"
        )
    counts = [[len(growmap.children[node]) for node in nodes] for nodes in roots]
    if branches != counts:
        raise GrowMapError(
            f"branches is {_short(branches)}, but the counts by Successors are {_short(counts)}"
        )


def _check_mask(mask: Any, growmap: GrowMap, torch: ModuleType) -> None:
    n = growmap.n_nodes
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (n, n) or mask.is_sparse:
        shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise GrowMapError(f"mask is {shape}, not a dense tensor of shape ({n}, {n})")
    right = np.eye(n, dtype=bool)
    for nodes in growmap.levels:
        for node in nodes:
            for child in growmap.children[node]:
                right[child] |= right[node]
    wrong = np.argwhere((mask != 0).numpy() != right)
    if len(wrong):
        row, column = map(int, wrong[0])
        relation = "sees" if right[row, column] else "does not see"
        raise GrowMapError(
            f"mask at ({row}, {column}) is {mask[row, column].item()}, but by Successors node {row} "
            f"{relation} node {column}"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
