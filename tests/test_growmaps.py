"""Grow maps: what is a tree and what is not, the JSON form, Sequoia's files."""

import json
import pickle
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tree_helpers import SMALL, sequoia_data

from resispec_sim.errors import GrowMapError, InputError, ModelError
from resispec_sim.growmaps import MAX_LEVELS, MAX_NODES, GrowMap, parse_growmap
from resispec_sim.trees import CompleteTree


@st.composite
def trees(draw, largest=12):
    """A random tree in which parents need not come before their children."""
    n_nodes = draw(st.integers(1, largest))
    names = [0, *draw(st.permutations(range(1, n_nodes)))]
    children = [[] for _ in range(n_nodes)]
    for i in range(1, n_nodes):
        children[names[draw(st.integers(0, i - 1))]].append(names[i])
    return [sorted(of_node) for of_node in children]


@given(children=trees())
def test_a_tree_knows_its_nodes_levels_and_counts(children):
    tree = GrowMap(children)
    assert tree.n_nodes == len(children) == sum(map(len, tree.levels))
    assert tree.child_counts == tuple(map(len, children))
    assert sum(tree.child_counts) == tree.n_nodes - 1
    assert tree.depth == tree.n_levels + 1 == len(tree.branching) + 1
    for above, below in zip(tree.levels, tree.levels[1:], strict=False):
        assert sorted(below) == sorted(child for node in above for child in children[node])


@given(children=trees())
def test_json_round_trip_is_exact(children):
    tree = GrowMap(children)
    assert GrowMap.from_json(tree.to_json()) == tree
    assert GrowMap.from_json(tree.to_json()).to_json() == tree.to_json()
    assert json.loads(tree.to_json()) == {"schema_version": 1, "children": children}


@pytest.mark.parametrize("name", ["d2b1", "d5b3", "d7b2", "d4b5", "d3b11", "d6b1"])
def test_complete_trees(name):
    tree, shape = GrowMap.complete(name), parse_growmap(name)
    assert tree == shape and str(tree) == name
    depth, branching = (int(part) for part in name[1:].split("b"))
    assert [len(level) for level in tree.levels] == [branching**level for level in range(depth)]
    assert set(tree.child_counts) == {0, branching}
    assert tree.n_nodes == CompleteTree(depth, branching).n_nodes
    assert parse_growmap(CompleteTree(depth, branching)) == tree


def test_only_complete_trees_are_called_so():
    assert str(GrowMap(SMALL)) == "6 nodes on 3 levels"
    assert str(GrowMap([[1, 2], [], [3, 4], [], []])) == "5 nodes on 3 levels"
    assert str(GrowMap([[]])) == "1 node on 1 levels"


def test_a_complete_tree_too_large_to_list():
    with pytest.raises(InputError, match="nodes"):
        GrowMap.complete("d64b1024")


@pytest.mark.parametrize(
    "children, message",
    [
        ([], "0 nodes"),
        ([[1], [2]], "node 1 has the child 2"),
        ([[-1], []], "node 0 has the child -1"),
        ([[1], [0]], "node 1 has the child 0, which is the root"),
        ([[1, 1], []], "node 1 has two parents: 0 and 0"),
        ([[1, 2], [2], []], "node 2 has two parents: 0 and 1"),
        ([[2, 1], [], []], "node 0: 1 comes after 2"),
        ([[1], [], []], "node 2 of the grow map is an orphan"),
        ([[1], [], [3], [2]], "node 2 of the grow map cannot be reached .* cycle"),
        ([[1], [], [2]], "node 2 of the grow map cannot be reached"),
        ([[1.0], []], "node 0: a child is 1.0"),
        ([[True], []], "node 0: a child is True"),
        ([["1"], []], "node 0: a child is '1'"),
        ([1, []], "node 0: 1 is not a list"),
        ("ab", "children is 'ab'"),
        (None, "children is None"),
        ([[10**6000], []], "node 0 has the child an int of"),
        ([range(1, 10**9), []], "999,999,999 children"),
        ([range(1, 60_000)] * 60_000, "119,998 children"),
        ([[]] * 100_000, "100,000 nodes"),
        ([[i + 1] for i in range(1024)] + [[]], "1,025 levels.*at most 1,024"),
    ],
)
def test_no_tree(children, message):
    with pytest.raises(GrowMapError, match=message):
        GrowMap(children)


