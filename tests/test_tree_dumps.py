"""Recorded trees: round trip, coins enumerated against coins thrown, damage named."""

import itertools

import numpy as np
import pytest
from live_model import load_small

from resispec_sim.errors import DumpError, InputError, ManifestError, ShardError
from resispec_sim.probs import logits_to_probs
from resispec_sim.rules import parse_rule
from resispec_sim.tree_dumps import TreeDump
from resispec_sim.tree_replay import node_reach, replay_trees

pytest.importorskip("torch")

from resispec_sim.runtime.decode import Decoder
from resispec_sim.runtime.tree_recorder import TreeRecorder


def record(folder, rule, *, n_texts=4, draft=True, tree="d3b2", n_tokens=12, finish=False):
    pair = load_small(6, 1, 0.5), load_small(6, 2, 0.5)
    decoder = Decoder(pair[0], pair[1] if draft else None, rule, tree)
    recorder = TreeRecorder(folder, decoder, target={"name": "a"}, draft={"name": "b"})
    logs = []
    for text in range(n_texts):
        observe = recorder.observer(text)
        decoder.decode(
            [3, 0, 5],
            max_new_tokens=n_tokens,
            seed=text,
            observe=lambda log, observe=observe: (logs.append(log), observe(log)),
        )
        if finish:
            recorder.finish(text)
    return logs


def test_round_trip(tmp_path):
    logs = record(tmp_path / "trees", "specinfer")
    steps = list(TreeDump(tmp_path / "trees"))
    assert len(steps) == len(logs) > 10
    for step, log in zip(steps, logs, strict=True):
        assert step.tokens.tolist() == log.tree.tokens
        assert step.parents.tolist() == log.tree.parents
        assert step.path.tolist() == log.path and step.emitted.tolist() == log.tokens
        assert step.prefix.tolist() == log.prefix and step.cut == log.cut
        assert sorted(step.draft_logits) == [
            i for i, row in enumerate(log.tree.rows) if row is not None
        ]
        for node, logits in step.draft_logits.items():
            row = log.tree.rows[node].numpy()
            assert np.allclose(logits_to_probs(logits), row, atol=5e-3)


@pytest.mark.parametrize("rule", ["specinfer", "resispec", "rrs-wor", "target-only"])
def test_reach_is_the_sum_over_all_coins(tmp_path, rule):
    """Every pattern of heads and tails, walked as a decoder walks."""
    record(tmp_path / "trees", rule, n_texts=1)
    parsed = parse_rule(rule)
    for step in itertools.islice(TreeDump(tmp_path / "trees"), 3):
        expected = np.zeros(len(step.tokens))

        def walk(node, weight, step=step, expected=expected):
            expected[node] += weight
            kids = step.children[node]
            if not kids:
                return
            p, q = (
                logits_to_probs(step.target_logits[node]),
                logits_to_probs(step.draft_logits[node]),
            )
            state = parsed.start(p, q, len(kids))
            for kid in kids:
                token = int(step.tokens[kid])
                accept = float(parsed.accept_probs(state)[token])
                walk(kid, weight * accept)
                weight *= 1 - accept
                if weight <= 0:
                    return
                state = parsed.after_rejection(state, token)

        walk(0, 1.0)
        assert np.allclose(node_reach(step, parsed, logits_to_probs), expected, atol=1e-12)


def test_coins_enumerated_agree_with_coins_thrown(tmp_path):
    record(tmp_path / "trees", "specinfer", n_texts=60)
    found = replay_trees(tmp_path / "trees", "exact-shaping,resispec").summary
    live = found["recorded"]
    same, shaping, resispec = found["rules"]
    assert same["rule"] == live["rule"] == "specinfer"
    assert found["agreement"]["agrees"] and found["agreement"]["stderr"] < 0.1
    assert live["low"] < same["tokens_per_step"] < live["high"]
    # the same candidates without the coins' noise
    assert same["high"] - same["low"] < live["high"] - live["low"]
    assert resispec["tokens_per_step"] > live["high"]
    assert shaping["tokens_per_step"] > same["tokens_per_step"]
    for figures in (live, *found["rules"]):
        assert figures["tokens_per_step"] == pytest.approx(1 + sum(figures["by_depth"]))


def test_damage_is_named(tmp_path):
    record(tmp_path / "trees", "specinfer", n_texts=1)
    dump = TreeDump(tmp_path / "trees")
    source = dump.sources[0]
    whole = source.file.read_bytes()
    for data in (whole[:-3], whole[:100], b"", whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]):
        source.file.write_bytes(data)
        with pytest.raises(ShardError, match=source.file.name):
            dump.read(source)
    source.file.write_bytes(whole)
    dump.read(source)
    (tmp_path / "trees" / "manifest.json").write_text('{"kind": "chain"}')
    with pytest.raises(ManifestError, match="resispec replay"):
        TreeDump(tmp_path / "trees")


