"""Renders a report's pooled figures for a terminal: rules are columns, figures are rows."""

import math
import re
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .config import REPLAY
from .rounding import DOWN, UP, outward, outward_short

Figures = dict[str, Any]

_RULES_PER_TABLE = 3
_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
SAMPLED = "+- is 1.96 standard errors, and a range marked 95% is a confidence interval"
WAYS_OF_DRAWING = {
    "iid": "independent",
    "without_replacement": "without replacement",
    "topk": "most probable tokens",
    "hub": "one and the hub",
}
_STYLES = {"exact": "bold green", "biased": "bold red", "undecided": "bold yellow"}


def render(summary: Figures) -> RenderableType:
    """Lay out a report: one table per temperature and sibling count, then notes.

    Parameters
    ----------
    summary : dict
        As made by `resispec_sim.report.Report.summary`.

    Returns
    -------
    rich renderable
    """
    parts: list[RenderableType] = []
    if summary["partial"]:
        parts.append(
            Text(
                f"PARTIAL: interrupted after {summary['n_positions']} of {summary['n_planned']} positions",
                style="bold yellow",
            )
        )
    for group in summary["groups"]:
        every = group["rules"]
        for start in range(0, len(every), _RULES_PER_TABLE):
            rules = every[start : start + _RULES_PER_TABLE]
            parts += [_group_table(group, rules, summary), Text()]
    parts += [Text(f"{mark} {note}", style="dim") for mark, note in _footnotes(summary)]
    return Group(*parts)


