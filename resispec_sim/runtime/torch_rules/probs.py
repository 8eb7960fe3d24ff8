"""Logits to probabilities on the device, with the conventions of `resispec_sim.probs`."""

from typing import Any

from ...checks import check_number
from ...errors import InputError, LogitsError
from ...probs import check_sampling
from ...rules.formulas import ascending, namespace, take, total
from .arrays import as_type, put

NAMES = ("float32", "float64")


def to_probs(
    logits: Any,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    dtype: str = "float64",
) -> Any:
    """Turn rows of logits into the distributions that a sampler with these settings draws from.

    As `resispec_sim.probs.logits_to_probs`, ties and temperature 0 included, but batched and on the
    device. No value is waited for, so bad logits raise nothing here: their rows become NaN throughout,
    `verify` then answers -1, and `check_logits` says what is wrong.

    Parameters
    ----------
    logits : array of floats, (B, V)
        Of torch (or numpy). Not modified.
    temperature : float
        In [0, inf); 0 is greedy: all mass on the first largest logit.
    top_k : int, optional
        None or 0 is off. Tokens that tie with the k-th logit are all kept.
    top_p : float, optional
        In (0, 1]; None or 1 is off. Of tied tokens at the edge those with the higher ids are kept.
    dtype : {"float64", "float32"}
        What is computed in and returned.

    Raises
    ------
    InputError
        A setting out of range, another `dtype`, or no (B, V).

    Examples
    --------
    >>> import numpy as np
    >>> to_probs(np.array([[1.0, 2.0, 2.0, 0.0]]), top_k=1).tolist()
    [[0.0, 0.5, 0.5, 0.0]]
    """
    check_sampling(check_number("temperature", temperature), top_k, top_p)
    if dtype not in NAMES:
        raise InputError(f"dtype is {dtype!r}: use one of {', '.join(NAMES)}")
    if len(logits.shape) != 2 or logits.shape[1] == 0:
        raise InputError(f"logits must be (B, V) with V from 1 on, got {tuple(logits.shape)}")
    xp = namespace(logits)
    scores = as_type(logits, getattr(xp, dtype))
    peak = xp.amax(scores, axis=-1, keepdims=True)
    if temperature == 0:
        hot = put(0 * xp.ones_like(scores), xp.argmax(scores, -1)[:, None], 1.0)
        return xp.where(xp.isfinite(peak), hot, xp.nan)
    if top_k and top_k < scores.shape[1]:
        # taken before the division, free of its rounding
        scores = xp.where(scores < _kth(scores, int(top_k)), -xp.inf, scores)
    scores = scores - peak
    weights = xp.exp(scores / temperature if temperature != 1 else scores)
    probs = weights / total(weights)
    return _nucleus(probs, top_p) if top_p is not None and top_p < 1 else probs


def _kth(scores: Any, k: int) -> Any:
    """The k-th largest score of each row, (B, 1)."""
    xp = namespace(scores)
    if hasattr(xp, "topk"):
        return xp.topk(scores, k, -1).values[:, -1:]
    return xp.partition(scores, -k, axis=-1)[:, -k, None]


def _nucleus(probs: Any, top_p: float) -> Any:
    xp = namespace(probs)
    order = xp.flip(ascending(probs), (-1,))
    ranked = take(probs, order)
    full = xp.cumsum(ranked, -1)[:, :-1] >= top_p
    kept = xp.concatenate([ranked[:, :1], xp.where(full, 0.0, ranked[:, 1:])], -1)
    kept = put(probs, order, kept)
    return kept / total(kept)


def check_logits(logits: Any, name: str) -> None:
    """Raise `LogitsError` where logits (B, V) define no distribution; waits for the device.

    Parameters
    ----------
    logits : array of floats, (B, V)
        Each row needs one finite entry, and neither NaN nor +inf.
    name : str
        What the error message calls them.

    Examples
    --------
    >>> import numpy as np
    >>> check_logits(np.array([[0.0, -np.inf]]), "draft")
    """
    xp = namespace(logits)
    wrong = xp.isnan(logits) | (logits == xp.inf)
    for row in range(logits.shape[0]):
        if bool(wrong[row].any()):
            token = int(xp.argmax(1 * wrong[row], -1))
            raise LogitsError(
                f"{name}: row {row}, token {token}: logit is {float(logits[row, token])}; a logit must "
                "be finite or -inf"
            )
        if not bool(xp.isfinite(logits[row]).any()):
            raise LogitsError(f"{name}: row {row}: every logit is -inf; no token can occur")
