"""Dumps: what is written is what is read, a shard at a time, from any folder."""

import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim.dumps import names, open_dump, resolve_dump, write_dump
from resispec_sim.dumps.codes import are_sound, probs_of_codes
from resispec_sim.dumps.storage import decode_rows, encode_rows, stored_type
from resispec_sim.errors import DumpError, InputError, ManifestError
from resispec_sim.probs import logits_to_probs
from tests.dump_helpers import DTYPES, LENGTHS, V, make_dump, make_rows

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


# Probabilities of stored rows.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1e-3, 1e-300, 7.0])
def test_probabilities_of_stored_rows_are_those_of_the_decoded_ones(tmp_path, dtype, temperature):
    rng = np.random.default_rng(2)
    rows = rng.normal(scale=5, size=(2, 6, 1500))
    rows[:, 1, 3:] = -np.inf
    rows[:, 2] = 0.0
    rows[:, 3, ::2] -= 1e6  # far below the range of 16 bits
    rows[:, 4] = rng.normal(scale=1e-6, size=1500)
    with make_dump(tmp_path, [(np.zeros(6, int), *rows)], dtype=dtype) as dump:
        for i in range(6):
            position = dump.read(i)
            for found, logits in zip(dump.probs(i, temperature), position.rows, strict=True):
                np.testing.assert_array_equal(
                    found, logits_to_probs(logits, temperature=temperature)
                )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stored_rows_of_another_form_are_decoded(dtype):
    """Rows that this package does not write: their largest logit is not 0."""
    for values in ([-3.0, -4.0], [2.0, -1.0], [2.0, 1.0]):
        codes = np.array(values, dtype=np.float32).view(np.uint32) >> 16
        codes = codes.astype("<u2") if dtype == "bfloat16" else np.array(values, dtype="<f2")
        assert probs_of_codes(codes, dtype, 1.0) is None
        assert are_sound(codes, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_soundness_of_stored_rows_is_that_of_their_values(dtype):
    codes = np.arange(65_536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = decode_rows(codes.view(stored_type(dtype)), dtype)
    rest = codes[values == -1.0]
    minus_infinity = codes[values == -np.inf]
    for code, value in zip(codes[::7], values[::7], strict=True):
        for other in (rest, minus_infinity):
            row = np.concatenate([[code], other]).astype(np.uint16)
            expected = not (np.isnan(value) or value == np.inf)
            expected &= np.isfinite(value) or other is rest
            assert are_sound(row.view(stored_type(dtype)), dtype) == expected, value
