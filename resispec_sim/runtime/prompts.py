"""Prompts from JSON lines, text files, and the corpora that the field measures on."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..live_config import PROMPTS

PREFIX = "dataset:"
DATASETS_INSTALL = "pip install datasets"


@dataclass(frozen=True)
class Corpus:
    """Where the texts of a corpus are on the Hugging Face hub.

    Attributes
    ----------
    path, name : str, str or None
        Arguments of ``datasets.load_dataset``.
    split : str
        The part that is read, from its first entry on.
    field : str
        Field of an entry that holds the text.
    """

    path: str
    name: str | None
    split: str
    field: str


CORPORA = {
    "cnn_dailymail": Corpus("abisee/cnn_dailymail", "3.0.0", "test", "article"),
    "openwebtext": Corpus("Skylion007/openwebtext", None, "train", "text"),
    "c4": Corpus("allenai/c4", "en", "validation", "text"),
}


def read_prompts(source: str | Path, limit: int | None = None) -> list[str]:
    """Read prompts from a file or a corpus.

    Parameters
    ----------
    source : str or Path
        A file ``.jsonl``: one JSON object per line with the key ``prompt``, which may hold line breaks.
        Any other file: plain text, one prompt per line. Empty lines are skipped. Or
        ``dataset:cnn_dailymail`` (field ``article``), ``dataset:openwebtext`` (``text``) or
        ``dataset:c4`` (``text``): the first entries of the corpus in the hub's order, streamed, each
        cut to its first 4,000 characters. See `CORPORA`.
    limit : int, optional
        Prompts at most, from the first on. Default: all of a file, 200 of a corpus.

    Returns
    -------
    list of str

    Raises
    ------
    InputError
        If a file cannot be read, holds no prompt, or a line is not such an object; if there is no such
        corpus, or the library ``datasets`` or the network that it needs is missing.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}: ask for at least one prompt")
    if str(source).startswith(PREFIX):
        name = str(source).removeprefix(PREFIX)
        prompts = _read_corpus(name, PROMPTS.n_of_corpus if limit is None else limit)
    else:
        prompts = _read_file(Path(source))[:limit]
    if not prompts:
        raise InputError(f"{source} holds no prompts; write one per line")
    return prompts


def read_text(path: Path, what: str) -> str:
    """Read a UTF-8 file; `InputError` names it and calls it `what`."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the {what} cannot be read as UTF-8 text ({error})") from error


def _read_file(path: Path) -> list[str]:
    prompts = []
    for number, line in enumerate(read_text(path, "prompt file").splitlines(), start=1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            prompts.append(line)
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{path}, line {number}: not an object {{"prompt": "..."}}') from error
        if not isinstance(prompt, str):
            raise InputError(f"{path}, line {number}: the prompt is {prompt!r}, not a text")
        prompts.append(prompt)
    return prompts


def _read_corpus(name: str, limit: int) -> list[str]:
    if name not in CORPORA:
        raise InputError(f"there is no corpus {PREFIX}{name}; known: {', '.join(CORPORA)}")
    corpus = CORPORA[name]
    entries: list[Any]
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"{PREFIX}{name} needs the library datasets ({error}); install it with: {DATASETS_INSTALL}, "
            "or give a file of prompts"
        ) from error
    try:
        stream = datasets.load_dataset(corpus.path, corpus.name, split=corpus.split, streaming=True)
        entries = list(islice(stream, limit))
    # The library and the HTTP clients below it raise errors of many unrelated kinds.
    except Exception as error:
        raise InputError(
            f"{PREFIX}{name}: {corpus.path} cannot be read from the hub ({type(error).__name__}: "
            f"{error}); it needs the network (and HF_HUB_OFFLINE unset), or give a file of prompts"
        ) from error
    if len(entries) < limit:
        raise InputError(f"{PREFIX}{name} holds {len(entries)} texts, {limit} were asked for")
    texts = [entry[corpus.field] for entry in entries]
    return [text[: PROMPTS.max_characters] for text in texts]
