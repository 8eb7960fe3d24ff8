"""Accepted length of a drafted chain along recorded text: block beside token-wise verification.

With ``p``, ``q`` target and draft and ``x`` the recorded text, sampled from the target, let ``L_i =
prod_{j<=i} q_j(x_j)/p_j(x_j)``. Block verification drafts ``x^i`` and accepts at least ``i`` tokens with
probability ``q(x^i) b_i(x^i)``, so the text weighs it by ``G_i = L_i b_i``, and the recursion of ``b``
turns into ``G_i = min(G_{i-1}, L_i)``: the smallest ratio so far, never above 1. Summing the last
factor over all tokens instead of the recorded one gives the estimate of one start,

    ``P(length >= i) ~ sum_x min(L_{i-1} q_i(x), G_{i-1} p_i(x))``,

whose expectation over texts is exact. Token-wise rejection has ``prod_{j<i} min(1, q_j/p_j)(x_j)
sum_x min(q_i, p_i)(x)``, which is at most that, start by start. Given the text, ``P(length >= i) =
G_i`` (token-wise: the product), from which follows where steps start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rules.base import total_of

RULES = ("rejection", "block")
LARGEST = (
    1e300  # likelihood ratios are cut here: they only ever enter as min(L q, G p) with G p <= 1
)


@dataclass
class Start:
    """A step that starts at some position of a text, followed through the positions after it.

    Attributes
    ----------
    estimates : dict of str to list
        By rule, unbiased estimates of ``P(accepted length >= i)``, i = 1, 2, ...
    reached : dict of str to list
        By rule, ``P(accepted length >= i)`` given the recorded text, i = 1, 2, ...
    """

    ratio: Any = 1
    least: Any = 1
    product: Any = 1
    estimates: dict[str, list[Any]] = field(default_factory=lambda: {rule: [] for rule in RULES})
    reached: dict[str, list[Any]] = field(default_factory=lambda: {rule: [] for rule in RULES})

    def advance(self, target: np.ndarray, draft: np.ndarray, token: int) -> None:
        """Take in one position: target and draft (V,), and the token recorded there.

        The target must give the token some probability.
        """
        self.estimates["rejection"].append(self.product * total_of(np.minimum(target, draft)))
        self.estimates["block"].append(
            total_of(np.minimum(self.ratio * draft, self.least * target))
        )
        p, q = target[token], draft[token]
        self.product = self.product * min(1, q / p)
        self.ratio = min(self.ratio * (q / p), LARGEST)
        self.least = min(self.least, self.ratio)
        self.reached["rejection"].append(self.product)
        self.reached["block"].append(self.least)


def follow(
    target_probs: Sequence[np.ndarray], draft_probs: Sequence[np.ndarray], tokens: Sequence[int]
) -> Start:
    """A step that starts at the first of these positions and drafts as many tokens as there are.

    Parameters
    ----------
    target_probs, draft_probs : (D, V) of Fraction or of float
        As object or float arrays.
    tokens : sequence of int, (D,)
        The recorded text.

    Returns
    -------
    Start

    Examples
    --------
    >>> p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    >>> [float(mass) for mass in follow([p, p], [q, q], [1, 0]).estimates["block"]]
    [0.75, 0.875]
    """
    start = Start()
    for target, draft, token in zip(target_probs, draft_probs, tokens, strict=True):
        start.advance(target, draft, token)
    return start


def step_starts(reached: list[list[float]]) -> NDArray[np.float64]:
    """Probability that a step starts at each of consecutive positions, (n,); one does at the first.

    `reached` holds ``P(length >= i)`` given the text, i = 1..D, by start. A step of accepted length
    ``i`` is followed by one that starts ``i + 1`` positions later.
    """
    starts = np.zeros(len(reached))
    starts[0] = 1.0
    for t, at_least in enumerate(reached):
        lengths = -np.diff([1.0, *at_least, 0.0])
        following = starts[t + 1 : t + 1 + len(lengths)]
        following += starts[t] * lengths[: len(following)]
    return starts
