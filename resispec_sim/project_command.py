"""The command `resispec project`."""

from pathlib import Path

from .live_config import PROJECT
from .terminal import ENGINE_OPTIONS, DumpName, EngineOptions, Json, console


def project_command(
    dump: DumpName,
    /,
    *,
    phases: Path,
    rules: str = ",".join(PROJECT.rules),
    trees: str = ",".join(PROJECT.trees),
    draft: str | None = None,
    engine: EngineOptions = ENGINE_OPTIONS,
    json_output: Json = False,
) -> int:
    """Project tokens per second of trees and rules that were not run.

    The accepted length of every tree and rule on the dump is put over the seconds of a step, from
    phases that were measured with other trees and rules of the same models.

    Parameters
    ----------
    phases : Path
        phases.csv or results.json of resispec bench-decode.
    rules : str
        Comma list, with options: specinfer,resispec:fill=water.
    trees : str
        Comma list of complete trees such as d5b3 and files of grow maps.
    draft : str, optional
        Draft whose phases are taken, where the file holds several.
    """
    from .project import project

    projection = project(
        dump,
        phases,
        rules,
        [piece.strip() for piece in trees.split(",") if piece.strip()],
        draft=draft,
        **engine.arguments(),
    )
    if json_output:
        print(projection.to_json())
    else:
        console().print(projection.table())
    return 0
