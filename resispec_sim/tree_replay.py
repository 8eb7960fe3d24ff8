"""Recorded trees under any rule for siblings drawn the same way: every acceptance coin is enumerated.

What a live decoder reports is one throw of the coins on one tree after another. On the recorded candidates
the throw can be replaced by its expectation: a node is reached with the product of the acceptances above
it, and a step yields one token more than it accepts. Only the candidates are a sample then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DumpError, RuleError
from .probs import logits_to_probs
from .rules import PositionRule, Rule, parse_rule
from .tree_dumps import TreeDump, TreeStep
from .trees import bootstrap_ratio

Floats = NDArray[np.float64]


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
        if not kids or reach[node] == 0.0:
            continue
        target = to_probs(step.target_logits[node])
        draft = to_probs(step.draft_logits[node])
        decision = rule.decide(target, draft, [int(step.tokens[kid]) for kid in kids])
        reach[kids] = reach[node] * np.array([float(value) for value in decision.accepted])
    return reach


def replay_trees(
    path: str | Path,
    rules: str | Sequence[str | Rule] | None = None,
    *,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Tokens per step of rules on recorded trees.

    Parameters
    ----------
    path : str or Path
        Folder of ``resispec decode --record``.
    rules : str or sequence, optional
        Comma list or rules, for siblings drawn as the recorded ones. Default: the recorded rule.
    advance : callable
        Called once per step.

    Returns
    -------
    dict
        ``live``: tokens per step as it happened; ``rules``: for every rule its expectation over the coins
        on the same candidates. Each with a 95 % bootstrap interval over texts, which is NaN with one
        text. ``by_depth``: mean accepted nodes per level. Steps that were cut count in neither. The
        steps start where the *recorded* rule left them, so another rule's figure is its mean over those
        contexts.

    Raises
    ------
    RuleError
        A rule for siblings drawn otherwise.
    DumpError
        A folder without a whole step, or a damaged file.
    """
    dump = TreeDump(path)
    manifest = dump.manifest
    chosen = _rules(rules if rules is not None else [manifest.rule], manifest.siblings)

    def to_probs(logits: Floats) -> Floats:
        return logits_to_probs(
            logits, temperature=manifest.temperature, top_k=manifest.top_k, top_p=manifest.top_p
        )

    live: dict[int, list[float]] = {}
    sums: dict[str, dict[int, float]] = {rule.label: {} for rule in chosen}
    depths: dict[str, Floats] = {rule.label: np.zeros(0) for rule in chosen}
    n_steps = 0
    for step in dump:
        advance()
        if step.cut:
            continue
        n_steps += 1
        live.setdefault(step.text, []).append(float(len(step.emitted)))
        depth = _depths(step)
        for rule in chosen:
            reach = node_reach(step, rule, to_probs)
            by_text = sums[rule.label]
            by_text[step.text] = by_text.get(step.text, 0.0) + float(reach.sum())
            levels = np.bincount(depth, weights=reach)
            known = depths[rule.label]
            total = np.zeros(max(len(known), len(levels)))
            total[: len(known)] += known
            total[: len(levels)] += levels
            depths[rule.label] = total
    if not n_steps:
        raise DumpError(
            f"{dump.path} holds no step with its whole tree: every recorded one was cut short by the end of "
            "its text; record longer texts"
        )
    counts = {text: len(tokens) for text, tokens in live.items()}
    return {
        "path": str(dump.path),
        "tree": manifest.tree,
        "recorded_rule": manifest.rule,
        "siblings": manifest.siblings,
        "n_texts": len(counts),
        "n_steps": n_steps,
        "n_cut": len(dump) - n_steps,
        "live": _interval({text: sum(tokens) for text, tokens in live.items()}, counts),
        "rules": {label: _interval(found, counts) for label, found in sums.items()},
        "by_depth": {label: (total[1:] / n_steps).tolist() for label, total in depths.items()},
    }


def _rules(rules: str | Sequence[str | Rule], siblings: str) -> list[PositionRule]:
    names = rules.split(",") if isinstance(rules, str) else list(rules)
    chosen = []
    for name in names:
        rule = parse_rule(name)
        if not isinstance(rule, PositionRule) or rule.siblings != siblings:
            raise RuleError(
                f"{rule.label} verifies siblings drawn {rule.siblings}; the recorded ones are {siblings}"
            )
        chosen.append(rule)
    return chosen


def _depths(step: TreeStep) -> NDArray[np.int64]:
    depth = np.zeros(len(step.parents), dtype=np.int64)
    for node, parent in enumerate(step.parents):
        if parent >= 0:
            depth[node] = depth[parent] + 1
    return depth


def _interval(sums: dict[int, float], counts: dict[int, int]) -> dict[str, float]:
    texts = sorted(counts)
    mean, low, high = bootstrap_ratio([sums[t] for t in texts], [counts[t] for t in texts])
    return {"tokens_per_step": mean, "low": low, "high": high}
