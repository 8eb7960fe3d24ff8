"""Splits the unit cube of a verifier's uniforms into boxes on which it returns the same.

A split is a generator: it yields arrays of points, (m, U), and is sent what the verifier does there.
Whoever drives it can so answer many of them with one call of a batch verifier.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np

from resispec_sim.audit.calling import Floats, Seen

Asking = Generator[Floats, list[Seen], None]

FINEST = 2.0**-51
"""Intervals that are not split further: the spacing of float64 uniforms below 1, a few times over."""

_REPAIRS = 24
_CHECKS = 3
_LEAST_VOLUME = 1e-14


@dataclass
class Box:
    """A box, one point in it and what the verifier did there.

    `scanned` are the uniforms along which nothing changes inside the box, as seen from that point, and
    `met` those along which a box around it was scanned. `settled` is False where the verifier was not
    seen to be constant.
    """

    low: Floats
    high: Floats
    point: Floats
    seen: Seen
    scanned: frozenset[int] = frozenset()
    met: frozenset[int] = frozenset()
    settled: bool = True

    @property
    def volume(self) -> float:
        """Probability that the uniforms fall into the box."""
        return float(np.prod(self.high - self.low))


@dataclass
class Split:
    """What a split found.

    Attributes
    ----------
    boxes : list of Box
        They fill the cube, and do not overlap.
    hidden_reads : bool
        Whether a uniform mattered that was not seen to be read: the split is then void.
    """

    boxes: list[Box] = field(default_factory=list)
    hidden_reads: bool = False

    @property
    def unsettled(self) -> float:
        """Volume in which the verifier was not seen to be constant."""
        return sum(box.volume for box in self.boxes if not box.settled)

    def differing(self, points: Floats, answers: Sequence[Seen]) -> list[int]:
        """Rows of `points`, (m, U), whose answer is not that of their settled box."""
        if len(points) == 0:
            return []
        lows = np.array([box.low for box in self.boxes])
        highs = np.array([box.high for box in self.boxes])
        inside = ((lows <= points[:, None]) & (points[:, None] < highs)).all(axis=2)
        boxes = [self.boxes[i] for i in inside.argmax(axis=1)]
        return [
            row
            for row, (box, seen) in enumerate(zip(boxes, answers, strict=True))
            if box.settled and seen[:2] != box.seen[:2]
        ]


def split(
    n_uniforms: int,
    candidates: Floats,
    rng: np.random.Generator,
    top: float,
    found: Split,
    max_scans: int,
) -> Asking:
    """Fill `found`; to be driven as the module says.

    Parameters
    ----------
    n_uniforms : int
    candidates : ndarray, (C,)
        Where a change is likely: probes lie between them, so that no two share an interval.
    rng : Generator
        Source of the places of the probes, and of the points that check the boxes.
    top : float
        The largest uniform that is tried.
    found : Split
    max_scans : int
        Scans along one uniform after which the rest counts as unsettled.
    """
    # nearer to an end, a probe between the two would round to it
    inside = candidates[(candidates > 1e-14) & (candidates < 1 - 1e-14)]
    edges = np.unique(np.concatenate([inside, [0.0, 1.0]]))
    start = rng.random(n_uniforms)
    (seen,) = yield start[None]
    ones = np.ones(n_uniforms)
    boxes = [Box(0 * ones, ones, start, seen)]
    repairs = scans = 0
    while boxes:
        box = boxes.pop()
        if box.volume < _LEAST_VOLUME or (box.high - box.low).min() < 8 * FINEST:
            found.boxes.append(replace(box, settled=False))
            continue
        todo = [i for i in box.seen.reads if i not in box.scanned]
        if todo and scans < max_scans:
            scans += 1
            boxes += yield from _scan(box, todo, edges, rng, top)
            continue
        parts = None
        if not todo:
            parts = yield from _check(box, rng, found)
            if found.hidden_reads:
                return
            if parts is None:
                found.boxes.append(box)
                continue
        if parts is not None and repairs < _REPAIRS:
            repairs += 1
            boxes += parts
            continue
        found.boxes += [replace(other, settled=False) for other in [box, *boxes]]
        return


def _scan(
    box: Box, todo: Sequence[int], edges: Floats, rng: np.random.Generator, top: float
) -> Generator[Floats, list[Seen], list[Box]]:
    """Divide a box along the first uniform of `todo`."""
    axis = todo[0]
    low, high = float(box.low[axis]), float(box.high[axis])
    inner = edges[(edges > low) & (edges < high)]
    bounds = np.concatenate([[low], inner, [high]])
    # evenly spaced probes would all meet the same phase of what repeats
    places = rng.uniform(0.25, 0.75, len(bounds) - 1)
    probes = bounds[:-1] + places * np.diff(bounds)
    # a uniform can be exactly 0, and no more than `top`: faults live there that have no volume
    if low == 0:
        probes = np.concatenate([[0.0, FINEST / 4], probes])
    if high == 1:
        probes = np.concatenate([probes, [1 - FINEST / 2, top]])
    probes = np.unique(probes)
    others = [box.point]
    if len(todo) > 1 and axis not in box.met:
        others.append(box.low + (box.high - box.low) * rng.random(len(box.low)))

    known: dict[float, tuple[Seen, ...]] = {}

    def ask(values: Sequence[float]) -> Generator[Floats, list[Seen], None]:
        new = [value for value in dict.fromkeys(values) if value not in known]
        points = np.repeat(others, len(new), axis=0)
        points[:, axis] = np.tile(new, len(others))
        seen = yield points
        for i, value in enumerate(new):
            known[value] = tuple(seen[i :: len(new)])

    yield from ask(probes.tolist())
    jumps = [(a, b) for a, b in pairwise(sorted(known)) if known[a] != known[b]]
    exact: dict[tuple[float, float], float] = {}
    first = True
    while jumps := [(a, b) for a, b in jumps if b - a > FINEST and (a, b) not in exact]:
        middles: list[float] = []
        for a, b in jumps:
            guesses = inner[(inner > a) & (inner < b) & first]
            if len(guesses):
                edge = float(guesses[0])
                under, over = max(a, edge * (1 - 2.0**-50)), min(b, edge * (1 + 2.0**-50))
                middles += [under, over]
                exact[under, over] = edge
            else:
                middles.append((a + b) / 2)
        first = False
        yield from ask([m for m in middles if m not in known])
        ordered = sorted(known)
        jumps = [(a, b) for a, b in pairwise(ordered) if known[a] != known[b]]
    return _cells(box, axis, known, exact)


def _cells(
    box: Box,
    axis: int,
    known: dict[float, tuple[Seen, ...]],
    exact: dict[tuple[float, float], float],
) -> list[Box]:
    """Boxes between the jumps; cells without volume join the one before them."""
    low, high = float(box.low[axis]), float(box.high[axis])
    groups = [list(values) for _, values in groupby(sorted(known), key=known.__getitem__)]
    starts = [low]
    for before, after in pairwise(groups):
        starts.append(exact.get((before[-1], after[0]), after[0]))
    kept: list[tuple[float, list[float]]] = []
    for begin, end, values in zip(starts, [*starts[1:], high], groups, strict=True):
        if end - begin > 2 * FINEST or len(groups) == 1:
            kept.append((begin if kept else low, values))
    cells = []
    for (begin, values), end in zip(kept, [*[b for b, _ in kept[1:]], high], strict=True):
        middle = min(values, key=lambda value, m=(begin + end) / 2: abs(value - m))  # type: ignore[misc]
        part = _part(box, axis, begin, end, middle, known[middle][0])
        # an axis that did not matter at the point of the whole box can matter at that of a part
        part.scanned = (box.scanned if len(kept) == 1 else frozenset()) | {axis}
        part.met = box.met | {axis}
        cells.append(part)
    return cells


def _part(box: Box, axis: int, begin: float, end: float, value: float, seen: Seen) -> Box:
    part = Box(box.low.copy(), box.high.copy(), box.point.copy(), seen)
    part.low[axis], part.high[axis], part.point[axis] = begin, end, value
    return part


def _check(
    box: Box, rng: np.random.Generator, found: Split
) -> Generator[Floats, list[Seen], list[Box] | None]:
    """Try random points of a box; where one differs, the two halves that tell them apart."""
    points = box.low + (box.high - box.low) * rng.random((_CHECKS, len(box.low)))
    answers = yield points
    differing = [i for i, seen in enumerate(answers) if seen[:2] != box.seen[:2]]
    if not differing:
        return None
    point = points[differing[0]]
    at, now = box.point.copy(), box.seen
    for axis in range(len(at)):
        moved = at.copy()
        moved[axis] = point[axis]
        (then,) = yield moved[None]
        if then[:2] != now[:2]:
            break
        at, now = moved, then
    if axis not in box.scanned:
        found.hidden_reads = True
        return None
    a, b, seen_b = float(at[axis]), float(point[axis]), then
    while abs(b - a) > FINEST:
        middle = at.copy()
        middle[axis] = (a + b) / 2
        (seen,) = yield middle[None]
        if seen[:2] == now[:2]:
            a = float(middle[axis])
        else:
            b, seen_b = float(middle[axis]), seen
    edge = max(a, b)
    # what was scanned from another point may look different from here
    here, there = (now, a), (seen_b, b)
    if a > b:
        here, there = there, here
    halves = []
    for begin, end, (what, value) in (
        (float(box.low[axis]), edge, here),
        (edge, float(box.high[axis]), there),
    ):
        half = Box(box.low.copy(), box.high.copy(), at.copy(), what, frozenset({axis}), box.met)
        half.low[axis], half.high[axis] = begin, end
        half.point[axis] = value
        halves.append(half)
    return halves
