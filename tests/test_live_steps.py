"""Single live steps from the dump's contexts against the acceptance that is computed for each position.

A biased rule's own text drifts away from the target's, so that what a replay says of the recorded text does
not hold along it. Single steps do not drift: each starts from a recorded context, and whether its first token
is a drafted one is a coin of the computed probability. Stored rows are rounded to float16, which moves a
position's acceptance by less than 1e-4.
"""

import numpy as np
import pytest

import resispec_sim as rs

torch = pytest.importorskip("torch")

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.models import load_model  # noqa: E402

RULES = ("specinfer", "resispec", "exact-shaping")
# One drafted level of three siblings.
TREE, N_SIBLINGS = "d2b3", 3
EVERY, REPEATS = 12, 1
# Of a test that must not fail: one in ten thousand runs with other seeds would.
LEVEL = 1e-4


@pytest.fixture(scope="module")
def contexts():
    """Recorded texts up to a position, and by rule the computed acceptance there."""
    texts, laws = [], {rule: [] for rule in RULES}
    with rs.open_dump("tiny-t1.0") as dump:
        recorded = [dump.read(i).token_id for i in range(len(dump))]
        for i in range(0, len(dump), EVERY):
            prompt_idx, offset = dump.prompt_of(i)
            prompt = dump.manifest.prompts[prompt_idx].token_ids
            texts.append([*prompt, *recorded[i - offset : i]])
            rows = dump.probs(i)
            for rule in RULES:
                laws[rule].append(rs.exact_law(rule, *rows, N_SIBLINGS).accepted.sum())
    return texts, {rule: np.array(values) for rule, values in laws.items()}


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    return load_model("tiny-target"), load_model("tiny-draft")


def p_value(n_accepted, acceptance):
    """Of a number of heads among coins of these probabilities, each thrown `REPEATS` times; both tails."""
    law = np.ones(1)
    for heads in np.tile(acceptance, REPEATS):
        law = np.convolve(law, [1 - heads, heads])
    return min(1.0, 2 * min(law[: n_accepted + 1].sum(), law[n_accepted:].sum()))


@pytest.mark.parametrize("rule", ["resispec"])
def test_single_steps_accept_as_often_as_computed(contexts, pair, rule):
    texts, laws = contexts
    decoder = Decoder(*pair, rule, TREE)
    n_accepted = 0
    for i, text in enumerate(texts * REPEATS):
        # two tokens, so that the first step has its whole level
        found = decoder.decode(text, max_new_tokens=2, seed=i, stop_at_eos=False)
        assert not found.steps[0].cut
        n_accepted += found.steps[0].n_accepted
    values = {name: p_value(n_accepted, law) for name, law in laws.items()}
    n_steps = REPEATS * len(texts)
    print(
        f"{rule}: {n_accepted / n_steps:.4f} of {n_steps} steps, computed {laws[rule].mean():.4f}"
    )
    print("p-values under each rule's figure:", values)
    half_width = 1.96 * np.sqrt((laws[rule] * (1 - laws[rule])).mean() / n_steps)
    assert half_width <= 0.03 * laws[rule].mean()
    assert values[rule] > LEVEL
    for other in RULES:
        assert other == rule or values[other] < LEVEL


def test_stored_rows_give_the_acceptance_of_their_contexts(contexts, pair):
    """The dump stores float16 logits less the largest: each position's acceptance moves by so little."""
    texts, laws = contexts
    largest = 0.0
    for text, *stored in list(zip(texts, *laws.values(), strict=True))[::10]:
        with torch.inference_mode():
            ids = torch.tensor([text])
            rows = [model.model(ids).logits[0, -1].double().softmax(-1).numpy() for model in pair]
        for rule, acceptance in zip(laws, stored, strict=True):
            moved = rs.exact_law(rule, *rows, N_SIBLINGS).accepted.sum() - acceptance
            largest = max(largest, abs(moved))
    print(f"largest change of an acceptance: {largest:.1e}")
    assert largest < 1e-4
