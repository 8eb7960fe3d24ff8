"""The manifest of a dump: what was recorded, with which settings, into which shards.

The manifest is fixed before the first logit is computed and holds nothing that depends on the clock
or the machine's folders, so an interrupted recording that is run again ends in the same bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ..checks import as_list, check_number, check_whole
from ..errors import InputError, ManifestError
from ..probs import check_vocabulary_map
from ..provenance import as_json_data
from ..provenance import provenance as collect_provenance
from .storage import shard_size, stored_type

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
MAX_SHARD_BYTES = 128 * 2**20

StorageDtype = Literal["float32", "float16", "bfloat16"]
STORAGE_DTYPES: tuple[str, ...] = get_args(StorageDtype)

# Upper bound on a prompt's share of a shard's header, and on the rest of that header, in bytes.
_HEADER_BYTES = 512


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt: its text, its token ids, both, or neither where they are not known."""

    text: str | None = None
    token_ids: list[int] | None = None


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the plan: consecutive prompts with all their positions.

    ``sha256`` is None as long as the recording is not finished.
    """

    file: str
    prompt_idxs: list[int]
    n_positions: list[int]
    n_bytes: int
    sha256: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a dump but its logits. `plan_dump` makes one, `read_manifest` loads one.

    ``vocab_size`` is the common vocabulary V that rows are aligned to when they are read; the
    shards hold rows of ``target_vocab_size`` and ``draft_vocab_size``. ``draft_to_target`` maps a
    reduced draft vocabulary.
    """

    schema_version: int
    kind: Literal["chain"]
    vocab_size: int
    target_vocab_size: int
    draft_vocab_size: int
    draft_to_target: list[int] | None
    target: dict[str, str]
    draft: dict[str, str]
    tokenizer: str | None
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    dtype: StorageDtype
    new_tokens: int
    prompts: list[Prompt]
    shards: list[Shard]
    provenance: dict[str, Any]


