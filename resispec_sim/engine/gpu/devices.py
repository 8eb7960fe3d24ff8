"""Finding a GPU and what it needs, and bringing arrays of any library to it without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resispec_sim.errors import DeviceError, InputError

INSTALL = (
    "pip install 'resispec-sim[gpu]' (CUDA 13) or pip install 'resispec-sim[gpu-cuda12]' (CUDA 12)"
)
CUDA_DEVICES = (2, 13)  # DLPack's numbers for device memory and managed memory


def require_gpu() -> Any:
    """Return cupy once it is sure that kernels can run; `DeviceError` says what is missing."""
    try:
        import cupy
        from array_api_compat import cupy as _namespace  # noqa: F401
        from numba import cuda
    except ImportError as error:
        raise DeviceError(f"device 'cuda' needs {error.name or error}: {INSTALL}") from None
    try:
        n_devices = int(cupy.cuda.runtime.getDeviceCount())
        usable = n_devices > 0 and cuda.is_available()
    except Exception as error:  # each of the layers below has errors of its own
        raise DeviceError(_no_gpu(f"{type(error).__name__}: {error}")) from None
    if not usable:
        raise DeviceError(_no_gpu(f"{n_devices} devices found"))
    return cupy


def _no_gpu(found: str) -> str:
    return (
        f"device 'cuda' found no usable NVIDIA GPU ({found}): use device='cpu', or check `nvidia-smi` "
        f"and that the packages match the driver: {INSTALL}"
    )


def to_device(name: str, values: Any, cupy: Any) -> Any:
    """An array of any library as a cupy array: shared where it is on the GPU, else copied there.

    Raises
    ------
    InputError
        If it holds no real numbers, or its memory cannot be shared.
    """
    if isinstance(values, cupy.ndarray):
        array = values
    elif on_cuda(values):
        try:
            array = cupy.from_dlpack(values)
        except Exception as error:  # the exporter's own: a gradient, a type without a name
            raise InputError(f"{name} cannot be shared through DLPack ({error})") from None
    else:
        array = cupy.asarray(to_host(name, values))
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} holds {array.dtype}: give an array of real numbers")
    return array


def on_cuda(values: Any) -> bool:
    """Whether an array says that its memory is a GPU's."""
    if isinstance(values, np.ndarray) or not hasattr(values, "__dlpack_device__"):
        return False
    return int(values.__dlpack_device__()[0]) in CUDA_DEVICES


def to_host(name: str, values: Any) -> Any:
    """What another library holds in the CPU's memory as a numpy array, without a copy.

    Everything without DLPack is returned as it is: lists, numpy's own arrays.

    Raises
    ------
    InputError
        If it lies on another device or cannot be shared.

    Examples
    --------
    >>> to_host("target_probs", [0.5, 0.5])
    [0.5, 0.5]
    """
    if isinstance(values, np.ndarray | np.generic) or not hasattr(values, "__dlpack__"):
        return values
    if on_cuda(values):
        raise InputError(f"{name} is on a GPU: use device='cuda', or bring it to the CPU first")
    try:
        shared: NDArray[Any] = np.from_dlpack(values)
    except Exception as error:  # the exporter's own: a gradient, a type that numpy lacks
        raise InputError(
            f"{name} cannot be shared through DLPack ({error}): detach it and use float64 or float32"
        ) from None
    return shared
