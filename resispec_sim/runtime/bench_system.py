"""One system under measurement: models, rule and tree, loaded once and asked for one prompt at a time."""

from __future__ import annotations

import os
import platform
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from ..errors import InputError
from ..run_config import Method, RunConfig, TopKShape, public_name
from .bench_log import PromptLine, PromptRecord, StepLine
from .decode import Decoder
from .drafters import TopKTree
from .drafts import load_draft
from .early_exit import parse_exit
from .models import LoadedModel, import_torch, load_model


@dataclass(frozen=True)
class SystemSpec:
    """What a process needs to know to build a system; it travels to it by pickle.

    Attributes
    ----------
    config : RunConfig
    method : Method
    """

    config: RunConfig
    method: Method


class System(Protocol):
    """A system that decodes prompts.

    Attributes
    ----------
    about : dict
        What was loaded, as plain data: ``target`` and ``draft`` identify the models.
    """

    @property
    def about(self) -> dict[str, object]:
        """What was loaded."""

    def decode(self, index: int, text: str, seed: int, profile: bool) -> PromptRecord:
        """Decode one prompt; `index` and `seed` go into the record."""


class LiveSystem:
    """A system of torch models.

    Parameters
    ----------
    spec : SystemSpec

    Raises
    ------
    ModelError, VocabularyError, RuleError, InputError
        If the models cannot be loaded, or do not go with the rule and the tree.
    """

    def __init__(self, spec: SystemSpec) -> None:
        config, method = spec.config, spec.method
        torch, _ = import_torch()
        self._config = config
        self._target = load_model(
            config.target, device=config.device, torch_dtype=config.torch_dtype
        )
        draft_name = config.draft_of(method)
        draft = None if draft_name is None else _load_draft(config, draft_name, self._target)
        rule = "specinfer" if draft is None else method.rule  # never asked without a draft
        self._decoder = Decoder(
            self._target,
            draft,
            rule,
            _as_tree(config.tree_of(method)),
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            dtype=config.rule_dtype,
        )
        public = None if draft_name is None else public_name(draft_name)
        device = self._target.device
        self.about: dict[str, object] = {
            "target": _identity(self._target),
            "draft": _identity(draft) if isinstance(draft, LoadedModel) else public,
            "device": torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else platform.machine(),
            "cpu_threads": int(torch.get_num_threads()),
            "torch": str(torch.__version__),
        }

    def decode(self, index: int, text: str, seed: int, profile: bool) -> PromptRecord:
        """Decode one prompt, cut to its first tokens."""
        config = self._config
        ids = self._target.tokenizer(text)["input_ids"][: config.prompt_tokens]
        if not ids:
            raise InputError(f"prompt {index}, {text[:40]!r}, has no tokens")
        room = config.max_new_tokens
        if config.max_length is not None:
            room = min(room, config.max_length - len(ids))
        decoded = self._decoder.decode(ids, max_new_tokens=room, seed=seed, profile=profile)
        steps = [
            StepLine(index, j, step.n_tokens, step.n_accepted, step.n_nodes, step.cut, step.phases)
            for j, step in enumerate(decoded.steps)
        ]
        closing = PromptLine(
            prompt=index,
            seed=seed,
            n_prompt_tokens=len(ids),
            token_ids=decoded.token_ids,
            seconds=decoded.seconds,
            finished=decoded.finished,
            peak_memory_bytes=decoded.peak_memory_bytes,
            peak_process_bytes=peak_process_bytes(),
        )
        return PromptRecord(closing, steps)


@contextmanager
def open_system(spec: SystemSpec) -> Iterator[System]:
    """Load a system in this process, with its seeds and torch's deterministic mode set.

    Operations of which torch has no deterministic version run all the same; torch warns of each once.
    """
    config = spec.config
    # Read by cuBLAS when its first handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch, _ = import_torch()
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # the most that it takes
    torch.manual_seed(config.seed)
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )
    filled = torch.utils.deterministic.fill_uninitialized_memory
    if config.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        # Finds reads of uninitialised memory, at the price of a pass over every new tensor.
        torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("once", message=".*deterministic.*", category=UserWarning)
            yield LiveSystem(spec)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[2:]


def peak_process_bytes() -> int:
    """Largest resident memory of this process so far, in bytes; 0 where it cannot be read."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def _load_draft(config: RunConfig, name: str, target: LoadedModel) -> Any:
    # Methods of one run may have drafts of several kinds; the text is for the exits among them.
    fit_text = None if parse_exit(name) is None else config.fit_text
    return load_draft(
        name, target, fit_text=fit_text, device=config.device, torch_dtype=config.torch_dtype
    )


def _as_tree(tree: Any) -> Any:
    if isinstance(tree, TopKShape):
        return TopKTree(**msgspec.structs.asdict(tree))
    return "d2b1" if tree is None else tree  # never grown without a draft


def _identity(model: LoadedModel) -> dict[str, str]:
    return {"name": model.source.identity, "fingerprint": model.fingerprint}
