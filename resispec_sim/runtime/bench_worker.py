"""A system in a process of its own, so that one method's memory and kernels do not touch another's."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from ..errors import ResispecError, WorkerError
from .bench_log import PromptRecord
from .bench_system import System, SystemSpec

OpenSystem = Callable[[SystemSpec], AbstractContextManager[System]]

GOODBYE_SECONDS = 5.0


class RemoteSystem:
    """Asks a process for prompts and waits for each."""

    def __init__(self, process: Any, pipe: Connection, name: str) -> None:
        self._process = process
        self._pipe = pipe
        self._name = name
        self.about: dict[str, object] = self._receive()

    def decode(self, index: int, text: str, seed: int, profile: bool) -> PromptRecord:
        """Decode one prompt there.

        Raises
        ------
        WorkerError
            If the process dies, or fails in a way that the package does not know.
        """
        self._pipe.send((index, text, seed, profile))
        record: PromptRecord = self._receive()
        return record

    def _receive(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(GOODBYE_SECONDS)
            raise WorkerError(
                f"the process of {self._name} ended without an answer (exit code "
                f"{self._process.exitcode}); if it ran out of memory, --order sequential holds one "
                "system at a time"
            ) from None
        if kind == "known":
            raise value
        if kind == "unknown":
            raise WorkerError(f"the process of {self._name} failed: {value}")
        return value


@contextmanager
def remote_system(spec: SystemSpec, open_system: OpenSystem) -> Iterator[RemoteSystem]:
    """Start a process, spawned and not forked, that holds a system; it ends with the block.

    Raises
    ------
    ResispecError
        What opening the system raised there; `WorkerError` for errors of other kinds.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, spec, open_system), daemon=True)
    process.start()
    there.close()
    try:
        yield RemoteSystem(process, here, spec.method.name)
    finally:
        here.close()  # ends the process's loop
        process.join(GOODBYE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(pipe: Connection, spec: SystemSpec, open_system: OpenSystem) -> None:
    # Ctrl-C reaches the whole group; the parent decides, and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open_system(spec) as system:
            pipe.send(("value", system.about))
            while True:
                pipe.send(("value", system.decode(*pipe.recv())))
    except (EOFError, BrokenPipeError):
        return
    except ResispecError as error:
        pipe.send(("known", error))
    except Exception as error:
        pipe.send(("unknown", f"{type(error).__name__}: {error}"))
