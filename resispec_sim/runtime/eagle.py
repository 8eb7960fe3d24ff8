"""An EAGLE head: one decoder layer that continues the target's own features.

Entry k of the head reads token k and the target's feature of token k - 1 (its final hidden state, which
the output embedding reads), and predicts the feature of token k, hence the distribution of token k + 1.
Source: Li et al., *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, ICML 2024. Here
the layer is followed by a final norm, both started from the target's, so that features have their scale.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelError, VocabularyError
from ..files import write_whole
from .models import LoadedModel, cache_keyword, import_torch
from .models import tokenizer_fingerprint as fingerprint_of
from .one_layer import model_width, one_layer_body

FORMAT = "resispec-eagle"
VERSION = 1
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"


def parse_eagle(draft: str) -> Path | None:
    """Folder of an EAGLE draft, or None when `draft` names something else.

    Raises
    ------
    InputError
        If nothing follows ``eagle:``.

    Examples
    --------
    >>> parse_eagle("eagle:heads/smollm2").name, parse_eagle("exit:20")
    ('smollm2', None)
    """
    if not draft.startswith("eagle:"):
        return None
    if draft == "eagle:":
        raise InputError(
            "draft 'eagle:' names no head; write eagle:FOLDER, see resispec train-eagle"
        )
    return Path(draft.removeprefix("eagle:")).expanduser()


@dataclass(frozen=True)
class EagleHead:
    """A head and the target it belongs to, whose embedding and output embedding it shares.

    Drafting a tree, with ``n`` = committed tokens - 1, so that the root is token ``n``:

    1. `cache` comes from `new_cache`. It holds one entry per committed token but the root, all of them
       true: made of the target's features.
    2. Catch up: feed the tokens that were committed since, the root last, as ``token_ids``; as
       ``features`` the target's final hidden states one token earlier each, which the verification pass
       gave for the old root and the accepted tokens; as ``position_ids`` the tokens' own positions. The
       first token of a text has none before it: its feature is zero. No mask is needed for this.
       After it the cache holds ``n + 1`` true entries, and the last row is the root's.
    3. Each level below: feed its nodes with ``features`` = the *predicted* feature of each node's parent,
       ``position_ids`` = n + depth, and a boolean mask (1, 1, nodes, cached + nodes), True at the
       ``n + 1`` true entries, at the node's ancestors and at the node itself. The last level need not be
       fed.
    4. After the step ``crop(cache, n + 1)``: what was drafted is dropped, and the accepted tokens come
       again in 2 with the target's features.

    Attributes
    ----------
    module : ModuleDict
        ``fc``, the linear map of token embedding and feature, and ``body``, a model of the target's class
        with one layer and no embedding.
    target : LoadedModel
    info : dict
        What ``config.json`` holds beside the description of the shapes: training, overlap by depth.
    """

    module: Any
    target: LoadedModel
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def n_parameters(self) -> int:
        """Parameters of the head alone, without the embeddings it shares with the target."""
        return sum(int(p.numel()) for p in self.module.parameters())

    def new_cache(self) -> Any:
        """An empty key-value cache for the head's one layer."""
        _, transformers = import_torch()
        return transformers.DynamicCache()

    @staticmethod
    def crop(cache: Any, n_entries: int) -> None:
        """Keep the first `n_entries` entries of a cache, in place."""
        n_dropped = int(cache.get_seq_length()) - n_entries
        if n_dropped > 0:
            # Negative counts mean the same in every version of transformers; a length has become an error.
            cache.crop(-n_dropped)

    def forward(
        self,
        token_ids: Any,
        features: Any,
        position_ids: Any,
        attention_mask: Any = None,
        cache: Any = None,
    ) -> tuple[Any, Any]:
        """Predict the features of tokens and the logits of the tokens after them.

        Parameters
        ----------
        token_ids : tensor of int64, shape (B, T)
        features : tensor, shape (B, T, d)
            The target's or the head's feature of the token *before* each.
        position_ids : tensor of int64, shape (B, T) or (1, T)
            Positions of `token_ids` in the text.
        attention_mask : tensor of bool, shape (B or 1, 1, T, cached + T), optional
            True where entry t may look. By default everything that is cached and the entries up to t.
        cache : DynamicCache, optional
            Extended in place by T entries.

        Returns
        -------
        next_features : tensor, shape (B, T, d)
            Predicted final hidden states of `token_ids`.
        logits : tensor, shape (B, T, V)
            Of the tokens that follow `token_ids`.

        Raises
        ------
        InputError
            If the shapes do not belong together: a mask of another shape would be read as padding.
        """
        predicted = self.predict_features(token_ids, features, position_ids, attention_mask, cache)
        return predicted, self.logits(predicted)

    def predict_features(
        self,
        token_ids: Any,
        features: Any,
        position_ids: Any,
        attention_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        """The first result of `forward`, without the product with the vocabulary."""
        torch, _ = import_torch()
        n_cached = 0 if cache is None else int(cache.get_seq_length())
        n_new = int(token_ids.shape[1])
        self._check_shapes(token_ids, features, attention_mask, n_cached)
        if attention_mask is None:
            shape = (n_new, n_cached + n_new)
            attention_mask = torch.ones(shape, dtype=torch.bool, device=token_ids.device)
            attention_mask = attention_mask.tril(diagonal=n_cached)[None, None]
        weight = self.module["fc"].weight
        # Eager attention takes additive masks only, and scaled dot products take either.
        additive = torch.zeros(attention_mask.shape, dtype=weight.dtype, device=weight.device)
        additive.masked_fill_(~attention_mask, torch.finfo(weight.dtype).min)
        embedded = self.target.model.get_input_embeddings()(token_ids).detach()
        joined = torch.cat([embedded.to(weight.dtype), features.to(weight.dtype)], dim=-1)
        body = self.module["body"]
        arguments = {} if cache is None else {cache_keyword(body): cache}
        output = body(
            inputs_embeds=self.module["fc"](joined),
            position_ids=position_ids.expand(token_ids.shape),
            attention_mask=additive,
            use_cache=cache is not None,
            **arguments,
        )
        return output.last_hidden_state

    def logits(self, features: Any) -> Any:
        """What the target's output embedding makes of features (..., d): logits (..., V)."""
        head = self.target.model.get_output_embeddings()
        return head(features.to(head.weight.dtype))

    def _check_shapes(self, token_ids: Any, features: Any, mask: Any, n_cached: int) -> None:
        n_rows, n_new = token_ids.shape
        width = self.module["fc"].weight.shape[0]
        if tuple(features.shape) != (n_rows, n_new, width):
            raise InputError(
                f"features of shape {tuple(features.shape)} for {n_rows} x {n_new} tokens; give one of "
                f"{width} numbers per token: ({n_rows}, {n_new}, {width})"
            )
        if mask is None:
            return
        fits = (
            mask.dim() == 4
            and mask.shape[0] in (1, n_rows)
            and tuple(mask.shape[1:]) == (1, n_new, n_cached + n_new)
        )
        if not fits or str(mask.dtype) != "torch.bool":
            raise InputError(
                f"attention mask of shape {tuple(mask.shape)}, {mask.dtype}; give bool of shape "
                f"({n_rows} or 1, 1, {n_new}, {n_cached + n_new}): {n_cached} cached and {n_new} new entries"
            )

    def save(self, path: str | Path, *, dtype: str = "float16") -> Path:
        """Write the head: ``model.safetensors`` and ``config.json``, each replaced in one stroke.

        Parameters
        ----------
        path : str or Path
            Folder; made if it is not there.
        dtype : {"float16", "bfloat16", "float32"}
            Storage of the weights.

        Raises
        ------
        ModelError
            If a weight is not finite, as after a training that diverged; nothing is written.
        """
        torch, _ = import_torch()
        from safetensors.torch import save

        folder = Path(path)
        state = {
            name: tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
            for name, tensor in self.module.state_dict().items()
        }
        for name, tensor in state.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(
                    f"{folder}: weight {name} of the head is not finite in {dtype}, so it was not saved; "
                    "train with a lower learning rate, or store another dtype"
                )
        folder.mkdir(parents=True, exist_ok=True)
        described = {**describe(self.target), "n_parameters": self.n_parameters, "dtype": dtype}
        text = json.dumps({**described, **self.info}, indent=2) + "\n"
        write_whole(folder / WEIGHTS_NAME, save(state, metadata={"format": "pt"}))
        write_whole(folder / CONFIG_NAME, text.encode())
        return folder


def describe(target: LoadedModel) -> dict[str, Any]:
    """What a head must share with its target, as it stands in ``config.json``."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": target.source.identity,
        "architecture": type(target.model).__name__,
        "hidden_size": model_width(target),
        "vocab_size": target.vocab_size,
        "tokenizer_sha256": fingerprint_of(target.tokenizer),
    }


def new_head(
    target: LoadedModel, *, seed: int = 0, info: Mapping[str, Any] | None = None
) -> EagleHead:
    """An untrained head: layer and norm are copies of the target's last, the linear map is random.

    Parameters
    ----------
    target : LoadedModel
    seed : int
        Seed of the random weights; torch's own random state is left as it was.
    info : mapping, optional

    Raises
    ------
    ModelError
        If the target's logits are not head(final norm(state)), its embedding has another width than its
        layers, it takes no positions, or it attends within a sliding window.
    """
    torch, _ = import_torch()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch's own would seed every GPU, too
        body = one_layer_body(target)
        fc = torch.nn.Linear(2 * model_width(target), model_width(target))
    module = torch.nn.ModuleDict({"fc": fc, "body": body})
    dtype = next(target.model.parameters()).dtype
    return EagleHead(module.to(device=target.device, dtype=dtype).eval(), target, dict(info or {}))


def load_eagle(path: str | Path, target: LoadedModel) -> EagleHead:
    """Load a head for a target, in the target's precision and on its device.

    Parameters
    ----------
    path : str or Path
        Folder that `EagleHead.save` or ``resispec train-eagle`` wrote.
    target : LoadedModel

    Returns
    -------
    EagleHead

    Raises
    ------
    ModelError
        If the folder holds no head, or one of another architecture or size.
    VocabularyError
        If the head was trained with another vocabulary or tokenizer.
    """
    torch, _ = import_torch()
    from safetensors.torch import load_file

    folder = Path(path)
    try:
        info = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{folder} holds no EAGLE head ({error}); train one with resispec train-eagle"
        ) from error
    if not isinstance(info, dict) or (info.get("format"), info.get("version")) != (FORMAT, VERSION):
        raise ModelError(f"{folder / CONFIG_NAME} is not of the format {FORMAT} {VERSION}")
    expected = describe(target)
    for key in ("architecture", "hidden_size", "vocab_size", "tokenizer_sha256"):
        if info.get(key) != expected[key]:
            raise (VocabularyError if key in ("vocab_size", "tokenizer_sha256") else ModelError)(
                f"{folder}: this head was trained for {info.get('target')!r}, whose {key} is "
                f"{info.get(key)!r}; that of the target {expected['target']!r} is {expected[key]!r}. Use "
                "the head's own target, or train another head"
            )
    head = new_head(target, info={k: v for k, v in info.items() if k not in expected})
    try:
        state = load_file(folder / WEIGHTS_NAME)
        head.module.load_state_dict(state)
    # safetensors raises an error of its own, which derives from Exception alone.
    except Exception as error:
        raise ModelError(f"{folder / WEIGHTS_NAME} does not hold this head: {error}") from error
    return head
