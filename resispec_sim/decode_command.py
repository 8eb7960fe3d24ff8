"""The command `resispec decode`: a prompt in, text out, with what every step brought."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .live_config import DECODE, RECORD, Dtype
from .terminal import Json, console

WARM_UP_TOKENS = 8

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .runtime.steps import Decoded


def decode_command(
    prompt: str,
    /,
    *,
    target: str = DECODE.target,
    draft: str = DECODE.draft,
    rule: str = DECODE.rule,
    tree: str = DECODE.tree,
    max_new_tokens: int = DECODE.max_new_tokens,
    temperature: float = DECODE.temperature,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = DECODE.seed,
    fit_text: Path | None = None,
    device: str = RECORD.device,
    torch_dtype: Dtype = RECORD.torch_dtype,
    profile: bool = False,
    record: Path | None = None,
    json_output: Json = False,
) -> int:
    """Continue a prompt with a live draft and target, verified by any rule.

    Parameters
    ----------
    prompt : str
        The text to continue.
    target : str
        Hub name, local folder or GGUF file of a causal language model, smollm2, or tiny-target.
    draft : str
        A second model with the same tokenizer, exit:N (the target's head on its layer N), eagle:FOLDER
        (a head of resispec train-eagle), or none: one token a step.
    rule : str
        A rule of single positions, such as specinfer, exact-shaping, rrs-wor.
    tree : str
        d5b3 (5 levels with the root, 3 children), a grow map's file, or topk:DEPTH,WIDTH,BUDGET.
    max_new_tokens : int
        Tokens at most.
    temperature : float
        0 is greedy; top-k and top-p likewise shape target and draft alike.
    seed : int
        The same seed gives the same text.
    fit_text : Path, optional
        Text on which the map of an exit:N draft is fitted.
    device : str
        cpu, cuda, cuda:1, or auto: a target on all GPUs.
    torch_dtype : str
        Precision in which the models run.
    profile : bool
        Time drafting, verification and shaping.
    record : Path, optional
        Folder for the drafted trees with the logits of every node, as text number SEED; more texts may be
        added to it. resispec replay-trees reads it.
    """
    from .checks import check_whole
    from .chunks import COMPILING
    from .engine.jit import announced_compilation
    from .errors import InputError
    from .probs import check_sampling
    from .rules import parse_rule
    from .runtime.decode import Decoder
    from .runtime.drafters import parse_plan
    from .runtime.drafts import NO_DRAFT, draft_identity, load_draft
    from .runtime.models import load_model
    from .runtime.record import model_identity

    # what needs no model is refused before one is loaded
    check_sampling(temperature, top_k, top_p)
    check_whole("max_new_tokens", max_new_tokens, at_least=1)
    check_whole("seed", seed, at_least=0)
    parse_rule(rule)
    if draft != NO_DRAFT:
        parse_plan(tree)
    if not prompt:
        raise InputError("the prompt is empty")
    print(f"resispec: loading {target}", file=sys.stderr)
    loaded = load_model(target, device=device, torch_dtype=torch_dtype)
    drafting = load_draft(draft, loaded, fit_text=fit_text, device=device, torch_dtype=torch_dtype)
    decoder = Decoder(
        loaded,
        drafting,
        rule,
        tree,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    recorder = observe = None
    if record is not None:
        from .runtime.tree_recorder import TreeRecorder
        from .tree_files import holds_text

        recorder = TreeRecorder(
            record,
            decoder,
            target=model_identity(loaded),
            draft=draft_identity(drafting, draft, loaded, fit_text),
        )
        is_again = holds_text(record, seed)
        # one folder can hold the texts of many seeds
        observe = recorder.observer(seed)
    # a first step compiles and loads what later ones use; it would count as time of this text
    with announced_compilation(lambda: print(f"resispec: {COMPILING}", file=sys.stderr)):
        decoder.decode(prompt, max_new_tokens=min(max_new_tokens, WARM_UP_TOKENS), seed=seed)
    found = decoder.decode(
        prompt, max_new_tokens=max_new_tokens, seed=seed, profile=profile, observe=observe
    )
    if recorder is not None:
        recorder.finish(seed)
        if is_again:
            print(
                f"resispec: text {seed} of {record} was recorded anew; --seed numbers the texts",
                file=sys.stderr,
            )
    if json_output:
        print(json.dumps(summary(found) | {"steps": [asdict(step) for step in found.steps]}))
        return 0
    console().print(prompt, style="dim", end="", markup=False, highlight=False)
    console().print(found.text, markup=False, highlight=False)
    console().print(table(found))
    return 0


def summary(found: "Decoded") -> dict[str, Any]:
    """The figures of a decoded text as plain data."""
    return {
        "text": found.text,
        "prompt_ids": found.prompt_ids,
        "token_ids": found.token_ids,
        "finished": found.finished,
        "seconds": found.seconds,
        "tokens_per_second": len(found.token_ids) / found.seconds,
        "tokens_per_step": found.tokens_per_step,
        "n_steps": len(found.steps),
        "peak_memory_bytes": found.peak_memory_bytes,
    }


def table(found: "Decoded") -> "RenderableType":
    """The figures as a small table."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    whole = [step for step in found.steps if not step.cut]
    rows = [
        ("tokens", f"{len(found.token_ids)} (ended by {found.finished})"),
        ("steps", f"{len(found.steps)}, of them {len(whole)} with the whole tree"),
        ("tokens per step", f"{found.tokens_per_step:.3f}, bonus included, over those"),
        ("tokens per second", f"{len(found.token_ids) / found.seconds:.1f}"),
    ]
    total: dict[str, float] = {}
    for step in found.steps:
        for name, seconds in step.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    rows += [
        (name, f"{1e3 * value / len(found.steps):.2f} ms per step") for name, value in total.items()
    ]
    for name, value in rows:
        grid.add_row(name, value)
    return grid
