"""Comparisons: differences against plain averages, pairing, widened intervals, words."""

import json

import numpy as np
import pytest

from resispec_sim import exact_law, write_dump
from resispec_sim.cli import run_command
from resispec_sim.compare import compare, difference
from resispec_sim.errors import DumpError, InputError, RuleError

V, N_PROMPTS, LENGTH = 9, 4, 5
QUICK = {"siblings": 2, "tree": "d3b2", "n_jobs": 1}


def record(folder, seed=3, noise=1.0, n_prompts=N_PROMPTS, **options):
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(n_prompts, LENGTH, V)) * 2
    draft = target + noise * rng.normal(size=target.shape)
    probs = np.exp(target) / np.exp(target).sum(axis=-1, keepdims=True)
    tokens = [[int(rng.choice(V, p=row)) for row in rows] for rows in probs]
    return write_dump(folder, list(target), list(draft), tokens, dtype="float32", **options)


PROMPTS = [f"prompt {i}" for i in range(N_PROMPTS)]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    with (
        record(folder / "one", prompts=PROMPTS) as one,
        record(folder / "two", seed=4, noise=2.0, prompts=PROMPTS) as two,
    ):
        yield one, two


def accepted(dump, rule, n_siblings=2):
    return np.array(
        [exact_law(rule, *dump.probs(i), n_siblings).accepted for i in range(dump.n_positions)]
    )


def test_two_rules_on_one_dump(dumps):
    found = compare(dumps[0], rules="exact-shaping,specinfer", **QUICK)
    a, b = accepted(dumps[0], "exact-shaping"), accepted(dumps[0], "specinfer")
    for name, by_position in (
        ("acceptance", (a - b).sum(axis=1)),
        ("accepted_1", (a - b)[:, 0]),
        ("accepted_2", (a - b)[:, 1]),
    ):
        value = found.figures[name]
        assert value["difference"] == pytest.approx(by_position.mean(), abs=1e-12)
        assert value["low"] <= value["difference"] <= value["high"]
        # over prompts of equal length, the means per prompt span every resample
        per_prompt = by_position.reshape(N_PROMPTS, LENGTH).mean(axis=1)
        assert per_prompt.min() - 1e-12 <= value["low"] <= value["high"] <= per_prompt.max() + 1e-12
    assert found.paired and found.figures["eal"]["difference"] is not None
    assert abs(found.figures["tv"]["difference"]) < 1e-12


def test_the_order_sets_the_sign_only(dumps):
    one = compare(dumps[0], rules="resispec,specinfer", **QUICK)
    two = compare(dumps[0], rules="specinfer,resispec", **QUICK)
    for name, value in one.figures.items():
        other = two.figures[name]
        assert value["difference"] == pytest.approx(-other["difference"])
        assert (value["low"], value["high"]) == pytest.approx((-other["high"], -other["low"]))
    assert " more than specinfer per position" in one.words
    assert " less than resispec[capacity,minimal] per position" in two.words


def test_a_rule_against_its_equal_is_not_told_apart(dumps):
    """With one sibling both are rejection sampling."""
    found = compare(dumps[0], rules="rejection,specinfer", siblings=1, tree="d2b1", n_jobs=1)
    assert "cannot be told apart" in found.words
    assert abs(found.figures["eal"]["high"]) < 1e-12


def test_two_dumps_are_paired_by_their_prompts(dumps):
    found = compare(*dumps, rules="specinfer", **QUICK)
    assert found.paired and "prompts agree" in found.pairing
    a, b = (accepted(dump, "specinfer").sum(axis=1).mean() for dump in dumps)
    assert found.figures["acceptance"]["difference"] == pytest.approx(a - b, abs=1e-12)
    assert found.names == ("one", "two")
    itself = compare(dumps[0], dumps[0], rules="specinfer", **QUICK)
    assert itself.figures["acceptance"]["low"] == itself.figures["acceptance"]["high"] == 0
    assert itself.names == ("one (A)", "one (B)")


@pytest.mark.parametrize(
    "options, paired, words",
    [
        ({"prompts": PROMPTS[::-1]}, False, "prompts differ"),
        ({"n_prompts": 3, "prompts": PROMPTS[:3]}, False, "numbers of prompts"),
        ({}, False, "prompts differ"),
    ],
)
def test_other_prompts_are_not_paired(dumps, tmp_path, options, paired, words):
    with record(tmp_path / "other", **options) as other:
        found = compare(dumps[0], other, rules="specinfer", **QUICK)
    assert found.paired is paired and words in found.pairing
    assert found.figures["acceptance"]["low"] < found.figures["acceptance"]["high"]


def test_without_prompts_the_token_ids_decide(tmp_path):
    with (
        record(tmp_path / "a") as one,
        record(tmp_path / "b") as same,
        record(tmp_path / "c", seed=8) as other,
    ):
        assert compare(one, same, rules="specinfer", **QUICK).paired
        found = compare(one, other, rules="specinfer", **QUICK)
    assert not found.paired and "token ids differ" in found.pairing


