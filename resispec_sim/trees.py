"""Tree shapes and expected accepted length (EAL) along recorded text.

Every figure counts the bonus token. The functions take two arrays over consecutive positions of a text
that was sampled from the target: ``w``, the probability ratio ``W(x) = sum_i A_i(x) / p(x)`` at the
recorded token ``x`` (``A_i(x)``: mass of "sibling i is accepted and equals x"), and ``alpha``, the
total acceptance at that position.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_whole
from .config import REPLAY
from .errors import InputError

MAX_DEPTH, MAX_BRANCHING = 64, 1024


@dataclass(frozen=True)
class CompleteTree:
    """A draft tree in which every node above the leaves has the same number of children.

    Parameters
    ----------
    depth : int
        Levels, the root included: 2 to 64.
    branching : int
        Children per inner node: 1 to 1024.

    Examples
    --------
    >>> tree = CompleteTree(depth=5, branching=3)
    >>> str(tree), tree.n_nodes, tree.n_levels
    ('d5b3', 121, 4)
    """

    depth: int
    branching: int

    def __post_init__(self) -> None:
        check_whole("the depth of a tree", self.depth)
        check_whole("the branching of a tree", self.branching)
        if self.depth < 2 or self.branching < 1:
            raise InputError(
                f"tree d{self.depth}b{self.branching}: the depth counts the root and must be at least 2, "
                "the branching at least 1"
            )
        if self.depth > MAX_DEPTH or self.branching > MAX_BRANCHING:
            raise InputError(
                f"tree d{self.depth}b{self.branching}: the depth may be at most {MAX_DEPTH}, "
                f"the branching at most {MAX_BRANCHING}"
            )

    def __str__(self) -> str:
        return f"d{self.depth}b{self.branching}"

    @property
    def n_nodes(self) -> int:
        """Nodes, the root included."""
        return sum(self.branching**level for level in range(self.depth))

    @property
    def n_levels(self) -> int:
        """Drafted levels ``D``: a step yields at most ``D + 1`` tokens."""
        return self.depth - 1


def parse_tree(text: str) -> CompleteTree:
    """Read a tree name such as ``"d5b3"``.

    Raises
    ------
    InputError
        If the text is no such name.

    Examples
    --------
    >>> parse_tree("d4b2")
    CompleteTree(depth=4, branching=2)
    """
    match = re.fullmatch(r"d(\d{1,4})b(\d{1,4})", text.strip())
    if match is None and text.strip().endswith((".json", ".pt")):
        raise InputError(
            f"tree {text!r} is a grow map's file; here it takes a complete tree such as d5b3 (depth with "
            f"the root, branching). resispec tree DUMP --beside {text} measures a grow map"
        )
    if match is None:
        raise InputError(f"tree {text!r} is not of the form d5b3 (depth with the root, branching)")
    return CompleteTree(depth=int(match[1]), branching=int(match[2]))


def path_eal(w: ArrayLike, alpha: ArrayLike, n_levels: int) -> NDArray[np.float64]:
    """Per-position EAL estimate of every start that has ``n_levels`` positions left.

    ``1 + sum_{j=1}^{D} W(x_1) ... W(x_{j-1}) alpha_j``: a product of ratios weighs the recorded text by
    how likely the rule accepts it, and the last factor is replaced by its expectation. It is unbiased for
    inexact rules too.

    Parameters
    ----------
    w, alpha : array_like (L,)
        Ratio at the recorded token and total acceptance, at consecutive positions.
    n_levels : int
        Drafted levels ``D``.

    Returns
    -------
    ndarray (max(L - D + 1, 0),)
        Tokens per step, bonus included.

    Raises
    ------
    InputError
        If the arrays differ in length or `n_levels` is below 1.

    Examples
    --------
    >>> path_eal([0.5, 0.5, 1.0], [0.8, 0.6, 0.4], n_levels=2)
    array([2.1, 1.8])
    """
    w, alpha = _checked(w, alpha, n_levels)
    n_starts = max(len(w) - n_levels + 1, 0)
    eal, reach = np.ones(n_starts), np.ones(n_starts)
    for level in range(n_levels):
        eal += reach * alpha[level : level + n_starts]
        reach *= w[level : level + n_starts]
    return eal


def step_start_probs(w: ArrayLike, n_levels: int) -> NDArray[np.float64]:
    """Probability that an exact rule starts a step at each position of the recorded text.

    A step starts at the first position. A token is accepted with probability ``W``; a rejected one is
    still emitted (it is the recorded token, since the rule is exact) and ends the step; after ``D``
    acceptances the next token is the bonus, which ends the step without a test.

    Parameters
    ----------
    w : array_like (L,)
        Probability that the recorded token came from an accepted sibling.
    n_levels : int
        Drafted levels ``D``.

    Returns
    -------
    ndarray (L,)

    Examples
    --------
    >>> step_start_probs([1.0, 1.0, 1.0, 1.0], n_levels=2)
    array([1., 0., 0., 1.])
    """
    w, _ = _checked(w, w, n_levels)
    # Rounding may leave W an ulp above 1; the probability of a rejection must not turn negative.
    w = np.minimum(w, 1.0)
    starts = np.zeros(len(w))
    at_offset = np.zeros(n_levels + 1)
    at_offset[0] = 1.0
    for t, accept in enumerate(w):
        starts[t] = at_offset[0]
        tested = at_offset[:-1]
        ended = tested.sum() * (1.0 - accept) + at_offset[-1]
        at_offset = np.concatenate(([ended], tested * accept))
    return starts


def path_tokens_per_step(w: ArrayLike, alpha: ArrayLike, n_levels: int) -> tuple[float, float]:
    """Weighted tokens and weight of the steps of an exact rule along one recorded text.

    Parameters
    ----------
    w, alpha : array_like (L,)
        As in `path_eal`.
    n_levels : int
        Drafted levels ``D``.

    Returns
    -------
    tokens, steps : float
        Sums of ``s_t EAL_t`` and ``s_t`` over the starts with ``D`` positions left; their ratio, pooled
        over texts, is what a decoder reports as tokens per step.

    Examples
    --------
    >>> path_tokens_per_step([1.0, 1.0, 1.0, 1.0, 1.0], [1.0] * 5, n_levels=2)
    (6.0, 2.0)
    """
    eal = path_eal(w, alpha, n_levels)
    starts = step_start_probs(w, n_levels)[: len(eal)]
    return float(starts @ eal), float(starts.sum())


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    confidence: float = REPLAY.confidence,
    n_resamples: int = REPLAY.bootstrap_resamples,
    seed: int = REPLAY.bootstrap_seed,
) -> tuple[float, float, float]:
    """Ratio of sums over prompts with a percentile bootstrap interval.

    Parameters
    ----------
    numerators, denominators : array_like (N,)
        One pair per prompt. Prompts are resampled whole, since positions of one text depend on each
        other.
    confidence : float
        Level of the interval.
    n_resamples, seed : int
        Number of resamples and their seed.

    Returns
    -------
    ratio, low, high : float
        NaN where there is nothing to divide; the interval is NaN with fewer than two prompts.

    Examples
    --------
    >>> bootstrap_ratio([4.0, 4.0], [2.0, 2.0])
    (2.0, 2.0, 2.0)
    """
    top, bottom = np.asarray(numerators, float), np.asarray(denominators, float)
    used = bottom > 0
    top, bottom = top[used], bottom[used]
    n_prompts = len(top)
    if n_prompts == 0:
        return float("nan"), float("nan"), float("nan")
    ratio = float(top.sum() / bottom.sum())
    if n_prompts == 1:
        return ratio, float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    ratios = np.empty(n_resamples)
    block = max(1, 1_000_000 // n_prompts)  # bounds the memory of the drawn indices
    for start in range(0, n_resamples, block):
        stop = min(start + block, n_resamples)
        drawn = rng.integers(n_prompts, size=(stop - start, n_prompts))
        ratios[start:stop] = top[drawn].sum(axis=1) / bottom[drawn].sum(axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return ratio, float(low), float(high)


def _checked(
    w: ArrayLike, alpha: ArrayLike, n_levels: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    w, alpha = np.asarray(w, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
    if w.ndim != 1 or w.shape != alpha.shape:
        raise InputError(f"w and alpha must be two (L,) arrays, not {w.shape} and {alpha.shape}")
    if n_levels < 1:
        raise InputError(f"n_levels is {n_levels}: at least one drafted level is needed")
    return w, alpha
