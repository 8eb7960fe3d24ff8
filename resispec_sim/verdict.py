"""What the measured laws of a rule say about its exactness."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from .config import REPLAY

RIGOROUS = ("exact", "certified")
"""Methods whose intervals are bounds, not confidence intervals."""


def verdict(rows: pd.DataFrame, claims_exact: bool = False) -> dict[str, Any]:
    """Decide whether a rule is exact on the positions of `rows`.

    Parameters
    ----------
    rows : DataFrame
        The rows of one rule, temperature and sibling count.
    claims_exact : bool
        Whether the rule is said to be exact. Then only bounds can show a bias.

    Returns
    -------
    dict
        ``verdict`` is ``"exact"`` (total variation distance at most 1e-12 at every position),
        ``"biased"`` (some interval of it lies above that) or ``"undecided"``. ``witness`` is, for
        ``"biased"``, the position whose lower bound is largest; for ``"undecided"`` the one whose
        upper bound is. ``basis`` is ``"bounds"`` or, where the verdict rests on a sample,
        ``"sampled"``.

    Notes
    -----
    An interval that is not rigorous covers the truth at its level only, and among many positions some
    would exclude 0 by chance: such an interval is widened to the level of all positions together. The
    distance of a noisy law to the target is above 0 even for a rule that is exact on average, in every
    sample alike, so no such interval counts against a rule that is said to be exact.
    """
    tolerance = REPLAY.exact_tolerance
    rigorous = rows["method"].isin(RIGOROUS).to_numpy()
    basis = "bounds" if rigorous.all() else "sampled"
    if float(rows["tv_high"].max()) <= tolerance and rigorous.all():
        return {"verdict": "exact", "basis": basis, "witness": None}
    low = _guarded_low(rows)
    if claims_exact:
        low = np.where(rigorous, low, 0.0)
    if low.max() > tolerance:
        strongest = rows.iloc[int(low.argmax())]
        basis = "bounds" if rigorous[int(low.argmax())] else "sampled"
        return {"verdict": "biased", "basis": basis, "witness": _witness(strongest)}
    return {
        "verdict": "undecided",
        "basis": basis,
        "witness": _witness(rows.loc[rows["tv_high"].idxmax()]),
    }


def _guarded_low(rows: pd.DataFrame) -> np.ndarray:
    rigorous = rows["method"].isin(RIGOROUS).to_numpy()
    level = REPLAY.confidence
    together = ndtri((1.0 - level) / 2.0 / len(rows)) / ndtri((1.0 - level) / 2.0)
    half_width = (rows["tv_high"] - rows["tv_low"]).to_numpy() / 2.0
    widened = rows["tv"].to_numpy() - together * half_width
    # The fill-free bound is a function of the accepted masses, so it is as rigorous as they are.
    bounds = rows[["tv_low", "tv_lower_bound"]].max(axis=1).to_numpy()
    return np.where(rigorous, bounds, np.minimum(rows["tv_low"].to_numpy(), widened))


def _witness(row: pd.Series) -> dict[str, Any]:
    return {
        "position": int(row["position"]),
        "prompt": int(row["prompt"]),
        "offset": int(row["offset"]),
        "tv": float(row["tv"]),
        "tv_interval": [float(row["tv_low"]), float(row["tv_high"])],
        "kl": float(row["kl"]),
        "kl_interval": [float(row["kl_low"]), float(row["kl_high"])],
        "excess_token": int(row["excess_token"]),
        "excess_mass": float(row["excess_mass"]),
        "method": str(row["method"]),
    }
