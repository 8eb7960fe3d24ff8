"""How logits lie in a shard: the safetensors layout that follows from the plan, and 16-bit rows.

The header is a function of the plan alone. That makes a shard's size known before it is recorded,
the file the same on every run, and the check on reading a comparison of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import LogitsError

if TYPE_CHECKING:
    from .schema import Manifest, Shard

# storage dtype -> safetensors name, numpy type of the stored bits, most negative finite value
_STORED: dict[str, tuple[str, str, float]] = {
    "float32": ("F32", "<f4", float(np.finfo(np.float32).min)),
    "float16": ("F16", "<f2", float(np.finfo(np.float16).min)),
    "bfloat16": ("BF16", "<u2", -(2.0**127) * (2 - 2.0**-7)),
}


class Tensor(NamedTuple):
    """Place of one array in a shard; ``start`` counts from the beginning of the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    n_bytes: int


def stored_type(dtype: str) -> np.dtype[Any]:
    """Numpy type of stored logits (bfloat16 as its bit pattern, uint16)."""
    return np.dtype(_STORED[dtype][1])


def _tensors(manifest: Manifest, shard: Shard) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    name, bits, _ = _STORED[manifest.dtype]
    item = np.dtype(bits).itemsize
    rows = list(zip(shard.prompt_idxs, shard.n_positions, strict=True))
    # Eight-byte arrays first: everything after them stays aligned without padding.
    for prompt_idx, n in rows:
        yield f"prompt-{prompt_idx:05d}.token_ids", "I64", (n,), 8 * n
    for prompt_idx, n in rows:
        for which, size in (
            ("target", manifest.target_vocab_size),
            ("draft", manifest.draft_vocab_size),
        ):
            yield f"prompt-{prompt_idx:05d}.{which}_logits", name, (n, size), n * size * item


def shard_header(manifest: Manifest, shard: Shard) -> bytes:
    """First bytes of a shard: length of the JSON header, and the header, padded to 8 bytes."""
    form = "raw logits" if manifest.dtype == "float32" else "logits minus row maximum"
    header: dict[str, Any] = {
        "__metadata__": {"format": "resispec-dump", "kind": manifest.kind, "rows": form}
    }
    start = 0
    for name, dtype, shape, n_bytes in _tensors(manifest, shard):
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [start, start + n_bytes],
        }
        start += n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def shard_layout(manifest: Manifest, shard: Shard) -> dict[str, Tensor]:
    """Place of every array of a shard, by name."""
    start = len(shard_header(manifest, shard))
    layout = {}
    for name, dtype, shape, n_bytes in _tensors(manifest, shard):
        layout[name] = Tensor(name, dtype, shape, start, n_bytes)
        start += n_bytes
    return layout


def shard_size(manifest: Manifest, shard: Shard) -> int:
    """Size of a shard's file in bytes."""
    return len(shard_header(manifest, shard)) + sum(
        n_bytes for *_, n_bytes in _tensors(manifest, shard)
    )


def check_rows(rows: NDArray[Any], where: str, first: int = 0) -> None:
    """Raise `LogitsError` at the first row of (L, V) that has NaN, +inf or no finite entry."""
    peak = rows.max(axis=-1)
    bad = np.flatnonzero(~np.isfinite(peak))
    if not bad.size:
        return
    row = rows[bad[0]]
    place = f"{where}, position {first + int(bad[0])}"
    tokens = np.flatnonzero(np.isnan(row) | (row == np.inf))
    if not tokens.size:
        raise LogitsError(
            f"{place}: every logit is -inf, which defines no distribution; record this prompt again"
        )
    token = int(tokens[0])
    raise LogitsError(
        f"{place}, token {token}: logit is {row[token]}; check the model's output and record again"
    )


def checked_rows(logits: ArrayLike, dtype: str, where: str) -> NDArray[Any]:
    """Logits (L, V) in float32 or float64, if they can be stored in ``dtype`` (`LogitsError`)."""
    rows = np.asarray(logits)
    if rows.dtype != np.float64:
        rows = rows.astype(np.float32, copy=False)
    check_rows(rows, where)
    if dtype == "float32" and rows.dtype == np.float64 and rows.max() > np.finfo(np.float32).max:
        raise LogitsError(f"{where}: a logit above the range of float32; store it in 16 bits")
    return rows


def encode_rows(logits: ArrayLike, dtype: str, where: str) -> NDArray[Any]:
    """Logits (L, V) as stored: raw in float32, minus the row maximum in 16 bits.

    Finite logits stay finite: what lies below the storage's range is put at its end (probability 0
    in float64 either way), so the support is not changed. ``-inf`` is kept.
    """
    rows = checked_rows(logits, dtype, where)
    _, bits, lowest = _STORED[dtype]
    if dtype != "float32":
        with np.errstate(over="ignore"):
            rows = rows - rows.max(axis=-1, keepdims=True)
    minus_inf = np.asarray(logits) == -np.inf
    rows = np.where(minus_inf, rows, np.maximum(rows, lowest))
    if dtype != "bfloat16":
        return rows.astype(bits)
    # Round to nearest, ties to even, on the bit pattern.
    pattern = rows.astype("<f4").view("<u4")
    return ((pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16).astype("<u2")


def decode_rows(stored: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """A float64 copy of stored rows, in one pass: what probabilities are computed in."""
    if dtype != "bfloat16":
        return stored.astype(np.float64)
    return (stored.astype("<u4") << 16).view(np.float32).astype(np.float64)
