"""Replays in threads, processes and on a cluster: the same figures, whatever happens to workers."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from resispec_sim import replay, write_dump
from resispec_sim.chunks import Chunk, compute, cut, error_of, pack
from resispec_sim.config import WORKERS
from resispec_sim.errors import InputError, LogitsError, ShardError, WorkerError
from resispec_sim.gap import acceptance_table
from resispec_sim.parallel import check_workers, run_positions
from resispec_sim.rules import Rejection
from resispec_sim.tree_eal import measure_siblings
from tests.dump_helpers import break_file

ROOT = Path(__file__).parents[1]
V, N_PROMPTS, LENGTH = 12, 4, 6
RULES = "specinfer,resispec,k-seq"


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    rng = np.random.default_rng(5)
    shape = (N_PROMPTS, LENGTH, V)
    target = rng.normal(scale=2, size=shape)
    draft = target + rng.normal(size=shape)
    ids = rng.integers(0, V, shape[:2])
    folder = tmp_path_factory.mktemp("dumps") / "small"
    with write_dump(folder, target, draft, ids, prompts_per_shard=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        # Of dask and what it imports: their own affair, and another one in every release.
        warnings.simplefilter("ignore")
        from distributed import LocalCluster

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as running:
            yield running


@pytest.fixture
def elsewhere(request):
    """Arguments of a backend by its name; the cluster is started for the first test that asks."""

    def arguments(backend):
        if backend != "dask":
            return {"backend": backend, "n_jobs": 2}
        address = request.getfixturevalue("cluster").scheduler_address
        return {"backend": "dask", "scheduler": address}

    return arguments


def same(one, other):
    pd.testing.assert_frame_equal(one.frame, other.frame, check_exact=True)
    assert one.to_json() == other.to_json()


# The same to the last bit.


@pytest.fixture(scope="module")
def serial(dump):
    return replay(dump, RULES, siblings=(2, 3), tree="d3b2", temperatures=(1.0, 0.6), n_jobs=1)


@pytest.mark.parametrize("backend", ["threads", "processes", "dask"])
def test_the_report_does_not_depend_on_the_backend(dump, serial, backend, elsewhere):
    found = replay(
        dump,
        RULES,
        siblings=(2, 3),
        tree="d3b2",
        temperatures=(1.0, 0.6),
        **elsewhere(backend),
    )
    same(found, serial)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_the_report_does_not_depend_on_where_chunks_end(dump, serial, seconds, monkeypatch):
    """A worker that hands back after every position, and one that never does."""
    parcel = pack(lambda dump, index, position: [index, position.token_id], dump, str(seconds))
    waiting, found = [Chunk(0, LENGTH)], []
    for name, value in (("hand_back_seconds", seconds), ("hand_back_seconds_per_gb", 0.0)):
        monkeypatch.setitem(WORKERS.__dict__, name, value)
    while waiting:
        done = compute(parcel, waiting.pop())
        found.append(done.found)
        waiting += [done.rest] if done.rest else []
    assert len(found) == (LENGTH if seconds == 0 else 1)
    assert [item for part in found for item in part] == [
        (i, [i, dump.read(i).token_id]) for i in range(LENGTH)
    ]


def test_results_come_in_order_of_position(dump):
    def work(dump, index, position):
        time.sleep(0.01 * (index % 3))
        return [index]

    for backend in ("threads", "processes"):
        found, partial = run_positions(work, dump, 2, 23, check_workers(3, backend, None))
        assert found == list(range(2, 23)) and not partial


def test_other_commands_take_a_backend(dump, elsewhere):
    for backend in ("threads", "processes"):
        table = acceptance_table(dump, (2, 3), "specinfer,k-seq", **elsewhere(backend))
        figures = measure_siblings(dump, Rejection(), 2, **elsewhere(backend))
        if backend == "threads":
            here = table, figures
    pd.testing.assert_frame_equal(here[0].frame, table.frame, check_exact=True)
    assert here[0].to_json() == table.to_json()
    assert all(np.array_equal(figures.w[k], here[1].w[k]) for k in figures.w)
    assert all(np.array_equal(figures.accepted[k], here[1].accepted[k]) for k in figures.w)


# Chunks.


@pytest.mark.parametrize("n_workers", [1, 2, 7])
@pytest.mark.parametrize("start, stop", [(0, 24), (3, 23), (5, 6)])
def test_chunks_cover_every_position_once_and_respect_shards(dump, start, stop, n_workers):
    chunks = cut(dump, start, stop, n_workers)
    assert [i for c in chunks for i in range(c.start, c.stop)] == list(range(start, stop))
    for chunk in chunks:
        assert dump.shard_of(chunk.start) == dump.shard_of(chunk.stop - 1)
    # the last ones are small: no worker is left alone with much
    assert chunks[-1].stop - chunks[-1].start == 1


def test_parts_of_a_chunk_make_it_up():
    for size in range(1, 9):
        for n in range(1, 5):
            parts = Chunk(3, 3 + size).split(n)
            assert len(parts) == min(n, len(parts))
            assert [i for p in parts for i in range(p.start, p.stop)] == list(range(3, 3 + size))


def test_a_shard_is_verified_once_per_process(dump, monkeypatch):
    from resispec_sim.dumps import open_dump, reader

    checked = []
    real = reader._check_shard

    def slow(file, path, *rest):
        checked.append(path.name)
        time.sleep(0.05)  # long enough for another thread to come by
        real(file, path, *rest)

    monkeypatch.setattr(reader, "_check_shard", slow)
    with open_dump(dump.path) as again:
        replay(again, "specinfer", n_jobs=3)
    assert sorted(checked) == [shard.file for shard in dump.manifest.shards]


# Workers that die.


@dataclass(frozen=True)
class Fatal(Rejection):
    """Notes every call, and kills the process at the call with a number, once or always."""

    folder: str = ""
    at_call: int = 0
    always: bool = False
    name: ClassVar[str] = "fatal"
    label: ClassVar[str] = "fatal"

    def accept_probs(self, state):
        folder = Path(self.folder)
        with open(folder / "calls", "a") as file:
            file.write(f"{zlib.crc32(state[0].tobytes())} {os.getpid()}\n")
        home = int((folder / "home").read_text())
        doomed = len((folder / "calls").read_text().splitlines()) >= self.at_call
        if home != os.getpid() and doomed:
            with contextlib.suppress(FileExistsError):
                if not self.always:
                    open(folder / "killed", "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().accept_probs(state)


def calls(folder):
    lines = (folder / "calls").read_text().split("\n")[:-1]
    (folder / "calls").unlink()
    return Counter(line.split()[0] for line in lines), {line.split()[1] for line in lines}


@pytest.mark.parametrize("backend", ["processes", "dask"])
def test_a_killed_worker_costs_time_only(dump, backend, elsewhere, tmp_path, caplog):
    (tmp_path / "home").write_text(str(os.getpid()))
    rule = Fatal(folder=str(tmp_path), at_call=10)
    arguments = {"siblings": 1, "tree": "d2b1"}
    with caplog.at_level(logging.WARNING, "resispec_sim.parallel"):
        report = replay(dump, rule, **arguments, **elsewhere(backend))
    assert (tmp_path / "killed").exists()
    counted, processes = calls(tmp_path)
    assert len(processes) >= 2
    same(replay(dump, rule, **arguments, n_jobs=1), report)
    once, here = calls(tmp_path)
    assert here == {str(os.getpid())}
    again = sum((counted - once).values())
    assert again >= 1 and set(counted) == set(once)
    if backend == "processes":
        assert "computing again: position" in caplog.text


def test_a_chunk_that_kills_every_worker_is_named(dump, elsewhere, tmp_path, caplog):
    """One position is fatal: the others are computed, and it is the one that the error names."""
    (tmp_path / "home").write_text(str(os.getpid()))

    def work(dump, index, position):
        if index == 13 and os.getpid() != int((tmp_path / "home").read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        return [index]

    workers = check_workers(2, "processes", None)
    with pytest.raises(
        WorkerError, match=r"^positions? [\d to]*13: workers die over it again and again"
    ):
        run_positions(work, dump, 0, dump.n_positions, workers)
    lost = [r.getMessage() for r in caplog.records if r.name == "resispec_sim.parallel"]
    assert len(lost) == 2 and all("computing again: positions 12 to 13" in line for line in lost)


# Errors.


def test_arguments_are_checked(dump):
    for arguments, says in (
        ({"backend": "threading"}, "backend is 'threading': use one of threads, processes, dask"),
        ({"backend": None}, "backend is None"),
        ({"scheduler": "tcp://127.0.0.1:8786"}, "a scheduler is for 'dask'"),
        ({"backend": "dask", "scheduler": 8786}, "scheduler is 8786"),
    ):
        with pytest.raises(InputError, match=says):
            replay(dump, **arguments)


def test_a_scheduler_that_is_not_there(dump):
    for address in ("tcp://127.0.0.1:9", "nonsense", "tcp://127.0.0.1:x"):
        with pytest.raises(
            WorkerError, match=f"no scheduler answers at '{address}' within 5 s.*dask"
        ):
            replay(dump, backend="dask", scheduler=address)
    with pytest.raises(WorkerError, match="no dask client is active: give one, such as scheduler="):
        replay(dump, backend="dask")


def test_a_missing_extra(dump, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(WorkerError, match=r'pip install "resispec-sim\[cluster\]"'):
        replay(dump, backend="dask", scheduler="tcp://127.0.0.1:9")


def test_a_dump_that_the_worker_does_not_see(dump, tmp_path):
    parcel = pack(Rejection(), dump, "gone")
    other = write_dump(tmp_path / "d", [[[0.0, 1.0]]], [[[0.0, 1.0]]], [[1]])
    other.close()
    shutil.rmtree(other.path)
    gone = compute(pack(Rejection(), other, "no manifest"), Chunk(0, 1))
    with pytest.raises(
        WorkerError, match=rf"process {os.getpid()}\) cannot read the dump {other.path}"
    ):
        raise error_of(gone)
    write_dump(other.path, [[[0.0, 2.0]]], [[[0.0, 1.0]]], [[1]]).close()
    with pytest.raises(WorkerError, match=f"has another dump at {other.path}"):
        raise error_of(compute(pack(Rejection(), other, "another"), Chunk(0, 1)))
    assert parcel.key == "gone"


@pytest.mark.parametrize("backend", ["processes", "dask"])
def test_errors_come_back_as_they_are(backend, elsewhere, tmp_path):
    row = np.zeros((3, V), dtype=np.float32)
    args = [row] * 3, [row] * 3, [[0, 1, 2]] * 3
    with write_dump(tmp_path / "d", *args, prompts_per_shard=1) as broken:
        break_file(tmp_path / "d" / "shard-00001.safetensors", "flip")
        with pytest.raises(ShardError, match="shard-00001.safetensors: its sha256"):
            replay(broken, "specinfer", **elsewhere(backend))


def failing(dump, index, position):
    raise Awkward("too much")


class Awkward(Exception):
    """Cannot be pickled."""

    def __reduce__(self):
        raise TypeError


class Holding:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, dump, index, position):
        return []


def test_work_and_errors_that_cannot_travel(dump):
    done = compute(pack(failing, dump, "failing"), Chunk(0, 1))
    with pytest.raises(WorkerError, match="the worker on .*Awkward: too much"):
        raise error_of(done)
    with pytest.raises(WorkerError, match="cannot be sent.*use backend='threads'"):
        run_positions(Holding(), dump, 0, 4, check_workers(2, "processes", None))


def test_bad_logits_are_named_by_a_worker(dump):
    def work(dump, index, position):
        raise LogitsError("prompt 3, position 4")

    with pytest.raises(LogitsError, match="prompt 3, position 4"):
        run_positions(work, dump, 0, 4, check_workers(2, "processes", None))


# A terminal and a notebook.

OWN_RULE = """
    import os, signal, sys, threading, time
    from resispec_sim import replay
    from resispec_sim.rules import Rejection

    class Half(Rejection):
        def accept_probs(self, state):
            {extra}
            return state[1] / 2

    if __name__ == "__main__":
        def go(**workers):
            return replay(sys.argv[1], Half(), siblings=1, tree="d2b1", **workers)
"""


def script(tmp_path, extra, then):
    file = tmp_path / "script.py"
    text = textwrap.dedent(OWN_RULE).format(extra=extra)
    file.write_text(text + textwrap.indent(textwrap.dedent(then), "    "))
    return file


def run(*command, **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, **options)


def test_a_rule_of_a_script_travels_and_ctrl_c_keeps_what_was_computed(dump, tmp_path):
    """The signal goes to the whole group of processes, as from a terminal."""
    file = script(
        tmp_path,
        "time.sleep(0.05)",
        """
        one = go(n_jobs=1).frame
        two = go(n_jobs=2, backend="processes").frame
        assert one.equals(two)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.6, os.killpg, (os.getpgid(0), signal.SIGINT)).start()
        cut = go(n_jobs=2, backend="processes")
        print(cut.partial, 0 < len(cut.frame) < len(one))
        """,
    )
    done = run(sys.executable, file, dump.path, start_new_session=True)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert "Traceback" not in done.stderr
