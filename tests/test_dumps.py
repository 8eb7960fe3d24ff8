"""Dumps: what is written is what is read, an interruption loses nothing, and damage is named."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim.dumps import (
    DumpWriter,
    names,
    open_dump,
    plan_dump,
    read_manifest,
    reader,
    resolve_dump,
    write_dump,
    writer,
)
from resispec_sim.dumps.schema import MAX_SHARD_BYTES
from resispec_sim.dumps.storage import decode_rows, encode_rows, shard_header
from resispec_sim.errors import (
    DumpError,
    IncompleteDumpError,
    InputError,
    LogitsError,
    ManifestError,
    ShardError,
)
from resispec_sim.probs import logits_to_probs

V = 11
LENGTHS = [3, 1, 4, 2, 2]
DTYPES = ["float32", "float16", "bfloat16"]


def make_rows(lengths=LENGTHS, target_size=V, draft_size=V, seed=0):
    """Random rows per prompt: (token_ids, target_logits, draft_logits)."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(0, target_size, n),
            rng.normal(scale=3, size=(n, target_size)).astype(np.float32),
            rng.normal(scale=3, size=(n, draft_size)).astype(np.float32),
        )
        for n in lengths
    ]


def make_dump(path, rows=None, **options):
    rows = make_rows() if rows is None else rows
    ids, target, draft = ([item[k] for item in rows] for k in range(3))
    return write_dump(path, target, draft, ids, **{"prompts_per_shard": 2, **options})


def make_plan(**options):
    settings = {"target_vocab_size": V, "prompts_per_shard": 2, "new_tokens": LENGTHS, "seed": 5}
    return plan_dump(prompts=[f"prompt {i}" for i in range(len(LENGTHS))], **settings | options)


def record(path, plan):
    """A recorder: write what is missing, then finish."""
    rows = make_rows()
    work = DumpWriter(path, plan)
    written = work.missing()
    for shard_idx in written:
        work.write_shard(shard_idx, [rows[i] for i in plan.shards[shard_idx].prompt_idxs])
    work.finish()
    return written


def files_of(folder):
    """Contents of a dump's files, the log with its dates aside."""
    return {f.name: f.read_bytes() for f in Path(folder).iterdir() if f.name != writer.LOG_NAME}


def edit_manifest(folder, change):
    file = Path(folder) / "manifest.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


# What is written is what is read.


def test_float32_rows_come_back_bit_for_bit_and_in_order(tmp_path):
    rows = make_rows()
    with make_dump(tmp_path, rows, dtype="float32") as dump:
        assert dump.positions_per_prompt == LENGTHS
        assert (dump.n_prompts, dump.n_positions, dump.vocab_size) == (5, 12, V)
        places = [(i, j) for i, n in enumerate(LENGTHS) for j in range(n)]
        assert [dump.prompt_of(k) for k in range(12)] == places
        positions = list(dump.iter_positions())
        assert [(p.prompt_idx, p.offset) for p in positions] == places
        for k in [11, 0, 5, *range(12)]:  # backwards over shards too
            i, j = places[k]
            for position in (dump.read(k), positions[k]):
                assert position.token_id == rows[i][0][j]
                assert np.array_equal(position.target_logits, rows[i][1][j])
                assert np.array_equal(position.draft_logits, rows[i][2][j])
        assert [p.offset for p in dump.iter_positions(2, 5)] == [2, 0, 0]
        dump.verify()


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-15), ("float16", 5e-4), ("bfloat16", 1e-2)]
)
def test_distributions_survive_storage(tmp_path, dtype, limit):
    # Far from 0, as logits are: raw 16-bit storage would fail here.
    rng = np.random.default_rng(2)
    logits = (rng.normal(scale=3, size=(6, 4000)) + 40).astype(np.float32)
    ids = logits.argmax(axis=-1)
    with write_dump(tmp_path, [logits], [logits - 7], [ids], dtype=dtype) as dump:
        exact = logits_to_probs(logits)
        for j in range(6):
            for found in dump.probs(j):
                assert np.abs(found - exact[j]).sum() / 2 <= limit
                assert found.argmax() == ids[j]
    if dtype != "float32":
        raw = decode_rows(encode_raw(logits, dtype), dtype)
        assert np.abs(logits_to_probs(raw) - exact).sum(axis=-1).max() / 2 > 2 * limit


def encode_raw(logits, dtype):
    """16-bit storage without the shift: what the format avoids."""
    return logits.astype("<f2") if dtype == "float16" else (logits.view("<u4") >> 16).astype("<u2")


