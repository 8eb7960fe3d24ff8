"""Verification rules: one per file, found by name."""

import re
from dataclasses import fields
from typing import Any

from resispec_sim.errors import RuleError
from resispec_sim.rules.base import PositionRule, ResidualRule, Rule, SequentialRule
from resispec_sim.rules.block import Block
from resispec_sim.rules.exact_shaping import ExactShaping
from resispec_sim.rules.k_seq import KSeq
from resispec_sim.rules.matching import Nss, TargetOnly
from resispec_sim.rules.rejection import Rejection
from resispec_sim.rules.resispec import ResiSpec
from resispec_sim.rules.resispec_schemes import ResiSpecEagle, ResiSpecWor
from resispec_sim.rules.rrs_wor import RrsWor
from resispec_sim.rules.spechub import SpecHub
from resispec_sim.rules.specinfer import SpecInfer
from resispec_sim.rules.traversal import Traversal

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Rejection,
        SpecInfer,
        ResiSpec,
        RrsWor,
        KSeq,
        SpecHub,
        Nss,
        TargetOnly,
        ExactShaping,
        ResiSpecWor,
        ResiSpecEagle,
        Block,
        Traversal,
    )
}

__all__ = [
    "RULES",
    "Block",
    "ExactShaping",
    "KSeq",
    "Nss",
    "PositionRule",
    "Rejection",
    "ResiSpec",
    "ResiSpecEagle",
    "ResiSpecWor",
    "ResidualRule",
    "RrsWor",
    "Rule",
    "SequentialRule",
    "SpecHub",
    "SpecInfer",
    "TargetOnly",
    "Traversal",
    "parse_rule",
]


def parse_rule(text: str | Rule, **options: Any) -> Rule:
    """Make a rule from its name and options.

    Parameters
    ----------
    text : str or Rule
        ``"name"``, ``"name:option=value,option=value"``, or a printed label
        ``"name[value,value]"``, which gives the values in the order of the options. A rule is
        returned as it is.
    **options
        Further options of the rule; an option must not be given twice.

    Raises
    ------
    RuleError
        If the text has another form, or names no known rule, option or value.

    Examples
    --------
    >>> parse_rule("resispec:fill=water").label
    'resispec[water,minimal]'
    >>> parse_rule("resispec[water,clipped]") == ResiSpec(fill="water", budget="clipped")
    True
    >>> parse_rule("resispec", budget="clipped").label
    'resispec[capacity,clipped]'
    """
    if isinstance(text, Rule):
        if options:
            raise RuleError(f"{text.label}: give options with a rule's name, not with an instance")
        return text
    if not isinstance(text, str):
        raise RuleError(f"rule is {text!r}: give a name, such as 'specinfer', or an instance")
    match = re.fullmatch(r"([\w-]+)(?::(?P<pairs>.*)|\[(?P<values>.*)\])?", text.strip())
    if match is None:
        raise RuleError(f"cannot read rule {text!r}; write name, name:option=value or name[value]")
    name = match[1]
    if name not in RULES:
        raise RuleError(f"unknown rule {name!r}; use one of {', '.join(RULES)}")
    known = [field.name for field in fields(RULES[name])]
    pairs = _read_pairs(text, match["pairs"]) if match["pairs"] is not None else []
    if match["values"] is not None:
        values = [value.strip() for value in match["values"].split(",")]
        if len(values) > len(known):
            raise RuleError(
                f"rule {text!r}: {name} has {len(known)} options, {len(values)} values were given"
            )
        pairs = list(zip(known, values, strict=False))
    given: dict[str, Any] = {}
    for option, value in [*pairs, *options.items()]:
        if option not in known:
            choices = ", ".join(known) or "none"
            raise RuleError(f"rule {text!r}: {name} has no option {option!r}; it has {choices}")
        if option in given:
            raise RuleError(f"rule {text!r}: option {option!r} is given twice")
        given[option] = value
    return RULES[name](**given)


def _read_pairs(text: str, pairs: str) -> list[tuple[str, str]]:
    found = []
    for item in pairs.split(","):
        option, separator, value = (part.strip() for part in item.partition("="))
        if not (separator and option and value):
            raise RuleError(f"rule {text!r}: {item!r} is not of the form option=value")
        found.append((option, value))
    return found
