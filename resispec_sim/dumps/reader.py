"""Reading a dump: one shard mapped at a time, verified when it is first opened."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompleteDumpError, InputError, ShardError
from ..probs import align_vocabularies, logits_to_probs
from .codes import are_sound, is_coded, probs_of_codes
from .names import resolve_dump
from .schema import Manifest, Shard, read_manifest
from .storage import Tensor, check_rows, decode_rows, shard_header, shard_layout, stored_type

_TOKEN_TYPE = np.dtype("<i8")


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """One recorded position: the token at ``offset`` after a prompt, and what predicted it.

    ``stored`` are the rows of target and draft as they are in the dump; what else is given of them is
    decoded when it is asked for, on the common vocabulary, with ``-inf`` where a model lacks the token.
    16-bit dumps give the logits minus their row maximum.
    """

    prompt_idx: int
    offset: int
    token_id: int
    stored: tuple[NDArray[Any], NDArray[Any]]
    dtype: str
    draft_to_target: NDArray[np.int64] | None = None

    @property
    def rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Logits of target and draft in float64, each (V,)."""
        target, draft = (decode_rows(stored, self.dtype) for stored in self.stored)
        return align_vocabularies(target, draft, draft_to_target=self.draft_to_target)

    @property
    def target_logits(self) -> NDArray[np.float32]:
        """The target's logits in float32, (V,); no stored type has more digits."""
        return self.rows[0].astype(np.float32)

    @property
    def draft_logits(self) -> NDArray[np.float32]:
        """The draft's logits in float32, (V,)."""
        return self.rows[1].astype(np.float32)


class _MappedShard:
    """A verified shard in memory: its bytes as they are on disk, and where each array lies."""

    def __init__(self, idx: int, data: mmap.mmap, layout: dict[str, Tensor]) -> None:
        self.idx = idx
        self.data = data
        self.layout = layout

    def close(self) -> None:
        self.data.close()

    def values(self, name: str, dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
        """Row `offset` of an array, as a view that must not outlive the mapping."""
        tensor = self.layout[name]
        size = tensor.shape[1] if len(tensor.shape) > 1 else 1
        start = tensor.start + offset * size * dtype.itemsize
        return np.frombuffer(self.data, dtype, size, start)

    def forget_pages(self) -> None:
        """Count no longer what was read as memory of this process; it stays in the system's cache."""
        self.data.madvise(mmap.MADV_DONTNEED)


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
        self._prompt_starts = [0, *accumulate(self.positions_per_prompt)]
        self._shard_of_prompt = [
            i for i, shard in enumerate(manifest.shards) for _ in shard.prompt_idxs
        ]
        ids = manifest.draft_to_target
        self._draft_to_target = None if ids is None else np.asarray(ids)
        self._verified: set[int] = set()
        self._verifying = [threading.Lock() for _ in manifest.shards]
        self._mapped: _MappedShard | None = None
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
                self._mapped.close()
                self._mapped = None

    def prompt_of(self, i: int) -> tuple[int, int]:
        """Prompt index and offset after the prompt of position ``i``, 0 to ``n_positions - 1``."""
        if not 0 <= i < self.n_positions:
            raise InputError(
                f"position {i} is not in this dump, which has positions 0 to {self.n_positions - 1}"
            )
        prompt_idx = bisect_right(self._prompt_starts, i) - 1
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
        with self._lock:
            self._mapped = self._shard_at(i, self._mapped)
            return self._read(i, self._mapped)

    def _read(self, i: int, shard: _MappedShard) -> Position:
        prompt_idx, offset = self.prompt_of(i)
        name = f"prompt-{prompt_idx:05d}"
        token_id = int(shard.values(f"{name}.token_ids", _TOKEN_TYPE, offset)[0])
        dtype = self.manifest.dtype
        target, draft = (
            shard.values(f"{name}.{which}_logits", stored_type(dtype), offset).copy()
            for which in ("target", "draft")
        )
        shard.forget_pages()
        where = f"{self.manifest.shards[shard.idx].file}, prompt {prompt_idx}"
        if not 0 <= token_id < self.manifest.target_vocab_size:
            raise ShardError(
                f"{self.path / where}, position {offset}: token {token_id} is outside the target's "
                "vocabulary"
            )
        for which, row in (("target", target), ("draft", draft)):
            if not (is_coded(dtype) and are_sound(row, dtype)):
                decoded = decode_rows(row, dtype)
                check_rows(decoded[None], f"{self.path / where}, {which} logits", offset)
        return Position(prompt_idx, offset, token_id, (target, draft), dtype, self._draft_to_target)

    def iter_positions(
        self, start: int = 0, stop: int | None = None
    ) -> Generator[Position, None, None]:
        """Yield positions ``start`` to ``stop - 1`` in order; unmap the last shard at the end.

        Several threads may iterate over one dump: each maps the shard it is in.
        """
        stop = self.n_positions if stop is None else stop
        if not 0 <= start <= stop <= self.n_positions:
            raise InputError(f"positions {start}:{stop} do not lie in 0:{self.n_positions}")
        return self._iter(start, stop)

    def _iter(self, start: int, stop: int) -> Generator[Position, None, None]:
        shard: _MappedShard | None = None
        try:
            for i in range(start, stop):
                shard = self._shard_at(i, shard)
                yield self._read(i, shard)
        finally:
            if shard is not None:
                shard.close()

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
        plain = not top_k and (top_p is None or top_p == 1) and temperature > 0
        sizes = {self.vocab_size, *(stored.size for stored in row.stored)}
        if plain and is_coded(row.dtype) and len(sizes) == 1 and row.draft_to_target is None:
            p, q = (probs_of_codes(codes, row.dtype, float(temperature)) for codes in row.stored)
            if p is not None and q is not None:
                return p, q
        target, draft = (
            logits_to_probs(logits, temperature=temperature, top_k=top_k, top_p=top_p)
            for logits in row.rows
        )
        return target, draft

    def verify(self) -> None:
        """Check size, header and checksum of every shard, read before or not (`ShardError`)."""
        for shard in self.manifest.shards:
            with _open_shard(self.path, shard) as file:
                _check_shard(file, self.path / shard.file, self.manifest, shard)

    def shard_of(self, i: int) -> int:
        """Index of the shard that holds position ``i``."""
        return self._shard_of_prompt[self.prompt_of(i)[0]]

    def _shard_at(self, i: int, mapped: _MappedShard | None) -> _MappedShard:
        """The shard of position `i`: the mapped one, or another in its place."""
        shard_idx = self.shard_of(i)
        if mapped is not None:
            if mapped.idx == shard_idx and not mapped.data.closed:
                return mapped
            mapped.close()
        shard = self.manifest.shards[shard_idx]
        with _open_shard(self.path, shard) as file:
            # One thread verifies a shard, the others that want it wait: no shard is read twice.
            with self._verifying[shard_idx]:
                if shard_idx not in self._verified:
                    _check_shard(file, self.path / shard.file, self.manifest, shard)
                    self._verified.add(shard_idx)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _MappedShard(shard_idx, data, shard_layout(self.manifest, shard))


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
