"""The progress bar of long commands, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import ProgressColumn as _Column
from rich.text import Text


class RateColumn(_Column):
    """Positions, or another unit, per second."""

    def __init__(self, unit: str = "positions") -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """Return the rate, or a placeholder before the first position."""
        speed = task.finished_speed or task.speed
        return Text(f"{'--' if speed is None else format(speed, '.3g')} {self.unit}/s")


@contextmanager
def position_progress(
    total: int, label: str = "replay", unit: str = "positions"
) -> Iterator[Callable[..., None]]:
    """Show a bar with rate and time left; yields the function that advances it, by one unless told.

    Parameters
    ----------
    total : int
        Positions to come.
    label : str
        Text before the bar.
    unit : str
        What is counted, in the plural.
    """
    progress = Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(unit),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task(label, total=total)
        yield lambda n=1: progress.advance(task, n)
