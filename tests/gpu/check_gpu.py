"""Check every GPU kernel against the CPU engine and the oracle, and measure them; under six minutes.

    python tests/gpu/check_gpu.py [--json FILE] [--seconds 330]

Prints a table of checks and a table of measurements, then one line of JSON; the exit code is 1 if a
check failed. Needs a GPU and the extra ``gpu`` (or ``gpu-cuda12``); torch is used where it is installed.

This project has had no GPU so far: neither this script nor the kernels have been run on one. The
kernels were compiled to PTX for compute capability 9.0 and run in numba's CUDA simulator. What fails
here on the first run is news; the figures that it prints are the first ones.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from strategies import EDGE_PAIRS

from resispec_sim import exact_law, open_dump
from resispec_sim.engine import enumerate_law
from resispec_sim.engine.gpu import launch
from resispec_sim.engine.gpu.arrays import prepare
from resispec_sim.engine.gpu.batch import laws_of_batch, to_numpy
from resispec_sim.engine.gpu.devices import require_gpu
from resispec_sim.engine.gpu.layout import BUCKET_SHIFT, HIGHEST_BUCKET, LOWEST_BUCKET
from resispec_sim.engine.ratio_space import to_ratio_space
from resispec_sim.errors import DeviceError
from resispec_sim.rules import ResiSpec, SpecInfer

LIMIT = 1e-12
FILLS = ("capacity", "water")
DUMPS = (("smollm2-t1.0", 1.0), ("smollm2-t0.6", 0.6))
FIGURES = ("output_probs", "accepted", "accepted_by_token")


class Session:
    """Results so far, and the time that is left."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds = time.perf_counter(), seconds
        self.checks: dict[str, float] = {}
        self.figures: dict[str, float] = {}
        self.skipped: list[str] = []
        self.broken: dict[str, str] = {}

    def left(self) -> float:
        return self.seconds - (time.perf_counter() - self.start)

    def check(self, name: str, error: float, limit: float = LIMIT) -> None:
        self.checks[name] = float(error)
        verdict = "ok" if error <= limit else "FAILED"
        print(f"{name:<58}{error:>10.1e}  {verdict}", flush=True)
        if not error <= limit:
            self.broken[name] = f"error {error:.3e} passes {limit:.0e}"

    def figure(self, name: str, value: float, unit: str) -> None:
        self.figures[f"{name} [{unit}]"] = float(value)
        print(f"{name:<58}{value:>12.4g}  {unit}", flush=True)

    def stage(self, name: str, run, reserve: float) -> None:
        """Run a stage where there is time for it; what it raises is a failed check, not the end."""
        if self.left() < reserve:
            self.skipped.append(name)
            print(f"{name}: skipped, {self.left():.0f} s left", flush=True)
            return
        print(f"\n== {name} ({self.left():.0f} s left)", flush=True)
        try:
            run()
        except Exception as error:
            self.broken[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: FAILED with {self.broken[name]}", flush=True)


def to_float(values) -> np.ndarray:
    return np.array([float(value) for value in values])


def difference(law, expected, row: int | None = None) -> float:
    """Largest difference of any figure of two laws."""
    errors = []
    for name in FIGURES:
        other = getattr(expected, name)
        errors.append(np.abs(getattr(law, name) - (other if row is None else other[row])).max())
    return float(max(errors))


def random_pair(vocab_size, concentration=0.3, zeros=0.0, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocab_size, concentration), 2)
    rows *= rng.random(rows.shape) >= zeros
    return rows / rows.sum(axis=1, keepdims=True)


def like_a_model(vocab_size, seed=0):
    """A pair as peaked as a language model's: normal logits, the draft's a noisy copy."""
    rng = np.random.default_rng(seed)
    target = 3.0 * rng.standard_normal(vocab_size)
    logits = np.stack((target, target + rng.standard_normal(vocab_size)))
    rows = np.exp(logits - logits.max(axis=1, keepdims=True))
    return rows / rows.sum(axis=1, keepdims=True)


def best_of(run, cupy, n: int = 5) -> float:
    """Seconds of the fastest run, the device's work included."""
    run()
    times = []
    for _ in range(n):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        run()
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def check_oracle(session: Session) -> None:
    for fill in FILLS:
        for n in (1, 2, 3, 4):
            error = 0.0
            for pair in EDGE_PAIRS:
                if pair.name == "subnormal":
                    continue  # an overflowing ratio: the CPU engine's, too
                rows = to_float(pair.target_probs), to_float(pair.draft_probs)
                law = exact_law(
                    ResiSpec(fill), *rows, n, by_token=True, device="cuda", method="exact"
                )
                oracle = enumerate_law(ResiSpec(fill), *pair[1:], n)
                assert not law.notes, law.notes
                for name in FIGURES:
                    exact = np.array(getattr(oracle, name), dtype=object)
                    exact = np.vectorize(lambda f: float(Fraction(f)))(exact).astype(float)
                    error = max(error, float(np.abs(getattr(law, name) - exact).max()))
            session.check(f"oracle, edge pairs, {fill}, n={n}", error)


