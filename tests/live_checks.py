"""Greedy texts beside those of the greedy search of transformers."""

from dataclasses import dataclass, field

import torch
from decode_helpers import sequential

from resispec_sim.growmaps import GrowMap
from resispec_sim.runtime.drafters import TopKTree

LOPSIDED = GrowMap([[1, 2, 3], [4, 5], [6], [], [7], [], [], []])
# How far the logits of one text may differ between two passes in float32, and tokens that change places.
TOLERANCE = 1e-4
# Rules with the trees that they can walk: every kind of tree and of drawing.
GREEDY_CASES = [
    ("specinfer", "d3b2"),
    ("rrs-wor", LOPSIDED),
    ("target-only", TopKTree(4, 2, 6)),
    ("resispec", "d4b2"),
    ("exact-shaping", "d2b1"),
    ("resispec", "d3b2"),
    ("exact-shaping", "d4b2"),
]


def generate_greedily(model, ids, n_tokens):
    """What `generate` of transformers appends, with no end-of-text token."""
    with torch.inference_mode():
        tokens = torch.tensor([ids], device=model.device)
        whole = model.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=n_tokens,
            eos_token_id=model.vocab_size,  # none of its tokens
            pad_token_id=0,
        )
    return whole[0, len(ids) :].tolist()


def first_difference(model, found, expected):
    """Tokens of a text that are as expected, and the gap of logits where they part; None if nowhere."""
    assert len(found.token_ids) == len(expected)
    pairs = list(zip(found.token_ids, expected, strict=True))
    i = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if i is None:
        return len(pairs), None
    logits = sequential(model, [*found.prompt_ids, *expected[:i]])[-1]
    return i, float((logits.max() - logits[pairs[i][0]]).abs())


@dataclass
class GreedyRun:
    """Decoded texts beside those of `generate`: tokens that agree, near ties, accepted tokens."""

    n_equal: int = 0
    gaps: list[float] = field(default_factory=list)
    n_accepted: int = 0
    n_steps: int = 0

    def add(self, model, found, expected):
        """Compare a text to its end, or to a near tie: behind it the two are different texts."""
        self.n_accepted += sum(step.n_accepted for step in found.steps)
        self.n_steps += len(found.steps)
        n_equal, gap = first_difference(model, found, expected)
        self.n_equal += n_equal
        if gap is not None:
            assert gap < TOLERANCE, f"token {n_equal} of {found.prompt_ids}, gap {gap}"
            self.gaps.append(gap)
