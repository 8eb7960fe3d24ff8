"""The engine's walk over paths of rejections, apart from what surrounds it in a law."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine import paths
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.rules import ResiSpec


class Prepared(NamedTuple):
    """A position that is ordered and summed up: what a walk starts from."""

    space: Any
    first: Any
    tables: tuple[Any, ...]


class Walk(NamedTuple):
    """Accepted mass per sibling (K,), and the path-steps that the engine says it summed over."""

    accepted: NDArray[np.float64]
    n_steps: int


def prepare(target_probs: NDArray[np.float64], draft_probs: NDArray[np.float64]) -> Prepared:
    """Order a position by p/q, with its prefix sums and look-up tables."""
    space = to_ratio_space(target_probs, draft_probs)
    tables: tuple[Any, ...] = ()
    if "table" in inspect.signature(paths.run_walk).parameters:
        tail = importlib.import_module("resispec_sim.engine.tail")
        tables = (tail.to_table(space, with_moments=True),)
    return Prepared(space, paths.first_rejection(ResiSpec(), space), tables)


def walk(prepared: Prepared, n_siblings: int, *, want_law: bool) -> Walk:
    """Walk all paths of ResiSpec, for the law or for acceptance alone.

    Acceptance of n siblings needs paths of up to n - 1 rejections, the law one more.
    """
    space, first, tables = prepared
    run: Any = paths.run_walk
    walked = run(ResiSpec(), space, *tables, first, n_siblings, want_law=want_law)
    return Walk(walked.accepted, int(walked.steps))
