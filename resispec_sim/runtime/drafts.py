"""A draft by the name that the user typed: a model, an early exit, an EAGLE head, or none."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from .eagle import EagleHead, load_eagle, parse_eagle
from .early_exit import EarlyExit, early_exit, fit_map, parse_exit
from .models import LoadedModel, check_same_tokenizer, load_model
from .prompts import read_text
from .record import exit_identity, model_identity

NO_DRAFT = "none"


def load_draft(
    name: str,
    target: LoadedModel,
    *,
    fit_text: str | Path | None = None,
    device: str = "cpu",
    torch_dtype: str = "float32",
) -> LoadedModel | EarlyExit | EagleHead | None:
    """Load what drafts for a target.

    Parameters
    ----------
    name : str
        A model's name as in `load_model`, ``exit:LAYER``, ``eagle:FOLDER``, or ``none``.
    target : LoadedModel
    fit_text : str or Path, optional
        Text file on which the map of an early exit is fitted.
    device, torch_dtype
        As in `load_model`.

    Raises
    ------
    ModelError, VocabularyError, InputError
        If it cannot be loaded, has another tokenizer, or a text is given to what is not fitted.
    """
    layer = parse_exit(name)
    if fit_text is not None and layer is None:
        raise InputError(f"a fitting text belongs to an early-exit draft, not to {name!r}")
    if layer is not None:
        found = early_exit(target, layer)
        if fit_text is None:
            return found
        return fit_map(target, found, read_text(Path(fit_text), "fitting text"))
    if name == NO_DRAFT:
        return None
    folder = parse_eagle(name)
    if folder is not None:
        return load_eagle(folder, target)
    draft = load_model(name, device=device, torch_dtype=torch_dtype)
    check_same_tokenizer(target.tokenizer, draft.tokenizer)
    return draft


def draft_identity(
    draft: LoadedModel | EarlyExit | EagleHead | None,
    name: str,
    target: LoadedModel,
    fit_text: str | Path | None = None,
) -> dict[str, str]:
    """What a manifest says of a draft that `load_draft` loaded; no path of this machine."""
    if isinstance(draft, LoadedModel):
        return model_identity(draft)
    if isinstance(draft, EarlyExit):
        text = None if fit_text is None else read_text(Path(fit_text), "fitting text")
        return exit_identity(target, draft.layer, text)
    return {"name": NO_DRAFT if draft is None else f"eagle:{Path(name).name}"}
