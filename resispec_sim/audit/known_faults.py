"""Known faults of verifiers, each as what it does with given siblings.

p is the target, q the draft, R a residual, x a sibling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from resispec_sim.rules.resispec import ResiSpec
from resispec_sim.rules.rrs_wor import RrsWor
from resispec_sim.rules.specinfer import SpecInfer

Array = np.ndarray


class Decided(NamedTuple):
    """Siblings that were tested, the mass with which each is accepted, and what is emitted else."""

    ids: Sequence[int]
    accepted: Sequence[float]
    residual: Array


@dataclass(frozen=True)
class Fault:
    """A fault: its name, what it means, and what it does.

    `of_drafting` says that the verifier is right and the siblings are not; `siblings` that the fault
    has its meaning for one way of drafting only.
    """

    name: str
    explanation: str
    decide: Callable[[Array, Array, Sequence[int]], Decided]
    of_drafting: bool = False
    siblings: str | None = None


def norm(masses: Array) -> Array:
    """Masses divided by their sum; as they are where nothing is left."""
    total = masses.sum()
    return masses / total if total > 0 else masses


def excess(residual: Array, draft: Array) -> Array:
    """``norm((R - q)+)``, or R where nothing is left."""
    rest = np.maximum(residual - draft, 0)
    return rest / rest.sum() if rest.sum() > 0 else residual


def ratio(residual: Array, draft: Array, token: int) -> float:
    """``min(1, R/q)``; 1 for a token that the draft lacks and the residual has."""
    if draft[token] > 0:
        return float(min(1.0, residual[token] / draft[token]))
    return float(residual[token] > 0)


def sequential(
    p: Array,
    q: Array,
    ids: Sequence[int],
    *,
    accept: Callable[[Array, Array, int], float] = ratio,
    update: Callable[[Array, Array, int], Array] = lambda r, q, x: excess(r, q),
    last: Callable[[Array, Array, Array], Array] = lambda r, p, q: r,
) -> Decided:
    """Siblings tested one after another; by default as SpecInfer does."""
    residual, accepted, reach = p, [], 1.0
    for token in ids:
        chance = min(max(accept(residual, q, token), 0.0), 1.0)
        accepted.append(reach * chance)
        reach *= 1 - chance
        residual = update(residual, q, token)
    return Decided(ids, accepted, last(residual, p, q))


def frozen(r: Array, q: Array, x: int) -> Array:
    """The residual stays what it was."""
    return r


def off_token(r: Array, q: Array, x: int) -> Array:
    """Only the rejected token leaves the residual: ``norm((R - e_x)+)``."""
    rest = r.copy()
    rest[x] = 0
    return rest / rest.sum() if rest.sum() > 0 else r


def once_skipping(p: Array, q: Array, ids: Sequence[int]) -> Decided:
    """SpecInfer on the siblings without repetitions."""
    return sequential(p, q, list(dict.fromkeys(ids)))


def as_distinct(p: Array, q: Array, ids: Sequence[int]) -> Decided:
    """As is right for distinct siblings."""
    residual, draft, accepted, reach = p, q, [], 1.0
    for token in ids:
        chance = ratio(residual, draft, token)
        accepted.append(reach * chance)
        reach *= 1 - chance
        residual = excess(residual, draft)
        draft = off_token(draft, draft, token)
    return Decided(ids, accepted, residual)


def one_hot_at_the_end(p: Array, q: Array, ids: Sequence[int]) -> Decided:
    """Each sibling against the target, then the target off all of them."""
    rest = p.copy()
    rest[list(ids)] = 0
    return sequential(p, q, ids, update=frozen)._replace(residual=norm(rest) if rest.any() else p)


def shifted_draft(p: Array, q: Array, ids: Sequence[int], *, by: int) -> Decided:
    """SpecInfer with the draft's row moved."""
    return sequential(p, np.roll(q, by), ids)


def by_position(p: Array, q: Array, ids: Sequence[int], *, by_mass: bool) -> Decided:
    """The k-th candidate of the draft is subtracted from the k-th of the target."""

    def listed(probs: Array) -> Array:
        held = np.flatnonzero(probs > 0)
        return held[np.argsort(-probs[held], kind="stable")] if by_mass else held

    def shifted(r: Array, q: Array, x: int) -> Array:
        mine, theirs = listed(r), q[listed(q)]
        rest = np.zeros(len(r))
        taken = np.zeros(len(mine))
        taken[: len(theirs)] = theirs[: len(mine)]
        rest[mine] = np.maximum(r[mine] - taken, 0)
        return rest / rest.sum() if rest.sum() > 0 else r

    return sequential(p, q, ids, update=shifted)


