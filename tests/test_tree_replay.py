"""Replayed trees against brute force over all coins in exact rationals; what is refused; the command."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tree_dump_helpers import (
    INNER,
    PARENTS,
    exact_step,
    random_tree,
    write_manifest,
    write_tree,
    write_trees,
)

import resispec_sim as rs
from resispec_sim.cli import run_command
from resispec_sim.dumps.names import resolve_dump
from resispec_sim.errors import DumpError, ManifestError, RuleError
from resispec_sim.rules import parse_rule
from resispec_sim.rules.base import to_array
from resispec_sim.tree_replay import level_reach, node_reach

SCHEMES = {
    "specinfer": "iid", "rejection": "iid", "nss": "iid",
    "rrs-wor": "without_replacement", "target-only": "topk",
}  # fmt: skip


def coins(rule, p, q, siblings):
    """P(accept sibling i | the earlier ones were rejected), from the papers' formulas."""
    rest, draft, found = list(p), list(q), []
    for i, x in enumerate(siblings):
        ratio = min(Fraction(1), rest[x] / draft[x]) if draft[x] else Fraction(1)
        if rule == "rejection":
            found.append(ratio if i == 0 else Fraction(0))
            continue
        if rule in ("nss", "target-only"):
            # the target's own sample, which is none of the earlier siblings
            found.append(rest[x])
            rest[x] = Fraction(0)
        else:
            found.append(ratio)
            rest = [max(a - b, Fraction(0)) for a, b in zip(rest, draft, strict=True)]
            if rule == "rrs-wor":
                draft[x] = Fraction(0)
                draft = [b / sum(draft) for b in draft] if sum(draft) else draft
        if sum(rest):
            rest = [a / sum(rest) for a in rest]
    return found


def brute_force(rule, tree):
    """Probability of every path: all patterns of heads and tails, each walked down from the root."""
    tokens, targets, drafts = tree
    kids = {node: [kid for kid, parent in enumerate(PARENTS) if parent == node] for node in INNER}
    chance = {}
    for node in INNER:
        siblings = [tokens[kid] for kid in kids[node]]
        chance |= dict(
            zip(kids[node], coins(rule, targets[node], drafts[node], siblings), strict=True)
        )
    paths = {}
    for heads in itertools.product((True, False), repeat=len(chance)):
        thrown = dict(zip(chance, heads, strict=True))
        weight = Fraction(1)
        for kid, head in thrown.items():
            weight *= chance[kid] if head else 1 - chance[kid]
        path, node = [], 0
        while hit := [kid for kid in kids.get(node, []) if thrown[kid]]:
            node = hit[0]
            path.append(node)
        paths[tuple(path)] = paths.get(tuple(path), Fraction(0)) + weight
    assert sum(paths.values()) == 1
    return paths


@pytest.mark.parametrize("rule", SCHEMES)
def test_reach_is_that_of_brute_force(rule):
    rng = np.random.default_rng(1)
    for _ in range(40):
        tree = random_tree(rng, SCHEMES[rule])
        paths = brute_force(rule, tree)
        step = exact_step(*tree)
        reach = node_reach(step, parse_rule(rule), to_array)
        for node in range(len(PARENTS)):
            stops = reach[node] - sum(reach[kid] for kid in step.children[node])
            path = () if node == 0 else (node,) if PARENTS[node] == 0 else (PARENTS[node], node)
            assert stops == pytest.approx(float(paths.get(path, 0)), abs=1e-14)
        levels = level_reach(step, reach)
        expected = [sum(w for path, w in paths.items() if len(path) >= d) for d in (1, 2)]
        assert levels == pytest.approx([float(value) for value in expected], abs=1e-14)


@pytest.mark.parametrize("rule", SCHEMES)
def test_figures_of_a_dump_are_those_of_brute_force(tmp_path, rule):
    trees = write_trees(tmp_path / "trees", rule, SCHEMES[rule])
    found = rs.replay_trees(tmp_path / "trees").summary
    whole = [key for key in trees if key[1] < 3]
    means, variances, levels = [], [], []
    for key in whole:
        paths = brute_force(rule, trees[key])
        mean = sum(w * len(path) for path, w in paths.items())
        means.append(float(mean))
        variances.append(float(sum(w * (len(path) - mean) ** 2 for path, w in paths.items())))
        levels.append(
            [float(sum(w for path, w in paths.items() if len(path) >= d)) for d in (1, 2)]
        )
    (figures,) = found["rules"]
    assert figures["rule"] == rule
    assert figures["tokens_per_step"] == pytest.approx(1 + np.mean(means), abs=1e-6)
    assert figures["by_depth"] == pytest.approx(np.mean(levels, axis=0), abs=1e-6)
    assert found["agreement"]["stderr"] == pytest.approx(
        np.sqrt(sum(variances)) / len(whole), abs=1e-6
    )
    steps = [step for step in rs.TreeDump(tmp_path / "trees") if not step.cut]
    recorded = [len(step.emitted) for step in steps]
    assert found["recorded"]["tokens_per_step"] == pytest.approx(np.mean(recorded))
    assert found["recorded"]["by_depth"] == pytest.approx(
        [np.mean([n > d for n in recorded]) for d in (1, 2)]
    )
    assert found["agreement"]["difference"] == pytest.approx(
        np.mean(recorded) - 1 - np.mean(means), abs=1e-6
    )
    assert (found["n_steps"], found["n_cut"], found["n_texts"]) == (9, 3, 3)


