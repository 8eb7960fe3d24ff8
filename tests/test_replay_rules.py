"""Replaying every rule of one position: each beside its own optimum, left out where undefined."""

import json

import numpy as np
import pytest

from resispec_sim import replay, write_dump
from resispec_sim.engine.bounds import optimum_for
from resispec_sim.rules import RULES, PositionRule, ResidualRule, parse_rule
from tests.replay_helpers import SHAPED, group_of, printed, small_dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    with small_dump(tmp_path_factory) as opened:
        yield opened


def test_every_rule_of_one_position(dump):
    report = replay(dump, "all", siblings=(2, 3), tree="d3b2", n_jobs=1)
    labels = {kind().label for kind in RULES.values() if issubclass(kind, PositionRule)}
    for n_siblings, missing in ((2, set()), (3, {"spechub"})):
        (group,) = [g for g in report.summary["groups"] if g["siblings"] == n_siblings]
        assert {figures["rule"] for figures in group["rules"]} == labels - missing
        for figures in group["rules"]:
            rule = parse_rule(figures["rule"])
            best = [optimum_for(rule, *dump.probs(i), n_siblings) for i in range(dump.n_positions)]
            assert figures["optimum"] == pytest.approx(np.mean(best), abs=1e-12)
            assert figures["scheme"] == rule.siblings
            assert figures["verdict"] == ("exact" if rule.exact else "biased"), figures["rule"]
            if rule.exact:
                assert figures["share_above_optimum"]["mean"] == 0
                assert figures["eal"]["mean"] == pytest.approx(
                    figures["tokens_per_step"]["mean"], rel=0.5
                )
            has_proxies = isinstance(rule, ResidualRule)
            assert np.isfinite(figures["appendix_b_kl"]["mean"]) == has_proxies
    assert report.left_out == ("spechub is left out at 3 siblings: it is defined for 2 only",)
    text = printed(report)
    for words in ("n/a", report.left_out[0][:30], "without replacement", "one and the hub"):
        assert words in text
    read = json.loads(report.to_json())
    assert read["groups"][0]["rules"][0]["appendix_b_kl"]["mean"] is None
    assert read["left_out"] == list(report.left_out)


def test_a_rule_without_a_law_at_the_branching_has_no_eal(dump):
    report = replay(dump, "spechub", siblings=2, tree="d3b3", positions="0:7")
    assert group_of(report, 2, "spechub")["eal"]["reason"] == "not defined for 3 siblings"
    assert group_of(report, 2, "spechub")["acceptance"]["mean"] > 0
    with_two = replay(dump, "spechub", siblings=2, tree="d3b2", positions="0:7")
    assert group_of(with_two, 2, "spechub")["eal"]["mean"] > 1


def test_the_aliases(dump):
    report = replay(dump, "exact,resispec", siblings=2, tree="d2b2", positions="0:1")
    labels = list(report.context.claims_exact)
    assert (
        labels[-1] == SHAPED
        and "exact-shaping" in labels
        and "resispec-wor[capacity]" not in labels
    )


def test_tokens_per_step_of_a_reading_that_turns_out_exact(dump):
    """Its siblings are fixed and its residuals those of target-only, though it claims nothing."""
    rules = ["resispec-eagle:reading=one-hot", "target-only"]
    report = replay(dump, rules, siblings=(2, 3), tree="d3b2", n_jobs=1)
    one_hot = "resispec-eagle[capacity,one-hot]"
    assert group_of(report, 2, one_hot)["verdict"] == "exact"
    steps = [
        group_of(report, 2, rule)["tokens_per_step"]["mean"] for rule in (one_hot, "target-only")
    ]
    assert steps[0] == pytest.approx(steps[1])
    # three siblings say nothing about the two of the tree
    assert group_of(report, 3, one_hot)["tokens_per_step"]["mean"] is None


def test_the_error_of_an_optimum_is_no_acceptance_above_it(tmp_path):
    """Where p = q every rule reaches the optimum, and a quadrature may be off by 1e-10."""
    rows = list(np.random.default_rng(2).normal(size=(1, 6, 40)))
    with write_dump(tmp_path / "same", rows, rows, [[0] * 6], dtype="float32") as dump:
        report = replay(dump, "rrs-wor", siblings=(2, 3, 4), tree="d2b2", n_jobs=1)
    for group in report.summary["groups"]:
        (figures,) = group["rules"]
        assert figures["acceptance"]["mean"] == pytest.approx(1)
        assert figures["share_above_optimum"]["high"] == 0
