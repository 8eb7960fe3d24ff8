"""The audit against mutants of the correct SpecInfer verifier, classified in exact rationals.

Whether a mutant is biased is decided without the audit: its law is enumerated in Fractions over a grid
of targets and drafts of up to 4 tokens and 1 to 3 siblings. A mutant whose law is the target on all
of the grid is called equivalent, even if it accepts other siblings: nobody is misled about its output.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, product

import numpy as np
import pytest

from resispec_sim.audit import AuditReport, audit
from resispec_sim.engine.oracle import enumerate_law
from resispec_sim.errors import VerifierError
from resispec_sim.rules import ResiSpec, SpecInfer
from tests.exact_paths import ImpossibleTokenError, path_law
from tests.fault_verifiers import resispec, specinfer
from tests.mutants import make_mutants
from tests.strategies import EDGE_PAIRS, Exact, normalise

SIBLING_COUNTS = (1, 2, 3)
GROUPS = [
    ["residual", "draft", "rest"],
    ["token", "idx", "n_siblings"],
    ["limit", "total", "reached"],
    ["r", "q"],
]
RAISED_BY_MUTANTS = (TypeError, ValueError, NameError, LookupError, ArithmeticError)
MUTANTS = make_mutants(specinfer, GROUPS, seed=20, n_double=4)


def compositions(vocab_size: int, parts: int) -> list[Exact]:
    """All distributions whose probabilities are multiples of ``1 / parts``."""
    weights = product(range(parts + 1), repeat=vocab_size)
    return [normalise(list(w)) for w in weights if sum(w) == parts]


def grids() -> tuple[list[tuple[Exact, Exact]], list[tuple[Exact, Exact]]]:
    """A short grid, and a longer one: all pairs in quarters for 2 tokens, samples for 3 and 4."""
    rng = random.Random(4)
    points = {v: compositions(v, 8) for v in (2, 3, 4)}

    def sample(vocab_size: int, count: int) -> list[tuple[Exact, Exact]]:
        return [
            (rng.choice(points[vocab_size]), rng.choice(points[vocab_size])) for _ in range(count)
        ]

    edges = [(p, q) for _, p, q in EDGE_PAIRS if len(p) <= 4]
    rest = sample(4, 20) + sample(3, 40) + edges + list(product(compositions(2, 4), repeat=2))
    return sample(4, 3) + sample(3, 5) + sample(2, 2), rest


SHORT, LONG = grids()


def classify(number: int) -> str:
    """``biased``, ``equivalent``, ``raises`` or ``impossible result``, from the rational laws alone."""
    for pairs in (SHORT, LONG):
        changed = False
        for (target, draft), n_siblings in product(pairs, SIBLING_COUNTS):
            try:
                law = path_law(MUTANTS[number].verify, target, draft, n_siblings)
            except ImpossibleTokenError:
                return "impossible result"
            except RAISED_BY_MUTANTS:
                return "raises"
            changed = changed or law.output_probs != list(target)
        if changed:
            return "biased"
    return "equivalent"


def test_the_enumeration_agrees_with_the_oracle_of_the_rules():
    for (target, draft), n_siblings in product(SHORT, SIBLING_COUNTS):
        for verify, rule in ((specinfer, SpecInfer()), (resispec, ResiSpec())):
            law = path_law(verify, target, draft, n_siblings)
            known = enumerate_law(rule, target, draft, n_siblings)
            assert law.output_probs == known.output_probs
            assert law.accepted == known.accepted


def test_a_coin_that_is_used_twice_is_followed():
    def verify(target_probs, draft_probs, sibling_ids, uniforms):
        if uniforms[0] < Fraction(1, 2):
            return 0 if uniforms[0] >= Fraction(1, 3) else 1, None
        return 1 if uniforms[0] > Fraction(1, 4) and uniforms[1] <= Fraction(1, 5) else 2, None

    law = path_law(verify, [1, 0, 0], [1, 0, 0], 1)
    assert law.output_probs == [Fraction(1, 6), Fraction(1, 3) + Fraction(1, 10), Fraction(2, 5)]


def test_the_original_is_exact_on_the_grid():
    for (target, draft), n_siblings in product(SHORT + LONG, SIBLING_COUNTS):
        assert path_law(specinfer, target, draft, n_siblings).output_probs == list(target)


AUDIT_PAIRS = [
    (np.array(target, float), np.array(draft, float))
    for target, draft in (
        (normalise([2, 3]), normalise([3, 1])),
        # two tokens are left after three rejections, so the last sampling shows
        (normalise([3, 5, 2]), normalise([1, 1, 8])),
        (normalise([0, 3, 2]), normalise([8, 1, 1])),
        # the same, and the third sibling can be token 2 with a residual between 0 and its draft
        (normalise([16, 12, 7, 5]), normalise([4, 4, 4, 28])),
    )
]


@pytest.fixture(scope="module")
def kinds() -> dict[str, list[int]]:
    """The numbers of the mutants of each class."""
    found: dict[str, list[int]] = {}
    for number in range(len(MUTANTS)):
        found.setdefault(classify(number), []).append(number)
    print("\nmutants:", {kind: len(numbers) for kind, numbers in found.items()})
    return found


def reports(number: int) -> Iterator[AuditReport]:
    """Audits at one pair and one count after the other; nothing is spent on shrinking."""
    for n_siblings, pair in product((2, 3, 1), AUDIT_PAIRS):
        yield audit(
            MUTANTS[number].verify, n_siblings, pairs=[pair], mode="exact", max_shrink_calls=0
        )


def listed(numbers: list[int]) -> str:
    return "\n\n".join(f"{MUTANTS[number].change}\n{MUTANTS[number].source}" for number in numbers)


def says_biased(report: AuditReport) -> bool:
    """Biased, and that in the law itself, not only by a finding."""
    return report.verdict == "biased" and report.counterexample.tv > 1e-6


@pytest.mark.slow
def test_every_biased_mutant_is_called_biased(kinds):
    biased = kinds["biased"]
    missed = [number for number in biased if not any(map(says_biased, reports(number)))]
    print(f"{len(biased)} mutants are biased in rationals, {len(biased) - len(missed)} so called")
    assert not missed, listed(missed)
    assert len(biased) >= 50


@pytest.mark.slow
def test_the_law_of_an_equivalent_mutant_is_never_called_wrong(kinds):
    found = {number: list(islice(reports(number), 6)) for number in kinds["equivalent"]}
    findings = {number: {f.kind for r in found[number] for f in r.findings} for number in found}
    named = [number for number in found if findings[number]]
    print(f"{len(found)} mutants emit the target in rationals; {len(named)} have a finding")
    wrong = [
        number
        for number, reported in found.items()
        if any(says_biased(r) or (r.verdict != "exact" and not r.findings) for r in reported)
    ]
    assert not wrong, listed(wrong)
    assert len(found) - len(named) >= 20
    # coins of exactly 0 or next to 1, and siblings wrongly called accepted, leave the law alone
    for kind in set().union(*findings.values()):
        assert kind.startswith(("zero probability", "bad accepted index", "raises")), kind


@pytest.mark.parametrize("kind", ["raises", "impossible result"])
def test_mutants_that_fail_are_never_called_exact(kind, kinds):
    unnoticed = []
    for number in kinds[kind]:
        try:
            if all(report.verdict == "exact" for report in reports(number)):
                unnoticed.append(number)
        except VerifierError as error:
            assert "every call of the verifier fails" in str(error)
    assert not unnoticed, listed(unnoticed)
