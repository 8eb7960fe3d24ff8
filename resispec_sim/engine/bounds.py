"""The largest acceptance that any exact rule can have at one position."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resispec_sim.checks import check_n_siblings
from resispec_sim.errors import InputError
from resispec_sim.probs import check_probs


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
    target = check_probs(target_probs, "target_probs")
    draft = check_probs(draft_probs, "draft_probs")
    if target.shape != draft.shape or target.ndim not in (1, 2):
        raise InputError(
            f"target_probs has shape {target.shape}, draft_probs {draft.shape}; "
            "give both as (V,) or (B, V)"
        )
    n_siblings = check_n_siblings(n_siblings)
    p, q = _sort_by_ratio(np.atleast_2d(target), np.atleast_2d(draft))
    in_prefix = np.minimum(np.cumsum(q, axis=-1), 1.0) ** n_siblings
    if not replacement:
        in_prefix = _all_in_prefix(q, n_siblings)
    # the empty set gives 1
    least = np.minimum((np.cumsum(p, axis=-1) - in_prefix).min(axis=-1), 0.0)
    best = np.clip(1.0 + least, 0.0, 1.0)
    return float(best[0]) if target.ndim == 1 else best


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
