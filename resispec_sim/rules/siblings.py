"""How the siblings of one position are drawn."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

Siblings = Literal["iid", "without_replacement", "topk", "hub", "chain", "tree"]
"""``iid``: each from the draft. ``without_replacement``: from the draft off the earlier ones. ``topk``:
the most probable tokens, in order. ``hub`` (SpecHub): the second is the draft's most probable token,
unless the first is; then it is drawn off it. ``chain``, ``tree``: rules over several levels."""

SCHEMES: dict[str, str] = {
    "iid": "independent draws from the draft",
    "without_replacement": "drawn without replacement",
    "topk": "the draft's most probable tokens",
    "hub": "a draw and the most probable token",
    "chain": "one drafted token per level",
    "tree": "a drafted tree",
}


POSITION_SCHEMES = ("iid", "without_replacement", "topk", "hub")


def next_draw(scheme: Siblings, draft: np.ndarray, drawn: Sequence[int]) -> np.ndarray | None:
    """Law of the next sibling given the earlier ones, or None where no token is left to draw.

    Parameters
    ----------
    scheme : str
        A scheme of one position.
    draft : ndarray of float or of Fraction, (V,)
    drawn : sequence of int
        Earlier siblings. Without replacement draws stop at the support of the draft.

    Examples
    --------
    >>> next_draw("without_replacement", np.array([0.5, 0.25, 0.25]), [0]).tolist()
    [0.0, 0.5, 0.5]
    >>> next_draw("topk", np.array([0.5, 0.2, 0.3]), [0]).tolist()
    [0.0, 0.0, 1.0]
    """
    if scheme == "iid":
        return draft
    rest = draft.copy()
    rest[list(drawn)] = 0 * rest[list(drawn)]
    if not (rest > 0).any():
        return None
    if scheme == "topk" or (scheme == "hub" and drawn and drawn[0] != _first_max(draft)):
        chosen = 0 * rest
        top = _first_max(rest)
        chosen[top] = chosen[top] + 1
        return chosen
    return rest / rest.sum() if rest.dtype != object else rest / sum(rest.tolist())


def sibling_tuples(
    scheme: Siblings, draft: np.ndarray, n_siblings: int
) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Every tuple of siblings with its probability; shorter ones where the support ends.

    Examples
    --------
    >>> [drawn for _, drawn in sibling_tuples("topk", np.array([0.5, 0.2, 0.3]), 2)]
    [(0, 2)]
    """
    pending: list[tuple[Any, tuple[int, ...]]] = [(1, ())]
    while pending:
        weight, drawn = pending.pop()
        law = next_draw(scheme, draft, drawn) if len(drawn) < n_siblings else None
        if law is None:
            yield weight, drawn
            continue
        for token in np.flatnonzero(law > 0)[::-1].tolist():
            pending.append((weight * law[token], (*drawn, token)))


def _first_max(values: np.ndarray) -> int:
    """Index of the largest value, the lowest one of equals."""
    return (
        max(range(len(values)), key=lambda x: (values[x], -x))
        if values.dtype == object
        else int(np.argmax(values))
    )
