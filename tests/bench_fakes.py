"""Stands in for live systems: made-up steps from the seed, and a journal of what was asked."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from resispec_sim.errors import ModelError
from resispec_sim.run_config import AUTOREGRESSIVE, Method, RunConfig
from resispec_sim.runtime.bench_log import PromptLine, PromptRecord, StepLine
from resispec_sim.runtime.bench_system import SystemSpec

inherited = False  # a test sets it; a process that was spawned, not forked, does not see that
SECONDS = {"specinfer": 0.02, "resispec": 0.01, "exact-shaping": 0.01, AUTOREGRESSIVE: 0.005}


def fake_config(folder: Path, **changes: Any) -> RunConfig:
    """A run over 5 measured prompts; the journal is the file that it names as its target."""
    prompts = folder / "mine.txt"
    if not prompts.exists():
        prompts.write_text("".join(f"prompt {i}\n" for i in range(40)))
    entries: dict[str, Any] = {
        "about": "a made-up run",
        "target": str(folder / "journal.jsonl"),
        "draft": "fake",
        "tree": "d3b2",
        "methods": (Method("SpecInfer", "specinfer"), Method("ResiSpec", "resispec")),
        "prompts": (str(prompts),),
        "n_prompts": 5,
        "warmup_prompts": 2,
        "profile_prompts": 3,
        "seed": 100,
    }
    return RunConfig(**(entries | changes))


def journal(folder: Path) -> list[dict[str, Any]]:
    """What the systems of a run were asked, in order."""
    path = folder / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class FakeSystem:
    """Steps of 1 to 3 tokens, drawn from the prompt's seed; `target` is the journal's path.

    A file ``stop-N`` beside the journal makes call N fail in the way that it holds.
    """

    def __init__(self, spec: SystemSpec) -> None:
        self.spec = spec
        self.journal = Path(spec.config.target)
        self.about: dict[str, object] = {"target": {"name": "fake"}, "draft": spec.config.draft}

    def decode(self, index: int, text: str, seed: int, profile: bool) -> PromptRecord:
        method = self.spec.method
        call = {"method": method.name, "index": index, "text": text, "seed": seed}
        call |= {"profile": profile, "pid": os.getpid(), "inherited": inherited}
        with self.journal.open("a") as file:
            file.write(json.dumps(call) + "\n")
        self._stop(len(self.journal.read_text().splitlines()))
        rng = np.random.default_rng([seed, len(method.rule)])
        seconds = SECONDS[method.rule]
        most = 1 if method.rule == AUTOREGRESSIVE else 3
        sizes = [int(n) for n in rng.integers(1, most + 1, size=8)]
        phases = {"drafting": seconds / 4, "verification": seconds / 2, "shaping": seconds / 4}
        steps = [
            StepLine(index, j, n, n - 1, 7, j == 7, phases if profile else {})
            for j, n in enumerate(sizes)
        ]
        tokens = rng.integers(50, size=sum(sizes)).tolist()
        closing = PromptLine(index, seed, 3, tokens, seconds * len(sizes), "length", None, 10**9)
        return PromptRecord(closing, steps)

    def _stop(self, n_calls: int) -> None:
        wish = self.journal.with_name(f"stop-{n_calls}")
        if wish.exists():
            how = wish.read_text()
            if how == "interrupt":
                raise KeyboardInterrupt
            if how == "die":
                os._exit(7)
            if how == "known":
                raise ModelError("the model is broken")
            raise ValueError("some other fault")


@contextmanager
def open_fake(spec: SystemSpec) -> Iterator[FakeSystem]:
    """In place of `resispec_sim.runtime.bench_system.open_system`."""
    yield FakeSystem(spec)
