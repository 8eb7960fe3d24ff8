"""Drawing siblings from a draft's rows with uniform numbers that are given."""

from __future__ import annotations

from typing import Any

from .models import import_torch
from .torch_rules import draw_tokens


def draw_siblings(scheme: str, probs: Any, uniforms: Any) -> Any:
    """Siblings of B nodes.

    Parameters
    ----------
    scheme : {"iid", "without_replacement", "topk"}
    probs : tensor, shape (B, V)
        Draft distributions.
    uniforms : tensor of float64, shape (B, K)
        In [0, 1); ``topk`` uses their number only.

    Returns
    -------
    tensor of int64, shape (B, K)
        In the order of drawing; -1 where no token of positive probability is left.
    """
    torch, _ = import_torch()
    n = uniforms.shape[-1]
    if scheme == "iid":
        return draw_tokens(probs, uniforms)
    if scheme == "topk":
        # of equal probabilities the lower id comes first, as a stable sort has it
        order = torch.sort(probs, dim=-1, descending=True, stable=True)
        found = torch.full_like(uniforms, -1, dtype=torch.int64)
        taken = min(n, probs.shape[-1])
        values, ids = order.values[:, :taken], order.indices[:, :taken]
        found[:, :taken] = torch.where(values > 0, ids, -1)
        return found
    left = probs.clone()
    columns = []
    for i in range(n):
        any_left = (left > 0).any(dim=-1, keepdim=True)
        token = draw_tokens(left, uniforms[:, i : i + 1])
        left.scatter_(-1, token, 0.0)
        columns.append(torch.where(any_left, token, -1))
    return torch.cat(columns, dim=-1)
