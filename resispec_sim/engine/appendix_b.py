"""The paper's exactness check (Appendix B), which every proxy passes.

Along one trajectory of rejected siblings the check adds up

    P_i    = prod_{j<i} (1 - beta_j) * min(k_i, p_i),   beta_i = sum min(k_i, p_i),
    P_fail = prod_{j<=n} (1 - beta_j) * p_{n+1},         p_1 = p,
    p_{i+1} = (p_i - min(k_i, p_i)) / (1 - beta_i).

Each step moves the part ``min(k_i, p_i)`` of what is left into the sum and keeps the rest, so the
total is ``p`` for **any** ``k_i``, normalised or not, whatever the rule emits. Its KL is rounding
and no evidence of exactness; `resispec_sim.engine.oracle` and `exact_law` compute what a rule does
emit.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resispec_sim.checks import check_n_siblings, check_whole
from resispec_sim.engine.distance_kernels import BLOCK
from resispec_sim.engine.distances import figures_and_sum
from resispec_sim.engine.elementary import sum_side_by_side
from resispec_sim.engine.jit import njit
from resispec_sim.errors import InputError, RuleError
from resispec_sim.probs import check_probs
from resispec_sim.rules import ResidualRule, Rule, SpecInfer, parse_rule
from resispec_sim.rules.siblings import next_draw

Array = NDArray[np.float64]

TOTAL_TOLERANCE = 1e-9  # a total further from 1 is not rounding
LEAST_WINDOW = 1024  # tokens of a random proxy


class Proxies(NamedTuple):
    """Proxies of one trajectory: ``scales[i] * values[starts[i] + y]`` at tokens y of a window, else 0.

    They may overlap in `values`: the same proxy again, or one that is shifted, takes no memory.
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]  # (n,) where token 0 would lie, below 0 perhaps
    scales: Array  # (n,)
    windows: NDArray[np.int64]  # (n, 2) first token, and the one after the last


def whole(values: Array, size: int, n_siblings: int, step: int) -> Proxies:
    """Proxies over all tokens, `step` apart in `values`."""
    windows = np.empty((n_siblings, 2), dtype=np.int64)
    windows[:] = 0, size
    return Proxies(values, np.arange(n_siblings) * step, np.ones(n_siblings), windows)


def appendix_b_kl(
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    n_siblings: int,
    *,
    rule: str | Rule = "resispec",
    rng: np.random.Generator,
    n_trajectories: int = 1,
) -> float:
    """Mean KL divergence, in nats, between the Appendix B reconstruction and the target.

    Siblings are drawn from the draft on the condition that each is rejected. A trajectory on which
    no sibling can be rejected any more ends there, with the draft as its last proxy.

    Parameters
    ----------
    target_probs, draft_probs : array_like of float, (V,)
        Probabilities.
    n_siblings : int
        Number of siblings, 1 or more.
    rule : str or Rule
        The rule whose proxies are used, or ``"random"`` for proxies drawn at random, with random
        sums: the figure is as small for them.
    rng : numpy.random.Generator
        Source of the trajectories.
    n_trajectories : int
        Number of trajectories, 1 or more.

    Raises
    ------
    DistributionError
        If an argument is not a distribution.
    InputError
        If shapes differ, a count is not a whole number from 1 on, or `rng` is no generator.
    RuleError
        If the rule is unknown, or takes no proxy off its residual (only recursive rejection sampling
        and ResiSpec do), so that there is nothing to reconstruct from.

    Notes
    -----
    The sum of a reconstruction is 1 up to rounding, and then the figure is summed as in
    `resispec_sim.engine.distances.kl_divergence`, never below 0. A sum that is off 1 by more than
    1e-9 is left in the figure: the plain ``sum M log(M/p)``, which may be negative.

    References
    ----------
    arXiv:2608.24411v1, Equations 25 to 28.

    Examples
    --------
    >>> p, q = [0.25, 0.25, 0.5], [0.5, 0.5, 0.0]
    >>> abs(appendix_b_kl(p, q, 3, rng=np.random.default_rng(0))) < 1e-8
    True
    >>> abs(appendix_b_kl(p, q, 3, rule="random", rng=np.random.default_rng(0))) < 1e-12
    True
    """
    target = check_probs(target_probs, "target_probs")
    draft = check_probs(draft_probs, "draft_probs")
    if target.ndim != 1 or target.shape != draft.shape:
        raise InputError(
            f"target_probs has shape {target.shape}, draft_probs {draft.shape}; "
            "give one position, (V,)"
        )
    n_siblings = check_n_siblings(n_siblings)
    n_trajectories = check_whole("n_trajectories", n_trajectories, at_least=1)
    if not isinstance(rng, np.random.Generator):
        raise InputError(f"rng is {rng!r}: give a numpy generator, np.random.default_rng(seed)")
    parsed = None if rule == "random" else with_proxies(parse_rule(rule))
    return mean_kl(parsed, target, draft, n_siblings, rng, n_trajectories)


