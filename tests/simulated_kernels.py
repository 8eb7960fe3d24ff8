"""Cases that run the GPU kernels' own code in numba's CUDA simulator; a script, run by its test.

The simulator must be chosen before `numba.cuda` is imported, so it gets a process of its own, started
with ``NUMBA_ENABLE_CUDASIM=1``. Prints one JSON object: the largest error of each case, or what it saw.
"""

import json
import os
import sys

import numpy as np
from strategies import EDGE_PAIRS

from resispec_sim import exact_law
from resispec_sim.engine import enumerate_law
from resispec_sim.engine.gpu import batch, first_level, launch, walk
from resispec_sim.engine.gpu.arrays import prepare
from resispec_sim.engine.gpu.layout import BUCKET_SHIFT, HIGHEST_BUCKET, LOWEST_BUCKET, N_OVER, RHO
from resispec_sim.rules import ResiSpec

BLOCKS = launch.Blocks(walk=3, token=4, look_up=1)


def to_float(values):
    return np.array([float(value) for value in values])


def edge_batch(pairs):
    """Pairs of different sizes in one batch: tokens that nobody has fill up the smaller ones."""
    size = max(len(pair.target_probs) for pair in pairs)
    rows = [np.zeros((len(pairs), size)) for _ in range(2)]
    for i, pair in enumerate(pairs):
        for side, probs in zip(rows, pair[1:], strict=True):
            side[i, : len(probs)] = to_float(probs)
    return rows


def worst(law, expected):
    """Largest difference of any figure of two laws, or of a law and the oracle's."""
    pairs = ((getattr(law, name), getattr(expected, name)) for name in FIGURES)
    return max(float(np.abs(a - np.array([to_float(r) for r in b])).max())
               if np.ndim(a) == 2 else float(np.abs(a - to_float(b)).max())
               for a, b in pairs)  # fmt: skip


FIGURES = ("output_probs", "accepted", "accepted_by_token")


def forbidden(b, p, q):
    raise AssertionError(f"position {b} was left to the CPU")


def laws(rule, p, q, n, on_cpu=forbidden, **options):
    settings = {"method": "exact", "by_token": True, "max_paths": 1e6} | options
    return batch.laws_of_batch(rule, p, q, n, on_cpu=on_cpu, blocks=BLOCKS, **settings)


def edge_error(fill, n):
    # an overflowing ratio is left to the CPU engine by the fill that it matters to
    pairs = [pair for pair in EDGE_PAIRS if pair.name != "subnormal"]
    found = laws(ResiSpec(fill), *edge_batch(pairs), n)
    error = 0.0
    for law, pair in zip(found, pairs, strict=True):
        oracle = enumerate_law(ResiSpec(fill), *pair[1:], n)
        size = len(pair.target_probs)
        assert law.method == "exact" and not law.notes and not law.output_probs[size:].any()
        cut = {name: getattr(law, name)[..., :size] for name in FIGURES if name != "accepted"}
        error = max(error, worst(type("Cut", (), cut | {"accepted": law.accepted}), oracle))
    return error


def random_pair(vocab_size, concentration, zeros, seed):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(vocab_size, concentration), 2)
    rows *= rng.random(rows.shape) >= zeros
    return rows / rows.sum(axis=1, keepdims=True)


def engine_error(rule, vocab_size, n, concentration=0.3, zeros=0.0):
    p, q = random_pair(vocab_size, concentration, zeros, vocab_size)
    (law,) = laws(rule, p[None], q[None], n)
    expected = exact_law(rule, p, q, n, method="exact", by_token=True)
    assert law.notes == expected.notes
    return max(worst(law, expected), abs(law.tv - expected.tv), abs(law.kl - expected.kl))


def acceptance_error(n):
    """The walk without a law, and the accepted mass of all siblings together."""
    p, q = random_pair(12, 0.3, 0.0, 5)
    space = prepare(p[None], q[None])
    buckets = launch.find_buckets(space, BLOCKS)
    walked = launch.walk_batch(space, buckets, n, want_law=False, blocks=BLOCKS)
    law = exact_law(ResiSpec(), p, q, n, by_token=True)
    return max(
        float(np.abs(walked.laws.accepted[0] - law.accepted).max()),
        float(np.abs(walked.laws.accepted_total[0] - law.accepted_by_token.sum(axis=0)).max()),
    )


