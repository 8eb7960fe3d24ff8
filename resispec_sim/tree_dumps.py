"""Recorded trees: what a decoder drafted and scored, step by step, and what it accepted.

A folder with a manifest and the recorded steps, which `resispec_sim.tree_files` lays out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from .dumps.names import resolve_dump
from .dumps.schema import MANIFEST_NAME, StorageDtype
from .dumps.storage import check_rows, decode_rows
from .errors import DumpError, ManifestError, ShardError
from .tree_files import StepSource, list_steps, load_step

SCHEMA_VERSION = 1
KIND: Literal["trees"] = "trees"


class TreeManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all recorded steps of a folder share.

    `sha256` is that of the other fields as JSON; `signed` fills it in.
    """

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
    dtype: StorageDtype
    provenance: dict[str, Any]
    sha256: str = ""

    def signed(self) -> TreeManifest:
        """The same with its checksum."""
        plain = msgspec.structs.replace(self, sha256="")
        data = msgspec.json.encode(plain, order="deterministic")
        return msgspec.structs.replace(self, sha256=hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class TreeStep:
    """One recorded step.

    Attributes
    ----------
    text, step : int
        Which text, and which of its steps.
    prefix : ndarray of int64
        All committed tokens before it, the prompt first; the last is the root.
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
        Whether its tree was cut down to what was left of the text; it counts in no mean.
    end_tokens : frozenset of int
        Tokens that end the text.
    """

    text: int
    step: int
    prefix: NDArray[np.int64]
    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    target_logits: NDArray[np.float64]
    draft_logits: Mapping[int, NDArray[np.float64]]
    path: NDArray[np.int64]
    emitted: NDArray[np.int64]
    cut: bool
    end_tokens: frozenset[int] = frozenset()

    @property
    def children(self) -> list[list[int]]:
        """Children of every node, sibling 1 first."""
        found: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(node)
        return found


class TreeDump:
    """Recorded trees. Iterating gives the steps in order, each checked as it is read.

    Parameters
    ----------
    path_or_name : str or Path
        A folder of ``resispec decode --record``, or the name of a shipped dump of trees.

    Attributes
    ----------
    path : Path
    manifest : TreeManifest
    sources : list of StepSource
        Where every step lies, by text and step.

    Raises
    ------
    DumpError
        No such folder or name, or one without a recorded step.
    ManifestError
        If the folder holds no recorded trees, or another release's.
    ShardError
        If the file of a finished text is damaged.

    Examples
    --------
    >>> dump = TreeDump("tiny-trees-t1.0")
    >>> dump.manifest.tree, next(iter(dump)).target_logits.shape
    ('d4b3', (40, 1024))
    """

    def __init__(self, path_or_name: str | os.PathLike[str]) -> None:
        self.path = resolve_dump(path_or_name, KIND)
        self.manifest = read_manifest(self.path)
        self.sources = list_steps(self.path)
        if not self.sources:
            raise DumpError(
                f"{self.path} holds no recorded step; record again with resispec decode --record"
            )

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[TreeStep]:
        return (self.read(source) for source in self.sources)

    @property
    def n_steps_by_text(self) -> dict[int, int]:
        """Recorded steps of every text, those that were cut included."""
        return dict(Counter(source.text for source in self.sources))

    @property
    def n_bytes(self) -> int:
        """Size of the files on disk, the manifest aside."""
        return sum(file.stat().st_size for file in {source.file for source in self.sources})

    def read(self, source: StepSource) -> TreeStep:
        """One step (`ShardError` if it was cut short, altered, or is no tree)."""
        arrays, info = load_step(source)
        try:
            return self._step(source, arrays, info)
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ShardError(f"{source}: not a recorded step: {error}") from error

    def _step(self, source: StepSource, arrays: dict[str, Any], info: dict[str, str]) -> TreeStep:
        manifest = self.manifest
        for name in ("prefix", "tokens", "parents", "inner", "path", "emitted", "end_tokens"):
            if arrays[name].dtype != np.int64 or arrays[name].ndim != 1:
                raise ValueError(f"{name} is no list of whole numbers")
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
        prefix, path, emitted = (arrays[name] for name in ("prefix", "path", "emitted"))
        if prefix[-1:].tolist() != tokens[:1].tolist():
            raise ValueError(f"the root is token {tokens[0]}, not the last one before the step")
        if parents[path].tolist() != [0, *path[:-1]][: len(path)]:
            raise ValueError(f"the accepted nodes {path.tolist()} are no way down from the root")
        if emitted[: len(path)].tolist() != tokens[path].tolist():
            raise ValueError(f"the emitted tokens {emitted.tolist()} are not those accepted")
        for name in ("prefix", "tokens", "emitted"):
            known = (arrays[name] >= 0) & (arrays[name] < manifest.vocab_size)
            if not known.all():
                raise ValueError(
                    f"{name} are not all tokens of a vocabulary of {manifest.vocab_size}"
                )
        end_tokens = frozenset(arrays["end_tokens"].tolist())
        # an end-of-text token takes the place of the one behind the accepted ones
        behind = 0 if len(path) and int(tokens[path[-1]]) in end_tokens else 1
        if len(emitted) != len(path) + behind:
            raise ValueError(f"{len(emitted)} tokens emitted after {len(path)} accepted ones")
        target = decode_rows(arrays["target_logits"], manifest.dtype)
        draft = decode_rows(arrays["draft_logits"], manifest.dtype)
        check_rows(target, f"{source}, target logits")
        if len(inner):
            check_rows(draft, f"{source}, draft logits")
        return TreeStep(
            text=int(info["text"]),
            step=int(info["step"]),
            prefix=prefix,
            tokens=tokens,
            parents=parents,
            target_logits=target,
            draft_logits=dict(zip(inner.tolist(), draft, strict=True)),
            path=path,
            emitted=emitted,
            cut=info["cut"] == "1",
            end_tokens=end_tokens,
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
        manifest = msgspec.convert(stored, TreeManifest)
    except msgspec.ValidationError as error:
        raise ManifestError(f"{file}: {error}") from error
    if manifest.sha256 != manifest.signed().sha256:
        raise ManifestError(f"{file}: was altered; its content does not have the checksum in it")
    return manifest


def node_order(parents: Sequence[int]) -> list[int]:
    """Nodes with children, in ascending order."""
    return sorted({parent for parent in parents if parent >= 0})
