"""A draft inside the target: the hidden state after one of its layers, read by the final norm and head.

With a map, ``logits = head(A norm(h) + b)``, where ``(A, b)`` is the ridge regression of the final
hidden state on ``norm(h)`` over a text. It costs one solve and no training, and more than doubles the
overlap with the target on SmolLM2 (``sum min(p, q)`` .19 to .43 at layer 20).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, ModelError
from .models import LoadedModel, import_torch

RIDGE = 0.1
WINDOW = 512

_NORM_NAMES = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def parse_exit(draft: str) -> int | None:
    """Layer of an early-exit draft, or None when `draft` names a model.

    Raises
    ------
    InputError
        If the text begins with ``exit:`` and no whole number follows.

    Examples
    --------
    >>> parse_exit("exit:20"), parse_exit("smollm2")
    (20, None)
    """
    if not draft.startswith("exit:"):
        return None
    match = re.fullmatch(r"exit:(\d+)", draft)
    if match is None:
        raise InputError(f"draft {draft!r}: an early exit is written exit:LAYER, such as exit:20")
    return int(match[1])


@dataclass(frozen=True)
class EarlyExit:
    """The head of an early-exit draft.

    Attributes
    ----------
    layer : int
        Number of target layers that run before the exit.
    norm, head : module
        The target's own final norm and output embedding.
    weight, bias : tensor or None
        Map from the normed hidden state to the final hidden state, shapes (d, d) and (d,).
    """

    layer: int
    norm: Any
    head: Any
    weight: Any = None
    bias: Any = None

    def state(self, hidden: Any) -> Any:
        """What the head reads for hidden states (..., d) taken after `layer`, of the same shape."""
        state = self.norm(hidden)
        if self.weight is not None:
            state = state @ self.weight + self.bias
        return state

    def logits(self, hidden: Any) -> Any:
        """Draft logits (..., V) of hidden states (..., d) taken after `layer`."""
        return self.head(self.state(hidden))


def early_exit(target: LoadedModel, layer: int) -> EarlyExit:
    """Exit after `layer` without a map, after a check that the target has the structure for it.

    Raises
    ------
    ModelError
        If there is no such layer inside the model, or its logits are not head(norm(last state)).
    """
    n_layers = int(target.model.config.get_text_config().num_hidden_layers)
    if not 1 <= layer < n_layers:
        raise ModelError(
            f"exit:{layer}: the target has {n_layers} layers, so an exit lies after layer 1 to {n_layers - 1}"
        )
    return EarlyExit(layer, *final_head(target))


def final_head(target: LoadedModel) -> tuple[Any, Any]:
    """Final norm and output embedding of a model whose logits are head(norm(last state)).

    Raises
    ------
    ModelError
        If they are not: a draft that reads states with that head would silently be another one.
    """
    torch, _ = import_torch()
    model = target.model
    n_layers = int(model.config.get_text_config().num_hidden_layers)
    norm, head = getattr(*norm_place(model)), model.get_output_embeddings()
    outputs: list[Any] = []
    hook = norm.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    try:
        probe = torch.tensor([[0, 1]], device=target.device)
        with torch.inference_mode():
            result = model(input_ids=probe, output_hidden_states=True, use_cache=False)
            final = result.hidden_states[-1]
            # Models that scale or cap their logits, or norm elsewhere, would silently give another draft.
            same = (
                len(result.hidden_states) == n_layers + 1
                and torch.equal(_like(outputs[-1], result.logits), _like(final, result.logits))
                and torch.allclose(_like(head(final), result.logits), result.logits, atol=1e-3)
            )
    finally:
        hook.remove()
    if not same:
        raise ModelError(
            f"{type(model).__name__}: its logits are not head(final norm(last hidden state)), so an "
            "early exit or an EAGLE head is not defined; use a second model as draft"
        )
    return norm, head


def _like(values: Any, other: Any) -> Any:
    """On the device of another tensor: layers of a model on several GPUs answer on their own."""
    return values.to(other.device)


def norm_place(model: Any) -> tuple[Any, str]:
    """The module that holds a model's layers and its final norm, and the norm's name in it.

    Raises
    ------
    ModelError
        If there is none under a name that is known.
    """
    base = model.base_model
    for owner in (base, getattr(base, "decoder", None)):
        for name in _NORM_NAMES:
            if getattr(owner, name, None) is not None:
                return owner, name
    raise ModelError(
        f"{type(model).__name__}: no final norm found (looked for {', '.join(_NORM_NAMES)}), so an "
        "early exit is not defined; use a second model as draft"
    )


def fit_map(target: LoadedModel, draft: EarlyExit, text: str, *, ridge: float = RIDGE) -> EarlyExit:
    """Fit the least-squares map of an exit on a text; see `fit_maps`."""
    return fit_maps(target, [draft], text, ridge=ridge)[0]


def fit_maps(
    target: LoadedModel, drafts: Sequence[EarlyExit], text: str, *, ridge: float = RIDGE
) -> list[EarlyExit]:
    """Fit the least-squares maps of exits on a text, in one pass of the target.

    Parameters
    ----------
    target : LoadedModel
    drafts : sequence of EarlyExit
        Exits whose maps are replaced.
    text : str
        Fitting text; it is cut into windows of 512 tokens, or of the target's context if that is shorter.
    ridge : float
        Penalty on the map in units of the mean square of a feature, summed over the text. The penalty
        makes the system solvable however short the text is.

    Returns
    -------
    list of EarlyExit
        With `weight` and `bias` in the model's type; computed in float64.

    Raises
    ------
    InputError
        If the text has fewer than two tokens.
    """
    torch, _ = import_torch()
    ids = target.tokenizer(text)["input_ids"]
    if len(ids) < 2:
        raise InputError(
            f"the fitting text has {len(ids)} tokens; give at least two, better thousands"
        )
    limit = getattr(target.model.config.get_text_config(), "max_position_embeddings", None)
    width = min(WINDOW, limit or WINDOW)
    grams: list[Any] = [0.0] * len(drafts)
    crosses: list[Any] = [0.0] * len(drafts)
    with torch.inference_mode():
        for start in range(0, len(ids), width):
            window = torch.tensor([ids[start : start + width]], device=target.device)
            states = target.model.base_model(
                input_ids=window, output_hidden_states=True, use_cache=False
            ).hidden_states
            # The state of a window's first token is an outlier of huge norm (an attention sink).
            skip = 1 if window.shape[1] > 1 else 0
            y = states[-1][0, skip:].double()
            for i, draft in enumerate(drafts):
                x = draft.norm(states[draft.layer])[0, skip:].double()
                x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
                grams[i] = grams[i] + x.T @ x
                crosses[i] = crosses[i] + x.T @ y
        return [_solve(*parts, ridge) for parts in zip(drafts, grams, crosses, strict=True)]


def _solve(draft: EarlyExit, gram: Any, cross: Any, ridge: float) -> EarlyExit:
    torch, _ = import_torch()
    penalty = ridge * gram.diagonal()[:-1].mean()
    diagonal = penalty * torch.ones_like(gram.diagonal())
    diagonal[-1] = 0.0
    solution = torch.linalg.solve(gram + torch.diag(diagonal), cross)
    dtype = draft.head.weight.dtype
    return EarlyExit(
        draft.layer, draft.norm, draft.head, solution[:-1].to(dtype), solution[-1].to(dtype)
    )
