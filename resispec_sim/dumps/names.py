"""Finding a dump: a folder, or the name of one that is shipped with the package; and of which kind it is."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import DumpError, ManifestError
from .schema import MANIFEST_NAME

Kind = Literal["chain", "trees"]

# kind -> what it is called, the command that reads it
_KINDS: dict[str, tuple[str, str]] = {
    "chain": ("a chain dump", "resispec replay"),
    "trees": ("recorded trees", "resispec replay-trees"),
}


class _KindOnly(msgspec.Struct):
    kind: str


def shipped_folders() -> list[Path]:
    """Folders with shipped dumps: inside an installed wheel, then in a clone of the repository."""
    package = Path(str(resources.files("resispec_sim")))
    return [package / "_shipped_dumps", package.parent / "logits_dumps"]


def shipped_names(kind: Kind | None = "chain") -> list[str]:
    """Names of the dumps of a kind, or of any, that were shipped with the package, sorted."""
    found = {
        file.parent.name
        for folder in shipped_folders()
        for file in folder.glob(f"*/{MANIFEST_NAME}")
        if kind in (None, kind_of(file.parent))
    }
    return sorted(found)


def kind_of(folder: Path) -> str | None:
    """The kind that the manifest of a folder states; None where there is none to be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=_KindOnly).kind
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def resolve_dump(path_or_name: str | os.PathLike[str], kind: Kind | None = "chain") -> Path:
    """The folder of a dump: an existing folder as it is, else the shipped dump of that name.

    Parameters
    ----------
    path_or_name : str or Path
    kind : {"chain", "trees"}, optional
        What the caller reads; None: either.

    Raises
    ------
    DumpError
        If there is neither; the message lists the shipped names of the kind.
    ManifestError
        If the dump is of another kind; the message names the command that reads it.
    """
    folder = _find(path_or_name, kind)
    found = kind_of(folder)
    if kind is not None and found != kind and found in _KINDS:
        what, command = _KINDS[found]
        raise ManifestError(
            f"{os.fspath(path_or_name)} holds {what}, not {_KINDS[kind][0]}: it is read by {command} "
            f"{os.fspath(path_or_name)}"
        )
    return folder


def _find(path_or_name: str | os.PathLike[str], kind: Kind | None) -> Path:
    title = "Shipped dumps of trees" if kind == "trees" else "Shipped dumps"
    names = f"{title}: {', '.join(shipped_names(kind)) or 'none'}"
    name = os.fspath(path_or_name)
    if not name:
        raise DumpError(
            f"the name of the dump is empty (''): give a folder, or the name of a shipped dump. {names}"
        )
    path = Path(path_or_name)
    if path.is_dir():
        return path
    if path.name == name and name not in (os.curdir, os.pardir):
        for folder in shipped_folders():
            if (folder / name / MANIFEST_NAME).is_file():
                return folder / name
    if path.exists():
        raise DumpError(f"{path} is a file; a dump is a folder with a {MANIFEST_NAME}. {names}")
    raise DumpError(f"there is no folder {name!r} and no shipped dump of that name. {names}")
