"""Replay at scale: several workers against one, and a large dump against merely reading it.

Run as ``python -m resispec_sim.bench.scale``; the figures are printed as JSON. Times are the best of
several, each taken in a process of its own, and all of one run: only their ratios mean something.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..dumps import Dump, DumpWriter, open_dump, plan_dump
from ..provenance import provenance

V = 49_152
PER_PROMPT = 32


def make_dump(folder: str | os.PathLike[str], n_bytes: int, seed: int = 0, vocab: int = V) -> Dump:
    """Write a synthetic dump of about `n_bytes`, a shard at a time, and open it.

    Logits fall with the logarithm of a token's rank, as those of language models do; the draft is the
    target with noise.

    Parameters
    ----------
    folder : path
    n_bytes : int
    seed : int
    vocab : int
        V of both models.

    Returns
    -------
    Dump
        float16, temperature 1, 32 positions per prompt.
    """
    n_prompts = max(1, round(n_bytes / (4 * vocab * PER_PROMPT)))
    plan = plan_dump(
        prompts=["synthetic"] * n_prompts, new_tokens=PER_PROMPT, target_vocab_size=vocab, seed=seed
    )
    rng = np.random.default_rng(seed)
    fall = -1.2 * np.log1p(np.arange(vocab, dtype=np.float32))
    noise = rng.normal(scale=0.7, size=(PER_PROMPT + 1, vocab)).astype(np.float32)
    writer = DumpWriter(folder, plan)
    for shard_idx in writer.missing():
        prompts = []
        for _ in plan.shards[shard_idx].prompt_idxs:
            target = np.stack([rng.permutation(fall) for _ in range(PER_PROMPT)]) + noise[1:]
            draft = target + np.roll(noise[:-1], int(rng.integers(vocab)), axis=1)
            prompts.append((target.argmax(axis=1), target, draft))
        writer.write_shard(shard_idx, prompts)
    writer.finish()
    return open_dump(folder)


def read_and_softmax(path: str, n_jobs: int) -> int:
    """Read a dump, verify its checksums and take the softmax of both rows of every position.

    The least that any replay has to do; with torch where it is installed, on one thread per process.

    Returns
    -------
    int
        Positions.
    """
    from joblib import Parallel, delayed

    n_shards = len(open_dump(path).manifest.shards)
    parallel = Parallel(n_jobs=n_jobs, batch_size=1)
    counts: list[int] = parallel(delayed(_softmax_of_shard)(path, i) for i in range(n_shards))
    return sum(counts)


def _softmax_of_shard(path: str, shard_idx: int) -> int:
    softmax = _softmax()
    dump = open_dump(path)
    shard = dump.manifest.shards[shard_idx]
    data = bytearray(shard.n_bytes)
    with open(dump.path / shard.file, "rb", buffering=0) as file:
        file.readinto(data)
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise AssertionError(f"{shard.file} is damaged")
    rows = 2 * sum(shard.n_positions)
    start = shard.n_bytes - rows * dump.vocab_size * 2
    logits = np.frombuffer(data, np.float16, offset=start).reshape(-1, 2, dump.vocab_size)
    for pair in logits:
        softmax(pair)
    return len(logits)


def _softmax() -> Callable[[Any], Any]:
    try:
        import torch
    except ImportError:
        from scipy.special import softmax

        return lambda pair: softmax(pair.astype(np.float64), axis=-1)
    torch.set_num_threads(1)
    return lambda pair: torch.softmax(torch.from_numpy(pair).to(torch.float64), -1)


def replayed(path: str, backend: str, n_jobs: int, **arguments: Any) -> dict[str, Any]:
    """Replay a dump twice with the same workers, and watch memory meanwhile.

    Returns
    -------
    dict
        ``first_s``, with the start of the workers; ``seconds``, with workers that run already, and
        ``cpu_s``, what that took of all cores together, which other programs on the machine change less;
        ``peak_mib`` of the largest process, and ``total_mib`` of all together (resident, so what they
        share counts several times).
    """
    from ..replay import replay

    watch = _Memory()
    first, again = (
        _timed(lambda: replay(path, n_jobs=n_jobs, backend=backend, **arguments))  # type: ignore[arg-type]
        for _ in range(2)
    )
    return {"first_s": first["seconds"], **again, **watch.stop()}


def _timed(run: Callable[[], Any]) -> dict[str, float]:
    cpu = sum(map(_cpu_seconds, _family()))
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "cpu_s": sum(map(_cpu_seconds, _family())) - cpu}


class _Memory:
    """Resident memory of this process and those below it, looked at ten times a second."""

    def __init__(self) -> None:
        self._peak: dict[int, int] = {}
        self._total = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            now = {pid: _status(pid) for pid in _family()}
            self._total = max(self._total, sum(rss for rss, _ in now.values()))
            for pid, (_, peak) in now.items():
                self._peak[pid] = max(peak, self._peak.get(pid, 0))

    def stop(self) -> dict[str, float]:
        self._ended.set()
        self._thread.join()
        return {
            "peak_mib": max(self._peak.values(), default=0) / 1024,
            "total_mib": self._total / 1024,
        }


def _family() -> list[int]:
    found = [os.getpid()]
    for pid in found:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, file.read_text().split())
            except OSError:
                continue  # it has ended
    return found


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int) -> tuple[int, int]:
    """Resident memory now and at its peak, in KiB; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = dict(line.split(":", 1) for line in lines)
    rss, peak = (int(sizes.get(name, "0 kB").split()[0]) for name in ("VmRSS", "VmHWM"))
    return rss, peak


