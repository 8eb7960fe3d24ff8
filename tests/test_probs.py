"""Laws of the step from logits to probabilities, and of vocabulary alignment."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim.errors import DistributionError, InputError, LogitsError, VocabularyError
from resispec_sim.probs import align_vocabularies, check_probs, logits_to_probs
from resispec_sim.provenance import provenance

INF = math.inf


def slow_probs(logits, temperature=1.0, top_k=None, top_p=None):
    """The definition on one row, token by token, in Python floats."""
    scores = [float(x) / temperature for x in logits]
    if top_k:
        kth = sorted(scores, reverse=True)[min(top_k, len(scores)) - 1]
        scores = [-INF if s < kth else s for s in scores]

    def softmax(values):
        peak = max(values)
        weights = [math.exp(v - peak) for v in values]
        return [w / math.fsum(weights) for w in weights]

    probs = softmax(scores)
    if top_p is not None:
        # From the most likely token down; of tied tokens the higher id first.
        order = sorted(range(len(probs)), key=lambda i: (probs[i], i), reverse=True)
        reached, kept = 0.0, set()
        for i in order:
            if kept and reached >= top_p:
                break
            kept.add(i)
            reached += probs[i]
        probs = softmax([s if i in kept else -INF for i, s in enumerate(scores)])
    return np.array(probs)


# Logits on a coarse grid, so that ties are common, and with tokens that cannot occur.
rows = st.lists(
    st.one_of(st.integers(-12, 12).map(lambda i: i / 4), st.just(-INF)), min_size=1, max_size=9
).filter(lambda row: max(row) > -INF)


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from([0.25, 0.6, 1.0, 2.5]), st.sampled_from([None, 0, 1, 2, 3, 50]))
def test_temperature_and_top_k_follow_their_definition(row, temperature, top_k):
    found = logits_to_probs(row, temperature=temperature, top_k=top_k)
    np.testing.assert_allclose(found, slow_probs(row, temperature, top_k), rtol=1e-13, atol=0)


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from([None, 2, 4]), st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_it(row, top_k, top_p):
    full = logits_to_probs(row, top_k=top_k)
    found = logits_to_probs(row, top_k=top_k, top_p=top_p)
    kept = np.flatnonzero(found)
    mass = full[kept].sum()
    assert mass >= top_p - 1e-12
    # Without its least likely member the set falls short; and nothing outside is likelier.
    assert kept.size == 1 or mass - full[kept].min() < top_p + 1e-12
    outside = np.setdiff1d(np.arange(len(row)), kept)
    assert not outside.size or full[outside].max() <= full[kept].min()
    np.testing.assert_allclose(found[kept], full[kept] / mass, rtol=1e-12)


def test_a_boundary_that_is_met_exactly_adds_no_token():
    assert np.count_nonzero(logits_to_probs(np.log([0.5, 0.25, 0.25]), top_p=0.5)) == 1
    assert np.count_nonzero(logits_to_probs(np.log([0.5, 0.25, 0.25]), top_p=0.5000001)) == 2


def test_ties_at_the_edges():
    row = [1.0, 3.0, 3.0, 3.0, 0.0]
    assert logits_to_probs(row, top_k=2).tolist() == [0.0, 1 / 3, 1 / 3, 1 / 3, 0.0]
    assert logits_to_probs(row, top_p=1e-9).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert logits_to_probs(row, temperature=0).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_order_is_temperature_then_top_k_then_top_p():
    row = np.log([0.4, 0.3, 0.2, 0.1])
    # At T = 0.5 the two largest hold .64 and .36 of what top-k leaves, so top-p 0.6 keeps one; it
    # would keep two if it came before the temperature (.4 < .6) or before top-k (.533 < .6).
    assert logits_to_probs(row, temperature=0.5, top_k=2, top_p=0.6).tolist() == [1, 0, 0, 0]
    assert np.count_nonzero(logits_to_probs(row, top_k=2, top_p=0.6)) == 2
    assert np.count_nonzero(logits_to_probs(row, temperature=0.5, top_p=0.6)) == 2


def test_same_as_the_processors_of_transformers():
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(7)
    logits = rng.normal(scale=3, size=(6, 500)).astype(np.float32)
    logits[:, ::7] = logits[:, :1]  # ties
    scores = torch.from_numpy(logits.astype(np.float64))
    for warp in (
        process.TemperatureLogitsWarper(0.7),
        process.TopKLogitsWarper(60),
        process.TopPLogitsWarper(0.83),
    ):
        scores = warp(None, scores)
    expected = torch.softmax(scores, dim=-1).numpy()
    found = logits_to_probs(logits, temperature=0.7, top_k=60, top_p=0.83)
    assert np.array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.7}, {"temperature": 0}])
def test_leading_axes_are_independent_rows_and_inputs_stay_as_they_are(options):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(2, 3, 11))
    logits[0, 1, 4:] = -INF
    before = logits.copy()
    together = logits_to_probs(logits, **options)
    assert np.array_equal(logits, before)
    for index in np.ndindex(2, 3):
        assert np.array_equal(together[index], logits_to_probs(logits[index], **options))
    assert np.array_equal(logits_to_probs(logits[:, ::-1], **options), together[:, ::-1])
    assert logits_to_probs(np.empty((0, 4)), **options).shape == (0, 4)


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(-(10**6), 10**6), st.randoms(use_true_random=False))
def test_shifting_logits_changes_nothing_and_permuting_permutes(row, shift, random):
    probs = logits_to_probs(row)
    assert abs(probs.sum() - 1) < 1e-15 * (len(row) + 1)
    assert np.array_equal(logits_to_probs(np.array(row) + shift), probs)
    order = list(range(len(row)))
    random.shuffle(order)
    np.testing.assert_allclose(logits_to_probs(np.array(row)[order]), probs[order], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_types_are_computed_in_float64(dtype):
    logits = np.random.default_rng(3).normal(scale=4, size=5000).astype(dtype)
    found = logits_to_probs(logits)
    assert found.dtype == np.float64
    assert np.array_equal(found, logits_to_probs(logits.astype(np.float64)))
    narrow = np.exp(logits - logits.max())
    assert np.abs(found - narrow / narrow.sum(dtype=np.float64)).max() > 1e-12


def test_extreme_values_give_distributions():
    assert logits_to_probs([1e308, -1e308]).tolist() == [1.0, 0.0]
    assert logits_to_probs([1.0, 0.0], temperature=5e-324).tolist() == [1.0, 0.0]
    assert logits_to_probs([5.0, 0.0, -INF], temperature=1e308).tolist() == [0.5, 0.5, 0.0]
    # Underflow is 0, not a clamp; what float64 can hold is kept.
    tail = logits_to_probs([0.0, -700.0, -800.0])
    assert tail[1] == pytest.approx(math.exp(-700), rel=1e-12) and tail[2] == 0


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_nan_and_infinity_are_named_with_row_and_token(bad):
    logits = np.zeros((4, 6))
    logits[2, 5] = bad
    with pytest.raises(LogitsError, match=r"row 2, token 5: logit is (nan|inf)"):
        logits_to_probs(logits, temperature=0)
    with pytest.raises(LogitsError, match=r"^token 5: "):
        logits_to_probs(logits[2], top_k=2)
    with pytest.raises(LogitsError, match=r"row \(1, 0\), token 5: "):
        logits_to_probs(logits.reshape(2, 2, 6))


def test_a_row_without_a_finite_entry_is_refused():
    logits = np.zeros((3, 2))
    logits[1] = -INF
    with pytest.raises(LogitsError, match="row 1, .*every logit is -inf"):
        logits_to_probs(logits)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": INF},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": math.nan},
    ],
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        logits_to_probs([0.0, 1.0], **options)


@pytest.mark.parametrize("logits", [3.0, [], np.empty((2, 0))])
def test_logits_need_a_vocabulary_axis(logits):
    with pytest.raises(InputError, match="vocabulary axis"):
        logits_to_probs(logits)


def test_check_probs_renormalises_a_copy():
    probs = np.array([[0.5, 0.5 + 4e-7], [1.0, 0.0]], dtype=np.float32)
    before = probs.copy()
    found = check_probs(probs, "p")
    assert found.dtype == np.float64 and np.array_equal(probs, before)
    assert np.abs(found.sum(axis=-1) - 1).max() < 1e-15
    assert found[0, 0] < 0.5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, math.nan, 0.5], "p: row 1, token 1: probability is nan"),
        ([1.5, 0.0, -0.5], "p: row 1, token 2: probability is -0.5"),
        ([INF, 0.0, 0.0], "p: row 1, token 0: probability is inf"),
        ([0.5, 0.3, 0.2 + 2e-6], "p: row 1, the probabilities sum to 1.000002"),
    ],
)
def test_check_probs_names_what_is_wrong(row, message):
    with pytest.raises(DistributionError, match=message):
        check_probs([[0.2, 0.3, 0.5], row], "p")


def test_padded_vocabularies_get_probability_zero_on_the_other_side():
    target, draft = align_vocabularies(np.zeros((2, 4)), np.zeros((2, 3)))
    assert target.shape == draft.shape == (2, 4)
    assert np.array_equal(logits_to_probs(draft), [[1 / 3, 1 / 3, 1 / 3, 0]] * 2)
    assert np.array_equal(logits_to_probs(target), np.full((2, 4), 0.25))
    target, draft = align_vocabularies(np.zeros(3), np.zeros(4))
    assert logits_to_probs(target)[3] == 0 and logits_to_probs(draft)[3] == 0.25


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_reduced_draft_vocabulary_is_scattered_through_its_map(data):
    n_target = data.draw(st.integers(1, 8))
    ids = data.draw(st.permutations(range(n_target)))[: data.draw(st.integers(1, n_target))]
    target, draft = np.zeros((3, n_target)), np.random.default_rng(0).normal(size=(3, len(ids)))
    _, aligned = align_vocabularies(target, draft, draft_to_target=ids)
    probs = logits_to_probs(aligned)
    assert np.array_equal(np.delete(probs, ids, axis=-1), np.zeros((3, n_target - len(ids))))
    np.testing.assert_allclose(probs[:, ids], logits_to_probs(draft), rtol=1e-15)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 4], "draft token 1 maps to 4"),
        ([-1, 0], "draft token 0 maps to -1"),
        ([2, 2], "two draft tokens map to target token 2"),
        ([0], "has 1 ids, but the draft has 2 tokens"),
        ([0.0, 1.0], "list of target token ids"),
    ],
)
def test_wrong_maps_are_refused(ids, message):
    with pytest.raises(VocabularyError, match=message):
        align_vocabularies(np.zeros(4), np.zeros(2), draft_to_target=ids)


def test_rows_that_do_not_pair_are_refused():
    with pytest.raises(InputError, match="leading axes"):
        align_vocabularies(np.zeros((2, 4)), np.zeros((3, 4)))


def test_provenance_is_plain_and_repeatable():
    parameters = {"seed": np.int64(3), "grid": (np.float64(0.5), np.arange(2)), "name": "x"}
    record = provenance(**parameters)
    assert record == provenance(**parameters)
    assert record["parameters"] == {"seed": 3, "grid": [0.5, [0, 1]], "name": "x"}
    assert record["packages"]["numpy"] == np.__version__
    assert all(record["packages"].values())
