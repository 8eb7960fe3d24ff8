"""Speculative decoding with a tree: draft, score all nodes in one pass, verify, keep the accepted path."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_whole
from ..errors import InputError, LogitsError, RuleError
from ..growmaps import GrowMap
from ..live_config import DECODE
from ..probs import check_sampling
from ..rules import Rule, parse_rule
from ..trees import CompleteTree
from .cached_model import CachedModel
from .draft_tree import DraftTree, tree_mask
from .drafters import Drafter, ModelDrafter, TopKTree, parse_plan
from .eagle import EagleHead
from .eagle_drafter import EagleDrafter
from .early_exit import EarlyExit
from .models import LoadedModel, check_same_tokenizer, import_torch, on_device
from .steps import Clock, Decoded, Finish, NodeLog, Step
from .torch_rules import BATCHED, check_logits, draw_tokens, supported, to_probs, verify

Tree = str | Path | CompleteTree | GrowMap | TopKTree


class Decoder:
    """A target, a draft and a rule, loaded once and used for any number of prompts.

    Parameters
    ----------
    target : LoadedModel
    draft : LoadedModel, EarlyExit, EagleHead, Drafter or None
        None is plain autoregressive decoding: one token a step.
    rule : str or Rule
        A rule of single positions; see `resispec_sim.runtime.torch_rules.supported`.
    tree : str, path, CompleteTree, GrowMap or TopKTree
    temperature, top_k, top_p
        Applied alike to target and draft; temperature 0 is greedy.
    dtype : {"float64", "float32"}
        Type of the probabilities.

    Raises
    ------
    RuleError
        A rule that cannot be decoded with, or whose siblings are drawn otherwise than the tree's.
    ModelError
        A model that cannot take a tree.
    VocabularyError
        Target and draft with different tokenizers.
    InputError
        A setting out of range.
    """

    def __init__(
        self,
        target: LoadedModel,
        draft: LoadedModel | EarlyExit | EagleHead | Drafter | None,
        rule: str | Rule = DECODE.rule,
        tree: Tree = DECODE.tree,
        *,
        temperature: float = DECODE.temperature,
        top_k: int | None = None,
        top_p: float | None = None,
        dtype: str = DECODE.dtype,
    ) -> None:
        check_sampling(temperature, top_k, top_p)
        if dtype not in ("float32", "float64"):
            raise InputError(f"dtype {dtype!r} of the probabilities is not float64 or float32")
        self.target = target
        self._model = CachedModel(target)
        self._device = target.device
        self.sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "dtype": dtype,
        }
        self.rule = parse_rule(rule)
        self.plan = GrowMap([()]) if draft is None else parse_plan(tree)
        self.scheme = self._scheme()
        self._drafter = self._make_drafter(draft)
        self._eos = _eos_tokens(target)

    @property
    def vocab_size(self) -> int:
        """Columns of the target's logits, to which the draft's are cut or filled up."""
        return self._model.vocab_size

    def _scheme(self) -> str:
        if not supported(self.rule):
            raise RuleError(
                f"{self.rule.label} cannot be decoded with; use a rule of single positions that "
                f"runs on batches: {', '.join(BATCHED)}"
            )
        scheme = self.rule.siblings
        if isinstance(self.plan, TopKTree) and scheme != "topk":
            raise RuleError(
                f"{self.rule.label} verifies siblings drawn {scheme}, but a top-k tree takes the draft's "
                "most probable tokens; use target-only, or a tree such as d5b3"
            )
        return scheme

    def _make_drafter(self, draft: Any) -> Drafter | None:
        if draft is None or isinstance(draft, Drafter):
            return draft
        if isinstance(draft, EarlyExit):
            return ModelDrafter(CachedModel(self.target, draft))
        if isinstance(draft, EagleHead):
            return EagleDrafter(draft)
        check_same_tokenizer(self.target.tokenizer, draft.tokenizer)
        return ModelDrafter(CachedModel(draft))

    def decode(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = DECODE.max_new_tokens,
        seed: int = DECODE.seed,
        stop_at_eos: bool = True,
        profile: bool = False,
        observe: Callable[[NodeLog], None] | None = None,
        advance: Callable[[int], None] = lambda _n: None,
    ) -> Decoded:
        """Decode one prompt.

        Parameters
        ----------
        prompt : str or sequence of int
        max_new_tokens : int
            At least 1; the text ends earlier at an end-of-text token and at the end of the window.
        seed : int
            Seed of this prompt's random numbers; with several prompts, seed + i for prompt i.
        stop_at_eos : bool
        profile : bool
            Measure the phases; on a GPU this synchronises, and costs time.
        observe : callable, optional
            Receives a `NodeLog` after every step.
        advance : callable
            Called with the number of tokens of every step.

        Raises
        ------
        InputError
            An empty prompt, or one that leaves no room in the window; a negative seed.
        VocabularyError
            A token that the draft has no embedding for, in the prompt or drawn by the target.
        """
        check_whole("max_new_tokens", max_new_tokens, at_least=1)
        seed = check_whole("seed", seed, at_least=0)
        ids = self._prompt_ids(prompt)
        torch, _ = import_torch()
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        rng = np.random.Generator(np.random.PCG64(seed))
        self._start(ids)
        committed = list(ids)
        steps: list[Step] = []
        finished: Finish | None = None
        if on_gpu:
            torch.cuda.synchronize(self._device)  # the prompt's pass is not part of the time
        begun = time.perf_counter()
        while finished is None:
            left = max_new_tokens - (len(committed) - len(ids))
            step = self._step(committed, left, rng, profile, observe, stop_at_eos)
            steps.append(step)
            committed += step.tokens
            advance(step.n_tokens)
            finished = self._finished(committed, len(ids), max_new_tokens, stop_at_eos)
        if on_gpu:
            torch.cuda.synchronize(self._device)
        new = committed[len(ids) :]
        return Decoded(
            prompt_ids=ids,
            token_ids=new,
            text=self.target.tokenizer.decode(new),
            steps=steps,
            seconds=time.perf_counter() - begun,
            finished=finished,
            peak_memory_bytes=torch.cuda.max_memory_allocated(self._device) if on_gpu else None,
        )

    def _prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        ids = self.target.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        ids = [int(i) for i in ids]
        shown = repr(prompt)[:60]
        if not ids:
            raise InputError(f"the prompt {shown} has no tokens; give at least one")
        bad = [i for i in ids if not 0 <= i < self._model.vocab_size]
        if bad:
            raise InputError(
                f"the prompt holds {bad[0]}, which is no token of {self._model.identity}"
            )
        window = self._model.window
        if window is not None and len(ids) > window:
            raise InputError(
                f"the prompt {shown} has {len(ids)} tokens, more than the {window} that "
                f"{self._model.identity} has positions for; shorten it"
            )
        return ids

    def _start(self, ids: list[int]) -> None:
        self._model.reset()
        states = None
        if len(ids) > 1:
            states = self._model.feed(ids[:-1], range(len(ids) - 1))
        if self._drafter is not None:
            self._drafter.start(ids, states)

    def _finished(
        self, committed: list[int], n_prompt: int, most: int, stop: bool
    ) -> Finish | None:
        if stop and committed[-1] in self._eos:
            return "eos"
        if len(committed) - n_prompt >= most:
            return "length"
        if self._model.window is not None and len(committed) > self._model.window:
            return "window"
        return None

    def _levels_left(self, n_committed: int, n_left: int) -> int:
        """Levels that may be drafted: within both windows, and not past the end of the text."""
        levels = n_left - 1
        if self._model.window is not None:
            levels = min(levels, self._model.window - n_committed)
        if self._drafter is not None and self._drafter.window is not None:
            levels = min(levels, self._drafter.window - n_committed + 1)
        return max(levels, 0)

    def _step(
        self,
        committed: list[int],
        n_left: int,
        rng: np.random.Generator,
        profile: bool,
        observe: Callable[[NodeLog], None] | None,
        stop_at_eos: bool,
    ) -> Step:
        clock = Clock(self._device, profile)
        plan, cut = self._plan_within(self._levels_left(len(committed), n_left))
        with clock.phase("drafting"):
            tree = self._draft(committed[-1], plan, rng)
        with clock.phase("verification"):
            states = self._score(tree)
        path, tokens = self._verify(tree, states, rng, clock)
        end_tokens = self._eos if stop_at_eos else frozenset()
        end = next((i for i, token in enumerate(tokens) if token in end_tokens), len(tokens))
        tokens = tokens[: end + 1]
        path = path[: len(tokens)]
        if observe is not None:
            observe(
                NodeLog(
                    list(committed),
                    tree,
                    lambda nodes: self._model.logits(states[list(nodes)]),
                    list(path),
                    list(tokens),
                    cut,
                    sorted(end_tokens),
                )
            )
        with clock.phase("verification"):
            n_prefix = len(committed) - 1
            self._model.keep(n_prefix, [n_prefix + node for node in (0, *path)])
            if self._drafter is not None:
                needed = states[[0, *path]] if self._drafter.needs_states else None
                self._drafter.commit(tree, path, needed)
        return Step(tokens, len(path), tree.n_nodes, cut, clock.seconds)

    def _plan_within(self, levels: int) -> tuple[GrowMap | TopKTree, bool]:
        plan = self.plan
        if levels >= plan.n_levels:
            return plan, False
        if levels == 0:
            return GrowMap([()]), True
        if isinstance(plan, TopKTree):
            return TopKTree(levels + 1, plan.width, plan.budget), True
        return _first_levels(plan, levels), True

    def _draft(self, root: int, plan: GrowMap | TopKTree, rng: np.random.Generator) -> DraftTree:
        if self._drafter is None or plan.n_levels == 0:
            return DraftTree.rooted(root)
        n = 0 if isinstance(plan, TopKTree) else plan.n_nodes
        return self._drafter.grow(root, plan, self.scheme, self._draft_probs, rng.random(n))

    def _draft_probs(self, logits: Any) -> Any:
        torch, _ = import_torch()
        width = self._model.vocab_size
        logits = logits[:, :width].to(self._device)
        missing = width - logits.shape[-1]
        if missing:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return to_probs(logits, **self.sampling)

    def _score(self, tree: DraftTree) -> Any:
        n_prefix = self._model.n_entries
        nodes = range(tree.n_nodes)
        return self._model.feed(
            tree.tokens,
            [n_prefix + depth for depth in tree.depths],
            tree_mask(tree, nodes, n_prefix, nodes),
        )

    def _verify(
        self, tree: DraftTree, states: Any, rng: np.random.Generator, clock: Clock
    ) -> tuple[list[int], list[int]]:
        """Walk down from the root: accepted nodes, and emitted tokens, of which there is one more."""
        torch, _ = import_torch()
        path: list[int] = []
        tokens: list[int] = []
        node = 0
        with torch.inference_mode():
            while True:
                kids = tree.children[node]
                numbers = on_device(rng.random((1, len(kids) + 1)), self._device)
                with clock.phase("verification"):
                    # a model on several GPUs has its head on the last of them
                    logits = self._model.logits(states[node : node + 1]).to(self._device)
                    p = to_probs(logits, **self.sampling)
                if kids:
                    siblings = on_device([[tree.tokens[kid] for kid in kids]], p.device)
                    with clock.phase("shaping"):
                        found = verify(
                            self.rule, p, tree.rows[node][None], siblings, numbers, clock=clock
                        )
                        sibling, token = torch.cat(found).tolist()
                else:
                    undefined = p[:, 0].isnan()
                    drawn = torch.where(undefined, -1, draw_tokens(p, numbers)[:, 0])
                    sibling, token = -1, int(drawn[0])
                if token < 0:
                    check_logits(
                        logits, f"{self._model.identity}, {len(tokens)} tokens into a step"
                    )
                    raise LogitsError("the draft's logits define no distribution (NaN or infinite)")
                tokens.append(token)
                if sibling < 0:
                    return path, tokens
                node = kids[sibling]
                path.append(node)


def decode(
    target: LoadedModel,
    draft: LoadedModel | EarlyExit | EagleHead | Drafter | None,
    prompt: str | Sequence[int],
    rule: str | Rule = DECODE.rule,
    tree: Tree = DECODE.tree,
    *,
    max_new_tokens: int = DECODE.max_new_tokens,
    temperature: float = DECODE.temperature,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = DECODE.seed,
    dtype: str = DECODE.dtype,
    profile: bool = False,
) -> Decoded:
    """Decode one prompt; see `Decoder`, which keeps its models ready for more, for the parameters."""
    decoder = Decoder(
        target, draft, rule, tree, temperature=temperature, top_k=top_k, top_p=top_p, dtype=dtype
    )
    return decoder.decode(prompt, max_new_tokens=max_new_tokens, seed=seed, profile=profile)


def _first_levels(plan: GrowMap, levels: int) -> GrowMap:
    kept = sorted(node for level in plan.levels[: levels + 1] for node in level)
    number = {node: i for i, node in enumerate(kept)}
    return GrowMap([[number[k] for k in plan.children[node] if k in number] for node in kept])


def _eos_tokens(model: LoadedModel) -> frozenset[int]:
    """End-of-text tokens that the model's generation settings and tokenizer name."""
    found: set[int] = set()
    for owner in (getattr(model.model, "generation_config", None), model.model.config):
        value = getattr(owner, "eos_token_id", None)
        if value is not None:
            found |= {value} if isinstance(value, int) else set(value)
    if getattr(model.tokenizer, "eos_token_id", None) is not None:
        found.add(int(model.tokenizer.eos_token_id))
    return frozenset(found)
