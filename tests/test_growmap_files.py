"""Files that claim to be grow maps and are none: refused by name, at once and without the memory."""

import json
import os
import time
import tracemalloc
import warnings
import zipfile

import pytest
import torch
from tree_helpers import SMALL, sequoia_data

from resispec_sim.errors import GrowMapError, InputError
from resispec_sim.growmaps import MAX_NODES, GrowMap, parse_growmap


def peak_of(function):
    """Peak of Python's allocations in MiB, and CPU seconds."""
    tracemalloc.start()
    start = time.process_time()
    try:
        function()
        return tracemalloc.get_traced_memory()[1] / 2**20, time.process_time() - start
    finally:
        tracemalloc.stop()


def test_the_largest_json_form_may_be_indented(tmp_path):
    tree = GrowMap([range(1, MAX_NODES), *[[]] * (MAX_NODES - 1)])
    indented = json.dumps(json.loads(tree.to_json()), indent=4)
    (tmp_path / "map.json").write_text(indented)
    assert parse_growmap(tmp_path / "map.json") == tree


@pytest.mark.parametrize(
    "piece, count", [("[],", 5_000_000), ("[],", 600_000), ("[1],", 400_000), ("{},", 600_000)]
)
def test_long_json_is_refused_at_once(piece, count, tmp_path):
    text = '{"schema_version":1,"children":[' + piece * count + "[]]}"
    (tmp_path / "map.json").write_text(text)

    def refuse():
        with pytest.raises(GrowMapError, match=r"map.json: .*(bytes|nodes)"):
            parse_growmap(tmp_path / "map.json")

    # 3 times the seconds that a core takes: the machine may be busy
    start = time.process_time()
    refuse()
    assert time.process_time() - start < 3
    with pytest.raises(GrowMapError, match="bytes|nodes"):
        GrowMap.from_json(text)


@pytest.mark.parametrize("name", ["a\0b.json", "a\0b.pt", "a\0b", "x" * 5000 + ".json"])
def test_paths_that_cannot_be(name):
    with pytest.raises(InputError):
        parse_growmap(name)


@pytest.mark.parametrize("name", ["map.json", "map.pt"])
def test_what_is_not_a_file_is_not_opened(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(GrowMapError, match="not a file"):
        parse_growmap(tmp_path / name)


def odd_tensors(values):
    """One of every kind of tensor that is not plain numbers in memory, made when a test runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about layouts in beta
        kinds = {
            "sparse_coo": values.to_sparse(),
            "meta": values.to("meta"),
            "quantised": torch.quantize_per_tensor(values.float(), 1.0, 0, torch.qint8),
            "complex64": values.to(torch.complex64),
            "float8_e4m3fn": values.to(torch.float8_e4m3fn),
            "uint16": values.to(torch.uint16),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "expanded": torch.ones(1, dtype=torch.long).expand(values.shape),
        }
        if values.ndim == 2:
            kinds["sparse_csr"] = values.to_sparse_csr()
            kinds["sparse_csc"] = values.to_sparse_csc()
        return kinds


@pytest.mark.parametrize("key", ["mask", "depth"])
def test_tensors_of_other_kinds(key, tmp_path):
    data = sequoia_data(SMALL)
    for kind, tensor in odd_tensors(data[key]).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(data | {key: tensor}, tmp_path / "map.pt")
        with pytest.raises(GrowMapError, match=f"map.pt: {key} is .*{kind}"):
            parse_growmap(tmp_path / "map.pt")


LONG = list(range(1, 2000))


@pytest.mark.parametrize(
    "change",
    [
        {"depth": torch.zeros(1).long().expand(2**24)},
        {"depth": torch.zeros(2**20).long()},
        {"Successors": torch.zeros(1).long().expand(2**20, 2)},
        {"Successors": [torch.zeros(1).long().expand(2**24)]},
        {"Successors": [LONG] * 2000},
        {"roots": [[LONG] * 2000] * 2000},
        {"size": LONG},
        {"size": [[[[[[[[[[1]]]]]]]]]]},
        {"x" * 10**5: 0},
        {"mask": torch.zeros(1).expand(2**16, 2**16)},
        {"mask": torch.zeros(2**22).long()},
    ],
)
def test_files_that_unfold_are_refused_at_once(change, tmp_path):
    torch.save(sequoia_data(SMALL) | change, tmp_path / "map.pt")

    def refuse():
        with pytest.raises(GrowMapError, match="map.pt") as caught:
            parse_growmap(tmp_path / "map.pt")
        assert len(str(caught.value)) < 300 + len(str(tmp_path))

    mib, seconds = peak_of(refuse)
    assert mib < 100 and seconds < 3


@pytest.mark.parametrize(
    "entry, content, message",
    [
        ("/data/0", bytes(1 << 27), "unpacks to 134,"),
        ("/data.pkl", b"\x80\x02(" + b"]" * (1 << 20) + b"t.", "data.pkl' has 1,048,581 bytes"),
    ],
)
def test_archives_that_unfold_are_not_unpacked(entry, content, message, tmp_path):
    torch.save(sequoia_data(SMALL), tmp_path / "good.pt")
    packed = zipfile.ZipFile(tmp_path / "map.pt", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "good.pt") as source, packed:
        for name in source.namelist():
            packed.writestr(name, content if name.endswith(entry) else source.read(name))
    assert (tmp_path / "map.pt").stat().st_size < 1 << 18
    with pytest.raises(GrowMapError, match=message):
        parse_growmap(tmp_path / "map.pt")


def test_the_older_format_is_read_while_it_is_small(tmp_path):
    path, data = tmp_path / "map.pt", sequoia_data(SMALL)
    torch.save(data, path, _use_new_zipfile_serialization=False)
    assert parse_growmap(path) == GrowMap(SMALL)
    torch.save(
        data | {"depth": torch.zeros(2**16).long()}, path, _use_new_zipfile_serialization=False
    )
    with pytest.raises(GrowMapError, match="write it again with torch.save"):
        parse_growmap(path)


def test_files_beyond_the_largest(tmp_path):
    for name in ("map.pt", "map.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 36)  # no block of it is written
        with pytest.raises(GrowMapError, match="68,719,476,736 bytes"):
            parse_growmap(tmp_path / name)