def large_dump(
    n_bytes: int, n_jobs: int, folder: str, backend: str = "processes"
) -> dict[str, Any]:
    """A synthetic dump replayed (SpecInfer, n = 3) against reading it and taking the softmax.

    The dump is made in a temporary folder below `folder` and deleted at the end.

    Returns
    -------
    dict
        ``speed`` is that of the replay over that of reading, verifying and softmax; ``speed_by_cpu``
        the same in time of all cores.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        dump = make_dump(Path(place) / "dump", n_bytes)
        size = sum(shard.n_bytes for shard in dump.manifest.shards)
        path = str(dump.path)
        base = [_apart("base", path, n_jobs)]
        found = _apart("replay", path, backend, n_jobs, "specinfer", 3, None)
        base.append(_apart("base", path, n_jobs))
    seconds, cpu = (min(figures[name] for figures in base) for name in ("seconds", "cpu_s"))
    return {
        "gigabytes": size / 1e9,
        "positions": dump.n_positions,
        "shards": len(dump.manifest.shards),
        "jobs": n_jobs,
        "backend": backend,
        "read_verify_softmax": base,
        "replay": found,
        "speed": seconds / found["seconds"],
        "speed_by_cpu": cpu / found["cpu_s"],
        "speed_with_start": seconds / found["first_s"],
    }


def speed_up(dump: str, temperature: float, n_jobs: int, repeats: int = 3) -> dict[str, Any]:
    """`n_jobs` processes against one on a dump, SpecInfer and ResiSpec at n = 3.

    Returns
    -------
    dict
        ``speed_up``, the best time of one process over the best of `n_jobs`.
    """
    one: list[dict[str, Any]] = []
    several: list[dict[str, Any]] = []
    for _ in range(repeats):
        for jobs, into in ((1, one), (n_jobs, several)):
            into.append(
                _apart("replay", dump, "processes", jobs, "specinfer,resispec", 3, temperature)
            )
    best, cpu = (
        [min(figures[name] for figures in side) for side in (one, several)]
        for name in ("seconds", "cpu_s")
    )
    return {
        "dump": dump,
        "temperature": temperature,
        "jobs": n_jobs,
        "seconds": best,
        "cpu_s": cpu,
        "speed_up": best[0] / best[1],
    }


def _apart(*what: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, "--one", json.dumps(what)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _one(kind: str, *rest: Any) -> dict[str, Any]:
    if kind == "base":
        path, n_jobs = rest
        read_and_softmax(path, n_jobs)  # starts the workers
        return _timed(lambda: read_and_softmax(path, n_jobs))
    path, backend, n_jobs, rules, siblings, temperature = rest
    return replayed(path, backend, n_jobs, rules=rules, siblings=siblings, temperatures=temperature)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="0 leaves the large dump out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--backend", default="processes", choices=("threads", "processes"))
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the dump is made")
    parser.add_argument("--speed-up", action="store_true", help="also the shipped dumps")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(_one(*json.loads(given.one))))
        return
    found: dict[str, Any] = {"provenance": provenance(command="bench scale")}
    if given.speed_up:
        found["speed_up"] = [speed_up(f"smollm2-t{heat}", heat, given.jobs) for heat in (0.6, 1.0)]
    if given.gigabytes:
        n_bytes = round(given.gigabytes * 1e9)
        found["large_dump"] = large_dump(n_bytes, given.jobs, given.folder, given.backend)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
