"""Recording a dump of kind ``chain`` from live models."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ..dumps import Dump, open_dump
from ..dumps.schema import (
    MANIFEST_NAME,
    Manifest,
    Prompt,
    StorageDtype,
    plan_dump,
    read_manifest,
)
from ..dumps.writer import DumpWriter
from ..errors import InputError
from ..live_config import RECORD
from ..probs import check_sampling
from ..progress import position_progress
from ..provenance import provenance
from .early_exit import RIDGE, EarlyExit, early_exit, fit_map, parse_exit
from .models import (
    LoadedModel,
    check_same_tokenizer,
    import_torch,
    load_model,
    tokenizer_fingerprint,
)
from .prompts import read_prompts, read_text
from .sampling import SamplingSettings, record_batch


def record(
    target: str,
    draft: str,
    prompts: str | Path | Sequence[str],
    *,
    out: str | Path,
    new_tokens: int = RECORD.new_tokens,
    temperature: float = RECORD.temperature,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = RECORD.seed,
    dtype: StorageDtype = RECORD.dtype,
    fit_text: str | Path | None = None,
    batch_size: int = RECORD.batch_size,
    device: str = RECORD.device,
    torch_dtype: str = RECORD.torch_dtype,
    progress: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Dump:
    """Sample from the target and record both models' logits at every position.

    Sampling ignores end-of-text tokens: every prompt gets exactly `new_tokens` positions, so the plan is
    known before the first of them. Calling it again after an interruption records the missing shards and
    ends in the same bytes, on the same machine with the same libraries.

    Parameters
    ----------
    target : str
        Hub name, folder, GGUF file, or the alias ``smollm2``.
    draft : str
        The same, or ``exit:LAYER`` for an early exit of the target.
    prompts : str, Path or sequence of str
        Prompt file or corpus (see `resispec_sim.runtime.prompts.read_prompts`), or the texts
        themselves.
    out : str or Path
        Folder of the dump.
    new_tokens : int
        Positions per prompt.
    temperature, top_k, top_p, seed
        How the target is sampled; see `resispec_sim.probs.logits_to_probs`.
    dtype : {"float16", "bfloat16", "float32"}
        Storage of the logits; tokens are drawn from the stored rows.
    fit_text : str or Path, optional
        Text file on which the least-squares map of an early exit is fitted. Without it the exit is
        read by the final norm and head alone, and agrees far less with the target.
    batch_size : int
        Prompts per forward pass, which are also the prompts of one shard at most.
    device : str
        ``cpu``, ``cuda``, ``cuda:1``.
    torch_dtype : {"float32", "float16", "bfloat16"}
        Precision of the forward passes.
    progress : bool
        Show a progress bar on stderr.
    say : callable
        Receives one line per thing a user should know: notes on the models, the fit, resumed shards.

    Returns
    -------
    Dump

    Raises
    ------
    ModelError
        A model that cannot be loaded or used; the message names the remedy.
    VocabularyError
        Target and draft with different tokenizers.
    InputError
        A setting out of range, an empty prompt, or a prompt that leaves no room in the context window.
    ManifestError, DumpError
        A folder that holds another recording.
    """
    check_sampling(temperature, top_k, top_p)
    _check_counts(new_tokens, batch_size, seed)
    exit_layer = parse_exit(draft)
    if exit_layer is None and fit_text is not None:
        raise InputError(
            f"a fitting text belongs to an early-exit draft, not to the model {draft!r}"
        )
    texts = read_prompts(prompts) if isinstance(prompts, str | Path) else list(prompts)
    text = None if fit_text is None else read_text(Path(fit_text), "fitting text")
    settings = SamplingSettings(new_tokens, temperature, top_k, top_p, seed, dtype)
    with _threads(Path(out)) as n_threads:
        return _record(
            target,
            draft,
            texts,
            text,
            exit_layer,
            Path(out),
            settings,
            batch_size,
            device,
            torch_dtype,
            n_threads,
            progress,
            say,
        )


def _record(
    target: str,
    draft: str,
    texts: Sequence[str],
    text: str | None,
    exit_layer: int | None,
    out: Path,
    settings: SamplingSettings,
    batch_size: int,
    device: str,
    torch_dtype: str,
    n_threads: int,
    progress: bool,
    say: Callable[[str], None],
) -> Dump:
    target_model = load_model(target, device=device, torch_dtype=torch_dtype)
    _say_note(say, "target", target_model)
    draft_model: LoadedModel | EarlyExit
    if exit_layer is None:
        draft_model = load_model(draft, device=device, torch_dtype=torch_dtype)
        _say_note(say, "draft", draft_model)
        check_same_tokenizer(target_model.tokenizer, draft_model.tokenizer, texts)
        draft_identity, draft_size = model_identity(draft_model), draft_model.vocab_size
    else:
        draft_model = early_exit(target_model, exit_layer)
        draft_identity = exit_identity(target_model, exit_layer, text)
        draft_size = target_model.vocab_size
    prompt_ids = _tokenize(target_model, texts, settings.new_tokens)

    plan = plan_dump(
        prompts=[Prompt(t, ids) for t, ids in zip(texts, prompt_ids, strict=True)],
        new_tokens=settings.new_tokens,
        target_vocab_size=target_model.vocab_size,
        draft_vocab_size=draft_size,
        target=model_identity(target_model),
        draft=draft_identity,
        tokenizer=tokenizer_fingerprint(target_model.tokenizer),
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        dtype=settings.dtype,
        prompts_per_shard=batch_size,
        provenance=provenance(
            batch_size=batch_size,
            device=device.split(":")[0],
            torch_dtype=torch_dtype,
            cpu_threads=n_threads,
            end_of_text="ignored",
        ),
    )
    writer = DumpWriter(out, plan)
    missing = writer.missing()
    if len(missing) < len(plan.shards):
        say(f"{len(plan.shards) - len(missing)} of {len(plan.shards)} shards are already recorded")
    if missing and isinstance(draft_model, EarlyExit) and text is not None:
        draft_model = fit_map(target_model, draft_model, text)
    _record_shards(writer, missing, target_model, draft_model, prompt_ids, settings, progress)
    writer.finish()
    return open_dump(out)


@contextmanager
def _threads(out: Path) -> Iterator[int]:
    """Run torch with the thread count that a recording in `out` was begun with, or the present one.

    Sums are split by thread, so another count would change last bits between the shards of one dump.
    """
    torch, _ = import_torch()
    before = int(torch.get_num_threads())
    n_threads = before
    if (out / MANIFEST_NAME).exists():
        n_threads = read_manifest(out).provenance.get("parameters", {}).get("cpu_threads", before)
    torch.set_num_threads(n_threads)
    try:
        yield n_threads
    finally:
        torch.set_num_threads(before)


def _record_shards(
    writer: DumpWriter,
    missing: Sequence[int],
    target: LoadedModel,
    draft: LoadedModel | EarlyExit,
    prompt_ids: Sequence[Sequence[int]],
    settings: SamplingSettings,
    progress: bool,
) -> None:
    plan: Manifest = writer.manifest
    total = sum(sum(plan.shards[i].n_positions) for i in missing)
    bar = position_progress(total, "record") if progress and total else nullcontext(lambda: None)
    with bar as advance:
        for shard_idx in missing:
            idxs = plan.shards[shard_idx].prompt_idxs
            rows = record_batch(
                target, draft, [prompt_ids[i] for i in idxs], idxs, settings, advance
            )
            writer.write_shard(
                shard_idx,
                zip(rows.token_ids, rows.target_logits, rows.draft_logits, strict=True),
            )


def _check_counts(new_tokens: int, batch_size: int, seed: int) -> None:
    for name, value, least in (
        ("new_tokens", new_tokens, 1),
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")


def _tokenize(target: LoadedModel, texts: Sequence[str], new_tokens: int) -> list[list[int]]:
    limit = getattr(target.model.config.get_text_config(), "max_position_embeddings", None)
    prompt_ids = []
    for prompt_idx, text in enumerate(texts):
        ids = [int(i) for i in target.tokenizer(text)["input_ids"]]
        if not ids:
            raise InputError(f"prompt {prompt_idx}, {text!r}, has no tokens")
        if limit is not None and len(ids) + new_tokens > limit:
            raise InputError(
                f"prompt {prompt_idx}: {len(ids)} tokens and {new_tokens} new ones exceed the target's "
                f"context of {limit}; shorten the prompt or ask for fewer new tokens"
            )
        prompt_ids.append(ids)
    return prompt_ids


def model_identity(model: LoadedModel) -> dict[str, str]:
    """What a manifest says of a model; no path of this machine."""
    fields = {
        "name": model.source.identity,
        "architecture": type(model.model).__name__,
        "sha256" if model.source.local_files else "revision": model.fingerprint,
        "note": model.source.note,
    }
    return {key: value for key, value in fields.items() if value}


def exit_identity(target: LoadedModel, layer: int, text: str | None) -> dict[str, str]:
    """What a manifest says of an early exit whose map was fitted on a text, if on any."""
    fields = {
        "name": f"exit:{layer} of {target.source.identity}",
        "map": "none: final norm and head only",
    }
    if text is not None:
        fields["map"] = (
            f"least squares to the final hidden state, ridge {RIDGE:g}, fitted on "
            f"{len(target.tokenizer(text)['input_ids'])} tokens"
        )
        fields["fit_text_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return fields


def _say_note(say: Callable[[str], None], role: str, model: LoadedModel) -> None:
    note = f": {model.source.note}" if model.source.note else ""
    say(f"{role} {model.source.identity}{note}")
