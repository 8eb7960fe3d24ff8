"""The command line: output on stdout only, exit codes, one-line errors, files, interruption."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import resispec_sim.measure as measuring
from resispec_sim import __version__, write_dump
from resispec_sim.cli import run_command

V, LENGTH = 10, 6
HEAVY = ("numpy", "numba", "torch", "pandas", "matplotlib", "scipy", "cupy", "joblib")


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    rng = np.random.default_rng(11)
    target = rng.normal(size=(2, LENGTH, V)) * 2
    tokens = target.argmax(axis=-1)
    folder = tmp_path_factory.mktemp("dumps") / "tiny"
    draft = target + rng.normal(size=target.shape)
    prompts = ["Once upon a time", "The [bold]second[/bold] prompt"]
    write_dump(folder, list(target), list(draft), list(tokens), prompts=prompts, seed=11).close()
    return folder


@pytest.fixture(autouse=True)
def without_columns(monkeypatch):
    """GNU readline exports COLUMNS to the workers of pytest-xdist, which would fold the tables."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_replay_prints_a_table(dump, capsys):
    assert run_command(["replay", str(dump), "--siblings", "2", "--tree", "d3b2"]) == 0
    out = capsys.readouterr().out
    for text in (
        "specinfer",
        "resispec[capacity,minimal]",
        "exact",
        "biased",
        "d3b2",
        "random proxies",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110


def test_json_is_alone_on_stdout(dump, capsys):
    arguments = ["--json", "--siblings", "1,2", "--temperature", "1.0,0.5", "--positions", "0:6"]
    assert run_command(["replay", str(dump), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(g["temperature"], g["siblings"]) for g in found["groups"]] == [
        (1.0, 1), (1.0, 2), (0.5, 1), (0.5, 2),
    ]  # fmt: skip
    assert found["partial"] is False and found["n_positions"] == 6
    assert found["provenance"]["parameters"]["positions"] == [0, 6]


def test_rules_with_options(dump, capsys):
    rules = "specinfer,resispec:fill=water,budget=minimal,resispec[capacity,clipped]"
    assert run_command(["replay", str(dump), "--rules", rules, "--json", "--positions", "0:1"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert [figures["rule"] for figures in group["rules"]] == [
        "specinfer",
        "resispec[water,minimal]",
        "resispec[capacity,clipped]",
    ]


def test_out_writes_the_same_figures(dump, capsys, tmp_path):
    out = tmp_path / "new" / "results"
    assert run_command(["replay", str(dump), "--json", "--out", str(out)]) == 0
    shown = json.loads(capsys.readouterr().out)
    summary = json.loads((out / "summary.json").read_text())
    provenance = json.loads((out / "provenance.json").read_text())
    assert summary | {"provenance": provenance} == shown
    assert len((out / "positions.csv").read_text().splitlines()) == 1 + 2 * 2 * LENGTH


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["replay", "no-such-dump"], "no-such-dump"),
        (["inspect", "no-such-dump"], "no-such-dump"),
        (["replay", "DUMP", "--rules", "nonesuch"], "unknown rule 'nonesuch'"),
        (["replay", "DUMP", "--rules", "resispec:fill=sand"], "sand"),
        (["replay", "no-such-dump", "--rules", "specinfer,block"], "resispec chain"),
        (["replay", "no-such-dump", "--rules", "traversal"], "verifies a tree"),
        (["replay", "no-such-dump", "--rules", "spechub", "--siblings", "3"], "nothing is left"),
        (["compare", "no-such-dump", "--rules", "specinfer"], "one dump compares two"),
        (["bounds", "no-such-dump", "--rules", "spechub", "--siblings", "3,4"], "nothing is left"),
        (["replay", "DUMP", "--siblings", "two"], "--siblings 'two'"),
        (["replay", "DUMP", "--siblings", "0"], "siblings is 0"),
        (["replay", "DUMP", "--tree", "oak"], "oak"),
        (["replay", "DUMP", "--positions", "7"], "A:B"),
        (["replay", "DUMP", "--temperature", "hot"], "--temperature 'hot'"),
        (["replay", "DUMP", "--out", os.devnull], "null"),
    ],
)
def test_errors_are_one_line(dump, capsys, arguments, words):
    assert run_command([str(dump) if a == "DUMP" else a for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err and err.startswith("resispec: ") and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["replay"], ["replay", "x", "--bogus"], ["nonesuch"]])
def test_usage_errors(capsys, arguments):
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err


def test_inspect(dump, capsys):
    assert run_command(["inspect", str(dump)]) == 0
    out = capsys.readouterr().out
    assert "Once upon a time" in out and "shard-00000.safetensors" in out and "ok" in out
    assert "The [bold]second[/bold] prompt" in out  # text of a user, not markup
    assert run_command(["inspect", str(dump), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_positions"] == 2 * LENGTH and found["manifest"]["seed"] == 11


def test_inspect_checks_every_checksum(dump, capsys, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in dump.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    shard = copy / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    for command in ("inspect", "replay"):
        assert run_command([command, str(copy)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and "shard-00000.safetensors" in err


def test_version(capsys):
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


COMMANDS = [
    "audit", "bench", "bench-decode", "bounds", "chain", "compare", "decode", "inspect", "project",
    "record", "replay", "replay-trees", "rules", "train-eagle", "tree",
]  # fmt: skip


def test_every_command_is_listed(capsys):
    assert run_command(["--help"]) == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if f"│ {name} " not in out] == []


@pytest.mark.parametrize("command", [[], *[[name] for name in COMMANDS]])
def test_help(capsys, command):
    assert run_command([*command, "--help"]) == 0
    assert "resispec" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], *[[name] for name in COMMANDS if name != "audit"]])
def test_help_imports_nothing_heavy(command):
    code = (
        "import sys; from resispec_sim.cli import run_command; "
        f"run_command({[*command, '--help']!r}); "
        f"sys.exit(' '.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode == 0


def test_interrupted_run_is_saved_and_printed(dump, capsys, monkeypatch, tmp_path):
    calls, laws = [], measuring._laws  # one call a position

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return laws(*args, **kwargs)

    monkeypatch.setattr(measuring, "_laws", interrupted)
    arguments = ["--jobs", "1", "--json", "--out", str(tmp_path)]
    assert run_command(["replay", str(dump), *arguments]) == 130
    shown = json.loads(capsys.readouterr().out)
    assert shown["partial"] is True and shown["n_positions"] == 2
    assert json.loads((tmp_path / "summary.json").read_text())["n_positions"] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_on_a_real_process(dump, tmp_path, jobs):
    """A signal, not a raised exception: the run sleeps 0.2 s a position and is interrupted after a few."""
    code = (
        "import signal, sys, time\n"
        # ignored where the tests themselves run in the background of a shell
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import resispec_sim.measure as m\n"
        "from resispec_sim.cli import main\n"
        "laws = m._laws\n"
        "def slow(*a, **k):\n"
        "    found = laws(*a, **k); sys.stdout.write('law\\n'); time.sleep(0.2); return found\n"
        "m._laws = slow\n"
        f"main(['replay', {str(dump)!r}, '--jobs', {jobs!r}, '--out', {str(tmp_path)!r}])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(180, process.kill)
    watchdog.start()
    try:
        for _ in range(7):
            assert process.stdout.readline() == "law\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["partial"] is True and 1 <= summary["n_positions"] < 2 * LENGTH
    assert re.search(rf"PARTIAL: interrupted after {summary['n_positions']} of {2 * LENGTH}", out)


@pytest.mark.parametrize("columns", ["0", "1", "39"])
def test_a_terminal_too_narrow_counts_as_40_columns(dump, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert run_command(["replay", str(dump), "--positions", "0:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10 and max(map(len, lines)) == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "seed is -1"),
        (["--tree", "d9999b9999"], "tree d9999b9999: the depth may be at most 64"),
    ],
)
def test_values_out_of_range_are_one_line(dump, capsys, arguments, message):
    assert run_command(["replay", str(dump), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_empty_name(capsys):
    assert run_command(["replay", ""]) == 2
    assert "the name of the dump is empty ('')" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes there do not break this way")
@pytest.mark.parametrize("options", [["--json"], []])
def test_a_closed_pipe_ends_the_command_quietly(dump, options):
    code = f"from resispec_sim.cli import main; main(['replay', {str(dump)!r}, *{options!r}])"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert done.returncode in (1, 141)
    said = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert "resispec:" not in "".join(said) and "rror" not in "".join(said)


@pytest.mark.parametrize("text, budget", [("1000", 1000), ("1e3", 1000), ("4e7", 40_000_000)])
def test_budgets_are_whole_numbers_in_any_notation(dump, capsys, text, budget):
    arguments = ["replay", str(dump), "--rules", "specinfer", "--max-paths", text, "--json"]
    assert run_command(arguments) == 0
    assert json.loads(capsys.readouterr().out)["provenance"]["parameters"]["max_paths"] == budget


@pytest.mark.parametrize("text", ["1.5", "nan", "1e400", "many"])
def test_budgets_that_are_no_whole_numbers(dump, capsys, text):
    assert run_command(["replay", str(dump), "--max-paths", text]) == 2
    assert f"'{text}' is not a whole number" in capsys.readouterr().err


def test_a_folder_for_results_that_cannot_be_made(dump, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for where in ("file", "file/below"):
        assert run_command(["replay", str(dump), "--out", str(tmp_path / where)]) == 2
        assert f"cannot make the folder {tmp_path / where}" in capsys.readouterr().err
