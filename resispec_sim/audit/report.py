"""What an audit found: verdict, counterexample, pattern, figures; as a table and as JSON."""

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from resispec_sim.audit.calling import Finding, Floats
from resispec_sim.audit.pool import Exact

Verdict = Literal["exact", "biased", "undecided"]

_STYLES = {"exact": "bold green", "biased": "bold red", "undecided": "bold yellow"}


@dataclass(frozen=True)
class Pattern:
    """A fault that is known: what its law agrees with at every pair that was compared.

    Attributes
    ----------
    name, explanation : str
    n_pairs : int
        Pairs at which the two laws agree.
    also : tuple of str
        Other known faults whose laws agree there too.
    """

    name: str
    explanation: str
    n_pairs: int = 0
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counterexample:
    """A pair at which the verifier is wrong.

    Attributes
    ----------
    target_probs, draft_probs : ndarray of float64, (V,)
    simple : pair of tuples of Fraction, or None
        The same as fractions.
    n_siblings : int
    law, right : ndarray of float64, (V,)
        What the verifier emits, and what it should: the target.
    accepted : ndarray of float64, (K,)
        The probability that each sibling is the accepted one.
    tv : float
        Total variation distance of the two laws.
    outside : float
        The probability that what the verifier emits is no token of the vocabulary.
    """

    target_probs: Floats
    draft_probs: Floats
    simple: tuple[Exact, Exact] | None
    n_siblings: int
    law: Floats
    right: Floats
    accepted: Floats
    tv: float
    outside: float = 0.0

    @property
    def tokens(self) -> tuple[tuple[int, float], ...]:
        """Tokens that get too much or too little, and by how much; the most affected first."""
        excess = self.law - self.right
        order = np.argsort(-np.abs(excess), kind="stable")
        return tuple((int(x), float(excess[x])) for x in order if abs(excess[x]) > 1e-12)

    def as_text(self, side: int) -> list[str]:
        """The target (0) or draft (1) as texts: fractions if they are, else decimals."""
        if self.simple is not None:
            return [str(mass) for mass in self.simple[side]]
        return [repr(float(mass)) for mass in (self.target_probs, self.draft_probs)[side]]


