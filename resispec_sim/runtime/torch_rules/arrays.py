"""The few array operations that numpy and torch name differently."""

from typing import Any

import numpy as np

from ...rules.formulas import namespace


def put(values: Any, index: Any, new: Any) -> Any:
    """A copy of rows (..., V) with the number or column `new` at `index` (..., 1)."""
    if isinstance(values, np.ndarray):
        copy = values.copy()
        np.put_along_axis(copy, index, new, axis=-1)
        return copy
    return values.scatter(-1, index, new)


def search(rising: Any, values: Any, right: bool = False) -> Any:
    """How many entries of each rising row (B, V) are below each of `values` (B, M); `right`: or equal."""
    if isinstance(rising, np.ndarray):
        side: Any = "right" if right else "left"
        pairs = zip(rising, values, strict=True)
        return np.stack([np.searchsorted(*pair, side=side) for pair in pairs])
    return namespace(rising).searchsorted(rising, values.contiguous(), right=right)


def as_type(values: Any, dtype: Any) -> Any:
    """The array in another type; itself where it has that type."""
    if isinstance(values, np.ndarray):
        return values.astype(dtype, copy=False)
    return values.to(dtype)


def to_float64(values: Any) -> Any:
    """The array in float64."""
    return as_type(values, namespace(values).float64)


def running_max(values: Any) -> Any:
    """The largest entry of each row (..., V) so far."""
    if isinstance(values, np.ndarray):
        return np.maximum.accumulate(values, axis=-1)
    return values.cummax(-1).values
