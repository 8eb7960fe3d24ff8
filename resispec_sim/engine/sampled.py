"""ResiSpec's law from random prefixes whose last level is closed exactly: unbiased, with an error."""

from __future__ import annotations

import numpy as np

from resispec_sim.engine.closing import (
    clipped_mass,
    close_capacity,
    contains,
    new_scratch,
    spread_share,
)
from resispec_sim.engine.jit import kernel
from resispec_sim.engine.nodes import no_second
from resispec_sim.engine.paths import FirstRejection, run_walk
from resispec_sim.engine.ratio_space import RatioSpace
from resispec_sim.engine.result import Outcome
from resispec_sim.engine.tail import Table, index_of
from resispec_sim.engine.terms import (
    accept_next,
    add_term,
    new_accepted,
    new_terms,
    sum_accepted,
    sum_law,
)
from resispec_sim.engine.water import close_water
from resispec_sim.rules.resispec import ResiSpec

N_BATCHES = 16
MAX_PREFIXES = 65_536


def sampled_outcome(
    rule: ResiSpec,
    space: RatioSpace,
    table: Table,
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
        walked = run_walk(rule, space, table, first, n_siblings)
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
        accepted = new_accepted(space, n, series=False)
        water = rule.fill == "water"
        series = table.moments.shape[0] > 0 and not water
        terms = new_terms(space, water=water, cuts=False, series=series)
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
                table,
                n,
                prefixes,
                first.weight,
                total / per_batch,
                water,
                accepted,
                new_scratch(n),
                no_second(),
                terms,
            )
            steps += walked_steps
        by_token[batch] = sum_accepted(space, accepted)
        closed = sum_law(space, terms, np.array([base]))[0]
        laws[batch] = by_token[batch].sum(axis=0) + closed
        masses[batch] = accepted.mass
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


@kernel
def walk_prefixes(
    space,
    table,
    n,
    prefixes,
    first_weight,
    share,
    water,
    accepted,
    scratch,
    second,
    terms,
):
    """Follow given prefixes and close the last level of each; terms as in `walk`.

    A path of weight w counts with scale 1/(its probability of being drawn).
    """
    p, q = space.p, space.q
    point = terms.point
    w, share_t = scratch.floats[0], scratch.floats[1]
    n_tok, new, tok = scratch.counts[2], scratch.counts[3], scratch.counts[4]
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
            fresh = fresh and p[x] > 0.0
            if fresh:
                tok[nt] = x
                nt += 1
            k = index_of(wx, table)
            mass = clipped_mass(wx, k, table, space, tok, nt)
            room = before - mass - (p[x] if fresh else 0.0)
            w[level], share_t[level], n_tok[level], new[level] = (
                wx,
                spread_share(wx, mass, room),
                nt,
                1 if fresh else 0,
            )
            accepted.mass[level] += scale * mass
            accept_next(level, wx, k, scale, space, tok, nt, accepted)
            before = wx
        if not alive:
            continue
        k = index_of(before, table)
        steps += k
        if water:
            close_water(space, table, before, k, tok, nt, scale, terms)
            continue
        spread, _ = close_capacity(space, table, before, k, tok, nt, scale, scratch, second, terms)
        for level in range(n - 1, 0, -1):
            term = scale * (1.0 - share_t[level]) * spread
            k = index_of(w[level], table)
            add_term(terms.sums[0], k, term, term * w[level])
            for i in range(n_tok[level]):
                e = tok[i]
                point[0, e] -= term * min(p[e], w[level] * q[e])
            spread *= share_t[level]
            if new[level] == 1:
                e = tok[n_tok[level] - 1]
                point[0, e] -= scale * spread * p[e]
        base += scale * spread
    return steps, base