def test_pairing_narrows_the_interval():
    rng = np.random.default_rng(0)
    level = rng.normal(size=30)
    a = np.stack((level + 0.1, np.ones(30)), axis=1)
    b = np.stack((level + 0.01 * rng.normal(size=30), np.ones(30)), axis=1)
    paired, unpaired = (difference(a, b, paired=flag) for flag in (True, False))
    assert paired["low"] > 0 > unpaired["low"]
    assert paired["difference"] == unpaired["difference"]


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_cover_the_difference(paired):
    """At most 17 misses in 100: a 95 % percentile interval of 30 prompts misses about 7 of 100, so
    a sound one fails here with probability below 1e-3."""
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(100):
        level = rng.normal(size=30)
        other = level if paired else rng.normal(size=30)
        a = np.stack((level + 0.3 + 0.2 * rng.normal(size=30), np.ones(30)), axis=1)
        b = np.stack((other + 0.2 * rng.normal(size=30), np.ones(30)), axis=1)
        found = difference(a, b, paired=paired)
        misses += not found["low"] <= 0.3 <= found["high"]
    assert 0 < misses <= 17


def test_bounds_and_standard_errors_widen_the_interval(dumps):
    options = {**QUICK, "siblings": 3, "rules": "resispec,specinfer"}
    exact = compare(dumps[0], **options).figures["acceptance"]
    sampled = compare(dumps[0], method="sampled", max_paths=100, **options).figures["acceptance"]
    assert sampled["high"] - sampled["low"] > exact["high"] - exact["low"]
    assert sampled["low"] <= exact["difference"] <= sampled["high"]


def test_the_interval_grows_by_the_bounds_of_both_sides(dumps):
    exact, bounded = (compare(dumps[0], rules="k-seq,specinfer", **QUICK) for _ in range(2))
    for frame, below, above in zip(bounded.frames, (0.01, 0.02), (0.04, 0.08), strict=True):
        frame["method"] = "certified"
        frame["acceptance_low"] -= below
        frame["acceptance_high"] += above
    old, new = exact.figures["acceptance"], bounded.figures["acceptance"]
    assert new["low"] == pytest.approx(old["low"] - 0.01 - 0.08)
    assert new["high"] == pytest.approx(old["high"] + 0.04 + 0.02)


def test_one_prompt_has_no_interval(dumps):
    found = compare(dumps[0], rules="resispec,specinfer", positions="0:5", **QUICK)
    assert found.figures["acceptance"]["low"] is None and "one prompt" in found.words
    assert json.loads(found.to_json())["figures"]["acceptance"]["low"] is None


def test_an_infinite_kl_is_left_out(tmp_path):
    rows = [[0.0, 0.0, -np.inf], [0.0, 1.0, 0.0]]
    with write_dump(
        tmp_path / "d", [rows] * 2, [rows[::-1]] * 2, [[0, 1]] * 2, dtype="float32"
    ) as dump:
        found = compare(dump, rules="resispec,specinfer", siblings=1, tree="d2b1")
        found.frames[0].loc[:, "kl"] = np.inf
    assert found.figures["kl"]["reason"] == "infinite at some position"
    assert found.figures["tv"]["difference"] is not None


def test_other_temperatures_and_counts_have_no_eal(dumps):
    found = compare(dumps[0], rules="specinfer,nss", temperatures=0.5, **QUICK)
    assert "T = 1" in found.figures["eal"]["reason"]
    found = compare(dumps[0], rules="specinfer,spechub", siblings=2, tree="d3b3", n_jobs=1)
    assert found.figures["eal"]["reason"] == "not defined for 3 siblings"


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"rules": "specinfer"}, InputError),
        ({"rules": "specinfer,specinfer"}, InputError),
        ({"rules": "specinfer,nss,k-seq"}, InputError),
        ({"rules": "specinfer,block"}, RuleError),
        ({"siblings": (2, 3)}, InputError),
        ({"rules": "specinfer,spechub", "siblings": 3}, RuleError),
        ({"temperatures": (0.5, 1.0)}, InputError),
        ({"other": "no-such-dump", "rules": "specinfer"}, DumpError),
        ({"other": "no-such-dump", "rules": "specinfer,nss"}, InputError),
    ],
)
def test_bad_arguments(dumps, arguments, error):
    with pytest.raises(error):
        compare(dumps[0], **arguments)


@pytest.mark.parametrize("name", ["growmap.json", "maps/sequoia.pt"])
def test_a_grow_map_is_refused_with_the_command_that_takes_it(dumps, name):
    with pytest.raises(InputError, match=rf"complete tree such as d5b3.*--beside {name}"):
        compare(dumps[0], tree=name)


def test_the_command(dumps, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    path = str(dumps[0].path)
    arguments = ["compare", path, "--rules", "resispec,specinfer", "--siblings", "2"]
    assert run_command([*arguments, "--tree", "d3b2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("resispec[capacity,minimal] accepts 0.")
    for text in ("total acceptance", "sibling 2: accepted", "EAL", "same positions", "KL"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110
    assert run_command([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "comparison" and found["figures"]["acceptance"]["difference"] > 0
    assert run_command(["compare", path, str(dumps[1].path), "--rules", "specinfer"]) == 0
    assert "paired by prompt" in capsys.readouterr().out