@dataclass(frozen=True)
class AuditReport:
    """What `audit` found.

    Attributes
    ----------
    verifier : str
    verdict : {"exact", "biased", "undecided"}
        ``"exact"`` holds for the pairs that were checked, under `assumptions`. Sampling never says it.
    mode : {"exact", "sampling"}
    siblings : str
    n_siblings, n_uniforms : int
    checked : dict
        What was looked at: numbers of pairs, their vocabulary sizes, calls, largest total variation.
    counterexample : Counterexample or None
    pattern : Pattern or None
    findings : tuple of Finding
        Faults besides the law. Where the law is right as far as it could be computed, and only calls
        fail or claim what is not so, the verdict is ``"undecided"``. A token outside the vocabulary is
        no failure but an emitted token to which the target gives no mass: ``"biased"``.
    notes : tuple of str
        What the verdict means here, and what can be done.
    assumptions : tuple of str
    p_value, e_value : float or None
        Sampling mode: valid at any time of stopping.
    n_samples : int
    bias_interval : (float, float) or None
        Sampling mode: a confidence interval, valid at any time, of the excess mass on the tokens that
        the test bets on. Its lower end is a lower bound of the total variation distance.
    tokens : tuple of dict
        Sampling mode: the most affected tokens.
    provenance : dict
    """

    verifier: str
    verdict: Verdict
    mode: Literal["exact", "sampling"]
    siblings: str
    n_siblings: int
    n_uniforms: int
    checked: dict[str, Any]
    counterexample: Counterexample | None = None
    pattern: Pattern | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    p_value: float | None = None
    e_value: float | None = None
    n_samples: int = 0
    bias_interval: tuple[float, float] | None = None
    tokens: tuple[dict[str, Any], ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def table(self) -> RenderableType:
        """The report for a terminal, as a rich renderable."""
        parts: list[RenderableType] = [self._head()]
        parts += [Text(note, style="bold") for note in self.notes]
        parts += [
            Text(f"finding: {finding.message}", style="bold red") for finding in self.findings
        ]
        if self.counterexample is not None:
            parts += [Text(), _law_table(self.counterexample)]
        if self.mode == "sampling":
            parts += [Text(), *self._sampled()]
        if self.pattern is not None:
            parts += [Text(), Text(f"looks like: {self.pattern.name}", style="bold")]
            parts.append(Text(self.pattern.explanation))
            if self.pattern.also:
                parts.append(Text(f"agrees as well with: {'; '.join(self.pattern.also)}"))
        elif self.verdict == "biased" and self.mode == "exact":
            parts += [Text(), Text("its law is that of no fault known here")]
        parts += [Text(), Text("checked: " + _words(self.checked), style="dim")]
        parts += [Text(f"assumed: {text}", style="dim") for text in self.assumptions]
        return Group(*parts)

    def _head(self) -> Text:
        many = "s" if self.n_siblings > 1 else ""
        return Text.assemble(
            (f"{self.verifier}   {self.n_siblings} sibling{many}, {self.siblings}   ", "bold"),
            (self.verdict, _STYLES[self.verdict]),
        )

    def _sampled(self) -> list[RenderableType]:
        assert self.bias_interval is not None
        low, high = self.bias_interval
        lines: list[RenderableType] = [
            Text(
                f"p-value {self.p_value:.2g}, e-value {self.e_value:.3g} after {self.n_samples:,} tokens; "
                f"both hold whenever the test stops"
            ),
            Text(
                f"total variation distance at least {low:.4f}; the bets won {low:.4f}..{high:.4f}"
            ),
        ]
        if self.tokens:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for name in ("pair", "token", "target", "emitted", "z"):
                table.add_column(name, justify="right")
            for row in self.tokens:
                figures = (f"{row['target']:.3g}", f"{row['emitted']:.3g}", f"{row['z']:+.1f}")
                table.add_row(str(row["pair"]), str(row["token"]), *figures)
            lines.append(table)
        return lines

    def to_json(self) -> str:
        """The report and its provenance as JSON; infinities are the texts of Python's floats."""
        from resispec_sim.provenance import as_json_data

        found = self.counterexample
        data = {
            "schema_version": 1,
            "kind": "audit",
            "verifier": self.verifier,
            "verdict": self.verdict,
            "mode": self.mode,
            "siblings": self.siblings,
            "n_siblings": self.n_siblings,
            "n_uniforms": self.n_uniforms,
            "checked": self.checked,
            "counterexample": None
            if found is None
            else {
                "target": found.as_text(0),
                "draft": found.as_text(1),
                "target_probs": found.target_probs,
                "draft_probs": found.draft_probs,
                "n_siblings": found.n_siblings,
                "law": found.law,
                "right": found.right,
                "accepted": found.accepted,
                "tv": found.tv,
                "outside": found.outside,
                "tokens": [{"token": x, "excess": excess} for x, excess in found.tokens],
            },
            "pattern": None if self.pattern is None else vars(self.pattern),
            "findings": [vars(finding) for finding in self.findings],
            "notes": self.notes,
            "assumptions": self.assumptions,
            "p_value": self.p_value,
            "e_value": _finite(self.e_value),
            "n_samples": self.n_samples,
            "bias_interval": self.bias_interval,
            "tokens": self.tokens,
            "provenance": self.provenance,
        }
        return json.dumps(as_json_data(data), indent=2, allow_nan=False)


def _finite(value: float | None) -> float | str | None:
    return value if value is None or np.isfinite(value) else str(value)


def _words(checked: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in checked.items())


def _law_table(found: Counterexample) -> Table:
    table = Table(
        title=Text(
            f"smallest counterexample found: total variation distance {found.tv:.9g}"
            if found.tv > 1e-12
            else "the law is the target here: it is the finding that is at fault"
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("token", "draft", "right: target", "verifier's law", "excess"):
        table.add_column(name, justify="right")
    target, draft = found.as_text(0), found.as_text(1)
    for x in range(len(found.law)):
        law, right = float(found.law[x]), float(found.right[x])
        table.add_row(str(x), draft[x], target[x], _number(law), f"{law - right:+.9f}")
    if found.outside > 0:
        outside = _number(found.outside), f"{found.outside:+.9f}"
        table.add_row("none of these", "0", "0", *outside)
    return table


def _number(value: float) -> str:
    near = Fraction(value).limit_denominator(1000)
    close = abs(float(near) - value) < 1e-12 and near.denominator > 1
    return f"{value:.9f}" + (f" = {near}" if close else "")
