"""Draws without replacement: the probability that all fall in a set, for a chain of sets.

Give every token an exponential clock of rate ``q_x``: the order in which the clocks ring is the
order in which tokens are drawn without replacement. The first ring outside ``H`` comes at rate
``out = 1 - q(H)``, so

    P(all n draws in H) = 1 - int_0^inf out exp(-out t) F_H(t) dt,
    F_H(t) = P(fewer than n rings in H by time t),

and ``F_H`` is the sum of the first ``n`` terms of a Poisson-binomial law, which gains one token at
a time. With ``t = exp(u)`` the integrand is analytic and decays on both sides: the trapezoidal
rule converges exponentially in its step.
"""

import math

import numpy as np

from resispec_sim.engine.jit import njit
from resispec_sim.errors import MassError

STEP = 1 / 8
"""First step of the quadrature in ``u = log t``; the rule of twice the step measures its error."""

TOLERANCE = 1e-10
"""Accepted difference to the rule of twice the step; the error of the finer one is below it."""

LOWEST_TIME = 1e-9
"""Below it no clock has rung, to within its square: that part of the sum is a geometric series."""

HIGHEST = 50.0
"""Times end where the slowest rate outside has rung this often on average: exp(-50) is left."""

RATE_UNIT = 2.0**200
"""Rates are multiplied and times divided by it, exactly: subnormal rates need times above 1e308."""

UNREACHED = 750.0
"""No float64 is as small as exp(-750); beyond it the product of rate and time may overflow."""

NEGLIGIBLE = 1e-18


def prob_all_in_prefix(draft_probs: np.ndarray, n_siblings: int) -> tuple[np.ndarray, float]:
    """P(all draws without replacement fall among the first ``h`` tokens), for ``h = 1 .. V``.

    Parameters
    ----------
    draft_probs : ndarray of float, (V,)
        Draft probabilities in the order of the chain.
    n_siblings : int
        Number of draws, 1 or more. Draws stop when every token with positive probability is drawn.

    Returns
    -------
    probs : ndarray of float, (V,)
    error : float
        Upper estimate of the quadrature's absolute error, at most 1e-10.

    Raises
    ------
    MassError
        If the quadrature does not reach that error.

    Examples
    --------
    >>> probs, error = prob_all_in_prefix(np.array([0.5, 0.25, 0.25]), 2)
    >>> [round(float(prob), 9) for prob in probs]
    [0.0, 0.416666667, 1.0]
    """
    drawable = np.flatnonzero(draft_probs > 0)
    probs = np.zeros(len(draft_probs))
    probs[drawable[-1] :] = 1.0
    if len(drawable) <= n_siblings:
        return probs, 0.0
    q = draft_probs[drawable]
    # summed from the end, where the rates may be many orders below the rounding of 1 - q(H)
    outside = np.append(np.cumsum(q[::-1])[::-1][1:], 0.0)
    error = math.inf
    step = STEP
    for _ in range(4):
        fine, coarse = _integrate(q, outside, n_siblings, step)
        error = float(np.abs(fine - coarse).max())
        if error <= TOLERANCE:
            inside = np.clip(1.0 - fine, 0.0, 1.0)
            # every prefix holds until the next drawable token joins it
            lengths = np.diff(np.append(drawable, drawable[-1] + 1))
            probs[drawable[0] : drawable[-1] + 1] = np.repeat(inside, lengths)
            probs[drawable[-1] :] = 1.0
            return probs, error
        step /= 2
    raise MassError(
        f"draws without replacement: the quadrature's error is {error:.1e}, above {TOLERANCE:.0e}, "
        f"for {n_siblings} siblings over {len(q)} tokens; please report these probabilities"
    )


def _integrate(
    q: np.ndarray, outside: np.ndarray, n_siblings: int, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """The integral above for every prefix, with `step` and with twice the step; each (V,)."""
    lowest, highest = math.log(LOWEST_TIME), math.log(HIGHEST) - math.log(outside[:-1].min())
    n_nodes = math.ceil((highest - lowest) / step) + 1
    times = np.exp(lowest - math.log(RATE_UNIT) + step * np.arange(n_nodes))
    return _miss_probs(q * RATE_UNIT, outside * RATE_UNIT, times, n_siblings, step)


@njit
def _miss_probs(q, outside, times, n_siblings, step):  # type: ignore[no-untyped-def]
    # q, outside: (V,) rate of each token, rate left outside its prefix; times: (T,) ascending nodes
    # few: (K, T) probability of exactly k rings in the prefix by each node's time
    n_tokens, n_nodes = len(q), len(times)
    few = np.zeros((n_siblings, n_nodes))
    few[0] = 1.0
    fine, coarse = np.zeros(n_tokens), np.zeros(n_tokens)
    # the nodes below the first are a geometric series, since the integrand is out * t there
    head_fine = times[0] * step / np.expm1(step)
    head_coarse = times[0] * 2 * step / np.expm1(2 * step)
    live = n_nodes
    for x in range(n_tokens):
        out = outside[x]
        sum_even, sum_odd = 0.0, 0.0
        for i in range(live):
            rung = -np.expm1(-q[x] * times[i])
            still = 1.0 - rung
            total = 0.0
            for k in range(n_siblings - 1, 0, -1):
                few[k, i] = few[k, i] * still + few[k - 1, i] * rung
                total += few[k, i]
            few[0, i] *= still
            total += few[0, i]
            # survival to this time without a ring outside
            rings = times[i] * out
            term = rings * np.exp(-rings) * total if rings < UNREACHED else 0.0
            if i % 2 == 0:
                sum_even += term
            else:
                sum_odd += term
        fine[x] = out * head_fine + step * (sum_even + sum_odd)
        coarse[x] = out * head_coarse + 2 * step * sum_even
        # few rings by a late time only get rarer as the prefix grows
        while live > 1:
            left = 0.0
            for k in range(n_siblings):
                left += few[k, live - 1]
            if left > NEGLIGIBLE:
                break
            live -= 1
    return fine, coarse
