"""Token sequences with the target's features: its own samples, or a text, in batches of equal length."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LogitsError
from .models import LoadedModel, cache_keyword, import_torch
from .sampling import prompt_uniforms

# In units of the mean square of an input: the start only has to exist, however short the corpus is.
LINEAR_RIDGE = 1e-3


@dataclass(frozen=True)
class FeatureBatch:
    """B sequences of L tokens with what the target made of them.

    Attributes
    ----------
    token_ids : tensor of int64, shape (B, L)
    features : tensor, shape (B, L, d)
        The target's final hidden state at each token, which its output embedding reads.
    last_inputs : tensor, shape (B, L, d)
        The hidden states that enter the target's last layer.
    """

    token_ids: Any
    features: Any
    last_inputs: Any


def sampled_batches(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    *,
    n_sequences: int,
    length: int,
    seed: int,
    batch_size: int,
    advance: Callable[[int], None] = lambda _n: None,
) -> Iterator[FeatureBatch]:
    """Sample sequences from the target at temperature 1, all tokens allowed.

    Parameters
    ----------
    target : LoadedModel
    prompts : sequence of sequences of int
        Sequence i begins with prompt ``i % len(prompts)``, cut to half of `length`.
    n_sequences, length : int
        Sequences, and tokens in each, the prompt included. Sampling goes on past an end-of-text token.
    seed : int
        Sequence i has a stream of its own, made of this and i.
    batch_size : int
        Sequences that are sampled together.
    advance : callable
        Called with the number of tokens after each step.

    Yields
    ------
    FeatureBatch

    Raises
    ------
    LogitsError
        If the target gives NaN or infinite logits.
    """
    torch, _ = import_torch()
    base, head = target.model.base_model, target.model.get_output_embeddings()
    keyword = cache_keyword(base)
    starts = [list(prompt[: max(1, length // 2)]) for prompt in prompts]
    for first in range(0, n_sequences, batch_size):
        idxs = range(first, min(first + batch_size, n_sequences))
        forced = np.full((len(idxs), length), -1)
        for row, i in enumerate(idxs):
            prompt = starts[i % len(starts)]
            forced[row, : len(prompt)] = prompt
        given = torch.tensor(forced, device=target.device)
        draws = np.stack([prompt_uniforms(seed, i, length) for i in idxs])
        uniforms = torch.tensor(draws, device=target.device)
        columns, features, inputs = [given[:, :1]], [], []
        cache: Any = None
        with torch.inference_mode():
            for j in range(length):
                output = base(
                    input_ids=columns[-1],
                    use_cache=True,
                    output_hidden_states=True,
                    **{keyword: cache},
                )
                cache = output[keyword]
                # layers of a model on several GPUs answer on their own
                states = (state.to(target.device) for state in output.hidden_states[-2:])
                inputs.append(next(states))
                features.append(next(states))
                if j + 1 < length:
                    logits = head(features[-1][:, 0]).to(target.device)
                    drawn = _draw(logits, uniforms[:, j : j + 1], idxs, j)
                    wanted = given[:, j + 1 : j + 2]
                    columns.append(torch.where(wanted >= 0, wanted, drawn))
                advance(len(idxs))
            batch = (torch.cat(parts, dim=1) for parts in (columns, features, inputs))
        yield FeatureBatch(*batch)


def _draw(logits: Any, uniforms: Any, idxs: range, j: int) -> Any:
    """One token (B, 1) per row of logits (B, V), at the uniforms (B, 1)."""
    torch, _ = import_torch()
    # Summed in float64: over a large vocabulary a float32 sum is off by more than a rare token's mass.
    cumulative = torch.softmax(logits.float(), dim=-1).cumsum(dim=-1, dtype=torch.float64)
    if not bool(torch.isfinite(cumulative).all()):
        raise LogitsError(
            f"token {j + 1} of sequences {idxs.start} to {idxs.stop - 1}: the target's logits are not "
            "finite; load it in float32 or bfloat16"
        )
    found = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return found.clamp(max=logits.shape[-1] - 1)


def text_batches(
    target: LoadedModel,
    token_ids: Sequence[int],
    *,
    length: int,
    batch_size: int,
    n_sequences: int,
    advance: Callable[[int], None] = lambda _n: None,
) -> Iterator[FeatureBatch]:
    """Cut a text into windows and read the target's features off them, in the order of the text.

    Parameters
    ----------
    target : LoadedModel
    token_ids : sequence of int
        The text.
    length : int
        Tokens per window; what is left at the end is not used.
    batch_size : int
        Windows per forward pass.
    n_sequences : int
        Windows, which the text must have.
    advance : callable
        Called with the number of tokens after each pass.

    Yields
    ------
    FeatureBatch
    """
    torch, _ = import_torch()
    used = torch.tensor(list(token_ids[: n_sequences * length]), device=target.device)
    windows = used.view(n_sequences, length)
    for first in range(0, n_sequences, batch_size):
        batch = windows[first : first + batch_size]
        with torch.inference_mode():
            states = target.model.base_model(
                input_ids=batch, use_cache=False, output_hidden_states=True
            ).hidden_states
        advance(int(batch.numel()))
        last = (state.to(target.device) for state in (states[-1], states[-2]))
        yield FeatureBatch(batch, *last)


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
    ids: list[Any] = []
    features: list[Any] = []
    gram: Any = 0.0
    cross: Any = 0.0
    with torch.inference_mode():
        for batch in batches:
            n_used = max(0, n_fit - sum(int(part.shape[0]) for part in ids))
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
