"""The EAGLE head: drafting with a cache, alignment of tokens and features, files."""

import json
from dataclasses import replace
from pathlib import Path

import eagle_helpers
import numpy as np
import pytest
import torch
from eagle_helpers import SETTINGS, before, knowing_head, walk
from runtime_models import TEXTS, save_model

from resispec_sim.errors import InputError, ModelError, VocabularyError
from resispec_sim.runtime.eagle import CONFIG_NAME, EagleHead, load_eagle, new_head, parse_eagle
from resispec_sim.runtime.early_exit import early_exit
from resispec_sim.runtime.models import LoadedModel, load_model
from resispec_sim.runtime.overlap import overlap_by_depth, unroll
from resispec_sim.runtime.sampling import prompt_uniforms
from resispec_sim.runtime.train_eagle import train_eagle

# fixtures
folder, target, head = eagle_helpers.folder, eagle_helpers.target, eagle_helpers.head
batch, trained, one_thread = eagle_helpers.batch, eagle_helpers.trained, eagle_helpers.one_thread


def test_sampled_features_and_tokens_are_the_targets_own(target: LoadedModel, batch) -> None:
    with torch.inference_mode():
        states = target.model(batch.token_ids, output_hidden_states=True).hidden_states
        logits = target.model(batch.token_ids).logits.double()
    torch.testing.assert_close(batch.features, states[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.last_inputs, states[-2], atol=1e-4, rtol=1e-4)
    for b in range(4):
        prompt = target.tokenizer(TEXTS[b])["input_ids"][:10]
        assert batch.token_ids[b, : len(prompt)].tolist() == prompt
        uniforms = prompt_uniforms(3, b, 20)
        cumulative = torch.softmax(logits[b], dim=-1).cumsum(dim=-1).numpy()
        for j in range(len(prompt), 20):
            token = int(batch.token_ids[b, j])
            low = cumulative[j - 1, token - 1] if token else 0.0
            assert low - 1e-5 <= uniforms[j - 1] <= cumulative[j - 1, token] + 1e-5


def test_an_entry_joins_a_token_with_the_feature_before_it_and_predicts_its_own(
    target: LoadedModel, batch
) -> None:
    ids, features = batch.token_ids, batch.features
    head = knowing_head(target, batch)
    positions = torch.arange(20)[None]
    with torch.inference_mode():
        own, logits = head.forward(ids, before(features), positions)
        expected = target.model(ids).logits
    torch.testing.assert_close(own, features, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(logits, expected, atol=1e-2, rtol=1e-3)
    for depth, predicted in enumerate(unroll(head, ids, features, 3)):
        torch.testing.assert_close(predicted, features[:, depth:], atol=2e-3, rtol=1e-3)
    overlap = overlap_by_depth(target, head, ids)
    assert overlap.shape == (4, 3)
    assert overlap.min() > 0.999


def test_cached_tree_with_mask_equals_uncached_chains(head: EagleHead, batch) -> None:
    """Two steps: catch up, draft a tree, crop to the true entries, feed accepted tokens again."""
    ids, features = batch.token_ids[0], batch.features[0]
    true_before = before(features[None])[0]
    cache = head.new_cache()
    done = 0
    for n, parents in ((8, [-1, -1, 0, 0, 1, 2]), (12, [-1, 0, 0, 1])):
        with torch.inference_mode():
            own, logits = head.forward(
                ids[None, done : n + 1],
                true_before[None, done : n + 1],
                torch.arange(done, n + 1)[None],
                None,
                cache,
            )
        done = n + 1
        assert cache.get_seq_length() == done
        chain = [ids[: n + 1].tolist(), list(true_before[: n + 1])]
        expected = walk(head, *chain)
        torch.testing.assert_close(own[0, -1], expected[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits[0, -1], expected[1], atol=1e-4, rtol=1e-4)
        root = own[0, -1]
        tokens = [(7 * i + n) % 250 for i in range(len(parents))]
        depth = [1] * len(parents)
        for i, parent in enumerate(parents):
            depth[i] = 1 if parent < 0 else depth[parent] + 1
        predicted: dict[int, torch.Tensor] = {-1: root}
        for level in range(1, max(depth) + 1):
            nodes = [i for i in range(len(parents)) if depth[i] == level]
            n_drafted = nodes[-1] + 1
            mask = torch.zeros(1, 1, len(nodes), done + n_drafted, dtype=torch.bool)
            mask[..., :done] = True
            paths = []
            for row, i in enumerate(nodes):
                path = [i]
                while parents[path[0]] >= 0:
                    path.insert(0, parents[path[0]])
                mask[0, 0, row, [done + k for k in path]] = True
                paths.append(path)
            with torch.inference_mode():
                own, logits = head.forward(
                    torch.tensor([[tokens[i] for i in nodes]]),
                    torch.stack([predicted[parents[i]] for i in nodes])[None],
                    torch.tensor([[n + level] * len(nodes)]),
                    mask,
                    cache,
                )
            for row, (i, path) in enumerate(zip(nodes, paths, strict=True)):
                predicted[i] = own[0, row]
                drafted = [tokens[k] for k in path]
                read = [predicted[parents[k]] for k in path]
                expected = walk(head, chain[0] + drafted, chain[1] + read)
                torch.testing.assert_close(own[0, row], expected[0], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(logits[0, row], expected[1], atol=1e-4, rtol=1e-4)
        head.crop(cache, done)


def test_depths_of_unrolling_equal_chains_walked_one_by_one(head: EagleHead, batch) -> None:
    ids, features = batch.token_ids[:1, :9], batch.features[:1, :9]
    true_before = list(before(features)[0])
    predicted = unroll(head, ids, features, 3)
    tokens = ids[0].tolist()
    for k in range(2, 9):
        read = true_before[: k - 1]
        for depth in range(3):
            at = k - 2 + depth
            own, _ = walk(head, tokens[: at + 1], read)
            torch.testing.assert_close(predicted[depth][0, at - depth], own, atol=1e-4, rtol=1e-4)
            read = [*read, own]


def test_overlap_is_one_minus_total_variation(target: LoadedModel, head: EagleHead, batch) -> None:
    ids = batch.token_ids[:, :10]
    found = overlap_by_depth(target, head, ids, batch_size=3)
    draft = early_exit(target, 2)
    exits = overlap_by_depth(target, draft, ids)
    with torch.inference_mode():
        output = target.model(ids, output_hidden_states=True)
        p = torch.softmax(output.logits, dim=-1)[:, 2:]
        own = unroll(head, ids, output.hidden_states[-1], 3)
        for depth in range(3):
            q = torch.softmax(head.logits(own[depth][:, 2 - depth :]), dim=-1)
            expected = 1 - (p - q).abs().sum(-1).mean(-1) / 2
            np.testing.assert_allclose(found[:, depth], expected, atol=1e-5)
            q = torch.softmax(draft.logits(output.hidden_states[2][:, 2:]), dim=-1)
            expected = 1 - (p - q).abs().sum(-1).mean(-1) / 2
            np.testing.assert_allclose(exits[:, depth], expected, atol=1e-5)
    with pytest.raises(InputError, match="give longer ones"):
        overlap_by_depth(target, head, ids[:, :3])


def test_save_and_load_return_the_same_head(
    target: LoadedModel, tmp_path: Path, head, batch
) -> None:
    head.save(tmp_path / "exact", dtype="float32")
    loaded = load_eagle(tmp_path / "exact", target)
    for name, tensor in head.module.state_dict().items():
        assert torch.equal(tensor, loaded.module.state_dict()[name])
    head.save(tmp_path / "half")
    assert load_eagle(tmp_path / "half", target).info["dtype"] == "float16"
    names = {p.name for p in (tmp_path / "half").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    # Embedding and output embedding stay with the target.
    assert head.n_parameters == sum(t.numel() for t in head.module.state_dict().values())
    assert (
        head.n_parameters < sum(p.numel() for p in target.model.model.layers[0].parameters()) + 2200
    )
    broken = new_head(target)
    with torch.no_grad():
        broken.module["fc"].weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        broken.save(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_a_head_of_another_target_is_refused(
    target: LoadedModel, head: EagleHead, tmp_path: Path
) -> None:
    head.save(tmp_path / "head")
    permuted = load_model(str(save_model(tmp_path / "permuted", seed=0, shift=3)))
    with pytest.raises(VocabularyError, match="tokenizer_sha256"):
        load_eagle(tmp_path / "head", permuted)
    padded = load_model(str(save_model(tmp_path / "padded", seed=0, vocab_size=264)))
    with pytest.raises(VocabularyError, match="vocab_size is 258"):
        load_eagle(tmp_path / "head", padded)
    config = json.loads((tmp_path / "head" / CONFIG_NAME).read_text())
    for key, value, match in (
        ("hidden_size", 64, "hidden_size"),
        ("architecture", "OtherForCausalLM", "architecture"),
        ("version", 99, "not of the format"),
    ):
        (tmp_path / "head" / CONFIG_NAME).write_text(json.dumps({**config, key: value}))
        with pytest.raises(ModelError, match=match):
            load_eagle(tmp_path / "head", target)
    (tmp_path / "head" / CONFIG_NAME).write_text(json.dumps(config))
    weights = tmp_path / "head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="does not hold this head"):
        load_eagle(tmp_path / "head", target)
    with pytest.raises(ModelError, match="train one with"):
        load_eagle(tmp_path / "nothing", target)


def test_wrong_shapes_and_masks_are_refused(head: EagleHead, batch) -> None:
    ids, features, positions = batch.token_ids[:1], batch.features[:1], torch.arange(20)[None]
    good = torch.ones(20, 20, dtype=torch.bool).tril()
    for mask in (good, good[None], good[None, None].float(), good[None, None, :, :19]):
        with pytest.raises(InputError, match="attention mask of shape"):
            head.forward(ids, features, positions, mask)
    with pytest.raises(InputError, match="features of shape"):
        head.forward(ids, features[:, :19], positions)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_hold_under_either_attention(folder: Path, batch, attention: str) -> None:
    model = load_model(str(folder))
    model.model.set_attn_implementation(attention)
    head = new_head(model, seed=1)
    ids, features, positions = batch.token_ids[:1], batch.features[:1], torch.arange(20)[None]
    mask = torch.eye(20, dtype=torch.bool)[None, None]
    with torch.inference_mode():
        own, _ = head.forward(ids, features, positions, mask)
    for k in (0, 7, 19):
        alone, _ = walk(head, [int(ids[0, k])], [features[0, k]], start=k)
        torch.testing.assert_close(own[0, k], alone, atol=1e-4, rtol=1e-4)


def test_a_gpt2_shape_has_a_head_too(tmp_path: Path) -> None:
    from runtime_models import save_tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=258, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    (tmp_path / "gpt2").mkdir()
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    save_tokenizer(tmp_path / "gpt2")
    model = load_model(str(tmp_path / "gpt2"))
    head = new_head(model)
    last = model.model.transformer.h[-1].state_dict()
    for name, tensor in head.module["body"].h[0].state_dict().items():
        assert torch.equal(tensor, last[name])
    small = replace(SETTINGS, tokens=480, epochs=1, depths=2)
    trained_head = train_eagle(model, out=tmp_path / "head", prompts=TEXTS, settings=small)
    again = load_eagle(tmp_path / "head", model)
    ids = torch.arange(10, 18)[None]
    features = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        a, _ = trained_head.forward(ids, features, torch.arange(8)[None])
        b, _ = again.forward(ids, features, torch.arange(8)[None])
    torch.testing.assert_close(a, b, atol=0.1, rtol=0.05)


def test_windowed_targets_are_refused_by_name(tmp_path: Path) -> None:
    from runtime_models import save_tokenizer
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    (tmp_path / "mistral").mkdir()
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    save_tokenizer(tmp_path / "mistral")
    with pytest.raises(ModelError, match="MistralForCausalLM does not attend to the whole text"):
        new_head(load_model(str(tmp_path / "mistral")))


def test_draft_names() -> None:
    assert parse_eagle("eagle:a/b") == Path("a/b")
    assert parse_eagle("exit:3") is None
    with pytest.raises(InputError, match="eagle:FOLDER"):
        parse_eagle("eagle:")
