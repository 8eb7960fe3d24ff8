"""Trees for a dump: against replay, on held-out prompts, as a report and as a command."""

import json

import numpy as np
import pytest
from cyclopts import App
from rich.console import Console
from tree_helpers import make_dump

import resispec_sim.tree_eal as measuring
import resispec_sim.tree_plan as planning
from resispec_sim import exact_law, replay, write_dump
from resispec_sim.errors import DumpError, InputError, RuleError
from resispec_sim.growmaps import GrowMap, parse_growmap
from resispec_sim.rules import parse_rule
from resispec_sim.tree_command import tree_command
from resispec_sim.tree_eal import growmap_path_eal, measure_siblings
from resispec_sim.tree_plan import plan_trees
from resispec_sim.tree_search import model_eal, optimise_tree
from resispec_sim.trees import bootstrap_ratio


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    with make_dump(tmp_path_factory.mktemp("dumps") / "small") as opened:
        yield opened


@pytest.mark.parametrize("rule", ["specinfer", "resispec"])
@pytest.mark.parametrize("name", ["d3b2", "d5b3", "d4b1"])
def test_the_dumps_figure_is_that_of_replay(dump, rule, name):
    report = plan_trees(dump, rule, 6, beside=name, max_branching=3, hold_out=False)
    (group,) = replay(dump, rule, tree=name).summary["groups"]
    (figures,) = group["rules"]
    mine = report.trees[-1]["fit"]
    assert mine["n_starts"] == figures["eal"]["n_starts"]
    for end in ("mean", "low", "high"):
        assert mine[end] == pytest.approx(figures["eal"][end], rel=1e-12)
    assert report.trees[-1]["held_out"] is None


def test_fit_and_held_out_prompts(dump, tmp_path):
    report = plan_trees(dump, budgets=(5, 16), beside="d3b2", max_branching=4)
    figures = measure_siblings(dump, parse_rule("specinfer"), 4)
    even = figures.prompts % 2 == 0
    row = figures.by_count("accepted")[4][even].mean(axis=0)
    assert report.acceptance[4] == pytest.approx(row, rel=1e-13)
    for plan, budget in zip(report.plans, (5, 16), strict=True):
        assert plan == optimise_tree(report.acceptance, budget, 3, max_branching=4)
    for tree, entry in zip([plan.growmap for plan in report.plans], report.trees, strict=False):
        assert entry["model_eal"] == pytest.approx(model_eal(tree, row))
        for part, chosen in (("fit", (0, 2, 4)), ("held_out", (1, 3))):
            sums = []
            for prompt in chosen:
                at = figures.prompts == prompt
                eal = growmap_path_eal(
                    {k: v[at] for k, v in figures.by_count("w").items()},
                    {k: v[at] for k, v in figures.by_count("accepted").items()},
                    tree,
                )
                sums.append((eal.sum(), len(eal)))
            expected = bootstrap_ratio(*zip(*sums, strict=True))
            found = entry[part]
            assert (found["mean"], found["low"], found["high"]) == pytest.approx(expected)
            assert found["n_starts"] == sum(n for _, n in sums)


def test_held_out_prompts_do_not_touch_the_tree(dump, monkeypatch):
    """Another law on the odd prompts changes the held-out figure alone."""
    before = plan_trees(dump, budgets=9, beside=(), depth=4, max_branching=3)
    odd = {i for i in range(dump.n_positions) if dump.prompt_of(i)[0] % 2}
    odd_rows = [dump.probs(i)[0].tobytes() for i in odd]

    def other(rule, p, q, count, **options):
        return exact_law(rule, p, p if p.tobytes() in odd_rows else q, count, **options)

    monkeypatch.setattr(measuring, "exact_law", other)
    after = plan_trees(dump, budgets=9, beside=(), depth=4, max_branching=3)
    assert after.plans == before.plans and after.acceptance == before.acceptance
    assert after.trees[0]["fit"] == before.trees[0]["fit"]
    assert after.trees[0]["held_out"]["mean"] > before.trees[0]["held_out"]["mean"]


def test_same_starts_for_all_trees(dump):
    report = plan_trees(dump, budgets=4, beside=("d2b2", "d7b1"), max_branching=2)
    assert {tree["same_starts"]["n_starts"] for tree in report.trees} == {4 + 3}
    assert report.trees[1]["held_out"]["n_starts"] == 9 + 8


