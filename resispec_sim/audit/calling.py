"""Calls a verifier at given uniforms: which of them it reads, what it returns, how it fails."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from resispec_sim.errors import VerifierError

Floats = NDArray[np.float64]
Verifier = Callable[[Floats, Floats, NDArray[np.intp], Floats], tuple[Any, Any]]

_MAX_ENTRIES = 1 << 22  # of one (B, V) array

NONE = -1
"""Stands for no accepted sibling, and for the token of a call that failed."""

OUTSIDE = -2
"""Stands for a token that is none of the vocabulary: its probability under the target is 0."""


class BatchVerifier(Protocol):
    """A verifier of many positions at once."""

    tolerance: float
    top_uniform: float

    def batch(
        self, target: Floats, draft: Floats, ids: NDArray[np.intp], uniforms: Floats
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Tokens and accepted indices, -1 for none, both (B,)."""


class Seen(NamedTuple):
    """What one call showed: token (or `OUTSIDE`), accepted index (or `NONE`), uniforms read in order."""

    token: int
    accepted: int
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """A fault of a verifier besides the law of what it emits.

    Attributes
    ----------
    kind : str
        ``"raises"``, ``"bad result"``, ``"bad token"`` (none of the vocabulary), ``"bad accepted index"``,
        ``"edits its inputs"`` or ``"zero probability"`` (it emits a token that the target never does).
    message : str
    inputs : dict
        The arguments of the call, as lists; without the probabilities of large vocabularies.
    token : int or None
        The token of probability 0.
    at : float or None
        The only value of a uniform at which that token was seen; None if it has a mass.
    """

    kind: str
    message: str
    inputs: dict[str, list[float]]
    token: int | None = None
    at: float | None = None


class _Tracked(np.ndarray):
    """Uniforms that note which of them are read; whatever else is asked of them reads all."""

    places: tuple[int, ...]
    log: list[int]

    def __array_finalize__(self, origin: Any) -> None:
        self.places = getattr(origin, "places", ())
        self.log = getattr(origin, "log", [])

    def __getitem__(self, key: Any) -> Any:
        if (
            self.ndim == 1
            and isinstance(key, int | np.integer)
            and not -self.size <= key < self.size
        ):
            raise IndexError(_asks(int(key), self.size))
        value = np.ndarray.__getitem__(self, key)
        if type(key) is int:
            self.log.append(self.places[key])
            return value
        chosen = np.asarray(self.places)[key]
        if np.ndim(chosen) == 0:
            self.log.append(int(chosen))
            return value
        part = np.asarray(value).view(_Tracked)
        part.places, part.log = tuple(np.ravel(chosen).tolist()), self.log
        return part

    def __iter__(self) -> Any:
        for place, value in zip(self.places, np.asarray(self).tolist(), strict=True):
            self.log.append(place)
            yield value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(_read, inputs), **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return function(*_read(args), **options)


_QUIET = (
    "shape",
    "ndim",
    "size",
    "dtype",
    "view",
    "itemsize",
    "nbytes",
    "strides",
    "flags",
    "base",
)


def _reading(name: str) -> property:
    def get(self: _Tracked) -> Any:
        self.log.extend(self.places)
        return getattr(np.asarray(self), name)

    return property(get)


for _name in dir(np.ndarray):
    if not _name.startswith("__") and _name not in _QUIET:
        setattr(_Tracked, _name, _reading(_name))


_PAST_THE_END = re.compile(
    r"index (\d+) is out of bounds for (?:axis|dimension) \d+ with size (\d+)"
)


def _asks(index: int, n_uniforms: int) -> str:
    wanted = index + 1 if index >= 0 else -index
    return (
        f"asks for uniform {wanted} of {n_uniforms}: pass n_uniforms={wanted} / --uniforms {wanted}"
    )


def _raised(error: BaseException, n_uniforms: int) -> str:
    text = str(error)
    if isinstance(error, IndexError) and text.startswith("asks for uniform"):
        return text
    past = _PAST_THE_END.search(text)
    if past and int(past[2]) == n_uniforms:
        text += f" (if that is a uniform: {_asks(int(past[1]), n_uniforms)})"
    return f"raises {type(error).__name__}: {text}"


