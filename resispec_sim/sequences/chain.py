"""Accepted length of a drafted chain along recorded text: block beside token-wise verification.

With ``p``, ``q`` target and draft and ``x`` the recorded text, sampled from the target, let ``L_i =
prod_{j<=i} q_j(x_j)/p_j(x_j)``. Block verification drafts ``x^i`` and accepts at least ``i`` tokens with
probability ``q(x^i) b_i(x^i)``, so the text weighs it by ``G_i = L_i b_i``, and the recursion of ``b``
turns into ``G_i = min(G_{i-1}, L_i)``: the smallest ratio so far, never above 1. Summing the last
factor over all tokens instead of the recorded one gives the estimate of one start,

    ``P(length >= i) ~ sum_x min(L_{i-1} q_i(x), G_{i-1} p_i(x))``,

whose expectation over texts is exact. Token-wise rejection has ``prod_{j<i} min(1, q_j/p_j)(x_j)
sum_x min(q_i, p_i)(x)``, which is at most that, start by start. Given the text, ``P(length >= i) =
G_i`` (token-wise: the product), from which follows where steps start.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..config import REPLAY
from ..dumps import Dump, open_dump
from ..errors import InputError
from ..progress import position_progress
from ..provenance import provenance
from ..rules.base import total_of
from ..trees import MAX_DEPTH, bootstrap_ratio

RULES = ("rejection", "block")
LARGEST = (
    1e300  # likelihood ratios are cut here: they only ever enter as min(L q, G p) with G p <= 1
)


@dataclass
class Start:
    """A step that starts at some position of a text, followed through the positions after it.

    Attributes
    ----------
    estimates : dict of str to list
        By rule, unbiased estimates of ``P(accepted length >= i)``, i = 1, 2, ...
    reached : dict of str to list
        By rule, ``P(accepted length >= i)`` given the recorded text, i = 1, 2, ...
    """

    ratio: Any = 1
    least: Any = 1
    product: Any = 1
    estimates: dict[str, list[Any]] = field(default_factory=lambda: {rule: [] for rule in RULES})
    reached: dict[str, list[Any]] = field(default_factory=lambda: {rule: [] for rule in RULES})

    def advance(self, target: np.ndarray, draft: np.ndarray, token: int) -> None:
        """Take in one position: target and draft (V,), and the token recorded there.

        The target must give the token some probability.
        """
        self.estimates["rejection"].append(self.product * total_of(np.minimum(target, draft)))
        self.estimates["block"].append(
            total_of(np.minimum(self.ratio * draft, self.least * target))
        )
        p, q = target[token], draft[token]
        self.product = self.product * min(1, q / p)
        self.ratio = min(self.ratio * (q / p), LARGEST)
        self.least = min(self.least, self.ratio)
        self.reached["rejection"].append(self.product)
        self.reached["block"].append(self.least)


def follow(
    target_probs: Sequence[np.ndarray], draft_probs: Sequence[np.ndarray], tokens: Sequence[int]
) -> Start:
    """A step that starts at the first of these positions and drafts as many tokens as there are.

    Parameters
    ----------
    target_probs, draft_probs : (D, V) of Fraction or of float
        As object or float arrays.
    tokens : sequence of int, (D,)
        The recorded text.

    Returns
    -------
    Start

    Examples
    --------
    >>> p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    >>> [float(mass) for mass in follow([p, p], [q, q], [1, 0]).estimates["block"]]
    [0.75, 0.875]
    """
    start = Start()
    for target, draft, token in zip(target_probs, draft_probs, tokens, strict=True):
        start.advance(target, draft, token)
    return start


@dataclass(frozen=True, eq=False)
class PromptSums:
    """Sums over the starts of one prompt, by rule.

    Attributes
    ----------
    n_starts : int
    survival : dict of str to ndarray (D,)
        Sums of the estimates of ``P(accepted length >= i)``.
    tokens, steps : dict of str to float
        Tokens of the steps and number of steps, each start weighed by how often a step starts there.
    """

    n_starts: int
    survival: dict[str, NDArray[np.float64]]
    tokens: dict[str, float]
    steps: dict[str, float]


@dataclass(frozen=True, eq=False)
class ChainReport:
    """Accepted lengths of a drafted chain along a dump; every EAL counts the bonus token.

    Attributes
    ----------
    depth : int
        Drafted tokens per step ``D``.
    prompts : tuple of PromptSums
        One entry per prompt with at least one start.
    n_left_out : int
        Positions whose target gives the recorded token no probability: no step reaches over them.
    dump, provenance : dict
        What was measured, and by what.
    """

    depth: int
    prompts: tuple[PromptSums, ...]
    n_left_out: int
    dump: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def summary(self) -> dict[str, Any]:
        """The pooled figures as plain data; intervals come from a bootstrap over prompts."""
        counts = [prompt.n_starts for prompt in self.prompts]
        lengths = {
            rule: [float(prompt.survival[rule].sum()) for prompt in self.prompts] for rule in RULES
        }
        gains = np.subtract(lengths["block"], lengths["rejection"])
        return {
            "schema_version": 1,
            "kind": "chain",
            "dump": self.dump,
            "depth": self.depth,
            "confidence": REPLAY.confidence,
            "n_starts": sum(counts),
            "n_prompts": len(counts),
            "n_left_out": self.n_left_out,
            "rules": [
                {
                    "rule": rule,
                    "eal": _interval(np.add(lengths[rule], counts), counts),
                    "accepted_length": _interval(lengths[rule], counts),
                    "survival": [
                        _interval([p.survival[rule][i] for p in self.prompts], counts)
                        for i in range(self.depth)
                    ],
                    "tokens_per_step": _interval(
                        [prompt.tokens[rule] for prompt in self.prompts],
                        [prompt.steps[rule] for prompt in self.prompts],
                    ),
                }
                for rule in RULES
            ],
            "eal_gain": _interval(gains, counts),
        }


def block_eal(
    dump: Dump | str | PathLike[str], *, depth: int, progress: bool = False
) -> ChainReport:
    """Expected accepted length of block and of token-wise verification along a recorded dump.

    Both are measured on the same starts: every position with `depth` positions left in its prompt, at
    the temperature, top-k and top-p that the dump was sampled with.

    Parameters
    ----------
    dump : Dump, path or name
        An open dump stays open; a path or the name of a shipped dump is opened and closed here.
    depth : int
        Drafted tokens per step, 1 to 64.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    ChainReport

    Raises
    ------
    InputError
        If `depth` is out of its range, or no prompt has that many positions.
    DumpError
        If the dump is missing, incomplete or altered.

    Examples
    --------
    >>> import tempfile
    >>> from resispec_sim.dumps import write_dump
    >>> target, draft = np.log([[1/3, 2/3]] * 2), np.log([[2/3, 1/3]] * 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_dump(folder, [target], [draft], [[0, 0]], dtype="float32") as dump:
    ...         report = block_eal(dump, depth=2)
    >>> [round(rule["eal"]["mean"], 4) for rule in report.summary["rules"]]
    [2.3333, 2.6667]
    """
    depth = check_whole("depth", depth, at_least=1)
    if depth > MAX_DEPTH:
        raise InputError(f"depth is {depth}: a chain may have at most {MAX_DEPTH} drafted tokens")
    with contextlib.ExitStack() as stack:
        if not isinstance(dump, Dump):
            dump = stack.enter_context(contextlib.closing(open_dump(dump)))
        longest = max(dump.positions_per_prompt)
        if longest < depth:
            raise InputError(
                f"depth is {depth}, but no prompt of this dump has more than {longest} positions; "
                f"use a depth of at most {longest}"
            )
        advance = stack.enter_context(
            position_progress(dump.n_positions, label="chain")
            if progress
            else contextlib.nullcontext(lambda: None)
        )
        walk = _Walk(depth)
        for prompt, rows in _rows(dump):
            walk.take(prompt, rows)
            advance()
        prompts = walk.finish()
        about = {
            "name": dump.path.resolve().name,
            "vocab_size": dump.vocab_size,
            "n_prompts": dump.n_prompts,
            "n_positions": dump.n_positions,
            "temperature": dump.temperature,
            "top_k": dump.top_k,
            "top_p": dump.top_p,
        }
    if not prompts:
        raise InputError(
            f"no prompt has {depth} consecutive positions whose target gives the recorded token "
            "some probability; use a smaller depth"
        )
    record = provenance(command="chain", dump=about, depth=depth, rules=list(RULES))
    return ChainReport(depth, prompts, walk.n_left_out, about, record)


def _rows(dump: Dump) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray, int]]]:
    for position in dump.iter_positions():
        yield position.prompt_idx, (*dump.probs(position), position.token_id)


class _Walk:
    """Follows all starts at once, so that each position is read once."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.n_left_out = 0
        self._prompt: int | None = None
        self._following: deque[Start] = deque()
        self._segment: list[Start] = []
        self._segments: dict[int, list[list[Start]]] = {}

    def take(self, prompt: int, rows: tuple[np.ndarray, np.ndarray, int]) -> None:
        """Take in the next position of the dump."""
        if prompt != self._prompt:
            self._cut()
            self._prompt = prompt
        target, draft, token = rows
        if not target[token] > 0:
            self.n_left_out += 1
            self._cut()
            return
        start = Start()
        self._segment.append(start)
        self._following.append(start)
        for start in self._following:
            start.advance(target, draft, token)
        if len(self._following) == self.depth:
            self._following.popleft()

    def finish(self) -> tuple[PromptSums, ...]:
        """The sums of every prompt with a start."""
        self._cut()
        return tuple(_sums(segments, self.depth) for segments in self._segments.values())

    def _cut(self) -> None:
        """End a stretch of consecutive positions; the starts with too few left are dropped."""
        n_starts = len(self._segment) - self.depth + 1
        if n_starts > 0 and self._prompt is not None:
            self._segments.setdefault(self._prompt, []).append(self._segment[:n_starts])
        self._segment = []
        self._following.clear()


def _sums(segments: list[list[Start]], depth: int) -> PromptSums:
    survival = {rule: np.zeros(depth) for rule in RULES}
    tokens, steps = dict.fromkeys(RULES, 0.0), dict.fromkeys(RULES, 0.0)
    for segment in segments:
        for rule in RULES:
            estimates = np.array([start.estimates[rule] for start in segment], dtype=np.float64)
            weights = _step_starts([start.reached[rule] for start in segment])
            survival[rule] += estimates.sum(axis=0)
            tokens[rule] += float(weights @ (1 + estimates.sum(axis=1)))
            steps[rule] += float(weights.sum())
    return PromptSums(sum(map(len, segments)), survival, tokens, steps)


def _step_starts(reached: list[list[float]]) -> NDArray[np.float64]:
    """Probability that a step starts at each of consecutive positions, (n,); one does at the first.

    `reached` holds ``P(length >= i)`` given the text, i = 1..D, by start. A step of accepted length
    ``i`` is followed by one that starts ``i + 1`` positions later.
    """
    starts = np.zeros(len(reached))
    starts[0] = 1.0
    for t, at_least in enumerate(reached):
        lengths = -np.diff([1.0, *at_least, 0.0])
        following = starts[t + 1 : t + 1 + len(lengths)]
        following += starts[t] * lengths[: len(following)]
    return starts


def _interval(top: Any, bottom: Any) -> dict[str, float]:
    mean, low, high = bootstrap_ratio(top, bottom)
    return {"mean": mean, "low": low, "high": high}
