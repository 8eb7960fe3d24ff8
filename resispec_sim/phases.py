"""Measured seconds per step and phase, and what they say about trees and rules that were not run."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError

PHASES = ("drafting", "verification", "shaping")


@dataclass(frozen=True)
class MeasuredStep:
    """A system whose steps were timed by phase.

    Attributes
    ----------
    dataset, method, rule : str
    draft, tree : str or None
        None for plain decoding.
    n_levels : int
        Drafted levels.
    n_nodes, accepted_length : float
        Means per step: nodes, the root included; tokens, the bonus included.
    seconds : mapping of str to float
        Mean seconds per step of drafting, verification and shaping.
    """

    dataset: str
    method: str
    rule: str
    draft: str | None
    tree: str | None
    n_levels: int
    n_nodes: float
    accepted_length: float
    seconds: Mapping[str, float]

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of these very steps."""
        return self.accepted_length / self.step_seconds


@dataclass(frozen=True)
class StepCost:
    """Projected seconds of a step, with what they rest on.

    Attributes
    ----------
    drafting, verification : float
        Seconds per step.
    shaping_per_token : float
        Seconds per emitted token: one node is tested for each.
    notes : tuple of str
        Where something was not measured and what stands in for it.
    """

    drafting: float
    verification: float
    shaping_per_token: float
    notes: tuple[str, ...]

    def seconds(self, accepted_length: float) -> float:
        """Seconds of a step that emits so many tokens."""
        return self.drafting + self.verification + self.shaping_per_token * accepted_length

    def tokens_per_second(self, accepted_length: float) -> float:
        """Tokens per second; it grows with the accepted length."""
        return accepted_length / self.seconds(accepted_length)


