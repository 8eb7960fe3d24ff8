"""The decoder on fake GPUs: nothing is left on another device, and the host waits for tokens alone."""

import pytest

torch = pytest.importorskip("torch")

from fake_gpus import fake_gpus, llama, spread  # noqa: E402

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.drafters import TopKTree  # noqa: E402
from resispec_sim.runtime.eagle import new_head  # noqa: E402
from resispec_sim.runtime.early_exit import early_exit  # noqa: E402

TOP = TopKTree(3, 2, 6)
SYSTEMS = [("model", "specinfer", "d3b2", "sdpa"), ("model", "rrs-wor", "d3b2", "eager")]
SYSTEMS += [("exit", "resispec", "d3b2", "sdpa"), ("eagle", "exact-shaping", "d3b2", "sdpa")]
SYSTEMS += [("eagle", "target-only", TOP, "eager"), ("none", "specinfer", "d2b1", "sdpa")]
DRAFTS = {
    "model": lambda target: llama(1, torch.float16),
    "exit": lambda target: early_exit(target, 1),
    "eagle": new_head,
    "none": lambda target: None,
}


@pytest.mark.parametrize("n_gpus", [1, 2])
@pytest.mark.parametrize("kind, rule, tree, attention", SYSTEMS, ids=str)
def test_every_system_keeps_to_its_devices(monkeypatch, n_gpus, kind, rule, tree, attention):
    with fake_gpus(monkeypatch) as waits:
        target = llama(2, torch.float16, attention)
        if n_gpus == 2:
            spread(target)
        draft = DRAFTS[kind](target)
        decoder = Decoder(target, draft, rule, tree, top_p=0.9, temperature=0.7)
        waits.values, waits.copies = [], []
        found = decoder.decode([1, 2, 3], max_new_tokens=6, profile=True)
        assert len(found.token_ids) == 6 and found.peak_memory_bytes == 0
    assert waits.copies == []
    # a look at the tokens of every level (two where their weights choose the tree), one per emitted token
    levels = decoder.plan.n_levels * (2 if tree is TOP else 1)
    most = sum((levels if step.n_nodes > 1 else 0) + step.n_tokens for step in found.steps)
    assert len(waits.values) <= most, waits.values
    places = {place.partition(":")[0] for place in waits.values}
    assert places <= {"decode.py", "drafters.py"}, waits.values
