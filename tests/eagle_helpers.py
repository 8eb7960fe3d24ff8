"""Fixtures of the tests of EAGLE heads: a small target, a head, a batch of its features."""

from pathlib import Path

import pytest
import torch
from runtime_models import TEXTS, save_model

from resispec_sim.live_config import EagleConfig
from resispec_sim.runtime.eagle import EagleHead, new_head
from resispec_sim.runtime.eagle_data import (
    sampled_batches,
)
from resispec_sim.runtime.models import LoadedModel, load_model
from resispec_sim.runtime.train_eagle import train_eagle

SETTINGS = EagleConfig(
    tokens=2_400,
    length=24,
    sampling_batch=50,
    batch_size=10,
    epochs=12,
    learning_rate=3e-3,
    held_out=0.2,
    save_every=40,
    exits=(0.5,),
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "target", seed=0)


@pytest.fixture(scope="module")
def target(folder: Path) -> LoadedModel:
    return load_model(str(folder))


@pytest.fixture(scope="module")
def head(target: LoadedModel) -> EagleHead:
    return new_head(target, seed=1)


@pytest.fixture(scope="module")
def batch(target: LoadedModel):
    ids = [target.tokenizer(text)["input_ids"] for text in TEXTS]
    return next(sampled_batches(target, ids, n_sequences=4, length=20, seed=3, batch_size=4))


@pytest.fixture(scope="module")
def trained(target: LoadedModel, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("heads") / "head"
    lines: list[str] = []
    trained_head = train_eagle(target, out=out, prompts=TEXTS, settings=SETTINGS, say=lines.append)
    return trained_head, out, lines


def before(features: torch.Tensor) -> torch.Tensor:
    """Features of the preceding tokens, zero for the first."""
    return torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], dim=1)


def walk(head: EagleHead, tokens: list[int], features: list[torch.Tensor], start: int = 0):
    """Feature and logits of the last of a chain of entries, uncached."""
    positions = torch.arange(start, start + len(tokens))[None]
    with torch.inference_mode():
        return [
            x[0, -1]
            for x in head.forward(torch.tensor([tokens]), torch.stack(features)[None], positions)
        ]


def knowing_head(target: LoadedModel, batch) -> EagleHead:
    """A head whose linear map looks up the true input of the last layer, so its predictions are true.

    It knows a table of every pair (token k, feature of k - 1) of the batch, and nothing else: a shift of
    either by one position finds other pairs.
    """
    ids, features, inputs = batch.token_ids, batch.features, batch.last_inputs
    head = new_head(target)
    table = torch.cat([target.model.get_input_embeddings()(ids), before(features)], dim=-1)
    table, inputs = table.detach().flatten(0, 1), inputs.flatten(0, 1)

    class Lookup(torch.nn.Linear):
        def forward(self, x):
            nearest = torch.cdist(x.flatten(0, 1), table).argmin(dim=1)
            return inputs[nearest].view(*x.shape[:2], -1)

    head.module["fc"] = Lookup(*head.module["fc"].weight.shape[::-1])
    return head
