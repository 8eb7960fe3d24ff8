"""What the engines hand to `exact_law`: masses of one position, before any figure is made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resispec_sim.errors import InputError, MassError
from resispec_sim.rules.base import Rule

MASS_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Outcome:
    """Masses of one position.

    Attributes
    ----------
    output_probs : ndarray (V,)
        The law, or the estimate of it.
    accepted : ndarray (K,)
        Accepted mass per sibling, or the estimate of it.
    accepted_by_token : ndarray (K, V)
    method : str
    n_paths : int
        Path-steps walked.
    accepted_interval : ndarray (K, 2), optional
        Bounds, where `accepted` is not exact.
    total_interval : ndarray (2,), optional
        Bounds of the total, where they are narrower than the sums of the siblings' bounds.
    certain : ndarray (V,), optional
        Mass that is emitted for sure, where the law is not exact: the law is at least this.
    stderr : ndarray (K,), optional
        Standard error of `accepted`, where it was sampled.
    batch_laws : ndarray (G, V), optional
        Independent estimates of the law, where it was sampled.
    notes : tuple of str
    """

    output_probs: NDArray[np.float64]
    accepted: NDArray[np.float64]
    accepted_by_token: NDArray[np.float64]
    method: str
    n_paths: int
    accepted_interval: NDArray[np.float64] | None = None
    total_interval: NDArray[np.float64] | None = None
    certain: NDArray[np.float64] | None = None
    stderr: NDArray[np.float64] | None = None
    batch_laws: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()


def to_token_order(
    outcome: Outcome,
    order: NDArray[np.int64],
    n_siblings: int | None = None,
    notes: tuple[str, ...] = (),
) -> Outcome:
    """An outcome whose tokens are in another order, by token id.

    Parameters
    ----------
    outcome : Outcome
    order : ndarray (V,)
        Token id at each place.
    n_siblings : int, optional
        Siblings that were asked for; those that do not exist get mass 0.
    notes : tuple of str
        Added to the outcome's own.
    """
    missing = 0 if n_siblings is None else n_siblings - len(outcome.accepted)

    place = np.empty_like(order)
    place[order] = np.arange(order.size)

    def back(values: NDArray[np.float64]) -> NDArray[np.float64]:
        # three times as fast as assigning to result[..., order]
        result: NDArray[np.float64] = np.take(values, place, axis=-1)
        return result

    def padded(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate((values, np.zeros((missing, *values.shape[1:]))))

    interval, stderr = outcome.accepted_interval, outcome.stderr
    return replace(
        outcome,
        output_probs=back(outcome.output_probs),
        accepted=padded(outcome.accepted),
        accepted_by_token=padded(back(outcome.accepted_by_token)),
        accepted_interval=None if interval is None else padded(interval),
        stderr=None if stderr is None else padded(stderr),
        certain=None if outcome.certain is None else back(outcome.certain),
        batch_laws=None if outcome.batch_laws is None else back(outcome.batch_laws),
        notes=(*outcome.notes, *notes),
    )


LIMIT = 1e13
"""Path-steps beyond which no walk is begun."""


def check_walkable(rule: Rule, n_steps: float) -> None:
    """Refuse to walk all paths of a rule where that would take days (`InputError`)."""
    if not n_steps <= LIMIT:
        raise InputError(
            f"{rule.label} would take {n_steps:.1g} path-steps here, too many to walk: use "
            "method='auto', 'certified' or 'sampled', or fewer siblings"
        )


def bounded_law(
    certain: NDArray[np.float64], estimate: NDArray[np.float64]
) -> tuple[NDArray[np.float64], str]:
    """The best estimate of a law that is at least `certain`, and a note on the mass that is not.

    The missing mass is shared in proportion to what the estimate (V,) holds beyond what is certain.
    """
    missing = max(1.0 - float(certain.sum()), 0.0)
    shape = np.maximum(estimate - certain, 0.0)
    total = float(shape.sum())
    output = certain + (missing / total * shape if total > 0 else 0.0)
    return output / output.sum(), f"{missing:.2e} of the mass is bounded, not walked"


def estimated_law(
    accepted: NDArray[np.float64], residual: NDArray[np.float64], certain: NDArray[np.float64]
) -> tuple[NDArray[np.float64], str]:
    """A law of mass accepted by token and a residual that is known up to a factor, and a note.

    What is certain (V,) stands; the estimate shares out the rest.
    """
    total = float(residual.sum())
    left = max(1.0 - float(accepted.sum()), 0.0)
    estimate = accepted + (left / total * residual if total > 0 else 0.0)
    law, note = bounded_law(certain, estimate)
    return law, f"{note}; its share is estimated on a grid of weights"


def check_mass(probs: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """Return `probs`, or a copy with negative rounding set to 0, if they are a distribution.

    Raises
    ------
    MassError
        If the sum is off 1, or an entry is below 0, by more than 1e-12.
    """
    lowest = float(probs.min())
    check_total(float(probs.sum()), what, lowest)
    return np.maximum(probs, 0.0) if lowest < 0.0 else probs


def check_total(total: float, what: str, lowest: float = 0.0) -> None:
    """Raise `MassError` if a law sums to `total`, or has an entry `lowest`, that no law has."""
    if not (abs(total - 1.0) <= MASS_TOLERANCE and lowest >= -MASS_TOLERANCE):
        raise MassError(
            f"{what} sums to 1 {total - 1.0:+.3e} with smallest entry {lowest:.3e}: this is a fault of "
            "the engine; please report it with the two rows"
        )


def check_accept_probs(
    accept: NDArray[np.float64], draw: NDArray[np.float64], what: str
) -> NDArray[np.float64]:
    """Return acceptance probabilities with rounding cut to [0, 1] after checking that they are some.

    Raises
    ------
    MassError
        If one, of a token that can be drawn, is outside [0, 1] by more than 1e-9 or not a number, or
        if there is not one per token.
    """
    accept = _as_floats(accept, draw.shape, f"{what}: accept_probs")
    used = accept[draw > 0]
    if not ((used >= -1e-9) & (used <= 1 + 1e-9)).all():
        raise MassError(
            f"{what} accepts with probabilities from {used.min()} to {used.max()}: they must lie in "
            "[0, 1]; check the rule's accept_probs"
        )
    return np.where(draw > 0, np.clip(accept, 0.0, 1.0), 0.0)


def check_residual(residual: NDArray[np.float64], what: str, weight: float) -> NDArray[np.float64]:
    """Return the law after the last rejection after checking that it is one (`MassError`).

    `weight` is the probability of getting there: on a path that hardly exists, rounding may be large.
    """
    size = np.shape(residual)
    residual = _as_floats(residual, size if len(size) == 1 else (-1,), f"{what}: last_residual")
    total = float(residual.sum())
    off = max(abs(total - 1.0), -float(residual.min()))
    if not off * min(weight, 1.0) <= 1e-9:
        raise MassError(
            f"{what} ends with a residual that sums to {total}, the least entry is {residual.min()}: it "
            "must be a distribution; check the rule's last_residual"
        )
    return residual


def _as_floats(values: object, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    found = np.asarray(values)
    if found.shape != shape or found.dtype.kind not in "fiub":
        raise MassError(
            f"{what} gives {found.dtype} of shape {found.shape}: it must give one number per token, (V,)"
        )
    return found.astype(np.float64)
