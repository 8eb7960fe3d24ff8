"""Two rules on one dump, or two dumps under one rule, with an interval of the difference."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .config import REPLAY
from .dumps import Dump, open_dump
from .errors import InputError
from .pooling import pooled_mean, tree_sums
from .provenance import provenance
from .replay import as_counts, as_rules, replay
from .report import Report, dumps
from .rules import Rule
from .trees import CompleteTree

Figures = dict[str, Any]
Sums = NDArray[np.float64]
Source = Dump | str | PathLike[str]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Side A minus side B.

    Attributes
    ----------
    names : tuple of str
        How A and B are called: rules on one dump, or dumps.
    frames : tuple of DataFrame
        The rows of each side, as in `resispec_sim.report.Report.frame`.
    n_siblings : int
    paired : bool
        Whether the same prompts are resampled on both sides.
    pairing : str
        Why, in words.
    n_levels : int
        Drafted levels of the tree behind the accepted length.
    without_eal : str or None
        Why there is no accepted length.
    partial : bool
        Whether a run was interrupted: then only positions that both sides have are compared.
    provenance : dict
    """

    names: tuple[str, str]
    frames: tuple[pd.DataFrame, pd.DataFrame]
    n_siblings: int
    paired: bool
    pairing: str
    n_levels: int
    without_eal: str | None
    partial: bool
    provenance: Figures

    @cached_property
    def summary(self) -> Figures:
        """Per figure the values of both sides, the difference and its interval, as plain data."""
        return {
            "schema_version": 1,
            "kind": "comparison",
            "partial": self.partial,
            "a": self.names[0],
            "b": self.names[1],
            "siblings": self.n_siblings,
            "paired": self.paired,
            "pairing": self.pairing,
            "confidence": REPLAY.confidence,
            "n_positions": [len(frame) for frame in self.frames],
            "n_prompts": [int(frame["prompt"].nunique()) for frame in self.frames],
            "figures": self.figures,
            "words": self.words,
        }

    @cached_property
    def figures(self) -> dict[str, Figures]:
        """By name: ``acceptance``, ``accepted_1`` .., ``eal``, ``kl`` (nats), ``tv``.

        Each is a dict of ``a``, ``b``, ``difference`` with ``low``, ``high`` and ``reason``, which says
        why a number is missing. The interval is a bootstrap over prompts, widened by the bounds or
        standard errors of the two sides.
        """
        names = ["acceptance", *(f"accepted_{i}" for i in range(1, self.n_siblings + 1))]
        found = {name: self._of_columns(name) for name in names}
        if self.without_eal is None:
            sides = [_eal_sums(frame, self.n_levels) for frame in self.frames]
            found["eal"] = difference(*sides, paired=self.paired)
            found["eal"]["n_not_exact"] = max(
                int((frame["tree_method"] != "exact").sum()) for frame in self.frames
            )
        else:
            found["eal"] = _nothing(self.without_eal)
        return found | {name: self._of_columns(name) for name in ("kl", "tv")}

    @property
    def words(self) -> str:
        """The difference of total acceptance as a sentence.

        Where it is not separable from 0, the sentence says so.
        """
        a, b = self.names
        value = self.figures["acceptance"]
        size, low, high = value["difference"], value["low"], value["high"]
        if low is None:
            return f"{a} accepts {_signed(size)} than {b} per position; {value['reason']}"
        if low <= 0.0 <= high:
            return (
                f"{a} and {b} cannot be told apart by total acceptance: the difference is {size:.4f} "
                f"[{low:.4f}, {high:.4f}] per position"
            )
        ends = sorted((abs(low), abs(high)))
        return (
            f"{a} accepts {_signed(size, f' [{ends[0]:.4f}, {ends[1]:.4f}]')} than {b} per position"
        )

    def to_json(self) -> str:
        """Figures and provenance as JSON; what does not exist is null."""
        return dumps({**self.summary, "provenance": self.provenance})

    def _of_columns(self, name: str) -> Figures:
        sides = [_column_sums(frame, name) for frame in self.frames]
        # infinite where the law has mass that the target lacks: no mean is left to compare
        if not all(np.isfinite(side).all() for side in sides):
            return _nothing("infinite at some position")
        spread = [pooled_mean(frame, name) for frame in self.frames]
        below = (spread[0]["mean"] - spread[0]["low"]) + (spread[1]["high"] - spread[1]["mean"])
        above = (spread[0]["high"] - spread[0]["mean"]) + (spread[1]["mean"] - spread[1]["low"])
        return difference(*sides, paired=self.paired, widen=(below, above))


