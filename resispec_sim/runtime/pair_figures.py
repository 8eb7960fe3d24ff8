"""What is stated of a trained pair: perplexities and agreement on held-out text."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from .models import import_torch

Range = tuple[float, float]


@dataclass(frozen=True)
class HeldOutFigures:
    """Figures of a pair along text that neither model was trained on.

    Attributes
    ----------
    target_perplexity, draft_perplexity : float
        Exponential of the mean cross-entropy per token.
    overlap : float
        Mean over positions of ``sum min(p, q)`` at temperature 1, between 0 and 1.
    target_perplexity_range, draft_perplexity_range, overlap_range : (float, float)
        Least and largest of the same figures over the single windows.
    n_windows, window : int
        Windows of text, and tokens that are predicted in each.
    """

    target_perplexity: float
    draft_perplexity: float
    overlap: float
    target_perplexity_range: Range
    draft_perplexity_range: Range
    overlap_range: Range
    n_windows: int
    window: int


def measure_pair(target: Any, draft: Any, ids: np.ndarray, window: int) -> HeldOutFigures:
    """Perplexities of two models and their mean overlap.

    Parameters
    ----------
    target, draft : transformers model
        In evaluation mode, with logits of one width.
    ids : (n,) int64 array
        Token ids of the text. It is cut into windows, which share their boundary token; what is left
        at the end does not count.
    window : int
        Tokens that are predicted per window.

    Returns
    -------
    HeldOutFigures

    Raises
    ------
    InputError
        If the text does not fill one window.
    """
    torch, _ = import_torch()
    n_windows = (len(ids) - 1) // window
    if n_windows < 1:
        raise InputError(f"{len(ids)} tokens do not fill one window of {window}; give more text")
    rows = []
    with torch.inference_mode():
        for start in range(0, n_windows * window, window):
            block = torch.from_numpy(ids[start : start + window + 1])[None]
            log_p, log_q = (
                model(input_ids=block[:, :-1], use_cache=False).logits[0].float().log_softmax(-1)
                for model in (target, draft)
            )
            following = block[0, 1:, None]
            p_loss, q_loss = (-log.gather(1, following).mean() for log in (log_p, log_q))
            shared = torch.minimum(log_p.exp(), log_q.exp()).sum(-1).mean()
            rows.append([float(x) for x in (p_loss, q_loss, shared)])
    low, mean, high = (reduce(rows, axis=0).tolist() for reduce in (np.min, np.mean, np.max))
    return HeldOutFigures(
        target_perplexity=math.exp(mean[0]),
        draft_perplexity=math.exp(mean[1]),
        overlap=mean[2],
        target_perplexity_range=(math.exp(low[0]), math.exp(high[0])),
        draft_perplexity_range=(math.exp(low[1]), math.exp(high[1])),
        overlap_range=(low[2], high[2]),
        n_windows=n_windows,
        window=window,
    )