@pytest.mark.parametrize("dtype", DTYPES)
def test_impossible_tokens_stay_impossible_and_others_possible(tmp_path, dtype):
    row = np.array([[-np.inf, 3.0, -1e30, np.finfo(np.float32).min, 2.5]], dtype=np.float32)
    with write_dump(tmp_path, [row], [row[:, ::-1]], [[1]], dtype=dtype) as dump:
        position = dump.read(0)
    assert np.array_equal(np.isneginf(position.target_logits), [True, False, False, False, False])
    assert np.array_equal(np.isneginf(position.draft_logits), [False, False, False, False, True])
    peak = 3.0 if dtype == "float32" else 0.0
    assert position.target_logits.max() == peak and position.target_logits[4] == peak - 0.5


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=0), min_size=1, max_size=20))
def test_bfloat16_rounds_to_nearest(values):
    rows = np.array([[0.0, *values]], dtype=np.float32)
    stored = encode_rows(rows, "bfloat16", "here")
    found = decode_rows(stored, "bfloat16").astype(np.float64)
    below, above = (
        (stored.astype("<u4") + step << 16).view(np.float32).astype(np.float64)
        for step in (np.uint32(0xFFFFFFFF), np.uint32(1))
    )
    error = np.abs(found - rows)[0, 1:]
    neighbours = np.stack([below, above])[:, 0, 1:]
    neighbours[~np.isfinite(neighbours)] = np.inf
    assert (error <= np.abs(neighbours - rows[0, 1:]).min(axis=0)).all()


