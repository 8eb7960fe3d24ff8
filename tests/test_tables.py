"""Printed bounds: rounded away from their interval, so that the printed ends hold as well."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resispec_sim.rounding import DOWN, UP, outward
from resispec_sim.tables import _bounded, _least, _share, _small, with_range

SLACK = 2e-13


def ends(text):
    return [float(piece) for piece in text.split("..")]


def encloses(text, low, high):
    shown = ends(text)
    return shown[0] <= low + SLACK and shown[1] >= high - SLACK


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.88905001, 0.89036, "0.8890..0.8904"),
        (1.1778601, 1.7199, "1.1778..1.7199"),
        (0.1, 0.2, "0.1000..0.2000"),
        (0.0, 1.0, "0.0000..1.0000"),
        (-1e-17, 0.25, "0.0000..0.2500"),
        (0.12344, 0.12346, "0.123440..0.123460"),
    ],
)
def test_bounds_are_rounded_outward(low, high, shown):
    assert with_range((low + high) / 2, low, high, sampled=False) == shown


@given(low=st.floats(0, 2), width=st.floats(1e-11, 1))
def test_printed_bounds_enclose_the_bounds(low, width):
    text = with_range(low + width / 2, low, low + width, sampled=False)
    if ".." in text:
        assert encloses(text, low, low + width)
        # and no further than a digit
        assert ends(text)[1] - ends(text)[0] < width + max(2.1e-4, width)
    text = _bounded(low + width / 2, low, low + width)
    assert ".." not in text or encloses(text, low, low + width)


@given(low=st.floats(1e-12, 9e-4), factor=st.floats(1.01, 100))
def test_printed_small_bounds_enclose_the_bounds(low, factor):
    high = min(low * factor, 9.9e-4)
    shown = ends(f"{_small(low, DOWN)}..{_small(high, UP)}")
    assert shown[0] <= low and high <= shown[1] <= high * 1.2


@given(low=st.floats(0, 1), width=st.floats(0, 1))
def test_shares_and_lower_bounds_are_rounded_to_their_side(low, width):
    high = min(1.0, low + width)
    text = _share({"mean": low, "low": low, "high": high})
    if ".." in text:
        shown = ends(text.removesuffix(" %"))
        assert shown[0] <= 100 * low + 100 * SLACK and shown[1] >= 100 * high - 100 * SLACK
    assert max(float(x) for x in _least({"mean": low, "max": low}).split()) <= low + SLACK


def test_sampled_intervals_and_single_figures_are_rounded_to_the_nearest():
    assert with_range(0.12346, 0.11346, 0.13346, sampled=True) == "0.1235 +-0.0100"
    assert with_range(0.12346, 0.12346, 0.12346, sampled=False) == "0.1235"
    assert outward(math.inf, 4, UP) == "inf" and _small(0.0, DOWN) == "0"
