"""The decoding benchmark on made-up systems: order, seeds, logs, resuming, figures, processes."""

import csv
import json
import os
from pathlib import Path

import bench_fakes
import msgspec
import numpy as np
import pytest
from bench_fakes import SECONDS, fake_config, journal, open_fake

from resispec_sim.errors import InputError, ModelError, RunError, WorkerError
from resispec_sim.phases import read_phases
from resispec_sim.run_config import Method
from resispec_sim.runtime.bench_decode import bench_decode
from resispec_sim.runtime.bench_figures import ratio_of_ratios
from resispec_sim.runtime.bench_log import RunLog


def run(folder: Path, **changes):
    options = {key: changes.pop(key) for key in ("in_process", "say") if key in changes}
    options = {"in_process": True, **options}
    return bench_decode(
        fake_config(folder, **changes), folder / "out", open_system=open_fake, **options
    )


def log_of(folder: Path, method: str, kind: str = "jsonl") -> RunLog:
    return RunLog(folder / "out" / "raw" / "mine" / f"{method}.{kind}")


@pytest.fixture
def done(tmp_path: Path):
    return run(tmp_path)


def test_methods_meet_the_same_prompts_and_seeds_and_alternate(tmp_path: Path, done) -> None:
    calls = journal(tmp_path)
    warmup, measured, profiled = calls[:4], calls[4:14], calls[14:]
    assert [call["index"] for call in warmup] == [-1] * 4
    assert {call["text"] for call in warmup} == {"prompt 0", "prompt 1"}
    assert [call["index"] for call in measured] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [call["index"] for call in profiled] == [0, 0, 1, 1, 2, 2]
    for call in measured + profiled:
        assert call["seed"] == 100 + call["index"]
        assert call["text"] == f"prompt {2 + call['index']}"
    # Each of the two is first as often as the other, up to one.
    assert [call["method"] for call in measured[:4]] == [
        *("SpecInfer", "ResiSpec"),
        *("ResiSpec", "SpecInfer"),
    ]
    assert not any(call["profile"] for call in warmup + measured)
    assert all(call["profile"] for call in profiled)
    assert done.provenance["parameters"]["config"]["seed"] == 100


def test_sequential_order_finishes_one_method_first(tmp_path: Path) -> None:
    run(tmp_path, order="sequential")
    methods = [call["method"] for call in journal(tmp_path)]
    assert methods == ["SpecInfer"] * 10 + ["ResiSpec"] * 10


def test_figures_follow_from_the_raw_log(tmp_path: Path, done) -> None:
    for row, method in zip(done.systems, ("specinfer", "resispec"), strict=True):
        raw = (tmp_path / f"out/raw/mine/{method}.jsonl").read_text().splitlines()
        lines = [json.loads(line) for line in raw]
        steps = [line for line in lines if line["kind"] == "step"]
        prompts = [line for line in lines if line["kind"] == "prompt"]
        whole = [step["n_tokens"] for step in steps if not step["cut"]]
        assert len(whole) < len(steps)
        assert row["accepted_length"] == pytest.approx(np.mean(whole))
        seconds = sum(prompt["seconds"] for prompt in prompts)
        n_tokens = sum(len(prompt["token_ids"]) for prompt in prompts)
        assert row["tokens_per_second"] == pytest.approx(n_tokens / seconds)
        assert row["accepted_length_low"] <= row["accepted_length"] <= row["accepted_length_high"]
    one, two = done.systems
    assert one["baseline"] is None
    assert two["speedup"] == pytest.approx(two["tokens_per_second"] / one["tokens_per_second"])
    assert two["accepted_gain"] == pytest.approx(two["accepted_length"] / one["accepted_length"])
    assert (one["exact"], two["exact"]) == (True, False)


def test_phases_come_from_the_profiled_runs_only(tmp_path: Path, done) -> None:
    assert all(
        not step.phases for r in log_of(tmp_path, "resispec").records.values() for step in r.steps
    )
    measured = read_phases(tmp_path / "out" / "phases.csv")
    assert [step.rule for step in measured] == ["specinfer", "resispec[capacity,minimal]"]
    for step, rule in zip(measured, ("specinfer", "resispec"), strict=True):
        assert step.step_seconds == pytest.approx(SECONDS[rule])
        assert step.seconds["verification"] == pytest.approx(SECONDS[rule] / 2)
        assert (step.n_levels, step.n_nodes, step.tree) == (2, 7, "d3b2")
    assert read_phases(tmp_path / "out" / "results.json") == measured


def test_common_fluctuation_of_prompts_cancels_in_a_ratio() -> None:
    rng = np.random.default_rng(0)
    tokens, seconds = rng.uniform(10, 100, 20), rng.uniform(1, 10, 20)
    same = ratio_of_ratios((tokens, seconds), (tokens, seconds))
    assert same == pytest.approx((1.0, 1.0, 1.0))
    half = ratio_of_ratios((tokens, seconds / 2), (tokens, seconds))
    assert half == pytest.approx((2.0, 2.0, 2.0))
    # Unpaired prompts do not cancel: the interval has a width.
    _, low, high = ratio_of_ratios((tokens, seconds), (tokens[::-1], seconds[::-1]))
    assert high - low > 0.2