@pytest.mark.parametrize("settings", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}])
def test_elsewhere_there_is_a_model_but_no_figure_of_the_dump(dump, settings):
    own = plan_trees(dump, budgets=8, beside=(), depth=4, max_branching=3)
    report = plan_trees(dump, budgets=8, beside=(), depth=4, max_branching=3, **settings)
    (tree,) = report.trees
    assert tree["model_eal"] != own.trees[0]["model_eal"]
    assert tree["fit"]["mean"] is tree["held_out"]["mean"] is None
    assert "sampled at" in tree["held_out"]["reason"]
    same = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    assert (
        plan_trees(dump, budgets=8, beside=(), depth=4, max_branching=3, **same).trees[0]
        == own.trees[0]
    )


def test_trees_beside_need_counts_that_were_measured(dump):
    report = plan_trees(dump, budgets=8, beside=("d2b2", "d2b5"), max_branching=3)
    assert report.trees[1]["model_eal"] > 1
    assert report.trees[2]["model_eal"] is None
    assert "5 children" in report.trees[2]["held_out"]["reason"]


def test_rules_that_walk_paths_get_fewer_children(dump):
    report = plan_trees(dump, "resispec", 30, beside="d3b2")
    assert report.about["max_branching"] == 4 and list(report.acceptance) == [1, 2, 3, 4]
    assert any("walks paths" in note for note in report.notes)
    for rule, most in (("specinfer", 32), ("k-seq", 32), ("exact-shaping", 12)):
        assert plan_trees(dump, rule, 30, beside="d3b2").about["max_branching"] == most


def test_a_rule_for_two_siblings_only_gives_binary_trees(dump):
    report = plan_trees(dump, "spechub", 8, beside="d3b2")
    assert set(report.plans[0].growmap.child_counts) == {0, 2}
    assert any("2 siblings only" in note for note in report.notes)


def test_threads_change_nothing(dump):
    one, three = (plan_trees(dump, budgets=20, n_jobs=n, progress=True) for n in (1, 3))
    assert one.to_json() == three.to_json()


def test_the_report(dump, tmp_path):
    (tmp_path / "mine.json").write_text(GrowMap([[1, 2], [3], [], []]).to_json())
    beside = ["d5b3", str(tmp_path / "mine.json"), "d2b40", GrowMap([[]])]
    report = plan_trees(dump, budgets=[4, 20], beside=beside)
    assert report.frame["kind"].tolist() == ["optimised"] * 2 + ["given"] * 4
    assert report.frame["n_nodes"].tolist()[2:] == [121, 4, 41, 1]
    assert np.isnan(report.frame["model_eal"].tolist()[4])
    data = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert data["kind"] == "tree" and data["provenance"]["parameters"]["budgets"] == [4, 20]
    assert GrowMap(data["trees"][1]["children"]) == report.plans[1].growmap
    assert data["acceptance"]["2"] == report.acceptance[2]
    console = Console(width=110, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(report.table())
    text = captured.get()
    for word in ("budget 20", "d5b3", "held-out", "bonus", "d2b40: a node has 40 children"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 110


def run(*arguments):
    app = App(result_action="return_value")
    app.command(name="tree")(tree_command)
    return app(["tree", *map(str, arguments)], exit_on_error=False)


def test_the_command(dump, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "map.json"
    assert run(dump.path, "--budget", "9", "--beside", "d3b2", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "budget 9" in printed and "d3b2" in printed and "same (2)" in printed
    expected = plan_trees(dump, budgets=9, beside="d3b2")
    assert parse_growmap(out) == expected.plans[0].growmap
    several = ["--budget", "4,9", "--depth", "3", "--max-branching", "2", "--no-hold-out", "--json"]
    assert run(dump.path, *several, "--beside", f"d3b2,{out}", "--out", out) == 0
    data = json.loads(capsys.readouterr().out)
    assert [tree["name"] for tree in data["trees"][2:]] == ["d3b2", str(out)]
    assert data["hold_out"] is False and data["trees"][0]["held_out"] is None
    for tree in data["trees"][:2]:
        stored = parse_growmap(out.with_name(f"map-{tree['budget']}.json"))
        assert [list(below) for below in stored.children] == tree["children"]
    assert run(dump.path, "--beside", "", "--budget", "3", "--rule", "k-seq", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["trees"]) == 1


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"budgets": 0}, InputError),
        ({"budgets": ()}, InputError),
        ({"budgets": 2.5}, InputError),
        ({"depth": 0}, InputError),
        ({"depth": 65}, InputError),
        ({"max_branching": 0}, InputError),
        ({"max_branching": 5000}, InputError),
        ({"budgets": 70_000}, InputError),
        ({"beside": "oak"}, InputError),
        ({"rule": "nonesuch"}, RuleError),
        ({"rule": "resispec:fill=nonesuch"}, RuleError),
        ({"rule": "spechub", "max_branching": 1}, RuleError),
        ({"n_jobs": 0}, InputError),
        ({"seed": -1}, InputError),
        ({"max_paths": 0}, InputError),
        ({"method": "guess"}, InputError),
        ({"temperature": "1"}, InputError),
    ],
)
def test_bad_arguments(dump, arguments, error):
    with pytest.raises(error):
        plan_trees(dump, **arguments)