def check_engine(session: Session) -> None:
    cases = [(2, 2000, 0.3, 0.0), (3, 300, 0.3, 0.0), (3, 300, 0.2, 0.5), (4, 60, 0.3, 0.2)]
    cases += [(5, 20, 0.3, 0.0), (8, 6, 0.5, 0.0)]
    for fill in FILLS:
        for budget in ("minimal", "clipped"):
            rule, error = ResiSpec(fill, budget), 0.0
            for n, vocab_size, concentration, zeros in cases:
                pair = random_pair(vocab_size, concentration, zeros)
                options = {"method": "exact", "by_token": True}
                law = exact_law(rule, *pair, n, device="cuda", **options)
                error = max(error, difference(law, exact_law(rule, *pair, n, **options)))
                assert not any("CPU" in note for note in law.notes), law.notes
            session.check(f"CPU engine, random pairs, {rule.label}", error)
    pair = random_pair(50_000)
    for n in (1, 3, 8):
        laws = (exact_law("specinfer", *pair, n, by_token=True, device=d) for d in ("cuda", "cpu"))
        session.check(f"CPU engine, V=50000, specinfer, n={n}", difference(*laws))


def check_preparation(session: Session, cupy) -> None:
    pair = like_a_model(49_152)
    space = prepare(*(cupy.asarray(row[None]) for row in pair))
    expected = to_ratio_space(*pair)
    names = ("rho", "p", "q", "prefix_p", "prefix_p_low", "suffix_q", "suffix_q_low")
    table = to_numpy(space.table)[0]
    error = max(
        float(np.abs(table[i, : getattr(expected, name).size] - getattr(expected, name)).max())
        for i, name in enumerate(names)
        if name != "rho"
    )
    session.check("preparation, V=49152, against the CPU engine", error, 1e-15)
    bits = np.arange(LOWEST_BUCKET, HIGHEST_BUCKET + 2, dtype=np.int64) << BUCKET_SHIFT
    edges = np.searchsorted(expected.rho[: expected.n_over], bits.view(np.float64))
    edges[0] = 0
    found = to_numpy(launch.find_buckets(space))[0]
    session.check("buckets of the look-up", float(np.abs(found - edges).max()), 0.0)


def check_dlpack(session: Session, cupy) -> None:
    pair = random_pair(1000)
    expected = exact_law("resispec", *pair, 2, by_token=True)
    arrays = [cupy.asarray(row) for row in pair]
    before = [array.copy() for array in arrays]
    law = exact_law("resispec", *arrays, 2, by_token=True, device="cuda")
    session.check("cupy arrays", difference(law, expected))
    changed = max(float(cupy.abs(a - b).max()) for a, b in zip(arrays, before, strict=True))
    session.check("cupy arrays are not modified", changed, 0.0)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        session.skipped.append("torch tensors: no torch that sees the GPU")
        return
    tensors = [torch.from_numpy(row).cuda() for row in pair]
    from resispec_sim.engine.gpu.devices import to_device

    shared = to_device("p", tensors[0], cupy)
    session.check(
        "a torch tensor is not copied", float(shared.data.ptr != tensors[0].data_ptr()), 0.0
    )
    law = exact_law("resispec", *tensors, 2, by_token=True, device="cuda")
    session.check("torch tensors", difference(law, expected))


def rows_of(name: str, temperature: float):
    with open_dump(name) as dump:
        pairs = [dump.probs(position, temperature) for position in dump.iter_positions()]
    return (np.stack(rows) for rows in zip(*pairs, strict=True))


def check_dump(session: Session, cupy, name: str, temperature: float) -> None:
    """Every position at n = 3: throughput, then the CPU engine's laws of those that it walks soon."""
    p, q = rows_of(name, temperature)
    device = cupy.asarray(p), cupy.asarray(q)
    for rule in (SpecInfer(), ResiSpec(), ResiSpec("water")):
        left: list[int] = []

        def on_cpu(b, p_row, q_row, rule=rule, left=left):
            left.append(b)
            return exact_law(SpecInfer(), p_row, q_row, 3, by_token=False)

        def run(rule=rule, on_cpu=on_cpu):
            return laws_of_batch(
                rule, *device, 3, method="auto", by_token=False, max_paths=5e7, on_cpu=on_cpu
            )

        seconds = best_of(run, cupy, 2)
        laws = run()
        here = [i for i, law in enumerate(laws) if not law.notes]
        label = f"{name} at T={temperature:g}, n=3, {rule.label}"
        session.figure(f"{label}: all positions", len(laws) / seconds, "positions/s")
        session.figure(f"{label}: left to the CPU", len(set(left)), f"of {len(laws)}")
        error, deadline = 0.0, time.perf_counter() + 12
        for i in sorted(here, key=lambda i: laws[i].n_paths):
            if time.perf_counter() > deadline:
                break
            expected = exact_law(rule, p[i], q[i], 3, method="exact")
            pairs = (
                (laws[i].output_probs, expected.output_probs),
                (laws[i].accepted, expected.accepted),
            )
            error = max(error, *(float(np.abs(a - b).max()) for a, b in pairs))
            error = max(error, abs(laws[i].tv - float(expected.tv)))
        session.check(f"CPU engine, {label}", error)


