"""The siblings of an audit: every tuple with its probability, or random ones."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from resispec_sim.audit.calling import Floats
from resispec_sim.checks import check_n_siblings
from resispec_sim.errors import InputError
from resispec_sim.rules.siblings import sibling_tuples

Drafting = Callable[[Floats, Floats, int], Iterable[tuple[Any, Sequence[int]]]]
Tuples = list[tuple[float, tuple[int, ...]]]

SCHEMES = ("iid", "without_replacement", "topk", "hub")


def check_siblings(siblings: Any) -> str | Drafting:
    """A known way of drafting, or the caller's own (`InputError`)."""
    if callable(siblings) or (isinstance(siblings, str) and siblings in SCHEMES):
        return siblings
    raise InputError(
        f"siblings is {siblings!r}: use one of {', '.join(SCHEMES)}, or a function "
        "(target_probs, draft_probs, n) -> iterable of (probability, ids)"
    )


def scheme_name(siblings: str | Drafting) -> str:
    """What a report calls a way of drafting."""
    return siblings if isinstance(siblings, str) else getattr(siblings, "__name__", "own")


def enumerate_siblings(
    siblings: str | Drafting, target: Floats, draft: Floats, n_siblings: int
) -> Tuples:
    """Every tuple of siblings with its probability; tuples that occur twice are added up.

    Raises
    ------
    InputError
        If a caller's own tuples have ids that are no tokens, more of them than asked for, or
        probabilities that do not sum to 1 within 1e-9.

    Examples
    --------
    >>> enumerate_siblings("iid", np.array([0.5, 0.5]), np.array([0.25, 0.75]), 1)
    [(0.25, (0,)), (0.75, (1,))]
    """
    check_n_siblings(n_siblings)
    if isinstance(siblings, str):
        found = sibling_tuples(siblings, draft, n_siblings)  # type: ignore[arg-type]
        return [(float(weight), ids) for weight, ids in found]
    masses: dict[tuple[int, ...], float] = {}
    for weight, ids in _own_tuples(siblings, target, draft, n_siblings):
        if len(ids) > n_siblings or any(not 0 <= token < len(target) for token in ids):
            raise InputError(
                f"siblings: {scheme_name(siblings)} yields {list(ids)} for {len(target)} tokens and "
                f"{n_siblings} siblings; give ids of tokens, no more of them than asked for"
            )
        if not weight >= 0:
            raise InputError(f"siblings: {scheme_name(siblings)} yields the probability {weight!r}")
        if weight > 0:
            masses[ids] = masses.get(ids, 0.0) + weight
    total = math.fsum(masses.values())
    if not abs(total - 1) < 1e-9:
        raise InputError(
            f"siblings: the probabilities of {scheme_name(siblings)} sum to {total}, not 1, at target "
            f"{target.tolist()}, draft {draft.tolist()}; give pairs=[...] that suit it"
        )
    return [(mass / total, ids) for ids, mass in masses.items()]


def _own_tuples(siblings: Drafting, target: Floats, draft: Floats, n_siblings: int) -> Tuples:
    try:
        return [
            (float(weight), tuple(int(token) for token in drawn))
            for weight, drawn in siblings(target.copy(), draft.copy(), n_siblings)
        ]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may even exit
        raise InputError(
            f"siblings: {scheme_name(siblings)} raises {type(error).__name__}: {error}; it is called "
            f"as (target_probs, draft_probs, n) and yields (probability, ids), at target "
            f"{target.tolist()}, draft {draft.tolist()}, n = {n_siblings}"
        ) from error


def count_tuples(siblings: str | Drafting, target: Floats, draft: Floats, n_siblings: int) -> int:
    """How many tuples `enumerate_siblings` gives, without making those of the known schemes.

    Examples
    --------
    >>> half = np.array([0.5, 0.5, 0.0])
    >>> count_tuples("iid", half, half, 10), count_tuples("topk", half, half, 10)
    (1024, 1)
    """
    if not isinstance(siblings, str):
        return len(enumerate_siblings(siblings, target, draft, n_siblings))
    support = int((draft > 0).sum())
    match siblings:
        case "iid":
            return support**n_siblings
        case "topk":
            return 1
        case "hub":
            if min(n_siblings, support) < 2:
                return support
            # off the hub the rest is certain; after it the rest is drawn
            return support - 1 + math.perm(support - 1, min(n_siblings, support) - 1)
        case _:
            return math.perm(support, min(n_siblings, support))


class Drafter:
    """Draws siblings at one pair.

    Parameters
    ----------
    siblings : str or callable
    target, draft : ndarray of float64, (V,)
    n_siblings : int
    """

    def __init__(
        self, siblings: str | Drafting, target: Floats, draft: Floats, n_siblings: int
    ) -> None:
        self.n = n_siblings
        self.siblings = siblings
        self.draft = draft
        self.support = np.flatnonzero(draft > 0)
        self.edges = np.cumsum(draft[self.support])
        self.tuples: list[tuple[int, ...]] = []
        if not isinstance(siblings, str) or siblings == "topk":
            found = enumerate_siblings(siblings, target, draft, n_siblings)
            self.tuples = [ids for _, ids in found]
            self.edges = np.cumsum([weight for weight, _ in found])

    def draw(self, rng: np.random.Generator, count: int) -> list[tuple[int, ...]]:
        """`count` tuples of siblings."""
        if self.tuples:
            return [self.tuples[i] for i in self._places(rng, count)]
        drawn = self.support[self._places(rng, count * self.n)].reshape(count, self.n)
        if self.siblings == "iid":
            return [tuple(row) for row in drawn.tolist()]
        return [self._finish(rng, row) for row in drawn.tolist()]

    def _places(self, rng: np.random.Generator, count: int) -> Any:
        places = np.searchsorted(self.edges, rng.random(count) * self.edges[-1], side="right")
        return np.minimum(places, len(self.edges) - 1)

    def _finish(self, rng: np.random.Generator, row: list[int]) -> tuple[int, ...]:
        if self.siblings == "hub":
            hub = int(np.argmax(self.draft))
            if row[0] != hub and self.n > 1:
                return row[0], hub
        ids = list(dict.fromkeys(row))
        wanted = min(self.n, len(self.support))
        while len(ids) < wanted:
            # the next distinct one is a draw from the draft off the earlier ones
            rest = self.draft.copy()
            rest[ids] = 0
            ids.append(int(rng.choice(len(rest), p=rest / rest.sum())))
        return tuple(ids)
