"""How much of the gap between recursive rejection sampling and the optimum exact rules close."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .checks import check_whole
from .config import BOUNDS, REPLAY
from .dumps import Dump, Position, open_dump
from .engine import exact_law
from .engine.bounds import ROUNDING, optimum_for
from .measure import is_defined, seed_of
from .parallel import check_workers, run_positions
from .pooling import pooled_mean
from .progress import position_progress
from .provenance import provenance
from .replay import as_counts, as_range, as_rules, check_counts
from .report import dumps
from .rules import Rule, SpecInfer
from .types import Backend, Method
from .verdict import RIGOROUS


@dataclass(frozen=True, eq=False)
class GapReport:
    """Total acceptance of rules along a dump, beside the optima.

    Attributes
    ----------
    frame : DataFrame
        One row per sibling count, position and rule: ``acceptance`` with its ends ``_low`` and
        ``_high`` (bounds, or 1.96 standard errors), ``method``; ``rrs`` (acceptance of recursive
        rejection sampling), ``optimum_iid``, ``optimum_wor``, and ``optimum``, that of the rule's own
        siblings.
    rules : tuple of Rule
    siblings : tuple of int
    dump, provenance : dict
    partial : bool
        Whether the run was interrupted.
    """

    frame: pd.DataFrame
    rules: tuple[Rule, ...]
    siblings: tuple[int, ...]
    dump: dict[str, Any]
    provenance: dict[str, Any]
    partial: bool

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The pooled figures as plain data.

        ``counts`` has an entry per sibling count with the optima by way of drawing, that of independent
        siblings, that without replacement and those of the rules, None where the way has none, and the
        figures per rule:
        ``acceptance``; ``share``, the part of the gap from recursive rejection sampling to the optimum
        of independent siblings that the rule closes; ``share_own``, the same with the optimum of the
        rule's own siblings. Shares are ratios of sums over positions, and None where there is no gap.
        """
        return {
            "schema_version": 1,
            "kind": "bounds",
            "partial": self.partial,
            "dump": self.dump,
            "n_positions": int(self.frame["position"].nunique()),
            "counts": [self._at(n) for n in self.siblings],
            "checks": self.checks,
        }

    @cached_property
    def checks(self) -> dict[str, Any]:
        """Counts of positions that contradict the theory; all are 0 for a sound engine.

        ``exact_shaping_below``: per rule, positions at which exact shaping accepts less by more than
        1e-12. ``above_optimum``: per exact rule, positions at which it accepts more than the optimum
        of its siblings, by more than 1e-12 (1e-10 without replacement, five standard errors where
        sampled).
        """
        wide = self.frame.pivot(index=["siblings", "position"], columns="rule", values="acceptance")
        below = {}
        if "exact-shaping" in wide:
            for other in ("specinfer", "k-seq"):
                if other in wide:
                    missing = wide[other] - wide["exact-shaping"]
                    below[other] = int((missing > REPLAY.exact_tolerance).sum())
        above = {
            rule.label: int(self._above(self.frame[self.frame["rule"] == rule.label], rule).sum())
            for rule in self.rules
            if rule.exact
        }
        return {"exact_shaping_below": below, "above_optimum": above}

    def to_json(self) -> str:
        """Pooled figures and provenance as JSON; what does not exist is null."""
        return dumps({**self.summary, "provenance": self.provenance})

    def _at(self, n_siblings: int) -> dict[str, Any]:
        rows = self.frame[self.frame["siblings"] == n_siblings]
        one = rows.drop_duplicates("position")
        return {
            "siblings": n_siblings,
            "rrs": float(one["rrs"].mean()),
            "optimum_iid": float(one["optimum_iid"].mean()),
            "optimum_wor": float(one["optimum_wor"].mean()),
            "optima": self._optima(rows),
            "rules": [self._of(rule, rows[rows["rule"] == rule.label]) for rule in self.rules],
        }

    def _optima(self, rows: pd.DataFrame) -> dict[str, float | None]:
        one = rows.drop_duplicates("position")
        found: dict[str, float | None] = {
            "iid": float(one["optimum_iid"].mean()),
            "without_replacement": float(one["optimum_wor"].mean()),
        }
        for rule in self.rules:
            if found.get(rule.siblings) is None:
                own = rows.loc[rows["rule"] == rule.label, "optimum"]
                found[rule.siblings] = None if own.empty else float(own.mean())
        return found

    @staticmethod
    def _of(rule: Rule, rows: pd.DataFrame) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "rule": rule.label,
            "scheme": rule.siblings,
            "claims_exact": rule.exact,
        }
        if rows.empty:
            reason = f"defined for {rule.only_count} siblings only"
            return figures | {"acceptance": None, "reason": reason}
        return figures | {
            "acceptance": pooled_mean(rows, "acceptance"),
            "optimum": float(rows["optimum"].mean()),
            "share": gap_share(rows["acceptance"], rows["rrs"], rows["optimum_iid"]),
            "share_own": gap_share(rows["acceptance"], rows["rrs"], rows["optimum"]),
            "methods": {str(k): int(v) for k, v in rows["method"].value_counts().items()},
            "reason": None,
        }

    @staticmethod
    def _above(rows: pd.DataFrame, rule: Rule) -> pd.Series:
        slack = ROUNDING[rule.siblings]
        standard_errors = (rows["acceptance_high"] - rows["acceptance_low"]) / 2.0 / 1.96
        least = rows["acceptance_low"].where(
            rows["method"].isin(RIGOROUS), rows["acceptance"] - 5.0 * standard_errors
        )
        return least > rows["optimum"] + slack


