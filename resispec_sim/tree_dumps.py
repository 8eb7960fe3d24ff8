"""Recorded trees: what a decoder drafted and scored, step by step, and what it accepted.

A folder with a manifest and one safetensors file per step, each written whole before it gets its name, so
that a crash costs the step in progress only. A file carries the SHA-256 of its arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .dumps.storage import check_rows, decode_rows
from .errors import DumpError, ManifestError, ShardError
from .files import write_whole

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
KIND = "trees"
ABOUT = "resispec"


class TreeManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all recorded steps of a folder share."""

    schema_version: int
    kind: str
    target: dict[str, str]
    draft: dict[str, str]
    rule: str
    siblings: str
    tree: str
    vocab_size: int
    draft_vocab_size: int
    temperature: float
    top_k: int | None
    top_p: float | None
    dtype: str
    provenance: dict[str, Any]


@dataclass(frozen=True)
class TreeStep:
    """One recorded step.

    Attributes
    ----------
    text, step : int
        Which text, and which of its steps.
    n_prefix : int
        Committed tokens before it; the last is the root.
    tokens, parents : ndarray of int64, shape (N,)
        Node 0 is the root, with parent -1; siblings stand in the order in which they were drawn.
    target_logits : ndarray of float64, shape (N, V)
    draft_logits : dict of int to ndarray of float64, shape (V_draft,)
        For every node with children.
    path : ndarray of int64
        Accepted nodes.
    emitted : ndarray of int64
        The tokens that the step committed.
    cut : bool
        Whether the text ended inside it, or its tree was cut down; it counts in no mean.
    """

    text: int
    step: int
    n_prefix: int
    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    target_logits: NDArray[np.float64]
    draft_logits: Mapping[int, NDArray[np.float64]]
    path: NDArray[np.int64]
    emitted: NDArray[np.int64]
    cut: bool

    @property
    def children(self) -> list[list[int]]:
        """Children of every node, sibling 1 first."""
        found: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(node)
        return found


class TreeDump:
    """A folder of recorded trees. Iterating gives its steps in order, each checked as it is read.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    ManifestError
        If the folder holds no recorded trees, or another release's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.files = sorted(
            file
            for file in self.path.iterdir()
            if re.fullmatch(r"text-\d{5}-step-\d{5}\.safetensors", file.name)
        )
        if not self.files:
            raise DumpError(
                f"{self.path} holds no recorded step; record again with resispec decode --record"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[TreeStep]:
        return (self.read(file) for file in self.files)

    def read(self, file: Path) -> TreeStep:
        """One step (`ShardError` if the file was cut short, altered, or holds no tree)."""
        from safetensors import SafetensorError, safe_open
        from safetensors.numpy import load

        try:
            data = file.read_bytes()
            arrays = load(data)
            with safe_open(str(file), "numpy") as opened:
                info = json.loads((opened.metadata() or {})[ABOUT])
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ShardError(f"{file}: not a whole recorded step ({error}); delete it") from error
        if info.pop("sha256", None) != checksum(arrays, info):
            raise ShardError(
                f"{file}: its content does not have the checksum it was stored with; delete it"
            )
        try:
            return self._step(file, arrays, info)
        except (KeyError, ValueError, IndexError) as error:
            raise ShardError(f"{file}: not a recorded step: {error}") from error

    def _step(self, file: Path, arrays: dict[str, Any], info: dict[str, str]) -> TreeStep:
        manifest = self.manifest
        tokens, parents = arrays["tokens"], arrays["parents"]
        n = len(tokens)
        inner = arrays["inner"]
        shapes = {
            "parents": (n,),
            "target_logits": (n, manifest.vocab_size),
            "draft_logits": (len(inner), manifest.draft_vocab_size),
        }
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} has the shape {arrays[name].shape}, not {shape}")
        wrong = np.flatnonzero(parents[1:] >= np.arange(1, n)) + 1
        if n == 0 or parents[0] != -1 or wrong.size or (parents[1:] < 0).any():
            raise ValueError(f"parents {parents[:8].tolist()} are no tree")
        if not set(parents[1:].tolist()) == set(inner.tolist()):
            raise ValueError("draft logits are not those of the nodes with children")
        target = decode_rows(arrays["target_logits"], manifest.dtype)
        draft = decode_rows(arrays["draft_logits"], manifest.dtype)
        check_rows(target, f"{file}, target logits")
        if len(inner):
            check_rows(draft, f"{file}, draft logits")
        return TreeStep(
            text=int(info["text"]),
            step=int(info["step"]),
            n_prefix=int(info["n_prefix"]),
            tokens=tokens,
            parents=parents,
            target_logits=target,
            draft_logits=dict(zip(inner.tolist(), draft, strict=True)),
            path=arrays["path"],
            emitted=arrays["emitted"],
            cut=info["cut"] == "1",
        )


def read_manifest(folder: Path) -> TreeManifest:
    """The manifest of a folder of recorded trees (`ManifestError`)."""
    file = folder / MANIFEST_NAME
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{file}: no manifest of recorded trees ({error})") from error
    if not isinstance(stored, dict) or stored.get("kind") != KIND:
        kind = stored.get("kind") if isinstance(stored, dict) else None
        raise ManifestError(
            f"{file}: kind is {kind!r}, not {KIND!r}; a chain dump is read by resispec replay"
        )
    if stored.get("schema_version") != SCHEMA_VERSION:
        raise ManifestError(
            f"{file}: schema version {stored.get('schema_version')!r}; this release reads {SCHEMA_VERSION}"
        )
    try:
        return msgspec.convert(stored, TreeManifest)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{file}: {error}") from error


def checksum(arrays: Mapping[str, NDArray[Any]], info: Mapping[str, str]) -> str:
    """SHA-256 over names, types, shapes and bytes of arrays, and what is said of them."""
    digest = hashlib.sha256(json.dumps(dict(info), sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_step(
    folder: Path, text: int, step: int, arrays: Mapping[str, NDArray[Any]], info: Mapping[str, str]
) -> Path:
    """Store one step; the file gets its name when it is whole and on disk."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = {**info, "text": str(text), "step": str(step)}
    described["sha256"] = checksum(whole, described)
    # one entry, since the library writes several in any order
    data = save(whole, {ABOUT: json.dumps(described, sort_keys=True)})
    return write_whole(folder / f"text-{text:05d}-step-{step:05d}.safetensors", data)


def node_order(parents: Sequence[int]) -> list[int]:
    """Nodes with children, in ascending order."""
    return sorted({parent for parent in parents if parent >= 0})
