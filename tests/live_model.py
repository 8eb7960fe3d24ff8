"""A one-layer attention model of a few tokens, quick enough to decode a hundred thousand steps."""

import math
from types import SimpleNamespace

import torch

from resispec_sim.runtime.models import LoadedModel, ModelSource

WIDTH = 8


class SmallTokenizer:
    """Token ids are the text's characters."""

    eos_token_id = None

    def __init__(self, vocab_size):
        self._vocab = {chr(97 + i): i for i in range(vocab_size)}

    def get_vocab(self):
        return self._vocab

    def __call__(self, text):
        return {"input_ids": [self._vocab[letter] for letter in text]}

    def decode(self, ids):
        return "".join(chr(97 + i) for i in ids)


class SmallModel(torch.nn.Module):
    """Embedding and position in, one attention head, output embedding out; takes 4-D boolean masks."""

    def __init__(self, vocab_size, seed, spread, window=64):
        super().__init__()
        numbers = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.nn.Parameter(torch.randn(shape, generator=numbers), requires_grad=False)

        self.embedding = random(vocab_size, WIDTH)
        self.places = random(window, WIDTH)
        self.keys, self.values = random(WIDTH, WIDTH), random(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, vocab_size, bias=False)
        self.head.weight = torch.nn.Parameter(
            spread * torch.randn((vocab_size, WIDTH), generator=numbers), requires_grad=False
        )
        text = SimpleNamespace(max_position_embeddings=window)
        self.config = SimpleNamespace(
            get_text_config=lambda: text, _attn_implementation="sdpa", eos_token_id=None
        )
        self.base_model = self.states

    @property
    def device(self):
        return self.embedding.device

    def get_output_embeddings(self):
        return self.head

    def states(
        self,
        input_ids,
        position_ids=None,
        attention_mask=None,
        use_cache=True,
        past_key_values=None,
    ):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.embedding[input_ids] + self.places[position_ids]
        k, v = (x @ self.keys)[:, None], (x @ self.values)[:, None]
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, 0)
        scores = x[:, None] @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        return (torch.tanh(x + (scores.softmax(-1) @ v)[:, 0]),)

    def forward(
        self,
        input_ids,
        position_ids=None,
        attention_mask=None,
        use_cache=True,
        past_key_values=None,
    ):
        states = self.states(input_ids, position_ids, attention_mask, use_cache, past_key_values)[0]
        return SimpleNamespace(logits=self.head(states))

    def probs(self, text):
        """Distribution after a text, float64."""
        with torch.inference_mode():
            ids = torch.tensor([list(text)], device=self.device)
            n = ids.shape[1]
            mask = torch.ones((n, n), dtype=torch.bool, device=self.device).tril()[None, None]
            logits = self.forward(ids, attention_mask=mask).logits[0, -1]
            return logits.double().softmax(-1).cpu().numpy()


def load_small(vocab_size, seed, spread, device="cpu"):
    """A small model as the loader returns it."""
    model = SmallModel(vocab_size, seed, spread).eval().to(device)
    source = ModelSource("", None, f"small-{seed}")
    return LoadedModel(model, SmallTokenizer(vocab_size), source, "")
