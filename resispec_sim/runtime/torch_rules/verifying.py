"""From decisions and uniform numbers to emitted tokens. Legend: B nodes, K siblings, V tokens."""

from typing import Any

from ...errors import InputError
from ...rules import Rule
from ...rules.formulas import namespace
from .arrays import running_max, search, to_float64
from .clock import Clock
from .deciding import decide


def verify(
    rule: str | Rule,
    target: Any,
    draft: Any,
    siblings: Any,
    uniforms: Any,
    *,
    clock: Clock | None = None,
) -> tuple[Any, Any]:
    """Accept a sibling or emit another token, at each node.

    Parameters
    ----------
    rule, target, draft, siblings, clock
        As for `decide`.
    uniforms : array of float64, (B, K + 1)
        In [0, 1). Coin i accepts sibling i where it is below its acceptance; the last one draws from
        the residual.

    Returns
    -------
    sibling : array of int64, (B,)
        Which sibling is accepted; -1 if none is.
    token : array of int64, (B,)
        What is emitted: that sibling, or a token of the residual; never one of probability 0. -1 where
        the pair is undefined, as `to_probs` marks it: one look at the result also finds bad logits.

    Raises
    ------
    As `decide`; InputError if the uniforms have another shape or type.

    Examples
    --------
    >>> import numpy as np
    >>> p, q = np.array([[0.25, 0.25, 0.5]]), np.array([[0.5, 0.5, 0.0]])
    >>> verify("specinfer", p, q, np.array([[0, 1]]), np.array([[0.9, 0.4, 0.3]]))
    (array([-1]), array([2]))
    """
    xp = namespace(target)
    shape = (siblings.shape[0], siblings.shape[-1] + 1)
    if tuple(uniforms.shape) != shape or uniforms.dtype != xp.float64:
        raise InputError(
            f"uniforms are {uniforms.dtype} {tuple(uniforms.shape)}: they must be float64 {shape}"
        )
    accept, residual = decide(rule, target, draft, siblings, clock=clock)
    n_siblings = siblings.shape[1]
    places = xp.arange(n_siblings + 1, device=target.device)
    # a coin in float32 could be rounded up to 1
    heads = uniforms[:, :-1] < to_float64(accept)
    never = siblings[:, :0].sum(-1)[:, None] == 0
    first = xp.concatenate([heads, never], -1) * (n_siblings + 1 - places)
    sibling = xp.argmax(first, -1)
    token = draw_tokens(residual, uniforms[:, -1:])
    emitted = xp.concatenate([siblings, token], -1)
    chosen = xp.where(places == sibling[:, None], emitted, 0 * emitted).sum(-1)
    undefined = xp.isnan(target[:, 0] + draft[:, 0])
    none = undefined | (sibling == n_siblings)
    return xp.where(none, -1, sibling), xp.where(undefined, -1, chosen)


def draw_tokens(probs: Any, uniforms: Any) -> Any:
    """The tokens at which the cumulative sum of each row first exceeds ``u`` times its total.

    Parameters
    ----------
    probs : array, (B, V)
        Weights from 0 on, with a positive one in every row.
    uniforms : array of float64, (B, K)
        In [0, 1).

    Returns
    -------
    array of int64, (B, K)
        Never a token of weight 0, however a parallel sum rounds.

    Examples
    --------
    >>> import numpy as np
    >>> draw_tokens(np.array([[0.0, 0.25, 0.75, 0.0]]), np.array([[0.0, 0.999]]))
    array([[1, 2]])
    """
    xp = namespace(probs)
    some = probs > 0
    # Sums of parallel blocks may fall from one entry to the next, or rise at a weight of 0.
    sums = running_max(xp.where(some, xp.cumsum(to_float64(probs), -1), 0.0))
    found = search(sums, uniforms * sums[:, -1:], right=True)
    ids = xp.arange(probs.shape[1], device=probs.device)
    last = xp.argmax(some * (1 + ids), -1)
    # rounding may leave nothing above
    return xp.minimum(found, last[:, None])
