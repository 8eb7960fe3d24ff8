"""Block beside token-wise verification along a dump: one walk over its positions, pooled figures."""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
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
from ..trees import MAX_DEPTH, bootstrap_ratio
from .chain import RULES, Start, step_starts


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
        about = dump.about()
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
            weights = step_starts([start.reached[rule] for start in segment])
            survival[rule] += estimates.sum(axis=0)
            tokens[rule] += float(weights @ (1 + estimates.sum(axis=1)))
            steps[rule] += float(weights.sum())
    return PromptSums(sum(map(len, segments)), survival, tokens, steps)


def _interval(top: Any, bottom: Any) -> dict[str, float]:
    mean, low, high = bootstrap_ratio(top, bottom)
    return {"mean": mean, "low": low, "high": high}
