"""Replaying small dumps: pooled figures against hand computation, verdicts, ranges, interruption."""

import json
import threading

import numpy as np
import pandas as pd
import pytest

import resispec_sim.measure as measuring
from resispec_sim import exact_law, optimal_acceptance, replay, write_dump
from resispec_sim.errors import DeviceError, DumpError, InputError, RuleError
from resispec_sim.pooling import EalContext, pool
from resispec_sim.replay import split_rules
from resispec_sim.trees import bootstrap_ratio, parse_tree, path_eal
from tests.replay_helpers import LENGTH, N_PROMPTS, SHAPED, group_of, printed, small_dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    with small_dump(tmp_path_factory) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(dump):
    return replay(dump, siblings=(2, 3), tree="d3b2")


@pytest.mark.parametrize("rule", ["specinfer", SHAPED])
@pytest.mark.parametrize("siblings", [2, 3])
def test_pooled_figures_are_those_of_the_laws(dump, report, rule, siblings):
    laws = [exact_law(rule, *dump.probs(i), siblings) for i in range(dump.n_positions)]
    figures = group_of(report, siblings, rule)
    mass = np.mean([law.accepted for law in laws], axis=0)
    assert [f["mean"] for f in figures["accepted"]] == pytest.approx(mass)
    conditional = [mass[i] / (1 - mass[:i].sum()) for i in range(siblings)]
    assert [f["mean"] for f in figures["conditional_acceptance"]] == pytest.approx(conditional)
    assert figures["acceptance"]["mean"] == pytest.approx(mass.sum())
    best = np.array([optimal_acceptance(*dump.probs(i), siblings) for i in range(dump.n_positions)])
    assert figures["optimum"] == pytest.approx(best.mean())
    above = np.array([law.accepted.sum() for law in laws]) > best + 1e-12
    assert figures["share_above_optimum"]["mean"] == above.mean()
    assert figures["kl"]["mean"] == pytest.approx(np.mean([law.kl for law in laws]), abs=1e-13)
    assert figures["kl"]["max"] == pytest.approx(max(law.kl for law in laws), abs=1e-13)
    assert figures["tv"]["max"] == pytest.approx(max(law.tv for law in laws), abs=1e-13)
    assert figures["tv_lower_bound"]["max"] <= figures["tv"]["max"] + 1e-12
    assert abs(figures["appendix_b_kl"]["max"]) < 1e-8
    assert abs(figures["appendix_b_kl_random"]["max"]) < 1e-12
    assert figures["methods"]["exact"]["positions"] == dump.n_positions


@pytest.mark.parametrize("rule", ["specinfer", SHAPED])
def test_eal_comes_from_the_recorded_tokens(dump, report, rule):
    sums = []
    for prompt in range(N_PROMPTS):
        w, alpha = [], []
        for i in range(prompt * LENGTH, (prompt + 1) * LENGTH):
            p, q = dump.probs(i)
            law = exact_law(rule, p, q, 2, by_token=True)
            token = dump.read(i).token_id
            w.append(law.accepted_by_token[:, token].sum() / p[token])
            alpha.append(law.accepted.sum())
        sums.append(path_eal(w, alpha, 2).sum())
    expected = bootstrap_ratio(sums, [LENGTH - 1] * N_PROMPTS)
    for siblings in (2, 3):
        eal = group_of(report, siblings, rule)["eal"]
        assert (eal["mean"], eal["low"], eal["high"]) == pytest.approx(expected)
        assert eal["n_starts"] == N_PROMPTS * (LENGTH - 1)


def test_eal_with_a_branching_outside_the_siblings(dump, report):
    other = replay(dump, siblings=1, tree="d3b2")
    assert group_of(other, 1, SHAPED)["eal"] == group_of(report, 2, SHAPED)["eal"]
    assert len(other.frame) == 2 * dump.n_positions


def test_tokens_per_step_are_for_exact_rules_only(report):
    assert group_of(report, 3, "specinfer")["tokens_per_step"]["mean"] > 1
    inexact = group_of(report, 3, SHAPED)["tokens_per_step"]
    assert inexact["mean"] is None and "not exact" in inexact["reason"]


