"""Checks of single arguments: counts, seeds, numbers. Only the standard library is imported."""

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

from .errors import InputError

MOST_SIBLINGS = 4096


def check_whole(name: str, value: Any, at_least: int | None = None) -> int:
    """A whole number as an int: Python's or numpy's, neither a bool nor a float (`InputError`).

    Examples
    --------
    >>> check_whole("seed", 3, at_least=0)
    3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InputError(f"{name} is {value!r}: it must be a whole number")
    if at_least is not None and number < at_least:
        raise InputError(f"{name} is {number}: it must be at least {at_least}")
    return number


def check_n_siblings(n: Any) -> int:
    """A number of siblings as an int; `InputError` unless it is a whole number from 1 to 4096.

    Acceptance is kept by sibling and token, so memory grows with it.

    Examples
    --------
    >>> check_n_siblings(3)
    3
    """
    number = check_whole("n_siblings", n, at_least=1)
    if number > MOST_SIBLINGS:
        raise InputError(f"n_siblings is {number}: it must be at most {MOST_SIBLINGS}")
    return number


def check_number(name: str, value: Any) -> float:
    """A real number as a float; `InputError` for anything else, such as a bool or text.

    Examples
    --------
    >>> check_number("temperature", 1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is {value!r}: it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is beyond the range of floats") from None


def as_list(value: Any) -> list[Any]:
    """The items of a sequence or array; one item, a text included, becomes a list of itself.

    Examples
    --------
    >>> as_list("ab"), as_list((1, 2))
    (['ab'], [1, 2])
    """
    single = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    return [value] if single or getattr(value, "ndim", 1) == 0 else list(value)
