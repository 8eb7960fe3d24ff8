"""The verification rules on batches of nodes, where the models are: `decide` and `verify`.

The formulas are those of `resispec_sim.rules.formulas`, which serve one position in rationals as well as
a batch of tensors; the array library comes from the arrays, so no module here imports torch.
"""

from .clock import PHASES, Clock, NoClock
from .deciding import BATCHED, Decision, decide, supported
from .probs import check_logits, to_probs
from .verifying import draw_tokens, verify

__all__ = [
    "BATCHED",
    "PHASES",
    "Clock",
    "Decision",
    "NoClock",
    "check_logits",
    "decide",
    "draw_tokens",
    "supported",
    "to_probs",
    "verify",
]
