"""Prose for the small pair: text files to documents, and the tokenizer trained on them."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .models import import_torch

END_OF_TEXT = "<|endoftext|>"
_CHAPTER = re.compile(r"^[ \t]*chapter\s+[ivxlc\d]+\.?[ \t]*$", re.IGNORECASE | re.MULTILINE)


def documents(text: str) -> list[str]:
    """Cut a book at its chapter headings and undo its hard line breaks.

    Parameters
    ----------
    text : str
        Paragraphs are separated by empty lines, and their lines may be wrapped.

    Returns
    -------
    list of str
        Non-empty documents, headings left out; one paragraph per line, without the line breaks inside.

    Examples
    --------
    >>> documents("EMMA\\n\\nChapter I\\n\\nShe was\\nhandsome.\\n\\nShe was rich.\\n")
    ['EMMA', 'She was handsome.\\nShe was rich.']
    """
    parts = []
    for part in _CHAPTER.split(text):
        paragraphs = (" ".join(p.split()) for p in re.split(r"\n[ \t]*\n", part))
        parts.append("\n".join(p for p in paragraphs if p))
    return [part for part in parts if part]


def split_held_out(books: Sequence[Sequence[str]], share: float) -> tuple[list[str], list[str]]:
    """Hold out the end of every book.

    Parameters
    ----------
    books : sequence of sequence of str
        Documents of each book.
    share : float
        Share of a book's characters that is held out, between 0 and 1. The document in which it
        begins is cut there, at the end of a paragraph or, if it has one only, at a space.

    Returns
    -------
    training, held_out : list of str

    Examples
    --------
    >>> split_held_out([["a b c d e", "f g"]], 0.5)
    (['a b c'], ['d e', 'f g'])
    """
    training: list[str] = []
    held_out: list[str] = []
    for book in books:
        left = round(sum(map(len, book)) * (1 - share))
        for document in book:
            if left <= 0:
                held_out.append(document)
            elif len(document) <= left:
                training.append(document)
            else:
                cut = max(document.rfind("\n", 0, left), 0) or document.rfind(" ", 0, left)
                if cut > 0:
                    training.append(document[:cut])
                held_out.append(document[cut + 1 :] if cut > 0 else document)
            left -= len(document)
    return training, held_out


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """Train a byte-level BPE with one special token, the end of a text.

    Parameters
    ----------
    texts : sequence of str
    vocab_size : int
        At least 257: every byte and the end of text.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        Encodes without adding tokens.

    Raises
    ------
    InputError
        If `vocab_size` is too small, or the texts do not hold enough different pairs for it.
    """
    _, transformers = import_torch()
    import tokenizers

    if vocab_size < 257:
        raise InputError(f"a byte-level vocabulary has at least 257 entries, got {vocab_size}")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    if bpe.get_vocab_size() != vocab_size:
        raise InputError(
            f"the texts give {bpe.get_vocab_size()} entries, not {vocab_size}: give more text"
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def token_ids(tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    """Token ids of documents in a row, each followed by the end of text.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerFast
        Made by `train_tokenizer`.
    texts : sequence of str

    Returns
    -------
    (n,) int64 array
    """
    end = tokenizer.eos_token_id
    # The warning about long texts is for those who feed them whole.
    rows = tokenizer(list(texts), verbose=False)["input_ids"]
    return np.array([i for row in rows for i in [*row, end]], dtype=np.int64)
