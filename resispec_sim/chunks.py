"""Chunks of positions: how work is cut, and how a chunk is computed in another process."""

import contextlib
import hashlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from . import __version__
from .config import WORKERS
from .dumps import Dump, Position, open_dump, resolve_dump, shipped_names
from .dumps.schema import encode_manifest
from .errors import DumpError, ResispecError, WorkerError

COMPILING = "compiling kernels, once per installation and kind of rule (up to two minutes)"


class Work(Protocol):
    """What is computed at a position. Travels to other processes, so it holds plain data."""

    def __call__(self, dump: Dump, index: int, position: Position, /) -> list[Any]:
        """The results of position `index`: small, without arrays of vocabulary size."""


@dataclass(frozen=True, order=True)
class Chunk:
    """Positions ``start`` to ``stop - 1`` of one shard."""

    start: int
    stop: int

    def __str__(self) -> str:
        if self.stop - self.start == 1:
            return f"position {self.start}"
        return f"positions {self.start} to {self.stop - 1}"

    def split(self, n_parts: int) -> list["Chunk"]:
        """At most `n_parts` chunks of equal size."""
        size = -(-(self.stop - self.start) // n_parts)
        starts = range(self.start, self.stop, size)
        return [Chunk(at, min(at + size, self.stop)) for at in starts]


def cut(dump: Dump, start: int, stop: int, n_workers: int) -> list[Chunk]:
    """Cut positions into chunks: whole shards first, smaller ones towards the end.

    Whole shards, since a worker verifies each shard that it reads; smaller ones, so that no worker is
    left alone with a large one.

    Examples
    --------
    >>> import tempfile
    >>> from resispec_sim.dumps import write_dump
    >>> row = [[0.0, 1.0]] * 6
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_dump(folder, [row], [row], [[0] * 6]) as dump:
    ...         [str(chunk) for chunk in cut(dump, 0, 6, n_workers=1)][:2]
    ['positions 0 to 1', 'position 2']
    """
    ends = []
    end = 0
    for shard in dump.manifest.shards:
        end += sum(shard.n_positions)
        ends.append(end)
    chunks = []
    for end in ends:
        while start < min(end, stop):
            size = -(-(stop - start) // (WORKERS.chunks_per_worker * n_workers))
            chunks.append(Chunk(start, min(start + size, end, stop)))
            start = chunks[-1].stop
    return chunks


@dataclass(frozen=True)
class Parcel:
    """Work on a dump, ready to travel: a name for this run, and the pickled rest."""

    key: str
    data: bytes


@dataclass(frozen=True)
class Done:
    """What comes back for a chunk: results by position, and what is left to do.

    ``error`` is the pickled exception that ended it, None if there was none.
    """

    chunk: Chunk
    found: list[tuple[int, list[Any]]]
    rest: Chunk | None = None
    error: bytes | None = None


def pack(work: Work, dump: Dump, key: str) -> Parcel:
    """Pickle work for other processes; `WorkerError` if it holds what cannot travel."""
    path = str(dump.path.resolve())
    try:
        data = cloudpickle.dumps((__version__, work, path, _fingerprint(dump)))
    except Exception as error:  # whatever the attributes of a rule of the caller raise
        raise WorkerError(
            f"the work cannot be sent to another process ({error}): a rule of your own holds what "
            "cannot be pickled, such as a lock or an open file; remove that, or use backend='threads'"
        ) from error
    return Parcel(key, data)


def _fingerprint(dump: Dump) -> str:
    # The checksums of all shards are in the manifest.
    return hashlib.sha256(encode_manifest(dump.manifest)).hexdigest()


def compute(parcel: Parcel, chunk: Chunk, *, announce: bool = False) -> Done:
    """Compute a chunk in a worker process: open the dump there, verify the shard, keep the results.

    Parameters
    ----------
    parcel : Parcel
    chunk : Chunk
    announce : bool
        Whether to say on stderr that kernels are compiled.

    Returns
    -------
    Done
        Errors come back in it.
    """
    found: list[tuple[int, list[Any]]] = []
    with _without_ctrl_c(), contextlib.ExitStack() as stack:
        try:
            if announce:
                stack.enter_context(announced(lambda line: print(line, file=sys.stderr)))
            work, dump = _opened(parcel)
            end = time.monotonic() + _patience(dump, chunk)
            positions = stack.enter_context(
                contextlib.closing(dump.iter_positions(chunk.start, chunk.stop))
            )
            for index, position in enumerate(positions, start=chunk.start):
                found.append((index, work(dump, index, position)))
                if index + 1 < chunk.stop and time.monotonic() > end:
                    return Done(chunk, found, rest=Chunk(index + 1, chunk.stop))
        except Exception as error:  # of a rule of the caller, too
            return Done(chunk, found, error=_pickled(error))
    return Done(chunk, found)


def error_of(done: Done) -> Exception | None:
    """The exception that ended a chunk, made whole again."""
    return None if done.error is None else pickle.loads(done.error)


@contextlib.contextmanager
def announced(say: Any) -> Iterator[None]:
    """Say once if kernels are compiled inside."""
    from .engine.jit import announced_compilation

    with announced_compilation(lambda: say(f"resispec: {COMPILING}")):
        yield


def _patience(dump: Dump, chunk: Chunk) -> float:
    shard = dump.manifest.shards[dump.shard_of(chunk.start)]
    return WORKERS.hand_back_seconds + WORKERS.hand_back_seconds_per_gb * shard.n_bytes / 1e9


# The work of the last run in this process, with its open dump: a shard is verified once per process.
_last: tuple[str, Work, Dump] | None = None
_opening = threading.Lock()


def _opened(parcel: Parcel) -> tuple[Work, Dump]:
    global _last
    with _opening:
        if _last is None or _last[0] != parcel.key:
            try:
                version, work, path, fingerprint = pickle.loads(parcel.data)
            except Exception as error:
                raise WorkerError(
                    f"{_here()} cannot load the work ({type(error).__name__}: {error}); install the "
                    "module that defines the rule there, and this package in the same version"
                ) from error
            if version != __version__:
                raise WorkerError(
                    f"{_here()} runs resispec-sim {__version__}, this side {version}: install the same"
                )
            _last = parcel.key, work, _open_here(path, fingerprint)
        return _last[1], _last[2]


def _open_here(path: str, fingerprint: str) -> Dump:
    name = Path(path).name
    try:
        if not Path(path).is_dir() and name in shipped_names():
            dump = open_dump(resolve_dump(name))
        else:
            dump = open_dump(path)
    except DumpError as error:
        raise WorkerError(
            f"{_here()} cannot read the dump {path} ({error}); workers read shards themselves, so the "
            "folder must be there under the same path: share it, or copy it"
        ) from error
    if _fingerprint(dump) != fingerprint:
        raise WorkerError(
            f"{_here()} has another dump at {path}: its manifest differs; copy the dump there again"
        )
    return dump


def _here() -> str:
    return f"the worker on {socket.gethostname()} (process {os.getpid()})"


def _pickled(error: Exception) -> bytes:
    if not isinstance(error, ResispecError):
        error.add_note(f"Raised by {_here()}:\n{traceback.format_exc()}")
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:
        words = "".join(traceback.format_exception_only(error)).strip()
        return pickle.dumps(WorkerError(f"{_here()}: {words}"))
    return data


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that reports."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
