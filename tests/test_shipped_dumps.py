"""The engine on the logits that travel with the package: speed, methods, bounds, different supports."""

import hashlib
import time
from importlib import resources
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from resispec_sim import TreeDump, exact_law, open_dump, optimal_acceptance, replay_trees

VOCAB_SIZES = {"smollm2-t1.0": 49_152, "smollm2-t0.6": 49_152, "tiny-t1.0": 1024}
NAMES = list(VOCAB_SIZES)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    exact_law("resispec", [0.5, 0.5], [0.4, 0.6], 3)
    exact_law("resispec", [0.5, 0.5], [0.4, 0.6], 3, method="certified")


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_has_what_its_readme_says(name):
    with open_dump(name) as dump:
        assert dump.vocab_size == VOCAB_SIZES[name] and dump.n_prompts >= 8
        assert min(dump.positions_per_prompt) >= 9
        assert dump.temperature == float(name.rsplit("-t")[1])
        dump.verify()
        assert sum(path.stat().st_size for path in dump.path.iterdir()) < 16e6


def test_the_dump_of_the_small_pair_is_a_long_one_of_the_models_that_travel_with_it():
    with open_dump("tiny-t1.0") as dump:
        assert dump.n_positions >= 3000 and dump.n_prompts >= 40
        check_models(dump.manifest)
        overlaps = [np.minimum(*dump.probs(i)).sum() for i in range(0, len(dump), 20)]
        assert 0.6 < np.mean(overlaps) < 0.85


def test_the_dump_of_trees_is_small_whole_and_agrees_with_its_computed_figures():
    dump = TreeDump("tiny-trees-t1.0")
    check_models(dump.manifest)
    assert len(dump.n_steps_by_text) >= 8 and dump.n_bytes < 8e6
    # a file per text: steps of their own are of an unfinished recording
    assert {file.suffix for file in dump.path.iterdir()} == {".zip", ".json"}
    assert sum(1 for _ in dump.path.iterdir()) == len(dump.n_steps_by_text) + 1
    manifest = (dump.path / "manifest.json").read_text()
    assert "/" not in manifest.replace("://", "")
    for step, after in pairwise(dump):
        if after.text == step.text:
            assert after.prefix.tolist() == [*step.prefix, *step.emitted]
    found = replay_trees("tiny-trees-t1.0", "exact").summary
    assert found["n_steps"] >= 100 and found["tree"] == "d4b3"
    assert found["agreement"]["agrees"] and found["agreement"]["stderr"] < 0.08
    by_rule = {figures["rule"]: figures["tokens_per_step"] for figures in found["rules"]}
    assert max(by_rule, key=by_rule.get) == "exact-shaping"
    # replay of tiny-t1.0 along texts of the same ten prompts: 3.18 [3.09, 3.27]
    assert abs(by_rule["specinfer"] - 3.18) < 0.2


def check_models(manifest):
    models = resources.files("resispec_sim") / "models"
    for role in ("target", "draft"):
        identity = getattr(manifest, role)
        assert identity["name"] == f"tiny-{role}"
        assert identity["sha256"] == digest_of_files(Path(str(models / f"tiny-{role}")))


