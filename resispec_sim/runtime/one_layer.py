"""A model of the target's class with one layer: a copy of the target's last, and of its final norm."""

from copy import deepcopy
from typing import Any

from ..errors import ModelError
from .early_exit import final_head
from .models import LoadedModel, attention_limit, forward_parameters, import_torch


def one_layer_body(target: LoadedModel) -> Any:
    """Base model with one layer and no embedding; it is called with ``inputs_embeds``.

    Whatever the target's class does around its layers (rotary or learned positions, the shape of masks)
    it does here too.

    Raises
    ------
    ModelError
        If the target's logits are not head(final norm(state)), its embedding has another width than its
        layers, it takes no positions, or it attends within a sliding window.
    """
    torch, transformers = import_torch()
    final_head(target)
    body = transformers.AutoModel.from_config(_one_layer_config(target))
    body.set_input_embeddings(torch.nn.Identity())
    names = forward_parameters(body)
    if "position_ids" not in names or "inputs_embeds" not in names:
        raise ModelError(
            f"{type(target.model).__name__} takes no position_ids and inputs_embeds, which an EAGLE head "
            "needs; use a second model or an early exit as draft"
        )
    body.load_state_dict(_last_layer(target, body), strict=False)
    return body


def model_width(target: LoadedModel) -> int:
    """Entries of a hidden state."""
    return int(target.model.config.get_text_config().hidden_size)


def _one_layer_config(target: LoadedModel) -> Any:
    name = type(target.model).__name__
    config = deepcopy(target.model.config.get_text_config())
    limit = attention_limit(target.model)
    if limit:
        raise ModelError(
            f"{name} does not attend to the whole text ({limit}), which a tree mask would override; an EAGLE "
            "head needs full attention"
        )
    embedding = target.model.get_input_embeddings().weight
    if embedding.shape[1] != config.hidden_size:
        raise ModelError(
            f"{name}: token embeddings have {embedding.shape[1]} entries and features "
            f"{config.hidden_size}; an EAGLE head needs equal widths"
        )
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[-1:]
    # The embedding is the target's: the body is built with the least one, which is then taken off.
    config.vocab_size, config.pad_token_id = 1, None
    return config


def _last_layer(target: LoadedModel, body: Any) -> dict[str, Any]:
    """The target's weights under the names that its last layer and final norm have in `body`."""
    torch, _ = import_torch()
    source = target.model.base_model.state_dict()
    n_layers = int(target.model.config.get_text_config().num_hidden_layers)
    lists = [
        name
        for name, module in body.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == 1
    ]
    found = {}
    for name, tensor in body.state_dict().items():
        origin = name
        for layers in lists:
            if name.startswith(f"{layers}.0."):
                origin = f"{layers}.{n_layers - 1}.{name.removeprefix(f'{layers}.0.')}"
        if origin in source and source[origin].shape == tensor.shape:
            found[name] = source[origin]
    return found