def test_verdicts(report):
    assert group_of(report, 3, "specinfer")["verdict"] == "exact"
    figures = group_of(report, 3, SHAPED)
    assert figures["verdict"] == "biased"
    rows = report.frame[(report.frame["rule"] == SHAPED) & (report.frame["siblings"] == 3)]
    strongest = rows.loc[rows["tv"].idxmax()]
    assert figures["witness"]["position"] == strongest["position"]
    assert figures["witness"]["excess_mass"] == strongest["excess_mass"] > 0


def test_intervals_are_pooled_and_printed_as_ranges(dump):
    report = replay(dump, SHAPED, siblings=3, method="sampled", max_paths=500, positions="0:7")
    figures = group_of(report, 3, SHAPED)
    third = figures["accepted"][2]
    assert third["low"] < third["mean"] < third["high"]
    assert list(figures["methods"]) == ["sampled"]
    assert " +-0." in printed(report) and "1.96 standard errors" in printed(report)
    assert third["sampled"] and figures["acceptance"]["sampled"]
    assert figures["eal"]["n_not_exact"] == 7


def test_other_temperatures_have_no_eal(dump):
    report = replay(dump, temperatures=(0.6, 1.0), positions="0:7")
    for rule in ("specinfer", SHAPED):
        assert group_of(report, 3, rule, 0.6)["eal"]["mean"] is None
        assert "T = 1" in group_of(report, 3, rule, 0.6)["eal"]["reason"]
        assert group_of(report, 3, rule, 1.0)["eal"]["mean"] > 1
    assert "n/a: text sampled at T = 1" in printed(report)
    cut = replay(dump, top_k=3, positions="0:7")
    assert "top-k" in group_of(cut, 3, "specinfer")["eal"]["reason"]
    # settings that change nothing are the dump's own
    same = replay(dump, top_k=0, top_p=1.0, positions="0:7")
    assert group_of(same, 3, "specinfer")["eal"]["mean"] > 1


def test_a_tree_deeper_than_the_text(dump):
    reason = group_of(replay(dump, tree="d9b2", positions=(0, 7)), 3, "specinfer")["eal"]["reason"]
    assert "8 consecutive positions" in reason


def test_the_frame_does_not_depend_on_threads(dump):
    one, three = (replay(dump, siblings=(2, 3), n_jobs=n, progress=True) for n in (1, 3))
    pd.testing.assert_frame_equal(one.frame, three.frame)
    assert one.to_json() == three.to_json()


def test_a_dump_by_path_and_a_range_of_positions(dump):
    report = replay(dump.path, "specinfer", positions="5:9")
    assert report.frame["position"].tolist() == [5, 6, 7, 8]
    assert report.frame["prompt"].tolist() == [0, 0, 1, 1]
    assert report.frame["offset"].tolist() == [5, 6, 0, 1]
    assert replay(dump, "specinfer", positions=slice(19, None)).frame["position"].tolist() == [
        19,
        20,
    ]


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"positions": "9:9"}, InputError),
        ({"positions": "99:"}, InputError),
        ({"positions": "nine"}, InputError),
        ({"siblings": 0}, InputError),
        ({"siblings": ()}, InputError),
        ({"rules": "nonesuch"}, RuleError),
        ({"rules": ()}, InputError),
        ({"tree": "oak"}, InputError),
        ({"temperatures": -1.0}, InputError),
        ({"max_paths": 0}, InputError),
        ({"n_jobs": 0}, InputError),
        ({"method": "guess"}, InputError),
        ({"seed": -1}, InputError),
        ({"seed": 1.5}, InputError),
        ({"siblings": 2.5}, InputError),
        ({"siblings": [True]}, InputError),
        ({"siblings": "2"}, InputError),
        ({"temperatures": "1"}, InputError),
        ({"positions": 3}, InputError),
        ({"positions": (0.0, 3)}, InputError),
        ({"positions": slice(0, 6, 2)}, InputError),
        ({"positions": slice(0, 6, 0)}, InputError),
        ({"tree": None}, InputError),
        ({"tree": "d9999b9999"}, InputError),
        ({"rules": 3}, InputError),
        ({"max_paths": 1e6}, InputError),
        ({"n_jobs": 1.5}, InputError),
    ],
)
def test_bad_arguments(dump, arguments, error):
    with pytest.raises(error):
        replay(dump, **arguments)


def test_numpy_numbers_are_taken(dump):
    arguments = {"rules": "specinfer", "positions": (np.int64(0), np.int64(3))}
    numpy = replay(
        dump, siblings=np.int64(2), temperatures=np.float32(1), seed=np.int64(0), **arguments
    )
    plain = replay(dump, siblings=2, temperatures=1, **arguments)
    assert numpy.to_json() == plain.to_json()


