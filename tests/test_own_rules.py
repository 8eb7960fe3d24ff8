"""A rule that a user writes has a law; a faulty one gets a named error."""

import numpy as np
import pytest

from resispec_sim import exact_law
from resispec_sim.errors import MassError, RuleError
from resispec_sim.rules import Rejection


class TestARuleOfYourOwn:
    """A rule that a user writes has a law; a faulty one gets a named error."""

    def test_it_has_a_law(self):
        class Half(Rejection):
            def accept_probs(self, state):
                return state[1] / 2

        rng = np.random.default_rng(0)
        p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
        law = exact_law(Half(), p, q, 1)
        assert law.tv > 1e-3
        # half the acceptance, the same residual after all else
        accepted = np.minimum(p, q) / 2
        rest = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
        np.testing.assert_allclose(
            law.output_probs, accepted + (1 - accepted.sum()) * rest, atol=1e-14
        )

    def test_faults_of_a_rule_are_named(self):
        class Unnormalised(Rejection):
            def last_residual(self, state):
                return 2 * state[0]

        class NotANumber(Rejection):
            def accept_probs(self, state):
                return state[1] * np.nan

        class Short(Rejection):
            def accept_probs(self, state):
                return state[1][:1]

        class NotPathFree(Rejection):
            def after_rejection(self, state, token):
                residual = state[2] * 0
                residual[token] = 1
                return residual, state[1] * 0, residual

        class Editing(Rejection):
            path_free = False

            def after_rejection(self, state, token):
                state[0][token] = 0
                return state

        class Drawn(Rejection):
            siblings = "somehow"

        p, q = [0.5, 0.3, 0.2], [0.2, 0.4, 0.4]
        for rule, error, says in (
            (Unnormalised(), MassError, "sums to 2"),
            (NotANumber(), MassError, "nan"),
            (Short(), MassError, "one number per token"),
            (NotPathFree(), RuleError, "path_free"),
            (Editing(), ValueError, "read-only"),
            (Drawn(), RuleError, "somehow"),
        ):
            for method in ("auto", "sampled"):
                with pytest.raises(error, match=says):
                    exact_law(rule, p, q, 1, method=method)

    def test_a_probability_above_one_is_refused(self):
        class Twice(Rejection):
            def accept_probs(self, state):
                return state[1] * 2

        with pytest.raises(MassError, match=r"\[0, 1\]"):
            exact_law(Twice(), [0.5, 0.5], [0.4, 0.6], 1)
