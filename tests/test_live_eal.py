"""Tokens per step of live decoding against what a replay of the recorded dump computes for the same pair."""

import numpy as np
import pytest

import resispec_sim as rs
from resispec_sim.trees import bootstrap_ratio

torch = pytest.importorskip("torch")

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.models import load_model  # noqa: E402

N_PROMPTS, NEW_TOKENS = 36, 60


def live(rule, tree):
    """Tokens per step over the dump's prompts, with a 95 % interval over prompts."""
    torch.set_num_threads(1)
    decoder = Decoder(load_model("tiny-target"), load_model("tiny-draft"), rule, tree)
    with rs.open_dump("tiny-t1.0") as dump:
        prompts = [list(prompt.token_ids) for prompt in dump.manifest.prompts[:N_PROMPTS]]
    tokens, steps = [], []
    for i, prompt in enumerate(prompts):
        found = decoder.decode(prompt, max_new_tokens=NEW_TOKENS, seed=i, stop_at_eos=False)
        whole = [step.n_tokens for step in found.steps if not step.cut]
        tokens.append(sum(whole))
        steps.append(len(whole))
    return bootstrap_ratio(np.array(tokens, float), np.array(steps, float))


@pytest.fixture(scope="module")
def computed():
    """Renewal figures of the dump by rule, with their intervals over prompts."""
    report = rs.replay("tiny-t1.0", ["specinfer", "exact-shaping"], siblings=3, tree="d5b3")
    rules = report.summary["groups"][0]["rules"]
    return {rule["rule"]: rule["tokens_per_step"] for rule in rules}


@pytest.mark.parametrize(
    ("rule", "other"), [("specinfer", "exact-shaping"), ("exact-shaping", "specinfer")]
)
def test_live_steps_are_as_long_as_computed(computed, rule, other):
    mean, low, high = live(rule, "d5b3")
    assert (high - low) / 2 < 0.05 * mean
    figures = computed[rule]
    assert (figures["high"] - figures["low"]) / 2 <= 0.03 * figures["mean"]
    # the difference of two independent means, each with its interval
    spread = np.hypot(high - low, figures["high"] - figures["low"]) / 2
    assert abs(mean - figures["mean"]) < 1.5 * spread
    assert abs(mean - computed[other]["mean"]) > 3 * spread
