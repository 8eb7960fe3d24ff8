"""The exact law of what a verifier emits over several drafted levels."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InputError, MassError, RuleError
from ..rules import parse_rule
from ..rules.base import PositionRule, Rule
from ..rules.block import Block, verify_chain
from ..rules.siblings import Siblings, next_draw, sibling_tuples
from ..rules.traversal import Node, Traversal, after_deletion, child_ceiling
from .models import SequenceModel, Text
from .shapes import Shape, as_shape, is_chain, n_levels

MAX_TEXTS = 100_000
MASS_TOLERANCE = 1e-9

Emitted = dict[Text, np.ndarray]
"""By accepted text: probability of accepting it and going on with each token, (V,)."""


@dataclass(frozen=True, eq=False)
class SequenceLaw:
    """What one step of a verifier emits, continued with the target to ``D + 1`` tokens.

    Attributes
    ----------
    output : dict of tuple to number
        Probability of each text of ``D + 1`` tokens.
    target : dict of tuple to number
        The same under the target. The verifier is exact on this model iff the two agree.
    lengths : ndarray (D + 1,)
        ``P(accepted length = i)``, the bonus token not counted.
    """

    output: dict[Text, Any]
    target: dict[Text, Any]
    lengths: np.ndarray

    @property
    def mean_accepted(self) -> Any:
        """Expected accepted length, the bonus token not counted."""
        return sum(i * mass for i, mass in enumerate(self.lengths.tolist()))

    @property
    def eal(self) -> Any:
        """Expected tokens per step: accepted ones and the bonus token."""
        return 1 + self.mean_accepted

    @cached_property
    def tv(self) -> Any:
        """Total variation distance between the output and the target."""
        return sum(abs(self.output[text] - p) for text, p in self.target.items()) / 2


def sequence_law(
    rule: str | Rule, model: SequenceModel, tree: Any, siblings: Siblings | None = None
) -> SequenceLaw:
    """Compute the law of what a verifier emits, over all drafts and all acceptance coins.

    Drafts are enumerated as they are reached: a verifier that goes through a tree depth first has not
    looked at later siblings yet, so drawing them later changes nothing. `enumerate_sequence_law` draws
    whole trees first.

    Parameters
    ----------
    rule : str or Rule
        ``block`` (a chain), ``traversal``, or a rule of one position, which is then applied at every
        level from the root on.
    model : SequenceModel
    tree : int, nested sequence, CompleteTree or grow map
        See `resispec_sim.sequences.as_shape`.
    siblings : str, optional
        How siblings are drawn. Default: as the rule of one position takes them, else ``"iid"``.

    Returns
    -------
    SequenceLaw
        Rationals where the model's rows are rationals.

    Raises
    ------
    InputError
        If a chain is needed and `tree` is none, or there are more than 100,000 texts.
    RuleError
        If the rule does not take such siblings.
    MassError
        If the computed law does not sum to 1.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> from resispec_sim.sequences import iid_model
    >>> model = iid_model((F(1, 3), F(2, 3)), (F(2, 3), F(1, 3)))
    >>> for name in ("block", "rejection"):
    ...     law = sequence_law(name, model, (1,))
    ...     print(name, law.mean_accepted, law.tv)
    block 11/9 0
    rejection 10/9 0
    """
    rule, shape, scheme = check_arguments(rule, model, tree, siblings)
    if isinstance(rule, Block):
        emitted = _of_block(model, n_levels(shape))
    elif isinstance(rule, Traversal):
        emitted = _of_traversal(model, shape, scheme)
    else:
        assert isinstance(rule, PositionRule)
        emitted = _of_position_rule(rule, model, shape, scheme)
    return assemble(model, emitted, n_levels(shape))


def check_arguments(
    rule: str | Rule, model: SequenceModel, tree: Any, siblings: Siblings | None
) -> tuple[Rule, Shape, Siblings]:
    """The rule, the nested shape and the scheme of the siblings; see `sequence_law` for errors."""
    rule, shape = _as_rule(rule), as_shape(tree)
    if isinstance(rule, Block) and not is_chain(shape):
        raise InputError(
            f"{rule.label} verifies a chain, but tree {tree!r} branches; use traversal"
        )
    if isinstance(rule, PositionRule):
        scheme = siblings or rule.siblings
        if scheme != rule.siblings:
            raise RuleError(f"{rule.label} takes siblings {rule.siblings!r}, not {scheme!r}")
    else:
        scheme = siblings or "iid"
        if scheme not in ("iid", "without_replacement", "topk"):
            raise RuleError(
                f"siblings {scheme!r} of a tree are unknown; use iid, without_replacement or topk"
            )
    n_texts = model.vocab_size ** (n_levels(shape) + 1)
    if n_texts > MAX_TEXTS:
        raise InputError(
            f"{model.vocab_size} tokens and {n_levels(shape)} drafted levels make {n_texts:,} texts, "
            f"more than {MAX_TEXTS:,}; use fewer tokens or levels"
        )
    return rule, shape, scheme


def assemble(model: SequenceModel, emitted: Emitted, depth: int) -> SequenceLaw:
    """Continue what was emitted with the target up to ``depth + 1`` tokens; check its mass."""
    output: dict[Text, Any] = defaultdict(lambda: 0)
    lengths: list[Any] = [0] * (depth + 1)
    for text, mass in emitted.items():
        lengths[len(text)] += sum(mass.tolist())
        for token, weight in enumerate(mass.tolist()):
            for longer, p in texts(model, depth + 1, (*text, token)):
                output[longer] += weight * p
    total = sum(lengths)
    if abs(total - 1) > MASS_TOLERANCE:
        raise MassError(f"the law of the emitted texts sums to {float(total)}, not 1")
    target = dict(texts(model, depth + 1))
    for text in target:
        output[text] += 0
    return SequenceLaw(dict(output), target, np.array(lengths))


def texts(model: SequenceModel, length: int, start: Text = ()) -> Iterator[tuple[Text, Any]]:
    """Every continuation of `start` to `length` tokens, with its probability under the target."""
    if len(start) == length:
        yield start, 1
        return
    for token, p in enumerate(model.probs(start)[0].tolist()):
        for text, rest in texts(model, length, (*start, token)):
            yield text, p * rest


def add(emitted: Emitted, text: Text, mass: np.ndarray) -> None:
    """Add `mass` (V,) to what is emitted after `text`."""
    emitted[text] = emitted[text] + mass if text in emitted else mass


def _as_rule(rule: str | Rule) -> Rule:
    # Rules over several levels have no options, so their names say all.
    multi_level: dict[str, Rule] = {"block": Block(), "traversal": Traversal()}
    return multi_level[rule] if isinstance(rule, str) and rule in multi_level else parse_rule(rule)


def _of_block(model: SequenceModel, depth: int) -> Emitted:
    emitted: Emitted = {}
    drafts: list[tuple[Text, Any]] = [((), 1)]
    for _ in range(depth):
        drafts = [
            ((*text, token), weight * q)
            for text, weight in drafts
            for token, q in enumerate(model.probs(text)[1].tolist())
            if q > 0
        ]
    for text, weight in drafts:
        rows = [model.probs(text[:i]) for i in range(depth + 1)]
        law = verify_chain([p for p, _ in rows], [q for _, q in rows[:-1]], text)
        for length, mass in enumerate(law.lengths):
            add(emitted, text[:length], weight * mass * law.next_probs[length])
    return emitted


def _of_traversal(model: SequenceModel, shape: Shape, scheme: Siblings) -> Emitted:
    def visit(shape: Shape, text: Text, ceiling: Any) -> tuple[Emitted, Any]:
        """Law of a subtree, and the probability that nothing in it is accepted."""
        target, draft = model.probs(text)
        emitted: Emitted = {}
        first = next_draw(scheme, draft, ())
        states: list[tuple[Any, Node, Text]] = [(1, Node(ceiling, target, first), ())]
        for child in shape:
            following: dict[Text, tuple[Any, Node, Text]] = {}
            for weight, node, drawn in states:
                # Drawn from the model, not from what the verifier believes.
                law = next_draw(scheme, draft, drawn)
                if law is None:  # nothing is left to draw: the node has fewer children
                    following[drawn] = weight, node, drawn
                    continue
                for token in np.flatnonzero(law > 0).tolist():
                    found, failed = visit(child, (*text, token), child_ceiling(node, token))
                    for longer, mass in found.items():
                        add(emitted, longer, weight * law[token] * mass)
                    # Independent siblings leave the same state whatever was drawn.
                    after = () if scheme == "iid" else (*drawn, token)
                    before = following[after][0] if after in following else 0
                    state = after_deletion(node, next_draw(scheme, draft, after))
                    following[after] = before + weight * law[token] * failed, state, after
            states = list(following.values())
        failed = 0
        for weight, node, _ in states:
            add(emitted, text, weight * node.ceiling * node.target)
            failed = failed + weight * (1 - node.ceiling)
        return emitted, failed

    one = model.probs(())[0].sum()
    return visit(shape, (), one / one)[0]


def _of_position_rule(
    rule: PositionRule, model: SequenceModel, shape: Shape, scheme: Siblings
) -> Emitted:
    known: dict[tuple[Shape, Text], Emitted] = {}

    def visit(shape: Shape, text: Text) -> Emitted:
        if (shape, text) in known:
            return known[shape, text]
        target, draft = model.probs(text)
        emitted: Emitted = {}
        if not shape:
            emitted[text] = target
        else:
            for weight, drawn in sibling_tuples(scheme, draft, len(shape)):
                decision = rule.decide(target, draft, drawn)
                for child, token, accepted in zip(shape, drawn, decision.accepted, strict=False):
                    if accepted > 0:
                        for longer, mass in visit(child, (*text, token)).items():
                            add(emitted, longer, weight * accepted * mass)
                rejected = 1 - sum(decision.accepted)
                add(emitted, text, weight * rejected * decision.residual)
        known[shape, text] = emitted
        return emitted

    return visit(shape, ())
