"""Writing files so that a reader, or a crash, finds the old one or the whole new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file under another name and through to the disk, then rename it.

    Parameters
    ----------
    path : Path
        In a folder that exists; a file of this name is replaced.
    data : bytes
    """
    with whole_file(path) as file:
        file.write(data)
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece, which gets its name at the end; as in `write_whole`."""
    # one name, so that what a kill leaves is overwritten by the next attempt
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name != "posix":  # Windows cannot open a folder, and orders renames itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
