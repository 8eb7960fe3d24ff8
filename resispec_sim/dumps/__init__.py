"""Dumps: recorded target and draft logits in a folder of safetensors shards and a manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError
from .names import resolve_dump, shipped_names
from .reader import Dump, Position, open_dump
from .schema import Manifest, Prompt, Shard, StorageDtype, plan_dump, read_manifest
from .writer import DumpWriter, PromptRows, check_shard

__all__ = [
    "Dump",
    "DumpWriter",
    "Manifest",
    "Position",
    "Prompt",
    "PromptRows",
    "Shard",
    "open_dump",
    "plan_dump",
    "read_manifest",
    "resolve_dump",
    "shipped_names",
    "write_dump",
]


def write_dump(
    path: str | os.PathLike[str],
    target_logits: Sequence[ArrayLike],
    draft_logits: Sequence[ArrayLike],
    token_ids: Sequence[ArrayLike],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    dtype: StorageDtype = "float16",
    prompts: Sequence[str | Sequence[int] | Prompt] | None = None,
    target: dict[str, str] | None = None,
    draft: dict[str, str] | None = None,
    tokenizer: str | None = None,
    seed: int | None = None,
    draft_to_target: Sequence[int] | None = None,
    prompts_per_shard: int | None = None,
    provenance: dict[str, Any] | None = None,
) -> Dump:
    """Write a dump from arrays and open it.

    Parameters
    ----------
    path : str or Path
        Folder of the dump; made if it is not there.
    target_logits, draft_logits : list of array_like, shapes (L, V_target) and (L, V_draft)
        One array per prompt. Row j predicts ``token_ids[j]``, from the prompt and the tokens
        before j.
    token_ids : list of array_like of int, shape (L,)
        Tokens sampled from the target at ``temperature``, ``top_k``, ``top_p``.
    **settings
        As in `plan_dump`.

    Returns
    -------
    Dump

    Raises
    ------
    InputError, LogitsError
        Shapes that disagree, a token outside the vocabulary or with target logit -inf, NaN or +inf.
    ManifestError
        A setting out of range, a prompt larger than a shard, or a folder with another plan.
    ShardError
        The folder holds a finished dump of the same plan with other logits.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_dump(folder, [[[0.0, 1.0]]], [[[1.0, 0.0]]], [[1]]) as dump:
    ...         dump.probs(0)[0].round(3).tolist()
    [0.269, 0.731]
    """
    counts = {len(target_logits), len(draft_logits), len(token_ids)}
    if len(counts) != 1 or counts == {0}:
        raise InputError(
            f"one array per prompt in each list, please: got {len(target_logits)} target_logits, "
            f"{len(draft_logits)} draft_logits and {len(token_ids)} token_ids"
        )
    arrays = zip(token_ids, target_logits, draft_logits, strict=True)
    rows = [
        (
            _array(i, "token_ids", ids),
            _array(i, "target_logits", targets),
            _array(i, "draft_logits", drafts),
        )
        for i, (ids, targets, drafts) in enumerate(arrays)
    ]
    for prompt_idx, (ids, targets, drafts) in enumerate(rows):
        if ids.ndim != 1 or not ids.size or targets.ndim != 2 or drafts.ndim != 2:
            raise InputError(
                f"prompt {prompt_idx}: token_ids {ids.shape}, target_logits {targets.shape}, "
                f"draft_logits {drafts.shape}; needed are (L,), (L, V_target), (L, V_draft), L >= 1"
            )
    plan = plan_dump(
        prompts=[Prompt()] * len(rows) if prompts is None else prompts,
        new_tokens=[ids.shape[0] for ids, _, _ in rows],
        target_vocab_size=rows[0][1].shape[1],
        draft_vocab_size=rows[0][2].shape[1],
        draft_to_target=draft_to_target,
        target=target,
        draft=draft,
        tokenizer=tokenizer,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        dtype=dtype,
        prompts_per_shard=prompts_per_shard,
        provenance=provenance,
    )
    # Before anything is on disk: a plan left behind would stand in the way of a corrected call.
    for shard in plan.shards:
        check_shard(plan, shard, [PromptRows(*rows[i]) for i in shard.prompt_idxs])
    writer = DumpWriter(Path(path), plan)
    # All of them, not only the missing ones: shards of an earlier call may hold other arrays.
    for shard_idx, shard in enumerate(plan.shards):
        writer.write_shard(shard_idx, [rows[i] for i in shard.prompt_idxs])
    writer.finish()
    return open_dump(path)


def _array(prompt_idx: int, name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"prompt {prompt_idx}: {name} is not an array: {error}") from error
