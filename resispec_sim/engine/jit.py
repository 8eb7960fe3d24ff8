"""The one place that sets numba's options.

No fastmath: laws are checked to 1e-12 and depend on the order of operations as written.

Kernels are kept on disk, where the processes of a replay may all compile and load them at once. Numba
replaces the index of a kernel's file and the file itself one after the other, so a process that looks
in between would load the code of another version or signature; a lock on the folder closes that gap.
"""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import event

LOCK_NAME = "resispec-kernels.lock"


def njit(function: Callable[..., Any]) -> Any:
    """Compile a kernel on its first call, without the GIL; keep it on disk if a folder can be written.

    With ``NUMBA_DISABLE_JIT=1`` the function is returned as it is.
    """
    kernel = numba.njit(nogil=True, error_model="numpy")(function)
    if hasattr(kernel, "enable_caching"):
        # A RuntimeError says that no folder can be written: the kernel then lives in memory only.
        with contextlib.suppress(RuntimeError):
            kernel.enable_caching()
            cache = kernel._cache
            cache._cache_file = _LockedFile(cache._cache_file, Path(cache.cache_path))
    return kernel


@contextlib.contextmanager
def announced_compilation(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` before the first kernel that is compiled inside; never, if all are found on disk."""
    listener = _Announcement(say)
    with event.install_listener("numba:compile", listener):
        yield


class _Announcement(event.Listener):
    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._said = False

    def on_start(self, event: Any) -> None:
        if not self._said:
            self._said = True
            self._say()

    def on_end(self, event: Any) -> None:
        pass


class _LockedFile:
    """A kernel's file on disk, read and written under a lock between processes."""

    def __init__(self, file: Any, folder: Path) -> None:
        self._file = file
        self._lock = folder / LOCK_NAME

    def load(self, key: Any) -> Any:
        with self._locked(fcntl.LOCK_SH):
            return self._file.load(key)

    def save(self, key: Any, data: Any) -> None:
        with self._locked(fcntl.LOCK_EX):
            self._file.save(key, data)

    def flush(self) -> None:
        with self._locked(fcntl.LOCK_EX):
            self._file.flush()

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            # No lock is better than no kernel: a folder may be read-only, a file system without locks.
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(self._lock, "ab"))
                fcntl.flock(file, kind)
            yield