def _group_table(group: Figures, rules: list[Figures], summary: Figures) -> Table:
    dump = summary["dump"]
    table = Table(
        title=Text(
            f"{dump['name']}   T = {group['temperature']:g}   {group['siblings']} "
            f"sibling{'s' if group['siblings'] > 1 else ''}   {group['n_positions']} positions of "
            f"{group['n_prompts']} prompt{'s' if group['n_prompts'] > 1 else ''}"
            f"   V = {dump['vocab_size']:,}",
            style="bold",
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for figures in rules:
        name = figures["rule"] if len(rules) < 3 else figures["rule"].replace("[", "\n[")
        longest = max(map(len, name.split("\n")))
        table.add_column(Text(name), justify="left", overflow="fold", min_width=longest)

    def row(name: str, cells: list[str | Text], **options: Any) -> None:
        table.add_row(Text(name), *[Text(c) if isinstance(c, str) else c for c in cells], **options)

    row("siblings", [WAYS_OF_DRAWING[f["scheme"]] for f in rules])
    for i in range(group["siblings"]):
        row(
            f"sibling {i + 1}: accepted, conditional",
            [
                f"{_probability(f['accepted'][i])}   {_probability(f['conditional_acceptance'][i])}"
                for f in rules
            ],
        )
    row("total acceptance", [_probability(f["acceptance"]) for f in rules])
    row("optimum of exact rules (1)", [f"{f['optimum']:.4f}" for f in rules])
    row("positions above the optimum", [_share(f["share_above_optimum"]) for f in rules])
    row(f"EAL, tree {summary['tree']['name']} (2)", [_eal(f["eal"]) for f in rules])
    row("tokens per step (2)", [_eal(f["tokens_per_step"]) for f in rules], end_section=True)
    row("KL(law || target): mean, max", [_mean_max(f["kl"]) + " nats" for f in rules])
    row("TV(law, target): mean, max", [_mean_max(f["tv"]) for f in rules])
    row("TV bound for every fill: mean, max (3)", [_least(f["tv_lower_bound"]) for f in rules])
    row("Appendix B KL (4)", [_nats(f["appendix_b_kl"]["mean"]) for f in rules])
    row("  same, random proxies (4)", [_nats(f["appendix_b_kl_random"]["mean"]) for f in rules])
    row("method", [_methods(f["methods"]) for f in rules], end_section=True)
    row("verdict", [_verdict(f, summary["partial"]) for f in rules])
    return table


def bounded_eal(n_positions: int) -> str:
    """What to know of an accepted length that rests on positions without exact masses by token."""
    return (
        f"EAL rests on up to {n_positions} positions whose accepted masses by token are lower bounds "
        "or samples."
    )


def _footnotes(summary: Figures) -> list[tuple[str, str]]:
    notes = [
        (
            "(1)",
            "Optimal transport: no exact rule accepts more from siblings drawn in the same way.",
        ),
        (
            "(2)",
            f"Tree {summary['tree']['name']}: {summary['tree']['n_nodes']} nodes, "
            f"{summary['tree']['drafted_levels']} drafted levels; the bonus token counts. EAL is the mean "
            "over positions of the recorded text, tokens per step weighs them by how often a step "
            "starts there; the steps of a rule that is not exact visit other contexts than this "
            f"text. Brackets: {REPLAY.confidence:.0%} bootstrap over prompts. The text is weighed by what a "
            "rule accepts of it; weights above 1, which only an inexact rule has, can carry a bracket past "
            "the tree's depth. The tree sets its own number of siblings.",
        ),
        (
            "(3)",
            "Accepted mass beyond the target: no way of spreading the deficit can repair it. n/a: sampled "
            "masses bound nothing.",
        ),
        (
            "(4)",
            "Near zero for any proxies, drawn at random too: it says nothing about bias. n/a: the rule "
            "has no proxies.",
        ),
    ]
    every = [figures for group in summary["groups"] for figures in group["rules"]]
    if any("sampled" in f["methods"] for f in every):
        notes.append(("(+-)", f"Sampled: {SAMPLED}. Ranges a..b without a mark are bounds."))
    notes += [("(!)", note) for note in summary["left_out"]]
    walked = [f["eal"]["n_not_exact"] for f in every if "n_not_exact" in f["eal"]]
    if any(walked):
        notes.append(("(!)", bounded_eal(max(walked))))
    dropped = [f["eal"]["n_without_w"] for f in every if "n_without_w" in f["eal"]]
    if any(dropped):
        notes.append(
            ("(!)", f"EAL leaves out {max(dropped)} positions whose stored target lacks the token.")
        )
    notes += [("(!)", note) for note in _alike(every)]
    return notes


def _alike(every: list[Figures]) -> list[str]:
    """Notes of single positions; of those that differ in their numbers only, the largest is shown."""
    found: dict[str, tuple[float, str, int]] = {}
    for figures in every:
        for note, count in figures["notes"].items():
            form = re.sub(_NUMBER, "#", note)
            first = re.search(_NUMBER, note)
            size = float(first[0]) if first else 0.0
            largest, example, before = found.get(form, (size, note, 0))
            if size > largest:
                largest, example = size, note
            found[form] = largest, example, before + count
    return [
        example if count == 1 else f"{example} (the largest of {count} such notes)"
        for _, example, count in found.values()
    ]


def _probability(value: Figures) -> str:
    return with_range(value["mean"], value["low"], value["high"], value["sampled"])


def with_range(mean: float, low: float, high: float, sampled: bool) -> str:
    """A figure with its bounds, ``low..high``, or with 1.96 standard errors, ``mean +- half``.

    Bounds are rounded outward, so that what is printed is a bound too.
    """
    half = (high - low) / 2.0
    if not sampled or not half > 1e-12 or not math.isfinite(half):
        return _range(mean, low, high)
    digits = min(max(4, math.ceil(-math.log10(half))), 10)
    return f"{mean:.{digits}f} +-{half:.{digits}f}"


def _range(mean: float, low: float, high: float) -> str:
    if f"{low:.4f}" == f"{high:.4f}" or not high - low > 1e-12:
        return f"{mean:.4f}" if math.isfinite(mean) else "-"
    # As many digits as it takes to tell the two ends apart.
    digits = min(max(4, math.ceil(-math.log10(high - low)) + 1), 10)
    return f"{outward(low, digits, DOWN)}..{outward(high, digits, UP)}"


def _share(value: Figures) -> str:
    if value["low"] == value["high"]:
        return f"{100 * value['mean']:.1f} %"
    low = outward(100 * value["low"], 1, DOWN)
    return f"{low}..{outward(100 * value['high'], 1, UP)} %"


def _eal(value: Figures) -> str:
    if value["mean"] is None:
        return f"n/a: {value['reason']}"
    if not math.isfinite(value["low"]):
        return f"{value['mean']:.3f} (one prompt: no interval)"
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _mean_max(value: Figures) -> str:
    mean = _bounded(value["mean"], value.get("low"), value.get("high"))
    most = _bounded(value["max"], value.get("max_low"), value.get("max_high"))
    return f"{mean}   {most}{' (95%)' if value.get('sampled') else ''}"


def _least(value: Figures) -> str:
    """Mean and maximum of a lower bound."""
    if math.isnan(value["max"]):
        return "n/a"
    return "   ".join(_small(value[key], DOWN) for key in ("mean", "max"))


def _bounded(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None or not high - low > 1e-12:
        return _small(value)
    return _range(value, low, high) if high >= 1e-3 else _ends(low, high)


def _ends(low: float, high: float) -> str:
    return f"{_small(low, DOWN)}..{_small(high, UP)}"


def _small(value: float, rounding: str | None = None) -> str:
    """A figure, to the nearest digit or, for a bound, to one of its sides."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e-3:
        return f"{value:.4f}" if rounding is None else outward(value, 4, rounding)
    if rounding is None:
        return f"{value:.1e}"
    return outward_short(value, rounding)


def _nats(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{_small(value)} nats"


def _methods(methods: Figures) -> str:
    return "\n".join(
        f"{name}: {m['positions']} positions, {m['paths']:.3g} paths" for name, m in methods.items()
    )


def _verdict(figures: Figures, partial: bool) -> Text:
    word, witness = figures["verdict"], figures["witness"]
    plain = Text()
    if word == "exact":
        plain.append(f"\nTV at most 1e-12 at every position{' computed so far' if partial else ''}")
    elif word == "biased":
        tv = _bounded(witness["tv"], *witness["tv_interval"])
        kl = _bounded(witness["kl"], *witness["kl_interval"])
        plain.append(
            f"\nstrongest at position {witness['position']} (prompt {witness['prompt']}, offset "
            f"{witness['offset']}): TV {tv}, KL {kl} nats; token {witness['excess_token']} "
            f"gets {witness['excess_mass']:.4f} too much"
            f"{' (95% over all positions)' if figures['basis'] == 'sampled' else ''}"
        )
    else:
        low, high = witness["tv_interval"]
        where = f"at position {witness['position']} TV lies in {_ends(low, high)}"
        if figures["basis"] == "sampled":
            where += " (95%)"
            if high <= REPLAY.exact_tolerance:
                where = "TV 0 along every drawn path; others were not looked at"
            plain.append(f" (sampled)\nnot separable from exact by its samples: {where}")
        else:
            most = _small(high, UP)
            plain.append(f" (TV at most {most})\nnot separable from exact: {where}")
    return Text.assemble(Text(word, style=_STYLES[word]), plain)
