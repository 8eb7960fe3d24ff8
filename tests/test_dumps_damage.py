"""Dumps: damage to a shard or a manifest is named."""

import hashlib
import math

import numpy as np
import pytest

from resispec_sim.dumps import open_dump, reader
from resispec_sim.dumps.storage import shard_header
from resispec_sim.errors import LogitsError, ManifestError, ShardError
from tests.dump_helpers import DTYPES, LENGTHS, V, break_file, edit_manifest, make_dump

# Shards.


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
    edit_manifest(folder, lambda m: m["shards"][shard_idx].update(sha256=digest), signed=True)


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7),
        ("top_k", 5),
        ("top_p", 0.5),
        ("seed", 9),
        ("tokenizer", "another"),
        ("target", {"name": "another"}),
        ("sha256", ""),
        ("sha256", "0" * 64),
    ],
)
def test_an_edited_manifest_is_refused(tmp_path, field, value):
    make_dump(tmp_path)
    with open_dump(tmp_path) as dump:
        assert dump.n_positions == sum(LENGTHS)
    edit_manifest(tmp_path, lambda data: data.update({field: value}))
    with pytest.raises(ManifestError, match=r"manifest.json: was altered"):
        open_dump(tmp_path)


def test_a_manifest_without_a_checksum_is_refused(tmp_path):
    make_dump(tmp_path)
    edit_manifest(tmp_path, lambda data: data.pop("sha256"))
    with pytest.raises(ManifestError, match=r"manifest.json: was altered"):
        open_dump(tmp_path)
