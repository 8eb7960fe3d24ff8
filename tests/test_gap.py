"""The table of acceptance beside the optima: figures against the laws, shares, and its checks."""

import json

import numpy as np
import pytest

from resispec_sim import exact_law, gap, measure, optimal_acceptance, write_dump
from resispec_sim.cli import run_command
from resispec_sim.engine.bounds import optimum_for
from resispec_sim.errors import InputError, RuleError
from resispec_sim.gap import acceptance_table, gap_share
from resispec_sim.gap_command import table
from resispec_sim.rules import parse_rule

V, LENGTH = 9, 5


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    rng = np.random.default_rng(17)
    target = rng.normal(size=(2, LENGTH, V)) * 2
    draft = target + rng.normal(size=target.shape)
    folder = tmp_path_factory.mktemp("dumps") / "gap"
    with write_dump(
        folder, list(target), list(draft), list(target.argmax(axis=-1)), dtype="float32"
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(dump):
    return acceptance_table(dump, (2, 3), n_jobs=1)


def figures_of(report, n_siblings, rule):
    (count,) = [c for c in report.summary["counts"] if c["siblings"] == n_siblings]
    (found,) = [f for f in count["rules"] if f["rule"] == rule]
    return found


@pytest.mark.parametrize("n_siblings", [2, 3])
@pytest.mark.parametrize("rule", ["rrs-wor", "k-seq", "nss", "target-only", "exact-shaping"])
def test_figures_are_those_of_the_laws(dump, report, rule, n_siblings):
    pairs = [dump.probs(i) for i in range(dump.n_positions)]
    accepted, base = (
        np.array([exact_law(name, *pair, n_siblings).accepted.sum() for pair in pairs])
        for name in (rule, "specinfer")
    )
    iid, own = (
        np.array([optimum_for(scheme, *pair, n_siblings) for pair in pairs])
        for scheme in ("iid", rule)
    )
    found = figures_of(report, n_siblings, rule)
    assert found["acceptance"]["mean"] == pytest.approx(accepted.mean(), abs=1e-12)
    assert found["optimum"] == pytest.approx(own.mean(), abs=1e-12)
    expected = (accepted - base).sum() / (iid - base).sum()
    assert found["share"] == pytest.approx(expected, abs=1e-9)
    if own.sum() > base.sum():
        share = (accepted - base).sum() / (own - base).sum()
        assert found["share_own"] == pytest.approx(share, abs=1e-9)
    else:
        assert found["share_own"] is None


def test_the_base_closes_nothing_and_the_optimum_everything(report):
    assert figures_of(report, 2, "specinfer")["share"] == 0
    rows = report.frame[report.frame["rule"] == "specinfer"]
    assert gap_share(rows["optimum_iid"], rows["rrs"], rows["optimum_iid"]) == 1
    assert gap_share(rows["rrs"], rows["rrs"], rows["rrs"]) is None


def test_both_optima_stand_in_the_table(dump, report):
    for count in report.summary["counts"]:
        for name, replacement in (("optimum_iid", True), ("optimum_wor", False)):
            best = [
                optimal_acceptance(*dump.probs(i), count["siblings"], replacement)
                for i in range(dump.n_positions)
            ]
            assert count[name] == pytest.approx(np.mean(best), abs=1e-12)


def test_every_way_of_drawing_has_its_optimum(dump, report):
    pairs = [dump.probs(i) for i in range(dump.n_positions)]
    two, three = report.summary["counts"]
    assert set(two["optima"]) == {"iid", "without_replacement", "topk", "hub"}
    for count in (two, three):
        for scheme, best in count["optima"].items():
            if scheme != "hub" or count["siblings"] == 2:
                own = [optimum_for(scheme, *pair, count["siblings"]) for pair in pairs]
                assert best == pytest.approx(np.mean(own), abs=1e-12)
        # no rule of an optimum's own siblings passes it
        for rule in count["rules"]:
            if rule["acceptance"] is not None:
                assert rule["acceptance"]["low"] <= count["optima"][rule["scheme"]] + 1e-10
    assert three["optima"]["hub"] is None
    only = acceptance_table(dump, 2, "specinfer", n_jobs=1).summary["counts"][0]
    assert set(only["optima"]) == {"iid", "without_replacement"}


def test_the_theory_holds_here(report):
    checks = report.checks
    assert checks["exact_shaping_below"] == {"specinfer": 0, "k-seq": 0}
    assert set(checks["above_optimum"].values()) == {0} and len(checks["above_optimum"]) == 7


@pytest.mark.parametrize(
    "column, rule, key",
    [
        ("acceptance", "k-seq", "exact_shaping_below"),
        ("acceptance_low", "rrs-wor", "above_optimum"),
    ],
)
def test_a_contradiction_is_counted(dump, column, rule, key):
    report = acceptance_table(dump, (2, 3), n_jobs=1)
    wrong = (report.frame["rule"] == rule) & (report.frame["position"] == 3)
    report.frame.loc[wrong, column] = 1.1
    assert report.checks[key][rule] == 2


def test_a_rule_is_blank_where_it_is_not_defined(dump, report):
    assert figures_of(report, 3, "spechub")["acceptance"] is None
    assert "2 siblings only" in figures_of(report, 3, "spechub")["reason"]
    assert figures_of(report, 2, "spechub")["share_own"] > 0
    with pytest.raises(RuleError, match="spechub is left out at 3"):
        acceptance_table(dump, 3, "spechub")


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"siblings": 0}, InputError),
        ({"rules": "nonesuch"}, RuleError),
        ({"rules": "block"}, RuleError),
        ({"positions": "99:"}, InputError),
        ({"n_jobs": 0}, InputError),
        ({"method": "guess"}, InputError),
    ],
)
def test_bad_arguments(dump, arguments, error):
    with pytest.raises(error):
        acceptance_table(dump, **arguments)


