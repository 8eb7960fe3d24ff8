"""Acceptance of three siblings between bounds, and the estimate of their law, against walks of all paths."""

import numpy as np
import pytest
from grid_positions import to_floats, wide_position
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import EDGE_PAIRS, prob_pairs

from resispec_sim import exact_law, open_dump
from resispec_sim.engine import grid as grid_module
from resispec_sim.engine.grid import LARGEST_STEP, MOST_WORK, bracket_three, choose_step
from resispec_sim.engine.law_grid import estimate_residual
from resispec_sim.engine.nodes import N_NODES, new_grid
from resispec_sim.engine.paths import first_rejection, run_walk
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.engine.tail import TAIL_OCTAVE, to_table
from resispec_sim.rules import ResiSpec

RULES = [
    ResiSpec(fill, budget) for fill in ("capacity", "water") for budget in ("minimal", "clipped")
]
IDS = [rule.label for rule in RULES]
KINDS = ["zipf", "top-p", "flat", "peaked", "wide", "raised", "extreme"]
ROUNDING = 1e-14  # of a sum over many paths, on either side


class Prepared:
    """One position with all that the grid and the walk need."""

    def __init__(self, p, q, budget="minimal"):
        self.rule = ResiSpec("capacity", budget)
        self.space = to_ratio_space(p, q)
        self.first = first_rejection(self.rule, self.space)
        self.table = to_table(self.space, with_moments=True)
        self.grid = new_grid(self.table)
        self.inputs = (self.space, self.table, self.first)

    def bracket(self, tolerance=np.inf):
        return bracket_three(*self.inputs, self.grid, tolerance)

    def walk(self, *, want_law=False):
        return run_walk(self.rule, *self.inputs, 3, want_law=want_law)

    def step(self, most=MOST_WORK):
        used = np.zeros(N_NODES)
        return choose_step(
            self.space, self.table, self.first.weight, self.grid, TAIL_OCTAVE, most, used
        )


def check_bracket(bracket, exact):
    """Bounds enclose what the walk finds: of each sibling, and of each token from below."""
    np.testing.assert_allclose(bracket.low[:2], exact.accepted[:2], rtol=0, atol=1e-9)
    np.testing.assert_allclose(bracket.high[:2], bracket.low[:2], rtol=0, atol=1e-9)
    assert bracket.low[2] <= exact.accepted[2] + ROUNDING
    assert bracket.high[2] >= exact.accepted[2] - ROUNDING
    np.testing.assert_allclose(
        bracket.by_token[:2], exact.accepted_by_token[:2], rtol=0, atol=1e-10
    )
    excess = bracket.by_token[2] - exact.accepted_by_token[2]
    assert excess.max() <= ROUNDING
    # the two are sums of the same chords
    assert bracket.by_token[2].sum() == pytest.approx(bracket.low[2], abs=1e-9)
    return bracket.high[2] - bracket.low[2]


@pytest.mark.parametrize("budget", ["minimal", "clipped"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [200, 700, 3000])
def test_bracket_encloses_the_acceptance(kind, budget, vocab):
    for seed in range(6):
        prepared = Prepared(*wide_position(kind, vocab, seed), budget)
        width = check_bracket(prepared.bracket(), prepared.walk())
        assert width < 1e-5
        if kind == "wide" and vocab > 200:
            # else nothing is left to nodes, and the bounds say nothing
            assert width > 2 * ROUNDING
        if kind == "raised" and budget == "clipped" and vocab == 3000:
            # these have no rejection below them: a raised weight is the smallest ratio
            assert (prepared.first.scale < 1).any()


def tail_position(vocab, seed, *, zeros=False):
    """Nearly all tokens in the tail and easy to reject, and many a ratio below their weights."""
    rng = np.random.default_rng((vocab, seed))
    q = np.exp2(-rng.uniform(TAIL_OCTAVE + 0.2, 18.0, vocab))
    p = q * np.exp(rng.uniform(-22.0, 0.5, vocab))
    if zeros:
        p[rng.random(vocab) < 0.3] = 0.0
    q[:3], p[:3] = (0.3, 0.2, 0.02), (0.1, 0.5, 0.05)
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("step", [1, 2, 4, 8, 16])
def test_bracket_encloses_with_every_step(monkeypatch, step, zeros):
    monkeypatch.setattr(grid_module, "choose_step", lambda *_: step)
    for seed in range(3):
        prepared = Prepared(*tail_position(400, seed, zeros=zeros))
        assert check_bracket(prepared.bracket(), prepared.walk()) > 2 * ROUNDING


def test_steps_grow_with_the_work_at_all_nodes():
    prepared = Prepared(*tail_position(400, 0))
    steps = [prepared.step(most) for most in (1e12, 1e5, 3e4, 1e4, 1.0)]
    assert steps[0] == 1 and steps[-1] == LARGEST_STEP
    assert steps == sorted(steps) and len(set(steps)) > 2


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-9, 1e-320, 0.0])
def test_nodes_are_added_until_the_bounds_are_narrow_enough(monkeypatch, tolerance):
    prepared = Prepared(*tail_position(400, 0))
    monkeypatch.setattr(grid_module, "choose_step", lambda *_: 1)
    narrowest = check_bracket(prepared.bracket(), prepared.walk())
    monkeypatch.setattr(grid_module, "choose_step", lambda *_: LARGEST_STEP)
    coarse, found = prepared.bracket(), prepared.bracket(tolerance)
    width = check_bracket(found, prepared.walk())
    assert width <= max(tolerance, narrowest)
    if tolerance < narrowest:
        assert width == narrowest and found.work > coarse.work