def measure_steps(session: Session, cupy) -> None:
    """Path-steps per second of single positions of about 1e6, 1e7 and 1e8 steps, law and acceptance."""
    p, q = rows_of(*DUMPS[0])
    space = prepare(cupy.asarray(p), cupy.asarray(q))
    buckets = launch.find_buckets(space)
    for n, goal in ((3, 1e6), (3, 1e7), (3, 1e8), (2, 1e8), (4, 1e7)):
        predicted = to_numpy(launch.predict_steps(space, buckets, n))
        usable = np.where(predicted <= 4 * goal, predicted, 0.0)
        i = int(np.argmin(np.abs(np.log(np.maximum(usable, 1.0) / goal))))
        one = prepare(cupy.asarray(p[i : i + 1]), cupy.asarray(q[i : i + 1]))
        look_up = launch.find_buckets(one)
        for fill, want_law in (("capacity", True), ("water", True), ("capacity", False)):
            for threads in (32, 64, 128):
                if session.left() < 20:
                    return
                blocks = launch.Blocks(walk=threads)

                def run(n=n, one=one, look_up=look_up, fill=fill, want_law=want_law, blocks=blocks):
                    return launch.walk_batch(
                        one, look_up, n, fill=fill, want_law=want_law, blocks=blocks
                    )

                steps = float(run().steps[0])
                seconds = best_of(run, cupy, 3)
                what = fill if want_law else "acceptance"
                label = f"n={n}, {steps:.1e} steps, {what}, {threads} threads"
                session.figure(label, steps / seconds / 1e9, "G steps/s")


def measure_sizes(session: Session, cupy) -> None:
    """Preparation and whole laws against V, beside a softmax of the same two rows on the GPU."""
    for vocab_size in (8_192, 32_768, 131_072, 262_144):
        pair = [cupy.asarray(np.tile(row, (16, 1))) for row in like_a_model(vocab_size)]
        logits = [cupy.log(cupy.maximum(rows, 1e-300)) for rows in pair]
        softmax = best_of(softmax_of(logits, cupy), cupy)
        ready = best_of(lambda pair=pair: launch.find_buckets(prepare(*pair)), cupy)
        session.figure(f"V={vocab_size}: softmax of 16 pairs", 1e3 * softmax, "ms")
        session.figure(f"V={vocab_size}: preparation over softmax", ready / softmax, "times")
        for rule, n in ((SpecInfer(), 8), (ResiSpec(), 2)):

            def run(rule=rule, n=n, pair=pair):
                settings = {"method": "exact", "by_token": False, "max_paths": 1e9}
                return laws_of_batch(rule, *pair, n, on_cpu=None, **settings)

            session.figure(
                f"V={vocab_size}: {rule.label}, n={n}, law in numpy, over softmax",
                best_of(run, cupy, 3) / softmax,
                "times",
            )


def softmax_of(logits, cupy):
    try:
        import torch
    except ImportError:

        def run():
            for rows in logits:
                weights = cupy.exp(rows - rows.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)

        return run
    tensors = [torch.from_dlpack(rows) for rows in logits]
    return lambda: [torch.softmax(rows, dim=1) for rows in tensors]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to a file")
    parser.add_argument("--seconds", type=float, default=330, help="leave out what would pass this")
    args = parser.parse_args()
    try:
        cupy = require_gpu()
    except DeviceError as error:
        print(error)
        return 1
    gpu = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    packages = {
        name: version(name) for name in ("numba", "numba-cuda", "numpy", "array-api-compat")
    }
    machine = {
        "gpu": gpu["name"].decode(),
        "compute capability": f"{gpu['major']}.{gpu['minor']}",
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "python": platform.python_version(),
        **packages,
    }
    print(machine, flush=True)
    session = Session(args.seconds)
    session.stage("preparation", lambda: check_preparation(session, cupy), 60)
    session.stage("oracle", lambda: check_oracle(session), 60)
    session.stage("CPU engine", lambda: check_engine(session), 50)
    session.stage("arrays of other libraries", lambda: check_dlpack(session, cupy), 30)
    for dump in DUMPS:
        session.stage(f"dump {dump[0]}", lambda dump=dump: check_dump(session, cupy, *dump), 60)
    session.stage("path-steps per second", lambda: measure_steps(session, cupy), 30)
    session.stage("time against V", lambda: measure_sizes(session, cupy), 20)
    result = {
        "machine": machine,
        "seconds": time.perf_counter() - session.start,
        "checks": session.checks,
        "figures": session.figures,
        "skipped": session.skipped,
        "failed": session.broken,
    }
    print(f"\n{len(session.checks)} checks, failed: {session.broken or 'none'}")
    print(json.dumps(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if session.broken else 0


if __name__ == "__main__":
    sys.exit(main())
