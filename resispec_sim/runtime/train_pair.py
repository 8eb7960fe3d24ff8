"""Trains the small target and draft that travel with the package.

``python -m resispec_sim.runtime.train_pair TEXT.txt ... --out FOLDER``; ``resispec_sim/models/README.md``
says where the texts of the shipped pair come from. The draft learns the target's distribution rather
than the text, since that is what acceptance depends on.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..live_config import PAIR, PairConfig, PairShape
from .models import import_torch, quiet_files
from .pair_figures import HeldOutFigures, measure_pair
from .pair_text import END_OF_TEXT, documents, split_held_out, token_ids, train_tokenizer
from .shipped import NAMES

FIGURES_NAME = "figures.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainedPair:
    """What a training gave.

    Attributes
    ----------
    held_out : HeldOutFigures
        Measured with the weights as they are stored.
    n_target_parameters, n_draft_parameters : int
        Shared weights counted once.
    n_training_tokens, n_held_out_tokens : int
    seconds : float
        Wall time of the training.
    """

    held_out: HeldOutFigures
    n_target_parameters: int
    n_draft_parameters: int
    n_training_tokens: int
    n_held_out_tokens: int
    seconds: float


def train_pair(
    texts: Sequence[str], out: str | Path, config: PairConfig = PAIR, say: Say = lambda _line: None
) -> TrainedPair:
    """Train a tokenizer, a target and a draft distilled from it, and save them.

    The result depends on the texts and the configuration, and in its last bits on the processor, the
    release of torch and its number of threads; with the same ones it is the same to the byte.

    Parameters
    ----------
    texts : sequence of str
        Plain prose; chapters become documents, see `pair_text.documents`.
    out : str or Path
        Receives the folders ``tiny-target`` and ``tiny-draft`` in Hugging Face layout, weights in
        float16, and ``figures.json``.
    config : PairConfig
    say : callable
        Receives one line per report of progress.

    Returns
    -------
    TrainedPair

    Raises
    ------
    InputError
        If the texts are too short for one block of training and one of held-out tokens.
    """
    torch, transformers = import_torch()
    start = time.perf_counter()
    training, held_out = split_held_out([documents(text) for text in texts], config.held_out_share)
    tokenizer = train_tokenizer(training, config.vocab_size)
    ids, held_out_ids = (token_ids(tokenizer, part) for part in (training, held_out))
    if min(len(ids), len(held_out_ids)) <= config.context:
        raise InputError(
            f"the texts give {len(ids)} training and {len(held_out_ids)} held-out tokens; each needs "
            f"more than {config.context}, so give more text or a shorter context"
        )
    say(
        f"{len(ids)} training tokens, {len(held_out_ids)} held out, {len(tokenizer)} in the vocabulary"
    )

    rng = np.random.default_rng(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        target, draft = (
            _new_model(transformers, shape, tokenizer, config)
            for shape in (config.target, config.draft)
        )
        _fit(target, None, _batches(ids, config.target, config, rng), config.target, say)
        # What is shipped is what the draft must agree with.
        _round_to_half(target)
        _fit(draft, target, _batches(ids, config.draft, config, rng), config.draft, say)
        _round_to_half(draft)

    result = TrainedPair(
        measure_pair(target, draft, held_out_ids, config.context),
        n_target_parameters=target.num_parameters(),
        n_draft_parameters=draft.num_parameters(),
        n_training_tokens=len(ids),
        n_held_out_tokens=len(held_out_ids),
        seconds=round(time.perf_counter() - start, 1),
    )
    with quiet_files(transformers):
        for name, model in zip(NAMES, (target, draft), strict=True):
            model.half().save_pretrained(Path(out) / name)
            _save_tokenizer(tokenizer, Path(out) / name)
    settings = {"torch": torch.__version__, "threads": torch.get_num_threads(), **asdict(config)}
    stated = {**asdict(result), "settings": settings}
    (Path(out) / FIGURES_NAME).write_text(json.dumps(stated, indent=2) + "\n")
    return result


def _new_model(transformers: Any, shape: PairShape, tokenizer: Any, config: PairConfig) -> Any:
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_key_value_heads,
            max_position_embeddings=config.context,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            attention_dropout=0.0,
        )
    )


def _batches(
    ids: np.ndarray, shape: PairShape, config: PairConfig, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Blocks of ``ids`` (rows, block + 1) without end; the last share of the steps has long ones.

    Short blocks cost less attention; the long ones teach the distances that they never show.
    """
    n_short = round(shape.n_steps * (1 - config.long_share))
    short, long = (
        _epochs(ids, block, config.batch_tokens // block, rng)
        for block in (config.short_block, config.context)
    )
    for step in range(shape.n_steps):
        yield next(short if step < n_short else long)


def _epochs(
    ids: np.ndarray, block: int, n_rows: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    offsets = np.arange(block + 1)
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < n_rows:
            starts = np.arange(rng.integers(block), len(ids) - block, block)
            waiting = np.concatenate([waiting, rng.permutation(starts)])
        chosen, waiting = waiting[:n_rows], waiting[n_rows:]
        yield ids[chosen[:, None] + offsets]


def _fit(
    model: Any, teacher: Any, batches: Iterator[np.ndarray], shape: PairShape, say: Say
) -> None:
    """Fit to the next token, or to the teacher's distribution of it where there is a teacher."""
    torch, _ = import_torch()
    functional = torch.nn.functional
    matrices = [p for p in model.parameters() if p.ndim > 1]
    gains = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}],
        lr=shape.learning_rate,
        betas=(0.9, 0.98),
    )
    n_warm = max(1, shape.n_steps // 20)
    n_falling = max(1, shape.n_steps - n_warm)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / n_warm, (shape.n_steps - step) / n_falling),
    )
    model.train()
    losses: list[float] = []
    for step, rows in enumerate(batches, start=1):
        block = torch.from_numpy(rows)
        logits = model(input_ids=block[:, :-1], use_cache=False).logits.flatten(0, 1)
        if teacher is None:
            loss = functional.cross_entropy(logits, block[:, 1:].flatten())
        else:
            with torch.inference_mode():
                wanted = teacher(input_ids=block[:, :-1], use_cache=False).logits.flatten(0, 1)
            loss = functional.kl_div(
                logits.log_softmax(-1),
                wanted.clone().log_softmax(-1),
                log_target=True,
                reduction="batchmean",
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 50 == 0 or step == shape.n_steps:
            what = "cross-entropy" if teacher is None else "divergence from the target"
            say(f"step {step} of {shape.n_steps}: {what} {np.mean(losses[-50:]):.4f} nats")
    model.eval()


def _round_to_half(model: Any) -> None:
    torch, _ = import_torch()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    config = folder / "tokenizer_config.json"
    # Transformers 5 renamed the class; the older name is known to both.
    settings = json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings, indent=2) + "\n")
    # Half the size of what was saved, which has a line per entry.
    entries = folder / "tokenizer.json"
    content = json.loads(entries.read_text(encoding="utf-8"))
    entries.write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def main(arguments: Sequence[str] | None = None, config: PairConfig = PAIR) -> None:
    """Train from text files and print the figures as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m resispec_sim.runtime.train_pair", description=__doc__
    )
    parser.add_argument("texts", nargs="+", type=Path, help="UTF-8 text files")
    parser.add_argument("--out", required=True, type=Path, help="folder for both models")
    chosen = parser.parse_args(arguments)
    texts = [path.read_text(encoding="utf-8") for path in chosen.texts]
    result = train_pair(
        texts, chosen.out, config, lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(json.dumps(asdict(result), indent=2))


if __name__ == "__main__":
    main()