def digest_of_files(folder: Path) -> str:
    """What a recording calls the fingerprint of a model, without loading it."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors"):
            part = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.name} {part}\n".encode())
    return digest.hexdigest()


@pytest.mark.timing
@pytest.mark.parametrize("name", NAMES)
def test_every_position_is_computed_in_time(name):
    """Exact and under 0.5 s at the median position, at most 10 s anywhere; certified bounds hold.

    Both methods run at each position; certified intervals are narrower than 1e-4 on 90 % of them.
    """
    seconds, widths, methods = [], [], []
    with open_dump(name) as dump:
        # All of the 80 of SmolLM2; as many, spread over the prompts, of a long dump.
        for position in islice(dump.iter_positions(), 0, None, len(dump) // 80):
            p, q = dump.probs(position)
            start = time.perf_counter()
            law = exact_law("resispec", p, q, 3)
            middle = time.perf_counter()
            bounded = exact_law("resispec", p, q, 3, method="certified")
            end = time.perf_counter()
            assert middle - start < 10 and end - middle < 10, position.prompt_idx
            seconds.append(middle - start)
            methods.append(law.method)
            widths.append(np.ptp(bounded.accepted_interval, axis=1).max())
            if law.method == "exact":
                low, high = bounded.accepted_interval.T
                assert (low <= law.accepted + 1e-13).all()
                assert (law.accepted <= high + 1e-13).all()
                for figure in ("tv", "kl"):
                    low, high = getattr(bounded, f"{figure}_interval")
                    assert low - 1e-11 <= getattr(law, figure) <= high + 1e-11
    middle_one = np.argsort(seconds)[len(seconds) // 2]
    assert methods[middle_one] == "exact" and seconds[middle_one] < 0.5
    assert np.mean(np.array(widths) < 1e-4) >= 0.9


@pytest.mark.parametrize("name", NAMES)
def test_specinfer_is_exact_and_resispec_is_not(name):
    with open_dump(name) as dump:
        for i in (0, 31, 62):
            p, q = dump.probs(i)
            specinfer, resispec = (
                exact_law(rule, p, q, 3, max_paths=2_000_000) for rule in ("specinfer", "resispec")
            )
            assert specinfer.tv < 1e-12 and 0 <= specinfer.kl < 1e-12
            assert specinfer.accepted.sum() <= optimal_acceptance(p, q, 3) + 1e-12
            assert resispec.tv_interval[0] > 1e-6


@pytest.mark.parametrize("sampling", [{"top_k": 40}, {"top_p": 0.9}, {"top_k": 200, "top_p": 0.95}])
@pytest.mark.parametrize("fill", ["capacity", "water"])
def test_supports_that_differ(sampling, fill):
    with open_dump(NAMES[0]) as dump:
        for i in (3, 17, 44, 71):
            p, q = dump.probs(i, **sampling)
            assert (p == 0).any() and (q == 0).any()
            for n_siblings in (1, 3):
                law = exact_law("resispec", p, q, n_siblings, fill=fill, by_token=True)
                assert np.isfinite(law.kl) and abs(law.output_probs.sum() - 1) < 1e-12
                assert (law.output_probs[p == 0] == 0).all()
                assert (law.accepted_by_token[:, q == 0] == 0).all()
                specinfer = exact_law("specinfer", p, q, n_siblings)
                assert specinfer.tv < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_exact_shaping_is_exact_and_never_below_the_rules_that_it_contains(name):
    with open_dump(name) as dump:
        for i in range(0, len(dump), len(dump) // 16):
            p, q = dump.probs(i)
            for n_siblings in (2, 3, 4, 8):
                rrs, k_seq, shaping = (
                    exact_law(rule, p, q, n_siblings)
                    for rule in ("specinfer", "k-seq", "exact-shaping")
                )
                for law in (rrs, k_seq, shaping):
                    assert np.abs(law.output_probs - p).max() < 1e-12 and law.tv < 1e-12
                assert shaping.accepted.sum() >= k_seq.accepted.sum() - 1e-12
                assert k_seq.accepted.sum() >= rrs.accepted.sum() - 1e-12
                assert shaping.accepted.sum() <= optimal_acceptance(p, q, n_siblings) + 1e-12


@pytest.mark.parametrize("name", NAMES[:2])
def test_resispec_on_the_siblings_of_sequoia_and_eagle(name):
    with open_dump(name) as dump:
        p, q = dump.probs(31)
    for rule in ("resispec-wor", "resispec-wor:fill=water", "resispec-eagle:reading=proxy"):
        law = exact_law(rule, p, q, 2, max_paths=2_000_000)
        assert law.method == "sampled" and law.stderr[1] > 0 and law.tv_interval[0] > 0.01
        low = law.accepted_interval[:, 0].sum()
        assert low > optimal_acceptance(p, q, 2, replacement=False)
    one_hot = exact_law("resispec-eagle:reading=one-hot", p, q, 2)
    assert one_hot.method == "exact" and one_hot.tv < 1e-12
