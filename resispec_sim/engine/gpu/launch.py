"""Launching the kernels on a batch of positions: allocate, predict, walk, sum up.

Takes any arrays that `numba.cuda` understands: cupy's on a GPU, numpy's in the simulator.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from array_api_compat import array_namespace, device

from resispec_sim.engine.gpu.arrays import BatchLaw, BatchSpace, first_weights, sum_up
from resispec_sim.engine.gpu.first_level import close_first, open_first
from resispec_sim.engine.gpu.layout import (
    BUCKET_SHIFT,
    HIGHEST_BUCKET,
    LOWEST_BUCKET,
    MAX_SIBLINGS,
    N_FIRST,
    N_OVER,
    N_TOTALS,
    SCALE,
    STEPS,
    WEIGHT,
    n_sum_rows,
    shared_bytes,
)
from resispec_sim.engine.gpu.predict import GRID_SIZE, fill_buckets, first_grid, next_grid
from resispec_sim.engine.gpu.walk import walk

Array = Any

LAST_CHUNK = 16  # children per thread of a block where each is one step


class Blocks(NamedTuple):
    """Sizes of the blocks of a launch; the defaults suit a GPU, the simulator wants few threads.

    Attributes
    ----------
    walk : int
        Threads that share the last token of a path, a multiple of 32 on a GPU.
    token : int
        Threads of a block whose threads are tokens.
    look_up : int
        Blocks per position that fill the look-up's buckets.
    """

    walk: int = 32
    token: int = 64
    look_up: int = 16


DEFAULT_BLOCKS = Blocks()


class Walked(NamedTuple):
    """A batch that was walked. Attributes: see the arrays' comments."""

    laws: BatchLaw
    steps: Array  # (B,) path-steps; past the limit where the walk was given up
    n_cut: Array  # (B,) budgets that were cut to the mass off their token
    excess: Array  # (B,) the most by which a budget passed it


def bytes_per_position(vocab_size: int, n_siblings: int, by_token: bool) -> int:
    """Device memory that one position takes in a launch, temporaries included."""
    rows = n_sum_rows(n_siblings, by_token) + 50 + (3 * n_siblings if by_token else 6)
    return 8 * rows * (vocab_size + 1)


def find_buckets(space: BatchSpace, blocks: Blocks = DEFAULT_BLOCKS) -> Array:
    """Index of each bucket of ratios (B, buckets), int32."""
    xp = array_namespace(space.table)
    bits = np.arange(LOWEST_BUCKET, HIGHEST_BUCKET + 2, dtype=np.int64) << BUCKET_SHIFT
    edges = xp.asarray(bits.view(np.float64), device=device(space.table))
    n_positions = space.table.shape[0]
    buckets = xp.zeros((n_positions, bits.size), dtype=xp.int32, device=device(space.table))
    with quiet():
        fill_buckets[(blocks.look_up, n_positions), blocks.token](
            space.table, space.sizes, edges, buckets
        )
    return buckets


def predict_steps(
    space: BatchSpace,
    buckets: Array,
    n_siblings: int,
    *,
    want_law: bool = True,
    blocks: Blocks = DEFAULT_BLOCKS,
) -> Array:
    """Path-steps that a walk of each position will take, from tables over 48 weights (B,)."""
    xp = array_namespace(space.table)
    n_positions = space.table.shape[0]
    shape = (n_positions, GRID_SIZE)
    before, after = (
        xp.zeros(shape, dtype=xp.float64, device=device(space.table)) for _ in range(2)
    )
    levels = n_siblings - 1 if want_law else n_siblings - 2
    with quiet():
        first_grid[(1, n_positions), min(GRID_SIZE, blocks.token)](space.table, buckets, before)
        for _ in range(levels):
            config = ((GRID_SIZE, n_positions), blocks.token, 0, 8 * blocks.token)
            next_grid[config](space.table, buckets, before, after)
            before, after = after, before
    return before[:, -1]


