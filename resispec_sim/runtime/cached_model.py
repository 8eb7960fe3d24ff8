"""A model with its key-value cache, fed with masks and positions of our own, and compacted by entry.

Most mistakes here give wrong text without an error: a mask of another type is read as padding, a keyword
that the model does not know is swallowed, positions are counted on from the cache. So masks are 4-D and of
the type that the attention takes, positions are always given, and models that would ignore either are
refused.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, VocabularyError
from .early_exit import EarlyExit, norm_place
from .models import LoadedModel, attention_limit, cache_keyword, import_torch, on_device

BOOLEAN_MASKS = ("sdpa",)
ADDITIVE_MASKS = ("eager",)


class CachedModel:
    """A causal language model that scores any set of tokens against a cache of entries.

    Parameters
    ----------
    model : LoadedModel
    exit_draft : EarlyExit, optional
        Run the layers below the exit only, and read their state by its head.

    Attributes
    ----------
    n_entries : int
        Entries in the cache.
    window : int or None
        Tokens that the model has positions for, where it has a limit.

    Raises
    ------
    ModelError
        If the model cannot take a tree: no cache, no ``position_ids``, an attention that is not
        ``sdpa`` or ``eager``, or one that sees a sliding window only.
    """

    def __init__(self, model: LoadedModel, exit_draft: EarlyExit | None = None) -> None:
        torch, transformers = import_torch()
        check_takes_trees(model.model, model.source.identity)
        self.identity = model.source.identity
        self.device = model.device
        self.keyword = cache_keyword(model.model)
        self._torch = torch
        self._new_cache: Callable[[], Any] = transformers.DynamicCache
        self._boolean = _attention(model.model) in BOOLEAN_MASKS
        self._dtype = next(model.model.parameters()).dtype
        limit = getattr(model.model.config.get_text_config(), "max_position_embeddings", None)
        self.window: int | None = None if limit is None else int(limit)
        self.vocab_size = model.vocab_size
        embeddings = getattr(model.model, "get_input_embeddings", None)
        self._n_embedded = embeddings().weight.shape[0] if embeddings else self.vocab_size
        self._module, self._head = _split(model, exit_draft)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.cache = self._new_cache()
        self.n_entries = 0

    def feed(
        self, tokens: Sequence[int], positions: Sequence[int], mask: NDArray[np.bool_] | None = None
    ) -> Any:
        """Append entries for the tokens, and return their states.

        Parameters
        ----------
        tokens : sequence of int
            M tokens.
        positions : sequence of int
            (M,) positions in the text, the first token's being 0.
        mask : ndarray of bool, shape (M, n_entries + M), optional
            What each of them attends to. Without it the tokens follow each other.

        Returns
        -------
        tensor, shape (M, d)
            What `logits` turns into logits, row by row.
        """
        torch = self._torch
        n_new = len(tokens)
        if max(tokens, default=0) >= self._n_embedded:
            raise VocabularyError(
                f"{self.identity} knows tokens up to {self._n_embedded - 1}, but the text holds token "
                f"{max(tokens)}: one of the other model's padding; take a pair with embeddings for the same "
                "tokens"
            )
        if mask is None:
            mask = np.ones((n_new, self.n_entries + n_new), dtype=bool)
            mask[:, self.n_entries :] = np.tril(mask[:, self.n_entries :])
        if mask.shape != (n_new, self.n_entries + n_new) or len(positions) != n_new:
            raise ModelError(
                f"{self.identity}: {n_new} tokens on {self.n_entries} entries of the cache need a mask of "
                f"{n_new} x {self.n_entries + n_new}, not {mask.shape[0]} x {mask.shape[1]}, and a "
                "position each"
            )
        attended = on_device(mask, self.device)[None, None]
        if not self._boolean:
            lowest = torch.finfo(self._dtype).min
            attended = torch.zeros(
                attended.shape, dtype=self._dtype, device=self.device
            ).masked_fill(~attended, lowest)
        with torch.inference_mode():
            output = self._module(
                input_ids=on_device([list(tokens)], self.device),
                position_ids=on_device([list(positions)], self.device),
                attention_mask=attended,
                use_cache=True,
                **{self.keyword: self.cache},
            )
        self.n_entries += n_new
        if self.cache.get_seq_length() != self.n_entries:
            raise ModelError(
                f"{self.identity}: its cache holds {self.cache.get_seq_length()} entries after "
                f"{self.n_entries} tokens; only full-attention caches that grow by a token each can be used"
            )
        return output[0][0]

    def logits(self, states: Any) -> Any:
        """Logits (..., V) of states (..., d) that `feed` returned."""
        with self._torch.inference_mode():
            return self._head(states)

    def keep(self, n_prefix: int, entries: Sequence[int] = ()) -> None:
        """Keep the first entries, and of those behind them the named ones, in this order.

        Parameters
        ----------
        n_prefix : int
            Entries that stay where they are.
        entries : sequence of int
            Ascending numbers of further entries.
        """
        stop = n_prefix + len(entries)
        if stop == self.n_entries:
            return
        torch = self._torch
        with torch.inference_mode():
            index = torch.tensor(list(entries), dtype=torch.int64)
            for layer in self.cache.layers:
                for name in ("keys", "values"):
                    held = getattr(layer, name)
                    if len(entries):
                        if index.device != held.device:
                            index = on_device(index, held.device)
                        # Selected first: rows may move onto others that are still to be read.
                        held[:, :, n_prefix:stop] = held.index_select(2, index)
                    setattr(layer, name, held[:, :, :stop])
        self.n_entries = stop


def check_takes_trees(model: Any, identity: str) -> None:
    """Refuse a model that would misread a tree's mask or positions (`ModelError`)."""
    names = inspect.signature(model.forward).parameters
    if "position_ids" not in names:
        raise ModelError(
            f"{identity}: {type(model).__name__} takes no position_ids, so siblings cannot share a position; "
            "decode without a tree"
        )
    attention = _attention(model)
    if attention not in BOOLEAN_MASKS + ADDITIVE_MASKS:
        raise ModelError(
            f"{identity}: attention {attention!r} does not take a tree's mask; load the model with "
            f"attn_implementation={BOOLEAN_MASKS[0]!r}"
        )
    limit = attention_limit(model)
    if limit:
        raise ModelError(
            f"{identity}: {type(model).__name__} has layers that do not attend to the whole text ({limit}); "
            "a tree's mask would switch that off without an error, so such models cannot be decoded with "
            "trees"
        )
    cache_keyword(model)