def throw(rng, paths):
    every = sorted(paths)
    return every[rng.choice(len(every), p=[float(paths[path]) for path in every])]


def test_a_decoder_whose_coins_are_wrong_is_noticed(tmp_path, monkeypatch):
    """Right coins stay within 1.96 standard errors 95 times of 100; coins of another rule do not."""
    monkeypatch.setattr("os.fsync", lambda _handle: None)  # hundreds of files
    rng = np.random.default_rng(5)
    off, biased = [], []
    for run in range(8):
        for coin, seen in (("specinfer", off), ("rejection", biased)):
            folder = tmp_path / f"{coin}-{run}"
            write_manifest(folder)
            for step in range(40):
                tree = random_tree(rng, "iid")
                write_tree(folder, 0, step, tree, throw(rng, brute_force(coin, tree)))
            found = rs.replay_trees(folder).summary["agreement"]
            assert found["agrees"] == (abs(found["difference"]) <= 1.96 * found["stderr"])
            seen.append(found["difference"] / found["stderr"])
    # a right one: the sum of 8 squares passes 26.1 one time in 1000
    assert np.square(off).sum() < 26.1
    assert max(biased) < 0 and np.mean(biased) < -3


def test_rules_for_other_siblings_are_refused(tmp_path):
    write_trees(tmp_path / "iid")
    write_trees(tmp_path / "wor", "rrs-wor", "without_replacement")
    with pytest.raises(
        RuleError, match="drawn without_replacement; the recorded ones are iid, as .*k-seq"
    ):
        rs.replay_trees(tmp_path / "iid", "specinfer,rrs-wor")
    with pytest.raises(
        RuleError, match="drawn topk; .* without_replacement, as rrs-wor, resispec-wor"
    ):
        rs.replay_trees(tmp_path / "wor", "resispec-eagle:reading=one-hot")
    with pytest.raises(RuleError, match="verifies a chain"):
        rs.replay_trees(tmp_path / "iid", "block")
    found = rs.replay_trees(
        tmp_path / "iid", "resispec[water,minimal],resispec:fill=index,budget=clipped"
    )
    assert [figures["rule"] for figures in found.summary["rules"]] == [
        "specinfer", "resispec[water,minimal]", "resispec[index,clipped]",
    ]  # fmt: skip
    every = rs.replay_trees(tmp_path / "wor", "all").summary["rules"]
    assert {parse_rule(figures["rule"]).siblings for figures in every} == {"without_replacement"}
    assert [
        figures["rule"] for figures in rs.replay_trees(tmp_path / "wor", "exact").summary["rules"]
    ] == ["rrs-wor"]