def walk_batch(
    space: BatchSpace,
    buckets: Array,
    n_siblings: int,
    *,
    fill: str = "capacity",
    budget: str = "minimal",
    active: Array | None = None,
    by_token: bool = False,
    want_law: bool = True,
    max_steps: float = np.inf,
    blocks: Blocks = DEFAULT_BLOCKS,
) -> Walked:
    """Walk all paths of ResiSpec at the positions of a batch.

    Parameters
    ----------
    space : BatchSpace
    buckets : array (B, buckets)
    n_siblings : int
        1 to 8.
    fill, budget : str
        Of the rule; not ``fill="index"``.
    active : array of bool (B,), optional
        Positions to walk; nothing is done at the others, whose results mean nothing.
    by_token : bool
        Keep the accepted mass of the siblings apart.
    want_law : bool
        Without it the walk stops one level earlier; only the acceptance is computed.
    max_steps : float
        A position that passes it is given up.
    blocks : Blocks

    Returns
    -------
    Walked
    """
    if not 1 <= n_siblings <= MAX_SIBLINGS:
        raise ValueError(f"n_siblings is {n_siblings}: the kernels take 1 to {MAX_SIBLINGS}")
    xp = array_namespace(space.table)
    where = device(space.table)
    n_positions, vocab = space.order.shape
    weight, scale, excess, n_cut = first_weights(space, budget)
    if active is not None:
        weight = xp.where(active[:, None], weight, xp.zeros_like(weight))

    def zeros(*shape: int, dtype: Any = xp.float64) -> Array:
        return xp.zeros(shape, dtype=dtype, device=where)

    first = zeros(n_positions, N_FIRST, vocab)
    first[:, WEIGHT, :] = weight
    first[:, SCALE, :] = scale
    sums = zeros(n_positions, n_sum_rows(n_siblings, by_token), vocab + 1)
    totals = zeros(n_positions, N_TOTALS)
    children = zeros(n_positions, vocab, dtype=xp.int64)
    water = fill == "water"
    most = max(int(xp.max(space.sizes[:, N_OVER])), 1)
    tokens = (-(-most // blocks.token), n_positions), blocks.token, 0
    shared = shared_bytes(n_siblings, blocks.token, False)
    with quiet():
        open_first[(*tokens, shared)](
            space.table, buckets, space.sizes, first, sums, totals, children,
            n_siblings, want_law, water, by_token,
        )  # fmt: skip
        chunk = chunk_of(n_siblings, want_law, blocks.walk)
        parents, starts = items_of(children, chunk)
        if parents.shape[0] > 0:
            shared = shared_bytes(n_siblings, blocks.walk, True)
            walk[parents.shape[0], blocks.walk, 0, shared](
                space.table, buckets, space.sizes, first, sums, totals, parents, starts, chunk,
                children, n_siblings, want_law, water, by_token, float(max_steps),
            )  # fmt: skip
            if want_law and not water:
                close_first[(*tokens, 8 * (blocks.token + 2))](
                    space.table, space.sizes, first, sums, totals, children
                )
    laws = sum_up(space, sums, totals, n_siblings, by_token=by_token, want_law=want_law)
    return Walked(laws, totals[:, STEPS], n_cut, excess)


def chunk_of(n_siblings: int, want_law: bool, n_threads: int) -> int:
    """Children of a first rejection that one block takes: few where each has much below it."""
    levels = n_siblings - 1 if want_law else n_siblings - 2
    if levels <= 1:
        return n_threads * LAST_CHUNK
    return n_threads if levels == 2 else max(n_threads // 4, 1)


def items_of(children: Array, chunk: int) -> tuple[Array, Array]:
    """Parts of all children that are left to walk: state (position times V plus token), first child."""
    xp = array_namespace(children)
    flat = xp.reshape(children, (-1,))
    (states,) = xp.nonzero(flat)
    parts = (xp.take(flat, states) + (chunk - 1)) // chunk
    ends = xp.cumulative_sum(parts)
    n_items = int(ends[-1]) if states.shape[0] > 0 else 0
    items = xp.arange(n_items, dtype=xp.int64, device=device(children))
    if n_items == 0:
        return items, items
    at = xp.searchsorted(ends, items, side="right")
    starts = (items - xp.take(ends - parts, at)) * chunk
    return xp.take(states, at), starts


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without numba's warning that a grid is small: a batch can be a single position."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", numba.core.errors.NumbaPerformanceWarning)
        yield