def powered(p: Array, q: Array, ids: Sequence[int], *, target: float, draft: float) -> Decided:
    """SpecInfer on probabilities of another temperature."""
    return sequential(norm(p**target), norm(q**draft), ids)


def cut(p: Array, q: Array, ids: Sequence[int], *, to_support: bool) -> Decided:
    """SpecInfer on the part of the target that the draft's vocabulary covers."""
    held = np.flatnonzero(q > 0)
    kept = np.zeros(len(p))
    covered = held if to_support else np.arange(held[-1] + 1)
    kept[covered] = p[covered]
    return sequential(norm(kept) if kept.sum() > 0 else p, q, ids)


def unnormalised(p: Array, q: Array, ids: Sequence[int], *, leftover: int | None) -> Decided:
    """Residuals keep their mass; what a sampler misses at the end goes to one token, if any."""

    def last(r: Array, p: Array, q: Array) -> Array:
        if leftover is None:
            return norm(r) if r.sum() > 0 else p
        filled = r.copy()
        filled[leftover] += 1 - r.sum()
        return filled

    return sequential(p, q, ids, update=lambda r, q, x: np.maximum(r - q, 0), last=last)


def resispec_law(p: Array, q: Array, ids: Sequence[int], *, rule: ResiSpec) -> Decided:
    """ResiSpec as published."""
    decision = rule.decide(p, q, ids)
    return Decided(ids, decision.accepted, decision.residual)


def right_rule(p: Array, q: Array, ids: Sequence[int], *, rule: SpecInfer | RrsWor) -> Decided:
    """A correct rule, on siblings that were not drawn from q."""
    decision = rule.decide(p, q, ids)
    return Decided(ids, decision.accepted, decision.residual)


def abs_rest(r: Array, q: Array, x: int) -> Array:
    """``norm(|R - q|)``."""
    rest = np.abs(r - q)
    return rest / rest.sum() if rest.sum() > 0 else r


