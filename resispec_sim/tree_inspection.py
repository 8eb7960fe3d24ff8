"""What is in a dump of trees, for `resispec inspect`."""

from typing import Any

import msgspec
import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .inspection import flat, identity
from .tree_dumps import TreeDump


def describe_trees(dump: TreeDump) -> dict[str, Any]:
    """Manifest, sizes and texts of recorded trees as plain data; every step is read and verified."""
    texts: dict[int, dict[str, Any]] = {}
    for step in dump:
        text = texts.setdefault(
            step.text,
            {"text": step.text, "n_prompt": len(step.prefix), "n_new": 0, "n_steps": 0, "n_cut": 0},
        )
        text["n_steps"] += 1
        text["n_cut"] += int(step.cut)
        text["n_new"] += len(step.emitted)
        if not step.cut:
            text.setdefault("whole", []).append(len(step.emitted))
    for text in texts.values():
        whole = text.pop("whole", [])
        text["tokens_per_step"] = float(np.mean(whole)) if whole else None
    return {
        "path": str(dump.path),
        "n_texts": len(texts),
        "n_steps": len(dump),
        "n_cut": sum(text["n_cut"] for text in texts.values()),
        "n_bytes": dump.n_bytes,
        "n_files": len({source.file for source in dump.sources}),
        "checksums": "verified",
        "texts": list(texts.values()),
        "manifest": msgspec.to_builtins(dump.manifest),
    }


def tree_tables(dump: TreeDump) -> RenderableType:
    """Lay out recorded trees for a terminal; every step is read and verified."""
    found = describe_trees(dump)
    return Group(_summary(dump, found), Text(), _texts(found))


def _summary(dump: TreeDump, found: dict[str, Any]) -> Table:
    manifest = dump.manifest
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "dump": dump.path,
        "kind": f"{manifest.kind}, schema version {manifest.schema_version}",
        "target": identity(manifest.target),
        "draft": identity(manifest.draft),
        "rule": f"{manifest.rule}, siblings {manifest.siblings}",
        "tree": manifest.tree,
        "vocabulary": f"{manifest.vocab_size:,}",
        "sampled at": f"temperature {manifest.temperature:g}, top-k {manifest.top_k or 'off'}, "
        f"top-p {manifest.top_p or 'off'}",
        "steps": f"{found['n_steps']:,} of {found['n_texts']:,} texts; {found['n_cut']} of them cut short",
        "stored as": f"{manifest.dtype}, {found['n_bytes'] / 2**20:.2f} MiB in {found['n_files']} files",
        "checksums": "ok",
    }
    rows |= {
        f"provenance: {name}": flat(value)
        for name, value in sorted(manifest.provenance.items())
        if value not in ({}, [], "", None)
    }
    for name, value in rows.items():
        table.add_row(Text(name), Text(str(value)))
    return table


def _texts(found: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("text", "prompt tokens", "new tokens", "steps", "cut short", "tokens per step"):
        table.add_column(name, justify="right")
    for text in found["texts"]:
        mean = text["tokens_per_step"]
        counts = [text[name] for name in ("text", "n_prompt", "n_new", "n_steps", "n_cut")]
        table.add_row(*map(str, counts), "n/a" if mean is None else f"{mean:.3f}")
    return table
