"""Projected speeds: the cost of a step, and accepted lengths taken from a dump."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tree_helpers import SMALL, make_dump

from resispec_sim.cli import run_command
from resispec_sim.dumps import Dump, open_dump
from resispec_sim.errors import InputError
from resispec_sim.growmaps import GrowMap
from resispec_sim.phases import MeasuredStep, read_phases, step_cost
from resispec_sim.project import PER_POSITION, PER_STEP, project
from resispec_sim.replay import replay
from resispec_sim.rules import parse_rule
from resispec_sim.tree_eal import growmap_eal, measure_siblings

RULES = ("specinfer", "resispec", "exact-shaping")
RESISPEC = "resispec[capacity,minimal]"


def made_up(tree: str, rule: str, length: float, shaping: float = 0.001, **changes) -> MeasuredStep:
    """A step whose phases follow a law that is linear in levels, nodes and tokens."""
    shape = GrowMap.complete(tree)
    seconds = {
        "drafting": 0.002 * shape.n_levels,
        "verification": 0.02 + 0.0001 * shape.n_nodes,
        "shaping": shaping * length,
    }
    entries = {
        "dataset": "c4",
        "method": f"{rule} {tree}",
        "rule": rule,
        "draft": "d",
        "tree": tree,
    }
    entries |= {"n_levels": shape.n_levels, "n_nodes": float(shape.n_nodes)}
    return MeasuredStep(**(entries | {"accepted_length": length, "seconds": seconds} | changes))


MEASURED = [
    made_up("d3b2", "specinfer", 1.9),
    made_up("d5b2", "specinfer", 2.4),
    made_up("d3b2", RESISPEC, 2.5, shaping=0.003),
]


@pytest.mark.parametrize("tree", ["d2b1", "d3b2", "d4b2", "d5b2", "d6b2", "d4b4"])
@pytest.mark.parametrize(("rule", "shaping"), [("specinfer", 0.001), (RESISPEC, 0.003)])
def test_a_linear_cost_is_projected_onto_every_tree(tree: str, rule: str, shaping: float) -> None:
    shape = GrowMap.complete(tree)
    truth = made_up(tree, rule, 3.0, shaping)
    cost = step_cost(MEASURED, rule, shape.n_levels, shape.n_nodes)
    if shape.n_nodes < 7:
        # Below the smallest tree verification is held, since a pass has a fixed cost.
        assert cost.verification == pytest.approx(0.02 + 0.0007)
    else:
        assert cost.seconds(3.0) == pytest.approx(truth.step_seconds)
        assert cost.tokens_per_second(3.0) == pytest.approx(truth.tokens_per_second)
    outside = not (2 <= shape.n_levels <= 4 and 7 <= shape.n_nodes <= 31)
    assert bool(cost.notes) == outside


def test_a_single_system_is_reproduced_and_what_stands_in_is_said() -> None:
    one = MEASURED[2]
    cost = step_cost([one], RESISPEC, one.n_levels, one.n_nodes)
    assert cost.tokens_per_second(one.accepted_length) == pytest.approx(one.tokens_per_second)
    assert cost.notes == ()
    other = step_cost(MEASURED, "k-seq", 4, 30)
    assert other.shaping_per_token == pytest.approx(0.003)
    assert other.notes == (f"shaping as of {RESISPEC}, the dearest that was measured",)
    speeds = [other.tokens_per_second(length) for length in (1.0, 2.0, 3.0, 5.0)]
    assert speeds == sorted(speeds)
    with pytest.raises(InputError, match="no system with a draft"):
        step_cost([made_up("d2b1", "autoregressive", 1.0, n_levels=0)], "specinfer", 1, 2)


def write_csv(folder: Path, steps: list[MeasuredStep]) -> Path:
    columns = [
        "dataset",
        "method",
        "rule",
        "draft",
        "tree",
        "n_levels",
        "n_nodes",
        "accepted_length",
    ]
    lines = [",".join([*columns, "phase", "seconds"])]
    for step in steps:
        shared = ",".join(
            f'"{getattr(step, column) or ""}"' if column != "n_levels" else str(step.n_levels)
            for column in columns
        )
        lines += [f"{shared},{phase},{seconds!r}" for phase, seconds in step.seconds.items()]
    path = folder / "phases.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.004", "fast", r"phases\.csv, row 1: seconds is 'fast'"),
        ("0.004", "-1", r"row 1: seconds is '-1', not a number from 0"),
        ("0.004", "nan", r"row 1: seconds is 'nan'"),
        ("accepted_length", "length", r"row 1: accepted_length is None"),
        ("drafting", "", r"row 1: there is no phase"),
        ("method", "methud", r"row 1: there is no method"),
    ],
)
def test_damaged_phases_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_csv(tmp_path, MEASURED)
    assert read_phases(path) == MEASURED
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        read_phases(path)


def test_files_without_phases_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("dataset,method\n")
    with pytest.raises(InputError, match="holds no phases"):
        read_phases(tmp_path / "empty.csv")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(InputError, match="not the results.json"):
        read_phases(tmp_path / "other.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_phases(tmp_path / "none.csv")
    for content in (
        '{"phases": null}',
        '{"phases": {"a": 1}}',
        "[1, 2]",
        '"abc"',
        '{"phases": [[1]]}',
    ):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(InputError, match="not the results.json"):
            read_phases(tmp_path / "other.json")


def test_systems_that_lack_a_phase_or_accept_too_much_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path, MEASURED)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    with pytest.raises(InputError, match="has no row for drafting"):
        read_phases(path)
    place = lines[0].split(",").index("accepted_length")
    changed = [line.split(",") for line in lines[1:4]]
    for cells in changed:
        cells[place] = "1e9"
    path.write_text("\n".join([lines[0], *map(",".join, changed), *lines[4:]]) + "\n")
    with pytest.raises(InputError, match="1e\\+09 tokens a step on"):
        read_phases(path)


def test_rows_of_one_system_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path, MEASURED)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    with pytest.raises(InputError, match="a second row for drafting"):
        read_phases(path)
    place = lines[0].split(",").index("accepted_length")
    cells = lines[2].split(",")
    cells[place] = "77"
    path.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]) + "\n")
    with pytest.raises(InputError, match="row 2: accepted_length is '77', but"):
        read_phases(path)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    make_dump(tmp_path_factory.mktemp("dump") / "d").close()
    with open_dump(tmp_path_factory.getbasetemp() / "dump0" / "d") as opened:
        yield opened


def test_accepted_lengths_are_those_of_replay_and_of_the_tree_search(dump: Dump) -> None:
    small = GrowMap(SMALL)
    trees = ["d3b2", "d2b2", "d4b2", "d3b3", small]
    found = project(dump, MEASURED, RULES, trees, n_jobs=1)
    rows = {(row["tree"], row["rule"]): row for row in found.rows}
    assert len(rows) == len(trees) * len(RULES)
    for tree in trees[:-1]:
        report = replay(dump, RULES, int(tree[-1]), tree=tree, n_jobs=1)
        for figures in report.summary["groups"][0]["rules"]:
            row = rows[tree, figures["rule"]]
            exact = figures["rule"] != RESISPEC
            expected = figures["tokens_per_step" if exact else "eal"]
            assert row["figure"] == (PER_STEP if exact else PER_POSITION)
            for end in ("mean", "low", "high"):
                suffix = "" if end == "mean" else f"_{end}"
                assert row[f"accepted_length{suffix}"] == expected[end]
    for rule in RULES:
        figures = measure_siblings(dump, parse_rule(rule), 2, n_jobs=1)
        expected = growmap_eal(figures, small, np.ones(len(figures.prompts), dtype=bool))
        row = rows[str(small), parse_rule(rule).label]
        assert row["accepted_length"] == expected["mean"]
        assert row["figure"] == PER_POSITION


def test_speed_is_length_over_the_cost_of_a_step(dump: Dump) -> None:
    for row in project(dump, MEASURED, RULES, ["d3b2", "d4b2"], n_jobs=1).rows:
        tree = GrowMap.complete(row["tree"])
        cost = step_cost(MEASURED, row["rule"], tree.n_levels, tree.n_nodes)
        for end in ("", "_low", "_high"):
            length = row[f"accepted_length{end}"]
            assert row[f"tokens_per_second{end}"] == pytest.approx(length / cost.seconds(length))
        low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
        assert low < row["tokens_per_second"] < high
        parts = [row[f"{phase}_seconds"] for phase in ("drafting", "verification", "shaping")]
        assert sum(parts) == pytest.approx(row["step_seconds"])
        ran = row["tree"] == "d3b2" and row["rule"] != "exact-shaping"
        assert (row["measured_tokens_per_second"] is not None) == ran


def test_phases_of_several_drafts_need_a_choice(dump: Dump) -> None:
    both = [*MEASURED, made_up("d3b2", "specinfer", 1.5, draft="e", method="other")]
    with pytest.raises(InputError, match="drafts d, e: choose one with --draft"):
        project(dump, both, "specinfer", "d2b2", n_jobs=1)
    with pytest.raises(InputError, match="'f' has no phases; measured are: d, e"):
        project(dump, both, "specinfer", "d2b2", draft="f", n_jobs=1)
    one = project(dump, both, "specinfer", "d2b2", draft="d", n_jobs=1)
    assert one.rows == project(dump, MEASURED, "specinfer", "d2b2", n_jobs=1).rows


def test_rules_without_a_law_there_give_the_reason(dump: Dump) -> None:
    found = project(dump, MEASURED, ("specinfer", "spechub"), ["d3b2", "d3b3"], n_jobs=1)
    row = found.rows[-1]
    assert (row["rule"], row["accepted_length"], row["tokens_per_second"]) == (
        "spechub",
        None,
        None,
    )
    assert "not defined for 3" in row["reason"]


def test_command_prints_table_and_json(dump: Dump, tmp_path: Path, capsys) -> None:
    phases = write_csv(tmp_path, [*MEASURED, made_up("d2b1", "autoregressive", 1.0, n_levels=0)])
    words = [
        "project",
        str(dump.path),
        "--phases",
        str(phases),
        "--trees",
        "d3b2,d4b2",
        "--jobs",
        "1",
    ]
    assert run_command(words) == 0
    printed = capsys.readouterr().out
    assert "Plain decoding, measured" in printed
    assert "exact-shaping" in printed
    assert run_command([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], len(data["rows"]), len(data["measured"])) == ("project", 6, 4)
    assert data["provenance"]["parameters"]["trees"] == ["d3b2", "d4b2"]


def test_projecting_needs_no_torch() -> None:
    code = "import resispec_sim.project, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
