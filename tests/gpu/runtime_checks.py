"""What the live runtime must do on any device; every function is a section of `check_runtime`."""

import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import live_law
import numpy as np
import torch
from decode_helpers import eagle_row, exit_row, model_row, tree_pass_error, watched
from live_checks import LOPSIDED, TOLERANCE, first_difference, generate_greedily
from rule_batches import FEASIBLE, SOLVED, masses_of, node_batches, to_tensors
from runtime_models import save_gpt2, save_model
from sections import Session

from resispec_sim.runtime.decode import Decoder
from resispec_sim.runtime.drafters import TopKTree
from resispec_sim.runtime.eagle import new_head
from resispec_sim.runtime.early_exit import early_exit
from resispec_sim.runtime.models import load_model
from resispec_sim.runtime.prompts import read_prompts
from resispec_sim.runtime.shipped import prompts_file
from resispec_sim.runtime.torch_rules import decide, to_probs, verify

TREES = [("specinfer", "d5b3"), ("exact-shaping", "d4b4"), ("rrs-wor", LOPSIDED)]
TREES += [("resispec", "d4b4"), ("target-only", TopKTree(5, 4, 24))]
LEVEL = 1e-4  # false alarms of a chi-square check


def no_tf32() -> None:
    """Products of float32 matrices in float32: TF32 has 10 bits and fails every tolerance here."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def load(session: Session, name, **options):
    no_tf32()
    return load_model(str(name), device=session.device, **options)


def check_machine(session: Session) -> None:
    device = torch.device(session.device)
    shown = platform.processor() or platform.machine()
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")
        free, size = torch.cuda.mem_get_info(device)
        shown = f"{torch.cuda.get_device_name(device)}, {free / 2**30:.0f} of {size / 2**30:.0f} GiB free"
        shown += f", CUDA {torch.version.cuda}, {torch.cuda.device_count()} in all"
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy"))
    session.note(f"{device}: {shown}; Python {platform.python_version()}, {packages}")
    session.check("a tensor comes back", abs(float(torch.ones(3, device=device).sum()) - 3), 0.0)
    session.note("TF32 is off in every section: float32 means float32")


def check_tree_passes(session: Session) -> None:
    """Logits of a tree's nodes against sequential passes, float32, over steps with compaction."""
    widths = (32,) if session.quick else (32, 256)
    with tempfile.TemporaryDirectory() as folder:
        for width in widths:
            for name, save in (("Llama", save_model), ("GPT-2", save_gpt2)):
                model = load(session, save(Path(folder) / f"{name}{width}", seed=1, width=width))
                for attention in ("sdpa", "eager"):
                    model.model.set_attn_implementation(attention)
                    error = tree_pass_error(model, n_steps=2 if session.quick else 4, seed=4)
                    session.check(f"{name} of width {width}, {attention}", error, 1e-4)


def check_draft_rows(session: Session) -> None:
    """Rows that trees are drawn from against the drafts on their own, float32."""
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (
            load(session, save_model(Path(folder) / name, seed=seed, n_layers=2))
            for name, seed in (("target", 1), ("draft", 2))
        )
        exit_draft, head = early_exit(target, 1), new_head(target, seed=3)
        systems = {
            "second model": (draft, lambda log, text: model_row(draft, text)),
            "early exit": (exit_draft, lambda log, text: exit_row(target, exit_draft, text)),
            "EAGLE head": (head, lambda log, text: eagle_row(head, log.prefix, text)),
        }
        for name, (drafter, expected) in systems.items():
            for rule, tree in (("specinfer", "d3b2"), ("rrs-wor", LOPSIDED)):
                error, n_rows = 0.0, 0
                for log, _, text, row in watched(target, drafter, rule, tree):
                    error = max(error, float((row - expected(log, text)).abs().max()))
                    n_rows += 1
                    if n_rows >= 12 and session.quick:
                        break
                session.check(f"{name}, {rule}, {n_rows} rows", error if n_rows else 1.0, 1e-5)