def mean_kl(
    rule: ResidualRule | None,
    target: Array,
    draft: Array,
    n_siblings: int,
    rng: np.random.Generator,
    n_trajectories: int,
) -> float:
    """`appendix_b_kl` of arguments that were checked; no rule stands for random proxies."""
    total = 0.0
    for _ in range(n_trajectories):
        if rule is None:
            proxies = random_proxies(len(target), n_siblings, rng)
        elif type(rule) is SpecInfer:
            # the draft whatever was rejected, so nothing needs to be drawn
            proxies = whole(draft, len(draft), n_siblings, 0)
        else:
            proxies = _in_a_row(_proxies_along_trajectory(rule, target, draft, n_siblings, rng))
        total += _kl(reconstruct_marginal(target, proxies), target)
    return total / n_trajectories


def reconstruct_marginal(target_probs: ArrayLike, proxies: ArrayLike | Proxies) -> Array:
    """The sum ``P_1 + .. + P_n + P_fail`` for given proxies.

    Parameters
    ----------
    target_probs : array_like of float, (V,)
        Probabilities.
    proxies : array_like of float, (n, V)
        Any non-negative densities.

    Returns
    -------
    ndarray of float, (V,)

    Examples
    --------
    >>> p = reconstruct_marginal([0.25, 0.25, 0.5], [[0.9, 0.0, 0.3], [5.0, 0.1, 0.0]])
    >>> [round(float(mass), 12) for mass in p]
    [0.25, 0.25, 0.5]
    """
    target = np.ascontiguousarray(target_probs, dtype=np.float64)
    if not isinstance(proxies, Proxies):
        proxies = _in_a_row(np.asarray(proxies, dtype=np.float64))
    marginal = np.empty_like(target)
    add_up(target, proxies, reaches(target, proxies), marginal)
    return marginal


@njit
def reaches(target, proxies):
    """The products of ``1 - beta_j`` (n + 1,), and ``1 / (1 - beta_j)`` (n,)."""
    n = proxies.starts.size
    reach, upscale = np.ones(n + 1), np.ones(n)
    for i in range(n):
        if not multiply_up(reach, upscale, i, mass_taken(target, proxies, upscale, i)):
            break
    return reach, upscale


@njit
def reaches_of(betas):
    """`reaches` where the masses ``sum min(k_i, p_i)`` are known, (n,)."""
    reach, upscale = np.ones(betas.size + 1), np.ones(betas.size)
    for i in range(betas.size):
        if not multiply_up(reach, upscale, i, betas[i]):
            break
    return reach, upscale


@njit
def multiply_up(reach, upscale, i, beta):
    """Write what follows from a path's mass; return whether anything is left for later ones."""
    reach[i + 1] = reach[i] * (1.0 - beta)
    # a sum of 1 up to rounding leaves nothing
    if beta >= 1.0:
        reach[i + 1 :] = 0.0
        return False
    upscale[i] = 1.0 / (1.0 - beta)
    return True


@njit
def take(left, total, start, proxies, j, factor, weight):
    """Move ``min(k_j, factor * left)`` of a block out of `left` and, weighted, into `total`.

    Return what `left` is still to be multiplied with: that costs a pass only where a window begins.
    """
    at, scale = proxies.starts[j] + start, proxies.scales[j]
    lo = min(max(proxies.windows[j, 0] - start, 0), left.size)
    hi = min(max(proxies.windows[j, 1] - start, lo), left.size)
    if lo == hi:
        return factor
    if hi - lo < left.size:
        for i in range(left.size):
            left[i] *= factor
        factor = 1.0
    inside, summed = left[lo:hi], total[lo:hi]
    proxy = proxies.values[at + lo : at + hi]
    for i in range(inside.size):
        own = inside[i] * factor
        mass = min(proxy[i] * scale, own)
        summed[i] += weight * mass
        inside[i] = own - mass
    return 1.0


@njit
def mass_taken(target, proxies, upscale, level):
    """``beta = sum min(k, p)`` of one level, with the residuals up to it formed anew.

    Few levels are formed faster in the cache than they are read from memory.
    """
    sums, residual = np.zeros(BLOCK), np.empty(BLOCK)
    first, end = proxies.windows[level, 0], proxies.windows[level, 1]
    for start in range(first, end, BLOCK):
        p = target[start : min(start + BLOCK, end)]
        left, spare = residual[: p.size], sums[: p.size]
        left[:] = p
        factor = 1.0
        for j in range(level):
            factor = take(left, spare, start, proxies, j, factor, 0.0) * upscale[j]
        take(left, spare, start, proxies, level, factor, 1.0)
    return sum_side_by_side(sums)