def test_bfloat16_ties_go_to_even():
    # Between 1 and 1 + 2^-7, and between 1 + 2^-7 and 1 + 2^-6, negated.
    rows = -np.array([[0.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8]], dtype=np.float32)
    found = decode_rows(encode_rows(rows, "bfloat16", "here"), "bfloat16")
    assert found.tolist() == [[0.0, -1.0, -(1 + 2.0**-6)]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_are_safetensors_files(tmp_path, dtype):
    rows = make_rows()
    make_dump(tmp_path, rows, dtype=dtype)
    data = (tmp_path / "shard-00001.safetensors").read_bytes()
    arrays = dict(safetensors.deserialize(data))
    stored = arrays["prompt-00002.target_logits"]
    assert stored["dtype"] == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    assert list(stored["shape"]) == [4, V]
    if dtype != "bfloat16":
        arrays = safetensors.numpy.load(data)
        assert np.array_equal(arrays["prompt-00003.token_ids"], rows[3][0])
        expected = rows[3][2] - (
            rows[3][2].max(axis=-1, keepdims=True) if dtype == "float16" else 0
        )
        assert np.array_equal(arrays["prompt-00003.draft_logits"], expected.astype(dtype))


def test_nothing_is_changed_in_the_callers_arrays(tmp_path):
    rows = make_rows()
    copies = [[array.copy() for array in item] for item in rows]
    make_dump(tmp_path, rows, dtype="float16")
    assert all(
        np.array_equal(a, b)
        for x, y in zip(rows, copies, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_probabilities_follow_the_dumps_own_settings(tmp_path):
    with make_dump(tmp_path, temperature=0.6, top_k=4, top_p=0.9, dtype="float32") as dump:
        assert (dump.temperature, dump.top_k, dump.top_p) == (0.6, 4, 0.9)
        position = dump.read(3)
        for k, logits in enumerate((position.target_logits, position.draft_logits)):
            own = logits_to_probs(logits, temperature=0.6, top_k=4, top_p=0.9)
            assert np.array_equal(dump.probs(3)[k], own)
            assert np.array_equal(dump.probs(position)[k], own)
            plain = logits_to_probs(logits)
            found = dump.probs(position, temperature=1.0, top_k=0, top_p=1.0)[k]
            assert np.array_equal(found, plain) and not np.array_equal(found, own)


# Vocabularies.


@pytest.mark.parametrize(("target_size", "draft_size"), [(7, 5), (5, 7)])
def test_the_shorter_vocabulary_is_padded(tmp_path, target_size, draft_size):
    rows = make_rows(target_size=target_size, draft_size=draft_size)
    with make_dump(tmp_path, rows, dtype="float32") as dump:
        assert dump.vocab_size == 7
        for k, size in enumerate((target_size, draft_size)):
            probs = dump.probs(4)[k]
            np.testing.assert_allclose(probs[:size], logits_to_probs(rows[2][k + 1][0]), rtol=1e-15)
            assert probs.shape == (7,) and np.array_equal(probs[size:], np.zeros(7 - size))


def test_a_reduced_draft_vocabulary_is_mapped(tmp_path):
    ids = [9, 2, 4]
    rows = make_rows(draft_size=3)
    with make_dump(tmp_path, rows, draft_to_target=ids, dtype="float32") as dump:
        found = dump.read(0).draft_logits
        assert np.array_equal(found[ids], rows[0][2][0])
        assert np.isneginf(np.delete(found, ids)).all()


@pytest.mark.parametrize("ids", [[9, 2, 11], [9, 2, 2], [9, 2]])
def test_a_wrong_map_is_refused_before_anything_is_written(tmp_path, ids):
    with pytest.raises(ManifestError, match=r"map|ids"):
        make_dump(tmp_path / "dump", make_rows(draft_size=3), draft_to_target=ids)
    assert not (tmp_path / "dump").exists()


# What is refused on writing.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits_are_not_written(tmp_path, dtype, which, bad):
    rows = make_rows()
    rows[2][1 if which == "target" else 2][3, 6] = bad
    with pytest.raises(
        LogitsError,
        match=rf"shard-00001.safetensors, prompt 2, {which} logits, position 3, token 6: .*{bad}",
    ):
        make_dump(tmp_path, rows, dtype=dtype)
    assert sorted(files_of(tmp_path)) == [
        "manifest.json",
        "shard-00000.safetensors",
        "shard-00000.sha256",
    ]


def test_a_row_of_minus_infinity_is_not_written(tmp_path):
    rows = make_rows()
    rows[4][2][1] = -np.inf
    with pytest.raises(LogitsError, match="prompt 4, draft logits, position 1: every logit"):
        make_dump(tmp_path, rows)


@pytest.mark.parametrize("token", [-1, V])
def test_tokens_outside_the_vocabulary_are_refused(tmp_path, token):
    rows = make_rows()
    rows[0][0][2] = token
    with pytest.raises(InputError, match=f"prompt 0, position 2: token {token}"):
        make_dump(tmp_path, rows)


def test_a_token_that_the_target_cannot_sample_is_refused(tmp_path):
    rows = make_rows()
    rows[3][1][1, rows[3][0][1]] = -np.inf
    with pytest.raises(InputError, match="prompt 3, position 1: recorded token"):
        make_dump(tmp_path, rows)
    # The draft may well give it no mass.
    rows = make_rows()
    rows[3][2][1, rows[3][0][1]] = -np.inf
    make_dump(tmp_path / "fine", rows)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ids, target, draft: (ids, target[:-1], draft),
        lambda ids, target, draft: (ids, target, draft[:, :-1]),
        lambda ids, target, draft: (ids[:-1], target, draft),
        lambda ids, target, draft: (ids.astype(float), target, draft),
        lambda ids, target, draft: (ids, target.astype(complex), draft),
    ],
)
def test_arrays_that_do_not_fit_the_plan_are_refused(tmp_path, spoil):
    rows = make_rows()
    rows[1] = spoil(*rows[1])
    plan = make_plan()
    with pytest.raises(InputError, match=r"shard-00000.safetensors, prompt 1: \w+ has"):
        DumpWriter(tmp_path, plan).write_shard(0, rows[:2])
    with pytest.raises(InputError, match="planned for 2 prompts, got 1"):
        DumpWriter(tmp_path, plan).write_shard(0, make_rows()[:1])


def test_lists_of_different_lengths_are_refused(tmp_path):
    ids, target, draft = zip(*make_rows(), strict=True)
    for broken in ((target[1:], draft, ids), (target, draft, ids[1:]), ([], [], [])):
        with pytest.raises(InputError, match="one array per prompt"):
            write_dump(tmp_path, *broken)
    with pytest.raises(InputError, match="prompt 0: token_ids"):
        write_dump(tmp_path, [target[0][0]], [draft[0]], [ids[0]])


def test_float64_logits_beyond_float32_are_refused_in_float32_and_kept_in_16_bits(tmp_path):
    rows = np.array([[1e39, 1e39 - 1e24, 0.0]])
    with pytest.raises(LogitsError, match="above the range of float32"):
        write_dump(tmp_path / "a", [rows], [rows], [[0]], dtype="float32")
    with write_dump(tmp_path / "b", [rows], [rows], [[0]], dtype="float16") as dump:
        assert dump.probs(0)[0].tolist() == [1.0, 0.0, 0.0]


# The plan.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 4)),
    st.sampled_from(DTYPES),
    st.integers(4_000, 20_000),
)
def test_a_plan_holds_every_prompt_once_in_shards_within_the_limit(lengths, batch, dtype, limit):
    plan = plan_dump(
        prompts=[""] * len(lengths),
        new_tokens=lengths,
        target_vocab_size=5,
        draft_vocab_size=4,
        dtype=dtype,
        prompts_per_shard=batch,
        max_shard_bytes=limit,
    )
    assert [i for s in plan.shards for i in s.prompt_idxs] == list(range(len(lengths)))
    assert [n for s in plan.shards for n in s.n_positions] == lengths
    assert all(s.n_bytes <= limit for s in plan.shards)
    assert batch is None or max(len(s.prompt_idxs) for s in plan.shards) <= batch


