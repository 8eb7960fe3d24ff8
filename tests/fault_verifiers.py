"""Small verifiers written for the tests: correct ones, and one for every fault known from public reports.

All take ``(target_probs, draft_probs, sibling_ids, uniforms)`` and return ``(token, accepted_idx)``.
Those in plain Python run on Fractions as well as on floats; those that are about rounding use numpy.
"""

from functools import lru_cache

import numpy as np


def numbers(probs):
    """Probabilities as a new list of Python numbers, which divide by zero with an error."""
    return probs.tolist() if isinstance(probs, np.ndarray) else list(probs)


def normalised(masses):
    """Masses divided by their sum; None where nothing is left."""
    total = sum(masses)
    return [mass / total for mass in masses] if total > 0 else None


def excess(residual, draft):
    """``norm((R - q)+)``, or None."""
    return normalised([max(r - q, 0) for r, q in zip(residual, draft, strict=True)])


def accept_prob(mass, drafted):
    """``min(1, R/q)``; a token that cannot be drafted is accepted where the residual has it."""
    return min(1, mass / drafted) if drafted > 0 else int(mass > 0)


def pick(probs, coin):
    """The token at `coin` on the cumulated probabilities."""
    reached = 0
    for token, prob in enumerate(probs):
        reached += prob
        if coin < reached:
            return token
    # rounding can leave the sum a little under 1
    return probs.index(max(probs))


# Correct verifiers


def specinfer(target_probs, draft_probs, sibling_ids, uniforms):
    """Recursive rejection sampling of independent siblings; self-contained, to be mutated."""
    draft = numbers(draft_probs)
    residual = numbers(target_probs)
    n_siblings = len(sibling_ids)
    for idx in range(n_siblings):
        token = int(sibling_ids[idx])
        limit = min(1, residual[token] / draft[token])
        if uniforms[idx] < limit:
            return token, idx
        rest = [max(r - q, 0) for r, q in zip(residual, draft, strict=True)]
        total = sum(rest)
        if total > 0:
            residual = [r / total for r in rest]
    coin = uniforms[n_siblings]
    reached = 0
    for token in range(len(residual)):
        reached = reached + residual[token]
        if coin < reached:
            return token, None
    return residual.index(max(residual)), None


def without_replacement(target_probs, draft_probs, sibling_ids, uniforms):
    """Recursive rejection sampling whose draft is renormalised off each rejected sibling."""
    residual, draft = numbers(target_probs), numbers(draft_probs)
    for idx, token in enumerate(map(int, sibling_ids)):
        if uniforms[idx] < accept_prob(residual[token], draft[token]):
            return token, idx
        residual = excess(residual, draft) or residual
        draft = normalised([0 if x == token else q for x, q in enumerate(draft)]) or draft
    return pick(residual, uniforms[-1]), None


def single_draft(target_probs, draft_probs, sibling_ids, uniforms):
    """Rejection sampling of one drafted token."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    return pick(excess(target, draft) or target, uniforms[1]), None


@lru_cache
def k_seq_factor(target, draft, n_siblings):
    """A factor a little above the root of K-SEQ's equation; from the root on the law is the target."""
    low, high = target[0] * 0 + 1, target[0] * 0 + n_siblings
    for _ in range(16):
        factor = (low + high) / 2
        beta = sum(min(p / factor, q) for p, q in zip(target, draft, strict=True))
        low, high = (
            (low, factor) if 1 - (1 - beta) ** n_siblings <= factor * beta else (factor, high)
        )
    return high