def check_greedy(session: Session) -> None:
    """Trees at temperature 0 against ``generate``, token for token, with the pair that ships."""
    n_prompts, n_tokens = (2, 16) if session.quick else (20, 64)
    target, draft = load(session, "tiny-target"), load(session, "tiny-draft")
    prompts = [target.tokenizer(text)["input_ids"] for text in read_prompts(prompts_file())]
    expected = [generate_greedily(target, ids, n_tokens) for ids in prompts[:n_prompts]]
    for rule, tree in TREES[: 3 if session.quick else None]:
        decoder = Decoder(target, draft, rule, tree, temperature=0.0)
        done = wrong = ties = 0
        lengths = []
        for ids, tokens in zip(prompts, expected, strict=False):
            if session.left() < 3:
                break
            found = decoder.decode(ids, max_new_tokens=n_tokens, stop_at_eos=False)
            lengths.append(found.tokens_per_step)
            done += 1
            _, gap = first_difference(target, found, tokens)
            if gap is not None:
                ties, wrong = ties + (gap < TOLERANCE), wrong + (gap >= TOLERANCE)
        label = f"{rule}, {tree if isinstance(tree, str) else type(tree).__name__}"
        session.check(f"{label}: texts that differ of {n_prompts} x {n_tokens} tokens", wrong, 0)
        session.check(f"{label}: texts not reached in time", n_prompts - done, 0)
        if ties:
            session.note(f"{label}: {ties} texts part where two logits lie within {TOLERANCE:g}")
        session.figure(f"{label}: greedy tokens per step", np.nanmean(lengths), "tokens")


def check_rules(session: Session) -> None:
    """The batched rules on the device against float64 on the CPU."""
    on_gpu = torch.device(session.device).type == "cuda"
    rules = FEASIBLE[::6] if session.quick else FEASIBLE
    low = 0.0
    for rule in rules:
        error = {"small": 0.0, "large": 0.0}
        tokens = 0
        for p, q, siblings in node_batches(rule):
            nodes = to_tensors(p, q, siblings)
            uniforms = torch.from_numpy(np.random.default_rng(1).random((len(p), 5)))
            here = [tensor.to(session.device) for tensor in nodes]
            if on_gpu:
                verify(rule, *here, uniforms.to(session.device))  # loads the kernels
                with_no_wait(session, rule, here, uniforms)
            reference = weighed(decide(rule, *nodes))
            found = weighed(decide(rule, *here))
            size = "small" if p.shape[1] <= 8 else "large"
            error[size] = max(error[size], far(found, reference))
            drawn = verify(rule, *here, uniforms.to(session.device))
            for one, other in zip(drawn, verify(rule, *nodes, uniforms), strict=True):
                tokens += int((one.cpu() != other).sum())
            floats = [t.float() if t.is_floating_point() else t for t in here]
            exact = [side.double() / side.double().sum(-1, keepdim=True) for side in floats[:2]]
            low = max(
                low, far(weighed(decide(rule, *floats)), weighed(decide(rule, *exact, here[2])))
            )
        session.check(f"{rule.label}: float64, V up to 8", error["small"], 1e-12)
        # a level at the largest p/q of many tokens hangs on the last bits of a sum
        limit = 1e-9 if rule.label in SOLVED else 1e-12
        session.check(f"{rule.label}: float64, V = 3000", error["large"], limit)
        session.check(f"{rule.label}: emitted tokens that differ", tokens, 0)
    session.figure("float32 against float64, largest error of a mass", low, "")
    rng = np.random.default_rng(0)
    for settings in ({}, {"temperature": 0.0}, {"temperature": 0.6, "top_k": 20, "top_p": 0.9}):
        logits = torch.tensor(3 * rng.normal(size=(8, 5000)))
        error = (
            to_probs(logits.to(session.device), **settings).cpu() - to_probs(logits, **settings)
        ).abs()
        session.check(f"probabilities, {settings or 'as they are'}", float(error.max()), 1e-12)
    if on_gpu:
        session.note("no rule waited for the host: torch would have raised an error")
    else:
        session.note(
            "waiting for the host is not checked on the CPU, where there is nothing to wait for"
        )


def weighed(decision):
    """Masses (B, K) and residual (B, V) times its probability, on the CPU in float64."""
    accept, residual = (part.double().cpu().numpy() for part in decision)
    masses, none = masses_of(accept)
    return masses, residual * none[:, None]


def far(one, other) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True) if a.size)


