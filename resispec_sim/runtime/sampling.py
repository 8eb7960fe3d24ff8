"""Batched sampling from the target with its key-value cache, and the draft's logits on the same tokens.

Prompts are padded on the left. A prompt's random stream depends on the seed and the prompt's index
alone, and a token is drawn from the very row that is stored, so a dump explains its own tokens.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dumps.schema import StorageDtype
from ..dumps.storage import decode_rows, encode_rows
from ..errors import VocabularyError
from ..probs import logits_to_probs
from .early_exit import EarlyExit
from .models import LoadedModel, cache_keyword, import_torch


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn and how the rows they are drawn from are stored."""

    new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int
    dtype: StorageDtype


@dataclass(frozen=True)
class BatchRows:
    """One recorded batch, B prompts of L positions.

    Attributes
    ----------
    token_ids : ndarray of int64, shape (B, L)
    target_logits : ndarray of float32, shape (B, L, V_target)
        Row (b, j) predicts ``token_ids[b, j]``.
    draft_logits : ndarray of float32, shape (B, L, V_draft)
    """

    token_ids: NDArray[np.int64]
    target_logits: NDArray[np.float32]
    draft_logits: NDArray[np.float32]


def prompt_uniforms(seed: int, prompt_idx: int, n: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) of one prompt, shape (n,); independent of every other prompt.

    Examples
    --------
    >>> bool((prompt_uniforms(0, 3, 8)[:4] == prompt_uniforms(0, 3, 4)).all())
    True
    """
    return np.random.Generator(np.random.PCG64([seed, prompt_idx])).random(n)


def draw_token(probs: NDArray[np.float64], uniform: float) -> int:
    """Token at which the cumulative distribution (V,) first exceeds `uniform` in [0, 1).

    A token of probability 0 is never drawn.

    Examples
    --------
    >>> [draw_token(np.array([0.0, 0.25, 0.75, 0.0]), u) for u in (0.0, 0.25, 0.999)]
    [1, 2, 2]
    """
    cumulative = np.cumsum(probs)
    # Strictly above: a coin of exactly 0 must not select a leading token of probability 0.
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probs)[-1]))


def pad_left(sequences: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and attention mask, both (B, longest); padded places hold token 0 and mask 0."""
    width = max(len(ids) for ids in sequences)
    token_ids = np.zeros((len(sequences), width), dtype=np.int64)
    mask = np.zeros_like(token_ids)
    for row, ids in enumerate(sequences):
        token_ids[row, width - len(ids) :] = ids
        mask[row, width - len(ids) :] = 1
    return token_ids, mask


def record_batch(
    target: LoadedModel,
    draft: LoadedModel | EarlyExit,
    prompt_ids: Sequence[Sequence[int]],
    prompt_idxs: Sequence[int],
    settings: SamplingSettings,
    advance: Callable[[], None] = lambda: None,
) -> BatchRows:
    """Sample `settings.new_tokens` tokens per prompt and record both models' logits.

    Parameters
    ----------
    target : LoadedModel
    draft : LoadedModel or EarlyExit
        A second model sees the target's tokens; an early exit reads the target's own pass.
    prompt_ids : sequence of sequences of int
        Token ids of the B prompts of the batch.
    prompt_idxs : sequence of int
        Their indices in the dump, which select the random streams.
    settings : SamplingSettings
    advance : callable
        Called once for every recorded position.

    Returns
    -------
    BatchRows
        Sampling goes on past an end-of-text token, so every prompt has the same number of rows.

    Raises
    ------
    LogitsError
        If the target gives NaN or infinite logits.
    VocabularyError
        If a token was drawn that a second model has no row for.
    """
    torch, _ = import_torch()
    n_prompts, n_new = len(prompt_ids), settings.new_tokens
    uniforms = np.stack([prompt_uniforms(settings.seed, i, n_new) for i in prompt_idxs])
    token_ids = np.empty((n_prompts, n_new), dtype=np.int64)
    target_rows: list[NDArray[np.float32]] = []
    draft_rows: list[NDArray[np.float32]] = []
    exit_layer = draft.layer if isinstance(draft, EarlyExit) else None
    step = _Stepper(target, prompt_ids, exit_layer)
    ids, _ = pad_left(prompt_ids)
    with torch.inference_mode():
        for j in range(n_new):
            logits, hidden = step(ids)
            target_rows.append(_to_numpy(logits))
            if isinstance(draft, EarlyExit):
                draft_rows.append(_to_numpy(draft.logits(hidden)))
            where = f"position {j} of prompts {list(prompt_idxs)}, target logits"
            stored = encode_rows(target_rows[-1], settings.dtype, where)
            for b, row in enumerate(decode_rows(stored, settings.dtype)):
                probs = logits_to_probs(
                    row,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    top_p=settings.top_p,
                )
                token_ids[b, j] = draw_token(probs, uniforms[b, j])
                advance()
            ids = token_ids[:, j : j + 1]
        if isinstance(draft, EarlyExit):
            draft_logits = np.stack(draft_rows, axis=1)
        else:
            draft_logits = teacher_forced(draft, prompt_ids, token_ids)
    return BatchRows(token_ids, np.stack(target_rows, axis=1), draft_logits)


