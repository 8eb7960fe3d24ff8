"""Verdicts: what bounds prove, what a sample cannot, and how intervals of positions are pooled."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from resispec_sim import replay
from resispec_sim.pooling import pooled_mean
from resispec_sim.rules import SequentialRule
from resispec_sim.verdict import verdict
from tests.replay_helpers import group_of, printed, small_dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    with small_dump(tmp_path_factory) as opened:
        yield opened


def rows_with(tv, half_width, method="certified", n_rows=1, bound=0.0):
    row = {
        "position": 0, "prompt": 0, "offset": 0, "tv": tv, "tv_low": tv - half_width,
        "tv_high": tv + half_width, "kl": tv, "kl_low": 0.0, "kl_high": 1.0, "tv_lower_bound": bound,
        "excess_token": 1, "excess_mass": tv, "method": method,
    }  # fmt: skip
    return pd.DataFrame([row] * n_rows)


@pytest.mark.parametrize(
    "rows, expected",
    [
        (rows_with(1e-13, 0.0), "exact"),
        (rows_with(1e-11, 0.0), "biased"),
        (rows_with(1e-3, 1e-3), "undecided"),
        (rows_with(1e-3, 2e-3, bound=1e-5), "biased"),
        (rows_with(1e-3, 9e-4), "biased"),
        (rows_with(1e-3, 9e-4, "sampled"), "biased"),
        # one of 400 intervals at 95 % excludes 0 easily, so this is no witness
        (rows_with(1e-3, 9e-4, "sampled", n_rows=400), "undecided"),
        (rows_with(0.0, 0.0, "sampled"), "undecided"),
    ],
)
def test_verdict_on_intervals(rows, expected):
    found = verdict(rows)
    assert found["verdict"] == expected
    assert found["basis"] == ("sampled" if rows["method"].iloc[0] == "sampled" else "bounds")


def test_a_rule_said_to_be_exact_is_called_biased_by_bounds_only():
    assert verdict(rows_with(1e-3, 9e-4), claims_exact=True)["verdict"] == "biased"
    assert verdict(rows_with(1e-3, 9e-4, "sampled"), claims_exact=True)["verdict"] == "undecided"
    # one position with bounds decides among sampled ones
    both = pd.concat([rows_with(1e-3, 9e-4), rows_with(0.5, 0.1, "sampled")], ignore_index=True)
    assert verdict(both, claims_exact=True)["witness"]["tv"] == 1e-3


def test_what_bounds_leave_open_is_said(dump):
    report = replay(dump, "specinfer", siblings=2, tree="d2b2", positions="0:3")
    report.frame.loc[:, "method"] = "certified"
    report.frame.loc[1, "tv_high"] = 1e-6
    assert group_of(report, 2, "specinfer")["verdict"] == "undecided"
    assert "undecided (TV at most 1.0e-06)" in printed(report)


@dataclass(frozen=True)
class ExactOnAverage(SequentialRule):
    """Rejection sampling with a coin of its own: half the tokens rejected lead to one residual, half
    to another, and only their mean is the right one."""

    name: ClassVar[str] = "on-average"
    exact: ClassVar[bool] = True

    def start(self, target, draft, n_siblings):
        residual = np.maximum(target - draft, 0)
        return target, draft, residual / residual.sum(), 0

    def accept_probs(self, state):
        target, draft, _, i = state
        accept = np.minimum(1, np.divide(target, draft, out=np.ones_like(draft), where=draft > 0))
        return accept if i == 0 else 0 * draft

    def after_rejection(self, state, token):
        target, draft, residual, i = state
        if i:
            return target, draft, residual, i + 1
        rejected = np.maximum(draft - target, 0)
        share = rejected / rejected.sum()
        # a shift of the residual with mean 0 over the rejected tokens, as large as it can be
        tilt = np.where(np.arange(len(target)) % 2, 1.0, -1.0)
        tilt = residual * (tilt - (residual * tilt).sum())
        height = 1.0 if token % 2 else -1.0
        heights = np.where(np.arange(len(target)) % 2, 1.0, -1.0)
        shift = 0.2 * (height - (share * heights).sum()) * tilt
        return target, draft, residual + shift, 1

    def last_residual(self, state):
        return state[2]


def test_sampling_alone_never_calls_an_exact_rule_biased(dump):
    """Its samples are off the target in every draw, though their mean is the target."""
    rule = ExactOnAverage()
    exact = replay(dump, rule, siblings=3, tree="d2b1", n_jobs=1)
    assert group_of(exact, 3, "on-average")["verdict"] == "exact"
    for seed in range(5):
        report = replay(
            dump, rule, siblings=3, tree="d2b1", method="sampled", max_paths=50, seed=seed
        )
        figures = group_of(report, 3, "on-average")
        assert figures["tv"]["max"] > 1e-4
        assert (figures["verdict"], figures["basis"]) == ("undecided", "sampled")
    assert "not separable from exact" in printed(report)


def test_a_sample_without_noise_is_no_proof_either(dump):
    report = replay(dump, "rrs-wor", siblings=4, tree="d2b2", method="sampled", max_paths=40)
    assert set(report.frame["method"]) == {"sampled"}
    assert report.frame["tv_high"].max() < 1e-12
    figures = group_of(report, 4, "rrs-wor")
    assert (figures["verdict"], figures["basis"]) == ("undecided", "sampled")
    text = " ".join(printed(report).split())
    assert "TV 0 along every drawn path; others were not looked at" in text
    assert "+-0.0000000000" not in text


def test_standard_errors_of_positions_add_up_in_quadrature():
    rows = pd.DataFrame({"a": 0.5, "a_low": 0.4, "a_high": 0.6, "method": ["sampled"] * 4})
    assert pooled_mean(rows, "a") == pytest.approx(
        {"mean": 0.5, "low": 0.45, "high": 0.55, "sampled": True}
    )
    # bounds do not
    rows["method"] = ["certified"] * 2 + ["sampled"] * 2
    half = 0.05 + np.hypot(0.1, 0.1) / 4
    found = pooled_mean(rows, "a")
    assert (found["low"], found["high"]) == pytest.approx((0.5 - half, 0.5 + half))
    rows["method"] = "certified"
    assert pooled_mean(rows, "a") == pytest.approx(
        {"mean": 0.5, "low": 0.4, "high": 0.6, "sampled": False}
    )
