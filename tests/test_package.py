"""The package as a user meets it: light to import, quick to answer, complete as a wheel."""

import os
import re
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import resispec_sim

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "resispec_sim"
SHIPPED = ("smollm2-t1.0", "smollm2-t0.6", "tiny-t1.0", "tiny-trees-t1.0")
HEAVY = {"cupy", "matplotlib", "numba", "pandas", "scipy", "torch", "transformers"}


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    """Run a command without the variables by which a pytest worker would know its parent."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def loaded_after(statement: str) -> set[str]:
    """Return the top-level modules that are loaded once a fresh interpreter has run a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(run(sys.executable, "-c", code).stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    loaded = loaded_after("import resispec_sim")
    assert "resispec_sim" in loaded
    assert not loaded & (HEAVY | {"numpy", "rich", "cyclopts"})


def test_importing_the_command_loads_nothing_heavy():
    assert not loaded_after("import resispec_sim.cli") & HEAVY


def test_using_the_engine_and_the_dumps_loads_no_torch():
    loaded = loaded_after(
        "import resispec_sim as rs\n"
        "for name in rs.__all__: getattr(rs, name)\n"
        "rs.exact_law('resispec', [0.5, 0.3, 0.2], [0.2, 0.2, 0.6], 2)"
    )
    assert "numba" in loaded
    assert not loaded & {"cupy", "matplotlib", "torch", "transformers"}


@pytest.mark.parametrize("name", resispec_sim.__all__)
def test_public_name_resolves(name):
    assert getattr(resispec_sim, name) is not None
    assert name in dir(resispec_sim)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = resispec_sim.no_such_name


@pytest.mark.parametrize(
    "before", ["", "import resispec_sim.replay", "from resispec_sim.replay import replay"]
)
def test_replay_is_the_function_whatever_was_imported_first(before):
    run(
        sys.executable,
        "-c",
        f"{before}\nimport resispec_sim as rs, types\n"
        "assert isinstance(rs.replay, types.FunctionType), rs.replay",
    )


@pytest.mark.timing
def test_help_answers_in_half_a_second():
    command = Path(sys.executable).with_name("resispec")
    assert "replay" in run(command, "--help").stdout
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        run(command, "--help")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5, seconds


def test_version_is_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(resispec_sim.__version__)}\b", changelog, re.M)


def blocks(language: str) -> list[str]:
    """Return the code blocks of the README in a language ("" for those that name none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    return [text for named, text in found if named == language]


def test_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The arrays that the text calls the reader's own: two positions, four tokens.
    rng = np.random.default_rng(0)
    names = {
        "rs": resispec_sim,
        "target_logits": rng.normal(size=(2, 4)),
        "draft_logits": rng.normal(size=(2, 4)),
        "token_ids": np.array([0, 3]),
    }
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["law"].output_probs == pytest.approx([0.4, 0.4, 0.2])
    assert len(names["report"].frame) == 2 * 4
    assert names["p"].sum() == pytest.approx(1.0)


def test_commands_of_the_readme_are_understood():
    from resispec_sim.cli import app

    lines = [line for block in blocks("") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("resispec ")]
    assert {command[1] for command in commands} == {
        *("replay", "inspect", "record"),
        *("bounds", "compare", "chain", "tree", "audit", "rules", "bench"),
        *("decode", "replay-trees", "train-eagle", "bench-decode", "project"),
    }
    for command in commands:
        app.parse_args(command[1:], exit_on_error=False, print_error=False)


def sources() -> list[Path]:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert len(files) > 10
    return files


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file_is_short_and_names_no_machine_path(path):
    text = path.read_text()
    assert text.count("\n") < 400
    if PACKAGE in path.parents:
        assert not re.search(r"""(?<![\w.~<])/(home|root|work|opt|mnt|Users)/\w""", text)


def test_kernels_run_as_plain_python():
    """The kernels' own tests once more with compilation off: numba must not change a figure."""
    done = run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "nojit",
        "tests/test_engine.py", "tests/test_ratio_space.py", "tests/test_softmax.py",
        cwd=ROOT, NUMBA_DISABLE_JIT="1",
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) > 0, done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from this clone with the build backend that is installed."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (path,) = out.glob("*.whl")
    return path


def test_wheel_holds_the_sample_dumps_and_the_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for dump in SHIPPED:
        here = {path.name for path in (ROOT / "logits_dumps" / dump).iterdir()}
        folder = f"resispec_sim/_shipped_dumps/{dump}/"
        there = {name.removeprefix(folder) for name in names if name.startswith(folder)}
        assert "manifest.json" in here
        assert there == here
    assert "resispec_sim/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "logits_dumps/")) for name in names)


def test_wheel_holds_the_small_pair(wheel):
    here = {
        f"resispec_sim/{path.relative_to(PACKAGE)}"
        for path in (PACKAGE / "models").rglob("*")
        if path.is_file()
    }
    assert sum(name.endswith("model.safetensors") for name in here) == 2
    assert here <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_wheel_replays_a_sample_dump_without_torch(wheel, tmp_path):
    """In an environment of its own, from a folder that is not the clone."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home = run(python, "-c", "import resispec_sim; print(resispec_sim.__file__)", cwd=elsewhere)
    assert str(tmp_path) in home.stdout
    missing = "import importlib.util as u; assert u.find_spec('torch') is None"
    run(python, "-c", missing, cwd=elsewhere)
    done = run(
        python.with_name("resispec"), "replay", "smollm2-t1.0", "--positions", "0:4",
        cwd=elsewhere, COLUMNS="200",
    )  # fmt: skip
    assert "specinfer" in done.stdout
    assert "resispec[capacity,minimal]" in done.stdout
