"""Writing a dump shard by shard, each atomically: an interruption costs at most one shard."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DumpError, IncompleteDumpError, InputError, ManifestError, ShardError
from ..files import sync_folder, write_whole
from .schema import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    check_manifest,
    differing_fields,
    encode_manifest,
    read_manifest,
    without_checksums,
)
from .storage import checked_rows, encode_rows, shard_header

LOG_NAME = "recording.log.jsonl"


class PromptRows(NamedTuple):
    """What is recorded for one prompt: L tokens, and the logits that predicted each of them.

    ``token_ids`` (L,) int; ``target_logits`` (L, V_target) and ``draft_logits`` (L, V_draft) real.
    Row j predicts ``token_ids[j]``.
    """

    token_ids: ArrayLike
    target_logits: ArrayLike
    draft_logits: ArrayLike


class DumpWriter:
    """Records a plan into a folder, and resumes where an earlier run was interrupted.

    Parameters
    ----------
    path : str or Path
        The dump's folder; made if it is not there.
    manifest : Manifest
        The plan, from `plan_dump`.

    Raises
    ------
    ManifestError
        If the folder holds a recording of another plan; the message says what differs.
    DumpError
        If it holds shards but no manifest.

    Examples
    --------
    >>> import tempfile
    >>> from resispec_sim.dumps import plan_dump
    >>> plan = plan_dump(prompts=["a", "b"], new_tokens=1, target_vocab_size=2, prompts_per_shard=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = DumpWriter(folder, plan)
    ...     for shard_idx in writer.missing():
    ...         writer.write_shard(shard_idx, [([0], [[0.0, 1.0]], [[1.0, 0.0]])])
    ...     manifest = writer.finish()
    >>> [shard.sha256 is None for shard in manifest.shards]
    [False, False]
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest) -> None:
        check_manifest(manifest)
        self.path = Path(path)
        self.manifest = without_checksums(manifest)
        self._digests: dict[int, str] = {}
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / MANIFEST_NAME).exists():
            found = read_manifest(self.path)
            differences = differing_fields(found, manifest)
            if differences:
                raise ManifestError(
                    f"{self.path} holds a recording of another plan: {'; '.join(differences)}. "
                    "Run the first command again to resume it, or record into a new folder."
                )
            self.manifest = found
        else:
            stray = sorted(file.name for file in self.path.glob("shard-*.safetensors"))
            if stray:
                raise DumpError(
                    f"{self.path} holds {stray[0]} but no {MANIFEST_NAME}: not a recording that "
                    "can be resumed; record into a new folder"
                )
            write_whole(self.path / MANIFEST_NAME, encode_manifest(self.manifest))
        self.log("opened", missing=self.missing())

    def missing(self) -> list[int]:
        """Indices of shards that are not on disk or not whole; whole ones are read once to tell."""
        return [i for i in range(len(self.manifest.shards)) if not self._is_complete(i)]

    def write_shard(
        self, shard_idx: int, prompts: Iterable[PromptRows | Sequence[ArrayLike]]
    ) -> None:
        """Write one shard: the rows of each of its prompts, in the plan's order.

        Parameters
        ----------
        shard_idx : int
        prompts : iterable of PromptRows or (token_ids, target_logits, draft_logits)
            One item per prompt of ``manifest.shards[shard_idx].prompt_idxs``.

        Raises
        ------
        InputError
            Shapes or tokens that do not fit the plan, or a token that the target cannot have
            sampled.
        LogitsError
            NaN, +inf, or a row of -inf; names prompt, position and token.
        ShardError
            If the shard belongs to a finished dump and does not come out as it was.
        """
        started = time.monotonic()
        shard = self.manifest.shards[shard_idx]
        rows = [PromptRows(*item) for item in prompts]
        if len(rows) != len(shard.prompt_idxs):
            raise InputError(
                f"{shard.file}: planned for {len(shard.prompt_idxs)} prompts, got {len(rows)}"
            )
        file = self.path / shard.file
        temporary = _temporary(file)
        try:
            digest = _write_synced(temporary, self._chunks(shard, rows))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if shard.sha256 not in (None, digest):
            temporary.unlink()
            raise ShardError(
                f"{file}: what would be written now differs from the checksum in {MANIFEST_NAME}: other "
                "logits, or other models, libraries or another machine than when it was recorded. Write "
                "into a new folder."
            )
        # The checksum is in place before the shard is: a shard under its final name can always be
        # verified.
        write_whole(_sidecar(file), f"{digest}  {file.name}\n".encode())
        os.replace(temporary, file)
        sync_folder(self.path)
        self._digests[shard_idx] = digest
        self.log("shard", file=file.name, seconds=round(time.monotonic() - started, 3))

    def finish(self) -> Manifest:
        """Put the checksums into the manifest, which makes the dump one that can be opened.

        Raises
        ------
        IncompleteDumpError
            If shards are missing.
        """
        missing = self.missing()
        if missing:
            names = ", ".join(self.manifest.shards[i].file for i in missing)
            raise IncompleteDumpError(f"{self.path}: cannot be finished, {names} not written yet")
        shards = [
            msgspec.structs.replace(shard, sha256=self._digests[i])
            for i, shard in enumerate(self.manifest.shards)
        ]
        self.manifest = msgspec.structs.replace(self.manifest, shards=shards)
        write_whole(self.path / MANIFEST_NAME, encode_manifest(self.manifest))
        for shard in shards:
            _sidecar(self.path / shard.file).unlink(missing_ok=True)
        self.log("finished")
        return self.manifest

    def log(self, event: str, **fields: Any) -> None:
        """Add a line to ``recording.log.jsonl``: the one place for dates and durations."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with open(self.path / LOG_NAME, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": now, "event": event, **fields}) + "\n")

    def _is_complete(self, shard_idx: int) -> bool:
        if shard_idx in self._digests:
            return True
        shard = self.manifest.shards[shard_idx]
        file = self.path / shard.file
        expected = shard.sha256 or _read_sidecar(file)
        if expected is None or not file.is_file() or file.stat().st_size != shard.n_bytes:
            return False
        header = shard_header(self.manifest, shard)
        with open(file, "rb") as handle:
            if handle.read(len(header)) != header:
                return False
            handle.seek(0)
            if hashlib.file_digest(handle, "sha256").hexdigest() != expected:
                return False
        self._digests[shard_idx] = expected
        return True

    def _chunks(self, shard: Shard, prompts: list[PromptRows]) -> Iterator[bytes | memoryview]:
        yield shard_header(self.manifest, shard)
        ids = [
            _check_prompt(self.manifest, shard, i, n, rows)
            for i, n, rows in zip(shard.prompt_idxs, shard.n_positions, prompts, strict=True)
        ]
        for token_ids in ids:
            yield token_ids.astype("<i8").data.cast("B")
        for prompt_idx, rows in zip(shard.prompt_idxs, prompts, strict=True):
            for which, logits in (("target", rows.target_logits), ("draft", rows.draft_logits)):
                where = _place(shard, prompt_idx, which)
                stored = encode_rows(logits, self.manifest.dtype, where)
                yield np.ascontiguousarray(stored).data.cast("B")


def check_shard(manifest: Manifest, shard: Shard, prompts: Sequence[PromptRows]) -> None:
    """Raise what `DumpWriter.write_shard` would raise for these rows, without writing."""
    for i, n, rows in zip(shard.prompt_idxs, shard.n_positions, prompts, strict=True):
        _check_prompt(manifest, shard, i, n, rows)
        for which, logits in (("target", rows.target_logits), ("draft", rows.draft_logits)):
            checked_rows(logits, manifest.dtype, _place(shard, i, which))


def _place(shard: Shard, prompt_idx: int, which: str) -> str:
    return f"{shard.file}, prompt {prompt_idx}, {which} logits"


def _check_prompt(
    manifest: Manifest, shard: Shard, prompt_idx: int, n: int, rows: PromptRows
) -> NDArray[Any]:
    where = f"{shard.file}, prompt {prompt_idx}"
    ids, target, draft = (np.asarray(part) for part in rows)
    size = manifest.target_vocab_size
    for name, array, shape in (
        ("token_ids", ids, (n,)),
        ("target_logits", target, (n, size)),
        ("draft_logits", draft, (n, manifest.draft_vocab_size)),
    ):
        if array.shape != shape:
            raise InputError(f"{where}: {name} has shape {array.shape}, but the plan says {shape}")
        if array.dtype.kind not in ("iu" if name == "token_ids" else "fiu"):
            raise InputError(f"{where}: {name} has type {array.dtype}")
    outside = np.flatnonzero((ids < 0) | (ids >= size))
    if outside.size:
        j = int(outside[0])
        raise InputError(
            f"{where}, position {j}: token {ids[j]} is outside the target's {size} tokens"
        )
    impossible = np.flatnonzero(np.isneginf(target[np.arange(n), ids]))
    if impossible.size:
        j = int(impossible[0])
        raise InputError(
            f"{where}, position {j}: recorded token {ids[j]} has target logit -inf, so the "
            "target cannot have sampled it; row j must be the logits that predicted token j"
        )
    return ids


def _sidecar(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _temporary(file: Path) -> Path:
    return file.with_name(file.name + ".tmp")


def _read_sidecar(file: Path) -> str | None:
    try:
        words = _sidecar(file).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[0] if words else None


def _write_synced(file: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write chunks through to the disk; return the sha256 of what was written."""
    digest = hashlib.sha256()
    with open(file, "wb") as handle:
        for chunk in chunks:
            handle.write(chunk)
            digest.update(chunk)
        handle.flush()
        os.fsync(handle.fileno())
    return digest.hexdigest()