def test_the_callers_lists_are_not_kept():
    children = [[1], []]
    tree = GrowMap(children)
    children[1].append(7)
    assert tree.children == ((1,), ()) and hash(tree) == hash(GrowMap([[1], []]))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "JSON form"),
        ("[]", "JSON form"),
        ('{"children": [[]]}', "schema_version"),
        ('{"schema_version": 2, "children": [[]]}', "version 2"),
        ('{"schema_version": 1}', "children"),
        ('{"schema_version": 1, "children": [[]], "mask": []}', "mask"),
        ('{"schema_version": 1, "children": [[1.5], []]}', "child is 1.5: .* whole number"),
        ('{"schema_version": 1.0, "children": [[]]}', "version 1.0"),
        ('{"schema_version": true, "children": [[]]}', "version True"),
        (
            '{"schema_version": 1, "children": [[1], []], "children": [[]]}',
            "'children' occurs twice",
        ),
        ('{"schema_version": 2, "schema_version": 1, "children": [[]]}', "occurs twice"),
        ('{"schema_version": 1, "children": [[' + "9" * 5000 + "]]}", "JSON form"),
        ('{"schema_version": 1, "children": ' + "[" * 200_000 + "]" * 200_000 + "}", "too deeply"),
        ('{"schema_version": 1, "children": [' + "[" * 900 + "]" * 900 + "]}", r"child is \[\["),
        ('{"schema_version": 1, "children": [[1], [1]]}', "two parents"),
        (b"\xff\xfe", "JSON form"),
    ],
)
def test_bad_json(text, message, tmp_path):
    path = tmp_path / "map.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GrowMapError, match=message) as caught:
        parse_growmap(path)
    assert "map.json" in str(caught.value)


def test_parsing(tmp_path):
    tree = GrowMap(SMALL)
    (tmp_path / "map.json").write_text(tree.to_json())
    assert parse_growmap(str(tmp_path / "map.json")) == parse_growmap(tree) == tree
    with pytest.raises(GrowMapError, match="cannot be read"):
        parse_growmap(tmp_path / "none.json")
    with pytest.raises(InputError, match="oak.*ends in .json or .pt"):
        parse_growmap("oak")
    with pytest.raises(InputError, match="3"):
        parse_growmap(3)


@given(children=trees())
def test_sequoias_files_are_read(children, tmp_path_factory):
    path = tmp_path_factory.mktemp("maps") / "map.pt"
    data = sequoia_data(children)
    torch.save(data, path)
    assert parse_growmap(path) == GrowMap(children)
    # Variants: no step for the last level, tensors for lists, another type of mask.
    data |= {"roots": data["roots"][:-1], "branches": data["branches"][:-1]}
    data |= {"size": torch.tensor(len(children)), "mask": data["mask"].float() * 0.5}
    data |= {"Successors": [torch.tensor(c, dtype=torch.int32) for c in children]}
    torch.save(data | {"depth": data["depth"].tolist()}, path)
    assert parse_growmap(str(path)) == GrowMap(children)


def test_a_chain_prints_in_linear_time():
    """The longest chain, and the widest comb: what printing costs must not grow with depth times nodes."""
    chain = GrowMap([[i + 1] for i in range(1023)] + [[]])
    assert str(chain) == "d1024b1" and chain.depth == MAX_LEVELS
    comb = [[] for _ in range(MAX_NODES)]
    for i in range(1, MAX_NODES):
        comb[i - 65 if i > 65 else 0].append(i)
    tree = GrowMap(comb)
    start = time.process_time()
    assert str(tree) == "65536 nodes on 1010 levels"
    assert time.process_time() - start < 0.5


def flipped(row, column):
    mask = sequoia_data(SMALL)["mask"]
    mask[row, column] = 1 - mask[row, column]
    return mask


