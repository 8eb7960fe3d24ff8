"""The GPU kernels' own code in numba's CUDA simulator, against the oracle and the CPU engine.

Each group runs in a process of its own: the simulator replaces `numba.cuda` for good.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def simulated(group: str) -> dict:
    done = subprocess.run(
        [sys.executable, HERE / "simulated_kernels.py", group],
        env=os.environ
        | {
            "NUMBA_ENABLE_CUDASIM": "1",
            "PYTHONPATH": f"{HERE.parent}",
            "PYTHONWARNINGS": "error",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_kernels_agree_with_the_oracle_on_edge_pairs():
    errors = simulated("edges")
    assert len(errors) == 8
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.slow
def test_kernels_agree_with_the_cpu_engine():
    errors = simulated("engine")
    assert len(errors) == 13
    assert max(errors.values()) < 1e-12, errors


def test_preparation_finds_the_buckets_and_foresees_the_steps():
    found = simulated("preparation")
    assert found.pop("buckets")
    assert 0.5 < found["predicted n=3"] < 2, found


def test_what_the_gpu_does_not_take_goes_to_the_cpu_and_says_so():
    notes = simulated("cpu")
    assert all(note.startswith("computed on the CPU: ") for note in notes.values())
    assert "path-steps predicted" in notes["predicted"]
    assert "no method 'sampled'" in notes["method"]
    assert "resispec[index" in notes["fill"]
    assert "up to 8 siblings" in notes["siblings"]
    assert "path-steps were not enough" in notes["given up"]
    assert "a check was missed by" in notes["wrong"]
