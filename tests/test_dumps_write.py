"""Dumps: what cannot be read back is refused on writing, and the plan is kept."""

import hashlib
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim.dumps import DumpWriter, plan_dump, read_manifest, write_dump
from resispec_sim.dumps.schema import MAX_SHARD_BYTES
from resispec_sim.errors import InputError, LogitsError, ManifestError
from tests.dump_helpers import DTYPES, V, files_of, make_dump, make_plan, make_rows, record

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
        make_dump(tmp_path / "dump", rows, dtype=dtype)
    assert not (tmp_path / "dump").exists()
    # A recorder finds out shard by shard, and keeps what is whole.
    plan = make_plan(dtype=dtype)
    work = DumpWriter(tmp_path / "recording", plan)
    work.write_shard(0, rows[:2])
    with pytest.raises(LogitsError):
        work.write_shard(1, rows[2:4])
    assert sorted(files_of(tmp_path / "recording")) == [
        "manifest.json",
        "shard-00000.safetensors",
        "shard-00000.sha256",
    ]


@pytest.mark.parametrize("spoilt", [(0, 2, V), (1, (2, 0), -np.inf), (2, (2, 0), np.nan)])
def test_a_refused_call_does_not_block_a_corrected_one(tmp_path, spoilt):
    which, place, value = spoilt
    rows = make_rows()
    rows[0][0][2] = 0
    kept = rows[0][which][place]
    rows[0][which][place] = value
    with pytest.raises(InputError):
        make_dump(tmp_path / "dump", rows)
    assert list(tmp_path.iterdir()) == []
    rows[0][which][place] = kept
    make_dump(tmp_path / "dump", rows[:-1]).close()  # another plan


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1.5},
        {"temperature": "1"},
        {"temperature": True},
        {"top_p": "0.5"},
        {"seed": 1.5},
        {"prompts_per_shard": 1.5},
        {"prompts": [3] * 5},
        {"prompts": [[1.5]] * 5},
        {"draft_to_target": [0.5] * V},
    ],
)
def test_settings_of_the_wrong_type_are_refused(tmp_path, options):
    with pytest.raises(InputError):
        make_dump(tmp_path / "dump", **options)
    assert list(tmp_path.iterdir()) == []


def test_ragged_logits_are_refused(tmp_path):
    with pytest.raises(InputError, match="prompt 0: target_logits is not an array"):
        write_dump(tmp_path / "dump", [[[0.0, 1.0], [0.0]]], [[[0.0, 1.0]] * 2], [[0, 1]])


def test_numpy_settings_are_taken():
    plan = make_plan(
        temperature=np.float32(1), top_k=np.int64(3), seed=np.int64(5), new_tokens=np.array([1] * 5)
    )
    assert plan == make_plan(temperature=1, top_k=3, new_tokens=np.int64(1))


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
