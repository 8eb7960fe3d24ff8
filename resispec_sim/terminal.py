"""What every command shares: options, exit codes, the console. Nothing heavy is imported here."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter, Token

from .config import REPLAY
from .errors import InputError
from .types import Backend, Method

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
NARROWEST = 40  # columns; in fewer no table can be read

_NumberT = TypeVar("_NumberT", int, float)

DumpName = Annotated[str, Parameter(help="Folder of a dump, or the name of a shipped one.")]
Positions = Annotated[str | None, Parameter(help="A:B takes positions A to B - 1 only.")]
TopK = Annotated[int | None, Parameter(help="Default: the dump's own; 0 turns it off.")]
TopP = Annotated[float | None, Parameter(help="Default: the dump's own; 1 turns it off.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, no tables.")]


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    """A whole number, in the notation 1e6 as well."""
    text = tokens[0].value
    try:
        value = float(text)
        whole = int(text) if value == value // 1 and "e" not in text.lower() else int(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a whole number") from None
    if whole != value:
        raise ValueError(f"{text!r} is not a whole number")
    return whole


def make_folder(path: Path) -> Path:
    """Make a folder for results, before the work that fills it (`InputError`)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (
            "there is a file of this name" if path.is_file() else (error.strerror or str(error))
        )
        raise InputError(f"cannot make the folder {path}: {reason.lower()}") from error
    return path


@Parameter(name="*")
@dataclass(frozen=True)
class EngineOptions:
    """How laws are computed: the options that all commands over a dump share."""

    method: Annotated[Method, Parameter(help="auto chooses by the predicted number of paths.")] = (
        REPLAY.method
    )
    max_paths: Annotated[
        int,
        Parameter(
            converter=_whole,
            help="Budget of auto per position, in path-steps walked one by one; exact by name disregards it.",
        ),
    ] = REPLAY.max_paths
    seed: Annotated[int, Parameter(help="Seed of everything random.")] = REPLAY.seed
    jobs: Annotated[
        int,
        Parameter(
            help="Threads or processes; -1 is one per core. The figures do not depend on it."
        ),
    ] = REPLAY.n_jobs
    backend: Annotated[
        Backend, Parameter(help="What computes: threads, processes, or a Dask cluster.")
    ] = REPLAY.backend
    scheduler: Annotated[
        str | None, Parameter(help="Address of the cluster's scheduler, such as tcp://host:8786.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The same as arguments of the functions behind the commands, with a progress bar."""
        return {
            "method": self.method,
            "max_paths": self.max_paths,
            "seed": self.seed,
            "n_jobs": self.jobs,
            "backend": self.backend,
            "scheduler": self.scheduler,
            "progress": True,
        }


ENGINE_OPTIONS = EngineOptions()


def console() -> "Console":
    """The console that tables are printed to."""
    from rich.console import Console

    # Into a pipe rich assumes 80 columns, which folds the tables; a user's COLUMNS still rules.
    # sys.stdout is None where the caller closed it
    wide = (sys.stdout is not None and sys.stdout.isatty()) or "COLUMNS" in os.environ
    found = Console(width=None if wide else 110)
    return found if found.width >= NARROWEST else Console(width=NARROWEST)


def numbers(option: str, text: str, kind: Callable[[str], _NumberT]) -> list[_NumberT]:
    """The numbers of a comma list; `InputError` names the option."""
    try:
        return [kind(piece) for piece in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r} is not a comma list of numbers") from None
