"""Defaults of every command and public function, in one place.

Nothing here imports more than the standard library, so the command line can read its defaults without
loading a kernel.
"""

from dataclasses import dataclass
from typing import Literal

from .types import Backend, Device, Method

Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class EngineConfig:
    """Defaults of the exact engine.

    Attributes
    ----------
    method : str
        ``"auto"`` lets the engine choose by the predicted number of paths.
    max_paths : int
        Path-steps per position that may be walked one by one.
    tolerance : float
        Width of a bounded acceptance below which no more paths are walked for it.
    seed : int
        Seed of the sampled method.
    """

    method: Method = "auto"
    max_paths: int = 40_000_000
    tolerance: float = 1e-5
    seed: int = 0


@dataclass(frozen=True)
class GpuConfig:
    """Defaults of the GPU engine.

    Attributes
    ----------
    device : str
        Where laws are computed unless it is said: ``"cpu"`` or ``"cuda"``.
    memory_bytes : float
        Device memory that one launch may take; it decides how many positions go together.
    """

    device: Device = "cpu"
    memory_bytes: float = 4e9


@dataclass(frozen=True)
class ReplayConfig:
    """Defaults of a replay and of the figures that it pools.

    Attributes
    ----------
    rules : tuple of str
        Rules that are compared.
    siblings : int
        Candidates per position in the per-position table.
    tree : str
        Tree whose expected accepted length is reported.
    method, max_paths, seed
        Passed on to the engine.
    n_jobs : int
        Threads or processes; each holds the laws of one position at a time.
    backend : str
        Where positions are computed.
    exact_tolerance : float
        Largest total variation distance that counts as rounding.
    confidence : float
        Level of the bootstrap interval over prompts.
    bootstrap_resamples, bootstrap_seed : int
        Resamples of that interval and their seed.
    appendix_b_trajectories : int
        Trajectories per position of the Appendix B figure.
    """

    rules: tuple[str, ...] = ("specinfer", "resispec")
    siblings: int = 3
    tree: str = "d5b3"
    method: Method = EngineConfig.method
    max_paths: int = EngineConfig.max_paths
    tolerance: float = EngineConfig.tolerance
    seed: int = EngineConfig.seed
    n_jobs: int = 2
    backend: Backend = "threads"
    exact_tolerance: float = 1e-12
    confidence: float = 0.95
    bootstrap_resamples: int = 10_000
    bootstrap_seed: int = 0
    appendix_b_trajectories: int = 1


@dataclass(frozen=True)
class WorkersConfig:
    """How work over positions is cut and handed to other processes.

    Attributes
    ----------
    chunks_per_worker : int
        A chunk is at most this part of what is left for one worker, so chunks get smaller towards the
        end and all workers finish together.
    hand_back_seconds, hand_back_seconds_per_gb : float
        After so long, the second times the size of the shard in GB, a worker hands back what it has
        and the rest of its chunk. The second keeps the verification of a shard, which the next worker
        may have to repeat, a small part of the time.
    max_losses : int
        Workers that may be lost over one chunk; from the one before on the chunk runs alone.
    connect_seconds, worker_seconds, restart_seconds : float
        Wait for a scheduler, for its first worker, and for one after all were lost.
    """

    chunks_per_worker: int = 4
    hand_back_seconds: float = 0.5
    hand_back_seconds_per_gb: float = 20.0
    max_losses: int = 3
    connect_seconds: float = 5.0
    worker_seconds: float = 10.0
    restart_seconds: float = 60.0


@dataclass(frozen=True)
class RecordConfig:
    """Defaults of a recording.

    Attributes
    ----------
    target, draft : str
        The pair that travels with the package.
    new_tokens : int
        Tokens sampled per prompt.
    temperature : float
    seed : int
        Every prompt has a random stream of its own, made of this and its index.
    dtype : str
        Storage of the logits.
    torch_dtype, device : str
        Precision and place in which the models run.
    batch_size : int
        Prompts that are sampled together.
    """

    target: str = "tiny-target"
    draft: str = "tiny-draft"
    new_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0
    dtype: Dtype = "float16"
    torch_dtype: Dtype = "float32"
    device: str = "cpu"
    batch_size: int = 8


@dataclass(frozen=True)
class PairShape:
    """Shape and training of one model of the pair that travels with the package.

    Attributes
    ----------
    hidden_size, intermediate_size, n_layers, n_heads, n_key_value_heads : int
        Of a Llama.
    n_steps : int
        Steps of the optimiser.
    learning_rate : float
        Peak; it falls linearly to 0.
    """

    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    n_steps: int
    learning_rate: float