def test_the_command_prints_and_writes_the_same_figures(tmp_path, capsys):
    write_trees(tmp_path / "trees")
    out = tmp_path / "new" / "results"
    folder = str(tmp_path / "trees")
    assert (
        run_command(["replay-trees", folder, "--rules", "exact", "--json", "--out", str(out)]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    summary = json.loads((out / "summary.json").read_text())
    provenance = json.loads((out / "provenance.json").read_text())
    assert summary | {"provenance": provenance} == shown
    assert len((out / "steps.csv").read_text().splitlines()) == 1 + 9
    assert run_command(["replay-trees", folder]) == 0
    printed = capsys.readouterr().out
    assert "9 steps of 3 texts, tree d3b2, siblings iid; 3 more were cut short" in printed
    assert f"{summary['recorded']['tokens_per_step']:.3f}" in printed
    assert "recorded - all coins, specinfer" in printed and "agree" in printed


def ended(path, tokens, end):
    """The path and the number of tokens that a step emits if a token ends the text."""
    at = next((i for i, node in enumerate(path) if tokens[node] == end), None)
    return (path, len(path) + 1) if at is None else (path[: at + 1], at + 1)


@pytest.mark.parametrize("rule", SCHEMES)
def test_a_token_that_ends_the_text_ends_the_step(rule):
    rng = np.random.default_rng(3)
    n_ended = 0
    for _ in range(40):
        tree = random_tree(rng, SCHEMES[rule])
        end = int(rng.integers(4))
        lengths = {}
        for path, weight in brute_force(rule, tree).items():
            _, n = ended(path, tree[0], end)
            lengths[n] = lengths.get(n, 0) + weight
        plain = exact_step(*tree)
        found = [
            level_reach(step, node_reach(step, parse_rule(rule), to_array))
            for step in (plain, replace(plain, end_tokens=frozenset([end])))
        ]
        expected = [float(sum(w for n, w in lengths.items() if n > d)) for d in (1, 2)]
        assert found[1] == pytest.approx(expected, abs=1e-14)
        n_ended += found[1].sum() < found[0].sum() - 1e-9
    assert n_ended > 10


def test_texts_that_end_agree_with_their_expectation(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _handle: None)  # hundreds of files
    rng = np.random.default_rng(6)
    write_manifest(tmp_path)
    end, n_ended = 2, 0
    for step in range(400):
        tree = random_tree(rng, "iid")
        path, n = ended(throw(rng, brute_force("specinfer", tree)), tree[0], end)
        emitted = [*(tree[0][node] for node in path), 0][:n]
        n_ended += n == len(path)
        arrays = {"emitted": np.array(emitted), "end_tokens": np.array([end])}
        write_tree(tmp_path, 0, step, tree, path, **arrays)
    assert n_ended > 50
    agreement = rs.replay_trees(tmp_path).summary["agreement"]
    # both tails of a test that must not fail are one in ten thousand
    assert abs(agreement["difference"]) < 3.9 * agreement["stderr"]


def test_the_manifest_may_name_its_rule_in_short(tmp_path):
    write_trees(tmp_path, "resispec")
    whole = rs.replay_trees(tmp_path).summary
    assert whole["recorded"]["rule"] == whole["agreement"]["rule"] == whole["rules"][0]["rule"]


def test_one_text_has_no_interval_and_cut_steps_are_no_figures(tmp_path, capsys):
    write_trees(tmp_path / "one", n_texts=1)
    assert run_command(["replay-trees", str(tmp_path / "one"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["recorded"]["low"] is None and found["agreement"]["stderr"] > 0
    assert run_command(["replay-trees", str(tmp_path / "one")]) == 0
    assert "n/a: one text" in capsys.readouterr().out
    write_trees(tmp_path / "cut", n_steps=1)
    with pytest.raises(DumpError, match="no step with its whole tree"):
        rs.replay_trees(tmp_path / "cut")


def test_a_dump_of_the_other_kind_names_its_command(capsys):
    for command, name, other in (
        ("replay", "tiny-trees-t1.0", "resispec replay-trees tiny-trees-t1.0"),
        ("bounds", "tiny-trees-t1.0", "resispec replay-trees tiny-trees-t1.0"),
        ("replay-trees", "tiny-t1.0", "resispec replay tiny-t1.0"),
    ):
        assert run_command([command, name]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.rstrip().endswith(other)
    for command, there, elsewhere in (
        ("replay", "tiny-t1.0", "tiny-trees-t1.0"),
        ("replay-trees", "tiny-trees-t1.0", "tiny-t1.0"),
    ):
        assert run_command([command, "no-such"]) == 2
        err = capsys.readouterr().err
        assert f"{there}" in err and elsewhere not in err
    assert run_command(["inspect", "no-such"]) == 2
    err = capsys.readouterr().err
    assert "tiny-t1.0" in err and "tiny-trees-t1.0" in err
    with pytest.raises(ManifestError, match="replay-trees"):
        rs.open_dump(resolve_dump("tiny-trees-t1.0", "trees"))


def test_inspect_shows_trees_and_checks_every_step(tmp_path, capsys):
    folder = tmp_path / "trees"
    write_trees(folder)
    assert run_command(["inspect", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "12 of 3 texts; 3 of them cut short" in printed and "specinfer, siblings iid" in printed
    assert run_command(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_bytes"] == sum(f.stat().st_size for f in folder.glob("text*"))
    assert [text["n_prompt"] for text in found["texts"]] == [3, 3, 3]
    assert found["manifest"]["tree"] == "d3b2"
    file = folder / "text-00002-step-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert run_command(["inspect", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and file.name in err and "checksum" in err