def read_phases(path: str | Path) -> list[MeasuredStep]:
    """Read the phases that ``resispec bench-decode`` measured.

    Parameters
    ----------
    path : str or Path
        Its ``phases.csv`` or ``results.json``, or any file of the same form.

    Returns
    -------
    list of MeasuredStep
        One per set of prompts and method, in the order of the file.

    Raises
    ------
    InputError
        If the file cannot be read, or an entry is missing or not a number: names file, row and column.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the phases cannot be read ({error})") from error
    if path.suffix == ".json":
        try:
            rows = json.loads(text)["phases"]
            if not all(isinstance(row, dict) for row in rows):
                raise TypeError("rows that are no objects")
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: not the results.json of resispec bench-decode: it has no phases"
            ) from error
    else:
        rows = list(csv.DictReader(text.splitlines()))
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for number, row in enumerate(rows, start=1):
        for column in ("dataset", "method", "rule", "phase"):
            if not row.get(column) or not isinstance(row[column], str):
                raise InputError(f"{path}, row {number}: there is no {column}")
        found.setdefault((row["dataset"], row["method"]), []).append({**row, "number": number})
    steps = [_measured(path, of_system) for of_system in found.values()]
    if not steps:
        raise InputError(f"{path} holds no phases; resispec bench-decode measures them")
    return steps


def step_cost(
    measured: Sequence[MeasuredStep], rule: str, n_levels: int, n_nodes: float
) -> StepCost:
    """Seconds of a step on a tree from those of other trees.

    Drafting grows by one pass per level; verification is one pass over all nodes; shaping is done at
    one node per emitted token. Between measured trees the first two are interpolated linearly.

    Parameters
    ----------
    measured : sequence of MeasuredStep
        Of one pair of models on one machine.
    rule : str
        Label of the rule.
    n_levels : int
        Drafted levels of the tree, at least 1.
    n_nodes : float
        Its nodes, the root included.

    Raises
    ------
    InputError
        If no system with a draft was measured.

    Examples
    --------
    >>> times = {"drafting": 0.004, "verification": 0.02, "shaping": 0.002}
    >>> one = MeasuredStep("c4", "SpecInfer", "specinfer", "draft", "d5b3", 4, 121, 2.0, times)
    >>> round(step_cost([one], "specinfer", 2, 121).seconds(3.0), 9)
    0.025
    """
    drafted = [step for step in measured if step.n_levels > 0]
    if not drafted:
        raise InputError(
            "no system with a draft was measured: there is no drafting to project from"
        )
    notes: list[str] = []
    levels = _mean_by(drafted, lambda step: float(step.n_levels), "drafting")
    drafting = _through_origin(levels, float(n_levels))
    if not min(levels) <= n_levels <= max(levels):
        notes.append(f"drafting in proportion to levels, measured for {_listed(levels)}")
    nodes = _mean_by(list(measured), lambda step: step.n_nodes, "verification")
    verification = _interpolated(nodes, n_nodes)
    if len(nodes) == 1 and n_nodes not in nodes:
        notes.append(f"verification as for {_listed(nodes)} nodes")
    elif not min(nodes) <= n_nodes <= max(nodes):
        notes.append(f"verification extrapolated from {_listed(nodes)} nodes")
    per_token: dict[str, list[float]] = {}
    for step in drafted:
        cost = step.seconds["shaping"] / step.accepted_length
        per_token.setdefault(step.rule, []).append(cost)
    means = {name: float(np.mean(costs)) for name, costs in per_token.items()}
    if rule in means:
        shaping = means[rule]
    else:
        dearest = max(means, key=lambda name: means[name])
        shaping = means[dearest]
        notes.append(f"shaping as of {dearest}, the dearest that was measured")
    return StepCost(drafting, verification, shaping, tuple(notes))


def _measured(path: Path, rows: Sequence[Mapping[str, Any]]) -> MeasuredStep:
    seconds = dict.fromkeys(PHASES, 0.0)
    first, seen = rows[0], set()
    for row in rows:
        for column in ("rule", "draft", "tree", "n_levels", "n_nodes", "accepted_length"):
            if row.get(column) != first.get(column):
                raise InputError(
                    f"{path}, row {row['number']}: {column} is {row.get(column)!r}, but "
                    f"{first.get(column)!r} in row {first['number']} of the same system"
                )
        if row["phase"] in seen:
            raise InputError(f"{path}, row {row['number']}: a second row for {row['phase']}")
        seen.add(row["phase"])
        if row["phase"] in PHASES:
            seconds[row["phase"]] = _number(path, row, "seconds", 0.0)
    n_levels = _number(path, first, "n_levels", 0.0)
    accepted_length = _number(path, first, "accepted_length", 1.0)
    absent = [name for name in PHASES if n_levels > 0 and name not in seen]
    if absent:
        raise InputError(f"{path}: {first['method']} has no row for {', '.join(absent)}")
    if n_levels % 1 or accepted_length > n_levels + 1:
        raise InputError(
            f"{path}, row {first['number']}: {accepted_length:g} tokens a step on {n_levels:g} drafted levels"
        )
    step = MeasuredStep(
        dataset=first["dataset"],
        method=first["method"],
        rule=first["rule"],
        draft=first.get("draft") or None,
        tree=first.get("tree") or None,
        n_levels=int(n_levels),
        n_nodes=_number(path, first, "n_nodes", 1.0),
        accepted_length=accepted_length,
        seconds=seconds,
    )
    if step.step_seconds <= 0:
        raise InputError(
            f"{path}, row {first['number']}: {step.method} has none of the phases {', '.join(PHASES)}"
        )
    return step


def _number(path: Path, row: Mapping[str, Any], column: str, least: float) -> float:
    try:
        value = math.nan if isinstance(row[column], bool) else float(row[column])
    except (KeyError, TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise InputError(
            f"{path}, row {row['number']}: {column} is {row.get(column)!r}, not a number from {least:g} on"
        )
    return value


def _mean_by(steps: Sequence[MeasuredStep], key: Any, phase: str) -> dict[float, float]:
    found: dict[float, list[float]] = {}
    for step in steps:
        found.setdefault(key(step), []).append(step.seconds[phase])
    return {at: float(np.mean(found[at])) for at in sorted(found)}


def _through_origin(points: Mapping[float, float], at: float) -> float:
    """Linear between the points; in proportion to the nearest outside of them."""
    first, last = min(points), max(points)
    if first <= at <= last:
        return _interpolated(points, at)
    nearest = first if at < first else last
    return points[nearest] * at / nearest


def _interpolated(points: Mapping[float, float], at: float) -> float:
    """Linear between the points, and along the last slope outside of them, but never falling."""
    x, y = np.array(list(points)), np.array(list(points.values()))
    value = float(np.interp(at, x, y))
    if len(x) > 1 and at > x[-1]:
        value += max(float(y[-1] - y[-2]) / float(x[-1] - x[-2]), 0.0) * (at - float(x[-1]))
    return value


def _listed(points: Mapping[float, float]) -> str:
    return ", ".join(f"{at:g}" for at in points)