def test_a_prompt_larger_than_a_shard_is_refused():
    options = {"prompts": ["a", "b"], "target_vocab_size": 128_256, "dtype": "float32"}
    with pytest.raises(ManifestError, match="prompt 1: its 131 positions .* fewer new tokens"):
        plan_dump(new_tokens=[130, 131], **options)
    plan = plan_dump(new_tokens=130, **options)
    assert [s.prompt_idxs for s in plan.shards] == [[0], [1]]
    assert all(0.98 * MAX_SHARD_BYTES < s.n_bytes <= MAX_SHARD_BYTES for s in plan.shards)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"top_k": -3}, "top_k -3"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"dtype": "float64"}, "got 'float64'"),
        ({"new_tokens": 0}, "without positions"),
        ({"new_tokens": [1, 2]}, "5 prompts but 2 entries in new_tokens"),
        ({"target_vocab_size": 0}, "vocabulary sizes"),
        ({"prompts_per_shard": 0}, "prompts_per_shard must be at least 1"),
    ],
)
def test_plans_out_of_range_are_refused(options, message):
    with pytest.raises(ManifestError, match=message):
        make_plan(**options)


def test_manifest_keeps_what_it_was_given(tmp_path):
    identity = {"name": "toy", "notes": "exit 20, fitted map"}
    plan = make_plan(
        target={"name": "big", "sha256": "00"},
        draft=identity,
        tokenizer="fingerprint",
        provenance={"parameters": {"shape": (1, 2), "seed": np.int64(5)}},
    )
    record(tmp_path, plan)
    manifest = read_manifest(tmp_path)
    assert msgspec.structs.replace(manifest, shards=plan.shards) == plan
    assert manifest.draft == identity and manifest.tokenizer == "fingerprint"
    assert manifest.provenance == {"parameters": {"shape": [1, 2], "seed": 5}}
    assert [p.text for p in manifest.prompts] == [f"prompt {i}" for i in range(5)]
    for shard in manifest.shards:
        data = (tmp_path / shard.file).read_bytes()
        assert hashlib.sha256(data).hexdigest() == shard.sha256 and len(data) == shard.n_bytes


# Interruption.


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
    with pytest.raises(ShardError, match="recorded again, it differs"):
        work.write_shard(1, make_rows(seed=1)[2:4])


def test_writing_other_arrays_over_a_finished_dump_is_refused(tmp_path):
    make_dump(tmp_path)
    before = files_of(tmp_path)
    make_dump(tmp_path)
    with pytest.raises(ShardError, match="Record into a new folder"):
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


# Damage.


def break_file(file, damage):
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    elif damage == "cut":
        del data[-1:]
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(data)


@pytest.mark.parametrize("damage", ["cut", "delete"])
def test_a_missing_or_cut_shard_fails_on_opening(tmp_path, damage):
    make_dump(tmp_path)
    break_file(tmp_path / "shard-00002.safetensors", damage)
    with pytest.raises(ShardError, match="shard-00002.safetensors"):
        open_dump(tmp_path)


@pytest.mark.parametrize("place", [9, 200, -1])
def test_a_flipped_byte_fails_before_a_row_of_its_shard_is_read(tmp_path, place):
    make_dump(tmp_path)
    file = tmp_path / "shard-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)
    with open_dump(tmp_path) as dump:
        assert dump.read(0).offset == 0
        with pytest.raises(ShardError, match="shard-00001.safetensors: its sha256"):
            dump.read(4)
        with pytest.raises(ShardError, match="shard-00001.safetensors: its sha256"):
            list(dump.iter_positions())
        with pytest.raises(ShardError, match="shard-00001.safetensors: its sha256"):
            dump.verify()


