"""The same laws from whole drafted trees: the definition, for small cases."""

from collections.abc import Iterator
from typing import Any

from ..errors import InputError
from ..rules.base import PositionRule, Rule
from ..rules.block import Block, verify_chain
from ..rules.siblings import Siblings, next_draw
from ..rules.traversal import DraftedTree, verify_tree
from .law import Emitted, SequenceLaw, add, assemble, check_arguments
from .models import SequenceModel, Text
from .shapes import Shape, n_drafted, n_levels

MAX_TREES = 1_000_000

Draft = tuple[list[list[int]], list[Text]]
"""Children and text of every node of a drafted tree; node 0 is the root."""


def enumerate_sequence_law(
    rule: str | Rule, model: SequenceModel, tree: Any, siblings: Siblings | None = None
) -> SequenceLaw:
    """As `resispec_sim.sequences.sequence_law`, over every drafted tree as a whole.

    Raises
    ------
    InputError
        Also if there may be more than a million drafted trees.
    """
    rule, shape, scheme = check_arguments(rule, model, tree, siblings)
    if model.vocab_size ** n_drafted(shape) > MAX_TREES:
        raise InputError(
            f"{n_drafted(shape)} drafted tokens out of {model.vocab_size} make more than {MAX_TREES:,} "
            "trees; use sequence_law"
        )
    emitted: Emitted = {}
    for weight, (children, texts) in drafted_trees(model, shape, scheme):
        for text, mass in _verified(rule, model, children, texts, scheme).items():
            add(emitted, text, weight * mass)
    return assemble(model, emitted, n_levels(shape))


def drafted_trees(
    model: SequenceModel, shape: Shape, scheme: Siblings
) -> Iterator[tuple[Any, Draft]]:
    """Every drafted tree with its probability; nodes in the order in which they are drawn."""
    # Each entry: nodes whose children are still to be drawn, as (node, shape of its next children).
    pending: list[tuple[Any, Draft, list[tuple[int, Shape]]]] = [
        (1, ([[]], [()]), [(0, shape)] if shape else [])
    ]
    while pending:
        weight, (children, texts), open_nodes = pending.pop()
        if not open_nodes:
            yield weight, (children, texts)
            continue
        (node, shapes), rest = open_nodes[0], open_nodes[1:]
        drawn = [texts[child][-1] for child in children[node]]
        law = next_draw(scheme, model.probs(texts[node])[1], drawn) if shapes else None
        if law is None:
            pending.append((weight, (children, texts), rest))
            continue
        new = len(texts)
        for token, q in enumerate(law.tolist()):
            if q > 0:
                grown = [[*row, new] if i == node else row for i, row in enumerate(children)]
                draft = ([*grown, []], [*texts, (*texts[node], token)])
                following = [(node, shapes[1:]), *rest, (new, shapes[0])]
                pending.append((weight * q, draft, following))


def _verified(
    rule: Rule, model: SequenceModel, children: list[list[int]], texts: list[Text], scheme: Siblings
) -> Emitted:
    """What is emitted, given the drafted tree."""
    rows = [model.probs(text) for text in texts]
    emitted: Emitted = {}
    if isinstance(rule, Block):
        chain = verify_chain([p for p, _ in rows], [q for _, q in rows[:-1]], texts[-1])
        for length, mass in enumerate(chain.lengths):
            add(emitted, texts[length], mass * chain.next_probs[length])
    elif isinstance(rule, PositionRule):
        reached: list[tuple[int, Any]] = [(0, 1)]
        for node, reach in reached:
            target, draft = rows[node]
            if not children[node]:
                add(emitted, texts[node], reach * target)
                continue
            decision = rule.decide(target, draft, [texts[child][-1] for child in children[node]])
            reached += [
                (child, reach * accepted)
                for child, accepted in zip(children[node], decision.accepted, strict=True)
                if accepted > 0
            ]
            add(emitted, texts[node], reach * (1 - sum(decision.accepted)) * decision.residual)
    else:
        tokens = [text[-1] if text else 0 for text in texts]
        law = verify_tree(
            DraftedTree(children, tokens, [p for p, _ in rows], [q for _, q in rows], scheme)
        )
        for node, text in enumerate(texts):
            add(emitted, text, law.accepted[node] * law.next_probs[node])
    return emitted