def gap_share(acceptance: Any, base: Any, optimum: Any) -> float | None:
    """Share of the gap from `base` to `optimum` that `acceptance` closes, as a ratio of sums.

    Parameters
    ----------
    acceptance, base, optimum : array_like (N,)
        Total acceptance at each position: of a rule, of recursive rejection sampling, and the optimum.

    Returns
    -------
    float or None
        None where the gap is 0 up to rounding. Below 0 for a rule that accepts less than the base.

    Examples
    --------
    >>> gap_share([0.5, 0.75], [0.5, 0.5], [0.5, 1.0])
    0.5
    >>> gap_share([0.5], [0.5], [0.5]) is None
    True
    """
    a, b, best = (np.asarray(values, dtype=np.float64) for values in (acceptance, base, optimum))
    gap = float((best - b).sum())
    return float((a - b).sum()) / gap if gap > REPLAY.exact_tolerance * len(b) else None


def acceptance_table(
    dump: Dump | str | PathLike[str],
    siblings: int | Sequence[int] = BOUNDS.siblings,
    rules: str | Rule | Sequence[str | Rule] = BOUNDS.rules,
    *,
    positions: str | slice | tuple[int | None, int | None] | None = None,
    method: Method = REPLAY.method,
    max_paths: int = REPLAY.max_paths,
    seed: int = REPLAY.seed,
    n_jobs: int = REPLAY.n_jobs,
    backend: Backend = REPLAY.backend,
    scheduler: str | None = None,
    progress: bool = False,
) -> GapReport:
    """Total acceptance of rules along a dump for several sibling counts, beside the optima.

    Parameters
    ----------
    dump : Dump, path or name
    siblings : int or sequence of int
    rules : str, Rule or sequence of them
        As in `resispec_sim.replay`. A rule is left blank at counts that it is not defined for.
    positions, method, max_paths, seed, n_jobs, backend, scheduler, progress
        As in `resispec_sim.replay`.

    Returns
    -------
    GapReport

    Raises
    ------
    InputError, RuleError, DumpError, WorkerError
        As `resispec_sim.replay` does.

    Examples
    --------
    >>> import tempfile
    >>> from resispec_sim.dumps import write_dump
    >>> target, draft, token_ids = [[0.0, 1.0, 2.0]] * 2, [[1.0, 0.0, 0.0]] * 2, [2, 1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_dump(folder, [target], [draft], [token_ids]) as dump:
    ...         report = acceptance_table(dump, 2, "specinfer,exact-shaping")
    >>> [round(figures["share"], 3) for figures in report.summary["counts"][0]["rules"]]
    [0.0, 0.673]
    """
    chosen, counts = as_rules(rules), as_counts(siblings)
    check_counts(chosen, counts)
    max_paths = check_whole("max_paths", max_paths, at_least=1)
    seed = check_whole("seed", seed, at_least=0)
    workers = check_workers(n_jobs, backend, scheduler)
    with contextlib.ExitStack() as stack:
        if not isinstance(dump, Dump):
            dump = stack.enter_context(contextlib.closing(open_dump(dump)))
        start, stop = as_range(positions, dump.n_positions)

        rows, partial = run_positions(
            _Bounds(chosen, counts, method, max_paths, seed),
            dump,
            start,
            stop,
            workers,
            position_progress(stop - start, "bounds") if progress else None,
        )
        about = dump.about()
    labels = [rule.label for rule in chosen]
    rows.sort(key=lambda r: (counts.index(r["siblings"]), r["position"], labels.index(r["rule"])))
    record = provenance(
        command="bounds",
        dump=about,
        rules=labels,
        siblings=list(counts),
        positions=[start, stop],
        method=method,
        max_paths=max_paths,
        seed=seed,
    )
    return GapReport(pd.DataFrame(rows), chosen, counts, about, record, partial)


@dataclass(frozen=True)
class _Bounds:
    """The rows of a position, for every sibling count."""

    rules: tuple[Rule, ...]
    siblings: tuple[int, ...]
    method: Method
    max_paths: int
    seed: int

    def __call__(self, dump: Dump, index: int, position: Position, /) -> list[dict[str, Any]]:
        place = {"position": index, "prompt": position.prompt_idx, "offset": position.offset}
        probs = dump.probs(position)
        return [
            place | row
            for n in self.siblings
            for row in _rows_at(
                *probs,
                n,
                self.rules,
                method=self.method,
                max_paths=self.max_paths,
                seed=seed_of(self.seed, index, n),
            )
        ]


def _rows_at(
    target_probs: NDArray[np.float64],
    draft_probs: NDArray[np.float64],
    n_siblings: int,
    rules: Sequence[Rule],
    *,
    method: Method,
    max_paths: int,
    seed: int,
) -> list[dict[str, Any]]:
    pair = target_probs, draft_probs
    rrs = exact_law(SpecInfer(), *pair, n_siblings)
    optima = {
        scheme: float(optimum_for(scheme, *pair, n_siblings))
        for scheme in ("iid", "without_replacement")
    }
    rows = []
    for rule in rules:
        if not is_defined(rule, n_siblings):
            continue
        if rule.siblings not in optima:
            optima[rule.siblings] = float(optimum_for(rule.siblings, *pair, n_siblings))
        law = exact_law(rule, *pair, n_siblings, method=method, max_paths=max_paths, seed=seed)
        low, high = law.total_interval
        rows.append(
            {
                "siblings": n_siblings,
                "rule": rule.label,
                "scheme": rule.siblings,
                "acceptance": float(np.sum(law.accepted)),
                "acceptance_low": float(low),
                "acceptance_high": float(high),
                "method": str(law.method),
                "rrs": float(np.sum(rrs.accepted)),
                "optimum_iid": optima["iid"],
                "optimum_wor": optima["without_replacement"],
                "optimum": optima[rule.siblings],
            }
        )
    return rows
