"""The command `resispec train-eagle`: fit an EAGLE head to a target."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .live_config import EAGLE, RECORD, Dtype
from .terminal import Json, console, numbers

if TYPE_CHECKING:
    from rich.console import RenderableType


def train_eagle_command(
    target: str,
    /,
    *,
    out: Path,
    prompts: Path | None = None,
    text: Path | None = None,
    tokens: int = EAGLE.tokens,
    length: int = EAGLE.length,
    epochs: int = EAGLE.epochs,
    depths: int = EAGLE.depths,
    batch_size: int = EAGLE.batch_size,
    sampling_batch: int = EAGLE.sampling_batch,
    learning_rate: float = EAGLE.learning_rate,
    vocab_sample: int = EAGLE.vocab_sample,
    exits: str | None = None,
    save_every: int = EAGLE.save_every,
    seed: int = EAGLE.seed,
    torch_dtype: Dtype = RECORD.torch_dtype,
    device: str = RECORD.device,
    json_output: Json = False,
) -> int:
    """Train an EAGLE head on the target's own samples; use it as the draft eagle:OUT.

    The head is saved as it is trained: Ctrl-C ends the run and leaves one that works. At the end its
    overlap with the target on held-out samples is shown beside early exits with a map.

    Parameters
    ----------
    target : str
        Hub name, local folder or GGUF file of a causal language model, or smollm2.
    out : Path
        Folder of the head.
    prompts : Path, optional
        Beginnings of the samples, one per line; .jsonl: objects with the key prompt. Default: none.
    text : Path, optional
        Train on this text instead of samples.
    tokens : int
        Tokens sampled, or used of the text. More of them is what helps most.
    length : int
        Tokens per sequence.
    epochs : int
        Passes over the tokens.
    depths : int
        Tokens ahead that are trained; each costs as much time again.
    batch_size : int
        Sequences per training step.
    sampling_batch : int
        Sequences sampled together.
    learning_rate : float
        Highest rate of AdamW.
    vocab_sample : int
        Tokens over which the divergence of a step is estimated.
    exits : str, optional
        Comma list of layers whose early exits are shown beside the head.
    save_every : int
        Training steps between two savings.
    seed : int
        Seed of everything random.
    torch_dtype : str
        Precision of the target; the head is trained in float32.
    device : str
        cpu, cuda, cuda:1.
    """
    import json
    from dataclasses import replace

    from .runtime.models import load_model
    from .runtime.record import read_prompts, read_text
    from .runtime.train_eagle import train_eagle

    layers = None if exits is None else tuple(numbers("--exits", exits, int))
    settings = replace(
        EAGLE,
        tokens=tokens,
        length=length,
        epochs=epochs,
        depths=depths,
        batch_size=batch_size,
        sampling_batch=sampling_batch,
        learning_rate=learning_rate,
        vocab_sample=vocab_sample,
        save_every=save_every,
        seed=seed,
    )
    beginnings = None if prompts is None else read_prompts(prompts)
    whole = None if text is None else read_text(text, "training text")
    head = train_eagle(
        load_model(target, device=device, torch_dtype=torch_dtype),
        out=out,
        prompts=beginnings,
        text=whole,
        exit_layers=layers,
        settings=settings,
        progress=True,
        say=lambda line: print(line, file=sys.stderr),
    )
    if json_output:
        print(json.dumps(head.info["overlap"], indent=2))
    else:
        console().print(table(head.info, head.n_parameters, head.target.source.identity))
        print(f"the head is in {out}: use it as the draft eagle:{out}")
    return 0


def table(info: dict[str, Any], n_parameters: int, target: str) -> "RenderableType":
    """Lay out the overlap by depth of a head and of the early exits beside it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    overlap, training = info["overlap"], info["training"]
    drafts = {name: value for name, value in overlap.items() if isinstance(value, dict)}
    grid = Table(
        title=Text(f"overlap sum min(p, q) with {target}", style="bold"),
        caption=Text(
            f"Mean (standard error over sequences) of {overlap['positions']:,} held-out positions, "
            f"T = 1. The head: {n_parameters:,} parameters, {training['tokens']:,} tokens."
        ),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    grid.add_column("draft")
    for depth in range(1, len(drafts["eagle"]["mean"]) + 1):
        grid.add_column(f"depth {depth}")
    for name, value in drafts.items():
        pairs = zip(value["mean"], value["standard_error"], strict=True)
        cells = [f"{m:.3f}" + (f" ({e:.3f})" if e is not None else "") for m, e in pairs]
        grid.add_row(Text(name + (", map" if name.startswith("exit") else "")), *cells)
    return grid
