"""Rows stored in 16 bits: checked, and turned into probabilities, without decoding them.

A row has at most 65,536 different logits, so their exponentials are computed once per temperature and
looked up. The probabilities are those of the decoded row, to the last bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .storage import decode_rows, stored_type

# Bit pattern of +inf; NaN lies above it, and -inf and negative NaN have the sign bit beside that.
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}
_SIGN = 0x8000


def is_coded(dtype: str) -> bool:
    """Whether a storage type has few enough values to look them up."""
    return dtype in _INFINITY


def are_sound(codes: NDArray[Any], dtype: str) -> bool:
    """Whether a stored row (V,) has a finite entry, and neither NaN nor +inf."""
    bits = codes.view(np.uint16)
    infinity = _INFINITY[dtype]
    # the ufuncs themselves, since the methods take longer than a row does
    return bool(
        np.maximum.reduce(bits.view(np.int16)) < infinity
        and np.maximum.reduce(bits) <= (_SIGN | infinity)
        and np.minimum.reduce(bits) < (_SIGN | infinity)
    )


def probs_of_codes(
    codes: NDArray[Any], dtype: str, temperature: float
) -> NDArray[np.float64] | None:
    """The softmax of a stored row (V,) at a temperature above 0.

    Returns
    -------
    ndarray (V,) or None
        None for a row that the writer of dumps would not have stored, whose largest logit is not 0.
    """
    from ..engine.softmax import softmax_of_codes

    probs = np.empty(codes.shape)
    total = softmax_of_codes(codes.view(np.uint16), _exponentials(dtype, temperature), probs)
    return probs if 1.0 <= total < np.inf else None


@lru_cache(maxsize=8)
def _exponentials(dtype: str, temperature: float) -> NDArray[np.float64]:
    from ..engine.softmax import exponentials_of

    codes = np.arange(65_536, dtype=np.uint16).view(stored_type(dtype))
    with np.errstate(invalid="ignore"):
        logits = decode_rows(codes, dtype)
    found = np.empty(logits.size)
    exponentials_of(np.where(logits <= 0, logits, 0.0), temperature, found)
    # No row of this form has these; a sum with one of them is NaN.
    found[~(logits <= 0)] = np.nan
    found.flags.writeable = False
    return found
