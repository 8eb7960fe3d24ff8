"""Kernels of the preparation: the look-up's buckets, and how many path-steps a walk will take."""

from __future__ import annotations

import math

from numba import cuda, float64, int64

from resispec_sim.engine.gpu.device_math import count_below
from resispec_sim.engine.gpu.layout import N_OVER, RHO, P, Q

GRID_SIZE = 48
LOG2_LOWEST = -40.0  # lighter states are counted like this one


@cuda.jit
def fill_buckets(tables, sizes, edges, buckets):
    """First index whose ratio is not below each edge; grid (blocks, B)."""
    b = cuda.blockIdx.y
    start = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for i in range(start, edges.shape[0], cuda.gridDim.x * cuda.blockDim.x):
        lo = int64(0)
        hi = int64(sizes[b, N_OVER])
        while lo < hi:
            mid = (lo + hi) >> 1
            if tables[b, RHO, mid] < edges[i]:
                lo = mid + 1
            else:
                hi = mid
        # anything below the first edge is looked for from the start
        buckets[b, i] = lo if i > 0 else 0


@cuda.jit
def first_grid(tables, buckets, before):
    """Steps of the last level from each weight of the grid; one thread per weight, grid (1, B)."""
    b = cuda.blockIdx.y
    for g in range(cuda.threadIdx.x, GRID_SIZE, cuda.blockDim.x):
        w = 2.0 ** (LOG2_LOWEST * (1.0 - g / (GRID_SIZE - 1.0)))
        before[b, g] = 1.0 + count_below(w, tables[b], buckets[b])


@cuda.jit
def next_grid(tables, buckets, before, after):
    """The same with one level more; grid (weights, B). The last weight is 1: a whole walk."""
    g = cuda.blockIdx.x
    b = cuda.blockIdx.y
    tid = cuda.threadIdx.x
    parts = cuda.shared.array(0, float64)
    table = tables[b]
    w = 2.0 ** (LOG2_LOWEST * (1.0 - g / (GRID_SIZE - 1.0)))
    total = 0.0
    for x in range(tid, count_below(w, table, buckets[b]), cuda.blockDim.x):
        wx = w * table[Q, x] - table[P, x]
        if wx > 0.0:
            at = (1.0 - math.log2(wx) / LOG2_LOWEST) * (GRID_SIZE - 1.0)
            if at <= 0.0:
                total += before[b, 0]
            else:
                i = min(int64(at), GRID_SIZE - 2)
                total += before[b, i] + (at - i) * (before[b, i + 1] - before[b, i])
    parts[tid] = total
    cuda.syncthreads()
    if tid == 0:
        total = 1.0
        for i in range(cuda.blockDim.x):
            total += parts[i]
        after[b, g] = total
