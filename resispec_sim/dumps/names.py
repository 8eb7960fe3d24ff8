"""Finding a dump: a folder, or the name of one that is shipped with the package."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from ..errors import DumpError
from .schema import MANIFEST_NAME


def shipped_folders() -> list[Path]:
    """Folders with shipped dumps: inside an installed wheel, then in a clone of the repository."""
    package = Path(str(resources.files("resispec_sim")))
    return [package / "_shipped_dumps", package.parent / "logits_dumps"]


def shipped_names() -> list[str]:
    """Names of the dumps that were shipped with the package, sorted."""
    found = {
        file.parent.name
        for folder in shipped_folders()
        for file in folder.glob(f"*/{MANIFEST_NAME}")
    }
    return sorted(found)


def resolve_dump(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder of a dump: an existing folder as it is, else the shipped dump of that name.

    Raises
    ------
    DumpError
        If there is neither; the message lists the shipped names.
    """
    if not os.fspath(path_or_name):
        raise DumpError(
            "the name of the dump is empty (''): give a folder, or the name of a shipped dump: "
            f"{', '.join(shipped_names()) or 'none'}"
        )
    path = Path(path_or_name)
    if path.is_dir():
        return path
    name = os.fspath(path_or_name)
    if path.name == name and name not in (os.curdir, os.pardir):
        for folder in shipped_folders():
            if (folder / name / MANIFEST_NAME).is_file():
                return folder / name
    names = ", ".join(shipped_names()) or "none"
    if path.exists():
        raise DumpError(
            f"{path} is a file; a dump is a folder with a {MANIFEST_NAME}. Shipped dumps: {names}"
        )
    raise DumpError(
        f"there is no folder {name!r} and no shipped dump of that name. Shipped dumps: {names}"
    )
