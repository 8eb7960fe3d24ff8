"""The decoding benchmark: several systems on the same prompts and seeds, logged step by step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InputError, RunError
from ..progress import position_progress
from ..provenance import provenance
from ..report import write_text
from ..run_config import Method, RunConfig, public_name, slug
from .bench_log import RunLog
from .bench_report import BenchResults, summarise
from .bench_system import System, SystemSpec, open_system
from .bench_worker import OpenSystem, remote_system
from .prompts import read_prompts

SETTINGS = "run.json"


@dataclass(frozen=True)
class _Logs:
    """The two logs of a method on one set of prompts."""

    measured: RunLog
    profiled: RunLog


def bench_decode(
    config: RunConfig,
    out: str | Path,
    *,
    name: str = "run",
    replaced: tuple[str, ...] = (),
    in_process: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda _line: None,
    open_system: OpenSystem = open_system,
) -> BenchResults:
    """Run a benchmark, or what is missing of one that was interrupted or had fewer prompts.

    Every method meets the same prompts in the same order, measured prompt i with seed + i. Methods
    alternate prompt by prompt, and so does which of them is first; with ``order = "sequential"`` they
    run one after the other. Each method has a process of its own per set of prompts. Prompts before
    the measured ones warm up. Phases are measured on some of the prompts once more, afterwards: their
    clocks synchronise the device, so those times are kept apart.

    Parameters
    ----------
    config : RunConfig
    out : str or Path
        Folder: ``run.json`` (settings), ``raw/DATASET/METHOD.jsonl`` and ``METHOD.profile.jsonl``
        (a line per step), ``summary.csv``, ``phases.csv``, ``prompts.csv``, ``results.json``.
    name : str
        Name of the run in the report.
    replaced : tuple of str
        Entries that are not those of the configuration's file, for the report.
    in_process : bool
        Load all systems in this process; for tests.
    progress : bool
        Show a progress bar on stderr.
    say : callable
        Receives one line per thing that a user should know.
    open_system : callable
        What builds a system from a `SystemSpec`; a function of a module, since it travels by name.

    Returns
    -------
    BenchResults
        With ``partial`` set after Ctrl-C; the same call goes on from there.

    Raises
    ------
    RunError
        If the folder holds a run with other settings, or a log that cannot be read.
    InputError
        If there are fewer prompts than asked for.
    ModelError, VocabularyError, RuleError, WorkerError
        If a system cannot be built, or its process dies.
    """
    folder = Path(out)
    texts = {dataset: _texts(config, source) for dataset, source in config.datasets.items()}
    _check_settings(folder, config, texts)
    logs = {
        dataset: {method.name: _open_logs(folder, dataset, method) for method in config.methods}
        for dataset in texts
    }
    every = [(dataset, pair) for dataset, of_set in logs.items() for pair in of_set.values()]
    n_missing = sum(_n_missing(config, pair) for _, pair in every)
    n_done = sum(len(pair.measured.records) for _, pair in every)
    if n_done:
        say(f"{n_done} measured prompts are already in {folder}")
    interrupted = False
    start = partial(_in_process if in_process else remote_system, open_system=open_system)
    total = n_missing + config.warmup_prompts * len(every)
    shown = progress and n_missing > 0
    bar = position_progress(total, "bench-decode", "prompts") if shown else nullcontext(_nothing)
    try:
        with bar as advance:
            for dataset in texts:
                for group in _groups(config):
                    _run_group(config, group, texts[dataset], logs[dataset], start, advance)
    except KeyboardInterrupt:
        if not any(pair.measured.records for _, pair in every):
            raise
        interrupted = True
    settings = _settings(config, texts)
    settings |= {key: public_name(settings[key]) for key in ("target", "draft")}
    for method in settings["methods"]:
        method["draft"] = method["draft"] and public_name(method["draft"])
    record = provenance(command="bench-decode", name=name, config=settings)
    results = summarise(name, config, _records(logs), _systems(logs), interrupted, replaced, record)
    results.save(folder)
    return results


def _run_group(
    config: RunConfig,
    methods: tuple[Method, ...],
    texts: list[str],
    logs: Mapping[str, _Logs],
    start: Callable[[SystemSpec], AbstractContextManager[System]],
    advance: Callable[[], None],
) -> None:
    if not any(_n_missing(config, logs[method.name]) for method in methods):
        return
    warmup, measured = texts[: config.warmup_prompts], texts[config.warmup_prompts :]
    with ExitStack() as stack:
        systems = {}
        for method in methods:
            system = stack.enter_context(start(SystemSpec(config, method)))
            systems[method.name] = system
            about = {**system.about, "method": method.name}
            logs[method.name].measured.begin(about)
            logs[method.name].profiled.begin(about)
        for text in warmup:
            for system in systems.values():
                system.decode(-1, text, config.seed, False)
                advance()
        for profile in (False, True):
            n_prompts = config.profile_prompts if profile else config.n_prompts
            for index, text in enumerate(measured[:n_prompts]):
                # What the one before leaves in caches and clocks must not always help the same one.
                for method in methods if index % 2 == 0 else methods[::-1]:
                    pair = logs[method.name]
                    log = pair.profiled if profile else pair.measured
                    if index not in log.records:
                        seed = config.seed + index
                        log.append(systems[method.name].decode(index, text, seed, profile))
                        advance()


def _nothing() -> None:
    """Stands in for a progress bar."""


def _groups(config: RunConfig) -> list[tuple[Method, ...]]:
    if config.order == "alternate":
        return [config.methods]
    return [(method,) for method in config.methods]


@contextmanager
def _in_process(spec: SystemSpec, open_system: OpenSystem) -> Iterator[System]:
    with open_system(spec) as system:
        yield system


def _n_missing(config: RunConfig, logs: _Logs) -> int:
    wanted = ((logs.measured, config.n_prompts), (logs.profiled, _n_profiled(config)))
    return sum(len(set(range(n)) - set(log.records)) for log, n in wanted)


def _n_profiled(config: RunConfig) -> int:
    return min(config.profile_prompts, config.n_prompts)


def _texts(config: RunConfig, source: str) -> list[str]:
    wanted = config.warmup_prompts + config.n_prompts
    found = read_prompts(source, wanted)
    if len(found) < wanted:
        raise InputError(
            f"{source} holds {len(found)} prompts, but {config.warmup_prompts} warm-up prompts and "
            f"{config.n_prompts} measured ones are asked for (--warmup-prompts, --n-prompts)"
        )
    return found


def _open_logs(folder: Path, dataset: str, method: Method) -> _Logs:
    stem = folder / "raw" / dataset / slug(method.name)
    logs = _Logs(
        RunLog(stem.with_name(f"{stem.name}.jsonl")),
        RunLog(stem.with_name(f"{stem.name}.profile.jsonl")),
    )
    for log in (logs.measured, logs.profiled):
        for about in log.systems:
            if about.get("method") != method.name:
                raise RunError(
                    f"{log.path}: holds the run of {about.get('method')!r}, not of {method.name!r}; give the "
                    "file its own name back"
                )
    return logs


def _settings(config: RunConfig, texts: Mapping[str, list[str]]) -> dict[str, Any]:
    """The run as plain data: files by their checksum, since a path says nothing elsewhere."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    for entry in (plain, *plain["methods"]):
        entry["tree"] = _tree_setting(entry["tree"])
    plain["prompts"] = {
        dataset: hashlib.sha256("\0".join(of_set).encode()).hexdigest()
        for dataset, of_set in texts.items()
    }
    if config.fit_text is not None:
        content = Path(config.fit_text)
        plain["fit_text"] = (
            hashlib.sha256(content.read_bytes()).hexdigest() if content.is_file() else "missing"
        )
    return plain