def _read(value: Any) -> Any:
    if isinstance(value, _Tracked):
        value.log.extend(value.places)
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_read, value))
    return value


@dataclass
class Caller:
    """Evaluates a verifier at one pair, and keeps what went wrong.

    Attributes
    ----------
    trusts_reads : bool
        Whether the uniforms that were seen to be read are taken for all that matter.
    """

    verify: Any
    target: Floats
    draft: Floats
    trusts_reads: bool = True
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    n_calls: int = 0
    n_failed: int = 0
    n_unusable: int = 0

    def __post_init__(self) -> None:
        self._p, self._q = self.target.copy(), self.draft.copy()
        self._originals = self._p.tobytes(), self._q.tobytes()
        # with large vocabularies the comparison would cost more than the call
        self._small = len(self.target) <= 256
        self.batched = hasattr(self.verify, "batch")
        self.top = getattr(self.verify, "top_uniform", 1 - 2.0**-53)

    def see(self, ids: Sequence[int], points: Floats) -> list[Seen]:
        """Call at each row of `points`, (m, U), with the same siblings."""
        if self.batched:
            return self._see_batch([ids] * len(points), points)
        siblings = np.array(ids, dtype=np.intp)
        original = siblings.tobytes()
        with np.errstate(all="ignore"):
            found = [self._call(ids, siblings, original, point) for point in points]
        if not self._small:
            self._check_inputs(ids, points[-1])
        return found

    def see_each(self, rows: Sequence[Sequence[int]], points: Floats) -> list[Seen]:
        """Call at each row of `points` with siblings of its own."""
        if not self.batched:
            return [self.see(ids, points[i : i + 1])[0] for i, ids in enumerate(rows)]
        found: list[Any] = [None] * len(rows)
        step = max(1, _MAX_ENTRIES // len(self.target))
        for length in {len(ids) for ids in rows}:
            chosen = [i for i, ids in enumerate(rows) if len(ids) == length]
            for start in range(0, len(chosen), step):
                part = chosen[start : start + step]
                seen = self._see_batch([rows[i] for i in part], points[part])
                for i, one in zip(part, seen, strict=True):
                    found[i] = one
        return found

    def _call(self, ids: Sequence[int], siblings: Any, original: bytes, point: Floats) -> Seen:
        uniforms = point.view(_Tracked)
        uniforms.places = tuple(range(len(point)))
        log: list[int] = []
        uniforms.log = log
        before = point.tobytes()
        self.n_calls += 1
        try:
            result = self.verify(self._p, self._q, siblings, uniforms)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code may even exit
            kind = type(error).__name__
            self._note("raises", kind, _raised(error, len(point)), ids, point)
            seen = NONE, NONE
            self.n_failed += 1
        else:
            seen = self._check(result, ids, point)
        if self._small:
            self._check_inputs(ids, point)
        if siblings.tobytes() != original or point.tobytes() != before:
            name = "sibling_ids" if siblings.tobytes() != original else "uniforms"
            self._note("edits its inputs", name, f"edits {name} in place", ids, point)
            siblings[:], point[:] = ids, np.frombuffer(before)
        reads = tuple(dict.fromkeys(log)) if self.trusts_reads and log else range(len(point))
        return Seen(*seen, tuple(reads))

    def _see_batch(self, ids: Sequence[Sequence[int]], points: Floats) -> list[Seen]:
        """Call a batch verifier once; row i has the siblings ``ids[i]``, all of one length."""
        rows = len(points)
        p, q = np.tile(self.target, (rows, 1)), np.tile(self.draft, (rows, 1))
        siblings = np.array(ids, dtype=np.intp).reshape(rows, -1)
        self.n_calls += rows
        order = tuple(range(points.shape[1]))
        try:
            tokens, accepted = self.verify.batch(p, q, siblings, points.copy())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code may even exit
            kind = type(error).__name__
            self._note("raises", kind, _raised(error, points.shape[1]), ids[0], points[0])
            self.n_failed += rows
            return [Seen(NONE, NONE, order)] * rows
        found = []
        for row, (token, idx) in enumerate(zip(tokens.tolist(), accepted.tolist(), strict=True)):
            result = token, None if idx == NONE else idx
            found.append(Seen(*self._check(result, ids[row], points[row]), order))
        return found

    def _check_inputs(self, ids: Sequence[int], point: Floats) -> None:
        if (self._p.tobytes(), self._q.tobytes()) != self._originals:
            name = "target_probs" if self._p.tobytes() != self._originals[0] else "draft_probs"
            self._note("edits its inputs", name, f"edits {name} in place", ids, point)
            self._p[:], self._q[:] = self.target, self.draft

    def _check(self, result: Any, ids: Sequence[int], point: Floats) -> tuple[int, int]:
        seen = self._judge(result, ids, point)
        self.n_unusable += seen[0] == NONE
        return seen

    def _judge(self, result: Any, ids: Sequence[int], point: Floats) -> tuple[int, int]:
        try:
            emitted, idx = result
        except (TypeError, ValueError):
            text = f"returns {result!r}, not (token, accepted_idx)"
            self._note("bad result", "shape", text, ids, point)
            self.n_failed += 1
            return NONE, NONE
        try:
            token = operator.index(emitted)
        except TypeError:
            text = f"returns the token {emitted!r}, which is no whole number"
            self._note("bad result", "token", text, ids, point)
            self.n_failed += 1
            return NONE, NONE
        if not 0 <= token < len(self.target):
            text = f"emits {token}, which is no token from 0 to {len(self.target) - 1}"
            self._note("bad token", "range", text, ids, point)
            return OUTSIDE, NONE
        try:
            accepted = NONE if idx is None else operator.index(idx)
        except TypeError:
            accepted = len(ids)
        if idx is not None and not (0 <= accepted < len(ids) and ids[accepted] == token):
            text = (
                "returns accepted_idx -1: return None where no sibling is accepted"
                if accepted == -1
                else f"says that sibling {idx!r} is accepted, but emits token {token}"
            )
            self._note("bad accepted index", "idx", text, ids, point)
            accepted = NONE
        if self.target[token] == 0:
            text = f"emits token {token}, whose target probability is 0"
            self._note("zero probability", str(token), text, ids, point, token)
        return token, accepted

    def _note(
        self,
        kind: str,
        detail: str,
        text: str,
        ids: Sequence[int],
        point: Floats,
        token: int | None = None,
    ) -> None:
        if (kind, detail) in self.findings:
            return
        inputs = {
            "target_probs": self.target.tolist(),
            "draft_probs": self.draft.tolist(),
            "sibling_ids": list(ids),
            "uniforms": np.asarray(point).tolist(),
        }
        if not self._small:
            inputs["target_probs"] = inputs["draft_probs"] = []
        self.findings[kind, detail] = Finding(kind, f"{text} {describe(inputs)}", inputs, token)

    def check_repeats(self, ids: Sequence[int], points: Floats) -> None:
        """Raise `VerifierError` unless the same arguments give the same result twice."""
        first, second = self.see(ids, points), self.see(ids, points)
        for point, one, two in zip(points, first, second, strict=True):
            if one[:2] != two[:2]:
                raise VerifierError(
                    f"the verifier returns {_pair(one)}, then {_pair(two)} for the same arguments: it "
                    f"draws from a generator of its own or keeps a state; use mode='sampling' "
                    f"(sibling_ids={list(ids)}, uniforms={point.tolist()})"
                )


def describe(inputs: dict[str, list[float]]) -> str:
    """The arguments of a call, as words for a message."""
    return "(" + ", ".join(f"{name}={values}" for name, values in inputs.items()) + ")"


def _pair(seen: Seen) -> tuple[int | None, int | None]:
    return tuple(None if x < 0 else x for x in seen[:2])  # type: ignore[return-value]
