"""Training of an EAGLE head on the target's own samples, or on a text."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..config import EAGLE, EagleConfig
from ..errors import InputError, ModelError
from ..progress import position_progress
from ..provenance import provenance
from .eagle import CONFIG_NAME, EagleHead, new_head
from .eagle_data import FeatureBatch, sampled_batches, text_batches
from .early_exit import EarlyExit, early_exit, fit_map
from .models import LoadedModel, import_torch
from .overlap import overlap_by_depth, unroll

LINEAR_RIDGE = 1e-3  # in units of the mean square of an input: the start only has to exist
Say = Callable[[str], None]


@dataclass(frozen=True)
class Corpus:
    """Sequences with the target's features, and where the head's linear map starts.

    Attributes
    ----------
    token_ids : tensor of int64, shape (S, L)
    features : tensor, shape (S, L, d)
    weight, bias : tensor, shapes (d, 2 d) and (d,)
        Least-squares map from a token's embedding and the feature before it to the state that enters the
        target's last layer, which the head's layer is a copy of at first.
    """

    token_ids: Any
    features: Any
    weight: Any
    bias: Any


def build_corpus(target: LoadedModel, batches: Iterable[FeatureBatch], n_fit: int) -> Corpus:
    """Collect batches, and solve for the start of the linear map on the way.

    Only the first `n_fit` sequences go into the solution, so that the others can be held out.
    """
    torch, _ = import_torch()
    embedding = target.model.get_input_embeddings()
    ids, features = [], []
    gram: Any = 0.0
    cross: Any = 0.0
    with torch.inference_mode():
        for batch in batches:
            n_used = max(0, n_fit - sum(len(part) for part in ids))
            ids.append(batch.token_ids)
            features.append(batch.features)
            embedded = embedding(batch.token_ids[:n_used, 1:])
            x = torch.cat([embedded, batch.features[:n_used, :-1]], dim=-1).flatten(0, 1).double()
            x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
            y = batch.last_inputs[:n_used, 1:].flatten(0, 1).double()
            # The layer norms its input: an error counts against the size of the state, which varies
            # by a factor of hundreds.
            size = y.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
            x, y = x / size, y / size
            gram, cross = gram + x.T @ x, cross + x.T @ y
        penalty = LINEAR_RIDGE * gram.diagonal()[:-1].mean()
        ridge = torch.full_like(gram.diagonal(), float(penalty))
        solution = torch.linalg.solve(gram + torch.diag(ridge), cross).float()
    # Outside inference mode, since training cannot save what was made inside.
    return Corpus(
        torch.cat(ids), torch.cat(features), solution[:-1].T.clone(), solution[-1].clone()
    )


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
    trainer = _Trainer(head, corpus, n_train, settings)
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
    head.module.to(dtype=next(target.model.parameters()).dtype).eval()
    head.info["overlap"] = _compare(target, head, exits, corpus, n_train, settings)
    head.save(out)
    return head


class _Trainer:
    """AdamW over shuffled sequences; every random number comes from the seed."""

    def __init__(
        self, head: EagleHead, corpus: Corpus, n_train: int, settings: EagleConfig
    ) -> None:
        torch, _ = import_torch()
        self.torch, self.head, self.settings = torch, head, settings
        self.ids, self.features = corpus.token_ids[:n_train], corpus.features[:n_train]
        self.scale = float(self.features[:, 1:].float().std())
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.per_epoch = math.ceil(n_train / settings.batch_size)
        self.n_steps = settings.epochs * self.per_epoch
        self.order: Any = ()
        matrices = [p for p in head.module.parameters() if p.dim() > 1]
        vectors = [p for p in head.module.parameters() if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))
        self.frequent, self.others = _split_vocabulary(
            self.ids, head.target.vocab_size, settings.vocab_sample
        )

    def step(self, step: int) -> tuple[float, int]:
        """One update; returns its loss and its number of tokens."""
        settings = self.settings
        if step % self.per_epoch == 0:
            shuffled = self.torch.randperm(len(self.ids), generator=self.generator)
            self.order = shuffled.split(settings.batch_size)
        sequences = self.order[step % self.per_epoch]
        rate = settings.learning_rate * _schedule(step, self.n_steps, settings.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.loss(sequences)
        self.optimizer.zero_grad()
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.head.module.parameters(), settings.clip)
        self.optimizer.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ModelError(
                f"step {step}: the loss is {value}; train with a learning rate below "
                f"{settings.learning_rate:g}. What was saved before is still there"
            )
        return value, len(sequences) * settings.length

    def loss(self, sequences: Any) -> Any:
        """Smooth L1 between features, and KL(p, q) in nats, mean over depths."""
        torch, settings = self.torch, self.settings
        ids = self.ids[sequences]
        true = self.features[sequences].float()
        noise = torch.rand(true.shape, generator=self.generator).to(true.device)
        read = true + (2.0 * noise - 1.0) * (settings.noise * self.scale)
        columns, log_weights = self._columns()
        output = self.head.target.model.get_output_embeddings()
        weight = output.weight.detach()[columns].float()
        bias = log_weights
        if getattr(output, "bias", None) is not None:
            bias = bias + output.bias.detach()[columns].float()
        with torch.no_grad():
            log_p = torch.log_softmax(true @ weight.T + bias, dim=-1)
        total: Any = 0.0
        for m, own in enumerate(unroll(self.head, ids, read, settings.depths)):
            near = torch.nn.functional.smooth_l1_loss(own / self.scale, true[:, m:] / self.scale)
            log_q = torch.log_softmax(own @ weight.T + bias, dim=-1)
            divergence = torch.nn.functional.kl_div(
                log_q, log_p[:, m:], reduction="none", log_target=True
            ).sum(dim=-1)
            total = total + settings.feature_weight * near
            total = total + settings.logits_weight * divergence.mean()
        return total / settings.depths

    def _columns(self) -> tuple[Any, Any]:
        """Tokens of this step's softmax, and the log of how many tokens each stands for."""
        torch = self.torch
        n_drawn = min(self.settings.vocab_sample - len(self.frequent), len(self.others))
        drawn = torch.randperm(len(self.others), generator=self.generator)[:n_drawn]
        columns = torch.cat([self.frequent, self.others[drawn]])
        log_weights = torch.zeros(len(columns))
        if n_drawn:
            log_weights[len(self.frequent) :] = math.log(len(self.others) / n_drawn)
        return columns.to(self.ids.device), log_weights.to(self.ids.device)


