"""Formulas of the rules, for one position or many, in floats of any array library or in rationals.

Legend: R = residual, q = draft, V = tokens. Arrays are ``(..., V)`` of numpy (also of Fraction), torch
or cupy; the library comes from the arrays. Sums over the tokens keep their axis, ``(..., 1)``. Nothing
here branches on a value, so that no device has to be waited for.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

LARGE_RATIO = 1e290  # sums of so many times 1e10 stay finite
RATIO_SCALE = 1e-300
LARGE_KEY = 1e295  # times the root of a scaled ratio: in order, above all others, finite


def namespace(array: Any) -> Any:
    """The library that an array belongs to: numpy, torch or cupy.

    Examples
    --------
    >>> namespace(np.ones(2)).__name__
    'numpy'
    """
    if isinstance(array, np.ndarray):
        return np
    return sys.modules[type(array).__module__.partition(".")[0]]


def total(values: Any) -> Any:
    """Sum over the tokens, (..., 1)."""
    return values.sum(axis=-1, keepdims=True)


def take(values: Any, index: Any) -> Any:
    """Entries of each row, (..., M), at `index` (..., M)."""
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, index, axis=-1)
    return values.gather(-1, index)


def ascending(values: Any, stable: bool = True) -> Any:
    """The order that sorts each row (..., V), lowest first."""
    if isinstance(values, np.ndarray):
        return np.argsort(values, axis=-1, stable=stable)
    xp = namespace(values)
    if values.device.type == "cpu":  # torch's own sort takes three times as long there
        return xp.from_numpy(np.argsort(values.numpy(), axis=-1, stable=stable))
    return xp.argsort(values, stable=stable)


def normalised(values: Any, otherwise: Any) -> Any:
    """``values / sum``, or `otherwise` where the sum is 0."""
    xp, mass = namespace(values), total(values)
    some = mass > 0
    return xp.where(some, values / xp.where(some, mass, 1), otherwise)


def ratio_capped(top: Any, bottom: Any) -> Any:
    """``min(1, top / bottom)``, and 1 where ``bottom`` is 0: such a token is never drawn."""
    xp = namespace(top)
    below = bottom > top
    return xp.where(below, top / xp.where(below, bottom, 1), 1 + 0 * top)


def kept_below(capacity: Any, draft: Any, mass: Any) -> Any:
    """``min(Z q, R)`` of ResiSpec, with `capacity` the residual off the rejected token and Z `mass`."""
    return namespace(capacity).minimum(mass * draft, capacity)


def filled(capacity: Any, kept: Any, mass: Any, fill: str) -> Any:
    """`kept` and what it lacks of `mass`, spread over the room ``capacity - kept``.

    Parameters
    ----------
    capacity, kept : array, (..., V)
    mass : number or array, (..., 1)
    fill : {"capacity", "index"}
        In proportion to the room, or in token order.
    """
    xp = namespace(capacity)
    room = capacity - kept
    deficit = (mass - total(kept)).clip(min=0)
    if fill == "capacity":
        return kept + in_proportion(room, deficit)
    before = xp.cumsum(room, -1) - room
    return kept + xp.minimum((deficit - before).clip(min=0), room)


def in_proportion(room: Any, mass: Any) -> Any:
    """`mass` (..., 1), or all the room where it is less, over the tokens in proportion to their room."""
    xp, size = namespace(room), total(room)
    some = size > 0
    return room * (xp.minimum(mass, size) / xp.where(some, size, 1))


def filled_to_level(capacity: Any, draft: Any, mass: Any) -> Any:
    """``min(t q, capacity)`` with sum `mass`; the rest, if any, on tokens with ``q = 0``.

    Parameters
    ----------
    capacity, draft : array, (..., V)
    mass : number or array, (..., 1)
    """
    xp = namespace(capacity)
    drafted = (draft > 0) & (capacity > 0)
    full, slope = capacity * drafted, draft * drafted
    held = total(full)
    outside = capacity * (draft <= 0)
    all_full = full + in_proportion(outside, (mass - held).clip(min=0))
    with np.errstate(over="ignore"):  # a subnormal draft probability
        ratio = full / (slope + ~drafted)
    beyond, scaled = None, ratio
    if str(ratio.dtype).endswith("float64"):
        # Ratios past the float range are compared, and multiplied, on a scale of their own.
        beyond = ratio > LARGE_RATIO
        scaled = xp.where(beyond, (full * RATIO_SCALE) / (slope + ~drafted), ratio)
        ratio = xp.where(beyond, LARGE_KEY * scaled**0.5, ratio)
    # tokens that take no part have the ratio 0 and come first: full from the start
    order = ascending(ratio, stable=False)
    key, sorted_full, sorted_slope = take(ratio, order), take(full, order), take(slope, order)
    # where the k-th token fills up, those before it are full and those from it on still rise
    full_before = xp.cumsum(sorted_full, -1) - sorted_full
    slope_from = xp.flip(xp.cumsum(xp.flip(sorted_slope, (-1,)), -1), (-1,))
    rise = take(scaled, order) * slope_from
    if beyond is not None:
        with np.errstate(over="ignore"):  # where the other branch is taken
            rise = xp.where(take(beyond, order), rise / RATIO_SCALE, rise)
    reached = full_before + rise
    k = total(reached < mass).clip(max=key.shape[-1] - 1)
    # not level * q with level = rest / slope: that overflows where all the rest is subnormal
    rising = take(slope_from, k)
    share = xp.minimum(slope, rising) / xp.where(rising > 0, rising, 1)  # those that are full aside
    level = xp.minimum((mass - take(full_before, k)) * share, full)
    return xp.where(mass >= held, all_full, xp.where(ratio < take(key, k), full, level))


def smallest_ratio(residual: Any, draft: Any) -> Any:
    """``min_{q > 0} R / q``, (..., 1)."""
    xp, drafted = namespace(residual), draft > 0
    with np.errstate(over="ignore"):  # a subnormal draft probability: never the minimum
        ratio = residual / xp.where(drafted, draft, 1)
    return xp.amin(xp.where(drafted, ratio, np.inf), axis=-1, keepdims=True)


def shaped_residual(target: Any, draft: Any, spent: Any, level: Any) -> Any:
    """``max(p - C q, min(p, (S - C)+ q))`` of exact shaping, with C `spent` and S `level`.

    Parameters
    ----------
    target, draft : array, (..., V)
    spent : array, (..., 1)
    level : number or array, (..., 1)
    """
    xp = namespace(target)
    kept = xp.minimum(target, (level - spent).clip(min=0) * draft)
    return xp.maximum(target - spent * draft, kept)


def unspent(level: Any, overlap: Callable[[Any], Any], n_siblings: int) -> Iterator[Any]:
    """``T_1 .. T_n`` of exact shaping: what is left of ``S`` at the places of n siblings.

    Parameters
    ----------
    level : number or array
        ``S``, one or many.
    overlap : callable
        ``c -> m(c) = sum min(p, c q)``, and 0 where ``c`` is negative.
    n_siblings : int
    """
    missing = 1 - overlap(level)
    rest = level - 1
    yield rest
    for _ in range(n_siblings - 1):
        rest = rest - missing - overlap(rest)
        yield rest


def is_k_seq_exact(overlap: Any, factor: Any, n_siblings: Any, slack: float) -> Any:
    """Whether K-SEQ is exact at a factor ``c``: ``1 - (1 - m/c)^n <= m``, with m `overlap`."""
    return 1 - (1 - overlap / factor) ** n_siblings <= overlap + slack


def k_seq_residual(target: Any, draft: Any, factor: Any, n_siblings: Any) -> tuple[Any, Any]:
    """``beta`` (..., 1) of K-SEQ and its residual ``norm(p - min(p/c, q) A/beta)``, (..., V).

    Parameters
    ----------
    target, draft : array, (..., V)
    factor, n_siblings : number or array, (..., 1)
    """
    xp = namespace(target)
    overlap = xp.minimum(target / factor, draft)
    beta = total(overlap)
    some = beta > 0
    share = (1 - (1 - beta) ** n_siblings) / xp.where(some, beta, 1)
    return beta, normalised((target - overlap * share).clip(min=0), target)
