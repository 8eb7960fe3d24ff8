"""The audit against mutants of the correct SpecInfer verifier, classified in exact rationals.

Whether a mutant is biased is decided without the audit: its law is enumerated in Fractions over a grid
of targets and drafts of up to 4 tokens and 1 to 3 siblings. A mutant whose law is the target on all
of the grid is called equivalent, even if it accepts other siblings: nobody is misled about its output.
"""

import random
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from resispec_sim.audit import audit
from tests.exact_paths import ImpossibleTokenError, path_law
from tests.fault_verifiers import specinfer
from tests.mutants import Mutant, make_mutants
from tests.strategies import EDGE_PAIRS, Exact, normalise

SIBLING_COUNTS = (1, 2, 3)
GROUPS = [
    ["residual", "draft", "rest"],
    ["token", "idx", "n_siblings"],
    ["limit", "total", "reached"],
    ["r", "q"],
]
RAISED_BY_MUTANTS = (TypeError, ValueError, NameError, LookupError, ArithmeticError)
MUTANTS = make_mutants(specinfer, GROUPS, seed=20, n_double=24)


def compositions(vocab_size: int, parts: int) -> list[Exact]:
    """All distributions whose probabilities are multiples of ``1 / parts``."""
    weights = product(range(parts + 1), repeat=vocab_size)
    return [normalise(list(w)) for w in weights if sum(w) == parts]


def grids() -> tuple[list[tuple[Exact, Exact]], list[tuple[Exact, Exact]]]:
    """A short grid, and a longer one: all pairs in quarters for 2 tokens, samples for 3 and 4."""
    rng = random.Random(4)
    points = {v: compositions(v, 8) for v in (2, 3, 4)}

    def sample(vocab_size: int, count: int) -> list[tuple[Exact, Exact]]:
        return [(rng.choice(points[vocab_size]), rng.choice(points[vocab_size])) for _ in range(count)]

    edges = [(p, q) for _, p, q in EDGE_PAIRS if len(p) <= 4]
    rest = sample(4, 20) + sample(3, 40) + edges + list(product(compositions(2, 4), repeat=2))
    return sample(4, 3) + sample(3, 5) + sample(2, 2), rest


SHORT, LONG = grids()


@cache
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


def test_the_original_is_exact_on_the_grid():
    for (target, draft), n_siblings in product(SHORT + LONG, SIBLING_COUNTS):
        assert path_law(specinfer, target, draft, n_siblings).output_probs == list(target)


AUDIT_PAIRS = [
    (np.array(target, float), np.array(draft, float))
    for target, draft in (
        (normalise([5, 3, 2]), normalise([2, 2, 6])),
        (normalise([1, 4, 2, 3]), normalise([3, 2, 4, 1])),
        (normalise([2, 3]), normalise([3, 1])),
        (normalise([0, 1, 3]), normalise([4, 3, 1])),
    )
]
BIASED, EQUIVALENT, RAISES, IMPOSSIBLE = (
    [number for number in range(len(MUTANTS)) if classify(number) == kind]
    for kind in ("biased", "equivalent", "raises", "impossible result")
)


def verdicts(numbers: list[int]) -> dict[str, str]:
    found = {}
    for number in numbers:
        mutant: Mutant = MUTANTS[number]
        report = audit(mutant.verify, 3, pairs=AUDIT_PAIRS, mode="exact")
        found[f"{number}, {mutant.change}\n{mutant.source}"] = report.verdict
    return found


def test_every_biased_mutant_is_called_biased():
    found = verdicts(BIASED)
    print("biased in rationals:", len(BIASED), "called", Counter(found.values()))
    missed = [mutant for mutant, verdict in found.items() if verdict != "biased"]
    assert len(found) >= 50 and not missed, "\n\n".join(missed)


def test_no_equivalent_mutant_is_called_biased():
    found = verdicts(EQUIVALENT)
    print("equal to the target in rationals:", len(found), "called", Counter(found.values()))
    alarms = [mutant for mutant, verdict in found.items() if verdict != "exact"]
    assert len(found) >= 10 and not alarms, "\n\n".join(alarms)


@pytest.mark.parametrize("numbers", [RAISES, IMPOSSIBLE], ids=["raises", "impossible result"])
def test_mutants_that_fail_are_never_called_exact(numbers):
    for number in numbers:
        report = audit(MUTANTS[number].verify, 3, pairs=AUDIT_PAIRS, mode="exact")
        assert report.verdict != "exact" and report.findings, MUTANTS[number].source
