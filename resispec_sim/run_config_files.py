"""Reads run configurations: TOML files, shipped ones and the user's own, with local substitutes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import InputError, ResispecError
from .growmaps import parse_growmap
from .rules import parse_rule
from .run_config import (
    AUTOREGRESSIVE,
    CORPUS_PREFIX,
    LocalConfig,
    RunConfig,
    Tree,
    dataset_name,
    slug,
)

FOLDER = Path(__file__).with_name("run_configs")


def list_run_configs() -> dict[str, RunConfig]:
    """The shipped run configurations by name."""
    return {path.stem: read_run_config(path) for path in sorted(FOLDER.glob("*.toml"))}


def read_run_config(name: str | Path) -> RunConfig:
    """Read a run configuration.

    Parameters
    ----------
    name : str or Path
        A shipped one, such as ``table1-c4-t1.0``, or a TOML file. File names in it are taken from the
        file's own folder if they are there.

    Raises
    ------
    InputError
        If there is no such file, or an entry is missing, unknown or out of its range: names the file,
        the key and the value.
    """
    path = _find(name, FOLDER, "run configuration", "resispec bench-decode --list shows them")
    raw = _load(path)
    return check(_convert(raw, RunConfig, path), str(path), path.parent)


def read_local_config(name: str | Path) -> LocalConfig:
    """Read a set of local substitutes: a shipped one, such as ``smollm2``, or a TOML file."""
    folder = FOLDER / "local"
    known = ", ".join(sorted(path.stem for path in folder.glob("*.toml")))
    path = _find(name, folder, "set of local models", f"shipped are: {known}")
    local = _convert(_load(path), LocalConfig, path)
    found: dict[str, Any] = {
        key: _beside(path.parent, getattr(local, key))
        for key in ("growmap", "fit_text")
        if getattr(local, key) is not None
    }
    if local.prompts is not None:
        found["prompts"] = tuple(_beside(path.parent, source) for source in local.prompts)
    return msgspec.structs.replace(local, **found)


def substitute(config: RunConfig, local: LocalConfig) -> RunConfig:
    """The same run with the models, prompts and sizes of `local` where it names any.

    A draft that begins with ``eagle:`` becomes ``local.eagle``, any other ``local.draft``; a grow map's
    file that is not there becomes ``local.growmap``.
    """
    special = {"about", "draft", "eagle", "growmap"}
    plain = {
        name: value
        for name in local.__struct_fields__
        if name not in special and (value := getattr(local, name)) is not None
    }

    def draft(old: str | None) -> str | None:
        if old is None:
            return None
        return (local.eagle if old.startswith("eagle:") else None) or local.draft or old

    def tree(old: Tree | None) -> Tree | None:
        missing = isinstance(old, str) and _is_file(old) and not Path(old).is_file()
        return local.growmap if missing and local.growmap is not None else old

    methods = tuple(
        msgspec.structs.replace(method, draft=draft(method.draft), tree=tree(method.tree))
        for method in config.methods
    )
    return msgspec.structs.replace(
        config, draft=draft(config.draft), tree=tree(config.tree), methods=methods, **plain
    )


def replaced_entries(config: RunConfig, run: RunConfig) -> tuple[str, ...]:
    """Names of the entries in which two runs differ."""
    return tuple(
        name for name in config.__struct_fields__ if getattr(config, name) != getattr(run, name)
    )


def override(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The same run with other values of entries; a draft or tree replaces those of all methods.

    Raises
    ------
    InputError
        If an entry is unknown or its value out of range.
    """
    raw = msgspec.to_builtins(config) | dict(values)
    for key in {"draft", "tree"} & set(values):
        raw["methods"] = [{k: v for k, v in m.items() if k != key} for m in raw["methods"]]
    return check(_convert(raw, RunConfig, None), "options", None)


def check(config: RunConfig, where: str, folder: Path | None) -> RunConfig:
    """Check what the types cannot: rules, trees, names that occur twice (`InputError`)."""

    def fail(key: str, value: Any, reason: str) -> InputError:
        return InputError(f"{where}: key {key!r} is {value!r}: {reason}")

    for method in config.methods:
        try:
            if method.rule != AUTOREGRESSIVE:
                parse_rule(method.rule)
        except ResispecError as error:
            raise fail("methods.rule", method.rule, str(error)) from None
    for key, names in (
        ("methods.name", [slug(method.name) for method in config.methods]),
        ("prompts", [dataset_name(source) for source in config.prompts]),
    ):
        if len(set(names)) < len(names):
            raise fail(key, names, "every one needs a name of its own")
    for tree in (config.tree, *(method.tree for method in config.methods)):
        try:
            if isinstance(tree, str) and not _is_file(tree):
                parse_growmap(tree)
        except ResispecError as error:
            raise fail("tree", tree, str(error)) from None
    if config.max_length is not None and config.max_length <= config.prompt_tokens:
        reason = f"prompts of {config.prompt_tokens} tokens (prompt_tokens) leave no room"
        raise fail("max_length", config.max_length, reason)
    return config if folder is None else _with_paths(config, folder)


def _is_file(tree: str) -> bool:
    return tree.endswith((".json", ".pt"))


def _with_paths(config: RunConfig, folder: Path) -> RunConfig:
    found: dict[str, Any] = {
        "prompts": tuple(_beside(folder, source) for source in config.prompts),
        "fit_text": None if config.fit_text is None else _beside(folder, config.fit_text),
        "tree": _beside_tree(folder, config.tree),
        "methods": tuple(
            msgspec.structs.replace(method, tree=_beside_tree(folder, method.tree))
            for method in config.methods
        ),
    }
    return msgspec.structs.replace(config, **found)


def _beside_tree(folder: Path, tree: Any) -> Any:
    return _beside(folder, tree) if isinstance(tree, str) and _is_file(tree) else tree


def _beside(folder: Path, name: str) -> str:
    path = folder / name
    return str(path) if not name.startswith(CORPUS_PREFIX) and path.is_file() else name


def _find(name: str | Path, folder: Path, what: str, remedy: str) -> Path:
    shipped = folder / f"{name}.toml"
    for path in (Path(name), shipped):
        if path.suffix == ".toml" and path.is_file():
            return path
    raise InputError(f"there is no {what} {str(name)!r}: give a .toml file or a name; {remedy}")


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from error


_T = TypeVar("_T", bound=msgspec.Struct)


def _convert(raw: dict[str, Any], kind: type[_T], path: Path | None) -> _T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        # msgspec says "what - at `$.key[0].inner`"; a top-level entry is named in the text itself.
        reason, _, place = str(error).partition(" - at ")
        unknown = re.search("unknown field `(.*)`", reason)
        key = place.strip("`").removeprefix("$") + (f".{unknown[1]}" if unknown else "")
        key = key.removeprefix(".")
        shown = f"key {key!r} is {_value_at(raw, key)!r}: " if key else ""
        raise InputError(f"{path or 'options'}: {shown}{reason}") from None


def _value_at(raw: Any, key: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            raw = raw[int(part)] if isinstance(raw, list | tuple) else raw[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return raw
