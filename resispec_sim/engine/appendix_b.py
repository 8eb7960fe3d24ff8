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
from resispec_sim.engine.distances import figures_and_sum
from resispec_sim.engine.jit import njit
from resispec_sim.errors import InputError, RuleError
from resispec_sim.probs import check_probs
from resispec_sim.rules import ResidualRule, Rule, SpecInfer, parse_rule
from resispec_sim.rules.siblings import next_draw

Array = NDArray[np.float64]

TOTAL_TOLERANCE = 1e-9  # a total further from 1 is not rounding
BLOCK = 512  # tokens that stay in the first-level cache from one proxy to the next


class Proxies(NamedTuple):
    """Proxies of one trajectory, ``k_i = scales[i] * values[starts[i] : starts[i] + V]``.

    They may overlap: the same proxy again, or one that is shifted, takes no memory of its own.
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]  # (n,)
    scales: Array  # (n,)


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
    betas: Array | None = None,
) -> float:
    """`appendix_b_kl` of arguments that were checked; no rule stands for random proxies.

    `betas` (n,) are those of the rule's trajectories, where they are known.
    """
    total = 0.0
    for _ in range(n_trajectories):
        if rule is None:
            proxies = _random_proxies(len(target), n_siblings, rng)
        elif type(rule) is SpecInfer:
            # the draft whatever was rejected, so nothing needs to be drawn
            proxies = Proxies(draft, np.zeros(n_siblings, dtype=np.int64), np.ones(n_siblings))
        else:
            proxies = _in_a_row(_proxies_along_trajectory(rule, target, draft, n_siblings, rng))
        known = {} if betas is None else {"betas": betas}
        total += _kl(reconstruct_marginal(target, proxies, **known), target)
    return total / n_trajectories


def reconstruct_marginal(
    target_probs: ArrayLike, proxies: ArrayLike | Proxies, *, betas: Array | None = None
) -> Array:
    """The sum ``P_1 + .. + P_n + P_fail`` for given proxies.

    Parameters
    ----------
    target_probs : array_like of float, (V,)
        Probabilities.
    proxies : array_like of float, (n, V)
        Any non-negative densities.
    betas : ndarray of float, (n,), optional
        The masses ``sum min(k_i, p_i)``, where they are known.

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
    n = len(proxies.starts)
    reach, upscale = np.ones(n + 1), np.ones(n)
    for i in range(n):
        beta = mass_taken(target, *proxies, upscale, i) if betas is None else betas[i]
        reach[i + 1] = reach[i] * (1.0 - beta)
        # a sum of 1 up to rounding leaves nothing for later paths
        if beta >= 1.0:
            reach[i + 1 :] = 0.0
            break
        upscale[i] = 1.0 / (1.0 - beta)
    marginal = np.empty_like(target)
    add_up(target, *proxies, upscale, reach, marginal)
    return marginal


@njit
def mass_taken(target, values, starts, scales, upscale, level):
    """``beta = sum min(k, p)`` of one level, with the residuals up to it formed anew.

    Few levels are formed faster in the cache than they are read from memory.
    """
    sums, residual = np.zeros(BLOCK), np.empty(BLOCK)
    for start in range(0, target.size, BLOCK):
        p = target[start : start + BLOCK]
        left = residual[: p.size]
        left[:] = p
        for j in range(level):
            at = starts[j] + start
            proxy, scale, factor = values[at : at + p.size], scales[j], upscale[j]
            for i in range(p.size):
                left[i] = (left[i] - min(proxy[i] * scale, left[i])) * factor
        at = starts[level] + start
        proxy, scale = values[at : at + p.size], scales[level]
        for i in range(p.size):
            sums[i] += min(proxy[i] * scale, left[i])
    return sums.sum()


@njit
def add_up(target, values, starts, scales, upscale, reach, marginal):
    """Write ``P_1 + .. + P_n + P_fail``."""
    residual = np.empty(BLOCK)
    n = starts.size
    for start in range(0, target.size, BLOCK):
        p, total = target[start : start + BLOCK], marginal[start : start + BLOCK]
        left = residual[: p.size]
        left[:] = p
        total[:] = 0.0
        for j in range(n):
            at = starts[j] + start
            proxy, scale, factor, weight = values[at : at + p.size], scales[j], upscale[j], reach[j]
            for i in range(p.size):
                mass = min(proxy[i] * scale, left[i])
                total[i] += weight * mass
                left[i] = (left[i] - mass) * factor
        for i in range(p.size):
            total[i] += reach[n] * left[i]


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
    return Proxies(proxies.reshape(-1), np.arange(n) * size, np.ones(n))


def _random_proxies(vocab_size: int, n_siblings: int, rng: np.random.Generator) -> Proxies:
    """Densities on 256 random levels, shifted by one token from sibling to sibling."""
    words = -(-(vocab_size + n_siblings) // 8)
    levels = rng.integers(0, 2**64 - 1, size=words, dtype=np.uint64, endpoint=True).view(np.uint8)
    starts = np.arange(n_siblings)
    sums = np.array([sum_levels(levels[at : at + vocab_size]) for at in starts])
    # sums between 1/2 and 3/2: normalisation plays no part either
    scales = rng.uniform(0.5, 1.5, size=n_siblings) / np.maximum(sums, 1)
    return Proxies(levels, starts, scales)


@njit
def sum_levels(levels):
    """Sum of bytes."""
    total = 0
    for i in range(levels.size):
        total += levels[i]
    return total


def _kl(marginal: Array, target: Array) -> float:
    # the form that cannot be negative leaves the total out, so a wrong total has to show here
    _, kl, total = figures_and_sum(marginal, target)
    if abs(total - 1.0) <= TOTAL_TOLERANCE:
        return kl
    seen = marginal > 0
    with np.errstate(divide="ignore", over="ignore"):
        return float((marginal[seen] * np.log(marginal[seen] / target[seen])).sum())