def k_seq(target_probs, draft_probs, sibling_ids, uniforms):
    """K-SEQ (SpecTr): each sibling is tested against the target divided by one factor."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    n_siblings = len(sibling_ids)
    factor = k_seq_factor(tuple(target), tuple(draft), n_siblings)
    for idx, token in enumerate(map(int, sibling_ids)):
        if uniforms[idx] < accept_prob(target[token], factor * draft[token]):
            return token, idx
    taken = [min(p / factor, q) for p, q in zip(target, draft, strict=True)]
    beta = sum(taken)
    scale = (1 - (1 - beta) ** n_siblings) / beta if beta > 0 else 0
    left = [max(p - scale * t, 0) for p, t in zip(target, taken, strict=True)]
    return pick(normalised(left) or target, uniforms[-1]), None


def target_only(target_probs, draft_probs, sibling_ids, uniforms):
    """Distinct siblings tested as if drafted with probability 1 (EAGLE)."""
    residual = numbers(target_probs)
    for idx, token in enumerate(map(int, sibling_ids)):
        if uniforms[idx] < residual[token]:
            return token, idx
        residual = normalised([0 if x == token else r for x, r in enumerate(residual)]) or residual
    return pick(residual, uniforms[-1]), None


def target_sample(target_probs, draft_probs, sibling_ids, uniforms):
    """Naive sampling: a token of the target, accepted if it is among the siblings."""
    token, ids = pick(numbers(target_probs), uniforms[-1]), [int(x) for x in sibling_ids]
    return token, ids.index(token) if token in ids else None


# Faults of verification


def frozen_residual(target_probs, draft_probs, sibling_ids, uniforms):
    """Every sibling is tested against the first target and draft; one residual at the end."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    for idx, token in enumerate(map(int, sibling_ids)):
        if uniforms[idx] < accept_prob(target[token], draft[token]):
            return token, idx
    return pick(excess(target, draft) or target, uniforms[-1]), None


def residual_by_position(target_probs, draft_probs, sibling_ids, uniforms):
    """Candidates of both models are listed by id, then subtracted entry by entry of the lists."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    listed = [x for x, p in enumerate(target) if p > 0]
    masses = [q for q in draft if q > 0]
    masses += [0] * (len(listed) - len(masses))
    left = excess([target[x] for x in listed], masses[: len(listed)])
    return listed[pick(left or [target[x] for x in listed], uniforms[1])], None


def one_hot_residual(target_probs, draft_probs, sibling_ids, uniforms):
    """Sampled drafts are tested against the draft, but only the rejected token leaves the residual."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    left = normalised([0 if x == token else p for x, p in enumerate(target)])
    return pick(left or target, uniforms[1]), None


def resampled_from_target(target_probs, draft_probs, sibling_ids, uniforms):
    """After a rejection the whole target is sampled again."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    return pick(target, uniforms[1]), None


def accepts_at_coin_zero(target_probs, draft_probs, sibling_ids, uniforms):
    """``<=``: a coin that is exactly 0 accepts a token that the target never emits."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    token = int(sibling_ids[0])
    if uniforms[0] <= accept_prob(target[token], draft[token]):
        return token, 0
    return pick(excess(target, draft) or target, uniforms[1]), None


def nan_draft_row(target_probs, draft_probs, sibling_ids, uniforms):
    """One NaN spoils the draft's row; no comparison with NaN holds, and argmax of NaN is 0."""
    target = np.asarray(target_probs, dtype=float)
    draft = np.full_like(target, np.nan)
    token = int(sibling_ids[0])
    if uniforms[0] < target[token] / draft[token]:
        return token, 0
    left = np.maximum(target - draft, 0)
    return int(np.argmax(left / left.sum())), None


def nan_past_the_fallback(target_probs, draft_probs, sibling_ids, uniforms):
    """A coin of type float32 can be 1; the empty residual is NaN, which ``<= 0`` does not catch."""
    target, draft = (np.asarray(probs, dtype=float) for probs in (target_probs, draft_probs))
    token = int(sibling_ids[0])
    if np.float32(uniforms[0]) < target[token] / draft[token]:
        return token, 0
    left = np.maximum(target - draft, 0)
    with np.errstate(invalid="ignore"):
        left = left / left.sum()
    if left.sum() <= 0:
        left = target
    return int(np.argmax(~(np.cumsum(left) <= uniforms[1]))), None


def float32_log_residual(target_probs, draft_probs, sibling_ids, uniforms):
    """The residual as ``log p + log(1 - q/p)``, where float32 loses a ratio under half an ulp of 1."""
    target, draft = (np.asarray(probs, dtype=float) for probs in (target_probs, draft_probs))
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    kept = np.zeros(len(target))
    larger = target > draft
    ratio = (draft[larger] / target[larger]).astype(np.float32)
    left = (np.float32(1) - ratio).astype(float)
    with np.errstate(divide="ignore"):
        kept[larger] = np.exp(np.log(target[larger]) + np.log(left))
    return pick(kept if kept.sum() == 0 else (kept / kept.sum()).tolist(), uniforms[1]), None


