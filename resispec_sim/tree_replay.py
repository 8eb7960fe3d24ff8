"""Recorded trees under any rule for siblings drawn the same way: every acceptance coin is enumerated.

What a live decoder reports is one throw of the coins on one tree after another. On the recorded candidates
the throw can be replaced by its expectation: a node is reached with the product of the acceptances above
it, and a step yields one token more than it accepts. Only the candidates are a sample then.

For the rule that recorded, throw and expectation must agree. Given the candidates the difference has mean 0
in every step, and its variance follows from the same products: a step emits more than d tokens with
probability ``r_d``, the sum over the nodes of level d, so with ``n`` one less than its tokens
``E[n] = sum r_d``, ``E[n^2] = sum (2 d - 1) r_d``. Below a token that ends the text nothing is reached, and
as it is the last one emitted itself it counts in no ``r_d``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .errors import DumpError, RuleError
from .probs import logits_to_probs
from .progress import position_progress
from .provenance import provenance
from .replay import as_rules, split_rules
from .rules import RULES, PositionRule, Rule, parse_rule
from .tree_dumps import TreeDump, TreeStep
from .tree_replay_report import TreeReplay
from .trees import bootstrap_ratio

Floats = NDArray[np.float64]
SUMMARY_VERSION = 1
TWO_SIDED_95 = 1.959964  # quantile of the normal law


def node_reach(step: TreeStep, rule: PositionRule, to_probs: Callable[[Floats], Floats]) -> Floats:
    """Probability over the coins that each node of a recorded tree is accepted, (N,); the root's is 1.

    Parameters
    ----------
    step : TreeStep
    rule : PositionRule
        For siblings drawn as the recorded ones.
    to_probs : callable
        Logits (V,) to probabilities.
    """
    reach = np.zeros(len(step.tokens))
    reach[0] = 1.0
    for node, kids in enumerate(step.children):
        # the root is no token of this step, whatever it is
        ends = node > 0 and int(step.tokens[node]) in step.end_tokens
        if not kids or reach[node] == 0.0 or ends:
            continue
        target = to_probs(step.target_logits[node])
        draft = to_probs(step.draft_logits[node])
        decision = rule.decide(target, draft, [int(step.tokens[kid]) for kid in kids])
        reach[kids] = reach[node] * np.array([float(value) for value in decision.accepted])
    return reach


def level_reach(step: TreeStep, reach: Floats) -> Floats:
    """Probability that more than d tokens are emitted, for d = 1, 2, ... down to the deepest level."""
    depth = np.zeros(len(step.parents), dtype=np.int64)
    for node, parent in enumerate(step.parents):
        if parent >= 0:
            depth[node] = depth[parent] + 1
    levels = np.zeros(depth.max() + 1)
    goes_on = np.array([int(token) not in step.end_tokens for token in step.tokens])
    np.add.at(levels, depth, np.where(goes_on, reach, 0.0))
    return levels[1:]


def replay_trees(
    path_or_name: str | PathLike[str],
    rules: str | Rule | Sequence[str | Rule] | None = None,
    *,
    progress: bool = False,
) -> TreeReplay:
    """Tokens per step of rules on recorded trees: as recorded, and expected over all coins.

    Parameters
    ----------
    path_or_name : str or Path
        Folder of ``resispec decode --record``, or the name of a shipped dump of trees.
    rules : str, Rule or sequence, optional
        Comma list or rules, for siblings drawn as the recorded ones; ``"all"`` and ``"exact"`` are those
        of that kind. The recorded rule always comes first. Default: it alone.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    TreeReplay
        Steps whose tree or text was cut short count in none of its figures. A rule other than the
        recorded one is averaged over the steps that the recorded one led to.

    Raises
    ------
    RuleError
        A rule for siblings drawn otherwise, or of several levels at once.
    DumpError
        No such folder or name, or no step with its whole tree.
    ManifestError, ShardError
        A dump of another kind, or a damaged one.

    Examples
    --------
    >>> found = replay_trees("tiny-trees-t1.0", "exact-shaping")
    >>> found.summary["agreement"]["agrees"]
    True
    """
    dump = TreeDump(path_or_name)
    manifest = dump.manifest
    chosen = _rules(rules, manifest.rule, manifest.siblings)

    def to_probs(logits: Floats) -> Floats:
        return logits_to_probs(
            logits, temperature=manifest.temperature, top_k=manifest.top_k, top_p=manifest.top_p
        )

    rows: list[dict[str, Any]] = []
    levels: list[list[Floats]] = []
    bar = position_progress(len(dump), "replay trees", "steps") if progress else nullcontext()
    with bar as advance:
        for step in dump:
            if not step.cut:
                reached = [level_reach(step, node_reach(step, rule, to_probs)) for rule in chosen]
                rows.append(_row(step, chosen, reached))
                levels.append([_recorded_levels(step, reached[0]), *reached])
            if advance is not None:
                advance()
    if not rows:
        raise DumpError(
            f"{dump.path} holds no step with its whole tree: every recorded one was cut short by the end of "
            "its text; record longer texts"
        )
    frame = pd.DataFrame(rows)
    by_depth = [_mean_levels(found) for found in zip(*levels, strict=True)]
    summary = {
        "schema_version": SUMMARY_VERSION,
        "kind": "replay-trees",
        "dump": {"path": str(dump.path), "target": manifest.target, "draft": manifest.draft},
        "tree": manifest.tree,
        "siblings": manifest.siblings,
        "n_texts": int(frame["text"].nunique()),
        "n_steps": len(frame),
        "n_cut": len(dump) - len(frame),
        "recorded": {
            "rule": chosen[0].label,
            **_interval(frame, "tokens"),
            "by_depth": by_depth[0],
        },
        "rules": [
            {
                "rule": rule.label,
                "exact": rule.exact,
                **_interval(frame, f"expected {rule.label}"),
                "by_depth": found,
            }
            for rule, found in zip(chosen, by_depth[1:], strict=True)
        ],
        "agreement": _agreement(frame, chosen[0].label),
    }
    record = provenance(dump=str(path_or_name), rules=[rule.label for rule in chosen])
    return TreeReplay(frame=frame, summary=summary, provenance=record)


def _row(step: TreeStep, rules: Sequence[Rule], reached: Sequence[Floats]) -> dict[str, Any]:
    row: dict[str, Any] = {"text": step.text, "step": step.step, "n_nodes": len(step.tokens)}
    row["tokens"] = len(step.emitted)
    for rule, levels in zip(rules, reached, strict=True):
        row[f"expected {rule.label}"] = 1.0 + float(levels.sum())
    mean = float(reached[0].sum())
    square = float(((2 * np.arange(1, len(reached[0]) + 1) - 1) * reached[0]).sum())
    # rounding may leave an ulp below 0 where the coins are certain
    row["variance"] = max(square - mean**2, 0.0)
    return row


def _recorded_levels(step: TreeStep, like: Floats) -> Floats:
    return (np.arange(1, len(like) + 1) < len(step.emitted)).astype(np.float64)


def _mean_levels(steps: Iterable[Floats]) -> list[float]:
    found = list(steps)
    total = np.zeros(max(len(levels) for levels in found))
    for levels in found:
        total[: len(levels)] += levels
    return [float(value) for value in total / len(found)]


def _interval(frame: pd.DataFrame, column: str) -> dict[str, float]:
    texts = frame.groupby("text")[column]
    mean, low, high = bootstrap_ratio(texts.sum(), texts.count())
    return {"tokens_per_step": mean, "low": low, "high": high}


def _agreement(frame: pd.DataFrame, label: str) -> dict[str, Any]:
    difference = float((frame["tokens"] - frame[f"expected {label}"]).mean())
    stderr = math.sqrt(frame["variance"].sum()) / len(frame)
    return {
        "rule": label,
        "difference": difference,
        "stderr": stderr,
        "agrees": abs(difference) <= TWO_SIDED_95 * stderr + 1e-9,
    }


def _rules(
    rules: str | Rule | Sequence[str | Rule] | None, recorded: str, siblings: str
) -> list[PositionRule]:
    given = [] if rules is None else [rules] if isinstance(rules, str | Rule) else list(rules)
    chosen: dict[str, PositionRule] = {}
    for item in [parse_rule(recorded), *given]:
        for text in split_rules(item) if isinstance(item, str) else [item]:
            several = text in ("all", "exact")
            for rule in as_rules(text):
                if rule.siblings == siblings:
                    assert isinstance(rule, PositionRule)
                    chosen.setdefault(rule.label, rule)
                elif not several:
                    raise RuleError(
                        f"{rule.label} verifies siblings drawn {rule.siblings}; the recorded ones are "
                        f"{siblings}, as {', '.join(_names(siblings))} take them"
                    )
    return list(chosen.values())


def _names(siblings: str) -> list[str]:
    made = [kind() for kind in RULES.values() if issubclass(kind, PositionRule)]
    return [rule.name for rule in made if rule.siblings == siblings]