def test_interval_of_a_ratio_covers_the_truth() -> None:
    """600 made-up runs of 30 prompts: 95 % intervals cover between 90 % and 98 % (5 and 3 sigma)."""
    rng = np.random.default_rng(1)
    covered = 0
    for i in range(600):
        base = rng.gamma(4.0, size=30)
        ones = base * rng.gamma(20.0, 1 / 20.0, 30) * 1.5, base
        others = base * rng.gamma(20.0, 1 / 20.0, 30), base
        _, low, high = ratio_of_ratios(ones, others, n_resamples=300, seed=i)
        covered += low <= 1.5 <= high
    assert 0.90 < covered / 600 < 0.98


@pytest.mark.parametrize("at", [1, 3, 5, 8, 14, 17])
def test_interrupted_run_goes_on_and_ends_in_the_same_log(tmp_path: Path, at: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    expected = run(whole)
    (broken / f"stop-{at}").write_text("interrupt")
    if at < 6:
        with pytest.raises(KeyboardInterrupt):
            run(broken)
    else:
        partial = run(broken)
        assert partial.partial
        assert sum(row["n_prompts"] for row in partial.systems) == min(at - 1 - 4, 10)
    finished = run(broken)
    assert not finished.partial
    for method in ("specinfer", "resispec"):
        for kind in ("jsonl", "profile.jsonl"):
            assert log_of(broken, method, kind).records == log_of(whole, method, kind).records
    assert finished.systems == expected.systems
    assert finished.phases == expected.phases
    # Nothing that was logged was decoded again: one more call than without the interruption.
    asked = [(c["method"], c["index"], c["profile"]) for c in journal(broken) if c["index"] >= 0]
    assert len(asked) <= 16 + 1
    assert set(asked) == {
        (method, i, profile)
        for method in ("SpecInfer", "ResiSpec")
        for i, profile in [*[(i, False) for i in range(5)], *[(i, True) for i in range(3)]]
    }
    n_calls = len(journal(broken))
    said: list[str] = []
    run(broken, say=said.append)
    assert len(journal(broken)) == n_calls
    assert "10 measured prompts are already" in said[0]


def test_a_log_cut_anywhere_keeps_its_closed_prompts(tmp_path: Path, done) -> None:
    path = tmp_path / "out/raw/mine/specinfer.jsonl"
    content = path.read_bytes()
    full = RunLog(path)
    ends = [i + 1 for i in range(len(content)) if content[i : i + 1] == b"\n"]
    closing = [content.rfind(b"\n", 0, end - 1) + 1 for end in ends]
    prompt_ends = [
        end
        for start, end in zip(closing, ends, strict=True)
        if b'"kind":"prompt"' in content[start:end]
    ]
    for cut in range(0, len(content), 37):
        path.write_bytes(content[:cut])
        log = RunLog(path)
        kept = sum(end <= cut for end in prompt_ends)
        assert sorted(log.records) == list(range(kept))
        assert all(log.records[i] == full.records[i] for i in range(kept))
        log.begin(full.systems[0])
        for index in range(kept, 5):
            log.append(full.records[index])
        assert RunLog(path).records == full.records


def test_altered_logs_and_settings_are_refused(tmp_path: Path, done) -> None:
    with pytest.raises(RunError, match=r"temperature = 1\.0, this one 0\.5"):
        run(tmp_path, temperature=0.5)
    (tmp_path / "mine.txt").write_text("".join(f"other {i}\n" for i in range(40)))
    with pytest.raises(RunError, match="prompts"):
        run(tmp_path)
    path = tmp_path / "out/raw/mine/specinfer.jsonl"
    path.write_text(path.read_text().replace('"n_tokens":', '"n_takens":', 1))
    with pytest.raises(RunError, match=r"specinfer\.jsonl, line 2"):
        RunLog(path)
    log = log_of(tmp_path, "resispec")
    with pytest.raises(RunError, match="another folder"):
        log.begin({**log.systems[0], "target": {"name": "another"}})


def test_more_prompts_go_on_from_fewer(tmp_path: Path) -> None:
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    for folder in (whole, longer):
        folder.mkdir()
    expected = run(whole)
    run(longer, n_prompts=3)
    first = log_of(longer, "resispec").records
    found = run(longer)
    assert found.systems == expected.systems and found.phases == expected.phases
    assert len(log_of(longer, "resispec").records) > len(first) == 3
    with pytest.raises(RunError, match="n_prompts = 5, this one 3"):
        run(longer, n_prompts=3)
    with pytest.raises(RunError, match=r"temperature = 1\.0, this one 0\.5"):
        run(longer, n_prompts=6, temperature=0.5)
    (longer / "mine.txt").write_text("".join(f"other {i}\n" for i in range(40)))
    with pytest.raises(RunError, match="prompts"):
        run(longer, n_prompts=6)


def test_files_are_known_by_their_content_and_not_by_their_folder(tmp_path: Path) -> None:
    for name, children in (("one", [[1, 2], [], []]), ("two", [[1, 2, 3], [], [], []])):
        (tmp_path / name).mkdir()
        map_of = {"schema_version": 1, "children": children}
        (tmp_path / name / "map.json").write_text(json.dumps(map_of))
    run(tmp_path, tree=str(tmp_path / "one" / "map.json"))
    for file in ("run.json", "results.json"):
        assert str(tmp_path / "one") not in (tmp_path / "out" / file).read_text()
    (tmp_path / "one").rename(tmp_path / "moved")
    run(tmp_path, tree=str(tmp_path / "moved" / "map.json"))
    with pytest.raises(RunError, match="tree = "):
        run(tmp_path, tree=str(tmp_path / "two" / "map.json"))


def test_two_runs_in_one_folder_do_not_cut_each_other_off(tmp_path: Path, done) -> None:
    here, other = log_of(tmp_path, "resispec"), log_of(tmp_path, "resispec")
    about, size = here.systems[0], here.path.stat().st_size
    here.begin(about)
    with pytest.raises(RunError, match="another run writes to this folder"):
        other.begin(about)
    assert here.path.stat().st_size > size


@pytest.mark.parametrize(
    ("old", "new"),
    [('"n_tokens":', '"n_tokens":1'), ('"seconds":', '"seconds":-'), ('"step":0', '"step":1')],
)
def test_a_log_whose_steps_do_not_add_up_is_refused(tmp_path: Path, done, old, new) -> None:
    path = tmp_path / "out/raw/mine/specinfer.jsonl"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(RunError, match=r"specinfer\.jsonl, line \d+: the steps of prompt 0"):
        run(tmp_path)


def test_lines_that_were_lost_or_doubled_are_noticed(tmp_path: Path, done) -> None:
    path = tmp_path / "out/raw/mine/specinfer.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for changed in ([*lines[:2], *lines[3:]], [*lines[:3], *lines[2:]]):
        path.write_text("".join(changed))
        with pytest.raises(RunError, match="do not add up"):
            run(tmp_path)


def test_logs_that_changed_places_are_refused(tmp_path: Path, done) -> None:
    folder = tmp_path / "out/raw/mine"
    here, there = folder / "specinfer.jsonl", folder / "resispec.jsonl"
    first, second = here.read_text(), there.read_text()
    here.write_text(second)
    there.write_text(first)
    with pytest.raises(RunError, match="holds the run of 'ResiSpec', not of 'SpecInfer'"):
        run(tmp_path)


def test_settings_of_a_run_that_never_began_bind_nobody(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"seed": 1}')
    assert not run(tmp_path, seed=7).partial


@pytest.mark.parametrize("content", ["[1, 2]", "3", '{"seed": ', ""])
def test_settings_that_are_none(tmp_path: Path, content) -> None:
    run(tmp_path)
    (tmp_path / "out" / "run.json").write_text(content)
    with pytest.raises(RunError, match="not the settings of a run"):
        run(tmp_path)


def test_too_few_prompts_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"40 prompts.*2 warm-up.*50 measured"):
        run(tmp_path, n_prompts=50)


