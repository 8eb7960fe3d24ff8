"""Array code of the GPU engine on the CPU: two array libraries, the CPU engine, and the way in."""

import subprocess
import sys
from fractions import Fraction
from itertools import accumulate
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import EDGE_PAIRS, prob_pairs

from resispec_sim import exact_law
from resispec_sim.engine import distances
from resispec_sim.engine.gpu import devices
from resispec_sim.engine.gpu.arrays import exact_sums, first_weights, prepare, sum_up
from resispec_sim.engine.gpu.batch import check_rows, laws_of_batch, laws_on_gpu
from resispec_sim.engine.gpu.closed_forms import (
    excess,
    kl_divergence,
    specinfer_laws,
    total_variation,
)
from resispec_sim.engine.gpu.launch import chunk_of, items_of
from resispec_sim.engine.gpu.layout import N_TOTALS, n_sum_rows
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.errors import DeviceError, DistributionError, InputError, VocabularyError
from resispec_sim.rules import RrsWor, SpecInfer

STRICT = array_api_strict.asarray


def to_float(values):
    return np.array([float(value) for value in values])


def random_rows(n_positions, vocab_size, zeros=0.3, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocab_size, 0.3), (2, n_positions))
    rows *= rng.random(rows.shape) >= zeros
    return rows / rows.sum(axis=-1, keepdims=True)


def same(strict, plain):
    np.testing.assert_array_equal(np.from_dlpack(strict), plain)


def test_array_code_needs_nothing_but_the_standard():
    p, q = random_rows(3, 20)
    spaces = prepare(STRICT(p), STRICT(q)), prepare(p, q)
    for strict, plain in zip(*spaces, strict=True):
        same(strict, plain)
    for budget in ("minimal", "clipped"):
        for strict, plain in zip(*(first_weights(s, budget) for s in spaces), strict=True):
            same(strict, plain)
    rng = np.random.default_rng(0)
    for by_token in (True, False):
        sums = rng.random((3, n_sum_rows(3, by_token), 21))
        totals = rng.random((3, N_TOTALS))
        options = {"by_token": by_token, "want_law": True}
        laws = (
            sum_up(spaces[0], STRICT(sums), STRICT(totals), 3, **options),
            sum_up(spaces[1], sums, totals, 3, **options),
        )
        for strict, plain in zip(*laws, strict=True):
            assert (strict is None) == (plain is None)
            if plain is not None:
                same(strict, plain)
    for figure in (total_variation, kl_divergence, excess):
        same(figure(STRICT(p), STRICT(q)), figure(p, q))
    children = np.array([[0, 5, 1], [7, 0, 0]])
    for strict, plain in zip(items_of(STRICT(children), 4), items_of(children, 4), strict=True):
        same(strict, plain)


@given(pair=prob_pairs(max_vocab=8))
def test_ratio_order_is_that_of_the_cpu_engine(pair):
    p, q = map(to_float, pair)
    space, expected = prepare(p[None], q[None]), to_ratio_space(p, q)
    names = ("rho", "p", "q", "prefix_p", "prefix_p_low", "suffix_q", "suffix_q_low")
    for row, name in zip(space.table[0], names, strict=True):
        values = getattr(expected, name)
        atol = 1e-18 if name.endswith("low") else 0  # the CPU engine's extended precision
        np.testing.assert_allclose(row[: values.size], values, rtol=1e-15, atol=atol)
    sizes = (expected.n_zero, expected.n_drafted, expected.n_over)
    assert tuple(space.sizes[0]) == sizes
    assert space.n_overflow[0] == expected.n_overflow


def test_running_sums_hold_what_float64_drops():
    values = np.sort(np.random.default_rng(0).dirichlet(np.full(5000, 0.1)))
    exact = list(accumulate(map(Fraction, values)))
    (high,), (low,) = exact_sums(values[None])
    plain = np.cumsum(values)
    assert max(abs(sum_ - e) for sum_, e in zip(map(Fraction, plain), exact, strict=True)) > 1e-16
    for i, e in enumerate(exact, start=1):
        # the nearest float64 and what it leaves out; small sums keep their digits too
        assert abs(Fraction(high[i]) - e) <= e * (2**-52 if e > 1e-9 else i * 2**-53)
        assert abs(Fraction(high[i]) + Fraction(low[i]) - e) <= 1e-30 + 1e-28 * e


