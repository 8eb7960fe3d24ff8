"""The command `resispec tree`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .config import REPLAY, TREE
from .errors import InputError
from .types import Method


def tree_command(
    dump: str,
    *,
    budget: str = str(TREE.budget),
    depth: int | None = None,
    rule: str = TREE.rule,
    max_branching: int | None = None,
    beside: str = ",".join(TREE.beside),
    hold_out: bool = True,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    method: Method = REPLAY.method,
    max_paths: int = REPLAY.max_paths,
    seed: int = REPLAY.seed,
    jobs: int = REPLAY.n_jobs,
    json_output: Annotated[bool, Parameter(name="--json", negative="")] = False,
    out: Path | None = None,
) -> int:
    """Find the draft tree with the largest expected accepted length under a node budget.

    The acceptance of every sibling is exact, from every other prompt of the dump; the accepted length
    on the prompts between stands beside the model's, and complete trees beside the optimised ones.

    Parameters
    ----------
    dump : str
        Folder of a dump, or the name of a shipped one.
    budget : str
        Nodes of the tree at most, the root included; a comma list gives one tree each.
    depth : int, optional
        Levels at most, the root included. Default: those of the deepest tree in --beside.
    rule : str
        Verification rule, with options: resispec:fill=water.
    max_branching : int, optional
        Children of a node at most. Default: 32; 12 for exact-shaping, 4 for rules that walk paths of
        rejections.
    beside : str
        Comma list of trees to show beside: names such as d5b3, grow maps in .json files, Sequoia's in
        .pt files. An empty list shows none.
    hold_out : bool
        With --no-hold-out all prompts give the acceptance, and the accepted length is measured on them.
    temperature : float, optional
        Default: the dump's own; at another there is no accepted length of the dump, only the model's.
    top_k : int, optional
        Default: the dump's own; 0 turns it off.
    top_p : float, optional
        Default: the dump's own; 1 turns it off.
    method : str
        auto chooses by the predicted number of paths.
    max_paths : int
        Paths per position up to which auto walks all of them.
    seed : int
        Seed of everything random.
    jobs : int
        Threads; -1 is one per core. The figures do not depend on it.
    json_output : bool
        Print JSON instead of a table.
    out : Path, optional
        File for the grow map, as JSON; with several budgets NAME-BUDGET.json.
    """
    try:
        budgets = [int(piece) for piece in budget.split(",")]
    except ValueError:
        raise InputError(f"--budget {budget!r} is not a comma list of whole numbers") from None
    if out is not None:
        if out.is_dir():
            raise InputError(f"--out {out} is a folder: give the file of the grow map")
        out.parent.mkdir(parents=True, exist_ok=True)  # an unwritable folder fails before the work

    from .tree_plan import plan_trees

    report = plan_trees(
        dump,
        rule,
        budgets,
        depth=depth,
        max_branching=max_branching,
        beside=[piece.strip() for piece in beside.split(",") if piece.strip()],
        hold_out=hold_out,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        method=method,
        max_paths=max_paths,
        seed=seed,
        n_jobs=jobs,
        progress=True,
    )
    if out is not None:
        for plan in report.plans:
            several = len(report.plans) > 1
            path = out.with_name(f"{out.stem}-{plan.budget}{out.suffix}") if several else out
            path.write_text(plan.growmap.to_json() + "\n", encoding="utf-8")
    if json_output:
        print(report.to_json())
    else:
        from .cli import _console

        _console().print(report.table())
    return 0