@pytest.mark.parametrize(
    "change, message",
    [
        ({"size": 7}, "size is 7, but Successors lists 6"),
        ({"size": 6.0}, "size holds 6.0"),
        ({"size": None}, "size holds None"),
        ({"depth": torch.tensor([0, 1, 1, 2, 2, 1])}, "depth of node 5 is 1, .* level 2"),
        ({"depth": torch.tensor([0, 1, 1])}, "depth does not hold one number for each of 6"),
        ({"depth": torch.tensor([0.0, 1, 1, 2, 2, 2])}, "depth holds 0.0"),
        ({"depth": 3}, "depth does not hold"),
        ({"roots": [[0], [2, 1], [3, 4, 5]]}, "roots is"),
        ({"roots": [[0]]}, "roots is"),
        ({"branches": [[2], [1, 1], [0, 0, 0]]}, "branches is"),
        ({"branches": [[2]]}, "branches is"),
        ({"Successors": [[1, 2], [3], [4], [], [], []]}, "node 5 .* orphan"),
        ({"Successors": [[2, 1], [3], [4, 5], [], [], []]}, "1 comes after 2"),
        ({"Successors": 5}, "Successors is not a list"),
        ({"Successors": [["1"], []]}, "Successors holds '1'"),
        ({"mask": flipped(3, 1)}, r"mask at \(3, 1\) is 0, but .* node 3 sees node 1"),
        ({"mask": flipped(3, 2)}, r"mask at \(3, 2\) is 1, .* node 3 does not see node 2"),
        ({"mask": torch.ones(6, 5)}, r"mask is \(6, 5\)"),
        ({"mask": [[1]]}, r"mask is \[\[1\]\]"),
        ({"positions": [0]}, "unknown key 'positions'"),
    ],
)
def test_sequoias_files_that_disagree_with_themselves(change, message, tmp_path):
    torch.save(sequoia_data(SMALL) | change, tmp_path / "map.pt")
    with pytest.raises(GrowMapError, match=message) as caught:
        parse_growmap(tmp_path / "map.pt")
    assert "map.pt" in str(caught.value)


@pytest.mark.parametrize("key", ["roots", "branches", "Successors", "mask", "depth", "size"])
def test_sequoias_files_that_lack_a_part(key, tmp_path):
    data = sequoia_data(SMALL)
    del data[key]
    torch.save(data, tmp_path / "map.pt")
    with pytest.raises(GrowMapError, match=f"lacks '{key}'"):
        parse_growmap(tmp_path / "map.pt")


@pytest.mark.parametrize("data", [[1, 2], torch.ones(2), None, "text"])
def test_files_of_torch_that_hold_no_dict(data, tmp_path):
    torch.save(data, tmp_path / "map.pt")
    with pytest.raises(GrowMapError, match="not the dict"):
        parse_growmap(tmp_path / "map.pt")


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize(
    "save", [torch.save, lambda data, path: path.write_bytes(pickle.dumps(data))]
)
def test_code_in_a_file_is_never_run(save, tmp_path):
    path, sprung = tmp_path / "map.pt", tmp_path / "sprung"
    save(sequoia_data(SMALL) | {"size": Trap(sprung)}, path)
    with pytest.raises(GrowMapError, match="map.pt: not a file of plain tensors and lists"):
        parse_growmap(path)
    assert not sprung.exists()
    # The trap itself works: only weights_only keeps it shut.
    pickle.loads(pickle.dumps(Trap(sprung))).close()
    assert sprung.exists()


@pytest.mark.parametrize("content", [b"", b"not torch", b"PK\x03\x04 cut short"])
def test_files_that_are_not_torchs(content, tmp_path):
    (tmp_path / "map.pt").write_bytes(content)
    with pytest.raises(GrowMapError, match="map.pt"):
        parse_growmap(tmp_path / "map.pt")


def test_a_missing_file(tmp_path):
    with pytest.raises(GrowMapError, match="none.pt: cannot be read"):
        parse_growmap(tmp_path / "none.pt")


def test_without_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"pip install .*torch.*JSON form"):
        parse_growmap(tmp_path / "map.pt")
