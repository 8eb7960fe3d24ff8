"""Greedy decoding with any tree is `generate` of transformers: 20 prompts of 64 tokens, token for token."""

import pytest
from runtime_models import save_gpt2, save_model

torch = pytest.importorskip("torch")

from live_checks import GREEDY_CASES, GreedyRun, generate_greedily  # noqa: E402

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.early_exit import early_exit  # noqa: E402
from resispec_sim.runtime.models import load_model  # noqa: E402
from resispec_sim.runtime.prompts import read_prompts  # noqa: E402
from resispec_sim.runtime.shipped import prompts_file  # noqa: E402

N_PROMPTS, NEW_TOKENS = 20, 64
# The random shapes have 128 positions.
LONGEST_PROMPT = 48


def pair(name, folder):
    """A target, and drafts in turn: one that errs, and for random targets the target, which never does."""
    if name == "tiny":
        return load_model("tiny-target"), [load_model("tiny-draft")]
    if name == "llama":
        target = load_model(str(save_model(folder / name, seed=1, n_layers=2)))
    else:
        target = load_model(str(save_gpt2(folder / name, seed=3)))
    return target, [early_exit(target, 1), target]


@pytest.mark.parametrize("name", ["tiny", "llama", "gpt2"])
def test_greedy_text_is_that_of_generate(name, tmp_path):
    torch.set_num_threads(1)
    target, drafts = pair(name, tmp_path)
    run = GreedyRun()
    for i, prompt in enumerate(read_prompts(prompts_file())[:N_PROMPTS]):
        ids = target.tokenizer(prompt)["input_ids"][:LONGEST_PROMPT]
        expected = generate_greedily(target, ids, NEW_TOKENS)
        # a case meets another draft when its turn comes again
        draft = drafts[(i // len(GREEDY_CASES)) % len(drafts)]
        decoder = Decoder(target, draft, *GREEDY_CASES[i % len(GREEDY_CASES)], temperature=0.0)
        found = decoder.decode(ids, max_new_tokens=NEW_TOKENS, stop_at_eos=False)
        run.add(target, found, expected)
    print(name, run)
    assert not run.gaps and run.n_equal == N_PROMPTS * NEW_TOKENS
    assert run.n_accepted > 0.25 * run.n_equal
