"""The benchmark: its own walk and counts against the definition, its arithmetic, and a quick run."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resispec_sim import exact_law
from resispec_sim.bench import benchmark, run
from resispec_sim.bench.count import count_rejected_prefixes
from resispec_sim.bench.naive import naive_law
from resispec_sim.bench.pairs import synthetic_pair
from resispec_sim.bench.positions import summarise
from resispec_sim.bench.rates import choose_cases, rate_at, typical_rates
from resispec_sim.bench.timing import best_seconds, log_slope
from resispec_sim.bench.walks import prepare, walk
from resispec_sim.cli import run_command
from resispec_sim.engine.oracle import enumerate_law
from resispec_sim.errors import InputError
from resispec_sim.rules import ResiSpec
from tests.strategies import EDGE_PAIRS, prob_pairs


def floats(pair):
    return [np.array([float(mass) for mass in probs]) for probs in pair]


@given(pair=prob_pairs(max_vocab=4, min_vocab=2), n_siblings=st.integers(1, 3))
@settings(max_examples=40)
def test_the_naive_walk_has_the_law_of_the_rule(pair, n_siblings):
    right = enumerate_law(ResiSpec(), *pair, n_siblings)
    found = naive_law(*floats(pair), n_siblings)
    assert found.complete
    assert found.output_probs == pytest.approx(floats([right.output_probs])[0], rel=0, abs=1e-12)
    assert found.accepted == pytest.approx(floats([right.accepted])[0], rel=0, abs=1e-12)


@pytest.mark.parametrize(("vocab_size", "n_siblings"), [(7, 4), (60, 3), (300, 2)])
def test_the_naive_walk_has_the_law_of_the_engine(vocab_size, n_siblings):
    pair = synthetic_pair(vocab_size, seed=5)
    found, law = naive_law(*pair, n_siblings), exact_law("resispec", *pair, n_siblings)
    assert law.method == "exact"
    assert found.output_probs == pytest.approx(law.output_probs, rel=0, abs=1e-12)
    assert found.accepted == pytest.approx(law.accepted, rel=0, abs=1e-12)


@pytest.mark.parametrize(
    "pair", [pair for pair in EDGE_PAIRS if len(pair[1]) <= 8], ids=lambda p: p.name
)
def test_edge_pairs(pair):
    p, q = floats(pair[1:])
    for n in (1, 2, 3):
        found = naive_law(p, q, n)
        assert found.output_probs.sum() == pytest.approx(1, abs=1e-12)
        # weights that only rounding tells from 0 may count on one side
        assert abs(found.n_steps - count_rejected_prefixes(p, q, n)) <= 0.02 * found.n_steps + 1


def test_a_walk_that_is_cut_stops_where_it_is_told():
    pair = synthetic_pair(200, seed=1)
    whole = naive_law(*pair, 2)
    found = naive_law(*pair, 2, whole.n_steps - 1)
    assert found.n_steps == whole.n_steps - 1 and not found.complete
    assert naive_law(*pair, 2, whole.n_steps).complete
    assert found.output_probs.sum() < 1


def rejected_prefixes(p, q, length):
    """By the definition: the residual's budget of every prefix, in plain Python."""

    def below(weight, rejected, left):
        if left == 0:
            return 0
        total = 0
        for x in range(len(p)):
            after = weight * q[x] - (0.0 if x in rejected else p[x])
            if after > 0:
                total += 1 + below(after, rejected | {x}, left - 1)
        return total

    return below(1.0, frozenset(), length)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("vocab_size", [2, 9, 30])
def test_path_steps_are_counted_by_their_definition(length, vocab_size):
    pair = synthetic_pair(vocab_size, seed=vocab_size)
    expected = rejected_prefixes(*map(list, pair), length)
    assert count_rejected_prefixes(*pair, length) == expected == naive_law(*pair, length).n_steps


def test_lengths_that_are_not_counted_are_refused():
    with pytest.raises(InputError, match="1 to 3"):
        count_rejected_prefixes(*synthetic_pair(5, 0), 4)


def test_the_walk_is_that_of_the_law():
    pair = synthetic_pair(500, seed=2)
    law, prepared = exact_law("resispec", *pair, 3), prepare(*pair)
    for want_law in (True, False):
        found = walk(prepared, 3, want_law=want_law)
        assert found.accepted == pytest.approx(law.accepted, rel=0, abs=1e-12)
    assert walk(prepared, 3, want_law=True).n_steps == law.n_paths