def _attention(model: Any) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


def _split(model: LoadedModel, exit_draft: EarlyExit | None) -> tuple[Any, Callable[[Any], Any]]:
    """The part that is run for every token, and the part that is read for some of them."""
    torch, _ = import_torch()
    causal = model.model
    if exit_draft is not None:
        return _first_layers(causal, exit_draft.layer), exit_draft.logits
    base, head = causal.base_model, causal.get_output_embeddings()
    probe = torch.tensor([[0, 1]], device=model.device)
    with torch.inference_mode():
        state = base(input_ids=probe, use_cache=False)[0]
        whole = causal(input_ids=probe, use_cache=False).logits
        same = state.shape[-1] == head.weight.shape[1] and torch.equal(
            # a model on several GPUs has its head on the last, and hands its logits back to the first
            head(state).to(whole.device),
            whole,
        )
    if same:
        return base, head
    # Scaled or capped logits: all rows are computed, and read as they are.
    return _LogitsOnly(causal), lambda logits: logits


class _LogitsOnly:
    """A model whose states are its logits."""

    def __init__(self, causal: Any) -> None:
        self._causal = causal

    def __call__(self, **inputs: Any) -> tuple[Any]:
        return (self._causal(**inputs).logits,)


def _first_layers(causal: Any, n_layers: int) -> Any:
    """The base model without the layers from `n_layers` on and without its final norm; shares weights."""
    torch, _ = import_torch()
    owner, norm = norm_place(causal)
    total = int(causal.config.get_text_config().num_hidden_layers)
    for name, child in owner.named_children():
        if isinstance(child, torch.nn.ModuleList) and len(child) == total:
            layers = name
            break
    else:
        raise ModelError(
            f"{type(causal).__name__}: no list of {total} layers found; use another draft"
        )
    shorter = _shallow(owner)
    shorter._modules[layers] = torch.nn.ModuleList(list(getattr(owner, layers))[:n_layers])
    shorter._modules[norm] = torch.nn.Identity()
    # transformers reads the number of layers from the configuration.
    shorter.config = copy.copy(owner.config)
    shorter.config.num_hidden_layers = n_layers
    base = causal.base_model
    if owner is base:
        return shorter
    whole = _shallow(base)
    whole._modules["decoder"] = shorter
    return whole


def _shallow(module: Any) -> Any:
    """A module of its own that shares parameters and children."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
