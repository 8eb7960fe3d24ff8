"""The largest acceptance that any exact rule can have at one position."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resispec_sim.checks import check_n_siblings
from resispec_sim.errors import InputError, RuleError
from resispec_sim.probs import check_probs
from resispec_sim.rules import RULES, Rule, parse_rule
from resispec_sim.rules.siblings import SCHEMES

Row = NDArray[np.float64]
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
        Whether siblings are drawn independently (``P = q(H)**n``, O(V)), or without
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
    return _by_row("iid" if replacement else "without_replacement", target, draft, n_siblings)


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
    return _by_row(name, target, draft, n_siblings)


def optimum_of_row(scheme: str, p: Row, q: Row, n_siblings: int) -> float:
    """`optimum_for` of a scheme at one position, with arguments that were checked."""
    return _OPTIMA[scheme](p, q, n_siblings)


def _by_row(scheme: str, target: Rows, draft: Rows, n_siblings: int) -> float | Rows:
    if target.ndim == 1:
        return optimum_of_row(scheme, target, draft, n_siblings)
    return np.array(
        [optimum_of_row(scheme, p, q, n_siblings) for p, q in zip(target, draft, strict=True)]
    )


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


def _iid(p: Row, q: Row, n_siblings: int) -> float:
    # imported here, as below: other ways of drawing need no compiled code
    from resispec_sim.engine.iid_optimum import largest_acceptance

    return largest_acceptance(p, q, n_siblings)


def _without_replacement(p: Row, q: Row, n_siblings: int) -> float:
    from resispec_sim.engine.without_replacement import prob_all_in_prefix

    p, q = _sort_by_ratio(p, q)
    # extended precision where the machine has it: sums of 1e5 equal terms are off by 1e-12 otherwise
    held = np.cumsum(p, dtype=np.longdouble)
    # the empty set gives 1
    least = min(float((held - prob_all_in_prefix(q, n_siblings)[0]).min()), 0.0)
    return min(max(1.0 + least, 0.0), 1.0)


def _of_top(p: Row, q: Row, n_siblings: int) -> float:
    # stable, as the rules take the first of equals
    first = np.argsort(-q, kind="stable")[:n_siblings]
    return min(float(p[first][q[first] > 0].sum()), 1.0)


def _of_hub(p: Row, q: Row, n_siblings: int) -> float:
    RULES["spechub"]().check_count(n_siblings)
    hub = int(q.argmax())
    off_hub = q.copy()
    off_hub[hub] = 0.0
    left = float(off_hub.sum())
    # with q(a) = 1 there are no pairs: only the hub can be accepted
    room = np.minimum(p, off_hub / left if left > 0 else 0.0)
    room[hub] = p[hub]
    return min(float(room.sum()), 1.0)


_OPTIMA: dict[str, Callable[[Row, Row, int], float]] = {
    "iid": _iid,
    "without_replacement": _without_replacement,
    "topk": _of_top,
    "hub": _of_hub,
}


def _sort_by_ratio(p: Row, q: Row) -> tuple[Row, Row]:
    """Both in order of ``q/p`` descending; tokens that are never drawn come last.

    How equal ratios are ordered does not matter: the optimum is continuous in p, and p can be changed
    by as little as one likes to put them in either order.
    """
    from resispec_sim.engine.ratio_order import INFINITE, sort_keys

    ratio = np.zeros(p.size)
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(q, np.abs(p), out=ratio, where=q > 0)
    keys, order = INFINITE - ratio.view(np.int64), np.empty(p.size, dtype=np.int64)
    sort_keys(keys, np.empty_like(keys), order)
    return p[order], q[order]
