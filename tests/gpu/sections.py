"""Sections of a long check, one after the other in a process of their own.

What a section finds is sent as it is found. A section that fails, dies or passes its time costs itself
alone: the next one starts in a fresh process, since a GPU that was asked for something impossible answers
nothing else to the process that asked.
"""

import importlib
import multiprocessing
import time
import traceback
from dataclasses import asdict, dataclass, field

TOTAL = 440.0
START_SECONDS = 90.0


@dataclass(frozen=True)
class Section:
    """A function of a module, called with a `Session`, and its seconds (full, quick) of `TOTAL`."""

    name: str
    module: str
    function: str
    seconds: tuple[float, float]


@dataclass
class Session:
    """What a section is given: where to run, how long, and where its findings go."""

    device: str
    quick: bool
    seconds: float = 600.0
    emit: object = None
    start: float = field(default_factory=time.perf_counter)
    checks: dict = field(default_factory=dict)

    def left(self) -> float:
        return self.seconds - (time.perf_counter() - self.start)

    def check(self, name: str, error: float, limit: float) -> None:
        """A check passes where the error is at most the limit."""
        passed = bool(float(error) <= limit)
        self.checks[name] = passed
        self._send("check", name, {"error": float(error), "limit": limit, "passed": passed})

    def figure(self, name: str, value: float, unit: str) -> None:
        self._send("figure", name, {"value": float(value), "unit": unit})

    def note(self, text: str) -> None:
        self._send("note", text, None)

    def _send(self, kind: str, name: str, value) -> None:
        if self.emit is not None:
            self.emit((kind, name, value))


@dataclass
class Findings:
    """What is known so far; `asdict` of it is what is written as JSON."""

    checks: dict = field(default_factory=dict)
    figures: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    seconds: dict = field(default_factory=dict)
    failed: dict = field(default_factory=dict)

    def take(self, section: str, kind: str, name: str, value) -> None:
        """Keep one finding, and print it."""
        if kind == "note":
            self.notes.append(f"{section}: {name}")
            print(f"  {name}", flush=True)
        elif kind == "figure":
            self.figures.setdefault(section, {})[name] = value
            print(f"  {name:<66}{value['value']:>12.5g}  {value['unit']}", flush=True)
        else:
            self.checks.setdefault(section, {})[name] = value
            verdict = "ok" if value["passed"] else "FAILED"
            shown = f"{value['error']:.1e} of {value['limit']:.0e}"
            print(f"  {name:<66}{shown:>18}  {verdict}", flush=True)
            if not value["passed"]:
                self.failed[f"{section}: {name}"] = shown

    def as_dict(self) -> dict:
        return asdict(self)


class Worker:
    """A process that runs sections until one goes wrong."""

    def __init__(self, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, device), daemon=True)
        self.process.start()
        self.is_fresh = True
        there.close()

    def ask(self, what, seconds: float, take) -> str:
        """Have a section run; returns what went wrong, or nothing."""
        try:
            self.pipe.send(what)
            # a process that has just started imports torch first
            deadline = time.perf_counter() + seconds + START_SECONDS * self.is_fresh
            self.is_fresh = False
            while True:
                if not self.pipe.poll(max(0.0, deadline - time.perf_counter())):
                    return f"not done after {seconds:.0f} s"
                kind, name, value = self.pipe.recv()
                if kind == "done":
                    return name
                take(kind, name, value)
        except (EOFError, OSError):
            self.process.join(5)
            return f"the process ended with exit code {self.process.exitcode}"

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def run_sections(sections, device: str, quick: bool, seconds: float, write) -> Findings:
    """Run what there is time for; `write` gets the findings after every section.

    Without the first section the others cannot run.
    """
    findings, start, worker = Findings(), time.perf_counter(), None
    for section in sections:
        begun = time.perf_counter()
        left = seconds - (begun - start)
        budget = min(section.seconds[quick] * seconds / TOTAL, left)
        print(f"\n== {section.name} (at most {budget:.0f} s; {left:.0f} s left)", flush=True)
        if left < 3:
            wrong = "not reached: no time left"
        else:
            worker = worker or Worker(device)
            what = (section.module, section.function, quick, budget)

            def take(kind, name, value, section=section):
                findings.take(section.name, kind, name, value)

            wrong = worker.ask(what, budget, take)
        findings.seconds[section.name] = round(time.perf_counter() - begun, 1)
        if wrong:
            findings.failed[section.name] = wrong
            print(f"  FAILED: {wrong}", flush=True)
            if worker is not None:
                worker.end()
                worker = None
        write(findings)
        if wrong and section is sections[0]:
            break
    if worker is not None:
        worker.end()
    return findings


def _serve(pipe, device: str) -> None:
    try:
        while True:
            module, function, quick, seconds = pipe.recv()
            try:
                run = getattr(importlib.import_module(module), function)
                run(Session(device, quick, seconds, pipe.send))
                pipe.send(("done", "", None))
            except Exception:
                last = traceback.format_exc(limit=-3).strip()
                pipe.send(("done", last, None))
    except (EOFError, OSError):
        return
