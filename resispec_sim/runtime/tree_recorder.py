"""Recording the trees of live decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..dumps.schema import MANIFEST_NAME, StorageDtype
from ..dumps.storage import encode_rows
from ..errors import DumpError, ShardError
from ..files import write_whole
from ..provenance import provenance
from ..tree_dumps import KIND, SCHEMA_VERSION, TreeManifest, node_order, read_manifest
from ..tree_files import list_steps, load_step, pack_text, remove_text, write_step
from .decode import Decoder
from .steps import NodeLog


class TreeRecorder:
    """Stores every step of a decoder; `observer` gives what `Decoder.decode` takes as ``observe``.

    Parameters
    ----------
    folder : str or Path
        Made if it is not there. One that holds steps of the same decoder is added to: a text that is
        recorded again, from the same prompt, replaces its steps. A text that was not finished keeps its
        steps as they are.
    decoder : Decoder
    target, draft : dict of str to str
        Model identities.
    dtype : {"float16", "bfloat16", "float32"}
        Storage of the logits.

    Raises
    ------
    DumpError
        If the folder holds something else.
    """

    def __init__(
        self,
        folder: str | Path,
        decoder: Decoder,
        *,
        target: dict[str, str],
        draft: dict[str, str],
        dtype: StorageDtype = "float16",
    ) -> None:
        self.folder = Path(folder)
        self._dtype = dtype
        sampling = decoder.sampling
        self.manifest = TreeManifest(
            schema_version=SCHEMA_VERSION,
            kind=KIND,
            target=target,
            draft=draft,
            rule=decoder.rule.label,
            siblings=decoder.scheme,
            tree=str(decoder.plan),
            vocab_size=decoder.vocab_size,
            draft_vocab_size=decoder.vocab_size,
            temperature=sampling["temperature"],
            top_k=sampling["top_k"],
            top_p=sampling["top_p"],
            dtype=dtype,
            provenance=provenance(),
        ).signed()
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / MANIFEST_NAME).exists():
            found = read_manifest(self.folder)
            here, there = _settings(self.manifest), _settings(found)
            for name in (name for name in here if here[name] != there[name]):
                raise DumpError(
                    f"{self.folder} holds trees of another decoder: {name} is {there[name]!r} there, "
                    f"{here[name]!r} now; choose another folder"
                )
        elif any(self.folder.iterdir()):
            raise DumpError(
                f"{self.folder} is not empty and holds no recorded trees; choose another"
            )
        write_whole(
            self.folder / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(self.manifest))
        )

    def observer(self, text: int) -> Callable[[NodeLog], None]:
        """What stores the steps of one text, numbered from 0.

        What was recorded of that text before is kept until there is a first step to take its place; of
        another prompt it stays (`DumpError`).
        """
        n_seen = 0

        def observe(log: NodeLog) -> None:
            nonlocal n_seen
            if n_seen == 0:
                before = self._prompt_of(text)
                if before not in (None, list(log.prefix)):
                    raise DumpError(
                        f"{self.folder}: text {text} was recorded from another prompt; give this one "
                        "another number (--seed) or another folder"
                    )
                remove_text(self.folder, text)
            self._store(text, n_seen, log)
            n_seen += 1

        return observe

    def _prompt_of(self, text: int) -> list[int] | None:
        """Tokens before the first recorded step; None where there is none, or it is damaged."""
        try:
            steps = list_steps(self.folder, text)
            return load_step(steps[0])[0]["prefix"].tolist() if steps else None
        except (ShardError, KeyError):
            return None

    def finish(self, text: int) -> Path:
        """Put the steps of a text that is at its end into one compressed file; see `pack_text`."""
        return pack_text(self.folder, text)

    def _store(self, text: int, step: int, log: NodeLog) -> None:
        tree = log.tree
        where = f"text {text}, step {step}"
        inner = node_order(tree.parents)
        width = self.manifest.vocab_size
        draft = np.full((len(inner), width), -np.inf, dtype=np.float32)
        for i, node in enumerate(inner):
            row = _numpy(tree.logits[node])[:width]
            draft[i, : len(row)] = row
        arrays: dict[str, Any] = {
            "prefix": np.array(log.prefix, dtype=np.int64),
            "tokens": np.array(tree.tokens, dtype=np.int64),
            "parents": np.array(tree.parents, dtype=np.int64),
            "inner": np.array(inner, dtype=np.int64),
            "end_tokens": np.array(log.end_tokens, dtype=np.int64),
            "path": np.array(log.path, dtype=np.int64),
            "emitted": np.array(log.tokens, dtype=np.int64),
            "target_logits": encode_rows(
                _numpy(log.target_logits(range(tree.n_nodes))),
                self._dtype,
                f"{where}, target logits",
            ),
            "draft_logits": encode_rows(draft, self._dtype, f"{where}, draft logits")
            if inner
            else draft.astype(np.float16),
        }
        info = {"cut": str(int(log.cut))}
        write_step(self.folder, text, step, arrays, info)


def _numpy(logits: Any) -> Any:
    return logits.float().cpu().numpy()


def _settings(manifest: TreeManifest) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.to_builtins(manifest)
    del stored["provenance"], stored["sha256"]
    return stored
