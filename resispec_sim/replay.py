"""Replays a recorded dump: the exact laws of verification rules at every recorded position."""

import contextlib
import re
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TypeVar, get_args

import numpy as np
import pandas as pd

from .checks import as_list, check_number, check_whole
from .config import REPLAY
from .dumps import Dump, open_dump
from .engine.law import check_engine, check_tolerance
from .errors import InputError, RuleError
from .measure import Plan, Row, is_defined
from .parallel import check_workers, run_positions
from .pooling import EalContext
from .progress import position_progress
from .provenance import provenance
from .report import Report
from .rules import RULES, PositionRule, Rule, parse_rule
from .trees import CompleteTree, parse_tree
from .types import Backend, Device, Method
from .work import ReplayWork

_T = TypeVar("_T")


def replay(
    dump: Dump | str | PathLike[str],
    rules: str | Rule | Sequence[str | Rule] = REPLAY.rules,
    siblings: int | Sequence[int] = REPLAY.siblings,
    temperatures: float | Sequence[float] | None = None,
    tree: str | CompleteTree = REPLAY.tree,
    positions: str | slice | tuple[int | None, int | None] | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    method: Method = REPLAY.method,
    max_paths: int = REPLAY.max_paths,
    tolerance: float = REPLAY.tolerance,
    device: Device = "cpu",
    seed: int = REPLAY.seed,
    n_jobs: int = REPLAY.n_jobs,
    backend: Backend = REPLAY.backend,
    scheduler: str | None = None,
    progress: bool = False,
) -> Report:
    """Compute the exact laws of rules along a recorded dump and pool them into a report.

    Parameters
    ----------
    dump : Dump, path or name
        An open dump stays open; a path or the name of a shipped dump is opened and closed here.
    rules : str, Rule or sequence of them
        Names with options, such as ``"resispec:fill=water"``, or instances; ``"exact"`` stands for
        every rule of one position that is exact, ``"all"`` for all of them.
    siblings : int or sequence of int
        Sibling counts of the per-position figures. A rule is left out at a count that it is not
        defined for, with a note.
    temperatures : float or sequence of float, optional
        Default: the temperature that the dump was sampled at. At another one there is no expected
        accepted length, since the recorded text was not sampled from that target.
    tree : str or CompleteTree
        Shape behind the expected accepted length; its branching is the sibling count there.
    positions : str, slice or pair, optional
        ``"A:B"``: positions A to B - 1 of the dump.
    top_k, top_p : optional
        Default: the dump's own; ``top_k=0`` and ``top_p=1`` turn them off.
    method : {"auto", "exact", "certified", "sampled"}
    max_paths : int
        Path-steps per position that may be walked one by one; many more are summed at once.
    tolerance : float
        Width of a bounded acceptance that suffices; see `exact_law`.
    device : {"cpu", "cuda"}
        Where laws are computed; ``"cuda"`` takes one position after another to the current GPU.
    seed : int
        Seed of everything random; a position's streams depend on it and on the position only.
    n_jobs : int
        Threads or processes; ``-1`` is one per core. Not used by ``"dask"``, which takes all workers
        of the cluster. The report depends on none of the three, to the last bit.
    backend : {"threads", "processes", "dask"}
        Where positions are computed. Workers of the last two open the dump themselves, under the
        same path. A worker that is killed costs time only: its positions are computed again.
    scheduler : str, optional
        Address of the Dask scheduler, such as ``"tcp://host:8786"``; default: the client that is
        active in this process.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    Report
        Interrupted by Ctrl-C, the positions computed so far, with ``partial`` set.

    Raises
    ------
    InputError, RuleError
        If an argument is out of its range, a rule verifies several levels at once, or none is defined
        for any of the sibling counts.
    DumpError
        If the dump is missing, incomplete or altered.
    WorkerError
        If workers cannot be reached, cannot read the dump, or die over the same positions again and
        again; if the extra ``cluster`` is missing.
    KeyboardInterrupt
        If there was nothing computed to keep.

    Examples
    --------
    >>> import tempfile
    >>> from resispec_sim.dumps import write_dump
    >>> target, draft, token_ids = [[0.0, 1.0, 2.0]] * 2, [[1.0, 0.0, 0.0]] * 2, [2, 1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_dump(folder, [target], [draft], [token_ids]) as dump:
    ...         report = replay(dump, siblings=2, tree="d2b2")
    >>> [(figures["rule"], figures["verdict"]) for figures in report.summary["groups"][0]["rules"]]
    [('specinfer', 'exact'), ('resispec[capacity,minimal]', 'biased')]
    """
    plan = Plan(
        rules=as_rules(rules),
        siblings=as_counts(siblings),
        tree=_as_tree(tree),
        method=method,
        max_paths=check_whole("max_paths", max_paths, at_least=1),
        tolerance=check_tolerance(tolerance),
        device=device,
        seed=check_whole("seed", seed, at_least=0),
    )
    _check_device(device)
    left_out = check_counts(plan.rules, plan.siblings)
    workers = check_workers(n_jobs, backend, scheduler)
    with contextlib.ExitStack() as stack:
        if not isinstance(dump, Dump):
            dump = stack.enter_context(contextlib.closing(open_dump(dump)))
        heat = _as_temperatures(temperatures, dump.temperature)
        unavailable = _without_eal(dump, heat, top_k, top_p)
        start, stop = as_range(positions, dump.n_positions)

        work = ReplayWork(
            plan, heat, top_k, top_p, with_tree=tuple(t not in unavailable for t in heat)
        )
        rows, partial = run_positions(
            work,
            dump,
            start,
            stop,
            workers,
            position_progress(stop - start) if progress else None,
        )
        about = dump.about()
        record = provenance(
            command="replay",
            dump=about,
            rules=[rule.label for rule in plan.rules],
            siblings=list(plan.siblings),
            temperatures=list(heat),
            tree=str(plan.tree),
            positions=[start, stop],
            top_k=top_k if top_k is not None else dump.top_k,
            top_p=top_p if top_p is not None else dump.top_p,
            method=method,
            max_paths=plan.max_paths,
            tolerance=plan.tolerance,
            seed=plan.seed,
        )
    frame = _as_frame(rows, plan, heat)
    context = EalContext(
        plan.tree,
        {rule.label: rule.exact for rule in plan.rules},
        unavailable,
        {
            rule.label: f"not defined for {plan.tree.branching} siblings"
            for rule in plan.rules
            if not is_defined(rule, plan.tree.branching)
        },
    )
    return Report(
        frame=frame,
        context=context,
        dump=about,
        provenance=record,
        partial=partial,
        n_planned=stop - start,
        left_out=left_out,
    )


