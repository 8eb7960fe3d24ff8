"""Counts of decoded tokens on a small random pair, and the laws that they must follow."""

import numpy as np
from live_model import load_small
from scipy import stats

import resispec_sim as rs
from resispec_sim.rules import parse_rule
from resispec_sim.rules.siblings import sibling_tuples
from resispec_sim.runtime.decode import Decoder

V = 6
PROMPT = [3, 0, 5]
TREE = "d3b2"


def small_pair(draft_spread=0.5, device="cpu"):
    """Target and draft of `V` tokens."""
    return (
        load_small(V, seed=1, spread=0.5, device=device),
        load_small(V, seed=2, spread=draft_spread, device=device),
    )


def sample(pair, rule, tree=TREE, *, n_steps, go_on=lambda: True, **options):
    """Counts of the first two tokens over texts that take so many steps in all."""
    decoder = Decoder(*pair, rule, tree, **options)
    counts = np.zeros((V, V), dtype=int)
    steps = seed = 0
    while steps < n_steps and go_on():
        # four tokens, so that no tree is cut while the first two are decoded
        found = decoder.decode(PROMPT, max_new_tokens=4, seed=seed)
        counts[tuple(found.token_ids[:2])] += 1
        steps += len(found.steps)
        seed += 1
    return counts


def by_engine(rule, p, q):
    """Law of one token at a position with two siblings."""
    return rs.exact_law(rule, p, q, n_siblings=2).output_probs


def by_hand(rule, p, q):
    """The same, summed over the siblings; no kernel has to be compiled for it."""
    rule, law = parse_rule(rule), np.zeros(len(p))
    for weight, siblings in sibling_tuples(rule.siblings, q, 2):
        decision = rule.decide(p, q, list(siblings))
        np.add.at(law, list(siblings), weight * np.asarray(decision.accepted, dtype=float))
        law += weight * (1 - sum(decision.accepted)) * np.asarray(decision.residual, dtype=float)
    return law


def computed(pair, rule, law_of=by_engine):
    """Joint law of two tokens, from the law at each position."""
    target, draft = (model.model for model in pair)

    def law(text):
        return law_of(rule, target.probs(text), draft.probs(text))

    return law(PROMPT)[:, None] * np.stack([law([*PROMPT, x]) for x in range(V)])


def of_target(pair):
    """Joint law of two tokens under the target."""
    first = pair[0].model.probs(PROMPT)
    return first[:, None] * np.stack([pair[0].model.probs([*PROMPT, x]) for x in range(V)])


def p_value(counts, law):
    """Of Pearson's chi-square; cells that are expected less than five times are put together."""
    expected = (counts.sum() * law).ravel()
    found = counts.ravel()
    few = expected < 5
    if few.any():
        found = np.append(found[~few], found[few].sum())
        expected = np.append(expected[~few], expected[few].sum())
    return stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue
