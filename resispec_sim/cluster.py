"""A Dask cluster as a backend of joblib. The extra ``cluster`` is imported here and nowhere else."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from . import __version__
from .config import WORKERS
from .errors import WorkerError

# By name, since they are imported with the extra only, and from modules that change.
_SCHEDULER_GONE = {"FutureCancelledError", "ClosedClientError", "CommClosedError"}

INSTALL = 'pip install "resispec-sim[cluster]"'


@contextlib.contextmanager
def connected(scheduler: str | None) -> Iterator[Any]:
    """A backend for `joblib.Parallel` on the cluster behind a scheduler.

    Parameters
    ----------
    scheduler : str or None
        Address such as ``"tcp://host:8786"``; None takes the client that is active in this process.

    Raises
    ------
    WorkerError
        If the extra is not installed, or nobody answers at the address, or there are no workers.
    """
    try:
        from distributed import Client, get_client
    except ImportError as error:
        raise WorkerError(
            f"backend 'dask' needs the extra 'cluster' ({error}): {INSTALL}"
        ) from error
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            try:
                client = get_client()
            except ValueError:
                raise WorkerError(
                    "backend 'dask' without the address of a scheduler, and no dask client is active: "
                    "give one, such as scheduler='tcp://host:8786' (--scheduler)"
                ) from None
        else:
            try:
                # Asked first: a client that was never connected complains again when it is deleted.
                _knock(scheduler)
                client = Client(scheduler, timeout=WORKERS.connect_seconds, set_as_default=False)
            except (OSError, ValueError, TypeError) as error:
                raise WorkerError(
                    f"no scheduler answers at {scheduler!r} within {WORKERS.connect_seconds:g} s "
                    f"({type(error).__name__}: {error}); start one with `dask scheduler`, workers with "
                    "`dask worker ADDRESS`, and give the address that it prints"
                ) from error
            stack.enter_context(client)
        address = scheduler or client.scheduler.address  # type: ignore[union-attr]
        try:
            client.wait_for_workers(1, timeout=WORKERS.worker_seconds)
        except TimeoutError as error:
            raise WorkerError(
                f"the scheduler at {address} has no workers after "
                f"{WORKERS.worker_seconds:g} s; start some with `dask worker {address}`"
            ) from error
        _check_versions(client)
        try:
            yield _backend(client)
        except Exception as error:
            if type(error).__name__ in _SCHEDULER_GONE:
                raise WorkerError(
                    f"the scheduler at {address} is gone ({type(error).__name__}: {error}); start it "
                    "and its workers again, then this command"
                ) from error
            raise


def _knock(scheduler: str) -> None:
    from distributed.comm.addressing import parse_address, parse_host_port

    scheme, place = parse_address(scheduler)
    host, port = parse_host_port(place)
    if scheme in ("tcp", "tls"):
        socket.create_connection((host, port), timeout=WORKERS.connect_seconds).close()


def _check_versions(client: Any) -> None:
    """Refuse workers without this package, or with another version of it.

    A worker that cannot import what it is sent ends without a word, and the work would wait for ever.
    What is sent here can be loaded anywhere.
    """
    asked = "__import__('resispec_sim').__version__"
    for worker, found in client.run(eval, asked, on_error="return").items():
        if isinstance(found, Exception):
            raise WorkerError(
                f"the worker at {worker} cannot import resispec_sim ({found}): install it there, in "
                f"version {__version__}"
            )
        if found != __version__:
            raise WorkerError(
                f"the worker at {worker} has resispec-sim {found}, this side {__version__}: install "
                "the same version"
            )


def _backend(client: Any) -> Any:
    from distributed.client import Future
    from joblib._dask import DaskDistributedBackend
    from joblib.parallel import SequentialBackend

    class Backend(DaskDistributedBackend):  # type: ignore[misc]
        """joblib's backend, which waits for ever for a task whose workers died too often."""

        def effective_n_jobs(self, n_jobs: int) -> int:
            try:
                # joblib runs one job in this process, where the shards need not be.
                return max(2, super().effective_n_jobs(n_jobs))
            except TimeoutError as error:
                raise WorkerError(
                    f"the cluster has no worker left after {WORKERS.restart_seconds:g} s; look at the "
                    "logs and the memory of its workers, and start them again"
                ) from error

        def get_nested_backend(self) -> tuple[Any, int]:
            return SequentialBackend(nesting_level=1), 1

        def start_call(self) -> None:
            self._submitted: set[Future] = set()

        def stop_call(self) -> None:
            self._submitted.clear()

        def submit(self, func: Callable[[], Any], callback: Callable[[Any], None]) -> Any:
            future = self.client.submit(_call, func, pure=False)
            self._submitted.add(future)
            future.add_done_callback(callback)
            return future

        def retrieve_result_callback(self, future: Any) -> Any:
            self._submitted.discard(future)
            return future.result()

        def abort_everything(self, ensure_ready: bool = True) -> None:
            self.client.cancel(list(self._submitted))
            self._submitted.clear()

    return Backend(client=client, wait_for_workers_timeout=WORKERS.restart_seconds)


def _call(func: Callable[[], Any]) -> Any:
    return func()


def is_lost(error: BaseException) -> bool:
    """Whether an error says that workers of a cluster died over a task, one after the other."""
    return type(error).__name__ == "KilledWorker"