class _SignedManifest(Manifest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As it stands in a file: with the checksum of all other fields."""

    sha256: str = ""


class _VersionOnly(msgspec.Struct):
    schema_version: int


def shard_name(shard_idx: int) -> str:
    """File name of a shard. A manifest may hold no others, so it cannot point elsewhere."""
    return f"shard-{shard_idx:05d}.safetensors"


def plan_dump(
    *,
    prompts: Sequence[str | Sequence[int] | Prompt],
    new_tokens: int | Sequence[int],
    target_vocab_size: int,
    draft_vocab_size: int | None = None,
    draft_to_target: Sequence[int] | None = None,
    target: dict[str, str] | None = None,
    draft: dict[str, str] | None = None,
    tokenizer: str | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    dtype: StorageDtype = "float16",
    prompts_per_shard: int | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    provenance: dict[str, Any] | None = None,
) -> Manifest:
    """Fix what will be recorded and how it is cut into shards.

    Parameters
    ----------
    prompts : sequence of str, of token-id sequences, or of `Prompt`
    new_tokens : int or sequence of int
        Positions per prompt, one number for all or one each. A prompt's positions stay in one
        shard.
    target_vocab_size, draft_vocab_size : int
        Width of the rows that each model gives; the draft's is the target's where it is not given.
    draft_to_target : sequence of int, optional
        Target token id of every draft token, for a reduced draft vocabulary.
    target, draft : dict of str to str
        Model identities: name, source, revision or sha256, and notes (dequantisation, fitted map).
    tokenizer : str, optional
        Fingerprint of the common tokenizer.
    temperature, top_k, top_p, seed
        How the tokens are sampled from the target.
    dtype : {"float16", "bfloat16", "float32"}
        Storage of logits. 16-bit rows hold the logit minus the row's maximum, float32 rows the raw
        logit.
    prompts_per_shard : int, optional
        Upper bound on prompts in one shard, the recorder's batch.
    max_shard_bytes : int
        Upper bound on a shard's size, at most 128 MiB.
    provenance : dict, optional
        JSON data that says what ran; `resispec_sim.provenance.provenance` where it is not given.

    Raises
    ------
    InputError
        If a setting is of the wrong type.
    ManifestError
        If a setting is out of range, or one prompt alone is larger than a shard.

    Examples
    --------
    >>> plan = plan_dump(
    ...     prompts=["a", "b", "c"], new_tokens=4, target_vocab_size=10, prompts_per_shard=2
    ... )
    >>> [(shard.file, shard.prompt_idxs) for shard in plan.shards]
    [('shard-00000.safetensors', [0, 1]), ('shard-00001.safetensors', [2])]
    """
    entries = [_as_prompt(prompt) for prompt in prompts]
    counts = [check_whole("new_tokens", n) for n in as_list(new_tokens)]
    if isinstance(new_tokens, Integral):
        counts *= len(entries)
    if not entries:
        raise ManifestError("a dump needs at least one prompt, got none")
    if len(counts) != len(entries):
        raise ManifestError(
            f"{len(entries)} prompts but {len(counts)} entries in new_tokens: give one each"
        )
    draft_size = target_vocab_size if draft_vocab_size is None else draft_vocab_size
    if dtype not in STORAGE_DTYPES:
        raise ManifestError(f"dtype must be one of {', '.join(STORAGE_DTYPES)}, got {dtype!r}")
    sizes = (int(target_vocab_size), int(draft_size))
    aligned = sizes[0] if draft_to_target is not None else max(sizes)
    if prompts_per_shard is not None and check_whole("prompts_per_shard", prompts_per_shard) < 1:
        raise ManifestError(f"prompts_per_shard must be at least 1, got {prompts_per_shard}")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        kind="chain",
        vocab_size=aligned,
        target_vocab_size=sizes[0],
        draft_vocab_size=sizes[1],
        draft_to_target=None
        if draft_to_target is None
        else [check_whole("draft_to_target", i) for i in draft_to_target],
        target=dict(target or {}),
        draft=dict(draft or {}),
        tokenizer=tokenizer,
        temperature=check_number("temperature", temperature),
        top_k=None if not top_k else check_whole("top_k", top_k),
        top_p=None if top_p is None else check_number("top_p", top_p),
        seed=None if seed is None else check_whole("seed", seed),
        dtype=dtype,
        new_tokens=max(counts),
        prompts=entries,
        shards=[],
        provenance=collect_provenance() if provenance is None else as_json_data(provenance),
    )
    limit = min(max_shard_bytes, MAX_SHARD_BYTES)
    shards = _cut_into_shards(manifest, counts, prompts_per_shard or len(entries), limit)
    manifest = msgspec.structs.replace(manifest, shards=shards)
    check_manifest(manifest)
    # A round trip turns tuples into lists, so that the plan compares equal to the manifest on disk.
    return decode_manifest(encode_manifest(manifest), "the plan")


def _as_prompt(prompt: str | Sequence[int] | Prompt) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if not isinstance(prompt, Iterable):
        raise InputError(f"prompts holds {prompt!r}: give texts, lists of token ids, or Prompts")
    return Prompt(token_ids=[check_whole("a token id of a prompt", i) for i in prompt])


def _cut_into_shards(manifest: Manifest, counts: list[int], batch: int, limit: int) -> list[Shard]:
    width = manifest.target_vocab_size + manifest.draft_vocab_size
    row = width * stored_type(manifest.dtype).itemsize + 8
    groups: list[list[int]] = []
    used = 0
    for prompt_idx, n in enumerate(counts):
        size = n * row + _HEADER_BYTES
        if size + _HEADER_BYTES > limit:
            raise ManifestError(
                f"prompt {prompt_idx}: its {n} positions take about {size:,} bytes in "
                f"{manifest.dtype}, more than the {limit:,} of a shard; use fewer new tokens, "
                "a 16-bit dtype, or several prompts"
            )
        if groups and len(groups[-1]) < batch and used + size <= limit:
            groups[-1].append(prompt_idx)
            used += size
        else:
            groups.append([prompt_idx])
            used = _HEADER_BYTES + size
    shards = []
    for shard_idx, group in enumerate(groups):
        rows = [counts[i] for i in group]
        shard = Shard(file=shard_name(shard_idx), prompt_idxs=group, n_positions=rows, n_bytes=0)
        shards.append(msgspec.structs.replace(shard, n_bytes=shard_size(manifest, shard)))
    return shards


def encode_manifest(manifest: Manifest) -> bytes:
    """JSON bytes of a manifest with their checksum: the same bytes for equal manifests."""
    signed = _SignedManifest(**msgspec.structs.asdict(manifest), sha256=_checksum(manifest))
    return msgspec.json.format(msgspec.json.encode(signed), indent=2) + b"\n"


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest; ``where`` names it in errors (`ManifestError`).

    What a manifest says about the recording, such as its temperature, goes into every figure, so one
    that was edited is refused.
    """
    try:
        version = msgspec.json.decode(data, type=_VersionOnly).schema_version
        if version != SCHEMA_VERSION:
            raise ManifestError(
                f"{where}: schema version {version}, but this release reads version "
                f"{SCHEMA_VERSION}; use the release that made the dump, or a newer one"
            )
        signed = msgspec.json.decode(data, type=_SignedManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise ManifestError(f"{where}: not a manifest of a dump: {err}") from err
    fields = {name: getattr(signed, name) for name in Manifest.__struct_fields__}
    manifest = Manifest(**fields)
    check_manifest(manifest, where)
    if signed.sha256 != _checksum(manifest):
        raise ManifestError(
            f"{where}: was altered after recording: its content does not have the checksum in it. "
            "Restore it; another temperature or cut is an option of the commands that read a dump"
        )
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Load and check ``manifest.json`` of a dump's folder (`ManifestError` if there is none)."""
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except OSError as err:
        raise ManifestError(
            f"{path}: cannot be read ({err.strerror}); is {folder} the folder of a dump?"
        ) from err
    return decode_manifest(data, str(path))


def check_manifest(manifest: Manifest, where: str = "the plan") -> None:
    """Raise `ManifestError` unless the parts of a manifest fit together."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise ManifestError(f"{where}: {message}")

    m = manifest
    require(m.dtype in STORAGE_DTYPES, f"dtype {m.dtype!r} is not one of {STORAGE_DTYPES}")
    require(
        m.target_vocab_size >= 1 and m.draft_vocab_size >= 1, "vocabulary sizes must be at least 1"
    )
    if m.draft_to_target is None:
        aligned = max(m.target_vocab_size, m.draft_vocab_size)
    else:
        aligned = m.target_vocab_size
        try:
            check_vocabulary_map(m.draft_to_target, m.target_vocab_size, m.draft_vocab_size)
        except InputError as err:
            raise ManifestError(f"{where}: {err}") from err
    require(
        m.vocab_size == aligned,
        f"vocab_size is {m.vocab_size}, but the two vocabularies give {aligned}",
    )
    require(
        math.isfinite(m.temperature) and m.temperature >= 0,
        f"temperature {m.temperature} is not in [0, inf)",
    )
    require(m.top_k is None or m.top_k >= 1, f"top_k {m.top_k} is below 1")
    require(m.top_p is None or 0 < m.top_p <= 1, f"top_p {m.top_p} is not in (0, 1]")
    planned = [idx for shard in m.shards for idx in shard.prompt_idxs]
    require(bool(m.prompts), "there are no prompts")
    require(
        planned == list(range(len(m.prompts))),
        "the shards do not hold every prompt once and in order",
    )
    counts = [n for shard in m.shards for n in shard.n_positions]
    require(
        max(counts, default=0) == m.new_tokens,
        f"new_tokens is {m.new_tokens}, but shards hold {counts}",
    )
    for shard_idx, shard in enumerate(m.shards):
        name = shard_name(shard_idx)
        require(
            shard.file == name,
            f"shard {shard_idx} is named {shard.file!r}; only {name!r} is allowed",
        )
        require(bool(shard.prompt_idxs), f"{name}: no prompts")
        require(
            len(shard.n_positions) == len(shard.prompt_idxs),
            f"{name}: not one n_positions per prompt",
        )
        require(
            min(shard.n_positions) >= 1, f"{name}: a prompt without positions: {shard.n_positions}"
        )
        size = shard_size(m, shard)
        require(
            shard.n_bytes == size,
            f"{name}: n_bytes is {shard.n_bytes}, but its prompts take {size}",
        )
        require(size <= MAX_SHARD_BYTES, f"{name}: {size:,} bytes, more than {MAX_SHARD_BYTES:,}")
        digest = shard.sha256
        require(
            digest is None or (len(digest) == 64 and set(digest) <= set("0123456789abcdef")),
            f"{name}: sha256 {digest!r} is not 64 hexadecimal digits",
        )


def differing_fields(old: Manifest, new: Manifest) -> list[str]:
    """Describe every field in which two plans differ, checksums aside; shards if nothing else does."""
    lines: list[str] = []
    for field in sorted(Manifest.__struct_fields__, key=lambda name: name == "shards"):
        if field == "shards" and lines:
            continue
        a, b = getattr(without_checksums(old), field), getattr(without_checksums(new), field)
        if isinstance(a, dict) and isinstance(b, dict):
            keys = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
            lines += [
                f"{field}.{k}: {_short(a.get(k))} there, {_short(b.get(k))} now" for k in keys
            ]
        elif a != b:
            lines.append(f"{field}: {_short(a)} there, {_short(b)} now")
    return lines


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def without_checksums(manifest: Manifest) -> Manifest:
    """The plan alone: the manifest as it was before recording."""
    shards = [msgspec.structs.replace(shard, sha256=None) for shard in manifest.shards]
    return msgspec.structs.replace(manifest, shards=shards)
