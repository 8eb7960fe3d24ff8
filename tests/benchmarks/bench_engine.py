"""Times of the engine's parts under pytest-benchmark; `make bench` runs them, `make test` does not.

One made-up position per vocabulary, always the same, so that runs can be compared with
``--benchmark-compare``. Figures to quote come from `resispec bench`, which measures recorded positions
and gives ratios.
"""

import numpy as np
import pytest

from resispec_sim import exact_law
from resispec_sim.bench.count import count_rejected_prefixes
from resispec_sim.bench.naive import naive_law
from resispec_sim.bench.pairs import synthetic_pair
from resispec_sim.bench.preparation import softmax_baseline
from resispec_sim.bench.walks import prepare, walk
from resispec_sim.probs import logits_to_probs

VOCAB_SIZE = 49_152


@pytest.fixture(scope="module")
def pair():
    return synthetic_pair(VOCAB_SIZE, seed=0)


@pytest.fixture(scope="module")
def logits(pair):
    return np.log(np.stack(pair))


@pytest.mark.benchmark(group="preparation")
def bench_softmax_of_torch_or_numpy(benchmark, logits):
    name, make = softmax_baseline()
    benchmark.extra_info["baseline"] = name
    benchmark(make(logits))


@pytest.mark.benchmark(group="preparation")
def bench_probabilities(benchmark, logits):
    benchmark(lambda: [logits_to_probs(row) for row in logits])


@pytest.mark.benchmark(group="preparation")
def bench_ordering_and_sums(benchmark, pair):
    benchmark(prepare, *pair)


@pytest.mark.benchmark(group="preparation")
def bench_specinfer_with_law(benchmark, pair):
    law = benchmark(exact_law, "specinfer", *pair, 8)
    assert law.tv < 1e-12


@pytest.mark.benchmark(group="walk")
@pytest.mark.parametrize("n_siblings", [2, 3])
def bench_walk_with_law(benchmark, pair, n_siblings):
    benchmark.extra_info["path_steps"] = count_rejected_prefixes(*pair, n_siblings)
    benchmark(walk, prepare(*pair), n_siblings, want_law=True)


@pytest.mark.benchmark(group="walk")
@pytest.mark.parametrize("n_siblings", [3, 4])
def bench_walk_for_acceptance(benchmark, pair, n_siblings):
    benchmark.extra_info["path_steps"] = count_rejected_prefixes(*pair, n_siblings - 1)
    benchmark(walk, prepare(*pair), n_siblings, want_law=False)


@pytest.mark.benchmark(group="naive walk")
@pytest.mark.parametrize("n_siblings", [2, 3])
def bench_naive_walk(benchmark, pair, n_siblings):
    benchmark.extra_info["path_steps"] = 200
    benchmark(naive_law, *pair, n_siblings, 200)


@pytest.mark.benchmark(group="law")
@pytest.mark.parametrize("vocab_size", [8192, 32768, 131072])
def bench_resispec_law(benchmark, vocab_size):
    law = benchmark(exact_law, "resispec", *synthetic_pair(vocab_size, seed=0), 3)
    benchmark.extra_info |= {"method": str(law.method), "path_steps": int(law.n_paths)}
