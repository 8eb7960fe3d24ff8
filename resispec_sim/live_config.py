"""Defaults of everything that runs models: recording, decoding, training, benchmarks of live systems.

Nothing here imports more than the standard library; see `resispec_sim.config` for the rest.
"""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16"]
RuleDtype = Literal["float32", "float64"]
Order = Literal["alternate", "sequential"]


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
class EagleConfig:
    """Defaults of the training of an EAGLE head.

    Attributes
    ----------
    tokens : int
        Tokens that are sampled from the target, or used of a text.
    length : int
        Tokens per sequence.
    sampling_batch, batch_size : int
        Sequences that are sampled together, and per training step.
    epochs : int
        Passes over the tokens.
    learning_rate, weight_decay, warmup, clip : float
        Of AdamW: its highest rate, falling to 0 along a half cosine after the share `warmup` of all
        steps; the decay of the weights; the norm that gradients are clipped to.
    depths : int
        Tokens ahead that are trained: from 2 on the head learns to continue its own features.
    feature_weight, logits_weight : float
        Weights of the two losses: smooth L1 between features over their standard deviation, and
        divergence KL(p, q) in nats.
    noise : float
        Half-width of the uniform noise on the features read, in standard deviations.
    vocab_sample : int
        Tokens over which the divergence of a step is estimated; larger vocabularies are sampled.
    held_out : float
        Share of the sequences that are kept for evaluation.
    save_every : int
        Training steps between two savings.
    exits : tuple of float
        Early exits shown beside the head, as shares of the target's depth.
    exit_tokens : int
        Training tokens on which the maps of these exits are fitted.
    eval_depths : int
        Depths at which the overlap is measured.
    seed : int
        Seed of everything random.
    """

    tokens: int = 100_000
    length: int = 128
    sampling_batch: int = 64
    batch_size: int = 8
    epochs: int = 6
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    clip: float = 1.0
    depths: int = 1
    feature_weight: float = 1.0
    logits_weight: float = 1.0
    noise: float = 0.1
    vocab_sample: int = 8192
    held_out: float = 0.05
    save_every: int = 100
    exits: tuple[float, ...] = (0.2, 1 / 3, 2 / 3)
    exit_tokens: int = 16_384
    eval_depths: int = 3
    seed: int = 0


@dataclass(frozen=True)
class PromptsConfig:
    """How prompts are taken from a corpus.

    Attributes
    ----------
    n_of_corpus : int
        Texts, from the first on.
    max_characters : int
        A text is cut to so many; a benchmark cuts it again, to tokens.
    """

    n_of_corpus: int = 200
    max_characters: int = 4000


@dataclass(frozen=True)
class DecodeBenchConfig:
    """What a run configuration of the decoding benchmark may leave out.

    Attributes
    ----------
    temperature : float
    n_prompts, warmup_prompts, profile_prompts : int
        Prompts that are measured; those before them that are decoded first and not counted; and
        how many of the measured ones are decoded once more with a clock around every phase.
    prompt_tokens, max_new_tokens : int
        A prompt is cut to its first tokens; tokens that are generated at most.
    seed : int
        Measured prompt i is decoded with seed + i.
    torch_dtype, rule_dtype, device : str
        Precision of the models, of the verification rule, and where they run.
    order : str
        ``"alternate"``: prompt by prompt, every method in turn; ``"sequential"``: one method after the
        other.
    deterministic : bool
        Ask torch for deterministic algorithms.
    """

    temperature: float = 1.0
    n_prompts: int = 200
    warmup_prompts: int = 2
    profile_prompts: int = 4
    prompt_tokens: int = 128
    max_new_tokens: int = 128
    seed: int = 0
    torch_dtype: Dtype = "float32"
    rule_dtype: RuleDtype = "float64"
    device: str = "cpu"
    order: Order = "alternate"
    deterministic: bool = True


@dataclass(frozen=True)
class ProjectConfig:
    """Defaults of a projection.

    Attributes
    ----------
    rules : tuple of str
    trees : tuple of str
        Complete trees or grow maps that are projected.
    """

    rules: tuple[str, ...] = ("specinfer", "resispec", "exact-shaping")
    trees: tuple[str, ...] = ("d5b3", "d4b3", "d3b3")


@dataclass(frozen=True)
class DecodeConfig:
    """Defaults of live decoding.

    Attributes
    ----------
    target, draft : str
        The pair that ships, so that decoding needs no download.
    rule, tree : str
    temperature : float
    dtype : str
        Type of the probabilities.
    max_new_tokens : int
    seed : int
        Prompt i of several has a random stream of its own, of this number plus i.
    """

    target: str = "tiny-target"
    draft: str = "tiny-draft"
    rule: str = "specinfer"
    tree: str = "d5b3"
    temperature: float = 1.0
    dtype: str = "float64"
    max_new_tokens: int = 64
    seed: int = 0


DECODE = DecodeConfig()
DECODE_BENCH = DecodeBenchConfig()
EAGLE = EagleConfig()
PAIR = PairConfig()
PROJECT = ProjectConfig()
PROMPTS = PromptsConfig()
RECORD = RecordConfig()