def _split_vocabulary(token_ids: Any, vocab_size: int, sample: int) -> tuple[Any, Any]:
    """Tokens in every step's softmax, and those it draws from: all and none if they fit `sample`."""
    torch, _ = import_torch()
    everything = torch.arange(vocab_size)
    if vocab_size <= sample:
        return everything, everything[:0]
    counts = torch.bincount(token_ids.flatten().cpu(), minlength=vocab_size)
    order = counts.argsort(descending=True, stable=True)
    n_frequent = 3 * sample // 4
    return order[:n_frequent].sort().values, order[n_frequent:].sort().values


def _schedule(step: int, n_steps: int, warmup: float) -> float:
    """Share of the highest learning rate: a linear rise, then half a cosine to 0."""
    n_warm = max(1, round(warmup * n_steps))
    if step < n_warm:
        return (step + 1) / n_warm
    return 0.5 * (1.0 + math.cos(math.pi * (step - n_warm) / max(1, n_steps - n_warm)))


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
    drafts |= {f"exit:{e.layer}": fit_map(target, e, fit_text) for e in exits}
    figures: dict[str, Any] = {
        "measure": "mean sum min(p, q) at temperature 1, teacher-forced, by depth from 1",
        "sequences": len(held_out),
        "positions": len(held_out) * (settings.length - settings.eval_depths + 1),
    }
    for name, draft in drafts.items():
        means = overlap_by_depth(target, draft, held_out, depths=settings.eval_depths)
        spread = means.std(axis=0, ddof=1) if len(means) > 1 else means.mean(axis=0) * math.nan
        errors = [None if math.isnan(s) else round(s, 4) for s in spread / len(means) ** 0.5]
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
