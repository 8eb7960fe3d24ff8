"""Block verification: a drafted chain is judged as a whole, not token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from resispec_sim.checks import check_whole
from resispec_sim.errors import DistributionError, InputError
from resispec_sim.probs import check_probs
from resispec_sim.rules.base import Rule, normalised, to_array, total_of
from resispec_sim.rules.siblings import Siblings


@dataclass(frozen=True)
class Block(Rule):
    """Block verification of a chain of ``D`` drafted tokens.

    With ``p_i``, ``q_i`` the target and the draft of level ``i`` and ``x_i`` the drafted token:
    ``b_0 = 1``, ``b_i = min(1, b_{i-1} p_i(x_i) / q_i(x_i))``; ``S_i = sum (b_i p_{i+1} - q_{i+1})+``;
    ``h_i = S_i / (S_i + 1 - b_i)`` below the last level and ``h_D = b_D``. The accepted length is the
    last ``i`` whose coin falls below ``h_i``; the next token is drawn from ``norm((b_i p_{i+1} -
    q_{i+1})+)``, or from the target after a full block.

    Exact for every target and draft. The first ``i`` tokens are drafted as ``x^i`` and accepted with
    probability ``q(x^i) b_i(x^i)``, where token-wise rejection has ``prod min(1, p_j/q_j)`` for ``b_i``:
    each length is reached at least as often.

    References
    ----------
    Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", arXiv:2403.10444.

    Examples
    --------
    >>> Block().label, Block.siblings
    ('block', 'chain')
    """

    name: ClassVar[str] = "block"
    exact: ClassVar[bool] = True
    siblings: ClassVar[Siblings] = "chain"
    complexity: ClassVar[str] = "D V for a chain of D tokens"
    paper: ClassVar[str] = "Sun et al., arXiv:2403.10444"


class ChainLaw(NamedTuple):
    """What block verification does with one drafted chain of ``D`` tokens.

    Attributes
    ----------
    ceilings : ndarray (D + 1,)
        ``b_i``: probability that at least ``i`` tokens are accepted, over the coins and the rest of
        the draft.
    stops : ndarray (D + 1,)
        ``h_i``: probability of stopping at ``i`` once no longer prefix was accepted.
    lengths : ndarray (D + 1,)
        Law of the accepted length, the bonus token not counted.
    next_probs : ndarray (D + 1, V)
        Law of the token after each accepted length.
    """

    ceilings: np.ndarray
    stops: np.ndarray
    lengths: np.ndarray
    next_probs: np.ndarray


def verify_chain(target_probs: Any, draft_probs: Any, tokens: Sequence[int]) -> ChainLaw:
    """Law of the accepted length and of the next token, given the drafted chain.

    Parameters
    ----------
    target_probs : (D + 1, V) of Fraction or of float
        The target after 0, 1, ..., D drafted tokens.
    draft_probs : (D, V) of Fraction or of float
        What each token was drawn from.
    tokens : sequence of int, (D,)

    Returns
    -------
    ChainLaw
        Arrays of Fraction where every probability is one, else of float.

    Raises
    ------
    InputError
        If the shapes do not fit, or a token cannot have been drawn from its draft.
    DistributionError
        If a row is no distribution.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))
    >>> law = verify_chain([p, p, p], [q, q], [1, 0])
    >>> [str(mass) for mass in law.lengths]
    ['0', '1/2', '1/2']
    """
    target, draft = as_rows("target_probs", target_probs), as_rows("draft_probs", draft_probs)
    drafted = [check_whole("a drafted token", token, at_least=0) for token in tokens]
    depth, size = len(drafted), len(target[0]) if target else 0
    shapes = (len(target), len(draft)), {len(row) for row in [*target, *draft]}
    if shapes != ((depth + 1, depth), {size}) or depth < 1:
        raise InputError(
            f"{depth} tokens, {len(target)} target rows and {len(draft)} draft rows: a chain of D >= 1 "
            "tokens takes D + 1 target rows and D draft rows over one vocabulary"
        )
    for level, (row, token) in enumerate(zip(draft, drafted, strict=True)):
        if token >= size or not row[token] > 0:
            raise InputError(
                f"level {level}: token {token} has no probability in its draft, so it cannot have "
                "been drawn; give the rows that it was drawn from"
            )
    return _law_of_chain(target, draft, drafted)


def _law_of_chain(
    target: Sequence[np.ndarray], draft: Sequence[np.ndarray], tokens: Sequence[int]
) -> ChainLaw:
    depth = len(tokens)
    ceilings: list[Any] = [total_of(target[0][:0]) + 1]
    for i, token in enumerate(tokens):
        ceilings.append(next_ceiling(ceilings[i], target[i][token], draft[i][token]))
    stops, next_probs = [], []
    for i in range(depth):
        excess = np.maximum(ceilings[i] * target[i] - draft[i], 0)
        stops.append(stop_prob(total_of(excess), ceilings[i]))
        next_probs.append(normalised(excess, target[i]))
    stops.append(ceilings[depth])
    next_probs.append(target[depth])
    lengths: list[Any] = [None] * (depth + 1)
    reach = ceilings[0]  # 1, of the right kind
    for i in range(depth, -1, -1):
        lengths[i] = reach * stops[i]
        reach = reach * (1 - stops[i])
    return ChainLaw(np.array(ceilings), np.array(stops), np.array(lengths), np.stack(next_probs))


def next_ceiling(ceiling: Any, target_prob: Any, draft_prob: Any) -> Any:
    """``min(1, ceiling * p / q)`` at a token that was drawn from ``q``."""
    wanted = ceiling * target_prob
    return wanted / draft_prob if wanted < draft_prob else 1 + 0 * wanted


def stop_prob(excess: Any, ceiling: Any) -> Any:
    """``S / (S + 1 - ceiling)``, and 1 at a full ceiling, where ``S = 0`` makes it undefined.

    A prefix with full ceiling is never given up, and one with ``S = 0`` beside is never the end.
    """
    return ceiling if ceiling >= 1 else excess / (excess + (1 - ceiling))


def as_rows(name: str, rows: Any) -> list[np.ndarray]:
    """Checked rows of probabilities, of Fraction where they all are, else of float.

    Raises
    ------
    DistributionError
        If a row is negative somewhere or does not sum to 1.
    """
    found = [to_array(row) for row in rows]
    if any(row.dtype != object for row in found):
        return [check_probs(row.astype(np.float64), name) for row in found]
    for i, row in enumerate(found):
        if total_of(row) != 1 or min(row) < 0:
            raise DistributionError(
                f"{name}: row {i} sums to {total_of(row)} with least value {min(row, default=0)}; "
                "exact probabilities must be at least 0 and sum to 1"
            )
    return found
