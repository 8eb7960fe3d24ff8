"""Dumps: an interruption loses nothing, and a folder is not shared by two plans."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from resispec_sim.dumps import DumpWriter, open_dump, writer
from resispec_sim.errors import DumpError, IncompleteDumpError, ManifestError, ShardError
from tests.dump_helpers import break_file, files_of, make_dump, make_plan, make_rows, record


class Crash(BaseException):
    """Stands for the death of the process: nothing of ours catches it."""


# Renames of a recording: the first manifest, a checksum and a shard for each of three shards, the
# last manifest.
N_RENAMES = 8


@pytest.mark.parametrize("n_done", range(N_RENAMES))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_before_or_after_any_rename_loses_nothing(tmp_path, monkeypatch, n_done, when):
    plan = make_plan()
    record(tmp_path / "whole", plan)
    calls = []
    real = os.replace

    def replace(source, target):
        if len(calls) == n_done and when == "before":
            raise Crash
        real(source, target)
        if len(calls) == n_done:
            raise Crash
        calls.append(target)

    with monkeypatch.context() as patch:
        patch.setattr(writer.os, "replace", replace)
        with pytest.raises(Crash):
            record(tmp_path / "cut", plan)
    n_done += when == "after"
    if n_done == 0:
        with pytest.raises(ManifestError, match="cannot be read"):
            open_dump(tmp_path / "cut")
    elif n_done < N_RENAMES:
        with pytest.raises(IncompleteDumpError, match="run the same recorder command again"):
            open_dump(tmp_path / "cut")
    n_shards = min(max(n_done - 1, 0) // 2, 3)
    assert record(tmp_path / "cut", plan) == list(range(n_shards, 3))
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")
    open_dump(tmp_path / "cut").verify()


def test_a_killed_recorder_run_again_gives_the_same_bytes(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        import numpy as np
        from resispec_sim.dumps import DumpWriter, plan_dump
        folder, dies = sys.argv[1], sys.argv[2] == "dies"
        plan = plan_dump(prompts=["a", "b", "c"], new_tokens=4, target_vocab_size=300,
                         prompts_per_shard=1, seed=9)

        def rows(prompt_idx):
            rng = np.random.default_rng([9, prompt_idx])
            yield rng.integers(0, 300, 4), rng.normal(size=(4, 300)), rng.normal(size=(4, 300))

        work = DumpWriter(folder, plan)
        for shard_idx in work.missing():
            if dies and shard_idx == 1:
                open(os.path.join(folder, "shard-00001.safetensors.tmp"), "wb").write(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            work.write_shard(shard_idx, rows(shard_idx))
        work.finish()
        """
    )

    def run(folder, mode):
        command = [sys.executable, "-c", script, str(tmp_path / folder), mode]
        return subprocess.run(command, check=False, timeout=120).returncode

    assert run("whole", "lives") == 0
    assert run("cut", "dies") == -signal.SIGKILL
    with pytest.raises(
        IncompleteDumpError, match=r"shard-00001.safetensors, shard-00002.* missing.*run the same"
    ):
        open_dump(tmp_path / "cut")
    assert run("cut", "lives") == 0
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "no checksum"])
def test_a_shard_that_is_not_whole_is_recorded_again(tmp_path, damage):
    plan = make_plan()
    record(tmp_path / "whole", plan)
    rows = make_rows()
    work = DumpWriter(tmp_path / "cut", plan)
    for shard_idx in (0, 1):
        work.write_shard(shard_idx, [rows[i] for i in plan.shards[shard_idx].prompt_idxs])
    with pytest.raises(IncompleteDumpError, match="shard-00002.safetensors not written yet"):
        work.finish()
    file = tmp_path / "cut" / "shard-00001.safetensors"
    if damage == "no checksum":
        file.with_suffix(".sha256").unlink()
    else:
        break_file(file, damage)
    assert record(tmp_path / "cut", plan) == [1, 2]
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


def test_a_finished_recording_run_again_changes_nothing(tmp_path):
    record(tmp_path, make_plan())
    before = files_of(tmp_path)
    assert sorted(before) == ["manifest.json", *(f"shard-0000{i}.safetensors" for i in range(3))]
    assert record(tmp_path, make_plan()) == []
    assert files_of(tmp_path) == before


def test_a_deleted_shard_of_a_finished_dump_can_be_recorded_again(tmp_path):
    record(tmp_path, make_plan())
    before = files_of(tmp_path)
    (tmp_path / "shard-00001.safetensors").unlink()
    assert record(tmp_path, make_plan()) == [1]
    assert files_of(tmp_path) == before
    (tmp_path / "shard-00001.safetensors").unlink()
    work = DumpWriter(tmp_path, make_plan())
    with pytest.raises(ShardError, match="would be written now differs"):
        work.write_shard(1, make_rows(seed=1)[2:4])


def test_writing_other_arrays_over_a_finished_dump_is_refused(tmp_path):
    make_dump(tmp_path)
    before = files_of(tmp_path)
    make_dump(tmp_path)
    with pytest.raises(ShardError, match="Write into a new folder"):
        make_dump(tmp_path, make_rows(seed=1))
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 6}, r"seed: 5 there, 6 now"),
        ({"temperature": 0.6}, r"temperature: 1.0 there, 0.6 now"),
        ({"target": {"name": "other"}}, r"target.name: None there, 'other' now"),
        ({"prompts_per_shard": 3}, r"shards: "),
        ({"dtype": "float32"}, r"dtype: 'float16' there, 'float32' now"),
        ({"provenance": {"packages": {}}}, r"provenance.packages: "),
    ],
)
def test_a_folder_is_not_shared_by_two_plans(tmp_path, options, message):
    DumpWriter(tmp_path, make_plan())
    before = files_of(tmp_path)
    with pytest.raises(ManifestError, match=message):
        DumpWriter(tmp_path, make_plan(**options))
    assert files_of(tmp_path) == before


def test_shards_without_a_manifest_are_not_written_over(tmp_path):
    record(tmp_path, make_plan())
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(DumpError, match="shard-00000.safetensors but no manifest.json"):
        DumpWriter(tmp_path, make_plan())


def test_dates_are_in_the_log_alone(tmp_path):
    record(tmp_path, make_plan())
    events = [json.loads(line) for line in (tmp_path / writer.LOG_NAME).read_text().splitlines()]
    assert [e["event"] for e in events] == ["opened", "shard", "shard", "shard", "finished"]
    year = events[0]["time"][:5].encode()
    assert not any(year in data or b"/tmp" in data for data in files_of(tmp_path).values())