def test_made_up_pairs_are_repeatable_and_share_their_head():
    target, draft = synthetic_pair(64, 3, 1)
    again = synthetic_pair(64, 3, 1)
    assert np.array_equal(target, again[0]) and np.array_equal(draft, again[1])
    assert not np.array_equal(target, synthetic_pair(64, 3, 2)[0])
    larger = synthetic_pair(128, 3, 1)[0]
    # up to the normalisation, every mass of the smaller vocabulary occurs in the larger one
    shared = [
        np.isclose(larger[:, None], scale * target, rtol=1e-9, atol=0).any(axis=0).all()
        for scale in larger / target.max()
    ]
    assert sum(shared) == 1


def test_times_are_the_best_of_functions_called_in_turn():
    calls = []
    found = best_seconds(lambda: calls.append("a"), lambda: calls.append("b"), repeats=3)
    assert calls == ["a", "b"] * 4 and min(found) >= 0
    assert log_slope([1, 10, 100], [5, 50, 500]) == pytest.approx(1)


def law_row(name, steps, rate):
    return {"figure": "law", "class": name, "steps": steps, "steps_per_second": rate}


def test_the_model_takes_the_slowest_law_of_the_nearest_class():
    rows = [
        law_row("small", 2e6, 3e8),
        law_row("small", 4e6, 2e8),
        law_row("large", 1e8, 1e8),
        law_row("large", 2e8, 2e8) | {"figure": "acceptance", "steps_per_second": 1.0},
    ]
    rates = typical_rates(rows)
    assert rates == [(4e6, 2e8), (1e8, 1e8)]
    assert rate_at(rates, 1) == 2e8 and rate_at(rates, 7e7) == 1e8
    assert typical_rates([]) == []


def test_rates_are_measured_where_the_class_has_a_position():
    class At:
        def __init__(self, vocab_size):
            self.pair = synthetic_pair(vocab_size, seed=0)

        def probs(self):
            return self.pair

    places = [At(size) for size in (20, 200, 1000)]
    counts = {n: [count_rejected_prefixes(*place.pair, n) for place in places] for n in (2, 3)}
    middle = counts[2][1]
    cases = choose_cases(places, [("mid", middle / 2, 2 * middle), ("none", 1e12, 1e13)], print)
    assert {case.name for case in cases} == {"mid"}
    for case in cases:
        assert case.n_steps == counts[case.length][places.index(case.place)]
        assert middle / 2 <= case.n_steps <= 2 * middle
    assert any(case.length == 2 and case.place is places[1] for case in cases)


def test_positions_are_summed_up_per_dump():
    common = {"temperature": 1.0, "n": 3, "method": "exact", "steps": 9, "width": 0.0}
    rows = [
        common | {"dump": "a", "position": 0, "seconds": 1.0, "over_model": 0.5},
        common | {"dump": "a", "position": 1, "seconds": 3.0, "over_model": 2.0},
        common
        | {"dump": "b", "position": 0, "seconds": 2.0, "over_model": None}
        | {"method": "certified", "width": 1e-6},
    ]
    a, b = summarise(rows)
    assert (a["seconds"], a["slowest"]["position"], a["worst_over_model"]["position"]) == (
        4.0,
        1,
        1,
    )
    assert (b["methods"], b["widest"], b["worst_over_model"]) == ({"certified": 1}, 1e-6, None)


@pytest.fixture(scope="module")
def results():
    return benchmark(("rates", "preparation", "positions", "siblings", "scaling"), quick=True)


def test_a_quick_run_has_every_figure(results):
    assert results["machine"]["cpu"] and results["machine"]["date"].startswith("20")
    for row in results["rates"]:
        ratio = row["steps_per_second"] / row["naive_steps_per_second"]
        assert row["ratio"] == pytest.approx(ratio) and row["ratio"] > 10
        assert row["n"] == row["prefix_length"] + (row["figure"] == "acceptance")
    assert {row["figure"] for row in results["rates"]} == {"law", "acceptance"}
    prep = results["preparation"]
    assert "softmax" in prep["baseline"] and len(prep["rows"]) == 5
    assert all(row["worst_ratio"] >= row["ratio"] > 0 for row in prep["rows"])
    for row in results["positions"]["rows"]:
        assert row["method"] == "exact" and row["width"] == 0
        assert row["over_model"] == pytest.approx(row["seconds"] / row["model_seconds"])
        assert row["model_seconds"] > row["preparation_seconds"]
    assert all(row["n"] == 4 for row in results["siblings"]["rows"])
    scaling = results["scaling"]
    assert [row["x"] for row in scaling["by_siblings"]] == [1, 1, 2, 2, 3, 3]
    assert set(scaling["slopes"]["by_vocab"]) == {row["figure"] for row in scaling["by_vocab"]}


