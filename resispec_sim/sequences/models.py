"""Pairs of a target and a draft whose next-token laws depend on the text so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ..checks import check_whole
from ..errors import InputError
from ..rules.base import to_array
from ..rules.block import as_rows

Text = tuple[int, ...]
Rows = Callable[[Text], Any]
"""Next-token probabilities (V,), of Fraction or of float, after a text."""


@dataclass(frozen=True, eq=False)
class SequenceModel:
    """A target and a draft over texts.

    Parameters
    ----------
    target, draft : callable
        Give the law of the next token, (V,), after a tuple of token ids.
    """

    target: Rows
    draft: Rows
    _rows: dict[Text, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def probs(self, text: Text) -> tuple[np.ndarray, np.ndarray]:
        """Target and draft after `text`, each (V,); not to be modified.

        Raises
        ------
        DistributionError
            If one of them is no distribution.
        InputError
            If they differ in length.
        """
        if text not in self._rows:
            rows = as_rows(f"after {text}", [self.target(text), self.draft(text)])
            if len(rows[0]) != len(rows[1]):
                raise InputError(
                    f"after {text}: {len(rows[0])} target, {len(rows[1])} draft tokens"
                )
            self._rows[text] = rows[0], rows[1]
        return self._rows[text]

    @property
    def vocab_size(self) -> int:
        """Tokens ``V``."""
        return len(self.probs(())[0])


def iid_model(target_probs: Sequence[Any], draft_probs: Sequence[Any]) -> SequenceModel:
    """The same target and draft after every text.

    Examples
    --------
    >>> iid_model([0.5, 0.5], [1, 0]).probs((1, 1))[1].tolist()
    [1.0, 0.0]
    """
    return SequenceModel(lambda text: target_probs, lambda text: draft_probs)


def markov_model(target_rows: Sequence[Any], draft_rows: Sequence[Any]) -> SequenceModel:
    """Rows that depend on the last token.

    Parameters
    ----------
    target_rows, draft_rows : (V + 1, V) of Fraction or of float
        Row ``x`` follows token ``x``; the last row starts a text.
    """
    return SequenceModel(
        lambda text: target_rows[text[-1] if text else -1],
        lambda text: draft_rows[text[-1] if text else -1],
    )


def history_model(vocab_size: int, seed: int, *, most: int = 6) -> SequenceModel:
    """Random rationals that depend on the whole text.

    Parameters
    ----------
    vocab_size : int
    seed : int
        The rows after a text depend on it and on the text only.
    most : int
        Weights are whole numbers from 0 to this, so zeros and ties occur.

    Examples
    --------
    >>> model = history_model(3, seed=1)
    >>> sum(model.probs((0, 2))[0]), model.probs((0, 2))[0] is model.probs((0, 2))[0]
    (Fraction(1, 1), True)
    """
    check_whole("vocab_size", vocab_size, at_least=1)

    def rows(which: int) -> Rows:
        def row(text: Text) -> np.ndarray:
            rng = np.random.default_rng([seed, which, len(text), *text])
            weights = rng.integers(0, most, size=vocab_size, endpoint=True).tolist()
            weights[int(rng.integers(vocab_size))] += 1
            return to_array([Fraction(weight, sum(weights)) for weight in weights])

        return row

    return SequenceModel(rows(0), rows(1))