def quick_buckets(space, blocks):
    """What `find_buckets` finds: its kernel would be most of the time."""
    bits = np.arange(LOWEST_BUCKET, HIGHEST_BUCKET + 2, dtype=np.int64) << BUCKET_SHIFT
    found = [
        np.searchsorted(table[RHO, : sizes[N_OVER]], bits.view(np.float64))
        for table, sizes in zip(space.table, space.sizes, strict=True)
    ]
    buckets = np.array(found, dtype=np.int32)
    buckets[:, 0] = 0
    return buckets


def left_to_the_cpu():
    """What is left to the CPU engine, and why."""
    p, q = random_pair(12, 0.3, 0.0, 1)
    seen = []

    def on_cpu(b, p_row, q_row):
        seen.append(b)
        return exact_law(ResiSpec(), p_row, q_row, 3)

    def note(*args, **options):
        (law,) = laws(*args, on_cpu=on_cpu, **options)
        return law.notes[-1]

    few = {"method": "auto", "max_paths": 5}
    notes = {
        "predicted": note(ResiSpec(), p[None], q[None], 3, **few),
        "method": note(ResiSpec(), p[None], q[None], 3, method="sampled"),
        "fill": note(ResiSpec("index"), p[None], q[None], 3),
        "siblings": note(ResiSpec(), p[None], q[None], 9, method="auto"),
    }
    predict = launch.predict_steps
    launch.predict_steps = lambda *args, **options: 0.0 * predict(*args, **options)
    notes["given up"] = note(ResiSpec(), p[None], q[None], 3, **few)
    launch.predict_steps = predict
    # a kernel that gets a term wrong must be found out, not believed
    right = walk.light_terms

    def wrong(*args):
        cw, spread = right(*args)
        return 1.01 * cw, spread

    first_level.light_terms = walk.light_terms = wrong
    p, q = random_pair(12, 20.0, 0.0, 1)  # all states after the first rejection are light
    notes["wrong"] = note(ResiSpec(), p[None], q[None], 3)
    first_level.light_terms = walk.light_terms = right
    assert seen == [0] * len(notes)
    return notes


def edge_cases():
    return {
        f"edge {fill} n={n}": edge_error(fill, n)
        for fill in ("capacity", "water")
        for n in (1, 2, 3, 4)
    }


def engine_cases():
    found = {}
    for fill in ("capacity", "water"):
        rule = ResiSpec(fill)
        found |= {
            f"{fill} n=2 V=200": engine_error(rule, 200, 2),
            f"{fill} n=3 V=40": engine_error(rule, 40, 3, 0.1),
            f"{fill} n=3 zeros": engine_error(rule, 20, 3, 0.2, 0.5),
            f"{fill} n=4 V=6": engine_error(rule, 6, 4),
            f"{fill} clipped": engine_error(ResiSpec(fill, "clipped"), 5, 3),
        }
    found["capacity n=5 V=5"] = engine_error(ResiSpec(), 5, 5)
    return found | {f"acceptance n={n}": acceptance_error(n) for n in (2, 4)}


def preparation():
    """The kernels of the preparation: the buckets, and steps predicted over steps taken."""
    p, q = random_pair(60, 0.3, 0.0, 2)
    space = prepare(p[None], q[None])
    buckets = launch.find_buckets(space, BLOCKS)
    found = {"buckets": bool((buckets == quick_buckets(space, BLOCKS)).all())}
    for n in (3,):
        walked = launch.walk_batch(space, buckets, n, blocks=BLOCKS)
        predicted = launch.predict_steps(space, buckets, n, blocks=BLOCKS)
        found[f"predicted n={n}"] = float(predicted[0] / walked.steps[0])
    return found


GROUPS = {
    "edges": edge_cases,
    "engine": engine_cases,
    "preparation": preparation,
    "cpu": left_to_the_cpu,
}

if __name__ == "__main__":
    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    # The simulator's threads wait for one another: with the usual turns of 5 ms that is all they do.
    sys.setswitchinterval(1e-5)
    if sys.argv[1] in ("edges", "engine"):
        launch.find_buckets = quick_buckets
        launch.predict_steps = lambda space, *args, **options: np.zeros(space.table.shape[0])
    print(json.dumps(GROUPS[sys.argv[1]]()))
