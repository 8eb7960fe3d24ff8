"""ResiSpec's law from random prefixes whose last level is closed exactly: unbiased, with an error."""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.closing import (
    clipped_mass,
    close_capacity,
    close_water,
    contains,
    spread_share,
)
from resispec_sim.engine.jit import njit
from resispec_sim.engine.paths import FirstRejection, run_walk, sum_terms
from resispec_sim.engine.ratio_space import RatioSpace, count_below
from resispec_sim.engine.result import Outcome
from resispec_sim.engine.terms import new_terms, sum_law
from resispec_sim.rules.resispec import ResiSpec

N_BATCHES = 16
MAX_PREFIXES = 65_536


def sampled_outcome(
    rule: ResiSpec,
    space: RatioSpace,
    first: FirstRejection,
    n_siblings: int,
    max_paths: float,
    seed: int,
) -> Outcome:
    """Estimate a law from prefixes of ``n - 1`` rejected siblings drawn at random.

    The first is drawn in proportion to its rejection, the others from the draft with the weight of
    their rejection in place of a coin. The estimate is unbiased; 16 independent batches give the
    standard errors.
    """
    if n_siblings <= 1:
        walked = run_walk(rule, space, first, n_siblings)
        law = walked.accepted_by_token.sum(axis=0) + walked.closed
        return Outcome(law, walked.accepted, walked.accepted_by_token, "exact", walked.steps)
    n, vocab = n_siblings, space.p.size
    per_batch = int(np.clip(max_paths / max(space.n_over, 1), N_BATCHES, MAX_PREFIXES)) // N_BATCHES
    rng = np.random.default_rng(seed)
    rejection = first.weight * first.scale
    total = float(rejection.sum())
    cdf_first = np.cumsum(rejection) / total if total > 0 else np.ones(0)
    cdf_draft = np.cumsum(space.q[: space.n_drafted])
    laws = np.zeros((N_BATCHES, vocab))
    by_token = np.zeros((N_BATCHES, n, vocab))
    masses = np.zeros((N_BATCHES, n))
    steps = 0
    for batch in range(N_BATCHES):
        accepted = np.zeros(n)
        acc_cnt, acc_cw = np.zeros((n, vocab + 1)), np.zeros((n, vocab + 1))
        acc_point = np.zeros((n, vocab))
        terms = new_terms(vocab)
        acc_cnt[0, space.n_over] = acc_cw[0, space.n_over] = 1.0
        accepted[0] = np.minimum(space.p, space.q).sum()
        base = 0.0
        if total > 0:
            heads = np.searchsorted(cdf_first, rng.random(per_batch), side="right")
            draws = rng.random((per_batch, n - 2)) * cdf_draft[-1]
            tails = np.searchsorted(cdf_draft, draws, side="right")
            prefixes = np.concatenate((heads[:, None], tails), axis=1)
            prefixes = np.minimum(prefixes, space.n_drafted - 1)
            prefixes[:, 0] = np.minimum(prefixes[:, 0], first.weight.size - 1)
            walked_steps, base = walk_prefixes(
                space,
                n,
                prefixes,
                first.weight,
                total / per_batch,
                rule.fill == "water",
                accepted,
                acc_cnt,
                acc_cw,
                acc_point,
                terms,
            )
            steps += walked_steps
        by_token[batch] = sum_terms(space, acc_cnt, acc_cw) + acc_point
        closed = sum_law(space, terms, (base, 0.0))[0]
        laws[batch] = by_token[batch].sum(axis=0) + closed
        masses[batch] = accepted
    output = np.maximum(laws.mean(axis=0), 0.0)
    # Prefixes too rare to have been drawn leave no trace in the batches: what a fraction of 3/N of all
    # rejections could change is the least error that can be claimed (twice it is a 95 % bound).
    unseen = np.full(n, 1.5 * total / (per_batch * N_BATCHES))
    unseen[:1] = 0.0
    return Outcome(
        output_probs=output / output.sum(),
        accepted=masses.mean(axis=0),
        accepted_by_token=np.maximum(by_token.mean(axis=0), 0.0),
        method="sampled",
        n_paths=steps,
        stderr=np.maximum(masses.std(axis=0, ddof=1) / np.sqrt(N_BATCHES), unseen),
        batch_laws=laws,
        notes=(f"{per_batch * N_BATCHES} prefixes drawn",),
    )


@njit
def walk_prefixes(
    space,
    n,
    prefixes,
    first_weight,
    share,
    water,
    accepted,
    acc_cnt,
    acc_cw,
    acc_point,
    terms,
):
    """Follow given prefixes and close the last level of each; terms as in `walk`.

    A path of weight w counts with scale 1/(its probability of being drawn).
    """
    p, q = space.p, space.q
    cnt, cw, point = terms.cnt, terms.cw, terms.point
    w = np.zeros(n)
    share_t = np.zeros(n)
    n_tok = np.zeros(n, np.int64)
    new = np.zeros(n, np.bool_)
    tok = np.zeros(n + 1, np.int64)
    base = 0.0
    steps = 0
    for s in range(prefixes.shape[0]):
        scale = 0.0
        before = 1.0
        nt = 0
        alive = True
        for level in range(1, n):
            x = prefixes[s, level - 1]
            fresh = not contains(tok, nt, x)
            if level == 1:
                wx = first_weight[x]
                # Drawn with probability (weight * first scale) / total; the first scale cancels.
                scale = share / wx
            else:
                wx = before * q[x] - (p[x] if fresh else 0.0)
                scale /= q[x]
            if wx <= 0.0:
                alive = False
                break
            if fresh:
                tok[nt] = x
                nt += 1
            k = count_below(wx, space.rho, space.bucket)
            mass = clipped_mass(wx, k, space, tok, nt)
            room = before - mass - (p[x] if fresh else 0.0)
            w[level], share_t[level], n_tok[level], new[level] = (
                wx,
                spread_share(wx, mass, room),
                nt,
                fresh,
            )
            accepted[level] += scale * mass
            acc_cnt[level, k] += scale
            acc_cw[level, k] += scale * wx
            for i in range(nt):
                acc_point[level, tok[i]] -= scale * min(p[tok[i]], wx * q[tok[i]])
            before = wx
        if not alive:
            continue
        k = count_below(before, space.rho, space.bucket)
        steps += k
        if water:
            close_water(space, before, k, tok, nt, scale, terms)
            continue
        spread = close_capacity(space, before, k, tok, nt, scale, terms)
        for level in range(n - 1, 0, -1):
            term = scale * (1.0 - share_t[level]) * spread
            k = count_below(w[level], space.rho, space.bucket)
            cnt[0, k] += term
            cw[0, k] += term * w[level]
            for i in range(n_tok[level]):
                e = tok[i]
                point[0, e] -= term * min(p[e], w[level] * q[e])
            spread *= share_t[level]
            if new[level]:
                e = tok[n_tok[level] - 1]
                point[0, e] -= scale * spread * p[e]
        base += scale * spread
    return steps, base