def test_results_as_tables_and_files(results, tmp_path, capsys):
    from rich.console import Console

    from resispec_sim.bench.plot import save_plot
    from resispec_sim.bench.report import frames, save, table

    folder = save(results, tmp_path / "out")
    found = json.loads((folder / "bench.json").read_text())
    assert found["kind"] == "bench" and found["rates"][0]["steps"] == results["rates"][0]["steps"]
    for name in ("rates", "preparation", "positions", "siblings", "scaling"):
        assert len(pd.read_csv(folder / f"{name}.csv")) == len(frames(results)[name])
    picture = save_plot(results, tmp_path / "docs")
    assert picture.read_bytes()[:4] == b"\x89PNG" and picture.stat().st_size < 100_000
    assert len(pd.read_csv(picture.with_suffix(".csv"))) == len(frames(results)["scaling"])
    Console(width=110).print(table(results))
    out = capsys.readouterr().out
    for text in ("path-step is one rejected prefix", "naive steps/s", "quick", "slope", "softmax"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110


def test_the_command(tmp_path, capsys):
    arguments = ["bench", "--quick", "--parts", "preparation", "--out", str(tmp_path / "out")]
    assert run_command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quick"] is True
    assert run_command([*arguments, "--plot", str(tmp_path)]) == 2
    assert "add it to --parts" in capsys.readouterr().err
    assert run_command(["bench", "--quick", "--parts", "rates,speed"]) == 2
    assert "parts holds speed" in capsys.readouterr().err
    assert run_command(["bench", "--quick", "--scale-gb", "0"]) == 2


def test_an_interrupted_run_keeps_what_was_finished(monkeypatch):
    def interrupt(settings, results):
        raise KeyboardInterrupt

    parts = {"preparation": lambda settings, results: {"rows": []}, "scaling": interrupt}
    monkeypatch.setattr(run, "_PARTS", parts)
    found = benchmark(("preparation", "scaling"), quick=True)
    assert found["partial"] and "preparation" in found and "scaling" not in found
    with pytest.raises(KeyboardInterrupt):
        benchmark("scaling", quick=True)


def test_what_is_absent_is_noted(monkeypatch):
    from resispec_sim.bench import workers
    from resispec_sim.bench.settings import QUICK

    assert "note" in workers.measure_processes(QUICK)
    monkeypatch.setattr(workers, "_AT_SCALE", "resispec_sim.bench.no_such_module")
    assert "note" in workers.measure_large_dump(replace(QUICK, scale_gb=1.0))
    assert "note" in workers.measure_processes(replace(QUICK, most_positions=None))


def test_the_measurements_at_scale_are_passed_on(monkeypatch):
    from types import SimpleNamespace

    from rich.console import Console

    from resispec_sim.bench import report, workers
    from resispec_sim.bench.settings import QUICK

    def speed_up(dump, temperature, n_jobs):
        return {"dump": dump, "jobs": n_jobs, "seconds": [4.0, 2.5], "speed_up": 1.6}

    def large_dump(n_bytes, n_jobs, folder):
        return {
            "gigabytes": n_bytes / 1e9,
            "positions": 10,
            "speed": 0.75,
            "replay": {"peak_mib": 500.0},
        }

    module = SimpleNamespace(speed_up=speed_up, large_dump=large_dump)
    monkeypatch.setattr(workers, "_AT_SCALE", "json")
    monkeypatch.setattr(
        workers,
        "importlib",
        SimpleNamespace(import_module=lambda name: module, util=importlib.util),
    )
    settings = replace(
        QUICK, most_positions=None, dumps=("smollm2-t1.0", "smollm2-t0.6"), scale_gb=2.0
    )
    console = Console(width=200)
    with console.capture() as said:
        console.print(report._processes(workers.measure_processes(settings)))
        console.print(report._large_dump(workers.measure_large_dump(settings)))
    for name in ("smollm2-t1.0", "smollm2-t0.6"):
        assert f"{name}: 4 s in one process, 2.5 s in 2, 1.60 times as fast" in said.get()
    assert "2 GB, 10 positions: 0.75 of the speed" in said.get() and "500 MiB" in said.get()