def test_a_checksum_is_verified_once_and_again_on_request(tmp_path, monkeypatch):
    make_dump(tmp_path)
    checked = []
    real = reader._check_shard
    monkeypatch.setattr(
        reader, "_check_shard", lambda f, p, *a: (checked.append(p.name), real(f, p, *a))
    )
    dump = open_dump(tmp_path)
    assert checked == []
    for _ in range(2):
        list(dump.iter_positions())
    assert checked == [f"shard-0000{i}.safetensors" for i in range(3)]
    dump.verify()
    assert len(checked) == 6


def replace_shard(folder, shard_idx, data):
    """Put other bytes into a shard and make size and checksum agree: what only the content gives away."""
    (folder / f"shard-{shard_idx:05d}.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    edit_manifest(folder, lambda m: m["shards"][shard_idx].update(sha256=digest))


def test_a_header_that_is_not_the_plans_is_refused(tmp_path):
    make_dump(tmp_path)
    data = (tmp_path / "shard-00000.safetensors").read_bytes()
    replace_shard(tmp_path, 0, data.replace(b"prompt-00000.target", b"prompt-00009.target"))
    with pytest.raises(ShardError, match="shard-00000.safetensors: its header"):
        open_dump(tmp_path).read(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits_are_refused_on_reading(tmp_path, dtype, bad):
    make_dump(tmp_path, dtype=dtype)
    bits = {
        "float32": np.float32(bad).tobytes(),
        "float16": np.float16(bad).tobytes(),
        "bfloat16": np.float32(bad).tobytes()[2:],
    }[dtype]
    data = bytearray((tmp_path / "shard-00002.safetensors").read_bytes())
    data[-2 * len(bits) : -len(bits)] = bits  # last row of the last prompt's draft, token V - 2
    replace_shard(tmp_path, 2, bytes(data))
    dump = open_dump(tmp_path)
    dump.read(10)
    place = rf"shard-00002.safetensors, prompt 4, draft logits, position 1, token {V - 2}: .*{bad}"
    with pytest.raises(LogitsError, match=place):
        dump.read(11)


def test_a_token_outside_the_vocabulary_is_refused_on_reading(tmp_path):
    plan = make_dump(tmp_path).manifest
    data = bytearray((tmp_path / "shard-00000.safetensors").read_bytes())
    data[len(shard_header(plan, plan.shards[0]))] = V
    replace_shard(tmp_path, 0, bytes(data))
    with pytest.raises(ShardError, match=f"prompt 0, position 0: token {V}"):
        open_dump(tmp_path).read(0)


# The manifest.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(surprise=1), "unknown field `surprise`"),
        (lambda m: m["shards"][0].update(surprise=1), "unknown field `surprise`"),
        (lambda m: m["prompts"][0].update(surprise=1), "unknown field `surprise`"),
        (lambda m: m.pop("temperature"), "temperature"),
        (lambda m: m.update(schema_version=2, surprise=1), "schema version 2"),
        (lambda m: m.update(kind="tree"), "kind"),
        (lambda m: m.update(vocab_size=V + 1), "vocab_size is 12"),
        (lambda m: m.update(target_vocab_size=V - 1), "vocab_size|n_bytes"),
        (lambda m: m.update(temperature=-1.0), "temperature"),
        (lambda m: m.update(dtype="float32"), "n_bytes"),
        (lambda m: m.update(draft_to_target=[0]), "draft_to_target has 1 ids"),
        (lambda m: m.update(new_tokens=9), "new_tokens"),
        (lambda m: m["shards"][1].update(file="../shard-00001.safetensors"), "only 'shard-00001"),
        (lambda m: m["shards"][1].update(file="sub/shard-00001.safetensors"), "only 'shard-00001"),
        (lambda m: m["shards"][1].update(file="/etc/passwd"), "only 'shard-00001"),
        (lambda m: m["shards"][1].update(n_bytes=4), "n_bytes is 4"),
        (lambda m: m["shards"][1].update(sha256="xyz"), "64 hexadecimal digits"),
        (lambda m: m["shards"][1].update(prompt_idxs=[2]), "every prompt once"),
        (lambda m: m["shards"].pop(), "every prompt once"),
        (lambda m: m["shards"][0].update(n_positions=[4, 0]), "without positions"),
    ],
)
def test_a_manifest_that_does_not_fit_together_is_refused(tmp_path, change, message):
    make_dump(tmp_path)
    edit_manifest(tmp_path, change)
    with pytest.raises(ManifestError, match=message):
        open_dump(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": "1"}', "\xff"])
def test_a_malformed_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ManifestError, match=r"manifest.json: not a manifest"):
        open_dump(tmp_path)


