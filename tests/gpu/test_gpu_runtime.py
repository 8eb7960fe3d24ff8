"""The live runtime on a GPU, skipped where there is none; and the script that checks it, on the CPU.

No GPU has been at hand for this project so far: the sections have been run on the CPU only.
"""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import check_runtime  # noqa: E402
import runtime_checks  # noqa: E402
import runtime_latency  # noqa: E402
from sections import Section, Session, run_sections  # noqa: E402

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason=f"torch {torch.__version__} finds no CUDA device"
)
FUNCTIONS = {
    section.name: getattr(
        runtime_latency if "latency" in section.module else runtime_checks, section.function
    )
    for section in check_runtime.SECTIONS
}


@needs_gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_section_on_a_gpu(name):
    session = Session("cuda", quick=False)
    FUNCTIONS[name](session)
    assert all(session.checks.values()), session.checks


@pytest.mark.slow
def test_the_whole_script_runs_on_the_cpu(tmp_path):
    file = tmp_path / "found.json"
    command = [sys.executable, check_runtime.__file__, "--device", "cpu", "--quick"]
    done = subprocess.run(
        [*command, "--json", str(file), "--seconds", "900"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert set(found["seconds"]) == set(FUNCTIONS) and not found["failed"]
    assert set(found["checks"]) == set(FUNCTIONS) - {"several GPUs"}
    assert found["figures"]["latency"]["resispec, d4b4: redistribution"]["value"] > 0
    assert any("SCALED-DOWN" in note for note in found["notes"])
    assert "not checked on the CPU" in done.stdout


def test_a_section_that_crashes_or_hangs_costs_itself_alone(tmp_path, monkeypatch):
    module = tmp_path / "sections_that_fail.py"
    module.write_text(
        "import os, time\n"
        "def fine(session):\n    session.check('fine', 0, 0)\n"
        "def dies(session):\n    session.check('before', 0, 0)\n    os._exit(7)\n"
        "def raises(session):\n    session.check('wrong', 1, 0)\n    raise ValueError('oh')\n"
        "def hangs(session):\n    session.figure('begun', 1, '')\n    time.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sections.START_SECONDS", 12.0)
    names = ("fine", "dies", "raises", "hangs", "late")
    sections = [
        Section(name, module.stem, "fine" if name == "late" else name, (1, 1)) for name in names
    ]
    written = []
    found = run_sections(sections, "cpu", True, 100, lambda f: written.append(len(f.seconds)))
    assert written == [1, 2, 3, 4, 5]
    assert found.checks["dies"]["before"]["passed"] and found.checks["late"]["fine"]["passed"]
    assert found.figures["hangs"]["begun"]["value"] == 1
    assert "exit code 7" in found.failed["dies"] and "oh" in found.failed["raises"]
    assert "not done" in found.failed["hangs"] and "raises: wrong" in found.failed
    assert len(found.failed) == 4


def test_a_device_that_is_not_there_is_named(capsys):
    missing = "cuda:99" if torch.cuda.is_available() else "cuda"
    assert check_runtime.main(["--device", missing, "--quick"]) == 1
    assert "--device cpu runs the same checks" in capsys.readouterr().out
