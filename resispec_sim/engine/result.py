"""What the engines hand to `exact_law`: masses of one position, before any figure is made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resispec_sim.errors import MassError

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
    certain: NDArray[np.float64] | None = None
    stderr: NDArray[np.float64] | None = None
    batch_laws: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()


def check_mass(probs: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """Return `probs` with negative rounding set to 0 after checking that they are a distribution.

    Raises
    ------
    MassError
        If the sum is off 1, or an entry is below 0, by more than 1e-12.
    """
    total = float(probs.sum())
    lowest = float(probs.min())
    if not (abs(total - 1.0) <= MASS_TOLERANCE and lowest >= -MASS_TOLERANCE):
        raise MassError(
            f"{what} sums to 1 {total - 1.0:+.3e} with smallest entry {lowest:.3e}: this is a fault of "
            "the engine; please report it with the two rows"
        )
    return np.maximum(probs, 0.0)
