"""The steps of a training of an EAGLE head: loss, optimiser, schedule."""

import math
from typing import Any

from ..errors import ModelError
from ..live_config import EagleConfig
from .eagle import EagleHead
from .eagle_data import Corpus
from .models import import_torch
from .overlap import unroll


class Trainer:
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
        weight = self._taken(output.weight, columns)
        bias = log_weights
        if getattr(output, "bias", None) is not None:
            bias = bias + self._taken(output.bias, columns)
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

    def _taken(self, parameter: Any, columns: Any) -> Any:
        """Rows of a parameter; a target on several GPUs has its head on another than its embedding."""
        taken = parameter.detach()[columns.to(parameter.device)]
        return taken.float().to(self.ids.device)

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
