"""Files of recorded trees: packing is lossless, survives a crash, and damage is named."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tree_dump_helpers import PARENTS, random_tree, write_manifest, write_tree, write_trees

from resispec_sim import TreeDump, tree_files
from resispec_sim.errors import DumpError, ManifestError, ShardError
from resispec_sim.tree_files import list_steps, pack_text, remove_text


def contents(folder):
    return {(s.text, s.step): s.read_bytes() for s in TreeDump(folder).sources}


def files(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    write_trees(tmp_path / "trees")
    return tmp_path / "trees"


def test_packing_keeps_every_byte(folder, tmp_path):
    before = contents(folder)
    steps = list(TreeDump(folder))
    file = pack_text(folder, 1)
    assert file.name == "text-00001.zip" and file.name in files(folder)
    assert not any(name.startswith("text-00001-step") for name in files(folder))
    assert sum(name.startswith("text-00000-step") for name in files(folder)) == 4
    assert contents(folder) == before and list(before) == sorted(before)
    for old, new in zip(steps, TreeDump(folder), strict=True):
        assert (old.text, old.step, old.cut) == (new.text, new.step, new.cut)
        assert np.array_equal(old.target_logits, new.target_logits)
    once = file.read_bytes()
    pack_text(folder, 1)
    assert file.read_bytes() == once
    write_trees(tmp_path / "same")
    assert pack_text(tmp_path / "same", 1).read_bytes() == once


def test_a_crash_while_packing_loses_nothing(folder, monkeypatch):
    before = contents(folder)

    def fail(*_args):
        raise OSError("power cut")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="power cut"):
        patch.setattr("os.replace", fail)
        pack_text(folder, 0)
    assert contents(folder) == before and not any(
        n.endswith((".zip", ".tmp")) for n in files(folder)
    )

    removed = []

    def remove_two(path, **_options):
        if len(removed) == 2:
            raise OSError("power cut")
        removed.append(path.name)
        path.rename(path.with_suffix(".gone"))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="power cut"):
        patch.setattr(Path, "unlink", remove_two)
        pack_text(folder, 0)
    assert contents(folder) == before and len(TreeDump(folder)) == len(before)
    assert sorted(removed) == [f"text-00000-step-0000{i}.safetensors" for i in (2, 3)]
    pack_text(folder, 0)
    assert contents(folder) == before
    assert not any(
        name.startswith("text-00000-step") and "gone" not in name for name in files(folder)
    )


def test_a_damaged_step_is_not_packed_away(folder):
    file = folder / "text-00000-step-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    here = files(folder)
    with pytest.raises(ShardError, match=file.name):
        pack_text(folder, 0)
    assert files(folder) == here
    pack_text(folder, 1)  # what is wrong with another text is no matter
    with pytest.raises(DumpError, match="no step of text 7"):
        pack_text(folder, 7)


def test_damage_to_a_pack_is_named(folder):
    before = contents(folder)
    file = pack_text(folder, 0)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for length in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ShardError, match=file.name):
            list(TreeDump(folder))
    n_named = 0
    for place in rng.integers(len(whole), size=300):
        file.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << rng.integers(8)]) + whole[place + 1 :]
        )
        try:
            # a date or a flag that nobody reads may change; a step may not
            list(TreeDump(folder))
            assert contents(folder) == before
        except ShardError as error:
            assert "text-00000" in str(error)
            n_named += 1
    assert n_named > 200


@pytest.mark.parametrize("field, value", [("temperature", 0.5), ("rule", "k-seq"), ("top_k", 3)])
def test_a_manifest_that_was_altered_is_refused(folder, field, value):
    file = folder / "manifest.json"
    stored = json.loads(file.read_text())
    assert stored[field] != value
    file.write_text(json.dumps(stored | {field: value}))
    with pytest.raises(ManifestError, match="was altered"):
        TreeDump(folder)


def test_a_pack_without_steps_is_named(folder):
    with zipfile.ZipFile(pack_text(folder, 0), "w"):
        pass
    with pytest.raises(ShardError, match="text-00000.zip: holds no step"):
        TreeDump(folder)


def test_a_step_that_is_missing_is_named(folder):
    (folder / "text-00001-step-00001.safetensors").unlink()
    with pytest.raises(ShardError, match="step 1 of text 1 is missing"):
        TreeDump(folder)
    assert len(list_steps(folder, 0)) == 4
    remove_text(folder, 1)
    assert len(TreeDump(folder)) == 8


def test_a_step_under_another_name_is_refused(folder):
    (folder / "text-00000-step-00000.safetensors").replace(
        folder / "text-00001-step-00000.safetensors"
    )
    with pytest.raises(ShardError, match="text-00001-step-00000.*holds text 0, step 0"):
        list(tree_files.load_step(source) for source in list_steps(folder, 1))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"prefix": np.array([3, 1])}, "the root is token 0"),
        ({"path": np.array([3])}, "no way down"),
        ({"path": np.array([1, 5])}, "no way down"),
        ({"path": np.array([1]), "emitted": np.array([9, 0])}, "not those accepted"),
        ({"parents": np.array([-1, 0, 0, 1, 1, 2, 7])}, "no tree"),
        ({"inner": np.array([0, 1, 3])}, "nodes with children"),
        ({"tokens": np.array([0, 1, 2, 3, 9, 1, 1])}, "tokens are not all tokens"),
        ({"tokens": np.array([0, 1, 2, 3, -2, 1, 1])}, "tokens are not all tokens"),
        ({"emitted": np.array([1, 9])}, "emitted are not all tokens"),
        ({"emitted": np.array([1, 2])}, "2 tokens emitted after 0 accepted"),
        ({"end_tokens": np.array([0.5])}, "end_tokens is no list"),
        ({"emitted": np.zeros(0, np.int64)}, "0 tokens emitted after 0 accepted"),
        ({"parents": np.array(PARENTS, float)}, "parents is no list"),
    ],
)
def test_what_is_no_step_is_refused(tmp_path, changes, words):
    write_manifest(tmp_path)
    tree = random_tree(np.random.default_rng(0), "iid")
    write_tree(tmp_path, 0, 0, tree, **changes)
    with pytest.raises(ShardError, match=f"text-00000-step-00000.*{words}"):
        list(TreeDump(tmp_path))


def test_texts_are_numbered_as_far_as_seeds_go(tmp_path):
    write_manifest(tmp_path)
    rng = np.random.default_rng(0)
    for text in (123_456, 99_999, 2_000_000):
        write_tree(tmp_path, text, 0, random_tree(rng, "iid"))
    pack_text(tmp_path, 2_000_000)
    assert [step.text for step in TreeDump(tmp_path)] == [99_999, 123_456, 2_000_000]
    assert TreeDump(tmp_path).n_steps_by_text == {99_999: 1, 123_456: 1, 2_000_000: 1}
    remove_text(tmp_path, 123_456)
    remove_text(tmp_path, 2_000_000)
    assert [step.text for step in TreeDump(tmp_path)] == [99_999]
