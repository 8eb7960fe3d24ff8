"""Reading a dump: one shard mapped at a time, verified when it is first opened."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompleteDumpError, InputError, ShardError
from ..probs import align_vocabularies, logits_to_probs
from .names import resolve_dump
from .schema import Manifest, Shard, read_manifest
from .storage import Tensor, check_rows, decode_rows, shard_header, shard_layout, stored_type


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """One recorded position: the token at ``offset`` after a prompt, and what predicted it.

    ``target_logits`` and ``draft_logits`` are float32, shape (V,), on the common vocabulary, with
    ``-inf`` where a model lacks the token. 16-bit dumps give the logits minus their row maximum.
    """

    prompt_idx: int
    offset: int
    token_id: int
    target_logits: NDArray[np.float32]
    draft_logits: NDArray[np.float32]


class Dump:
    """A finished recording, read lazily. Made by `open_dump`; a context manager.

    Attributes
    ----------
    path : Path
    manifest : Manifest
    vocab_size : int
        V, the common vocabulary that rows are aligned to.
    n_prompts, n_positions : int
    positions_per_prompt : list of int
    temperature, top_k, top_p
        How the tokens were sampled from the target.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.vocab_size = manifest.vocab_size
        self.n_prompts = len(manifest.prompts)
        self.temperature = manifest.temperature
        self.top_k = manifest.top_k
        self.top_p = manifest.top_p
        self.positions_per_prompt = [n for shard in manifest.shards for n in shard.n_positions]
        self.n_positions = sum(self.positions_per_prompt)
        self._prompt_starts = np.concatenate([[0], np.cumsum(self.positions_per_prompt)])
        self._shard_of_prompt = [
            i for i, shard in enumerate(manifest.shards) for _ in shard.prompt_idxs
        ]
        ids = manifest.draft_to_target
        self._draft_to_target = None if ids is None else np.asarray(ids)
        self._verified: set[int] = set()
        self._mapped: tuple[int, mmap.mmap, dict[str, Tensor]] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n_positions

    def __repr__(self) -> str:
        return (
            f"Dump({str(self.path)!r}: {self.n_prompts} prompts, {self.n_positions} positions, "
            f"V={self.vocab_size}, {self.manifest.dtype}, T={self.temperature:g})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the folder itself; a mapping cannot travel.
        return open_dump, (str(self.path.resolve()),)

    def about(self) -> dict[str, Any]:
        """What a report says about its dump: name, sizes and sampling settings, as plain data."""
        return {
            "name": self.path.resolve().name,
            "vocab_size": self.vocab_size,
            "n_prompts": self.n_prompts,
            "n_positions": self.n_positions,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }

    def close(self) -> None:
        """Unmap the shard that is mapped, if any. Reading again maps it again."""
        with self._lock:
            if self._mapped is not None:
                self._mapped[1].close()
                self._mapped = None

    def prompt_of(self, i: int) -> tuple[int, int]:
        """Prompt index and offset after the prompt of position ``i``, 0 to ``n_positions - 1``."""
        if not 0 <= i < self.n_positions:
            raise InputError(
                f"position {i} is not in this dump, which has positions 0 to {self.n_positions - 1}"
            )
        prompt_idx = int(np.searchsorted(self._prompt_starts, i, side="right")) - 1
        return prompt_idx, int(i - self._prompt_starts[prompt_idx])

    def read(self, i: int) -> Position:
        """Read position ``i``.

        Raises
        ------
        InputError
            If there is no such position.
        ShardError
            If the shard is missing, cut short or altered.
        LogitsError
            NaN, +inf or no finite entry in a row; names shard, prompt, position and token.
        """
        prompt_idx, offset = self.prompt_of(i)
        shard_idx = self._shard_of_prompt[prompt_idx]
        with self._lock:
            data, layout = self._map(shard_idx)
            name = f"prompt-{prompt_idx:05d}"
            ids = layout[f"{name}.token_ids"]
            token_id = int(np.frombuffer(data, "<i8", 1, ids.start + 8 * offset)[0])
            target, draft = (
                self._row(data, layout[f"{name}.{which}_logits"], offset)
                for which in ("target", "draft")
            )
        where = f"{self.path / self.manifest.shards[shard_idx].file}, prompt {prompt_idx}"
        if not 0 <= token_id < self.manifest.target_vocab_size:
            raise ShardError(
                f"{where}, position {offset}: token {token_id} is outside the target's vocabulary"
            )
        check_rows(target[None], f"{where}, target logits", offset)
        check_rows(draft[None], f"{where}, draft logits", offset)
        target, draft = align_vocabularies(target, draft, draft_to_target=self._draft_to_target)
        return Position(prompt_idx, offset, token_id, target, draft)

    def iter_positions(self, start: int = 0, stop: int | None = None) -> Iterator[Position]:
        """Yield positions ``start`` to ``stop - 1`` in order; unmap the last shard at the end."""
        stop = self.n_positions if stop is None else stop
        if not 0 <= start <= stop <= self.n_positions:
            raise InputError(f"positions {start}:{stop} do not lie in 0:{self.n_positions}")
        return self._iter(start, stop)

    def _iter(self, start: int, stop: int) -> Iterator[Position]:
        try:
            for i in range(start, stop):
                yield self.read(i)
        finally:
            self.close()

    def probs(
        self,
        position: int | Position,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Target and draft probabilities, each (V,) float64, at a position.

        Settings left at None are the ones the dump was sampled with; ``top_k=0`` and ``top_p=1``
        turn them off.
        """
        row = position if isinstance(position, Position) else self.read(position)
        temperature = self.temperature if temperature is None else temperature
        top_k = self.top_k if top_k is None else top_k
        top_p = self.top_p if top_p is None else top_p
        target, draft = (
            logits_to_probs(logits, temperature=temperature, top_k=top_k, top_p=top_p)
            for logits in (row.target_logits, row.draft_logits)
        )
        return target, draft

    def verify(self) -> None:
        """Check size, header and checksum of every shard, read before or not (`ShardError`)."""
        for shard in self.manifest.shards:
            with _open_shard(self.path, shard) as file:
                _check_shard(file, self.path / shard.file, self.manifest, shard)

    def _map(self, shard_idx: int) -> tuple[mmap.mmap, dict[str, Tensor]]:
        if self._mapped is None or self._mapped[0] != shard_idx:
            self.close()
            shard = self.manifest.shards[shard_idx]
            with _open_shard(self.path, shard) as file:
                if shard_idx not in self._verified:
                    _check_shard(file, self.path / shard.file, self.manifest, shard)
                    self._verified.add(shard_idx)
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._mapped = shard_idx, data, shard_layout(self.manifest, shard)
        return self._mapped[1], self._mapped[2]

    def _row(self, data: mmap.mmap, tensor: Tensor, offset: int) -> NDArray[np.float32]:
        dtype = stored_type(self.manifest.dtype)
        size = tensor.shape[1]
        stored = np.frombuffer(data, dtype, size, tensor.start + offset * size * dtype.itemsize)
        return decode_rows(stored, self.manifest.dtype)


def _open_shard(folder: Path, shard: Shard) -> Any:
    path = folder / shard.file
    try:
        file = open(path, "rb")
    except OSError as err:
        raise ShardError(
            f"{path}: cannot be opened ({err.strerror}); restore the file or record the dump again"
        ) from err
    size = os.fstat(file.fileno()).st_size
    if size != shard.n_bytes:
        file.close()
        raise ShardError(
            f"{path}: {size:,} bytes, but the manifest says {shard.n_bytes:,}: cut short or "
            "replaced; restore the file or record the dump again"
        )
    return file


def _check_shard(file: Any, path: Path, manifest: Manifest, shard: Shard) -> None:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != shard.sha256:
        raise ShardError(
            f"{path}: its sha256 is {digest}, but the manifest says {shard.sha256}: the file was "
            "altered; restore it or record the dump again"
        )
    header = shard_header(manifest, shard)
    file.seek(0)
    if file.read(len(header)) != header:
        raise ShardError(
            f"{path}: its header does not describe the arrays of the manifest's plan; it was not "
            "written by this package for this dump"
        )


def open_dump(path_or_name: str | os.PathLike[str]) -> Dump:
    """Open a recorded dump by its folder, or a shipped one by its name.

    Existence and size of all shards are checked here, so a broken dump fails before anything is
    computed; the checksum of a shard is verified when that shard is first read.

    Parameters
    ----------
    path_or_name : str or Path

    Returns
    -------
    Dump

    Raises
    ------
    DumpError
        No such folder or name (the message lists the shipped ones).
    ManifestError
        A manifest that is missing, malformed or of another version.
    IncompleteDumpError
        A recording that was interrupted; names the missing shards.
    ShardError
        A shard that is missing or cut short.
    """
    folder = resolve_dump(path_or_name)
    manifest = read_manifest(folder)
    if any(shard.sha256 is None for shard in manifest.shards):
        missing = [shard.file for shard in manifest.shards if not (folder / shard.file).is_file()]
        what = f"{', '.join(missing)} missing" if missing else "its last step was not reached"
        raise IncompleteDumpError(
            f"{folder}: the recording was interrupted ({what}); run the same recorder "
            "command again to complete it"
        )
    for shard in manifest.shards:
        _open_shard(folder, shard).close()
    return Dump(folder, manifest)
