"""The command `resispec tree`."""

import sys
from pathlib import Path

from .config import TREE
from .errors import InputError
from .terminal import (
    ENGINE_OPTIONS,
    DumpName,
    EngineOptions,
    Json,
    TopK,
    TopP,
    console,
    make_folder,
    numbers,
)


def tree_command(
    dump: DumpName,
    /,
    *,
    budget: str = str(TREE.budget),
    depth: int | None = None,
    rule: str = TREE.rule,
    max_branching: int | None = None,
    beside: str = ",".join(TREE.beside),
    hold_out: bool = True,
    temperature: float | None = None,
    top_k: TopK = None,
    top_p: TopP = None,
    engine: EngineOptions = ENGINE_OPTIONS,
    json_output: Json = False,
    out: Path | None = None,
) -> int:
    """Find the draft tree with the largest expected accepted length under a node budget.

    The acceptance of every sibling is exact, from every other prompt of the dump; the accepted length
    on the prompts between stands beside the model's, and complete trees beside the optimised ones.

    Parameters
    ----------
    budget : str
        Nodes of the tree at most, the root included; a comma list gives one tree each.
    depth : int, optional
        Levels at most, the root included. Default: those of the deepest tree in --beside, 64 without any.
    rule : str
        Verification rule, with options: resispec:fill=water.
    max_branching : int, optional
        Children of a node at most. Default: 32; 12 for exact-shaping, 4 for rules that walk paths of
        rejections.
    beside : str
        Comma list of trees to show beside: names such as d5b3, grow maps in .json files, Sequoia's in
        .pt files. An empty list shows none, and --depth is then 64 unless it is given.
    hold_out : bool
        With --no-hold-out all prompts give the acceptance, and the accepted length is measured on them.
    temperature : float, optional
        Default: the dump's own; at another there is no accepted length of the dump, only the model's.
    out : Path, optional
        File for the grow map, as JSON; with several budgets NAME-BUDGET.json.
    """
    budgets = numbers("--budget", budget, int)
    if out is not None:
        if out.is_dir():
            raise InputError(f"--out {out} is a folder: give the file of the grow map")
        make_folder(out.parent)

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
        **engine.arguments(),
    )
    if out is not None:
        for plan in report.plans:
            several = len(report.plans) > 1
            path = out.with_name(f"{out.stem}-{plan.budget}{out.suffix}") if several else out
            path.write_text(plan.growmap.to_json() + "\n", encoding="utf-8")
            print(f"written to {path}", file=sys.stderr)
    if json_output:
        print(report.to_json())
    else:
        console().print(report.table())
    return 0