def _tree_setting(tree: Any) -> Any:
    if not isinstance(tree, str) or not Path(tree).is_file():
        return tree
    path = Path(tree)
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _check_settings(folder: Path, config: RunConfig, texts: Mapping[str, list[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path, settings = folder / SETTINGS, _settings(config, texts)
    if not path.exists() or not any(folder.glob("raw/*/*.jsonl")):
        write_text(path, json.dumps(settings, indent=2) + "\n")
        return
    try:
        earlier = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RunError(
            f"{path}: not the settings of a run ({error}); take another folder"
        ) from None
    n_earlier = earlier.get("n_prompts", 0)
    longer = isinstance(n_earlier, int) and 0 < n_earlier < config.n_prompts
    # a prompt's result does not depend on how many come after it
    same = settings
    if longer:
        first = config.warmup_prompts + n_earlier
        same = _settings(
            msgspec.structs.replace(config, n_prompts=n_earlier),
            {dataset: of_set[:first] for dataset, of_set in texts.items()},
        )
    # checksums last: another number of prompts has another one
    for key in sorted({**same, **earlier}, key=lambda key: key == "prompts"):
        if earlier.get(key) != same.get(key):
            raise RunError(
                f"{path}: the run in this folder has {key} = {earlier.get(key)!r}, this one "
                f"{same.get(key)!r}; take another folder"
            )
    if longer:
        write_text(path, json.dumps(settings, indent=2) + "\n")


def _records(logs: Mapping[str, Mapping[str, _Logs]]) -> dict[tuple[str, str, bool], Any]:
    return {
        (dataset, method, profile): (pair.profiled if profile else pair.measured).records
        for dataset, of_set in logs.items()
        for method, pair in of_set.items()
        for profile in (False, True)
    }


def _systems(logs: Mapping[str, Mapping[str, _Logs]]) -> list[dict[str, Any]]:
    return [
        {"dataset": dataset, "method": method, **pair.measured.systems[-1]}
        for dataset, of_set in logs.items()
        for method, pair in of_set.items()
        if pair.measured.systems
    ]
