"""The raw log of a benchmark: one JSON line per step, and one that closes every prompt.

A prompt counts once its closing line is on the disk; what an interruption left behind it is cut off.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..errors import RunError


class StepLine(msgspec.Struct, frozen=True, tag_field="kind", tag="step"):
    """One step of decoding.

    Attributes
    ----------
    prompt, step : int
        Index of the measured prompt, and of the step in it.
    n_tokens, n_accepted, n_nodes : int
        Emitted tokens, the bonus included; accepted ones; nodes of the tree, the root included.
    cut : bool
        As in `resispec_sim.runtime.steps.Step`: it does not count for accepted lengths.
    phases : dict of str to float
        Seconds by phase; empty in a measured run.
    """

    prompt: int
    step: int
    n_tokens: int
    n_accepted: int
    n_nodes: int
    cut: bool
    phases: dict[str, float] = {}


class PromptLine(msgspec.Struct, frozen=True, tag_field="kind", tag="prompt"):
    """What closes a prompt.

    Attributes
    ----------
    prompt, seed : int
    n_prompt_tokens : int
        Tokens of the prompt, after it was cut.
    token_ids : list of int
        The new tokens.
    seconds : float
        Wall time of all steps.
    finished : str
        ``eos``, ``length`` or ``window``.
    peak_memory_bytes : int or None
        Largest allocation on the GPU.
    peak_process_bytes : int
        Largest resident memory of the process so far.
    """

    prompt: int
    seed: int
    n_prompt_tokens: int
    token_ids: list[int]
    seconds: float
    finished: str
    peak_memory_bytes: int | None
    peak_process_bytes: int


class SystemLine(msgspec.Struct, frozen=True, tag_field="kind", tag="system"):
    """What was loaded when a process began or went on."""

    about: dict[str, object]


Line = StepLine | PromptLine | SystemLine


@dataclass(frozen=True)
class PromptRecord:
    """A decoded prompt with its steps."""

    prompt: PromptLine
    steps: list[StepLine]


@dataclass
class RunLog:
    """The log of one method on one set of prompts.

    Attributes
    ----------
    path : Path
    records : dict of int to PromptRecord
        Closed prompts by index.
    systems : list of dict
        What was loaded, once per process that wrote here.

    Raises
    ------
    RunError
        If a line is not what this class writes: names file and line. A last line that was cut short
        is no error.
    """

    path: Path
    records: dict[int, PromptRecord] = field(default_factory=dict)
    systems: list[dict[str, object]] = field(default_factory=list)
    _n_good_bytes: int = 0
    _n_bytes: int = 0

    def __post_init__(self) -> None:
        if self.path.exists():
            self._read(self.path.read_bytes())

    def _read(self, content: bytes) -> None:
        self._n_bytes = len(content)
        decoder = msgspec.json.Decoder(Line)
        steps: list[StepLine] = []
        n_read = 0
        lines = io.BytesIO(content).readlines()  # at line feeds only
        for number, raw in enumerate(lines, start=1):
            n_read += len(raw)
            if not raw.endswith(b"\n"):
                break  # the last line, cut short
            try:
                line = decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise RunError(
                    f"{self.path}, line {number}: {error}; the file was altered: move it away to "
                    "measure its prompts again"
                ) from None
            if isinstance(line, StepLine):
                steps.append(line)
                continue
            if isinstance(line, SystemLine):
                self.systems.append(line.about)
            else:
                self.records[line.prompt] = record = PromptRecord(line, steps)
                if not _adds_up(record):
                    raise RunError(
                        f"{self.path}, line {number}: the steps of prompt {line.prompt} do not add up to it; "
                        "the file was altered: move it away to measure its prompts again"
                    )
            steps = []
            self._n_good_bytes = n_read

    def begin(self, about: dict[str, object]) -> None:
        """Cut off what an interruption left, and note what is loaded now.

        Raises
        ------
        RunError
            If the earlier part was written with other models.
        """
        for earlier in self.systems:
            for key in ("target", "draft"):
                if earlier.get(key) != about.get(key):
                    raise RunError(
                        f"{self.path}: begun with {key} {earlier.get(key)!r}, now {about.get(key)!r}; "
                        "take another folder"
                    )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            if self.path.stat().st_size != self._n_bytes:
                raise RunError(
                    f"{self.path}: has changed since it was read: another run writes to this folder; wait "
                    "for it, or take another folder"
                )
            os.truncate(self.path, self._n_good_bytes)
        self.systems.append(about)
        self._append([SystemLine(about)])

    def append(self, record: PromptRecord) -> None:
        """Write a prompt and wait until it is on the disk."""
        self._append([*record.steps, record.prompt])
        self.records[record.prompt.prompt] = record

    def _append(self, lines: Sequence[Line]) -> None:
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._n_good_bytes += len(data)
        self._n_bytes = self._n_good_bytes


def _adds_up(record: PromptRecord) -> bool:
    prompt, steps = record.prompt, record.steps
    return (
        prompt.prompt >= 0
        and prompt.seconds >= 0
        and [(step.prompt, step.step) for step in steps]
        == [(prompt.prompt, j) for j in range(len(steps))]
        and sum(step.n_tokens for step in steps) == len(prompt.token_ids)
    )
