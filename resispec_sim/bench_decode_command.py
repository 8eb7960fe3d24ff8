"""The command `resispec bench-decode`."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .errors import InputError
from .live_config import Dtype, Order
from .terminal import INTERRUPTED, Json, console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .run_config import RunConfig


@Parameter(name="*")
@dataclass(frozen=True)
class Overrides:
    """Entries of a run configuration that the command line may replace."""

    target: Annotated[str | None, Parameter(help="Another target.")] = None
    draft: Annotated[
        str | None, Parameter(help="Another draft, for all methods: a model, exit:N, eagle:PATH.")
    ] = None
    tree: Annotated[
        str | None, Parameter(help="Another tree, for all methods: d5b3 or a grow map's file.")
    ] = None
    prompts: Annotated[
        str | None,
        Parameter(help="Comma list of files of prompts and corpora, such as dataset:c4."),
    ] = None
    temperature: Annotated[float | None, Parameter(help="Another temperature.")] = None
    n_prompts: Annotated[int | None, Parameter(help="Measured prompts.")] = None
    warmup_prompts: Annotated[int | None, Parameter(help="Prompts before them.")] = None
    profile_prompts: Annotated[
        int | None, Parameter(help="Measured prompts that are timed once more, by phase.")
    ] = None
    prompt_tokens: Annotated[int | None, Parameter(help="Prompts are cut to so many.")] = None
    max_new_tokens: Annotated[int | None, Parameter(help="New tokens per prompt.")] = None
    seed: Annotated[int | None, Parameter(help="Prompt i is decoded with this plus i.")] = None
    torch_dtype: Annotated[Dtype | None, Parameter(help="Precision of the models.")] = None
    device: Annotated[str | None, Parameter(help="cpu, cuda, cuda:1.")] = None
    order: Annotated[
        Order | None,
        Parameter(help="alternate, or sequential: one method after the other, as in the paper."),
    ] = None

    def given(self) -> dict[str, Any]:
        """The entries that were given."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        if self.prompts is not None:
            values["prompts"] = [piece.strip() for piece in self.prompts.split(",")]
        return values


OVERRIDES = Overrides()


def bench_decode_command(
    config: str | None = None,
    /,
    *,
    list_configs: Annotated[bool, Parameter(name="--list", negative="")] = False,
    out: Path | None = None,
    local: str | None = None,
    overrides: Overrides = OVERRIDES,
    in_process: Annotated[bool, Parameter(negative="")] = False,
    json_output: Json = False,
) -> int:
    """Decode prompts live with several systems and compare accepted length, speed and memory.

    Every system runs in a process of its own, on the same prompts and seeds. Ctrl-C ends the run and
    shows what is finished (exit code 130); the same command goes on from there.

    Parameters
    ----------
    config : str, optional
        A shipped run configuration, such as table1-c4-t1.0, or a TOML file.
    list_configs : bool
        Show the shipped run configurations.
    out : Path, optional
        Folder for the raw logs, the CSV files and results.json.
    local : str, optional
        Local models and prompts in place of those that the configuration names: smollm2, or a TOML file.
    in_process : bool
        Load all systems in one process.
    """
    from .run_config_files import (
        list_run_configs,
        override,
        read_local_config,
        read_run_config,
        replaced_entries,
        substitute,
    )

    if list_configs:
        found = list_run_configs()
        if json_output:
            import msgspec

            print(msgspec.json.encode(found).decode())
        else:
            console().print(table(found))
        return 0
    if config is None:
        raise InputError("give a run configuration; resispec bench-decode --list shows them")
    if out is None:
        raise InputError("give --out DIR, the folder for the logs and figures of the run")
    asked = run = read_run_config(config)
    if local is not None:
        run = substitute(run, read_local_config(local))
    run = override(run, overrides.given())

    from .runtime.bench_decode import bench_decode

    results = bench_decode(
        run,
        out,
        name=Path(config).stem if config.endswith(".toml") else config,
        replaced=replaced_entries(asked, run),
        in_process=in_process,
        progress=True,
        say=lambda line: print(f"resispec: {line}", file=sys.stderr),
    )
    print(f"written to {out}", file=sys.stderr)
    if json_output:
        print(results.to_json())
    else:
        console().print(results.table())
    return INTERRUPTED if results.partial else 0


def table(configs: "dict[str, RunConfig]") -> "RenderableType":
    """Lay out run configurations by name for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("name", "target", "draft", "tree", "T", "methods"):
        found.add_column(column, no_wrap=column == "name", overflow="fold")
    for name, config in configs.items():
        found.add_row(
            name,
            config.target.rpartition("/")[2],
            config.draft.rpartition("/")[2],
            str(config.tree),
            f"{config.temperature:g}",
            ", ".join(method.name for method in config.methods),
        )
    note = "Models by the last part of their hub name; --json shows every entry in full."
    return Group(found, Text(note, style="dim"))
