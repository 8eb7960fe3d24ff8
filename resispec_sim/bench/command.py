"""The command `resispec bench`: parse, call, print."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from resispec_sim.config import BENCH
from resispec_sim.errors import InputError
from resispec_sim.terminal import INTERRUPTED, Json, console, make_folder


def bench_command(
    *,
    parts: str = ",".join(BENCH.parts),
    quick: bool = False,
    scale_gb: float | None = None,
    json_output: Json = False,
    out: Path | None = None,
    plot: Path | None = None,
) -> int:
    """Measure the engine on this machine, every figure as a ratio within the run.

    It takes some minutes and wants a machine with nothing else to do. Ctrl-C ends it and shows the parts
    that are finished (exit code 130).

    Parameters
    ----------
    parts : str
        Comma list: rates, preparation, positions, siblings, processes, scaling.
    quick : bool
        Seconds in place of minutes, with a smaller budget of paths: shows that everything runs, no figure
        to quote.
    scale_gb : float, optional
        Also replay a made-up dump of so many GB. Off by default.
    out : Path, optional
        Folder for bench.json and a CSV file per table.
    plot : Path, optional
        Folder for performance.png and performance.csv: cost against V and n.
    """
    if plot is not None and "scaling" not in parts:
        raise InputError("--plot shows the part 'scaling': add it to --parts")
    for folder in (out, plot):
        if folder is not None:
            make_folder(folder)

    from resispec_sim.bench.plot import save_plot
    from resispec_sim.bench.report import save, table, to_json
    from resispec_sim.bench.run import benchmark

    results = benchmark(parts, quick=quick, scale_gb=scale_gb, bar=_bar)
    if out is not None:
        print(f"written to {save(results, out)}", file=sys.stderr)
    if plot is not None and "scaling" in results:
        print(f"written to {save_plot(results, plot)}", file=sys.stderr)
    if json_output:
        print(to_json(results))
    else:
        console().print(table(results))
    return INTERRUPTED if results["partial"] else 0


def _bar(label: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    return _shown(label, total)


@contextmanager
def _shown(label: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    # beside a measurement, twice a second is often enough
    err = Console(stderr=True)
    if not err.is_terminal:
        print(f"resispec bench: {label}", file=sys.stderr)
    with Progress(
        console=err, transient=True, refresh_per_second=2, disable=not err.is_terminal
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)
