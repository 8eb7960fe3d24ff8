"""What is in a dump, for `resispec inspect`."""

from typing import Any

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .dumps import Dump


def describe(dump: Dump) -> dict[str, Any]:
    """Return the manifest and sizes of a dump whose checksums were verified, as plain data."""
    return {
        "path": str(dump.path),
        "n_prompts": dump.n_prompts,
        "n_positions": dump.n_positions,
        "n_bytes": sum(shard.n_bytes for shard in dump.manifest.shards),
        "checksums": "verified",
        "manifest": msgspec.to_builtins(dump.manifest),
    }


def tables(dump: Dump) -> RenderableType:
    """Lay out a dump whose checksums were verified for a terminal."""
    return Group(_summary(dump), Text(), _prompts(dump), Text(), _shards(dump))


def _summary(dump: Dump) -> Table:
    manifest = dump.manifest
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, value: object) -> None:
        table.add_row(Text(name), Text(str(value)))

    row("dump", dump.path)
    row("kind", f"{manifest.kind}, schema version {manifest.schema_version}")
    row("target", identity(manifest.target))
    row("draft", identity(manifest.draft))
    row("tokenizer", manifest.tokenizer or "not recorded")
    row(
        "vocabulary",
        f"{dump.vocab_size:,} (target {manifest.target_vocab_size:,}, draft "
        f"{manifest.draft_vocab_size:,}{', mapped' if manifest.draft_to_target else ''})",
    )
    row(
        "sampled at",
        f"temperature {dump.temperature:g}, top-k {dump.top_k or 'off'}, "
        f"top-p {dump.top_p or 'off'}, seed {'not recorded' if manifest.seed is None else manifest.seed}",
    )
    row("positions", f"{dump.n_positions:,} of {dump.n_prompts:,} prompts")
    row("stored as", _storage(dump))
    for name, value in sorted(manifest.provenance.items()):
        row(f"provenance: {name}", flat(value))
    return table


def _prompts(dump: Dump) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt", justify="right", min_width=len("prompt"))
    table.add_column("positions", justify="right", min_width=len("positions"))
    # a ratio lets the text give way, not the numbers
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    counts = dump.positions_per_prompt
    for i, (prompt, count) in enumerate(zip(dump.manifest.prompts, counts, strict=True)):
        if prompt.text is not None:
            text = " ".join(prompt.text.split())
        elif prompt.token_ids is not None:
            text = f"{len(prompt.token_ids)} token ids"
        else:
            text = "not recorded"
        table.add_row(str(i), str(count), Text(text))
    return table


def _shards(dump: Dump) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("shard")
    table.add_column("prompts", justify="right")
    table.add_column("positions", justify="right")
    table.add_column("MiB", justify="right")
    table.add_column("checksum")
    for shard in dump.manifest.shards:
        table.add_row(
            Text(shard.file),
            str(len(shard.prompt_idxs)),
            str(sum(shard.n_positions)),
            f"{shard.n_bytes / 2**20:.2f}",
            Text("ok", style="green"),
        )
    return table


def _storage(dump: Dump) -> str:
    size = sum(shard.n_bytes for shard in dump.manifest.shards) / 2**20
    minus = "" if dump.manifest.dtype == "float32" else " of logit minus row maximum"
    return f"{dump.manifest.dtype}{minus}, {size:.2f} MiB in {len(dump.manifest.shards)} shards"


def identity(model: dict[str, str]) -> str:
    """A model in a line."""
    return ", ".join(f"{name} {value}" for name, value in model.items()) or "not recorded"


def flat(value: object) -> str:
    """JSON data in a line."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={flat(item)}" for name, item in value.items())
    return str(value)
