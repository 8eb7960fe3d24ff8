"""The one place that sets numba's options.

No fastmath: laws are checked to 1e-12 and depend on the order of operations as written.

Kernels are kept on disk, where the processes of a replay may all compile and load them at once. Numba
replaces the index of a kernel's file and the file itself one after the other, so a process that looks
in between would load the code of another version or signature; a lock on the folder closes that gap.
"""

import contextlib
import fcntl
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.types.misc import unliteral

LOCK_NAME = "resispec-kernels.lock"


def njit(function: Callable[..., Any]) -> Any:
    """Compile a kernel on its first call, without the GIL; keep it on disk if a folder can be written.

    With ``NUMBA_DISABLE_JIT=1`` the function is returned as it is.
    """
    return _kept_on_disk(function)


def kernel(function: Callable[..., Any]) -> Any:
    """As `njit`, without numba's runtime: for loops that use many arrays and make none.

    With it a function counts references to the arrays that it is given, which in the inner loops of a
    walk costs ten times what the arithmetic does. Every scratch space is an argument instead.
    """
    return _kept_on_disk(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """As `kernel`, for what is called once per path: a call would copy all arrays' descriptors."""
    return _kept_on_disk(function, _nrt=False, forceinline=True)


def _kept_on_disk(function: Callable[..., Any], **options: Any) -> Any:
    compiled = numba.njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(
        function
    )
    if hasattr(compiled, "enable_caching"):
        compiled.get_call_template = _without_literals(compiled.get_call_template)
        # A RuntimeError says that no folder can be written: the kernel then lives in memory only.
        with contextlib.suppress(RuntimeError):
            compiled.enable_caching()
            cache = compiled._cache
            # Numba looks at a kernel's own file only, but the code of others is compiled into it.
            cache._cache_file._source_stamp = _stamp_of_all(cache._cache_file._source_stamp)
            cache._cache_file = _LockedFile(cache._cache_file, Path(cache.cache_path))
    return compiled


def _without_literals(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Numba compiles a function once more for every constant that it is called with; once is enough."""

    def resolved(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return resolve(tuple(map(unliteral, args)), kws)

    return resolved


@functools.cache
def _stamp_of_all(own: Any) -> Any:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return own, [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files]


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