# Reading lazily.


def mapped_shards():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.rsplit("/", 1)[-1] for line in lines if line.endswith(".safetensors")})


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_one_shard_is_mapped_at_a_time_and_none_at_the_end(tmp_path):
    make_dump(tmp_path)
    dump = open_dump(tmp_path)
    assert mapped_shards() == []
    for position in dump.iter_positions():
        assert mapped_shards() == [f"shard-0000{position.prompt_idx // 2}.safetensors"]
    assert mapped_shards() == []
    with dump:
        kept = dump.read(0)
        dump.read(11)
        assert mapped_shards() == ["shard-00002.safetensors"]
    assert mapped_shards() == []
    assert np.isfinite(kept.target_logits).all()  # a copy: it outlives its mapping
    iterator = dump.iter_positions()
    next(iterator)
    iterator.close()
    assert mapped_shards() == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_is_bounded_by_a_shard_not_by_the_dump(tmp_path):
    # 12 shards of 16 MB; a reader that kept them would pass 192 MB.
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        from resispec_sim.dumps import DumpWriter, open_dump, plan_dump

        def peak():
            with open("/proc/self/status") as file:
                return next(int(l.split()[1]) for l in file if l.startswith("VmHWM")) * 1024

        plan = plan_dump(prompts=["x"] * 12, new_tokens=160, target_vocab_size=25_000,
                         prompts_per_shard=1)
        work = DumpWriter(sys.argv[1], plan)
        rng = np.random.default_rng(0)
        for shard_idx in work.missing():
            rows = rng.normal(size=(160, 25_000)).astype(np.float32)
            work.write_shard(shard_idx, [(np.zeros(160, int), rows, rows)])
        work.finish()
        """
    )
    read = script[: script.index("plan = ")] + textwrap.dedent(
        """
        dump = open_dump(sys.argv[1])
        dump.read(0)
        before = peak()
        total = sum(p.target_logits.size for p in dump.iter_positions())
        assert total == 12 * 160 * 25_000
        print(peak() - before)
        """
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)
    out = subprocess.run(
        [sys.executable, "-c", read, str(tmp_path)], check=True, timeout=120, capture_output=True
    )
    assert int(out.stdout) < 32e6
    shutil.rmtree(tmp_path)


def test_positions_out_of_range_are_refused(tmp_path):
    with make_dump(tmp_path) as dump:
        for i in (-1, 12):
            with pytest.raises(InputError, match=f"position {i} "):
                dump.read(i)
        for start, stop in ((-1, 3), (4, 3), (0, 13)):
            with pytest.raises(InputError, match=f"positions {start}:{stop}"):
                dump.iter_positions(start, stop)


def test_a_dump_travels_to_another_process(tmp_path):
    with make_dump(tmp_path) as dump:
        dump.read(0)
        copy = pickle.loads(pickle.dumps(dump))
        assert np.array_equal(copy.read(7).target_logits, dump.read(7).target_logits)


# Names.


def test_a_folder_goes_before_a_shipped_name(tmp_path, monkeypatch):
    shipped = tmp_path / "shipped"
    make_dump(shipped / "toy-t1.0", temperature=1.0)
    make_dump(shipped / "other", temperature=1.0)
    (shipped / "no-dump").mkdir()
    monkeypatch.setattr(names, "shipped_folders", lambda: [tmp_path / "nowhere", shipped])
    monkeypatch.chdir(tmp_path)
    assert resolve_dump("toy-t1.0") == shipped / "toy-t1.0"
    assert open_dump("toy-t1.0").n_positions == 12
    make_dump(tmp_path / "toy-t1.0", temperature=0.5)
    assert open_dump("toy-t1.0").temperature == 0.5
    with pytest.raises(DumpError, match="no folder 'toy'.*Shipped dumps: other, toy-t1.0$"):
        open_dump("toy")
    with pytest.raises(DumpError, match="no shipped dump"):
        resolve_dump("../shipped/../shipped/none")
    (tmp_path / "file").touch()
    with pytest.raises(DumpError, match="is a file"):
        resolve_dump(tmp_path / "file")


def test_shipped_dumps_are_looked_for_in_the_package_and_in_the_clone():
    import resispec_sim

    package = Path(resispec_sim.__file__).parent
    assert names.shipped_folders() == [package / "_shipped_dumps", package.parent / "logits_dumps"]
