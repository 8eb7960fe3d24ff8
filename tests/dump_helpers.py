"""Small random dumps, and the ways in which tests record, list and damage them."""

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np

from resispec_sim.dumps import DumpWriter, plan_dump, write_dump, writer

V = 11
LENGTHS = [3, 1, 4, 2, 2]
DTYPES = ["float32", "float16", "bfloat16"]


def make_rows(lengths=LENGTHS, target_size=V, draft_size=V, seed=0):
    """Random rows per prompt: (token_ids, target_logits, draft_logits)."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(0, target_size, n),
            rng.normal(scale=3, size=(n, target_size)).astype(np.float32),
            rng.normal(scale=3, size=(n, draft_size)).astype(np.float32),
        )
        for n in lengths
    ]


def make_dump(path, rows=None, **options):
    rows = make_rows() if rows is None else rows
    ids, target, draft = ([item[k] for item in rows] for k in range(3))
    return write_dump(path, target, draft, ids, **{"prompts_per_shard": 2, **options})


def make_plan(**options):
    settings = {"target_vocab_size": V, "prompts_per_shard": 2, "new_tokens": LENGTHS, "seed": 5}
    return plan_dump(prompts=[f"prompt {i}" for i in range(len(LENGTHS))], **settings | options)


def record(path, plan):
    """A recorder: write what is missing, then finish."""
    rows = make_rows()
    work = DumpWriter(path, plan)
    written = work.missing()
    for shard_idx in written:
        work.write_shard(shard_idx, [rows[i] for i in plan.shards[shard_idx].prompt_idxs])
    work.finish()
    return written


def files_of(folder):
    """Contents of a dump's files, the log with its dates aside."""
    return {f.name: f.read_bytes() for f in Path(folder).iterdir() if f.name != writer.LOG_NAME}


def edit_manifest(folder, change, *, signed=False):
    """Change a manifest's JSON; `signed`: with a checksum that fits, as no editor would leave it."""
    file = Path(folder) / "manifest.json"
    data = json.loads(file.read_text())
    change(data)
    if signed:
        del data["sha256"]
        data["sha256"] = hashlib.sha256(msgspec.json.encode(data)).hexdigest()
    file.write_text(json.dumps(data))


def break_file(file, damage):
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    elif damage == "cut":
        del data[-1:]
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(data)
