"""Where the time of shaping goes: its parts are marked for whoever wants to time them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

PHASES = ("budgeting", "redistribution", "proxy")
"""Parts of ResiSpec's shaping. ``budgeting``: the budget ``Z`` and what ``min(Z q, R)`` keeps of the
residual. ``redistribution``: the deficit, spread over the room (all of "water", whose level finds
both). ``proxy``: the next residual ``r / Z``, and the next draft where it changes."""


class Clock(Protocol):
    """Times the parts of a decision; an implementation for a GPU synchronises at both ends."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """A context in which the part `name`, one of `PHASES`, runs."""


class NoClock:
    """Times nothing."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        return nullcontext()