def difference(
    a: Sums, b: Sums, *, paired: bool, widen: tuple[float, float] = (0.0, 0.0)
) -> Figures:
    """Difference of two ratios of sums over prompts, with a percentile bootstrap interval.

    Parameters
    ----------
    a, b : ndarray (N, 2)
        Per prompt the sum and the count of a figure.
    paired : bool
        Resample the same prompts on both sides; `a` and `b` then have equal lengths.
    widen : pair of float
        Added below and above the interval: what the sums themselves are uncertain by.

    Returns
    -------
    dict
        ``a``, ``b``, ``difference``, ``low``, ``high``, ``reason``.

    Examples
    --------
    >>> sums = np.array([[1.0, 2.0], [2.0, 2.0]])
    >>> found = difference(sums + [1.0, 0.0], sums, paired=True)
    >>> found["difference"], found["low"], found["high"]
    (0.5, 0.5, 0.5)
    """
    if paired:
        keep = (a[:, 1] > 0) & (b[:, 1] > 0)
        a, b = a[keep], b[keep]
    else:
        a, b = a[a[:, 1] > 0], b[b[:, 1] > 0]
    if not (len(a) and len(b)):
        return _nothing("no position is left to compare")
    values = [float(side[:, 0].sum() / side[:, 1].sum()) for side in (a, b)]
    found = {"a": values[0], "b": values[1], "difference": values[0] - values[1]}
    if min(len(a), len(b)) < 2:
        return found | {"low": None, "high": None, "reason": "one prompt: no interval"}
    rng = np.random.default_rng(REPLAY.bootstrap_seed)
    differences = np.empty(REPLAY.bootstrap_resamples)
    block = max(1, 1_000_000 // max(len(a), len(b)))  # bounds the memory of the drawn indices
    for start in range(0, len(differences), block):
        n = min(block, len(differences) - start)
        drawn_a = rng.integers(len(a), size=(n, len(a)))
        drawn_b = drawn_a if paired else rng.integers(len(b), size=(n, len(b)))
        differences[start : start + n] = _ratios(a, drawn_a) - _ratios(b, drawn_b)
    tail = (1.0 - REPLAY.confidence) / 2.0
    low, high = np.quantile(differences, [tail, 1.0 - tail])
    return found | {
        "low": float(low) - widen[0],
        "high": float(high) + widen[1],
        "reason": None,
    }


def compare(
    dump: Source,
    other: Source | None = None,
    *,
    rules: str | Rule | Sequence[str | Rule] | None = None,
    siblings: int = REPLAY.siblings,
    tree: str | CompleteTree = REPLAY.tree,
    **options: Any,
) -> Comparison:
    """Compare two rules on one dump, or two dumps under one rule.

    Parameters
    ----------
    dump, other : Dump, path or name
        Without `other`, `rules` names two rules; with it, one.
    rules : str, Rule or sequence of them, optional
        Default: SpecInfer and ResiSpec on one dump, SpecInfer on two.
    siblings : int
        One count; `resispec_sim.acceptance_table` takes several.
    tree : str or CompleteTree
        Shape behind the accepted length, complete: `resispec_sim.plan_trees` measures grow maps.
    **options
        ``positions``, ``temperatures`` (one), ``top_k``, ``top_p``, ``method``, ``max_paths``,
        ``seed``, ``n_jobs``, ``backend``, ``scheduler`` and ``progress``, as in `resispec_sim.replay`.

    Returns
    -------
    Comparison
        Two dumps are paired by prompt where their prompts agree, or, where none are recorded, their
        token ids; else the interval is that of two samples.

    Raises
    ------
    InputError, RuleError
        If the number of rules does not fit, or an argument is out of its range.
    DumpError
        If a dump is missing, incomplete or altered.

    Examples
    --------
    >>> import tempfile
    >>> from resispec_sim.dumps import write_dump
    >>> target, draft, ids = [[0.0, 1.0, 2.0]] * 2, [[1.0, 0.0, 0.0]] * 2, [2, 1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_dump(folder, [target] * 2, [draft] * 2, [ids] * 2) as dump:
    ...         found = compare(dump, rules="resispec,specinfer", siblings=2, tree="d2b2")
    >>> round(found.figures["acceptance"]["difference"], 3)
    0.07
    """
    wanted = 2 if other is None else 1
    chosen = as_rules(REPLAY.rules[:wanted] if rules is None else rules)
    if len(chosen) != wanted:
        what = "one dump compares two different rules" if wanted == 2 else "two dumps take one rule"
        raise InputError(
            f"rules are {', '.join(r.label for r in chosen)}, {len(chosen)} in all: {what}"
        )
    counts = as_counts(siblings)
    if len(counts) != 1:
        raise InputError(f"siblings is {siblings!r}: a comparison takes one count")
    for rule in chosen:
        rule.check_count(counts[0])
    with ExitStack() as stack:
        sources = [
            source if isinstance(source, Dump) else stack.enter_context(closing(open_dump(source)))
            for source in (dump, other)
            if source is not None
        ]
        reports = [
            replay(source, chosen, siblings=counts, tree=tree, **options) for source in sources
        ]
        if any(report.frame["temperature"].nunique() != 1 for report in reports):
            raise InputError("temperatures: a comparison takes one")
        if other is None:
            frames = [_of_rule(reports[0], rule) for rule in chosen]
            names = tuple(rule.label for rule in chosen)
            paired, pairing = True, "the same positions under both rules"
        else:
            frames = [_of_rule(report, chosen[0]) for report in reports]
            names = _names(reports)
            paired, pairing = _pairing(sources, frames)
    if paired and any(report.partial for report in reports):
        frames = _common(frames)
    context = reports[0].context
    return Comparison(
        names=(names[0], names[1]),
        frames=(frames[0], frames[1]),
        n_siblings=counts[0],
        paired=paired,
        pairing=pairing,
        n_levels=context.tree.n_levels,
        without_eal=_without_eal(reports, chosen),
        partial=any(report.partial for report in reports),
        provenance=provenance(
            command="compare", runs=[report.provenance["parameters"] for report in reports]
        ),
    )


def _of_rule(report: Report, rule: Rule) -> pd.DataFrame:
    return report.frame[report.frame["rule"] == rule.label].sort_values("position")


def _names(reports: Sequence[Report]) -> tuple[str, ...]:
    names = [report.dump["name"] for report in reports]
    return tuple(names) if names[0] != names[1] else (f"{names[0]} (A)", f"{names[1]} (B)")


def _pairing(sources: Sequence[Dump], frames: Sequence[pd.DataFrame]) -> tuple[bool, str]:
    if set(frames[0]["prompt"]) != set(frames[1]["prompt"]):
        return False, "unpaired: the two dumps cover different numbers of prompts"
    prompts = [
        [(prompt.text, tuple(prompt.token_ids or ())) for prompt in source.manifest.prompts]
        for source in sources
    ]
    if any(text or ids for text, ids in prompts[0] + prompts[1]):
        if prompts[0] == prompts[1]:
            return True, "paired by prompt: the recorded prompts agree"
        return False, "unpaired: the recorded prompts differ"
    tokens = [frame[["prompt", "offset", "token"]].to_numpy() for frame in frames]
    if np.array_equal(*tokens):
        return True, "paired by prompt: no prompts are recorded, the token ids agree"
    return False, "unpaired: no prompts are recorded, and the token ids differ"


def _common(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    keys = [list(zip(f["prompt"], f["offset"], strict=True)) for f in frames]
    both = set(keys[0]) & set(keys[1])
    return [f[[key in both for key in k]] for f, k in zip(frames, keys, strict=True)]


def _without_eal(reports: Sequence[Report], rules: Sequence[Rule]) -> str | None:
    for report in reports:
        undefined = report.context.undefined
        reasons = [*report.context.unavailable.values()]
        reasons += [undefined[rule.label] for rule in rules if rule.label in undefined]
        if reasons:
            return reasons[0]
    return None


def _column_sums(frame: pd.DataFrame, name: str) -> Sums:
    by_prompt = frame.groupby("prompt", sort=True)[name]
    return np.stack((by_prompt.sum().to_numpy(float), by_prompt.count().to_numpy(float)), axis=1)


def _eal_sums(frame: pd.DataFrame, n_levels: int) -> Sums:
    return np.array([sums[:2] for sums in tree_sums(frame, n_levels)], dtype=np.float64)


def _ratios(sums: Sums, drawn: NDArray[np.int64]) -> Sums:
    return sums[drawn, 0].sum(axis=1) / sums[drawn, 1].sum(axis=1)


def _nothing(reason: str) -> Figures:
    names = ("a", "b", "difference", "low", "high")
    return {**dict.fromkeys(names), "reason": reason}


def _signed(size: float, interval: str = "") -> str:
    return f"{abs(size):.4f}{interval} {'less' if size < 0 else 'more'}"
