"""The command `resispec chain`: block beside token-wise verification of a drafted chain."""

from typing import TYPE_CHECKING, Any

from .terminal import DumpName, Json, console

if TYPE_CHECKING:
    from rich.console import RenderableType


def chain_command(
    dump: DumpName,
    /,
    *,
    depth: int,
    json_output: Json = False,
) -> int:
    """Compare block with token-wise verification of a drafted chain along a recorded dump.

    Parameters
    ----------
    depth : int
        Drafted tokens per step.
    """
    import json

    from .provenance import as_json_data
    from .sequences import block_eal

    report = block_eal(dump, depth=depth, progress=True)
    summary = report.summary
    if json_output:
        print(json.dumps(as_json_data({**summary, "provenance": report.provenance}), indent=2))
    else:
        console().print(table(summary))
    return 0


def table(summary: dict[str, Any]) -> "RenderableType":
    """Lay out the figures of a `resispec_sim.sequences.ChainReport` for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    dump, depth = summary["dump"], summary["depth"]
    found = Table(
        title=Text(
            f"{dump['name']}   T = {dump['temperature']:g}   {depth} drafted "
            f"token{'s' if depth > 1 else ''} per step   "
            f"{summary['n_starts']} starts in {summary['n_prompts']} prompts   V = {dump['vocab_size']:,}",
            style="bold",
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    found.add_column("", no_wrap=True)
    for figures in summary["rules"]:
        found.add_column(Text(_NAMES[figures["rule"]]), no_wrap=True)

    def row(name: str, key: str, index: int | None = None, **options: Any) -> None:
        values = [f[key] if index is None else f[key][index] for f in summary["rules"]]
        found.add_row(Text(name), *[Text(_figure(value)) for value in values], **options)

    for i in range(depth):
        last = i == depth - 1
        row(f"P(at least {i + 1} accepted)", "survival", i, end_section=last)
    row("accepted length, without the bonus", "accepted_length")
    row("EAL, with the bonus", "eal")
    row("tokens per step", "tokens_per_step")
    notes = [
        f"Block accepts {_figure(summary['eal_gain'])} tokens more per step, on the same starts.",
        f"Brackets: {summary['confidence']:.0%} bootstrap over prompts. EAL is the mean over positions "
        "of the recorded text, tokens per step weighs them by how often a step starts there.",
    ]
    if summary["n_left_out"]:
        notes.append(f"{summary['n_left_out']} positions whose stored target lacks the token.")
    return Group(found, *[Text(note, style="dim") for note in notes])


_NAMES = {"rejection": "token-wise (rejection)", "block": "block"}


def _figure(value: dict[str, float]) -> str:
    if value["low"] != value["low"]:  # one prompt: no interval
        return f"{value['mean']:.4f}"
    return f"{value['mean']:.4f} [{value['low']:.4f}, {value['high']:.4f}]"