def test_every_method_and_set_has_a_process_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bench_fakes, "inherited", True)
    (tmp_path / "yours.txt").write_text("".join(f"text {i}\n" for i in range(9)))
    methods = (Method("AR", "autoregressive"), Method("SpecInfer", "specinfer"))
    fake = fake_config(tmp_path, methods=methods, n_prompts=2, profile_prompts=1)
    config = msgspec.structs.replace(fake, prompts=(*fake.prompts, str(tmp_path / "yours.txt")))
    results = bench_decode(config, tmp_path / "out", open_system=open_fake)
    pids: dict[tuple[str, str], set[int]] = {}
    for call in journal(tmp_path):
        pids.setdefault((call["method"], call["text"].split()[0]), set()).add(call["pid"])
    assert len(pids) == 4
    assert all(len(of_one) == 1 for of_one in pids.values())
    assert len(set.union(*pids.values())) == 4
    assert not any(call["inherited"] for call in journal(tmp_path))
    assert os.getpid() not in set.union(*pids.values())
    assert [row["dataset"] for row in results.systems] == ["mine", "mine", "yours", "yours"]
    plain = results.systems[0]
    assert (plain["accepted_length"], plain["n_levels"], plain["tree"]) == (1.0, 0, None)
    with (tmp_path / "out" / "prompts.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    assert "speedup" in json.loads((tmp_path / "out" / "results.json").read_text())["systems"][1]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("known", ModelError, "the model is broken"),
        ("other", WorkerError, r"SpecInfer failed: ValueError: some other fault"),
        ("die", WorkerError, r"SpecInfer ended without an answer \(exit code 7\)"),
    ],
)
def test_a_failing_process_is_a_typed_error(tmp_path: Path, how: str, error, message: str) -> None:
    (tmp_path / "stop-1").write_text(how)
    methods = (Method("SpecInfer", "specinfer"),)
    with pytest.raises(error, match=message):
        run(tmp_path, in_process=False, methods=methods)