def test_the_frame_does_not_depend_on_threads(dump, report):
    again = acceptance_table(dump, (2, 3), n_jobs=3, progress=True)
    assert again.to_json() == report.to_json()


def test_rules_that_pass_the_optimum_are_shown_as_inexact(dump):
    report = acceptance_table(dump, 3, "specinfer,resispec", n_jobs=1)
    assert figures_of(report, 3, "resispec[capacity,minimal]")["claims_exact"] is False
    assert list(report.checks["above_optimum"]) == ["specinfer"]


def test_sampled_figures_carry_their_standard_error(dump):
    rule = parse_rule("resispec-wor")
    report = acceptance_table(dump, 4, ["specinfer", rule], method="sampled", max_paths=300)
    value = figures_of(report, 4, rule.label)["acceptance"]
    assert value["sampled"] and value["low"] < value["mean"] < value["high"]
    exact = acceptance_table(dump, 4, rule, method="exact")
    truth = figures_of(exact, 4, rule.label)["acceptance"]["mean"]
    # five standard errors: a false alarm in two million seeds, and this one is fixed
    assert abs(value["mean"] - truth) < 5 * (value["high"] - value["low"]) / 2 / 1.96


def test_the_command(dump, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    path = str(dump.path)
    assert run_command(["bounds", path, "--siblings", "2,3"]) == 0
    out = capsys.readouterr().out
    for text in ("exact-shaping", "optimum, without replacement", "2 siblings", "n/a", " 0 %"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110
    assert run_command(["bounds", path, "--siblings", "2", "--rules", "exact", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f["rule"] for f in found["counts"][0]["rules"]] == [
        "rejection", "specinfer", "rrs-wor", "k-seq", "spechub", "nss", "target-only", "exact-shaping",
    ]  # fmt: skip
    assert found["provenance"]["parameters"]["siblings"] == [2]
    assert run_command(["bounds", path, "--siblings", "two"]) == 2
    assert "--siblings 'two'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bounds", "compare"])
def test_an_interrupted_run_keeps_what_was_computed(dump, capsys, monkeypatch, command):
    # four laws a position, of the base and three rules; or the laws of two counts
    module, name, n_calls = {
        "bounds": (gap, "exact_law", 32),
        "compare": (measure, "_laws", 16),
    }[command]
    calls, computed = [], getattr(module, name)

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) > n_calls:
            raise KeyboardInterrupt
        return computed(*args, **kwargs)

    monkeypatch.setattr(module, name, interrupted)
    options = {
        "bounds": ["--siblings", "2", "--rules", "specinfer,nss,k-seq"],
        "compare": ["--rules", "specinfer,k-seq", "--siblings", "2", "--tree", "d2b3"],
    }[command]
    assert run_command([command, str(dump.path), "--jobs", "1", "--json", *options]) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["partial"] is True
    assert found["n_positions"] == (8 if command == "bounds" else [8, 8])


def test_partial_is_in_the_title(report):
    from rich.console import Console

    console = Console(width=110)
    with console.capture() as capture:
        console.print(table(report.summary | {"partial": True}))
    assert "PARTIAL" in capture.get()
