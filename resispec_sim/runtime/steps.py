"""What decoding returns and reports: its steps, their phases, and what a recorder sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .draft_tree import DraftTree
from .models import import_torch

Finish = Literal["eos", "length", "window"]


@dataclass(frozen=True)
class Step:
    """One round of drafting and verification.

    Attributes
    ----------
    tokens : list of int
        What it emitted: the accepted tokens and the one behind them.
    n_accepted : int
        Accepted tokens.
    n_nodes : int
        Nodes of the tree, the root included.
    cut : bool
        Whether the tree had to be cut down to what was left of the window or of the length, which is
        known before anything is drawn; such a step says nothing about accepted lengths. A step that
        ends the text by an end-of-text token is whole: leaving it out would be a choice by its outcome.
    phases : dict of str to float
        Seconds by phase, where they were asked for.
    """

    tokens: list[int]
    n_accepted: int
    n_nodes: int
    cut: bool
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        """Emitted tokens."""
        return len(self.tokens)


@dataclass(frozen=True)
class Decoded:
    """A decoded text and how it came about.

    Attributes
    ----------
    prompt_ids, token_ids : list of int
        Tokens of the prompt, and those that follow it.
    text : str
        The new tokens as text.
    steps : list of Step
    seconds : float
        Wall time of all steps, the prompt's pass excluded.
    finished : {"eos", "length", "window"}
        Why it ended: an end-of-text token, the number of tokens, or the models' window.
    peak_memory_bytes : int or None
        Largest allocation on a CUDA device; None on the CPU.
    """

    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    steps: list[Step]
    seconds: float
    finished: Finish
    peak_memory_bytes: int | None

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of the steps that were not cut; NaN where there is none."""
        whole = [step.n_tokens for step in self.steps if not step.cut]
        return float(np.mean(whole)) if whole else float("nan")


@dataclass
class NodeLog:
    """What a step hands to a recorder.

    Attributes
    ----------
    prefix : list of int
        All committed tokens before the step; the last is the tree's root.
    tree : DraftTree
    target_logits : callable
        Node numbers to logits (M, V) of the target.
    path : list of int
        Accepted nodes.
    tokens : list of int
        Emitted tokens.
    cut : bool
        As in `Step`.
    end_tokens : list of int
        Tokens that end the text; none where it goes on past them.
    """

    prefix: list[int]
    tree: DraftTree
    target_logits: Callable[[Sequence[int]], Any]
    path: list[int]
    tokens: list[int]
    cut: bool
    end_tokens: list[int]


class Clock:
    """Seconds by phase; synchronises the device around each, so only where it is asked for."""

    def __init__(self, device: Any, on: bool) -> None:
        self._device = device
        self._on = on
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        if not self._on:
            yield
            return
        self._wait()
        begun = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def _wait(self) -> None:
        if self._device.type == "cuda":
            import_torch()[0].cuda.synchronize(self._device)