def teacher_forced(
    model: LoadedModel, prompt_ids: Sequence[Sequence[int]], token_ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Logits (B, L, V) of `model` that predict each of `token_ids` (B, L) after the prompts.

    One forward pass: the rows are those that step-by-step decoding gives.

    Raises
    ------
    VocabularyError
        If the model has no embedding for one of the tokens.
    """
    torch, _ = import_torch()
    sequences = [
        [*prompt, *tokens[:-1]] for prompt, tokens in zip(prompt_ids, token_ids, strict=True)
    ]
    n_embeddings = int(model.model.get_input_embeddings().weight.shape[0])
    largest = max(max(ids) for ids in sequences)
    if largest >= n_embeddings:
        raise VocabularyError(
            f"token {largest} has no embedding in {model.source.identity}, which has {n_embeddings}: "
            "the target drew a token of its padding"
        )
    ids, mask = pad_left(sequences)
    with torch.inference_mode():
        # The first row is the prompt's last token, the last row the last token but one.
        output = model.model(
            **_inputs(model, ids, mask, _positions(mask)),
            **_keep(model, token_ids.shape[1]),
            use_cache=False,
        )
        return _to_numpy(output.logits[:, -token_ids.shape[1] :])


class _Stepper:
    """Feeds token columns to a model that keeps a cache, and returns the last row's logits."""

    def __init__(
        self, model: LoadedModel, prompt_ids: Sequence[Sequence[int]], exit_layer: int | None
    ) -> None:
        self.model = model
        self.exit_layer = exit_layer
        self.keyword = cache_keyword(model.model)
        self.cache: Any = None
        self.mask = pad_left(prompt_ids)[1]
        self.positions = _positions(self.mask)

    def __call__(self, ids: NDArray[np.int64]) -> tuple[Any, Any]:
        if self.cache is not None:
            self.mask = np.pad(self.mask, ((0, 0), (0, 1)), constant_values=1)
            self.positions = self.positions[:, -1:] + 1
        output = self.model.model(
            **_inputs(self.model, ids, self.mask, self.positions),
            **_keep(self.model, 1),
            **{self.keyword: self.cache},
            use_cache=True,
            output_hidden_states=self.exit_layer is not None,
        )
        self.cache = output[self.keyword]
        hidden = None
        if self.exit_layer is not None:
            hidden = output.hidden_states[self.exit_layer][:, -1]
        return output.logits[:, -1], hidden


def _positions(mask: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(mask.cumsum(axis=1) - 1, 0)


def _inputs(
    model: LoadedModel,
    ids: NDArray[np.int64],
    mask: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> dict[str, Any]:
    torch, _ = import_torch()
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    # Models without position_ids (ALiBi) derive positions from the mask.
    names = inspect.signature(model.model.forward).parameters
    return {
        name: torch.tensor(array, device=model.device)
        for name, array in inputs.items()
        if name in names
    }


def _keep(model: LoadedModel, n_rows: int) -> dict[str, int]:
    """Ask for the last rows only where the model can, since a prompt's rows are V wide each."""
    names = inspect.signature(model.model.forward).parameters
    return {"logits_to_keep": n_rows} if "logits_to_keep" in names else {}


def _to_numpy(logits: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = logits.float().cpu().numpy()
    return array
