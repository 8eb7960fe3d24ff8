"""Run configurations of the decoding benchmark: which models, trees, rules and prompts, and how often."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from .live_config import DECODE_BENCH, Dtype, Order, RuleDtype

AUTOREGRESSIVE = "autoregressive"
CORPUS_PREFIX = "dataset:"

Count = Annotated[int, msgspec.Meta(ge=1)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class TopKShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dynamic tree of the draft's most probable tokens, as in EAGLE-2.

    Attributes
    ----------
    depth, width, budget : int
        Levels, the root included; nodes that are expanded on each, and children of those; nodes that
        are verified, the root included.
    """

    depth: Count
    width: Count
    budget: Count

    def __str__(self) -> str:
        return f"topk[{self.depth},{self.width},{self.budget}]"


Tree = str | TopKShape


class Method(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the systems that a run compares.

    Attributes
    ----------
    name : str
        As printed.
    rule : str
        Verification rule with options, or ``autoregressive``: plain decoding, without draft and tree.
    draft, tree : optional
        Where they differ from the run's.
    """

    name: Text
    rule: Text
    draft: Text | None = None
    tree: Tree | None = None


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What a decoding benchmark runs.

    Attributes
    ----------
    about : str
        One line for people: which table and row.
    target, draft : str
        Models: a hub name, folder or GGUF file; the draft also ``exit:LAYER`` or ``eagle:PATH``.
    tree : str or TopKShape
        ``d5b3``, a grow map's file, or a table with ``depth``, ``width`` and ``budget``.
    methods : tuple of Method
        The first is the one that the others are divided by.
    prompts : tuple of str
        Corpora (``dataset:c4``) and files of prompts; each is measured on its own.
    temperature, top_k, top_p
        Applied to target and draft alike.
    max_length : int, optional
        Tokens of prompt and continuation together, at most.
    fit_text : str, optional
        Text on which the map of an ``exit:LAYER`` draft is fitted.
    n_prompts, warmup_prompts, profile_prompts, prompt_tokens, max_new_tokens, seed, torch_dtype,
    rule_dtype, device, order, deterministic
        See `resispec_sim.config.DecodeBenchConfig`.
    """

    about: Text
    target: Text
    draft: Text
    tree: Tree
    methods: Annotated[tuple[Method, ...], msgspec.Meta(min_length=1)]
    prompts: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0)] = DECODE_BENCH.temperature
    top_k: Count | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n_prompts: Count = DECODE_BENCH.n_prompts
    warmup_prompts: Whole = DECODE_BENCH.warmup_prompts
    profile_prompts: Whole = DECODE_BENCH.profile_prompts
    prompt_tokens: Count = DECODE_BENCH.prompt_tokens
    max_new_tokens: Count = DECODE_BENCH.max_new_tokens
    max_length: Count | None = None
    seed: Whole = DECODE_BENCH.seed
    torch_dtype: Dtype = DECODE_BENCH.torch_dtype
    rule_dtype: RuleDtype = DECODE_BENCH.rule_dtype
    device: Text = DECODE_BENCH.device
    order: Order = DECODE_BENCH.order
    deterministic: bool = DECODE_BENCH.deterministic
    fit_text: Text | None = None

    @cached_property
    def datasets(self) -> dict[str, str]:
        """Sources by the short name under which they are reported: ``c4``, or a file's stem."""
        return {dataset_name(source): source for source in self.prompts}

    def draft_of(self, method: Method) -> str | None:
        """Draft of a method; None for plain decoding."""
        return None if method.rule == AUTOREGRESSIVE else method.draft or self.draft

    def tree_of(self, method: Method) -> Tree | None:
        """Tree of a method; None for plain decoding."""
        return None if method.rule == AUTOREGRESSIVE else method.tree or self.tree


class LocalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run configuration takes instead where the models that it names are out of reach.

    Attributes
    ----------
    eagle : str, optional
        Draft in place of one that begins with ``eagle:``; default: `draft`.
    growmap : str, optional
        Tree in place of a grow map's file that is not there.

    The rest replaces the entry of the same name.
    """

    about: str = ""
    target: str | None = None
    draft: str | None = None
    eagle: str | None = None
    growmap: str | None = None
    prompts: tuple[Text, ...] | None = None
    n_prompts: Count | None = None
    warmup_prompts: Whole | None = None
    profile_prompts: Whole | None = None
    prompt_tokens: Count | None = None
    max_new_tokens: Count | None = None
    max_length: Count | None = None
    torch_dtype: Dtype | None = None
    rule_dtype: RuleDtype | None = None
    device: str | None = None
    fit_text: str | None = None


def dataset_name(source: str) -> str:
    """Short name of a source of prompts.

    Examples
    --------
    >>> dataset_name("dataset:c4"), dataset_name("texts/mine.jsonl")
    ('c4', 'mine')
    """
    if source.startswith(CORPUS_PREFIX):
        return source.removeprefix(CORPUS_PREFIX)
    return Path(source).stem


def slug(name: str) -> str:
    """A method's name as part of a file name.

    Examples
    --------
    >>> slug("Sequoia + ResiSpec")
    'sequoia-resispec'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def public_name(model: str) -> str:
    """A model's name without the folders of this machine.

    Examples
    --------
    >>> public_name("eagle:~/heads/mine"), public_name("exit:20"), public_name("lab/model")
    ('eagle:mine', 'exit:20', 'lab/model')
    """
    kind, colon, name = model.rpartition(":")
    path = Path(name)
    local = path.is_absolute() or name.startswith((".", "~"))
    return kind + colon + (path.name if local else name)