def test_a_missing_dump_and_a_bad_budget():
    with pytest.raises(DumpError):
        plan_trees("no-such-dump")
    with pytest.raises(InputError, match="--budget 'x'"):
        run("no-such-dump", "--budget", "x")


@pytest.mark.parametrize("name", ["block", "traversal"])
def test_rules_over_several_levels_have_no_tree_programme(dump, name):
    with pytest.raises(RuleError):
        plan_trees(dump, name, 8)


@pytest.mark.parametrize(
    "arguments",
    [["--budget", "70000"], ["--depth", "1000"], ["--max-branching", "5000"], ["--out", "."]],
)
def test_arguments_out_of_range_are_refused_before_the_work(dump, arguments, monkeypatch):
    monkeypatch.setattr(measuring, "exact_law", lambda *_, **__: pytest.fail("worked"))
    with pytest.raises(InputError):
        run(dump.path, *arguments)


def test_a_slow_run_says_so(dump, monkeypatch, capsys):
    def plan():
        plan_trees(dump, budgets=8, beside="d3b2", max_branching=2, progress=True)

    plan()  # where kernels are compiled first, that is said too
    capsys.readouterr()
    plan()
    assert "minutes" not in capsys.readouterr().err
    for module in (measuring, planning):
        monkeypatch.setattr(module, "SLOW_SECONDS", 0.0)
    plan()
    said = " ".join(capsys.readouterr().err.split())
    assert "search over 8 nodes takes about" in said
    assert f"{dump.n_positions} positions at" in said and "shortens it" in said
    assert "2 at a time (--jobs)" in said and "a --max-branching below 2" in said
    assert "--budget, --depth or --max-branching" in said
    plan_trees(dump, budgets=8, beside="d3b2", max_branching=2)
    assert capsys.readouterr().err == ""


def test_a_tree_that_stops_short_of_its_budget_says_why(dump, tmp_path):
    logits = np.random.default_rng(4).normal(size=(2, 6, 9)) * 3
    with write_dump(tmp_path / "unlike", [logits[0]], [logits[1]], [[0] * 6]) as unlike:
        report = plan_trees(unlike, "rejection", budgets=(2, 64), beside=(), max_branching=3)
    (stopped,) = [note for note in report.notes if "no further node gains more" in note]
    n_nodes = report.plans[1].growmap.n_nodes
    assert 2 < n_nodes < 64 and f"Budget 64: the tree stops at {n_nodes} nodes" in stopped
    assert "64 levels and 3 children" in stopped
    wider = plan_trees(dump, budgets=8, beside="d4b2", max_branching=3)
    assert not any("no further node" in note for note in wider.notes)


def test_without_trees_beside_the_depth_is_explained(dump):
    def explains(**options):
        report = plan_trees(dump, budgets=8, max_branching=2, **options)
        return any("up to 64 levels. --depth limits" in note for note in report.notes)

    assert explains(beside=())
    assert not explains(beside=(), depth=5) and not explains(beside="d3b2")


def test_a_deep_tree_fits_in_the_table(dump):
    chain = GrowMap([[i + 1] for i in range(1000)] + [[]])
    report = plan_trees(dump, budgets=8, beside=[chain], depth=3, max_branching=2)
    console = Console(width=110, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(report.table())
    assert "..." in captured.get() and len(captured.get().splitlines()) < 25


def test_one_prompt_and_texts_shorter_than_the_trees(tmp_path):
    logits = np.random.default_rng(3).normal(size=(2, 2, 5))
    with write_dump(tmp_path / "one", [logits[0]], [logits[1]], [[1, 2]]) as one:
        report = plan_trees(one, budgets=6, beside="d7b1", max_branching=2)
    assert any("one prompt: nothing is held out" in note for note in report.notes)
    assert report.trees[1]["fit"]["mean"] is None
    assert "6 consecutive positions" in report.trees[1]["fit"]["reason"]
    assert report.trees[1]["model_eal"] > 1
