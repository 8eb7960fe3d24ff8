"""The engine's walk over paths of rejections, apart from what surrounds it in a law."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resispec_sim.engine import paths
from resispec_sim.engine.predict import count_children
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.engine.resispec import MOMENTS_FROM
from resispec_sim.engine.tail import to_table
from resispec_sim.rules import ResiSpec


class Prepared(NamedTuple):
    """A position that is ordered and summed up: what a walk starts from."""

    space: Any
    first: Any


class Walk(NamedTuple):
    """Accepted mass per sibling (K,), and the path-steps that the engine says it summed over."""

    accepted: NDArray[np.float64]
    n_steps: int


def prepare(target_probs: NDArray[np.float64], draft_probs: NDArray[np.float64]) -> Prepared:
    """Order a position by p/q, with its prefix sums."""
    space = to_ratio_space(target_probs, draft_probs)
    return Prepared(space, paths.first_rejection(ResiSpec(), space))


def walk(prepared: Prepared, n_siblings: int, *, want_law: bool) -> Walk:
    """Walk all paths of ResiSpec, for the law or for acceptance alone, look-up tables included.

    Acceptance of n siblings needs paths of up to n - 1 rejections, the law one more.
    """
    space, first = prepared
    pairs, _ = count_children(space, first.weight)
    table = to_table(space, with_moments=n_siblings > 1 and pairs > MOMENTS_FROM)
    walked = paths.run_walk(ResiSpec(), space, table, first, n_siblings, want_law=want_law)
    return Walk(walked.accepted, int(walked.steps))
