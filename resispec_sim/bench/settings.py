"""What all parts of the benchmark share: how much is measured, the dumps, and the bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.config import BENCH, ENGINE
from resispec_sim.dumps import Dump, Position, open_dump

Bar = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Begins a bar with a label and a number of steps; gives the function that advances it by one."""


def no_bar(label: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    """A bar that is not shown."""
    return nullcontext(lambda: None)


class Place(NamedTuple):
    """A recorded position."""

    dump: Dump
    position: Position
    number: int

    def probs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Target and draft at the dump's own temperature, from the logits that were read."""
        return self.dump.probs(self.position)

    def about(self) -> dict[str, Any]:
        """Name of the dump, position, temperature."""
        return {
            "dump": self.dump.about()["name"],
            "position": self.number,
            "temperature": self.dump.temperature,
        }


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes
    ----------
    dumps : tuple of str
    most_positions : int or None
        Positions of each dump, the first ones; None for all.
    repeats : int
        Timed rounds at least of short calls.
    naive_seconds : float
    siblings, more_siblings, vocab_sizes, sibling_counts, pairs, seed
        As in `resispec_sim.config.BenchConfig`.
    max_paths : int
        Budget of the engine at single positions.
    ranges : tuple of (str, float, float)
        Classes of path-steps at which rates are measured: name, least, most.
    scale_gb : float or None
        Size of the made-up dump that is replayed, if any.
    bar
        Progress.
    """

    dumps: tuple[str, ...] = BENCH.dumps
    most_positions: int | None = None
    repeats: int = 7
    naive_seconds: float = BENCH.naive_seconds
    siblings: int = BENCH.siblings
    more_siblings: tuple[int, ...] = BENCH.more_siblings
    vocab_sizes: tuple[int, ...] = BENCH.vocab_sizes
    sibling_counts: tuple[int, ...] = BENCH.sibling_counts
    pairs: int = BENCH.pairs
    seed: int = BENCH.seed
    max_paths: int = ENGINE.max_paths
    ranges: tuple[tuple[str, float, float], ...] = (("1e6..1e7", 1e6, 1e7), ("1e8", 4e7, 2.5e8))
    scale_gb: float | None = None
    bar: Bar = field(default=no_bar, repr=False)

    @contextmanager
    def places(self) -> Iterator[list[Place]]:
        """The positions of all dumps, which are closed afterwards."""
        with ExitStack() as stack:
            found = []
            for name in self.dumps:
                dump = stack.enter_context(open_dump(name))
                stop = min(dump.n_positions, self.most_positions or dump.n_positions)
                found += [Place(dump, dump.read(i), i) for i in range(stop)]
            yield found


QUICK = Settings(
    most_positions=1,
    max_paths=1_000_000,
    repeats=2,
    naive_seconds=0.05,
    more_siblings=(4,),
    vocab_sizes=(512, 1024),
    sibling_counts=(1, 2, 3),
    pairs=1,
    ranges=(("1e4..1e6", 1e4, 1e6),),
)
"""Seconds in place of minutes: shows that everything runs, and no figure to quote."""
