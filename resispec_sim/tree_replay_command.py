"""The command `resispec replay-trees`."""

import sys
from pathlib import Path

from .terminal import DumpName, Json, console, make_folder


def tree_replay_command(
    dump: DumpName,
    /,
    *,
    rules: str | None = None,
    json_output: Json = False,
    out: Path | None = None,
) -> int:
    """Replay recorded trees: the coins of every rule enumerated on the recorded candidates.

    Parameters
    ----------
    rules : str, optional
        Comma list of rules for siblings drawn in the same way, beside the rule that decoded; all, exact.
    out : Path, optional
        Folder for summary.json, steps.csv and provenance.json.
    """
    if out is not None:
        make_folder(out)

    from .tree_replay import replay_trees

    found = replay_trees(dump, rules, progress=True)
    if out is not None:
        print(f"written to {found.save(out)}", file=sys.stderr)
    if json_output:
        print(found.to_json())
    else:
        console().print(found.table())
    return 0