@njit
def reconstruct_block(p, start, proxies, reached, left, total):
    """Write ``P_1 + .. + P_n + P_fail`` of a block of tokens; `left` is work space."""
    n = proxies.starts.size
    reach, upscale = reached
    for i in range(p.size):
        left[i] = p[i]
        total[i] = 0.0
    factor = 1.0
    for j in range(n):
        factor = take(left, total, start, proxies, j, factor, reach[j]) * upscale[j]
    weight = reach[n]
    for i in range(p.size):
        total[i] += weight * (factor * left[i])


@njit
def add_up(target, proxies, reached, marginal):
    """Write ``P_1 + .. + P_n + P_fail``."""
    residual = np.empty(BLOCK)
    for start in range(0, target.size, BLOCK):
        p, total = target[start : start + BLOCK], marginal[start : start + BLOCK]
        reconstruct_block(p, start, proxies, reached, residual[: p.size], total)


def with_proxies(rule: Rule) -> ResidualRule:
    """The rule, if it takes proxies off its residual (`RuleError`)."""
    if isinstance(rule, ResidualRule):
        return rule
    raise RuleError(
        f"{rule.label} takes no proxy off its residual: Appendix B has nothing to reconstruct from"
    )


def _proxies_along_trajectory(
    rule: ResidualRule, target: Array, draft: Array, n_siblings: int, rng: np.random.Generator
) -> Array:
    proxies: list[Array] = []
    drawn: list[int] = []
    state = rule.start(target, draft, n_siblings)
    for _ in range(n_siblings):
        residual, tested = state
        law = next_draw(rule.siblings, draft, drawn)
        token = None
        if law is not None:
            token = _draw(law * (1.0 - rule.accept_probs(state)), float(rng.random()))
        if token is None:
            proxies.append(draft)
            break
        proxies.append(rule.proxy(residual, tested, token))
        state = rule.after_rejection(state, token)
        drawn.append(token)
    return np.stack(proxies)


def _draw(weights: Array, uniform: float) -> int | None:
    """A token in proportion to `weights`; None if all are 0."""
    cumulative = np.cumsum(weights)
    if cumulative[-1] == 0.0:
        return None
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    # rounding may reach the end, where the last weights can be 0
    return token if token < len(weights) else int(np.flatnonzero(weights)[-1])


def _in_a_row(proxies: Array) -> Proxies:
    n, size = proxies.shape
    return whole(np.ascontiguousarray(proxies).reshape(-1), size, n, size)


def random_proxies(vocab_size: int, n_siblings: int, rng: np.random.Generator) -> Proxies:
    """Densities on 256 random levels, each over tokens in a row that make up an eighth of a vocabulary.

    In a small vocabulary they are over all of it. Where they lie is random, and their sums are.
    """
    size = min(vocab_size, max(vocab_size // 8, LEAST_WINDOW))
    words = -(-(size + n_siblings) // 8)
    levels = rng.integers(0, 2**64 - 1, size=words, dtype=np.uint64, endpoint=True).view(np.uint8)
    first = rng.integers(0, vocab_size - size, size=n_siblings, endpoint=True)
    # sums between 1/2 and 3/2: normalisation plays no part either
    starts, scales, windows = spread(levels, size, first, rng.uniform(0.5, 1.5, size=n_siblings))
    return Proxies(levels, starts, scales, windows)


@njit
def spread(levels, size, first, totals):
    """``(starts, scales, windows)`` of `Proxies`, shifted by one level from sibling to sibling."""
    n = first.size
    starts, scales = np.empty(n, dtype=np.int64), np.empty(n)
    windows = np.empty((n, 2), dtype=np.int64)
    total = np.int64(0)
    for i in range(size):
        total += levels[i]
    for i in range(n):
        starts[i] = i - first[i]
        windows[i, 0], windows[i, 1] = first[i], first[i] + size
        scales[i] = totals[i] / max(total, 1)
        total += np.int64(levels[i + size]) - levels[i] if i + 1 < n else 0
    return starts, scales, windows


def _kl(marginal: Array, target: Array) -> float:
    # the form that cannot be negative leaves the total out, so a wrong total has to show here
    _, kl, total = figures_and_sum(marginal, target)
    if abs(total - 1.0) <= TOTAL_TOLERANCE:
        return kl
    seen = marginal > 0
    with np.errstate(divide="ignore", over="ignore"):
        return float((marginal[seen] * np.log(marginal[seen] / target[seen])).sum())