def _faults() -> list[Fault]:
    def of(name: str, why: str, **options: object) -> Fault:
        return Fault(name, why, partial(sequential, **options))  # type: ignore[arg-type]

    def p_only(r: Array, q: Array, x: int) -> float:
        return float(r[x])

    def inverse(r: Array, q: Array, x: int) -> float:
        return float(min(1.0, q[x] / r[x])) if r[x] > 0 else 0.0

    from_target = "resampled from the target after a rejection"
    drafting = (
        "The verifier is right for the draft_probs it is given; the siblings come from another "
        "distribution (argmax, top-k, another temperature). Verify with the distribution that was "
        "drafted from."
    )
    found = [
        Fault(
            "drafted and verified with different distributions", drafting,
            partial(right_rule, rule=SpecInfer()), of_drafting=True,
        ),
        Fault(
            "drafted and verified with different distributions", drafting,
            partial(right_rule, rule=RrsWor()), of_drafting=True,
        ),
        of(
            "residual not updated between siblings",
            "Every sibling is tested with min(1, p/q), as if it were the first; norm((p-q)+) is sampled "
            "at the end. After a rejection the next sibling must be tested against the residual.",
            update=frozen, last=lambda r, p, q: excess(p, q),
        ),
        of(
            from_target,
            "After the last rejection the target is sampled, not the residual: tokens that were "
            "already accepted often get their share once more.",
            last=lambda r, p, q: p,
        ),
        of(
            from_target + ", residual not updated between siblings",
            "Every sibling is tested with min(1, p/q), and p is sampled at the end.",
            update=frozen, last=lambda r, p, q: p,
        ),
        of(
            "one-hot residual although the draft was sampled",
            "A rejection takes only the rejected token out of the residual, as is right for "
            "deterministic siblings accepted with R(x); for sampled ones q must be subtracted.",
            update=off_token,
        ),
        Fault(
            "siblings tested as if each were the first, then taken out of the target",
            "Every sibling is tested with min(1, p/q); the rejected tokens are taken out at the end.",
            one_hot_at_the_end,
        ),
        Fault(
            "duplicates skipped",
            "A sibling that was drawn before is passed over without the subtraction of its draft; "
            "independent draws count each time.",
            once_skipping, siblings="iid",
        ),
        Fault(
            "independent siblings verified as if drawn without replacement",
            "The draft is renormalised off each rejected token, although that token can be drawn again.",
            as_distinct, siblings="iid",
        ),
        Fault(
            "draft probabilities read one token late",
            "The verifier tests and subtracts the draft's probability of the next token.",
            partial(shifted_draft, by=-1),
        ),
        Fault(
            "draft probabilities read one token early",
            "The verifier tests and subtracts the draft's probability of the token before.",
            partial(shifted_draft, by=1),
        ),
        Fault(
            "residual aligned by position, not by token id",
            "The candidates of both models are listed by id and subtracted entry by entry, although the "
            "lists hold different tokens.",
            partial(by_position, by_mass=False),
        ),
        Fault(
            "residual aligned by rank, not by token id",
            "The candidates of both models are sorted by probability and subtracted entry by entry.",
            partial(by_position, by_mass=True),
        ),
        of(
            "accepts with p instead of p/q",
            "The coin is compared with the residual's probability without dividing by the draft's.",
            accept=p_only,
        ),
        of("ratio upside down: accepts with q/p", "The coin is compared with q/R.", accept=inverse),
        of(
            "residual upside down: norm((q - p)+)",
            "What the draft has too much is sampled, instead of what it lacks.",
            update=lambda r, q, x: excess(q, r),
        ),
        of(
            "residual not clipped: |p - q|",
            "Negative differences are kept by their absolute value instead of being set to 0.",
            update=abs_rest,
        ),
        Fault(
            "residual not normalised between siblings",
            "The next sibling is tested against (R-q)+ without dividing by its sum.",
            partial(unnormalised, leftover=None),
        ),
        Fault(
            "residual not normalised; the rest goes to the last token",
            "The sampler runs over masses that sum to less than 1 and ends on the last token.",
            partial(unnormalised, leftover=-1),
        ),
        Fault(
            "residual not normalised; the rest goes to token 0",
            "The sampler runs over masses that sum to less than 1 and falls back to token 0.",
            partial(unnormalised, leftover=0),
        ),
        Fault(
            "draft not renormalised without replacement",
            "Siblings are distinct, but each is tested against the whole draft; off the rejected tokens "
            "it must be divided by what is left of it.",
            sequential, siblings="without_replacement",
        ),
        Fault(
            "emits token 0 whatever it is given",
            "As argmax and searchsorted do on rows of NaN.",
            lambda p, q, ids: Decided([], [], np.eye(len(p))[0]),
        ),
        Fault(
            "every sibling is accepted",
            "The first sibling is emitted untested: the law is the draft's.",
            lambda p, q, ids: sequential(p, q, ids, accept=lambda r, q, x: 1.0),
        ),
        Fault(
            "emits the target's argmax",
            "Nothing is drawn at random: the likeliest token is emitted.",
            lambda p, q, ids: Decided([], [], np.eye(len(p))[int(np.argmax(p))]),
        ),
        Fault(
            "target cut to the draft's vocabulary",
            "Tokens past the last one that the draft has are never emitted; pad the draft with 0.",
            partial(cut, to_support=False),
        ),
        Fault(
            "target cut to the draft's support",
            "Tokens that the draft cannot draw are never emitted.",
            partial(cut, to_support=True),
        ),
    ]  # fmt: skip
    found += [
        Fault(
            f"{rule.label}'s law",
            "The residual is ResiSpec's as published, whose law is not the target in general.",
            partial(resispec_law, rule=rule),
        )
        for rule in (
            ResiSpec("capacity"), ResiSpec("water"), ResiSpec("index"), ResiSpec("capacity", "clipped"),
            ResiSpec("water", "clipped"), ResiSpec("index", "clipped"),
        )
    ]  # fmt: skip
    return found + _temperatures()


def _temperatures() -> list[Fault]:
    found = []
    for temperature in (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.25, 1.5, 2.0):
        # drafted at T, verified at 1: probabilities to the power of T
        for what, target, draft in (
            ("both rows", temperature, temperature),
            ("the target", temperature, 1.0),
            ("the draft", 1.0, temperature),
        ):
            found.append(
                Fault(
                    f"temperature mismatch: {what} verified at T = {temperature:g} times less",
                    f"The verifier applies the power {temperature:g} to {what} that it is given, as "
                    f"when a temperature of {temperature:g} was applied for drafting but not for "
                    "verifying.",
                    partial(powered, target=target, draft=draft),
                )
            )
    return found


FAULTS = _faults()
"""Tried in this order: the first that agrees is named."""
