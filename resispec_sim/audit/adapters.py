"""Turns a torch function on batches into what the audit takes. torch is imported when it is called."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resispec_sim.audit.calling import NONE, Floats
from resispec_sim.errors import InputError, VerifierError

DTYPES = ("float64", "float32")

_MAX_ENTRIES = 1 << 23  # of one (B, V) tensor


class TorchBatch:
    """A torch function on batches as a verifier; made by `torch_batch`.

    Attributes
    ----------
    tolerance : float
        Total variation distance that counts as rounding in its precision.
    top_uniform : float
        The largest uniform below 1 in its precision.
    """

    def __init__(self, function: Callable[..., Any], device: str, dtype: str) -> None:
        self.function = function
        self.device = device
        self.dtype = dtype
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.tolerance = 1e-9 if dtype == "float64" else 1e-5
        self.top_uniform = 1 - 2.0**-53 if dtype == "float64" else 1 - 2.0**-24

    def batch(
        self, target: Floats, draft: Floats, ids: NDArray[np.intp], uniforms: Floats
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Tokens and accepted indices (-1: none) of B positions, both (B,)."""
        step = max(1, _MAX_ENTRIES // target.shape[1])
        parts = []
        for start in range(0, len(target), step):
            rows = slice(start, start + step)
            parts.append(self._call(target[rows], draft[rows], ids[rows], uniforms[rows]))
        tokens, accepted = zip(*parts, strict=True)
        return np.concatenate(tokens), np.concatenate(accepted)

    def _call(
        self, target: Floats, draft: Floats, ids: NDArray[np.intp], uniforms: Floats
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        import torch

        floats = getattr(torch, self.dtype)
        # a float64 uniform just below 1 would round to 1
        below_one = np.minimum(uniforms, self.top_uniform)
        given = [
            torch.tensor(np.ascontiguousarray(array), dtype=floats, device=self.device)
            for array in (target, draft, below_one)
        ]
        siblings = torch.tensor(ids.astype(np.int64), device=self.device)
        kept = [tensor.clone() for tensor in (given[0], given[1])]
        with torch.no_grad():
            result = self.function(given[0], given[1], siblings, given[2])
        for name, before, after in zip(("target_probs", "draft_probs"), kept, given, strict=False):
            if not torch.equal(before, after):
                raise VerifierError(f"{self.__name__} edits {name} in place; work on a copy")
        return tuple(_whole(self.__name__, part, len(target)) for part in result)  # type: ignore[return-value]

    def __call__(self, target: Floats, draft: Floats, ids: Any, uniforms: Any) -> tuple[int, Any]:
        """One position, as the audit's verifiers are called."""
        rows = [np.asarray(array)[None] for array in (target, draft, ids, uniforms)]
        tokens, accepted = self.batch(*rows)
        return int(tokens[0]), None if accepted[0] == NONE else int(accepted[0])


def _whole(name: str, values: Any, rows: int) -> NDArray[np.intp]:
    array = values.detach().cpu().numpy()
    if array.shape != (rows,) or array.dtype.kind not in "iu":
        raise VerifierError(
            f"{name} must return two integer tensors of shape ({rows},): tokens and accepted indices "
            f"(-1: none); one has shape {array.shape} and type {array.dtype}"
        )
    return array.astype(np.intp)


def torch_batch(
    function: Callable[..., Any], *, device: str = "cpu", dtype: str = "float64"
) -> TorchBatch:
    """A torch function on batches as a verifier that the audit takes.

    Parameters
    ----------
    function : callable
        ``function(target_probs, draft_probs, sibling_ids, uniforms) -> (tokens, accepted)`` on tensors
        (B, V), (B, V), (B, K) and (B, n_uniforms); it returns integer tensors (B,), ``accepted`` being
        -1 where no sibling was.
    device : str
    dtype : {"float64", "float32"}
        Precision of the probabilities and uniforms that it is given.

    Returns
    -------
    TorchBatch

    Raises
    ------
    InputError
        Another `dtype`.
    VerifierError
        When it is called: a result of the wrong shape or type, or probabilities edited in place.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}: use one of {', '.join(DTYPES)}")
    return TorchBatch(function, device, dtype)