def test_a_text_that_is_recorded_again_replaces_the_packed_one(tmp_path):
    folder = tmp_path / "trees"
    first = record(folder, "specinfer", n_texts=2, finish=True)
    assert sorted(file.name for file in folder.iterdir()) == [
        "manifest.json", "text-00000.zip", "text-00001.zip",
    ]  # fmt: skip
    assert [step.tokens.tolist() for step in TreeDump(folder)] == [log.tree.tokens for log in first]
    with pytest.raises(InputError):
        record(folder, "specinfer", n_texts=1, n_tokens=0)
    assert len(TreeDump(folder)) == len(first)  # nothing took its place yet
    again = record(folder, "specinfer", n_texts=1, n_tokens=5)
    steps = [step.tokens.tolist() for step in TreeDump(folder) if step.text == 0]
    assert (
        steps
        == [log.tree.tokens for log in again]
        != [log.tree.tokens for log in first[: len(again)]]
    )
    assert not (folder / "text-00000.zip").exists() and (folder / "text-00001.zip").exists()


def test_only_steps_of_the_same_decoder_share_a_folder(tmp_path):
    record(tmp_path / "trees", "specinfer", n_texts=2)
    before = {str(source): source.read_bytes() for source in TreeDump(tmp_path / "trees").sources}
    record(tmp_path / "trees", "specinfer", n_texts=2)
    assert {
        str(source): source.read_bytes() for source in TreeDump(tmp_path / "trees").sources
    } == before
    with pytest.raises(DumpError, match="another decoder"):
        record(tmp_path / "trees", "exact-shaping", n_texts=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(DumpError, match="not empty"):
        record(tmp_path / "other", "specinfer", n_texts=1)


def test_plain_decoding_has_nothing_to_draft(tmp_path):
    record(tmp_path / "trees", "specinfer", n_texts=1, draft=False)
    assert all(
        len(step.tokens) == 1 and not step.draft_logits for step in TreeDump(tmp_path / "trees")
    )


def test_the_shipped_trees_are_those_of_the_pair_that_travels_with_them():
    """Every node's row again, by a plain pass over the tokens that lead to it."""
    import torch

    from resispec_sim.runtime.models import load_model

    dump = TreeDump("tiny-trees-t1.0")
    target, draft = (load_model(f"tiny-{role}").model for role in ("target", "draft"))
    for source in (dump.sources[0], dump.sources[len(dump) // 2]):
        step = dump.read(source)
        for node in (0, 1, len(step.tokens) // 4, len(step.tokens) - 1):
            ids, up = [], node
            while up > 0:
                ids.insert(0, int(step.tokens[up]))
                up = int(step.parents[up])
            ids = [*step.prefix.tolist(), *ids]
            rows = [(target, step.target_logits[node])]
            rows += [(draft, step.draft_logits[node])] if step.children[node] else []
            for model, stored in rows:
                with torch.inference_mode():
                    logits = model(torch.tensor([ids])).logits[0, -1].double().numpy()
                assert np.allclose(stored, logits - logits.max(), atol=0.02)


def test_the_command_records_a_finished_text_in_one_file(tmp_path, capsys):
    from resispec_sim.cli import run_command

    folder = tmp_path / "trees"
    command = ["decode", "It was late", "--tree", "d3b2", "--max-new-tokens", "6"]
    assert run_command([*command, "--seed", "3", "--record", str(folder)]) == 0
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "text-00003.zip"]
    dump = TreeDump(folder)
    assert (
        dump.manifest.target["name"] == "tiny-target" and len(dump.manifest.draft["sha256"]) == 64
    )
    assert "recorded anew" not in capsys.readouterr().err
    assert run_command([*command, "--seed", "3", "--record", str(folder)]) == 0
    assert "text 3 of" in capsys.readouterr().err
    (folder / "text-00003.zip").write_bytes(b"damaged")  # which recording it again mends
    assert run_command([*command, "--seed", "3", "--record", str(folder)]) == 0
    assert "text 3 of" in capsys.readouterr().err and len(TreeDump(folder)) > 0
    kept = (folder / "text-00003.zip").read_bytes()
    elsewhere = ["decode", "It was early", *command[2:], "--seed", "3", "--record", str(folder)]
    assert run_command(elsewhere) == 2
    assert "text 3 was recorded from another prompt" in " ".join(capsys.readouterr().err.split())
    assert (folder / "text-00003.zip").read_bytes() == kept
    other = [*command, "--seed", "4", "--temperature", "0.5", "--record", str(folder)]
    assert run_command(other) != 0
    assert "temperature is 1.0 there, 0.5 now" in " ".join(capsys.readouterr().err.split())
    capsys.readouterr()
