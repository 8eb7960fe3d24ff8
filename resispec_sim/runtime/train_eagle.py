"""Training of an EAGLE head on the target's own samples, or on a text."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..live_config import EAGLE, EagleConfig
from ..progress import position_progress
from ..provenance import provenance
from .eagle import CONFIG_NAME, EagleHead, new_head
from .eagle_data import Corpus, build_corpus, sampled_batches, text_batches
from .eagle_steps import Trainer
from .early_exit import EarlyExit, early_exit, fit_maps
from .models import LoadedModel, import_torch
from .overlap import overlap_by_depth

Say = Callable[[str], None]


def train_eagle(
    target: LoadedModel,
    *,
    out: str | Path,
    prompts: Sequence[str] | None = None,
    text: str | None = None,
    exit_layers: Sequence[int] | None = None,
    settings: EagleConfig = EAGLE,
    progress: bool = False,
    say: Say = lambda _line: None,
) -> EagleHead:
    """Train a head for a target and save it, with its overlap beside early exits.

    Parameters
    ----------
    target : LoadedModel
        Not changed. The head is trained in float32 on the target's device.
    out : str or Path
        Folder of the head; it is written at the start, every ``settings.save_every`` steps and at the end.
    prompts : sequence of str, optional
        Beginnings of the sampled sequences, used in turn. Default: the tokenizer's first token of a text.
    text : str, optional
        A text to train on instead of samples.
    exit_layers : sequence of int, optional
        Early exits that the head is shown beside. Default: those at ``settings.exits``.
    settings : EagleConfig
    progress : bool
        Show progress bars on stderr.
    say : callable
        Receives one line per stage.

    Returns
    -------
    EagleHead
        In the target's precision; ``info["overlap"]`` holds the figures of the held-out sequences.

    Raises
    ------
    InputError
        A setting out of range, prompts beside a text, an empty prompt, or a folder that holds a
        finished head.
    ModelError
        If the target's structure is not one that a head continues, or training diverged.
    KeyboardInterrupt
        Passed on after the head as it stands was saved.
    """
    _check(settings, target, out)
    n_sequences = settings.tokens // settings.length
    common: dict[str, Any] = {"length": settings.length, "batch_size": settings.sampling_batch}
    if text is None:
        prompt_ids = _prompt_ids(target.tokenizer, prompts)
        make: Any = partial(sampled_batches, target, prompt_ids, seed=settings.seed)
    else:
        if prompts is not None:
            raise InputError(
                "prompts begin sampled sequences, and a text needs none; give one of them"
            )
        text_ids = target.tokenizer(text)["input_ids"]
        n_sequences = min(n_sequences, len(text_ids) // settings.length)
        if n_sequences < 2:
            raise InputError(
                f"the training text has {len(text_ids)} tokens, less than two windows of "
                f"{settings.length}; give a longer text or a smaller length"
            )
        make = partial(text_batches, target, text_ids)
    n_train = n_sequences - _n_held_out(n_sequences, settings)
    total = n_sequences * settings.length
    bar = position_progress(total, "features") if progress else nullcontext(lambda _n: None)
    with bar as advance:
        batches = make(n_sequences=n_sequences, advance=advance, **common)
        corpus = build_corpus(target, batches, n_train)
    source = "samples of the target" if text is None else "a text"
    say(f"{corpus.token_ids.numel()} tokens, {source}")
    return fit_head(
        target,
        corpus,
        out=out,
        source=source,
        exit_layers=exit_layers,
        settings=settings,
        progress=progress,
        say=say,
    )


def fit_head(
    target: LoadedModel,
    corpus: Corpus,
    *,
    out: str | Path,
    source: str,
    exit_layers: Sequence[int] | None = None,
    settings: EagleConfig = EAGLE,
    progress: bool = False,
    say: Say = lambda _line: None,
) -> EagleHead:
    """The part of `train_eagle` after the corpus is there; `source` is what ``config.json`` calls it."""
    torch, _ = import_torch()
    layers = _exit_layers(target, settings) if exit_layers is None else exit_layers
    exits = [early_exit(target, layer) for layer in layers]
    n_train = len(corpus.token_ids) - _n_held_out(len(corpus.token_ids), settings)
    head = new_head(target, seed=settings.seed)
    head.module.float().train()
    with torch.no_grad():
        head.module["fc"].weight.copy_(corpus.weight)
        head.module["fc"].bias.copy_(corpus.bias)
    trainer = Trainer(head, corpus, n_train, settings)
    training = {
        "source": source,
        "settings": asdict(settings),
        "tokens": n_train * settings.length,
        "steps": trainer.n_steps,
        "steps_done": 0,
        "last_loss": None,
        "provenance": provenance(),
    }
    head.info["training"] = training
    head.save(out)
    total = settings.epochs * n_train * settings.length
    bar = position_progress(total, "train") if progress else nullcontext(lambda _n: None)
    try:
        with bar as advance:
            for step in range(trainer.n_steps):
                training["last_loss"], n_tokens = trainer.step(step)
                training["steps_done"] = step + 1
                advance(n_tokens)
                if (step + 1) % settings.save_every == 0:
                    head.save(out)
                    say(f"step {step + 1} of {trainer.n_steps}: loss {training['last_loss']:.3f}")
    except KeyboardInterrupt:
        head.save(out)
        say(f"interrupted after {training['steps_done']} steps; the head as it stands is in {out}")
        raise
    head.save(out)
    head.module.to(dtype=next(target.model.parameters()).dtype).eval()
    head.info["overlap"] = _compare(target, head, exits, corpus, n_train, settings)
    head.save(out)
    return head


def _prompt_ids(tokenizer: Any, prompts: Sequence[str] | None) -> list[list[int]]:
    if prompts is None:
        first = tokenizer.bos_token_id
        first = tokenizer.eos_token_id if first is None else first
        if first is None:
            raise InputError("the tokenizer has no token that begins a text; give prompts")
        return [[first]]
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    for prompt, ids in zip(prompts, prompt_ids, strict=True):
        if not ids:
            raise InputError(f"the prompt {prompt!r} has no tokens")
    return prompt_ids


def _n_held_out(n_sequences: int, settings: EagleConfig) -> int:
    return max(1, round(settings.held_out * n_sequences))


def _exit_layers(target: LoadedModel, settings: EagleConfig) -> list[int]:
    n_layers = int(target.model.config.get_text_config().num_hidden_layers)
    layers = {min(max(1, round(share * n_layers)), n_layers - 1) for share in settings.exits}
    return sorted(layers - {0})


def _compare(
    target: LoadedModel,
    head: EagleHead,
    exits: Sequence[EarlyExit],
    corpus: Corpus,
    n_train: int,
    settings: EagleConfig,
) -> dict[str, Any]:
    """Overlap by depth on the held-out sequences, of the head and of early exits with a map."""
    held_out = corpus.token_ids[n_train:]
    n_fit = max(1, settings.exit_tokens // settings.length)
    fit_text = target.tokenizer.decode(corpus.token_ids[:n_train][:n_fit].flatten().tolist())
    drafts: dict[str, Any] = {"eagle": head}
    drafts |= {f"exit:{e.layer}": e for e in fit_maps(target, exits, fit_text)}
    figures: dict[str, Any] = {
        "measure": "mean sum min(p, q) at temperature 1, teacher-forced, by depth from 1",
        "sequences": len(held_out),
        "positions": len(held_out) * (settings.length - settings.eval_depths + 1),
    }
    for name, draft in drafts.items():
        means = overlap_by_depth(target, draft, held_out, depths=settings.eval_depths)
        spread = means.std(axis=0, ddof=1) if len(means) > 1 else means.mean(axis=0) * math.nan
        errors = [None if math.isnan(s) else round(float(s), 4) for s in spread / len(means) ** 0.5]
        figures[name] = {"mean": means.mean(axis=0).round(4).tolist(), "standard_error": errors}
    return figures


def _check(settings: EagleConfig, target: LoadedModel, out: str | Path) -> None:
    counts = ("sampling_batch", "batch_size", "epochs", "depths", "save_every", "vocab_sample")
    for name in (*counts, "eval_depths"):
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 1, got {getattr(settings, name)}")
    least = 1 + max(settings.depths, settings.eval_depths)
    limit = getattr(target.model.config.get_text_config(), "max_position_embeddings", None)
    if settings.length < least or (limit is not None and settings.length > limit):
        raise InputError(
            f"length must be from {least} to the target's context of {limit}, got {settings.length}"
        )
    if settings.tokens < 2 * settings.length:
        raise InputError(
            f"tokens must make two sequences of {settings.length} at least, got {settings.tokens}"
        )
    if not 0.0 < settings.held_out < 1.0:
        raise InputError(f"held_out must lie between 0 and 1, got {settings.held_out}")
    if settings.seed < 0 or settings.learning_rate <= 0:
        raise InputError(
            f"seed must not be negative nor the learning rate {settings.learning_rate} be 0 or less"
        )
    file = Path(out) / CONFIG_NAME
    if not file.exists():
        return
    try:
        finished = "overlap" in json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        finished = True
    if finished:
        raise InputError(f"{out} already holds a head or another model; choose another folder")
