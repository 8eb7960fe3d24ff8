"""Exact laws of ResiSpec and SpecInfer at many positions per launch, on a GPU.

`batch.laws_of_batch` is the way in (`resispec_sim.exact_law(..., device="cuda")` calls it). The walk is
made of numba-cuda kernels, everything else is array code whose namespace comes from the arrays.
Nothing here is imported before a GPU is asked for.
"""