def test_children_are_shared_out_among_blocks():
    children = np.random.default_rng(0).integers(0, 50, (3, 20))
    chunk = chunk_of(3, True, 4)
    parents, starts = items_of(children, chunk)
    seen = np.zeros(children.size, dtype=int)
    for parent, start in zip(parents, starts, strict=True):
        assert start % chunk == 0 and start < children.flat[parent]
        seen[parent] += min(chunk, children.flat[parent] - start)
    np.testing.assert_array_equal(seen, children.ravel())
    assert all(part.size == 0 for part in items_of(0 * children, 4))


@given(pair=prob_pairs(), n_siblings=st.integers(1, 5))
def test_specinfer_is_that_of_the_cpu_engine(pair, n_siblings):
    p, q = map(to_float, pair)
    found = specinfer_laws(p[None], q[None], n_siblings, by_token=True)
    expected = exact_law("specinfer", p, q, n_siblings, by_token=True)
    close = {"rtol": 0, "atol": 1e-14}
    np.testing.assert_allclose(found.law[0], expected.output_probs, **close)
    np.testing.assert_allclose(found.accepted[0], expected.accepted, **close)
    np.testing.assert_allclose(found.accepted_by_token[0], expected.accepted_by_token, **close)
    assert found.error[0] < 1e-14


@given(pair=prob_pairs())
def test_distances_are_those_of_the_cpu_engine(pair):
    p, q = map(to_float, pair)
    rows = p[None], q[None]
    assert total_variation(*rows)[0] == pytest.approx(distances.total_variation(p, q), abs=1e-15)
    assert kl_divergence(*rows)[0] == pytest.approx(distances.kl_divergence(p, q), abs=1e-13)
    assert excess(*rows)[0] == pytest.approx(np.maximum(p - q, 0).sum(), abs=1e-15)


def forbidden(b, p, q):
    raise AssertionError(f"position {b} was left to the CPU")


def test_a_batch_of_any_array_library_becomes_laws():
    p, q = random_rows(4, 12)
    settings = {"method": "auto", "by_token": True, "max_paths": 1e6, "on_cpu": forbidden}
    rows = laws_of_batch(SpecInfer(), STRICT(p), STRICT(q), 3, **settings)
    expected = exact_law("specinfer", p, q, 3, by_token=True)
    for i, law in enumerate(rows):
        assert law.method == "exact" and law.notes == ()
        np.testing.assert_allclose(law.accepted_by_token, expected.accepted_by_token[i], atol=1e-15)
        assert law.tv_lower_bound == pytest.approx(expected.tv_lower_bound[i], abs=1e-15)


def test_rows_are_checked_where_they_are():
    p, _ = random_rows(3, 5)
    np.testing.assert_allclose(check_rows(STRICT(p), "p"), p, atol=1e-16)
    for value in (np.nan, -1.0, 2.0):
        bad = p.copy()
        bad[1, 2] = value
        with pytest.raises(DistributionError, match="row 1"):
            check_rows(STRICT(bad), "p")


@pytest.fixture
def numpy_as_cupy(monkeypatch):
    """The way in with numpy in cupy's place: closed forms need no kernel."""
    stand_in = SimpleNamespace(ndarray=np.ndarray, asarray=np.asarray)
    for module in ("law", "gpu.batch"):
        monkeypatch.setattr(f"resispec_sim.engine.{module}.require_gpu", lambda: stand_in)


SAMPLED = {"method": "sampled", "by_token": False, "max_paths": 1000}


