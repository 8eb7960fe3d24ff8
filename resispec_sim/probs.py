"""Logits to probabilities, in float64 throughout, and alignment of two vocabularies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import DistributionError, InputError, LogitsError, VocabularyError

SUM_TOLERANCE = 1e-6


def logits_to_probs(
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> NDArray[np.float64]:
    """Turn logits into the distribution that a sampler with these settings draws from.

    Temperature, then top-k, then top-p, with the conventions of transformers' logits processors:
    tokens that tie with the k-th logit are all kept; top-p keeps the smallest set of most likely
    tokens whose mass reaches ``top_p``, at least one (of tied tokens at its edge, those with the
    higher ids).

    Parameters
    ----------
    logits : array_like, shape (..., V)
        Any real type; ``-inf`` is a token that cannot occur. Not modified.
    temperature : float
        In [0, inf). 0 is greedy: all mass on the first largest logit.
    top_k : int, optional
        At least 1; None or 0 is off, and so is any number from V on.
    top_p : float, optional
        In (0, 1]; None or 1 is off.

    Returns
    -------
    ndarray of float64, shape (..., V)

    Raises
    ------
    LogitsError
        NaN, +inf, or a row without a finite entry; the message names row and token.
    InputError
        A setting out of range, or no vocabulary axis.

    Examples
    --------
    >>> logits_to_probs([0.0, np.log(3.0), -np.inf]).round(6).tolist()
    [0.25, 0.75, 0.0]
    >>> logits_to_probs([[1.0, 2.0, 2.0, 0.0]], top_k=1).tolist()
    [[0.0, 0.5, 0.5, 0.0]]
    >>> logits_to_probs([1.0, 2.0, 2.0], temperature=0).tolist()
    [0.0, 1.0, 0.0]
    """
    check_sampling(temperature, top_k, top_p)
    scores = check_reals("logits", logits)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise InputError(
            f"logits need a vocabulary axis of at least one token, got shape {scores.shape}"
        )
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float64)
    probs = np.empty(scores.shape)
    if scores.size == 0:
        return probs
    peak = scores.max(axis=-1)
    if not np.isfinite(peak).all():
        _raise_for_logits(scores)
    if temperature == 0:
        first = scores.argmax(axis=-1)
        probs[...] = 0.0
        np.put_along_axis(probs, first[..., None], 1.0, axis=-1)
        return probs
    if top_k and top_k < scores.shape[-1]:
        # Division by a temperature keeps the order, so the mask is taken before it, free of its
        # rounding.
        kth = np.partition(scores, -top_k, axis=-1)[..., -top_k, None]
        scores = np.where(scores < kth, -np.inf, scores)
    # imported here: a program that only reads dumps needs no compiled code
    from .engine.softmax import softmax_rows

    with np.errstate(over="ignore"):
        softmax_rows(
            np.ascontiguousarray(scores).reshape(-1, scores.shape[-1]),
            peak.reshape(-1),
            float(temperature),
            probs.reshape(-1, scores.shape[-1]),
        )
    if top_p is not None and top_p < 1:
        _keep_nucleus(probs, top_p)
    return probs


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise `InputError` if a sampling setting is out of its range."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"temperature must be a finite number from 0 on, got {temperature}")
    if top_k is not None and (top_k != int(top_k) or top_k < 0):
        raise InputError(f"top_k must be a whole number from 1 on (None or 0: off), got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"top_p must be in (0, 1], got {top_p}")


def _keep_nucleus(probs: NDArray[np.float64], top_p: float) -> None:
    order = np.argsort(probs, axis=-1, kind="stable")[..., ::-1]
    ranked = np.take_along_axis(probs, order, axis=-1)
    reached = np.cumsum(ranked, axis=-1)[..., :-1] >= top_p
    ranked[..., 1:][reached] = 0.0
    np.put_along_axis(probs, order, ranked, axis=-1)
    probs /= probs.sum(axis=-1, keepdims=True)


def _place(index: Sequence[int]) -> str:
    """Words for the place of a row among the leading axes."""
    if not index:
        return ""
    return f"row {index[0]}, " if len(index) == 1 else f"row {tuple(int(i) for i in index)}, "


def _raise_for_logits(scores: NDArray[np.float64]) -> None:
    wrong = np.argwhere(np.isnan(scores) | (scores == np.inf))
    if wrong.size:
        *row, token = (int(i) for i in wrong[0])
        value = scores[tuple(wrong[0])]
        raise LogitsError(
            f"{_place(row)}token {token}: logit is {value}; a logit must be finite or -inf"
        )
    row = [int(i) for i in np.argwhere(np.isneginf(scores).all(axis=-1))[0]]
    raise LogitsError(
        f"{_place(row)}tokens 0 to {scores.shape[-1] - 1}: every logit is -inf; no token can occur"
    )


def check_probs(probs: ArrayLike, name: str) -> NDArray[np.float64]:
    """Check that rows are distributions and return them in float64, divided by their sums.

    Parameters
    ----------
    probs : array_like, shape (..., V)
        Each row sums to 1 within 1e-6. Not modified.
    name : str
        What the error message calls the array.

    Raises
    ------
    DistributionError
        NaN, an infinite or negative entry, or a sum off 1; the message names row, token and value.

    Examples
    --------
    >>> check_probs([0.25, 0.75], "target_probs").tolist()
    [0.25, 0.75]
    """
    array = check_floats(name, probs)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise DistributionError(
            f"{name} needs a vocabulary axis of at least one token, got shape {array.shape}"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # such a sum is not 1 either
        total = array.sum(axis=-1, keepdims=True)
    # NaN and infinity show in the sum
    if not (array.min() >= 0 and (np.abs(total - 1) <= SUM_TOLERANCE).all()):
        _raise_for_probs(array, total[..., 0], name)
    if (total != 1).any():
        array /= total
    return array


def _raise_for_probs(array: NDArray[np.float64], total: NDArray[np.float64], name: str) -> None:
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        *row, token = (int(i) for i in np.argwhere(bad)[0])
        value = array[(*row, token)]
        raise DistributionError(
            f"{name}: {_place(row)}token {token}: probability is {value}; it must be in [0, 1]"
        )
    row = [int(i) for i in np.argwhere(np.abs(total - 1) > SUM_TOLERANCE)[0]]
    value = total[tuple(row)]
    raise DistributionError(
        f"{name}: {_place(row)}the probabilities sum to {value!s}, not 1; normalise them first"
    )


def check_floats(name: str, values: Any) -> NDArray[np.float64]:
    """A float64 copy of an array of real numbers; `InputError` for anything else.

    Ragged rows, text, complex or masked values and the like are refused: numpy would raise an error of
    its own, or read something into them. Exact rationals are taken.

    Examples
    --------
    >>> check_floats("logits", [1, 2]).tolist()
    [1.0, 2.0]
    """
    return check_reals(name, values).astype(np.float64)


def check_reals(name: str, values: Any) -> NDArray[Any]:
    """An array of real numbers as `check_floats` takes them, in its own type and not copied."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array: fill what is masked first")
    try:
        found = np.asarray(values)
        if found.dtype.kind == "O" and all(isinstance(item, Real) for item in found.flat):
            found = found.astype(np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name} is no array of numbers ({error})") from None
    # bfloat16 is a type of a package of its own
    if found.dtype.kind not in "fiu" and found.dtype.name != "bfloat16":
        raise InputError(f"{name} holds {found.dtype}: give an array of real numbers")
    return found


