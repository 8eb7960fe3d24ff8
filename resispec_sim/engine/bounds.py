"""The largest acceptance that any exact rule can have at one position."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resispec_sim.checks import check_n_siblings
from resispec_sim.errors import InputError, RuleError
from resispec_sim.probs import check_probs
from resispec_sim.rules import RULES, Rule, parse_rule
from resispec_sim.rules.siblings import SCHEMES

Rows = NDArray[np.float64]

ROUNDING = {"iid": 1e-12, "without_replacement": 1e-10, "topk": 1e-12, "hub": 1e-12}
"""What the optimum of each way of drawing may be off by: an acceptance above it by less is none."""


def optimal_acceptance(
    target_probs: ArrayLike, draft_probs: ArrayLike, n_siblings: int, replacement: bool = True
) -> float | NDArray[np.float64]:
    """Largest total acceptance over all rules whose output follows the target.

    This is the value of the optimal transport between the siblings and the target, ``1 + min_H
    [p(H) - P(all siblings in H)]``; the minimising set ``H`` is a prefix of the tokens by ``q/p``
    descending. A rule whose acceptance is larger cannot be exact.

    Parameters
    ----------
    target_probs, draft_probs : array_like of float, (V,) or (B, V)
        Probabilities.
    n_siblings : int
        Number of siblings, 1 or more.
    replacement : bool
        Whether siblings are drawn independently (``P = q(H)**n``, O(V log V)), or without
        replacement (a quadrature with an absolute error below 1e-10, O(V n nodes)). Without
        replacement draws stop when every token with positive draft probability is drawn.

    Returns
    -------
    float or ndarray of float, (B,)
        A probability.

    Raises
    ------
    DistributionError
        If a row is not a distribution.
    InputError
        If the shapes differ, or `n_siblings` is not a whole number from 1 on.

    References
    ----------
    Sun et al. 2023, "SpecTr", arXiv:2310.15141 (the transport problem); Hu et al. 2025, "Towards
    Optimal Multi-draft Speculative Decoding", arXiv:2502.18779 (its dual over sets of tokens).

    Examples
    --------
    >>> round(optimal_acceptance([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 2), 12)
    0.84
    >>> round(optimal_acceptance([0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 2, replacement=False), 9)
    1.0
    """
    target, draft = _check_rows(target_probs, draft_probs)
    n_siblings = check_n_siblings(n_siblings)
    best = _of_prefixes(np.atleast_2d(target), np.atleast_2d(draft), n_siblings, replacement)
    return float(best[0]) if target.ndim == 1 else best


def optimum_for(
    scheme: str | Rule, target_probs: ArrayLike, draft_probs: ArrayLike, n_siblings: int
) -> float | NDArray[np.float64]:
    """Largest total acceptance over the exact rules that draw their siblings in one way.

    - ``iid``, ``without_replacement``: `optimal_acceptance`.
    - ``topk``: the target's mass on the draft's `n_siblings` most probable tokens.
    - ``hub`` (SpecHub, two siblings): the set ``{a, i}`` of the hub and another token is drawn with
      probability ``w_i = q_i / (1 - q_a)``, so each mass ``w_i`` goes to ``i`` as far as the target
      has room there and else to the hub: ``min(1, p_a + sum_i min(p_i, w_i))``.

    Parameters
    ----------
    scheme : str or Rule
        A way of drawing siblings, a rule's name or a rule, which stands for its own way.
    target_probs, draft_probs : array_like of float, (V,) or (B, V)
        Probabilities.
    n_siblings : int
        Number of siblings, 1 or more; 2 for ``hub``.

    Returns
    -------
    float or ndarray of float, (B,)
        A probability.

    Raises
    ------
    DistributionError, InputError
        As `optimal_acceptance` does.
    RuleError
        If the rule or scheme is unknown, verifies several levels, or is not defined for this number
        of siblings.

    Examples
    --------
    >>> p, q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    >>> [round(optimum_for(name, p, q, 2), 6) for name in ("iid", "topk", "spechub")]
    [0.9375, 0.75, 1.0]
    """
    name = scheme_of(scheme)
    target, draft = _check_rows(target_probs, draft_probs)
    n_siblings = check_n_siblings(n_siblings)
    if isinstance(scheme, Rule):
        scheme.check_count(n_siblings)
    if name not in _OPTIMA:
        raise RuleError(f"no optimum of one position for siblings drawn as {name!r}")
    best = _OPTIMA[name](np.atleast_2d(target), np.atleast_2d(draft), n_siblings)
    return float(best[0]) if target.ndim == 1 else best


def scheme_of(scheme: str | Rule) -> str:
    """The way of drawing siblings that a scheme's name, a rule's name or a rule stands for.

    Examples
    --------
    >>> scheme_of("topk"), scheme_of("resispec-eagle:reading=one-hot")
    ('topk', 'topk')
    """
    if isinstance(scheme, str) and scheme in SCHEMES:
        return scheme
    return str(parse_rule(scheme).siblings)


def _check_rows(target_probs: ArrayLike, draft_probs: ArrayLike) -> tuple[Rows, Rows]:
    target = check_probs(target_probs, "target_probs")
    draft = check_probs(draft_probs, "draft_probs")
    if target.shape != draft.shape or target.ndim not in (1, 2):
        raise InputError(
            f"target_probs has shape {target.shape}, draft_probs {draft.shape}; "
            "give both as (V,) or (B, V)"
        )
    return target, draft


def _of_prefixes(target: Rows, draft: Rows, n_siblings: int, replacement: bool) -> Rows:
    p, q = _sort_by_ratio(target, draft)
    # extended precision where the machine has it: sums of 1e5 equal terms are off by 1e-12 otherwise
    held = np.cumsum(p, axis=-1, dtype=np.longdouble)
    if replacement:
        in_prefix = np.minimum(np.cumsum(q, axis=-1, dtype=np.longdouble), 1.0) ** n_siblings
    else:
        in_prefix = _all_in_prefix(q, n_siblings)
    # the empty set gives 1
    least = np.minimum((held - in_prefix).min(axis=-1), 0.0).astype(np.float64)
    return np.clip(1.0 + least, 0.0, 1.0)


def _of_top(target: Rows, draft: Rows, n_siblings: int) -> Rows:
    # stable, as the rules take the first of equals
    first = np.argsort(-draft, axis=-1, kind="stable")[:, :n_siblings]
    drawn = np.take_along_axis(draft, first, axis=-1) > 0
    taken = np.where(drawn, np.take_along_axis(target, first, axis=-1), 0.0)
    return np.minimum(taken.sum(axis=-1), 1.0)


def _of_hub(target: Rows, draft: Rows, n_siblings: int) -> Rows:
    RULES["spechub"]().check_count(n_siblings)
    at_hub = np.arange(draft.shape[-1]) == draft.argmax(axis=-1)[:, None]
    off_hub = np.where(at_hub, 0.0, draft)
    left = off_hub.sum(axis=-1, keepdims=True)
    pairs = np.divide(off_hub, left, out=np.zeros_like(off_hub), where=left > 0)
    # with q(a) = 1 there are no pairs: only the hub can be accepted
    room = np.where(at_hub, target, np.minimum(target, pairs))
    return np.minimum(room.sum(axis=-1), 1.0)


_OPTIMA: dict[str, Callable[[Rows, Rows, int], Rows]] = {
    "iid": lambda p, q, n: _of_prefixes(p, q, n, True),
    "without_replacement": lambda p, q, n: _of_prefixes(p, q, n, False),
    "topk": _of_top,
    "hub": _of_hub,
}


def _sort_by_ratio(
    p: NDArray[np.float64], q: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both in order of ``q/p`` descending, rows (B, V); tokens that are never drawn come last."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(q > 0, q / p, 0.0)
    order = np.argsort(-ratio, axis=-1, kind="stable")
    return np.take_along_axis(p, order, axis=-1), np.take_along_axis(q, order, axis=-1)


def _all_in_prefix(q: NDArray[np.float64], n_siblings: int) -> NDArray[np.float64]:
    # imported here: draws with replacement need no compiled code
    from resispec_sim.engine.without_replacement import prob_all_in_prefix

    return np.stack([prob_all_in_prefix(row, n_siblings)[0] for row in q])
