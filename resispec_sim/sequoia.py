"""Reads the grow maps that Sequoia stores with torch.

Such a file holds a dict: ``Successors``, the children of every node; ``roots`` and ``branches``, per
drafting step the nodes that are expanded and their numbers of children; ``mask``, nonzero where the
column's node is the row's node or an ancestor of it; ``depth``, the level of every node; ``size``.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .errors import GrowMapError, InputError, ModelError
from .growmaps import MAX_NODES, GrowMap, check_file, short

KEYS = ("roots", "branches", "Successors", "mask", "depth", "size")
DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
MAX_BYTES = 64 << 20  # a mask of 2,896 nodes in int64, of 8,192 in bool
MAX_PICKLE_BYTES = 1 << 18  # the lists of 8,192 nodes take 150 kB; torch reads 1 MB in seconds
MAX_ITEMS = 2 * MAX_NODES


def read_sequoia(path: Path) -> GrowMap:
    """Read a grow map from Sequoia's ``.pt`` file; nothing in it is ever executed.

    Parameters
    ----------
    path : Path

    Raises
    ------
    GrowMapError
        If the file cannot be read as plain data, is too large, lacks a key, holds another tensor than
        a dense one of whole numbers, bools or floats, or its parts disagree; names the part.
    ModelError
        If torch is not installed.
    """
    torch = _import_torch()
    _check_size(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layouts in beta, which are refused by name below
            # weights_only: tensors and plain containers, no code
            data = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise GrowMapError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise GrowMapError(
            f"{path}: not a file of plain tensors and lists ({type(error).__name__}: {first[:200]}); "
            "other pickles are not opened"
        ) from error
    try:
        return _from_dict(data, torch)
    except InputError as error:
        raise GrowMapError(f"{path}: {error}") from None


def _check_size(path: Path) -> None:
    """Refuse what would take long to load: torch unpacks a file of kilobytes into gigabytes."""
    n_bytes = check_file(path, MAX_BYTES)
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PK\x03\x04":
                # The older format is one pickle, numbers included.
                if n_bytes > MAX_PICKLE_BYTES:
                    raise GrowMapError(
                        f"{path}: has {n_bytes:,} bytes and is not in torch's zip format, which is read "
                        f"from {MAX_PICKLE_BYTES:,} bytes on; write it again with torch.save"
                    )
                return
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
    except OSError as error:
        raise GrowMapError(f"{path}: cannot be read ({error.strerror})") from None
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        if isinstance(error, GrowMapError):
            raise
        raise GrowMapError(f"{path}: not a file of torch ({error})") from None
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_BYTES:
        raise GrowMapError(f"{path}: unpacks to {unpacked:,} bytes; at most {MAX_BYTES:,}")
    for entry in entries:
        if entry.filename.endswith(".pkl") and entry.file_size > MAX_PICKLE_BYTES:
            raise GrowMapError(
                f"{path}: its {short(entry.filename)} has {entry.file_size:,} bytes; at most "
                f"{MAX_PICKLE_BYTES:,}"
            )


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
            raise GrowMapError(
                f"has the unknown key {short(key)}; a grow map has {', '.join(KEYS)}"
            )
    plain = {key: _plain(key, data[key], torch) for key in KEYS if key != "mask"}
    if not isinstance(plain["Successors"], list):
        raise GrowMapError("Successors is not a list with the children of every node")
    growmap = GrowMap(plain["Successors"])
    size = _whole("size", plain["size"])
    if size != growmap.n_nodes:
        raise GrowMapError(f"size is {short(size)}, but Successors lists {growmap.n_nodes} nodes")
    _check_depth(plain["depth"], growmap)
    _check_steps(plain["roots"], plain["branches"], growmap)
    _check_mask(data["mask"], growmap, torch)
    return growmap


def _plain(key: str, value: Any, torch: ModuleType) -> Any:
    """Lists of lists of ints, of bounded length; a tensor becomes the list of its numbers."""
    value = _opened(key, value, torch)
    if not isinstance(value, list):
        return _whole(key, value)
    # A list of one long list, many times, is short in the file.
    items = [_opened(key, item, torch) for item in value]
    n_items = len(items) + sum(len(item) for item in items if isinstance(item, list))
    if n_items > MAX_ITEMS:
        raise _too_many(key, n_items)
    return [
        [_whole(key, _opened(key, number, torch)) for number in item]
        if isinstance(item, list)
        else _whole(key, item)
        for item in items
    ]


def _opened(key: str, value: Any, torch: ModuleType) -> Any:
    """A list or tuple of bounded length as a list, a checked tensor as its numbers, all else as it is."""
    if isinstance(value, torch.Tensor):
        if value.numel() > MAX_ITEMS:
            raise _too_many(key, value.numel())
        _check_tensor(key, value, torch)
        return value.tolist()
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise _too_many(key, len(value))
        return list(value)
    return value


def _whole(key: str, value: Any) -> int:
    if type(value) is not int:
        raise GrowMapError(f"{key} holds {short(value)} where a whole number belongs")
    return value


def _too_many(key: str, count: int) -> GrowMapError:
    return GrowMapError(
        f"{key} holds {count:,} numbers; a grow map has at most {MAX_NODES:,} nodes"
    )


def _check_tensor(key: str, tensor: Any, torch: ModuleType) -> None:
    """Refuse all but a dense tensor in memory, with a number of its own for every element."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    kind = type(tensor).__name__ if not plain else None
    if tensor.is_nested:
        kind = "nested"
    elif tensor.is_quantized:
        kind = "quantised"
    elif tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
    elif tensor.device.type != "cpu":
        kind = f"on the device {tensor.device}"
    elif str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
    if kind is not None:
        raise GrowMapError(
            f"{key} is a tensor of another kind ({kind}): a dense one of whole numbers, bools or floats "
            "in memory belongs here"
        )
    n_bytes, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if n_bytes > stored:
        raise GrowMapError(
            f"{key} is a tensor of {n_bytes:,} bytes that stores only {stored:,} of them: an expanded "
            "view, not the numbers themselves"
        )


def _check_depth(depth: Any, growmap: GrowMap) -> None:
    if not isinstance(depth, list) or len(depth) != growmap.n_nodes:
        raise GrowMapError(f"depth does not hold one number for each of {growmap.n_nodes} nodes")
    for level, nodes in enumerate(growmap.levels):
        for node in nodes:
            if depth[node] != level:
                raise GrowMapError(
                    f"depth of node {node} is {short(depth[node])}, but Successors puts it on level {level}"
                )


def _check_steps(roots: Any, branches: Any, growmap: GrowMap) -> None:
    levels = [list(nodes) for nodes in growmap.levels]
    # The last level has nothing to expand: files with and without it exist.
    if roots not in (levels, levels[:-1]):
        raise GrowMapError(
            f"roots is {short(roots)}, but the levels by Successors are {short(levels)}"
        )
    counts = [[len(growmap.children[node]) for node in nodes] for nodes in roots]
    if branches != counts:
        raise GrowMapError(
            f"branches is {short(branches)}, but the counts by Successors are {short(counts)}"
        )


def _check_mask(mask: Any, growmap: GrowMap, torch: ModuleType) -> None:
    n = growmap.n_nodes
    if not isinstance(mask, torch.Tensor):
        raise GrowMapError(f"mask is {short(mask)}, not a tensor of shape ({n}, {n})")
    _check_tensor("mask", mask, torch)
    if tuple(mask.shape) != (n, n):
        raise GrowMapError(f"mask is {tuple(mask.shape)}, not a dense tensor of shape ({n}, {n})")
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
