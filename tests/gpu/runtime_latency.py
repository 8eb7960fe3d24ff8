"""Where the time of a step goes at the shapes of Llama-2-7B and a 68M draft, with random weights.

Seconds depend on shapes, not on weights, but for one thing: how many nodes of a tree are tested in a step.
So shaping is also given per tested node; accepted lengths and tokens per second mean nothing here.
"""

import time
from contextlib import contextmanager, nullcontext
from statistics import mean

import numpy as np
import torch
from runtime_checks import no_tf32
from runtime_models import NoTokenizer
from sections import Session

from resispec_sim.phases import PHASES
from resispec_sim.runtime import decode
from resispec_sim.runtime.models import LoadedModel, ModelSource
from resispec_sim.runtime.steps import Clock
from resispec_sim.runtime.torch_rules import PHASES as PARTS

NEEDED_BYTES = 20e9
CONTEXT = 128
RULES = ("specinfer", "resispec", "exact-shaping")
TREES = ("d5b3", "d4b4")
LLAMA_2_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
}
LLAMA_68M = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "vocab_size": 32_000,
}
SMALL = ({"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4},
         {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1})  # fmt: skip


class TopClock(Clock):
    """Times the phases and not their parts, whose synchronisation costs time of its own."""

    def phase(self, name):
        return super().phase(name) if name in PHASES else nullcontext()


class PartsClock(Clock):
    """Times the parts of shaping alone."""

    def phase(self, name):
        return super().phase(name) if name in PARTS else nullcontext()


def random_model(shape, device: str, dtype, seed: int) -> LoadedModel:
    """A Llama of a shape, made where it stays; nothing is loaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(max_position_embeddings=2048, pad_token_id=None, **shape)
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    return LoadedModel(model, NoTokenizer(), ModelSource("", None, "random weights"), "")


def shapes_for(session: Session):
    """Shapes of target and draft, their type, and what to call them."""
    device = torch.device(session.device)
    if device.type == "cuda" and not session.quick:
        free = torch.cuda.mem_get_info(device)[0]
        if free >= NEEDED_BYTES:
            return LLAMA_2_7B, LLAMA_68M, torch.float16, "Llama-2-7B and Llama-68M shapes, float16"
        session.note(
            f"SKIPPED the shapes of Llama-2-7B: {free / 1e9:.1f} GB are free, {NEEDED_BYTES / 1e9:.0f} needed"
        )
    vocab_size = 2000 if session.quick else 32_000
    common = {"num_attention_heads": 4, "vocab_size": vocab_size}
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    what = f"SCALED-DOWN shapes, {str(dtype).removeprefix('torch.')}: target 4 layers x 256, draft 1 x 64"
    return SMALL[0] | common, SMALL[1] | common, dtype, f"{what}, vocabulary {vocab_size}"


@contextmanager
def clocked(clock):
    before = decode.Clock
    decode.Clock = clock
    try:
        yield
    finally:
        decode.Clock = before


def run(decoder, prompt, n_tokens: int, n_texts: int, clock=None):
    """Whole steps of some texts, and seconds per step without a synchronised clock where none is given."""
    steps, seconds, n_all = [], 0.0, 0
    with clocked(clock) if clock else nullcontext():
        for seed in range(n_texts):
            found = decoder.decode(
                prompt,
                max_new_tokens=n_tokens,
                seed=seed,
                stop_at_eos=False,
                profile=clock is not None,
            )
            steps += [step for step in found.steps if not step.cut]
            seconds, n_all = seconds + found.seconds, n_all + len(found.steps)
    return steps, seconds / n_all


def measure_latency(session: Session) -> None:
    no_tf32()
    target_shape, draft_shape, dtype, what = shapes_for(session)
    begun = time.perf_counter()
    target = random_model(target_shape, session.device, dtype, 0)
    draft = random_model(draft_shape, session.device, dtype, 1)
    if session.device.startswith("cuda"):
        torch.cuda.synchronize()
    session.note(f"measured: {what}; random weights; context {CONTEXT} tokens and what is added")
    session.note("tokens per second and accepted lengths mean nothing at random weights")
    session.figure("building both models", time.perf_counter() - begun, "s")
    prompt = np.random.default_rng(0).integers(10, target_shape["vocab_size"], CONTEXT).tolist()
    n_tokens, n_texts = (14, 1) if session.quick else (48, 3)
    plain = decode.Decoder(target, None)
    run(plain, prompt, 4, 1)
    _, alone = run(plain, prompt, n_tokens // 2, n_texts)
    session.figure("plain decoding: a step", 1e3 * alone, "ms")
    trees = TREES[1:] if session.quick else TREES
    systems = [(rule, tree) for tree in trees for rule in RULES]
    for i, (rule, tree) in enumerate(systems):
        if session.left() < 5:
            rest = ", ".join(f"{rule} {tree}" for rule, tree in systems[i:])
            session.check(f"systems not reached in time: {rest}", len(systems) - i, 0)
            return
        decoder = decode.Decoder(target, draft, rule, tree)
        measure_system(session, decoder, tree, prompt, n_tokens, n_texts)


def measure_system(
    session: Session, decoder, tree: str, prompt, n_tokens: int, n_texts: int
) -> None:
    label = f"{decoder.rule.name}, {tree}"
    run(decoder, prompt, 8, 1)
    _, free = run(decoder, prompt, n_tokens, n_texts)
    session.figure(f"{label}: a step, not synchronised", 1e3 * free, "ms")
    steps, _ = run(decoder, prompt, n_tokens, n_texts, TopClock)
    seconds = {name: mean(step.phases.get(name, 0.0) for step in steps) for name in PHASES}
    for name, value in seconds.items():
        session.figure(f"{label}: {name}", 1e3 * value, "ms a step")
    tested = mean(min(step.n_tokens, decoder.plan.n_levels) for step in steps)
    session.figure(f"{label}: nodes tested (of random weights)", tested, "a step")
    session.figure(f"{label}: shaping of a tested node", 1e3 * seconds["shaping"] / tested, "ms")
    total = sum(seconds.values())
    session.figure(f"{label}: share of shaping", 100 * seconds["shaping"] / total, "% of a step")
    whole_path = decoder.plan.n_levels * seconds["shaping"] / tested
    share = whole_path / (total - seconds["shaping"] + whole_path)
    session.figure(f"{label}: the same if every level is tested", 100 * share, "% of a step")
    session.check(f"{label}: phases that took no time", sum(v <= 0 for v in seconds.values()), 0)
    if decoder.rule.name != "resispec":
        return
    steps, _ = run(decoder, prompt, n_tokens, n_texts, PartsClock)
    parts = {name: mean(step.phases.get(name, 0.0) for step in steps) for name in PARTS}
    for name, value in parts.items():
        session.figure(f"{label}: {name}, of these three", 100 * value / sum(parts.values()), "%")
        session.figure(f"{label}: {name}", 1e3 * value, "ms a step")
