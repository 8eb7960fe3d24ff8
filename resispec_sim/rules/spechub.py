"""SpecHub: an optimal transport of sparse pairs, solved greedily."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from resispec_sim.rules.base import (
    Decision,
    PositionRule,
    normalised,
    plain,
    total_of,
)
from resispec_sim.rules.siblings import Siblings


class HubPlan(NamedTuple):
    """How SpecHub moves the mass of its pairs onto tokens; ``a`` is the hub.

    Every array is (V,), and 0 at the hub.
    """

    hub: int
    hub_last: np.ndarray  # probability that (i, a) is drawn
    hub_first: np.ndarray  # probability that (a, i) is drawn
    from_last: np.ndarray  # of (i, a), moved onto i
    from_first: np.ndarray  # of (a, i), moved onto i
    onto_hub_first: Any  # share of what is left of every (a, i) that is moved onto a
    onto_hub_last: Any  # share of what is left of every (i, a) that is moved onto a
    residual: np.ndarray  # law of what is emitted from pairs whose mass was not moved


@dataclass(frozen=True)
class SpecHub(PositionRule):
    """Two siblings of which one is always the hub ``a``, the draft's most probable token.

    Pairs ``(i, a)`` are drawn with probability ``q(i)`` and ``(a, i)`` with ``q(a) q(i)/(1 - q(a))``,
    ``i != a``. Their mass is moved onto tokens in this order, as far as the target has room: ``i``
    from ``(i, a)``, ``i`` from ``(a, i)``, ``a`` from ``(a, .)``, ``a`` from ``(., a)``. What is left
    of the target is emitted for the rest. With ``q(a) = 1`` there is no second sibling and ``a`` is
    accepted with probability ``p(a)``. Exact for every target and draft.

    References
    ----------
    Sun et al. 2024, "SpecHub", arXiv:2411.05289.

    Examples
    --------
    >>> p, q = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.25, 0.25])
    >>> SpecHub().decide(p, q, [2, 0]).accepted
    [1.0, 0.0]
    """

    name: ClassVar[str] = "spechub"
    exact: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = "hub"
    complexity: ClassVar[str] = "V"
    paper: ClassVar[str] = "SpecHub, arXiv:2411.05289"
    only_count: ClassVar[int | None] = 2

    def decide(self, target: np.ndarray, draft: np.ndarray, siblings: Sequence[int]) -> Decision:
        first, *others = siblings
        if not others:
            residual = target.copy()
            residual[first] = 0 * residual[first]
            return Decision([plain(target[first])], normalised(residual, target))
        plan = plan_hub(target, draft)
        if first == plan.hub:
            token, drawn, moved, share = (
                others[0],
                plan.hub_first,
                plan.from_first,
                plan.onto_hub_first,
            )
        else:
            token, drawn, moved, share = first, plan.hub_last, plan.from_last, plan.onto_hub_last
        onto_token = moved[token] / drawn[token]
        onto_hub = (1 - onto_token) * share
        accepted = [onto_hub, onto_token] if first == plan.hub else [onto_token, onto_hub]
        return Decision([plain(value) for value in accepted], plan.residual)


def plan_hub(target: np.ndarray, draft: np.ndarray) -> HubPlan:
    """The greedy transport; `draft` has mass on two tokens or more."""
    hub = (
        max(range(len(draft)), key=lambda x: (draft[x], -x))
        if draft.dtype == object
        else int(np.argmax(draft))
    )
    off_hub = draft.copy()
    off_hub[hub] = 0 * off_hub[hub]
    wanted = target.copy()
    wanted[hub] = 0 * wanted[hub]
    # the mass off the hub is summed, since 1 - q(a) loses it where q(a) is nearly 1
    hub_first = off_hub / total_of(off_hub) * draft[hub]
    from_last = np.minimum(wanted, off_hub)
    from_first = np.minimum(wanted - from_last, hub_first)
    left_first, left_last = total_of(hub_first - from_first), total_of(off_hub - from_last)
    onto_hub_first = min(target[hub], left_first)
    onto_hub_last = min(target[hub] - onto_hub_first, left_last)
    rest = wanted - from_last - from_first
    rest[hub] = target[hub] - onto_hub_first - onto_hub_last
    return HubPlan(
        hub,
        off_hub,
        hub_first,
        from_last,
        from_first,
        onto_hub_first / left_first if left_first > 0 else 0 * left_first,
        onto_hub_last / left_last if left_last > 0 else 0 * left_last,
        normalised(np.maximum(rest, 0), target),
    )