def edits_target_in_place(target_probs, draft_probs, sibling_ids, uniforms):
    """Without replacement, with the residual written over the caller's array: right only once."""
    draft = np.array(draft_probs, dtype=float)
    for idx, token in enumerate(map(int, sibling_ids)):
        if uniforms[idx] < accept_prob(target_probs[token], draft[token]):
            return token, idx
        target_probs -= draft
        target_probs.clip(0, None, out=target_probs)
        target_probs /= target_probs.sum()
        draft[token] = 0
        draft /= draft.sum() if draft.any() else 1
    return pick(target_probs.tolist(), uniforms[-1]), None


def positions_misaligned(target_probs, draft_probs, sibling_ids, uniforms):
    """The draft row is read one entry late: probabilities belong to the token before."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    draft = draft[1:] + draft[:1]
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    return pick(excess(target, draft) or target, uniforms[1]), None


def duplicates_skipped(target_probs, draft_probs, sibling_ids, uniforms):
    """Independent siblings whose repetitions are passed over without their subtraction."""
    draft, residual = numbers(draft_probs), numbers(target_probs)
    seen = []
    for idx, token in enumerate(map(int, sibling_ids)):
        if token in seen:
            continue
        seen.append(token)
        if uniforms[idx] < accept_prob(residual[token], draft[token]):
            return token, idx
        residual = excess(residual, draft) or residual
    return pick(residual, uniforms[-1]), None


def untempered(target_probs, draft_probs, sibling_ids, uniforms):
    """Both rows reach the drafter at temperature 1/2 and the verifier at 1: square roots."""
    target, draft = (normalised([p**0.5 for p in numbers(x)]) for x in (target_probs, draft_probs))
    return single_draft(target, draft, sibling_ids, uniforms)


def cut_to_the_draft(target_probs, draft_probs, sibling_ids, uniforms):
    """The last row of the target's vocabulary, which the draft lacks, is cut off."""
    target, draft = normalised(numbers(target_probs)[:-1]), numbers(draft_probs)[:-1]
    if target is None:
        return int(sibling_ids[0]), 0
    return single_draft(target, draft, sibling_ids, uniforms)


def unmapped_draft_row(target_probs, draft_probs, sibling_ids, uniforms):
    """Tokens go through the map [0, 2] of a reduced vocabulary, their probabilities do not."""
    target, draft = numbers(target_probs), numbers(draft_probs)
    draft = [draft[0], draft[2], 0, 0]
    token = int(sibling_ids[0])
    if uniforms[0] < accept_prob(target[token], draft[token]):
        return token, 0
    return pick(excess(target, draft) or target, uniforms[1]), None


def resispec(target_probs, draft_probs, sibling_ids, uniforms):
    """ResiSpec as published, with the deficit spread in proportion to the room."""
    residual, draft = numbers(target_probs), numbers(draft_probs)
    for idx, token in enumerate(map(int, sibling_ids)):
        if uniforms[idx] < accept_prob(residual[token], draft[token]):
            return token, idx
        budget = draft[token] - residual[token]
        kept = [min(budget * q, r) for q, r in zip(draft, residual, strict=True)]
        room = [r - k for r, k in zip(residual, kept, strict=True)]
        kept[token] = room[token] = 0
        deficit, space = budget - sum(kept), sum(room)
        if deficit > 0 and space > 0:
            kept = [k + deficit * r / space for k, r in zip(kept, room, strict=True)]
        residual = normalised(kept) or residual
    return pick(residual, uniforms[-1]), None


# Ways of drafting: each yields (probability, ids)


def draft_argmax(target_probs, draft_probs, n_siblings):
    """Greedy drafts, although the softmax is what the verifier is given."""
    draft = numbers(draft_probs)
    yield 1, [draft.index(max(draft))] * n_siblings


def draft_top_two(target_probs, draft_probs, n_siblings):
    """One draft from the two likeliest tokens, renormalised."""
    draft = numbers(draft_probs)
    kept = sorted(range(len(draft)), key=lambda x: (-draft[x], x))[:2]
    total = sum(draft[x] for x in kept)
    for token in kept:
        if draft[token] > 0:
            yield draft[token] / total, [token]