def test_bracket_of_a_vocabulary_with_many_nodes():
    prepared = Prepared(*tail_position(8_000, 0))
    width = check_bracket(prepared.bracket(), prepared.walk())
    assert 2 * ROUNDING < width < 1e-5


# quick to walk, with up to a third of all pairs of rejections heavy
SHIPPED = [("smollm2-t1.0", i) for i in (2, 35, 49)] + [("smollm2-t0.6", i) for i in (2, 10, 49)]


@pytest.mark.parametrize(("name", "idx"), SHIPPED)
def test_shipped_positions(name, idx):
    p, q = open_dump(name).probs(idx)
    prepared = Prepared(p, q)
    exact = prepared.walk(want_law=True)
    width = check_bracket(prepared.bracket(), exact)
    assert width < 1e-5
    law = exact_law("resispec", p, q, 3, method="certified")
    expected = np.empty_like(p)
    expected[prepared.space.order] = exact.accepted_by_token.sum(axis=0) + exact.closed
    assert np.abs(law.output_probs - expected).sum() / 2 < 1e-3
    tv = np.abs(expected - p).sum() / 2
    assert law.tv_interval[0] - 1e-12 <= tv <= law.tv_interval[1] + 1e-12
    assert law.tv == pytest.approx(tv, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_estimated_residual_is_the_residual_up_to_a_factor(kind):
    prepared = Prepared(*wide_position(kind, 500, 3))
    exact = prepared.walk(want_law=True)
    residual, _ = estimate_residual(*prepared.inputs, prepared.grid)
    # known up to a factor, which the mass that is left tells
    assert residual.sum() == pytest.approx(exact.closed.sum(), abs=2e-2)
    residual *= exact.closed.sum() / residual.sum()
    assert np.abs(residual - exact.closed).sum() / 2 < 2e-3


def check_methods(rule, p, q, n, max_paths=1e6):
    """Every method gives the same law within what it claims, and only numbers."""
    exact, *others = (
        exact_law(rule, p, q, n, method=method, by_token=True, max_paths=most)
        for method, most in (
            ("exact", max_paths),
            ("auto", max_paths),
            ("auto", 1),
            ("certified", 100),
        )  # fmt: skip
    )
    for law in (exact, *others):
        for name in ("output_probs", "accepted", "accepted_by_token", "accepted_interval", "tv",
                     "kl", "tv_interval", "tv_lower_bound"):  # fmt: skip
            assert np.isfinite(getattr(law, name)).all(), name
        assert not np.isnan(law.kl_interval).any()
        assert law.output_probs.min() >= 0
        assert law.output_probs.sum() == pytest.approx(1.0, abs=1e-12)
    for law in others:
        low, high = law.accepted_interval.T
        assert (low <= exact.accepted + 1e-13).all() and (exact.accepted <= high + 1e-13).all()
        assert (law.accepted_by_token <= exact.accepted_by_token + 1e-13).all()
        for name in ("tv", "kl"):
            low, high = getattr(law, f"{name}_interval")
            if exact.method == "exact":
                assert low - 1e-12 <= getattr(exact, name) <= high + 1e-12, (name, law.method)
        if law.method == "exact":
            np.testing.assert_allclose(law.output_probs, exact.output_probs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@pytest.mark.parametrize("pair", EDGE_PAIRS, ids=lambda pair: pair.name)
def test_methods_agree_on_edge_pairs(rule, pair):
    for n in (3, 4):
        check_methods(rule, to_floats(pair.target_probs), to_floats(pair.draft_probs), n)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@given(pair=prob_pairs(max_vocab=8), n=st.integers(3, 4))
def test_methods_agree_on_random_pairs(rule, pair, n):
    check_methods(rule, *map(to_floats, pair), n)


@st.composite
def hard_pairs(draw):
    """Some hundreds of tokens in groups, each with its own size and ratio, down to 1e-250."""
    log_weight = st.one_of(
        st.floats(-12.0, 0.0),
        st.floats(-250.0, 0.0),
        st.sampled_from([-np.inf, -250.0, -300.0, -310.0, -323.0]),
    )
    sides = [], []
    for _ in range(draw(st.integers(1, 5))):
        many = draw(st.sampled_from([1, 2, 60, 150]))
        logs = draw(log_weight), draw(log_weight)
        noise = np.random.default_rng(draw(st.integers(0, 9)))
        spread = draw(st.sampled_from([0.0, 1e-12, 0.3, 3.0]))
        for side, log in zip(sides, logs, strict=True):
            with np.errstate(under="ignore"):
                side.append(10.0 ** (log + spread * noise.uniform(-1.0, 1.0, many)))
    sides = [np.concatenate(side) for side in sides]
    if draw(st.integers(0, 9)) == 0:
        sides[1] = sides[0].copy()
    for side in sides:
        if not side.sum() > 1e-300:
            side[draw(st.integers(0, side.size - 1))] = 1.0
    return tuple(side / side.sum() for side in sides)


@settings(max_examples=150)
@given(pair=hard_pairs(), budget=st.sampled_from(["minimal", "clipped"]))
@example(pair=(np.array([1.0, 0.0]), np.array([0.0, 1.0])), budget="minimal")
def test_methods_agree_on_hard_pairs(pair, budget):
    rule = ResiSpec("capacity", budget)
    prepared = Prepared(*pair, budget)
    check_bracket(prepared.bracket(), prepared.walk())
    check_methods(rule, *pair, 3)


@settings(max_examples=25)
@given(pair=hard_pairs(), rule=st.sampled_from(RULES))
def test_methods_agree_on_hard_pairs_with_four_siblings(pair, rule):
    p, q = (side[:: max(side.size // 30, 1)] for side in pair)
    if p.sum() > 1e-300 and q.sum() > 1e-300:
        check_methods(rule, p / p.sum(), q / q.sum(), 4)


VOCAB = 49_152
N_ZERO = 40_000


def huge_pairs():
    """Vocabularies of a model with targets and drafts that hold next to nothing, or all, of one."""
    rng = np.random.default_rng(8)
    zipf = 1.0 / np.arange(1, VOCAB + 1)
    noisy = zipf * np.exp(rng.normal(0.0, 1.5, VOCAB))
    cut = noisy.copy()
    cut[rng.permutation(VOCAB)[:N_ZERO]] = 0.0
    spare = np.where(cut > 0, 0.0, zipf)
    one = np.zeros(VOCAB)
    one[100] = 1.0
    yield "target cut to 9,152 tokens", cut, zipf
    yield "flat draft, target cut", cut, np.ones(VOCAB)
    yield "draft on one token", zipf, one
    yield "target on one token", one, zipf
    yield "both on one token", one, one
    yield "both on one token, another", one, one[::-1]
    yield "equal", zipf, zipf
    yield "equal and cut", cut, cut
    yield "disjoint", cut, spare
    yield "draft subnormal but for one token", zipf, one + 1e-310 * noisy
    yield "both subnormal but for one token", one + 1e-312 * noisy, one + 1e-310 * zipf


HUGE = {name: (p / p.sum(), q / q.sum()) for name, p, q in huge_pairs()}


@pytest.mark.parametrize("name", HUGE)
def test_methods_agree_in_a_large_vocabulary(name):
    p, q = HUGE[name]
    check_methods(ResiSpec(), p, q, 3, max_paths=1e8)


@pytest.mark.parametrize("n", [2, 3])
def test_mass_of_a_large_vocabulary_with_a_flat_draft(n):
    # a plain sum over the 180,000 tokens without target mass is off by more than a law may be
    rng = np.random.default_rng(8)
    p = np.exp(rng.normal(0.0, 1.5, 200_000)) / np.arange(1, 200_001)
    p[rng.permutation(p.size)[:180_000]] = 0.0
    law = exact_law("resispec", p / p.sum(), np.full(p.size, 1.0 / p.size), n)
    assert law.method == "exact"
    assert law.output_probs.sum() == pytest.approx(1.0, abs=4e-13)


def test_a_token_that_weighs_nothing_at_a_node_has_a_slope_there():
    """Its ratio is the float below a node: it is among the node's children, of weight 0."""
    node = 0.0004024505615234375
    heavy = 0.15247914532938242
    light = np.round(node * (1 + 1 / 500) * 2**40) / 2**40
    rest = 1.0 - heavy - 60 * 2.0**-10 - 800 * light
    q = np.concatenate(
        ([heavy], np.full(60, 2.0**-10), np.full(800, light), np.full(32, rest / 32))
    )
    p = np.concatenate(([node * heavy], np.zeros(860), np.full(32, (1 - node * heavy) / 32)))
    bounded = exact_law("resispec", p, q, 3, method="certified", max_paths=1)
    exact = exact_law("resispec", p, q, 3, method="exact")
    low, high = bounded.accepted_interval.T
    assert (low <= exact.accepted + 1e-15).all() and (exact.accepted <= high + 1e-15).all()


@pytest.mark.parametrize("many", [18_000, 100_000])
def test_bounds_allow_for_the_rounding_of_equal_terms(many):
    """Two levels: what each sibling accepts is Q, (1 - Q) Q and (1 - Q)**2 Q."""
    q = np.concatenate((np.full(many, 0.71 / many), np.full(1000, 0.29 / 1000)))
    p = np.concatenate((np.zeros(many), np.full(1000, 1 / 1000)))
    law = exact_law("resispec", p, q, 3, method="certified", max_paths=1)
    low, high = law.accepted_interval.T
    true = 0.29 * 0.71 ** np.arange(3)
    assert (low - 1e-13 <= true).all() and (true <= high + 1e-13).all()
