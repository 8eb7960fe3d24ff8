"""Where recorded steps lie: a file each while a text is recorded, one file per text once it is finished.

A step's file is written whole before it gets its name, so a crash costs the step in progress only, and
carries the SHA-256 of its arrays. A finished text is packed: its step files, byte for byte, go into one
zip file, which is written whole before they are removed. A crash in between leaves both, which are equal.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import DumpError, ShardError
from .files import sync_folder, whole_file, write_whole

_STEP = re.compile(r"text-(\d{5,})-step-(\d{5,})\.safetensors")
_PACK = re.compile(r"text-(\d{5,})\.zip")
_ABOUT = "resispec"
_HEADER = 30  # bytes before the name of a member, where nothing is said twice
_NO_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can hold


class StepSource(NamedTuple):
    """Place of one recorded step: a file of its own, or a member of its text's pack."""

    text: int
    step: int
    file: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.file) if self.member is None else f"{self.file}, {self.member}"

    def read_bytes(self) -> bytes:
        """The step's file as it was written."""
        if self.member is None:
            return self.file.read_bytes()
        with zipfile.ZipFile(self.file) as pack:
            return pack.read(self.member)


def step_name(text: int, step: int) -> str:
    """File name of a step."""
    return f"text-{text:05d}-step-{step:05d}.safetensors"


def pack_file(folder: Path, text: int) -> Path:
    """Where the pack of a text lies, if there is one."""
    return folder / f"text-{text:05d}.zip"


def holds_text(folder: Path, text: int) -> bool:
    """Whether anything is recorded of a text, damaged or not."""
    steps = folder.glob(f"text-{text:05d}-step-*.safetensors")
    return pack_file(folder, text).exists() or any(True for _ in steps)


def list_steps(folder: Path, text: int | None = None) -> list[StepSource]:
    """The recorded steps of a text, or of all, by text and step (`ShardError` where some are lost)."""
    found: dict[tuple[int, int], StepSource] = {}
    for file in folder.iterdir():
        match = _STEP.fullmatch(file.name) or _PACK.fullmatch(file.name)
        if match is None or text not in (None, int(match[1])):
            continue
        if match.re is _STEP:
            key = int(match[1]), int(match[2])
            found.setdefault(key, StepSource(*key, file))
        else:
            for source in _members(file, int(match[1])):
                found[source.text, source.step] = source
    sources = [found[key] for key in sorted(found)]
    for text_idx, of_text in groupby(sources, lambda source: source.text):
        for wanted, source in enumerate(of_text):
            if source.step != wanted:
                raise ShardError(
                    f"{folder}: step {wanted} of text {text_idx} is missing, but there is {source}; copy "
                    "the folder again, or record the text again"
                )
    return sources


def _members(file: Path, text: int) -> list[StepSource]:
    try:
        with zipfile.ZipFile(file) as pack:
            names = pack.namelist()
            end = 0
            # no gaps: a damaged directory may have lost some of its entries
            for about in pack.infolist():
                if about.header_offset != end:
                    raise zipfile.BadZipFile(f"{about.filename} does not follow the one before")
                end += _HEADER + len(about.filename) + about.compress_size
            if end != pack.start_dir:
                raise zipfile.BadZipFile(f"{pack.start_dir - end} bytes belong to no step")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ShardError(
            f"{file}: not a whole pack of steps ({error}); copy it again, or record the text again"
        ) from error
    if not names:
        raise ShardError(f"{file}: holds no step; copy it again, or record the text again")
    found = []
    for name in names:
        match = _STEP.fullmatch(name)
        if match is None or int(match[1]) != text:
            raise ShardError(f"{file}: {name!r} is no step of text {text}; copy the file again")
        found.append(StepSource(text, int(match[2]), file, name))
    return found


def load_step(source: StepSource) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays of a step and what is said of them, the checksum verified (`ShardError`)."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        data = source.read_bytes()
        arrays = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        info = json.loads(header["__metadata__"][_ABOUT])
        stored = info.pop("sha256", None)
        place = int(info["text"]), int(info["step"])
    except (
        OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, SafetensorError,
        AttributeError, ValueError, KeyError, TypeError,
    ) as error:  # fmt: skip
        raise ShardError(
            f"{source}: not a whole recorded step ({error}); record the text again"
        ) from error
    if stored != checksum(arrays, info):
        raise ShardError(
            f"{source}: its content does not have the checksum it was stored with; record the text again"
        )
    if place != (source.text, source.step):
        raise ShardError(
            f"{source}: holds text {place[0]}, step {place[1]}; give it its own name back"
        )
    return arrays, info


def checksum(arrays: Mapping[str, NDArray[Any]], info: Mapping[str, str]) -> str:
    """SHA-256 over names, types, shapes and bytes of arrays, and what is said of them."""
    digest = hashlib.sha256(json.dumps(dict(info), sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_step(
    folder: Path, text: int, step: int, arrays: Mapping[str, NDArray[Any]], info: Mapping[str, str]
) -> Path:
    """Store one step; the file gets its name when it is whole and on disk."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = {**info, "text": str(text), "step": str(step)}
    described["sha256"] = checksum(whole, described)
    # one entry, since the library writes several in any order
    data = save(whole, {_ABOUT: json.dumps(described, sort_keys=True)})
    return write_whole(folder / step_name(text, step), data)


def pack_text(folder: Path, text: int) -> Path:
    """Put all steps of a finished text into one compressed file; packing again changes nothing.

    Parameters
    ----------
    folder : Path
        Of recorded trees.
    text : int

    Returns
    -------
    Path
        ``text-00000.zip``. The step files are removed once it is whole and on disk.

    Raises
    ------
    ShardError
        A damaged step, before anything is removed.
    DumpError
        No step of that text.
    """
    sources = list_steps(folder, text)
    file = pack_file(folder, text)
    if not sources:
        raise DumpError(f"{folder} holds no step of text {text}; record it first")
    if any(source.member is None for source in sources):
        with whole_file(file) as data, zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as pack:
            for source in sources:
                load_step(source)
                about = zipfile.ZipInfo(step_name(text, source.step), _NO_DATE)
                pack.writestr(about, source.read_bytes(), zipfile.ZIP_DEFLATED)
    _remove_steps(folder, text)
    return file


def remove_text(folder: Path, text: int) -> None:
    """Remove what is recorded of a text."""
    # steps first: after a crash in between, the pack is still all of it
    _remove_steps(folder, text)
    pack_file(folder, text).unlink(missing_ok=True)
    sync_folder(folder)


def _remove_steps(folder: Path, text: int) -> None:
    # the last one first: what a crash leaves is a beginning, without a gap
    for file in sorted(folder.glob(f"text-{text:05d}-step-*.safetensors"), reverse=True):
        file.unlink()
