"""The decoding benchmark on small random models: what it logs is what decoding gives."""

from pathlib import Path

import msgspec
import pytest
import torch
from runtime_models import save_model

from resispec_sim.run_config import Method, RunConfig
from resispec_sim.runtime.bench_decode import bench_decode
from resispec_sim.runtime.bench_log import RunLog
from resispec_sim.runtime.decode import decode
from resispec_sim.runtime.models import load_model

TEXTS = [
    "the cat sat on the mat",
    "to be or not to be",
    "one, two, three",
    "a longer prompt of words",
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    root = tmp_path_factory.mktemp("live")
    (root / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return RunConfig(
        about="small random models",
        target=str(save_model(root / "target", seed=0)),
        draft=str(save_model(root / "draft", seed=1)),
        tree="d3b2",
        methods=(
            Method("AR", "autoregressive"),
            Method("SpecInfer", "specinfer"),
            Method("exit", "resispec", draft="exit:2", tree="d2b3"),
        ),
        prompts=(str(root / "texts.txt"),),
        n_prompts=3,
        warmup_prompts=1,
        profile_prompts=1,
        prompt_tokens=9,
        max_new_tokens=12,
        max_length=19,
        seed=30,
    )


@pytest.fixture(scope="module")
def folder(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    results = bench_decode(config, out, in_process=True)
    assert [row["n_levels"] for row in results.systems] == [0, 2, 1]
    return out


def records(folder: Path, name: str, kind: str = "jsonl"):
    return RunLog(folder / "raw" / "texts" / f"{name}.{kind}").records


def test_logged_texts_are_those_of_decoding_with_the_prompts_seed(
    config: RunConfig, folder: Path
) -> None:
    target, draft = load_model(config.target), load_model(config.draft)
    logged = records(folder, "specinfer")
    for index, text in enumerate(TEXTS[1:]):
        ids = target.tokenizer(text)["input_ids"][:9]
        expected = decode(
            target, draft, ids, "specinfer", "d3b2", max_new_tokens=10, seed=30 + index
        )
        prompt = logged[index].prompt
        assert prompt.token_ids == expected.token_ids
        assert (prompt.seed, prompt.n_prompt_tokens) == (30 + index, len(ids))
        steps = [(s.n_tokens, s.n_accepted, s.n_nodes) for s in logged[index].steps]
        assert steps == [(s.n_tokens, s.n_accepted, s.n_nodes) for s in expected.steps]
    assert len({tuple(r.prompt.token_ids) for r in logged.values()}) == 3


def test_a_run_in_another_process_gives_the_same_texts(
    config: RunConfig, folder: Path, tmp_path: Path
) -> None:
    bench_decode(msgspec.structs.replace(config, methods=config.methods[1:2]), tmp_path)
    here, there = records(folder, "specinfer"), records(tmp_path, "specinfer")
    assert sorted(here) == sorted(there) == [0, 1, 2]
    assert all(here[i].prompt.token_ids == there[i].prompt.token_ids for i in here)


def test_profiled_runs_give_the_same_text_with_phases(folder: Path) -> None:
    for name in ("specinfer", "exit"):
        plain, timed = records(folder, name)[0], records(folder, name, "profile.jsonl")[0]
        assert plain.prompt.token_ids == timed.prompt.token_ids
        assert not any(step.phases for step in plain.steps)
        for step in timed.steps:
            assert step.phases["verification"] > 0
            assert sum(step.phases.get(p, 0) for p in ("drafting", "verification", "shaping")) < (
                timed.prompt.seconds
            )


def test_torch_is_left_as_it_was(folder: Path) -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic
    assert torch.utils.deterministic.fill_uninitialized_memory
