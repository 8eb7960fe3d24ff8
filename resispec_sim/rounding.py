"""Bounds in few digits: rounded away from their interval, so that what is printed is a bound too."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DOWN, UP = ROUND_FLOOR, ROUND_CEILING

_SLACK = Decimal("1e-13")  # relative, absolute below 1


def outward(value: float, digits: int, rounding: str) -> str:
    """An end of an interval of bounds with `digits` decimals, rounded away from the interval.

    Parameters
    ----------
    value : float
    digits : int
    rounding : str
        `DOWN` for a lower end, `UP` for an upper one.

    Examples
    --------
    >>> outward(1.17783, 2, DOWN), outward(1.17783, 2, UP), outward(0.1, 2, UP)
    ('1.17', '1.18', '0.10')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(value)
    # the last digits of a float are rounding: 0.1 must not become 0.1001
    slack = _SLACK * max(Decimal(1), abs(exact))
    inside = exact + (slack if rounding == DOWN else -slack) if abs(exact) > slack else Decimal(0)
    return f"{inside.quantize(Decimal(1).scaleb(-digits), rounding):f}"


def outward_short(value: float, rounding: str) -> str:
    """The same with two significant digits, for small values.

    Examples
    --------
    >>> outward_short(1.234e-5, DOWN), outward_short(1.234e-5, UP)
    ('1.2e-05', '1.3e-05')
    """
    short = Context(prec=2, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(short):.1e}"