def _check_device(device: str) -> None:
    if device not in get_args(Device):
        raise InputError(f"device is {device!r}; use one of {', '.join(get_args(Device))}")
    if device == "cuda":
        from .engine.gpu.devices import require_gpu

        require_gpu()  # before the work, so that the error comes first


def check_counts(rules: Sequence[Rule], siblings: Sequence[int]) -> tuple[str, ...]:
    """What is not defined and left out, in words; `RuleError` if that is everything."""
    left_out = [
        f"{rule.label} is left out at {n} sibling{'s' if n > 1 else ''}: it is defined for "
        f"{rule.only_count} only"
        for n in siblings
        for rule in rules
        if not is_defined(rule, n)
    ]
    if len(left_out) == len(siblings) * len(rules):
        raise RuleError("nothing is left to compute: " + "; ".join(left_out))
    return tuple(left_out)


def _as_frame(rows: list[Row], plan: Plan, heat: Sequence[float]) -> pd.DataFrame:
    """Sort by position and by the order in which the caller named rules, counts and temperatures."""
    labels = [rule.label for rule in plan.rules]
    rows = sorted(
        rows,
        key=lambda row: (
            heat.index(row["temperature"]),
            plan.siblings.index(row["siblings"]),
            row["position"],
            labels.index(row["rule"]),
        ),
    )
    # Rows of fewer siblings lack the columns of the last ones: keep those together, in order.
    frame = pd.DataFrame(
        {name: [row.get(name, np.nan) for row in rows] for name in max(rows, key=len)}
    )
    accepted = [
        f"accepted_{i}{end}"
        for i in range(1, max(plan.siblings) + 1)
        for end in ("", "_low", "_high")
    ]
    first = list(frame.columns[: list(frame.columns).index("accepted_1")])
    rest = [name for name in frame.columns if name not in {*first, *accepted}]
    return frame[[*first, *accepted, *rest]]


def as_rules(rules: str | Rule | Sequence[str | Rule]) -> tuple[Rule, ...]:
    """Distinct rules of one position, from names, comma lists, aliases and instances."""
    found: list[Rule] = []
    for item in as_list(rules):
        if not isinstance(item, str | Rule):
            raise InputError(f"rules holds {item!r}: give names or Rule instances")
        for text in split_rules(item) if isinstance(item, str) else [item]:
            found += _ALIASES[text]() if text in _ALIASES else [parse_rule(text)]
    for rule in found:
        check_engine(rule)
    return _distinct("rules", found)