@dataclass(frozen=True)
class PairConfig:
    """How the pair that travels with the package is trained.

    Attributes
    ----------
    vocab_size : int
        Entries of the tokenizer, every byte and the end of text included.
    context : int
        Tokens of the context window.
    target, draft : PairShape
    batch_tokens, short_block : int
        Tokens per step, and tokens per block but for the last `long_share` of the steps, whose blocks
        fill the context window.
    long_share, held_out_share : float
        Shares of the steps and of the text.
    seed : int
    """

    vocab_size: int = 1024
    context: int = 512
    target: PairShape = PairShape(128, 448, 4, 4, 2, n_steps=1100, learning_rate=4e-3)
    draft: PairShape = PairShape(64, 160, 2, 2, 1, n_steps=600, learning_rate=6e-3)
    batch_tokens: int = 2048
    short_block: int = 128
    long_share: float = 0.15
    held_out_share: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class TreeConfig:
    """Defaults of the tree optimiser.

    Attributes
    ----------
    rule : str
    budget : int
        Nodes, the root included.
    max_branching, shaped_branching, walked_branching : int
        Most children of a node; the second for exact shaping, which is solved for every number of
        them, the third for rules whose law takes a walk over paths of rejections.
    beside : tuple of str
        Trees that the optimised ones are shown beside. The deepest also gives the depth limit.
    """

    rule: str = "specinfer"
    budget: int = 64
    max_branching: int = 32
    shaped_branching: int = 12
    walked_branching: int = 4
    beside: tuple[str, ...] = ("d5b3", "d7b2", "d4b5", "d3b11")


@dataclass(frozen=True)
class BoundsConfig:
    """Defaults of the table of acceptance beside the optima.

    Attributes
    ----------
    siblings : tuple of int
    rules : tuple of str
    """

    siblings: tuple[int, ...] = (2, 3, 4, 8)
    rules: tuple[str, ...] = (
        "specinfer",
        "rrs-wor",
        "k-seq",
        "spechub",
        "nss",
        "target-only",
        "exact-shaping",
    )


@dataclass(frozen=True)
class AuditConfig:
    """Defaults of an audit.

    Attributes
    ----------
    siblings : str
        How siblings are drawn.
    tolerance : float
        Total variation distance up to which a computed law counts as the target.
    least_bias : float
        Total variation distance that a shrunk counterexample keeps at least.
    max_tuples : int
        Sibling tuples of one pair up to which every one is enumerated.
    max_shrink_calls : int
        Calls of the verifier that are spent on shrinking a counterexample.
    n_pattern_pairs : int
        Pairs at which a known fault must agree with the verifier before it is named.
    seed : int
        Seed of everything random.
    alpha : float
        Probability with which an exact verifier may be called biased in sampling mode.
    max_samples : int
        Tokens drawn at most in sampling mode.
    batch_size : int
        Tokens drawn between two updates of the bets in sampling mode.
    """

    siblings: str = "iid"
    tolerance: float = 1e-9
    least_bias: float = 1e-6
    max_tuples: int = 1500
    max_shrink_calls: int = 40_000
    n_pattern_pairs: int = 8
    seed: int = 0
    alpha: float = 1e-3
    max_samples: int = 20_000
    batch_size: int = 256


@dataclass(frozen=True)
class BenchConfig:
    """Defaults of the benchmark.

    Attributes
    ----------
    parts : tuple of str
        What is measured.
    dumps : tuple of str
        Dumps whose positions are measured, each at its own temperature.
    siblings : int
        Candidates where every position is measured and compared with the model of its cost.
    more_siblings : tuple of int
        Candidates of the runs over whole dumps.
    vocab_sizes : tuple of int
        Vocabularies of the cost against V.
    sibling_counts : tuple of int
        Candidates of the cost against n.
    pairs : int
        Made-up positions per point of these two.
    naive_seconds : float
        Time that the naive walk is given.
    seed : int
        Seed of the made-up positions.
    """

    parts: tuple[str, ...] = (
        "rates",
        "preparation",
        "positions",
        "siblings",
        "processes",
        "scaling",
    )
    dumps: tuple[str, ...] = ("smollm2-t1.0", "smollm2-t0.6")
    siblings: int = 3
    more_siblings: tuple[int, ...] = (4, 8)
    vocab_sizes: tuple[int, ...] = (8192, 32768, 131072, 262144)
    sibling_counts: tuple[int, ...] = (1, 2, 3, 4, 8)
    pairs: int = 5
    naive_seconds: float = 2.0
    seed: int = 0


AUDIT = AuditConfig()
BENCH = BenchConfig()
BOUNDS = BoundsConfig()
ENGINE = EngineConfig()
GPU = GpuConfig()
PAIR = PairConfig()
RECORD = RecordConfig()
REPLAY = ReplayConfig()
TREE = TreeConfig()
WORKERS = WorkersConfig()
