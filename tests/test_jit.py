"""Kernels on disk: several processes may start at once, and the user is told of a first compilation."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

KERNELS = """
from resispec_sim.engine.jit import njit

@njit
def half(x):
    return x / 2

@njit
def total(values):
    found = 0.0
    for value in values:
        found += half(value) + half(3)
    return found
"""
USE = """
import sys
import numpy as np
from kernels import total
from resispec_sim.chunks import announced

print("ready", flush=True)
sys.stdin.readline()
with announced(lambda line: print(line, file=sys.stderr)):
    for kind in sys.argv[1:]:
        print(kind, total(np.arange(5).astype(kind)))
"""
KINDS = ["int64", "float32"]


@pytest.fixture
def start(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    env = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    env.pop("NUMBA_DISABLE_JIT", None)
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    return lambda *kinds, **more: subprocess.Popen(
        [sys.executable, "-c", USE, *kinds], env=env | more, **pipes
    )


def finish(process):
    out, err = process.communicate("\n", timeout=120)
    assert process.returncode == 0, err
    return sorted(line for line in out.splitlines() if line != "ready"), err


def test_fresh_processes_may_compile_at_once(start):
    """Into the same empty folder, the same kernels for other types first; found there later."""
    running = [start(*KINDS[i:], *KINDS[:i]) for i in range(3)]
    # none starts so late that it finds what the others compiled
    assert [process.stdout.readline() for process in running] == ["ready\n"] * 3
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    results = [finish(process) for process in running]
    assert all(out == results[0][0] for out, _ in results)
    assert all("compiling kernels, once per installation" in err for _, err in results)
    out, err = finish(start(*KINDS))
    assert out == results[0][0]
    assert out == finish(start(*KINDS, NUMBA_DISABLE_JIT="1"))[0]
    assert "compiling" not in err  # no process dropped what another had kept


def test_a_constant_argument_compiles_nothing_anew(tmp_path):
    """The same function, called with a variable and with two constants."""
    script = (
        "from resispec_sim.engine.jit import kernel\n"
        "@kernel\ndef power(x, n):\n    return x if n == 0 else x * x\n"
        "@kernel\ndef caller(x, n):\n    return power(x, n) + power(x, 0) + power(x, 1)\n"
    )
    (tmp_path / "constants.py").write_text(script)
    use = "from constants import *; print(caller(3.0, 0), len(power.signatures))"
    out = subprocess.run(
        [sys.executable, "-c", use],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.split() == ["15.0", "1"]


def test_a_folder_that_cannot_be_written_costs_the_cache_only(start, tmp_path):
    (tmp_path / "cache").write_text("a file")
    out, err = finish(start("int64", HOME=str(tmp_path / "cache")))
    assert out == ["int64 12.5"]


def test_a_kernel_is_not_read_while_another_process_writes(monkeypatch, tmp_path):
    from resispec_sim.engine.jit import LOCK_NAME, _LockedFile

    class File:
        def load(self, key):
            return key

    seen = []
    file = _LockedFile(File(), tmp_path)
    with open(tmp_path / LOCK_NAME, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        reader = threading.Thread(target=lambda: seen.append(file.load("kernel")))
        reader.start()
        reader.join(timeout=0.3)
        assert reader.is_alive() and seen == []
    reader.join(timeout=10)
    assert seen == ["kernel"]