def _of_one_position(exact_only: bool) -> list[Rule]:
    kinds = [kind for kind in RULES.values() if issubclass(kind, PositionRule)]
    return [kind() for kind in kinds if kind.exact or not exact_only]


_ALIASES: dict[str | Rule, Callable[[], list[Rule]]] = {
    "all": lambda: _of_one_position(exact_only=False),
    "exact": lambda: _of_one_position(exact_only=True),
}


def split_rules(text: str) -> list[str]:
    """Split a comma list of rules whose options may hold commas themselves.

    Examples
    --------
    >>> split_rules("specinfer,resispec:fill=water,budget=clipped,resispec[water,minimal]")
    ['specinfer', 'resispec:fill=water,budget=clipped', 'resispec[water,minimal]']
    """
    rules: list[str] = []
    for piece in re.split(r",(?![^\[]*\])", text):
        # "budget=clipped" names no rule: it is one more option of the rule before it.
        if rules and "=" in piece and ":" not in piece:
            rules[-1] += f",{piece.strip()}"
        else:
            rules.append(piece.strip())
    return rules


def as_counts(siblings: int | Sequence[int]) -> tuple[int, ...]:
    """Distinct sibling counts from 1 on."""
    counts = as_list(siblings)
    return _distinct("siblings", [check_whole("siblings", n, at_least=1) for n in counts])


def _as_temperatures(temperatures: float | Sequence[float] | None, own: float) -> tuple[float, ...]:
    if temperatures is None:
        return (float(own),)
    given = as_list(temperatures)
    return _distinct("temperatures", [check_number("temperatures", value) for value in given])


def _as_tree(tree: str | CompleteTree) -> CompleteTree:
    if isinstance(tree, CompleteTree):
        return tree
    if not isinstance(tree, str):
        raise InputError(f"tree is {tree!r}: give a name such as 'd5b3', or a CompleteTree")
    return parse_tree(tree)


def as_range(
    positions: str | slice | tuple[int | None, int | None] | None, n_positions: int
) -> tuple[int, int]:
    """First position and the one after the last; `InputError` if there is none between."""
    if isinstance(positions, str):
        match = re.fullmatch(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*", positions)
        if match is None or "-" in match.groups():
            raise InputError(f"positions {positions!r} is not of the form A:B")
        positions = (int(match[1]) if match[1] else None, int(match[2]) if match[2] else None)
    if positions is None:
        positions = (None, None)
    if isinstance(positions, slice):
        if positions.step is not None and positions.step != 1:
            raise InputError(f"positions {positions!r} has a step: consecutive positions only")
        positions = (positions.start, positions.stop)
    ends = as_list(positions)
    if len(ends) != 2:
        raise InputError(f"positions is {positions!r}: give 'A:B', a slice or a pair")
    first, last = (None if end is None else check_whole("positions", end) for end in ends)
    start, stop, _ = slice(first, last).indices(n_positions)
    if start >= stop:
        raise InputError(
            f"positions {first}:{last} holds none of the {n_positions} positions of the dump"
        )
    return start, stop


def _without_eal(
    dump: Dump, heat: Sequence[float], top_k: int | None, top_p: float | None
) -> dict[float, str]:
    """Temperatures whose target is not the one that the recorded text was sampled from."""
    own = (_top_k(dump.top_k, dump.vocab_size), _top_p(dump.top_p))
    asked = (
        _top_k(dump.top_k if top_k is None else top_k, dump.vocab_size),
        _top_p(dump.top_p if top_p is None else top_p),
    )
    if asked != own:
        reason = f"text sampled at top-k {own[0] or 'off'}, top-p {own[1] or 'off'}"
        return dict.fromkeys(heat, reason)
    return {
        temperature: f"text sampled at T = {dump.temperature:g}"
        for temperature in heat
        if temperature != dump.temperature
    }


def _top_k(value: int | None, vocab_size: int) -> int | None:
    return None if not value or value >= vocab_size else value


def _top_p(value: float | None) -> float | None:
    return None if value is None or value >= 1.0 else value


def _distinct(name: str, values: Sequence[_T]) -> tuple[_T, ...]:
    if not values:
        raise InputError(f"{name}: give at least one")
    return tuple(dict.fromkeys(values))
