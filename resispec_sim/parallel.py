"""Runs work over the positions of a dump: in threads, in processes, or on a cluster.

Results depend on the positions only: not on the order in which they are computed, the number of
workers, where a chunk is cut, or how often it is computed again.
"""

import contextlib
import logging
import sys
import threading
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any, get_args

from joblib import Parallel, delayed, effective_n_jobs

from .checks import check_whole
from .chunks import Chunk, Done, Parcel, Work, announced, compute, cut, error_of, pack
from .config import WORKERS
from .dumps import Dump
from .errors import InputError, WorkerError
from .types import Backend

Progress = contextlib.AbstractContextManager[Callable[[], None]]
Keep = Callable[[int, list[Any]], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workers:
    """Who computes: ``n_jobs`` threads or processes, or the cluster behind ``scheduler``."""

    n_jobs: int
    backend: Backend
    scheduler: str | None


def check_workers(n_jobs: Any, backend: Any, scheduler: Any) -> Workers:
    """Check the choice of workers (`InputError`).

    Examples
    --------
    >>> check_workers(2, "threads", None)
    Workers(n_jobs=2, backend='threads', scheduler=None)
    """
    n_jobs = check_whole("n_jobs", n_jobs)
    if n_jobs == 0:
        raise InputError("n_jobs is 0: give a number of workers, or -1 for one per core")
    if backend not in get_args(Backend):
        raise InputError(f"backend is {backend!r}: use one of {', '.join(get_args(Backend))}")
    if scheduler is not None and backend != "dask":
        raise InputError(
            f"scheduler is {scheduler!r}, but the backend is {backend!r}: a scheduler is for 'dask'"
        )
    if scheduler is not None and not isinstance(scheduler, str):
        raise InputError(f"scheduler is {scheduler!r}: give an address such as 'tcp://host:8786'")
    return Workers(n_jobs, backend, scheduler)


def run_positions(
    work: Work,
    dump: Dump,
    start: int,
    stop: int,
    workers: Workers,
    progress: Progress | None = None,
    on_result: Callable[[list[Any]], None] = lambda results: None,
) -> tuple[list[Any], bool]:
    """Compute `work` at positions ``start`` to ``stop - 1``.

    Parameters
    ----------
    work : callable
        Called with the dump, a position's index and the position; returns a list of results.
    dump : Dump
    start, stop : int
    workers : Workers
    progress : context manager, optional
        Yields the function that is called after each position. With one, the user is told on stderr
        if kernels have to be compiled.
    on_result : callable
        Called with the results of each position, in any order.

    Returns
    -------
    results : list
        Those of all positions, in order of position.
    partial : bool
        Whether Ctrl-C cut it short.

    Raises
    ------
    WorkerError
        If workers cannot be reached, cannot read the dump, or are lost over the same chunk too often.
    KeyboardInterrupt
        If there was nothing computed to keep.
    """
    found: dict[int, list[Any]] = {}
    interactive = progress is not None
    run = _run_here if _stays_here(workers) else _run_elsewhere
    partial = False
    with progress if progress is not None else contextlib.nullcontext(lambda: None) as advance:

        def keep(index: int, results: list[Any]) -> None:
            found[index] = results
            on_result(results)
            advance()

        try:
            run(work, dump, (start, stop), workers, keep, interactive)
        except KeyboardInterrupt:
            if not found:
                raise
            partial = True
    return [result for index in sorted(found) for result in found[index]], partial


def _stays_here(workers: Workers) -> bool:
    if workers.backend == "processes":
        return effective_n_jobs(workers.n_jobs) == 1
    return workers.backend == "threads"


def _run_here(
    work: Work,
    dump: Dump,
    span: tuple[int, int],
    workers: Workers,
    keep: Keep,
    interactive: bool,
) -> None:
    ended = False
    lock = threading.Lock()

    def compute_here(chunk: Chunk) -> None:
        nonlocal ended
        try:
            compute_chunk(chunk)
        except BaseException:
            with lock:
                ended = True  # what the other threads still find is not kept either
            raise

    def compute_chunk(chunk: Chunk) -> None:
        with contextlib.closing(dump.iter_positions(chunk.start, chunk.stop)) as positions:
            for index, position in enumerate(positions, start=chunk.start):
                results = work(dump, index, position)
                with lock:
                    if ended:
                        return
                    keep(index, results)

    chunks = cut(dump, *span, effective_n_jobs(workers.n_jobs))
    # Threads, since the kernels release the GIL.
    parallel = Parallel(
        n_jobs=workers.n_jobs,
        backend="threading",
        pre_dispatch="n_jobs",
        batch_size=1,
        return_as="generator_unordered",
    )
    with contextlib.ExitStack() as stack:
        if interactive:
            stack.enter_context(announced(_say))
        results = parallel(delayed(compute_here)(chunk) for chunk in chunks)
        try:
            for _ in results:
                pass
        finally:
            # Threads cannot be stopped: from here on what they still find is dropped.
            with lock:
                ended = True
            _close(results)


def _run_elsewhere(
    work: Work,
    dump: Dump,
    span: tuple[int, int],
    workers: Workers,
    keep: Keep,
    interactive: bool,
) -> None:
    parcel = pack(work, dump, uuid.uuid4().hex)
    with _backend(workers) as (backend, n_workers):
        queue = _Queue(cut(dump, *span, n_workers), n_workers)
        first = span[0] if interactive else None
        while queue:
            parallel = Parallel(
                n_jobs=workers.n_jobs,
                backend=backend(),
                # Twice as many as there are workers, so that none waits for its next chunk.
                pre_dispatch=1 if queue.suspects else 2 * n_workers,
                batch_size=1,
                return_as="generator_unordered",
            )
            results = parallel(queue.tasks(parcel, announce_at=first))
            try:
                for done in results:
                    for index, of_position in done.found:
                        keep(index, of_position)
                    queue.finish(done)
                    error = error_of(done)
                    if error is not None:
                        raise error
            except Exception as error:
                if not _is_lost(error, workers):
                    raise
                # Of a cluster: the scheduler has tried again itself.
                queue.lose(error, times=WORKERS.max_losses - 1 if workers.backend == "dask" else 1)
            finally:
                _close(results)


@contextlib.contextmanager
def _backend(workers: Workers) -> Iterator[tuple[Callable[[], Any], int]]:
    """Makes a joblib backend for every round, and the number of workers behind it."""
    if workers.backend == "dask":
        from .cluster import connected

        with connected(workers.scheduler) as backend:
            yield lambda: backend, backend.effective_n_jobs(-1)
    else:
        from joblib.parallel import LokyBackend

        # One thread each: the processes share the cores already.
        yield (
            lambda: LokyBackend(inner_max_num_threads=1),
            effective_n_jobs(workers.n_jobs),
        )


def _is_lost(error: Exception, workers: Workers) -> bool:
    if workers.backend == "dask":
        from .cluster import is_lost

        return is_lost(error)
    return isinstance(error, BrokenExecutor)


class _Queue:
    """Chunks that wait, chunks under way, and how often a worker was lost over each."""

    def __init__(self, chunks: list[Chunk], n_workers: int) -> None:
        self._waiting = deque(chunks)
        self._under_way: set[Chunk] = set()
        self._losses: Counter[Chunk] = Counter()
        self._n_workers = n_workers

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def suspects(self) -> list[Chunk]:
        """Waiting chunks over which so many workers were lost that they have to run alone."""
        limit = WORKERS.max_losses - 1
        return [chunk for chunk in self._waiting if self._losses[chunk] >= limit]

    def tasks(self, parcel: Parcel, announce_at: int | None) -> Iterator[Any]:
        """The calls to make, one by one as workers get free; suspects alone if there are any."""
        alone = self.suspects
        if alone:
            self._waiting = deque(chunk for chunk in self._waiting if chunk not in alone)
        source = deque(alone) if alone else self._waiting
        while source:
            chunk = source.popleft()
            self._under_way.add(chunk)
            yield delayed(compute)(parcel, chunk, announce=chunk.start == announce_at)

    def finish(self, done: Done) -> None:
        """Note a chunk that came back, and put what is left of it in front."""
        self._under_way.discard(done.chunk)
        if done.rest is not None:
            # With nothing else to do the rest is for all workers.
            parts = [done.rest] if self._waiting else done.rest.split(self._n_workers)
            self._waiting.extendleft(reversed(parts))

    def lose(self, error: Exception, times: int) -> None:
        """Put chunks under way back; `WorkerError` if one was lost too often, and alone at last."""
        lost = sorted(self._under_way)
        self._under_way.clear()
        for chunk in lost:
            self._losses[chunk] += times
        if len(lost) == 1 and self._losses[lost[0]] >= WORKERS.max_losses:
            raise WorkerError(
                f"{lost[0]}: workers die over it again and again, also with nothing else to do "
                f"({type(error).__name__}); look at their memory and their log, or compute it here "
                "with backend='threads'"
            ) from error
        _log.warning(
            "a worker was lost (%s); computing again: %s",
            type(error).__name__,
            ", ".join(map(str, lost)),
        )
        self._waiting.extendleft(reversed(lost))


def _close(results: Any) -> None:
    """Give up what is under way; that it was cancelled is no news to who asked for it."""
    with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
        warnings.filterwarnings("ignore", ".*You could benefit from adjusting", UserWarning)
        results.close()


def _say(line: str) -> None:
    print(line, file=sys.stderr)
