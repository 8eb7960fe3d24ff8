"""Tokens per step of live decoding against what a replay of the recorded dump computes for the same pair."""

import os

import numpy as np
import pytest

import resispec_sim as rs
from resispec_sim.trees import bootstrap_ratio, parse_tree

torch = pytest.importorskip("torch")

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.models import load_model  # noqa: E402

RULES = ("specinfer", "exact-shaping")
LONG = int(os.environ.get("RESISPEC_LIVE_PROMPTS", "4")) >= 20  # make live
# Prompts and new tokens of each. Prompts differ so much that all 48 of the dump leave 3 % of the mean to
# either side, however long the texts; a computed interval is to leave less.
SIZES = {"d5b3": (48, 75), "d4b4": (48, 60)} if LONG else {"d5b3": (36, 60)}
MOST_LIVE, MOST_COMPUTED = (0.035 if LONG else 0.05), 0.03


def live(rule, tree):
    """Tokens per step over the dump's prompts, with a 95 % interval over prompts."""
    torch.set_num_threads(1)
    n_prompts, new_tokens = SIZES[tree]
    decoder = Decoder(load_model("tiny-target"), load_model("tiny-draft"), rule, tree)
    with rs.open_dump("tiny-t1.0") as dump:
        prompts = [list(prompt.token_ids) for prompt in dump.manifest.prompts[:n_prompts]]
    tokens, steps = [], []
    for i, prompt in enumerate(prompts):
        found = decoder.decode(prompt, max_new_tokens=new_tokens, seed=i, stop_at_eos=False)
        whole = [step.n_tokens for step in found.steps if not step.cut]
        tokens.append(sum(whole))
        steps.append(len(whole))
    return bootstrap_ratio(np.array(tokens, float), np.array(steps, float))


@pytest.fixture(scope="module", params=SIZES)
def computed(request):
    """A tree, and the renewal figures of the dump by rule, with their intervals over prompts."""
    tree = request.param
    report = rs.replay("tiny-t1.0", RULES, siblings=parse_tree(tree).branching, tree=tree)
    (group,) = report.summary["groups"]
    return tree, {rule["rule"]: rule["tokens_per_step"] for rule in group["rules"]}


@pytest.mark.parametrize(("rule", "other"), [RULES, RULES[::-1]])
def test_live_steps_are_as_long_as_computed(computed, rule, other):
    tree, figures = computed
    mean, low, high = live(rule, tree)
    print(f"{rule} {tree}: live {mean:.3f} [{low:.3f}, {high:.3f}], computed {figures[rule]}")
    assert (high - low) / 2 <= MOST_LIVE * mean
    expected = figures[rule]
    width = expected["high"] - expected["low"]
    assert width / 2 <= MOST_COMPUTED * expected["mean"]
    # half the 95 % interval of a difference of two independent means, widened to 99.7 %
    spread = 1.5 * np.hypot(high - low, width) / 2
    assert abs(mean - expected["mean"]) < spread
    assert abs(mean - figures[other]["mean"]) > spread