def check_vocabulary_map(
    draft_to_target: ArrayLike, target_vocab_size: int, draft_vocab_size: int
) -> NDArray[np.intp]:
    """Check a map from draft to target ids: one each, in range, none twice (`VocabularyError`)."""
    ids = np.asarray(draft_to_target)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise VocabularyError(
            f"draft_to_target must be a list of target token ids, got shape {ids.shape}"
        )
    if ids.size != draft_vocab_size:
        raise VocabularyError(
            f"draft_to_target has {ids.size} ids, but the draft has {draft_vocab_size} tokens"
        )
    outside = np.flatnonzero((ids < 0) | (ids >= target_vocab_size))
    if outside.size:
        token = int(outside[0])
        raise VocabularyError(
            f"draft token {token} maps to {ids[token]}, outside the target's "
            f"{target_vocab_size} tokens"
        )
    values, counts = np.unique(ids, return_counts=True)
    if values.size != ids.size:
        raise VocabularyError(f"two draft tokens map to target token {values[counts > 1][0]}")
    return ids.astype(np.intp)


def align_vocabularies(
    target_logits: ArrayLike,
    draft_logits: ArrayLike,
    *,
    draft_to_target: ArrayLike | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Bring the rows of both models to one vocabulary; tokens that one side lacks get ``-inf``.

    Nothing is cut off: the shorter side is padded, or a reduced draft vocabulary is scattered
    through its map.

    Parameters
    ----------
    target_logits : array_like, shape (..., V_target)
    draft_logits : array_like, shape (..., V_draft)
    draft_to_target : array_like of int, shape (V_draft,), optional
        Target token id of each draft token.

    Returns
    -------
    target, draft : ndarray, shape (..., V)
        V is ``max(V_target, V_draft)``, or V_target with a map. Arrays that need no padding are
        returned as they are.

    Raises
    ------
    VocabularyError
        A map with the wrong length, an id outside the target's vocabulary, or an id twice.

    Examples
    --------
    >>> align_vocabularies([0.0, 1.0, 2.0, 3.0], [5.0, 6.0], draft_to_target=[0, 2])[1].tolist()
    [5.0, -inf, 6.0, -inf]
    """
    target, draft = (
        _as_floats(target_logits, "target_logits"),
        _as_floats(draft_logits, "draft_logits"),
    )
    if target.shape[:-1] != draft.shape[:-1]:
        raise InputError(
            f"target_logits {target.shape} and draft_logits {draft.shape} differ in leading axes"
        )
    if draft_to_target is None:
        size = max(target.shape[-1], draft.shape[-1])
        return _pad(target, size), _pad(draft, size)
    ids = check_vocabulary_map(draft_to_target, target.shape[-1], draft.shape[-1])
    scattered = np.full(target.shape, -np.inf, dtype=draft.dtype)
    scattered[..., ids] = draft
    return target, scattered


def _as_floats(logits: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(logits)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise InputError(
            f"{name} needs a vocabulary axis of at least one token, got shape {array.shape}"
        )
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _pad(array: NDArray[Any], size: int) -> NDArray[Any]:
    if array.shape[-1] == size:
        return array
    padded = np.full((*array.shape[:-1], size), -np.inf, dtype=array.dtype)
    padded[..., : array.shape[-1]] = array
    return padded
