"""The decoder on fake GPUs: nothing is left on another device, and the host waits for tokens alone."""

import pytest

torch = pytest.importorskip("torch")

from fake_gpus import fake_gpus, llama, spread  # noqa: E402

from resispec_sim.runtime.decode import Decoder  # noqa: E402
from resispec_sim.runtime.drafters import TopKTree  # noqa: E402
from resispec_sim.runtime.eagle import new_head  # noqa: E402
from resispec_sim.runtime.early_exit import early_exit  # noqa: E402

SYSTEMS = [
    ("model", "specinfer", "d4b3"),
    ("model", "rrs-wor", "d3b2"),
    ("exit", "resispec", "d3b2"),
]
SYSTEMS += [("eagle", "exact-shaping", "d3b2"), ("eagle", "target-only", TopKTree(4, 2, 6))]
SYSTEMS += [("none", "specinfer", "d2b1")]


def draft_for(target, kind):
    return {
        "model": lambda: llama(1, torch.float16),
        "exit": lambda: early_exit(target, 1),
        "eagle": lambda: new_head(target),
        "none": lambda: None,
    }[kind]()


@pytest.mark.parametrize("n_gpus", [1, 2])
@pytest.mark.parametrize("kind, rule, tree", SYSTEMS, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_system_keeps_to_its_devices(monkeypatch, n_gpus, kind, rule, tree, attention):
    with fake_gpus(monkeypatch) as waits:
        target = llama(2, torch.float16, attention)
        if n_gpus == 2:
            spread(target)
        decoder = Decoder(target, draft_for(target, kind), rule, tree, top_p=0.9, temperature=0.7)
        waits.values, waits.copies = 0, []
        found = decoder.decode([1, 2, 3], max_new_tokens=9, profile=True)
        assert len(found.token_ids) == 9 and found.peak_memory_bytes == 0
        assert waits.copies == []
        print(waits.values, [len(s.tokens) for s in found.steps])
