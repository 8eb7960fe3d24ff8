"""The command `resispec rules`: every rule with what it takes and where it comes from."""

from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

from .terminal import Json, console

if TYPE_CHECKING:
    from rich.console import RenderableType


def rules_command(*, json_output: Json = False) -> int:
    """List every verification rule: options, siblings it takes, exact or not, complexity, paper."""
    import json

    found = describe_rules()
    if json_output:
        print(json.dumps({"schema_version": 1, "kind": "rules", "rules": found}, indent=2))
    else:
        console().print(table(found))
    return 0


def describe_rules() -> list[dict[str, Any]]:
    """Every rule of `resispec_sim.rules.RULES` with its default options, as plain data.

    Returns
    -------
    list of dict
        ``name``, ``options`` (name to default), ``choices`` (name to allowed words), ``siblings``
        (the word that the code uses) and ``siblings_words``, ``n_siblings`` (the one count, or
        None), ``exact``, ``complexity``, ``paper``, ``summary``.

    Examples
    --------
    >>> [rule["name"] for rule in describe_rules()][:2]
    ['rejection', 'specinfer']
    """
    from dataclasses import fields

    from .rules import RULES
    from .rules.siblings import SCHEMES

    found = []
    for name, kind in RULES.items():
        rule = kind()
        hints = get_type_hints(kind)
        found.append(
            {
                "name": name,
                "options": {field.name: getattr(rule, field.name) for field in fields(rule)},
                "choices": {
                    field.name: list(get_args(hints[field.name]))
                    for field in fields(rule)
                    if get_origin(hints[field.name]) is Literal
                },
                "siblings": rule.siblings,
                "siblings_words": SCHEMES[rule.siblings],
                "n_siblings": rule.only_count,
                "exact": rule.exact,
                "complexity": rule.complexity,
                "paper": rule.paper,
                "summary": (kind.__doc__ or "").strip().split("\n")[0],
            }
        )
    return found


def table(found: list[dict[str, Any]]) -> "RenderableType":
    """Lay out what `describe_rules` returns for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("rule", no_wrap=True)
    for name in ("exact", "siblings", "cost of a law"):
        grid.add_column(name, overflow="fold")
    grid.add_column("source", no_wrap=True)
    for rule in found:
        options = "\n".join(
            f" {key}={_values(value, rule['choices'].get(key, []))}"
            for key, value in rule["options"].items()
        )
        only = "" if rule["n_siblings"] is None else f"; {rule['n_siblings']} of them"
        grid.add_row(
            Text.assemble((rule["name"], "bold"), Text(f"\n{options}" if options else "")),
            Text("yes", style="green") if rule["exact"] else Text("no", style="red"),
            Text(rule["siblings_words"] + only),
            Text(rule["complexity"]),
            Text(rule["paper"].replace(", arXiv", ",\narXiv").replace(" on ", "\non ")),
        )
    return grid


def _values(default: Any, choices: list[str]) -> str:
    """The default, then the other words that an option takes on a line of their own."""
    if default is None:
        return "(its own)"
    others = "|".join(word for word in choices if word != default)
    return f"{default}\n   or {others}" if others else str(default)