@pytest.mark.usefixtures("numpy_as_cupy")
def test_device_of_exact_law():
    p, q = random_rows(3, 12)
    for pair in ((p, q), (p[0], q[0]), (p.tolist(), q.tolist())):
        found, expected = (exact_law("specinfer", *pair, 3, device=d) for d in ("cuda", "cpu"))
        np.testing.assert_allclose(found.output_probs, expected.output_probs, atol=1e-15)
        assert np.shape(found.tv) == np.shape(expected.tv)
    law = exact_law("rrs-wor", p, q, 2, device="cuda", seed=3)
    same_law = exact_law("rrs-wor", p, q, 2, seed=3)
    np.testing.assert_array_equal(law.output_probs, same_law.output_probs)
    assert all("computed on the CPU: the GPU engine has no rrs-wor" in n[-1] for n in law.notes)
    rows = laws_on_gpu(RrsWor(), p, q, 5, seeds=[7, 8, 9], **SAMPLED)
    for i, row in enumerate(rows):
        alone = exact_law(RrsWor(), p[i], q[i], 5, seed=7 + i, **SAMPLED)
        np.testing.assert_array_equal(row.output_probs, alone.output_probs)
    with pytest.raises(InputError, match="one row for each of 2 seeds"):
        laws_on_gpu(SpecInfer(), p, q, 2, seeds=[1, 2], **SAMPLED)
    with pytest.raises(VocabularyError):
        exact_law("specinfer", p, q[:, :-1], 2, device="cuda")
    with pytest.raises(InputError, match="'tpu'"):
        exact_law("specinfer", p, q, 2, device="tpu")


def test_without_a_gpu_the_error_says_what_to_install(monkeypatch):
    p, q = random_rows(1, 4)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"cupy.*pip install 'resispec-sim\[gpu\]'"):
        exact_law("specinfer", p, q, 2, device="cuda")


@pytest.mark.parametrize("count", [0, RuntimeError("no driver")])
def test_packages_without_a_gpu_are_a_device_error(monkeypatch, count):
    def device_count():
        if isinstance(count, Exception):
            raise count
        return count

    runtime = SimpleNamespace(getDeviceCount=device_count)
    stand_in = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", SimpleNamespace())
    monkeypatch.setattr("array_api_compat.cupy", SimpleNamespace(), raising=False)
    with pytest.raises(DeviceError, match="no usable NVIDIA GPU"):
        devices.require_gpu()


class OnGpu:
    """An array that says it is on a GPU; its memory is never asked for by way of the CPU."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **options):
        raise BufferError("not to the CPU")


def test_arrays_on_a_gpu_are_shared_not_copied():
    array = OnGpu()
    shared = np.zeros(3)
    cupy = SimpleNamespace(
        ndarray=np.ndarray, from_dlpack=lambda values: {id(array): shared}[id(values)]
    )
    assert devices.to_device("p", array, cupy) is shared
    with pytest.raises(InputError, match="use device='cuda'"):
        exact_law("specinfer", array, array, 2)


def test_torch_tensors_are_shared():
    torch = pytest.importorskip("torch")
    p, q = random_rows(2, 6)
    tensors = torch.from_numpy(p), torch.from_numpy(q)
    assert np.shares_memory(devices.to_host("p", tensors[0]), p)
    law = exact_law("resispec", *tensors, 2)
    np.testing.assert_array_equal(law.output_probs, exact_law("resispec", p, q, 2).output_probs)
    with pytest.raises(InputError, match="detach"):
        exact_law("resispec", tensors[0].clone().requires_grad_(), tensors[1], 2)


def test_engine_needs_no_package_of_the_command_line():
    code = """
import importlib, pkgutil, sys
for name in ("rich", "cyclopts", "msgspec"):
    sys.modules[name] = None
import resispec_sim.engine as engine
for module in pkgutil.walk_packages(engine.__path__, "resispec_sim.engine."):
    importlib.import_module(module.name)
from resispec_sim import exact_law
print(exact_law("resispec", [0.25, 0.25, 0.5], [0.5, 0.5, 0.0], 1).output_probs)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[0.4", "0.4", "0.2]"]


def test_every_edge_pair_prepares_without_a_warning():
    for pair in EDGE_PAIRS:
        p, q = to_float(pair.target_probs)[None], to_float(pair.draft_probs)[None]
        space = prepare(p, q)
        assert not np.isnan(space.table).any()
        assert np.isfinite(kl_divergence(p, p)).all()