def test_a_missing_dump():
    with pytest.raises(DumpError):
        replay("no-such-dump")


def test_split_rules():
    assert split_rules("specinfer, resispec:fill=water,budget=clipped,resispec[index,minimal]") == [
        "specinfer",
        "resispec:fill=water,budget=clipped",
        "resispec[index,minimal]",
    ]


def test_a_gap_in_a_prompt_ends_a_segment():
    """Windows must not reach over positions that an interrupted run did not compute."""
    rows = pd.DataFrame(
        {"prompt": 0, "offset": [0, 1, 3, 4, 5], "position": [0, 1, 3, 4, 5], "temperature": 1.0}
    )
    rows = rows.assign(siblings=1, rule="r", scheme="iid", optimum=1.0, method="exact", notes="")
    rows = rows.assign(tree_w=[1.0, 1.0, 1.0, np.nan, 1.0], tree_alpha=1.0, tree_method="exact")
    rows = rows.assign(n_paths=1, excess_token=0, excess_mass=0.0, tv_lower_bound=0.0)
    rows = rows.assign(appendix_b_kl=0.0, appendix_b_kl_random=0.0)
    for name in ("accepted_1", "acceptance", "kl", "tv"):
        rows = rows.assign(**{name: 0.0, f"{name}_low": 0.0, f"{name}_high": 0.0})
    (group,) = pool(rows, EalContext(parse_tree("d3b1"), {"r": True}, {}))
    assert group["rules"][0]["eal"]["n_starts"] == 1
    assert group["rules"][0]["eal"]["n_without_w"] == 1


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_interruption_keeps_what_was_computed(dump, monkeypatch, tmp_path, n_jobs):
    calls, lock, laws = [], threading.Lock(), measuring._laws

    def interrupted(*args, **kwargs):
        with lock:
            calls.append(args)
            if len(calls) >= 9:
                raise KeyboardInterrupt
        return laws(*args, **kwargs)

    monkeypatch.setattr(measuring, "_laws", interrupted)
    report = replay(dump, "specinfer", n_jobs=n_jobs)
    assert report.partial
    assert 1 <= len(report.frame) <= 8
    assert "PARTIAL: interrupted after" in printed(report)
    report.save(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["partial"] is True


def test_an_interruption_with_nothing_computed(dump, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "_laws", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replay(dump, "specinfer", n_jobs=1)


def test_saved_files(report, tmp_path):
    report.save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "positions.csv",
        "provenance.json",
        "summary.json",
    ]
    frame = pd.read_csv(tmp_path / "out" / "positions.csv")
    assert len(frame) == len(report.frame) == 2 * 2 * N_PROMPTS * LENGTH
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["parameters"]["seed"] == 0


def test_json_has_no_figures_that_json_lacks(tmp_path):
    """Mass where the target has none: an infinite KL must stay readable by any JSON parser."""
    rows = [[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]]
    with write_dump(tmp_path / "d", [rows], [rows[::-1]], [[0, 1]], dtype="float32") as dump:
        report = replay(dump, tree="d2b1")
    report.frame.loc[:, "kl"] = np.inf
    report.summary["groups"][0]["rules"][0]["optimum"] = float("nan")

    def refuse(name):
        raise AssertionError(name)

    read = json.loads(report.to_json(), parse_constant=refuse)
    first = read["groups"][0]["rules"][0]
    assert first["kl"]["mean"] == "Infinity" and first["optimum"] is None


def test_the_table_fits_its_width(report):
    for width in (100, 120):
        text = printed(report, width)
        assert max(map(len, text.splitlines())) <= width
        assert SHAPED in text and "random proxies" in text and "…" not in text


def test_a_gpu_is_asked_for_before_the_work(monkeypatch):
    """Without one the error says so before a position is read; another device is refused by name."""
    with pytest.raises(InputError, match="device is 'tpu'"):
        replay("smollm2-t1.0", positions="0:1", device="tpu")

    def missing():
        raise DeviceError("no GPU")

    monkeypatch.setattr("resispec_sim.engine.gpu.devices.require_gpu", missing)
    with pytest.raises(DeviceError, match="no GPU"):
        replay("no-such-dump", positions="0:1", device="cuda")
