"""How far a draft's distribution agrees with the target's, one, two and three tokens ahead.

The overlap ``sum min(p, q)`` is the probability that standard speculative sampling accepts a single
candidate. Tokens are teacher-forced, so that depth alone makes the difference: an EAGLE head reads its
own features from depth 2 on, while an early exit computes every position itself and has one figure for all.
"""

from typing import Any

from ..errors import InputError
from .eagle import EagleHead
from .early_exit import EarlyExit
from .models import LoadedModel, import_torch

ROWS = 256  # positions whose rows over the vocabulary are held at a time


def unroll(head: EagleHead, token_ids: Any, features: Any, depths: int) -> list[Any]:
    """Features that a head predicts for the same tokens one, two, ... tokens ahead.

    Parameters
    ----------
    head : EagleHead
    token_ids : tensor of int64, shape (B, L)
    features : tensor, shape (B, L, d)
        The target's feature of each token.
    depths : int
        At depth m the last true feature is m tokens before the predicted one; features predicted at
        depths 1 to m - 1 fill the gap. Depth 1 reads true ones only.

    Returns
    -------
    list of tensor
        Entry m - 1 has shape (B, L - m + 1, d); its row i is the predicted feature of token i + m - 1.

    Raises
    ------
    InputError
        If there are fewer tokens than depths.
    """
    torch, _ = import_torch()
    length = int(token_ids.shape[1])
    if not 1 <= depths < length:
        raise InputError(f"depths must be from 1 to {length - 1} for {length} tokens, got {depths}")
    positions = torch.arange(length, device=token_ids.device)
    cache = head.new_cache()
    # The first token of a text has no feature before it.
    before = torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], dim=1)
    predicted = [head.predict_features(token_ids, before, positions[None], None, cache)]
    for m in range(2, depths + 1):
        asking = positions[m - 1 :, None]
        # What one would see in decoding: true entries, then the chain of own entries, one per depth.
        seen = [positions <= asking - (m - 1)]
        seen += [positions[e - 1 :] == asking - (m - e) for e in range(2, m + 1)]
        predicted.append(
            head.predict_features(
                token_ids[:, m - 1 :],
                predicted[-1][:, :-1],
                positions[None, m - 1 :],
                torch.cat(seen, dim=1)[None, None],
                cache,
            )
        )
    return predicted


def overlap_by_depth(
    target: LoadedModel,
    draft: EagleHead | EarlyExit,
    token_ids: Any,
    *,
    depths: int = 3,
    batch_size: int = 8,
) -> Any:
    """Mean ``sum min(p, q)`` at temperature 1 by depth, for every sequence.

    Parameters
    ----------
    target : LoadedModel
    draft : EagleHead or EarlyExit
    token_ids : tensor of int64, shape (S, L)
        Sequences that the draft was not fitted on.
    depths : int
    batch_size : int
        Sequences per forward pass.

    Returns
    -------
    ndarray of float64, shape (S, depths)
        Means over the same positions at every depth: those after token ``depths - 1`` to L - 1.

    Raises
    ------
    InputError
        If sequences are not longer than `depths`.
    """
    torch, _ = import_torch()
    if token_ids.shape[1] <= depths:
        raise InputError(
            f"sequences of {token_ids.shape[1]} tokens have no position at depth {depths}; give longer ones"
        )
    head = target.model.get_output_embeddings()
    means = []
    with torch.inference_mode():
        for batch in token_ids.split(batch_size):
            states = target.model.base_model(
                input_ids=batch, use_cache=False, output_hidden_states=True
            ).hidden_states
            # a model on several GPUs has its last states on another than its embedding
            final = states[-1].to(batch.device)
            first = depths - 1
            if isinstance(draft, EarlyExit):
                own = [draft.state(states[draft.layer][:, first:])]
            else:
                unrolled = unroll(draft, batch, final, depths)
                own = [rows[:, first - m :] for m, rows in enumerate(unrolled)]
            true = final[:, first:].flatten(0, 1)
            overlaps = [_overlaps(head, true, rows.flatten(0, 1).to(batch.device)) for rows in own]
            by_depth = torch.stack(overlaps, dim=-1).view(len(batch), -1, len(own)).mean(dim=1)
            means.append(by_depth.expand(-1, depths))
    return torch.cat(means).cpu().numpy()


def _overlaps(head: Any, true: Any, own: Any) -> Any:
    """``sum min(p, q)`` in float64, shape (R,), of the distributions of two sets of features (R, d)."""
    torch, _ = import_torch()
    parts = []
    for a, b in zip(true.split(ROWS), own.split(ROWS), strict=True):
        p, q = (torch.softmax(head(x.to(head.weight.dtype)).float(), dim=-1) for x in (a, b))
        parts.append(torch.minimum(p, q).sum(dim=-1, dtype=torch.float64))
    return torch.cat(parts)