def with_no_wait(session: Session, rule, nodes, uniforms) -> None:
    """Raise where a rule waits for its device."""
    coins = uniforms.to(session.device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify(rule, *nodes, coins)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_law(session: Session) -> None:
    """Joint law of the first two tokens, V = 6: chi-square against the computed law and the target's."""
    no_tf32()
    pair = live_law.small_pair(device=session.device)
    target = live_law.of_target(pair)
    rules = (
        ("specinfer", "resispec") if session.quick else ("specinfer", "exact-shaping", "resispec")
    )
    laws = {rule: live_law.computed(pair, rule, live_law.by_hand) for rule in rules}
    n_steps, n_least = (700, 200) if session.quick else (10_000, 1000)
    for place, (rule, law) in enumerate(laws.items()):
        until = session.left() * (1 - 1 / (len(laws) - place + 0.1))
        counts = live_law.sample(
            pair, rule, n_steps=n_steps, go_on=lambda until=until: session.left() > until
        )
        missing = max(n_least - int(counts.sum()), 0)
        session.check(f"{rule}: texts that are missing to {n_least}", missing, 0)
        if missing:
            continue
        p_value = live_law.p_value(counts, law)
        label = f"{rule}, {counts.sum()} texts"
        session.figure(f"{label}: p-value of its law", p_value, "")
        session.check(f"{label}: {LEVEL:g} over that p-value", LEVEL / max(p_value, 1e-300), 1.0)
        if rule == "resispec":
            rejected = live_law.p_value(counts, target)
            session.check(f"{label}: p-value of the target's law, rejected", rejected, 1e-6)


def check_reproducible(session: Session) -> None:
    """The same seed gives the same text, also in another decoder and after other texts."""
    target, draft = load(session, "tiny-target"), load(session, "tiny-draft")
    for rule, tree in TREES[:1] if session.quick else TREES[:2]:
        texts = []
        for _ in range(2):
            decoder = Decoder(target, draft, rule, tree)
            decoder.decode("My dear", max_new_tokens=8, seed=9)
            texts.append(decoder.decode("It was late when", max_new_tokens=48, seed=3).token_ids)
        other = decoder.decode("It was late when", max_new_tokens=48, seed=4).token_ids
        session.check(f"{rule}, {tree}: seed 3 twice, texts that differ", texts[0] != texts[1], 0)
        session.check(f"{rule}, {tree}: seeds 3 and 4, texts that agree", texts[0] == other, 0)


def check_half(session: Session) -> None:
    """float16 and bfloat16: finite logits; how far greedy text goes with that of float32 is only told."""
    n_prompts, n_tokens = (1, 8) if session.quick else (8, 48)
    whole = load(session, "tiny-target")
    prompts = read_prompts(prompts_file())[:n_prompts]
    plain = Decoder(whole, None, temperature=0.0)
    expected = [plain.decode(text, max_new_tokens=n_tokens, stop_at_eos=False) for text in prompts]
    for name in ("float16", "bfloat16"):
        target = load(session, "tiny-target", torch_dtype=name)
        draft = load(session, "tiny-draft", torch_dtype=name)
        for attention in ("sdpa", "eager"):
            for model in (target, draft):
                model.model.set_attn_implementation(attention)
            drafts = {"second model": draft, "EAGLE head": new_head(target)}
            for kind, drafter in drafts.items():
                decoder = Decoder(target, drafter, "specinfer", "d4b2", temperature=0.0)
                logs, same = [], []
                for text, found in zip(prompts, expected, strict=True):
                    tokens = decoder.decode(
                        text, max_new_tokens=n_tokens, stop_at_eos=False, observe=logs.append
                    ).token_ids
                    pairs = zip(tokens, found.token_ids, strict=True)
                    same.append(next((i for i, (a, b) in enumerate(pairs) if a != b), n_tokens))
                bad = sum(
                    int((~torch.isfinite(log.target_logits([0]))).sum()) for log in logs
                ) + sum(
                    int((~torch.isfinite(row)).sum())
                    for log in logs
                    for row in log.tree.logits
                    if row is not None
                )
                label = f"{name}, {attention}, {kind}"
                session.check(f"{label}: logits that are not finite", bad, 0)
            session.figure(
                f"{name}, {attention}: share of greedy tokens before the first that differs from float32",
                np.mean(same) / n_tokens,
                "",
            )


def check_several(session: Session) -> None:
    """A target whose layers are spread over two GPUs; nothing to do where there is one."""
    n_gpus = torch.cuda.device_count() if session.device.startswith("cuda") else 0
    if n_gpus < 2:
        session.note(f"{n_gpus} GPUs are there: a target on several of them is not checked")
        return
    from accelerate import dispatch_model

    whole, target = load(session, "tiny-target"), load(session, "tiny-target")
    base = target.model.model
    places = {f"model.layers.{i}": int(i > 0) for i in range(len(base.layers))}
    places |= {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": 1, "lm_head": 1}
    if target.model.config.tie_word_embeddings:
        places["lm_head"] = 0
    dispatch_model(target.model, places)
    expected = (
        Decoder(whole, None, temperature=0.0).decode("It was late", max_new_tokens=32).token_ids
    )
    drafts = {"second model": load(session, "tiny-draft"), "early exit": early_exit(target, 1)}
    for name, draft in {**drafts, "EAGLE head": new_head(target)}.items():
        decoder = Decoder(target, draft, "specinfer", "d4b2", temperature=0.0)
        found = decoder.decode("It was late", max_new_tokens=32).token_ids
        session.check(f"two GPUs, {name}: greedy text differs", found != expected, 0)
