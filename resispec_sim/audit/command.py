"""The command `resispec audit`: parse, call, print."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Literal

from resispec_sim.config import AUDIT
from resispec_sim.errors import InputError
from resispec_sim.terminal import Json, console

EXIT_CODES = {"exact": 0, "biased": 1, "undecided": 3}


def audit_command(
    verifier: str,
    *,
    siblings: int = 2,
    draws: str = AUDIT.siblings,
    uniforms: int | None = None,
    mode: Literal["auto", "exact", "sampling"] = "auto",
    batch: Literal["no", "float64", "float32"] = "no",
    tolerance: float | None = None,
    alpha: float = AUDIT.alpha,
    max_samples: int = AUDIT.max_samples,
    seed: int = AUDIT.seed,
    json_output: Json = False,
) -> int:
    """Find out whether a verifier of your own emits tokens that follow the target.

    The verifier is verify(target_probs, draft_probs, sibling_ids, uniforms) -> (token, accepted_idx).
    Exit code: 0 exact, 1 biased, 2 error, 3 undecided (nothing found). 2 is also that of a verifier some
    of whose calls fail or break the interface, where the law is right as far as it could be computed.

    Parameters
    ----------
    verifier : str
        module:function or file.py:function; modules of the current folder are found.
    siblings : int
        Candidates per position (n_siblings in Python).
    draws : str
        How the siblings that the verifier is given are drawn (siblings= in Python): iid,
        without_replacement, topk, hub, or module:function yielding (probability, ids).
    uniforms : int, optional
        Uniforms that one call may use. Default: one more than siblings.
    mode : str
        exact computes laws for small vocabularies; sampling is a sequential test.
    batch : str
        float64 or float32: the verifier is a torch function on batches, in this precision.
    tolerance : float, optional
        exact: total variation distance that counts as rounding. Default: 1e-9, or 1e-5 for float32.
    alpha : float
        Sampling: probability with which an exact verifier may be called biased.
    max_samples : int
        Sampling: tokens drawn at most.
    seed : int
        Seed of everything random.
    """
    verify = load_function(verifier)
    drafting: Any = load_function(draws) if ":" in draws else draws

    from resispec_sim.audit.adapters import torch_batch
    from resispec_sim.audit.run import audit

    report = audit(
        verify if batch == "no" else torch_batch(verify, dtype=batch),
        siblings,
        n_uniforms=uniforms,
        siblings=drafting,
        mode=mode,
        tolerance=tolerance,
        alpha=alpha,
        max_samples=max_samples,
        seed=seed,
    )
    if json_output:
        print(report.to_json())
    else:
        console().print(report.table())
    return 2 if report.verdict == "undecided" and report.findings else EXIT_CODES[report.verdict]


def load_function(text: str) -> Any:
    """The function that ``module:function`` or ``file.py:function`` names.

    Raises
    ------
    InputError
        If there is no such module or function, or the module fails when it is imported.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InputError(f"{text!r} names no function; write module:function or file.py:function")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may even exit when it is imported
        raise InputError(
            f"{text!r}: importing {place} fails: {type(error).__name__}: {error}"
        ) from error
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise InputError(f"{text!r}: {place} has no function {name!r}")
    return function


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> Any:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    finally:
        if here in sys.path:
            sys.path.remove(here)
