"""Prompts from files and from corpora; the library `datasets` is replaced by one that needs no network."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from resispec_sim.errors import InputError
from resispec_sim.live_config import PROMPTS
from resispec_sim.runtime.prompts import CORPORA, read_prompts


def fake_datasets(monkeypatch: pytest.MonkeyPatch, n_entries: int = 1000, error=None) -> list:
    calls = []

    def load_dataset(path, name, *, split, streaming):
        calls.append((path, name, split, streaming))
        if error is not None:
            raise error
        corpus = next(c for c in CORPORA.values() if c.path == path)
        for i in range(n_entries):
            calls.append(i)
            yield {corpus.field: f"{path} {i} " + "x" * 10_000, "other": "no"}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


@pytest.mark.parametrize("name", CORPORA)
def test_corpora_are_streamed_cut_and_in_order(name: str, monkeypatch) -> None:
    calls = fake_datasets(monkeypatch)
    prompts = read_prompts(f"dataset:{name}", 5)
    path = CORPORA[name].path
    assert calls[0] == (path, CORPORA[name].name, CORPORA[name].split, True)
    assert calls[1:] == list(range(5))  # no entry more than asked for is read
    assert [p.split(" x")[0] for p in prompts] == [f"{path} {i}" for i in range(5)]
    assert {len(p) for p in prompts} == {PROMPTS.max_characters}
    assert len(read_prompts(f"dataset:{name}")) == PROMPTS.n_of_corpus


def test_missing_library_network_or_texts_are_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        read_prompts("dataset:c4")
    fake_datasets(monkeypatch, error=ConnectionError("no route"))
    with pytest.raises(InputError, match=r"allenai/c4 cannot be read.*no route.*network"):
        read_prompts("dataset:c4")
    fake_datasets(monkeypatch, n_entries=3)
    with pytest.raises(InputError, match="holds 3 texts, 4 were asked for"):
        read_prompts("dataset:c4", 4)
    with pytest.raises(InputError, match="no corpus dataset:wikitext; known: cnn_dailymail"):
        read_prompts("dataset:wikitext")


def test_files_give_their_first_prompts(tmp_path: Path) -> None:
    texts = ["one", "two\nlines", "three "]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": t}) + "\n\n" for t in texts))
    assert read_prompts(tmp_path / "p.jsonl") == texts
    assert read_prompts(str(tmp_path / "p.jsonl"), 2) == texts[:2]
    (tmp_path / "p.txt").write_text("one\n\n two \n")
    assert read_prompts(tmp_path / "p.txt") == ["one", " two "]
    with pytest.raises(InputError, match="limit is 0"):
        read_prompts(tmp_path / "p.txt", 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"text": "b"}', "line 2: not an object"), ('{"prompt": 3}', "line 2: the prompt is 3")],
)
def test_lines_of_another_form_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read_prompts(tmp_path / "q.jsonl")
    (tmp_path / "e.txt").write_text("\n")
    with pytest.raises(InputError, match="no prompts"):
        read_prompts(tmp_path / "e.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
