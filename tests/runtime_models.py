"""Tiny random Llama models with a byte-level tokenizer, built in a folder; no network."""

import json
from pathlib import Path

TEXTS = ["the cat sat", "a much longer prompt about the weather", "to be", "one, two, three", "x"]


def save_tokenizer(folder: Path, *, shift: int = 0) -> None:
    """Byte-level tokenizer of 256 tokens and two specials; `shift` permutes the ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    alphabet = alphabet[shift:] + alphabet[:shift]
    vocabulary = {"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


class NoTokenizer:
    """Nothing but what the decoder asks for; shapes have no text."""

    eos_token_id = None

    def get_vocab(self):
        return {}

    def decode(self, ids):
        return ""


def save_model(
    folder: Path,
    *,
    seed: int,
    vocab_size: int = 258,
    shift: int = 0,
    n_layers: int = 4,
    width: int = 32,
) -> Path:
    """Random Llama, with logits spread enough to sample from."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3 * (32 / width) ** 0.5,
        bos_token_id=0,
        eos_token_id=1,
    )
    _save(LlamaForCausalLM, config, folder, seed)
    save_tokenizer(folder, shift=shift)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == vocab_size
    return folder


def _save(model_class, config, folder: Path, seed: int) -> None:
    import torch
    import transformers

    from resispec_sim.runtime.models import quiet_files

    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    with quiet_files(transformers):
        model_class(config).save_pretrained(folder)


def save_gpt2(folder: Path, *, seed: int, width: int = 32) -> Path:
    """Random GPT-2 of 2 layers with the same tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=258,
        n_positions=128,
        n_embd=width,
        n_layer=2,
        n_head=4,
        initializer_range=0.3 * (32 / width) ** 0.5,
        bos_token_id=0,
        eos_token_id=1,
    )
    _save(GPT2LMHeadModel, config, folder, seed)
    save_tokenizer(folder)
    return folder
