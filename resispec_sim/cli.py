"""The command `resispec`: parse, call, print.

Everything heavy is imported inside the commands, so that ``resispec --help`` answers at once.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App, CycloptsError

from . import __version__
from .audit.command import audit_command
from .bench.command import bench_command
from .bench_decode_command import bench_decode_command
from .chain_command import chain_command
from .compare_command import compare_command
from .config import REPLAY
from .decode_command import decode_command
from .errors import ResispecError
from .gap_command import bounds_command
from .live_config import RECORD, Dtype
from .project_command import project_command
from .rules_command import rules_command
from .terminal import (
    ENGINE_OPTIONS,
    INTERRUPTED,
    DumpName,
    EngineOptions,
    Json,
    Positions,
    TopK,
    TopP,
    console,
    make_folder,
    numbers,
)
from .train_eagle_command import train_eagle_command
from .tree_command import tree_command
from .tree_replay_command import tree_replay_command
from .types import Device

FAILED = 2
READER_GONE = 141  # what a shell shows for SIGPIPE

app = App(
    name="resispec",
    help="Exact output laws of speculative-decoding verification rules, from recorded logits.",
    version=__version__,
    help_format="plaintext",  # rendering markdown would cost a fifth of a second
    suppress_keyboard_interrupt=False,  # it would exit without a word
)


@app.command
def replay(
    dump: DumpName,
    /,
    *,
    rules: str = ",".join(REPLAY.rules),
    siblings: str = str(REPLAY.siblings),
    temperature: str | None = None,
    tree: str = REPLAY.tree,
    positions: Positions = None,
    top_k: TopK = None,
    top_p: TopP = None,
    engine: EngineOptions = ENGINE_OPTIONS,
    tolerance: float = REPLAY.tolerance,
    device: Device = "cpu",
    json_output: Json = False,
    out: Path | None = None,
) -> int:
    """Compute the exact laws of verification rules along a recorded dump.

    Ctrl-C ends the run and reports what was computed so far (exit code 130).

    Parameters
    ----------
    rules : str
        Comma list, with options: specinfer,resispec:fill=water.
    siblings : str
        Candidates per position in the per-position figures; a comma list makes one table each.
    temperature : str, optional
        Comma list. Default: the temperature that the dump was sampled at.
    tree : str
        Tree of the expected accepted length; d5b3 has 4 drafted levels and 3 children per node.
    tolerance : float
        Width of a bounded acceptance below which no more paths are walked for it.
    device : str
        cpu, or cuda: ResiSpec and SpecInfer on the current GPU, the rest on the CPU.
    out : Path, optional
        Folder for summary.json, positions.csv and provenance.json.
    """
    counts = numbers("--siblings", siblings, int)
    heat = None if temperature is None else numbers("--temperature", temperature, float)
    if out is not None:
        make_folder(out)

    from .replay import replay as run

    report = run(
        dump,
        rules,
        siblings=counts,
        temperatures=heat,
        tree=tree,
        positions=positions,
        top_k=top_k,
        top_p=top_p,
        tolerance=tolerance,
        device=device,
        **engine.arguments(),
    )
    if out is not None:
        print(f"written to {report.save(out)}", file=sys.stderr)
    if json_output:
        print(report.to_json())
    else:
        console().print(report.table())
    return INTERRUPTED if report.partial else 0


@app.command
def inspect(dump: DumpName, /, *, json_output: Json = False) -> int:
    """Show what is in a dump, of positions or of trees, and check every checksum."""
    from .dumps import open_dump, resolve_dump
    from .dumps.names import kind_of
    from .inspection import describe, tables

    if kind_of(resolve_dump(dump, None)) == "trees":
        from .tree_dumps import TreeDump
        from .tree_inspection import describe_trees, tree_tables

        trees = TreeDump(dump)
        if json_output:
            print(json.dumps(describe_trees(trees), indent=2))
        else:
            console().print(tree_tables(trees))
        return 0
    with open_dump(dump) as opened:
        opened.verify()
        if json_output:
            print(json.dumps(describe(opened), indent=2))
        else:
            console().print(tables(opened))
    return 0


@app.command
def record(
    *,
    out: Path,
    target: str = RECORD.target,
    draft: str = RECORD.draft,
    prompts: Path | None = None,
    new_tokens: int = RECORD.new_tokens,
    temperature: float = RECORD.temperature,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = RECORD.seed,
    dtype: Dtype = RECORD.dtype,
    torch_dtype: Dtype = RECORD.torch_dtype,
    fit_text: Path | None = None,
    device: str = RECORD.device,
    batch_size: int = RECORD.batch_size,
) -> int:
    """Record a dump from live models: text sampled from the target, logits of both.

    A recording that was interrupted is completed by the same command.

    Parameters
    ----------
    out : Path
        Folder of the dump.
    target : str
        Hub name, local folder or GGUF file of a causal language model, tiny-target or smollm2.
    draft : str
        A second model with the same tokenizer, or exit:N: the target's own head on its layer N.
    prompts : Path, optional
        One prompt per line; .jsonl: objects with the key prompt. Default: 48 that come with the package.
    new_tokens : int
        Tokens sampled per prompt.
    temperature : float
        Sampling temperature.
    top_k : int, optional
        Keep the k most probable tokens.
    top_p : float, optional
        Keep the smallest set of tokens with this mass.
    seed : int
        Seed of the sampling; every prompt has a stream of its own.
    dtype : str
        Storage of the logits.
    torch_dtype : str
        Precision in which the models run.
    fit_text : Path, optional
        Text on which the map of an exit:N draft is fitted by least squares.
    device : str
        cpu, cuda, cuda:1.
    batch_size : int
        Prompts that are sampled together.
    """
    from .runtime.record import record as run
    from .runtime.shipped import prompts_file

    with run(
        target,
        draft,
        prompts or prompts_file(),
        new_tokens=new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        out=out,
        dtype=dtype,
        torch_dtype=torch_dtype,
        fit_text=fit_text,
        device=device,
        batch_size=batch_size,
        progress=True,
        say=lambda line: print(line, file=sys.stderr),
    ) as dump:
        print(f"{dump.path}: {dump.n_positions} positions of {dump.n_prompts} prompts")
    return 0


app.command(decode_command, name="decode")
app.command(rules_command, name="rules")
app.command(compare_command, name="compare")
app.command(bounds_command, name="bounds")
app.command(tree_command, name="tree")
app.command(tree_replay_command, name="replay-trees")
app.command(chain_command, name="chain")
app.command(audit_command, name="audit")
app.command(bench_command, name="bench")
app.command(bench_decode_command, name="bench-decode")
app.command(project_command, name="project")
app.command(train_eagle_command, name="train-eagle")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 2 after an error, 130 after Ctrl-C."""
    sys.exit(run_command(arguments))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(tokens, exit_on_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError:
        return FAILED  # cyclopts has printed it
    except BrokenPipeError:
        # Nobody reads any more. What is still buffered goes nowhere, or exiting would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except (ResispecError, OSError) as error:
        print(f"resispec: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("resispec: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else 0
