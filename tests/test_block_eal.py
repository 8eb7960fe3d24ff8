"""Accepted length of a chain along recorded text, against enumeration of all texts."""

import json
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest
from test_sequences import MODELS, at_least

import resispec_sim.sequences.chain as chain
from resispec_sim.chain_command import chain_command
from resispec_sim.dumps import open_dump, write_dump
from resispec_sim.errors import InputError
from resispec_sim.rules.block import verify_chain
from resispec_sim.sequences import block_eal, chain_shape, sequence_law
from resispec_sim.sequences.law import texts
from resispec_sim.trees import path_eal, path_tokens_per_step

DEPTH = 3
RULES = ["rejection", "block"]
V, LENGTHS = 7, (6, 2, 5)


def followed(model, text):
    rows = [model.probs(text[:i]) for i in range(len(text))]
    return chain.follow([p for p, _ in rows], [q for _, q in rows], text)


# --- the estimator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_estimates_are_unbiased_over_all_texts(model, rule):
    expected = at_least(sequence_law(rule, model, chain_shape(DEPTH))).tolist()
    estimates, reached = np.array([F(0)] * DEPTH), np.array([F(0)] * DEPTH)
    for text, p in texts(model, DEPTH):
        if p > 0:
            start = followed(model, text)
            estimates = estimates + p * np.array(start.estimates[rule])
            reached = reached + p * np.array(start.reached[rule])
    assert estimates.tolist() == expected
    assert reached.tolist() == expected


def test_an_estimate_that_forgets_the_smallest_ratio_is_biased(monkeypatch):
    advance = chain.Start.advance

    def forgetful(self, *row):
        advance(self, *row)
        self.least = min(1, self.ratio)

    model = MODELS["markov"]
    expected = at_least(sequence_law("block", model, chain_shape(DEPTH)))[-1]
    monkeypatch.setattr(chain.Start, "advance", forgetful)
    found = sum(
        p * followed(model, text).estimates["block"][-1] for text, p in texts(model, DEPTH) if p > 0
    )
    assert abs(found - expected) > F(1, 1000)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_block_is_never_below_token_wise_on_the_same_start(model):
    for text, p in texts(model, DEPTH):
        if p > 0:
            start = followed(model, text)
            for found in (start.estimates, start.reached):
                assert all(
                    0 <= a <= b <= 1 for a, b in zip(*(found[r] for r in RULES), strict=True)
                )
            assert start.estimates["rejection"][0] == start.estimates["block"][0]


@pytest.mark.parametrize("rule", RULES)
def test_steps_start_where_the_procedure_starts_them(rule):
    """Expected starts per position over texts = those of steps that are run one after another."""
    model, depth, length = MODELS["markov"], 2, 5
    # a step depends on the last token only
    steps = {last: step(rule, model, depth, last) for last in [(), (0,), (1,), (2,)]}
    starts = [dict.fromkeys(steps, F(0)) for _ in range(length + depth + 1)]
    starts[0][()] = F(1)
    for t in range(length):
        for last, reach in starts[t].items():
            for emitted, mass in steps[last].items():
                starts[t + len(emitted)][emitted[-1:]] += reach * mass
    expected = [float(sum(starts[t].values())) for t in range(length)]
    found = np.zeros(length)
    for text, p in texts(model, length):
        reached = [
            chain.follow(
                *zip(*(model.probs(text[:i]) for i in range(t, stop)), strict=True), text[t:stop]
            ).reached[rule]
            for t in range(length)
            for stop in [min(t + depth, length)]
        ]
        # starts near the end of the text lack the positions after it, which no later start needs
        padded = [[*map(float, row), *[0.0] * (depth - len(row))] for row in reached]
        found += float(p) * chain.step_starts(padded)
    assert found == pytest.approx(expected, abs=1e-12)


def step(rule, model, depth, text):
    """Law of what one step emits after `text`, by enumeration of drafts and lengths."""
    found = {}
    for draft in product(range(3), repeat=depth):
        rows = [model.probs((*text, *draft[:i])) for i in range(depth + 1)]
        mass = F(1)
        for (_, q), x in zip(rows, draft, strict=False):
            mass *= q[x]
        for length, (stop, following) in enumerate(lengths(rule, rows, draft)):
            for x, p in enumerate(following):
                emitted = (*draft[:length], x)
                found[emitted] = found.get(emitted, F(0)) + mass * stop * p
    assert sum(found.values()) == 1
    return found


def lengths(rule, rows, draft):
    """P(accepted length) and law of the next token, given the draft."""
    if rule == "block":
        law = verify_chain([p for p, _ in rows], [q for _, q in rows[:-1]], draft)
        return list(zip(law.lengths, law.next_probs, strict=True))
    found, reach = [], F(1)
    for (p, q), x in zip(rows, draft, strict=False):
        accept = min(F(1), p[x] / q[x])
        rest = np.maximum(p - q, 0)
        found.append((reach * (1 - accept), rest / sum(rest) if sum(rest) else p))
        reach *= accept
    return [*found, (reach, rows[-1][0])]


# --- along a dump ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(3)
    target = [rng.normal(size=(n, V)) * 2 for n in LENGTHS]
    draft = [rows + rng.normal(size=rows.shape) for rows in target]
    tokens = [rng.integers(V, size=n) for n in LENGTHS]
    path = tmp_path_factory.mktemp("dumps") / "tiny"
    write_dump(path, target, draft, list(tokens), dtype="float32").close()
    return path


def rows_of(dump):
    prompts = [[] for _ in range(dump.n_prompts)]
    for position in dump.iter_positions():
        prompts[position.prompt_idx].append((*dump.probs(position), position.token_id))
    return prompts


def test_report_is_the_mean_over_its_starts(folder):
    report = block_eal(folder, depth=DEPTH)
    with open_dump(folder) as dump:
        prompts = rows_of(dump)
    starts = [
        chain.follow(*zip(*rows[t : t + DEPTH], strict=True))
        for rows in prompts
        for t in range(len(rows) - DEPTH + 1)
    ]
    summary = report.summary
    assert summary["n_starts"] == len(starts) == 4 + 3
    assert summary["n_prompts"] == 2  # the second prompt is too short
    for figures in summary["rules"]:
        survival = np.mean([start.estimates[figures["rule"]] for start in starts], axis=0)
        assert [value["mean"] for value in figures["survival"]] == pytest.approx(survival)
        assert figures["accepted_length"]["mean"] == pytest.approx(survival.sum())
        assert figures["eal"]["mean"] == pytest.approx(1 + survival.sum())
        assert figures["eal"]["low"] <= figures["eal"]["mean"] <= figures["eal"]["high"]
    gain = np.subtract(*(figures["eal"]["mean"] for figures in summary["rules"][::-1]))
    assert summary["eal_gain"]["mean"] == pytest.approx(gain)
    assert gain > 0


def test_token_wise_figures_are_those_of_a_replay(folder):
    figures = block_eal(folder, depth=DEPTH).summary["rules"][0]
    assert figures["rule"] == "rejection"
    eal, tokens, steps = [], 0.0, 0.0
    with open_dump(folder) as dump:
        for rows in rows_of(dump):
            w = [min(1, q[x] / p[x]) for p, q, x in rows]
            alpha = [np.minimum(p, q).sum() for p, q, _ in rows]
            if len(rows) >= DEPTH:
                eal += path_eal(w, alpha, DEPTH).tolist()
                more = path_tokens_per_step(w, alpha, DEPTH)
                tokens, steps = tokens + more[0], steps + more[1]
    assert figures["eal"]["mean"] == pytest.approx(np.mean(eal), abs=1e-12)
    assert figures["tokens_per_step"]["mean"] == pytest.approx(tokens / steps, abs=1e-12)


def test_no_step_reaches_over_a_token_that_the_target_lacks(tmp_path):
    target, tokens = np.zeros((7, 3)), np.zeros(7, dtype=int)
    target[4, 0] = -1000.0  # finite, but its probability underflows
    with write_dump(tmp_path, [target], [np.zeros((7, 3))], [tokens], dtype="float32") as dump:
        report = block_eal(dump, depth=2)
    assert report.n_left_out == 1
    assert report.summary["n_starts"] == 3 + 1


@pytest.mark.parametrize("name", ["smollm2-t1.0", "smollm2-t0.6"])
def test_shipped_dumps(name):
    summary = block_eal(name, depth=5).summary
    by_token, by_block = summary["rules"]
    assert summary["n_starts"] == 48 and summary["n_prompts"] == 8
    for i in range(5):
        low, high = (figures["survival"][i]["mean"] for figures in (by_token, by_block))
        assert 0 < low <= high <= 1
    assert summary["eal_gain"]["low"] > 0
    assert by_block["tokens_per_step"]["mean"] > by_token["tokens_per_step"]["mean"]


def test_depth_is_checked(folder):
    for depth, words in ((0, "at least 1"), (7, "at most 6"), (65, "at most 64"), (1.5, "whole")):
        with pytest.raises(InputError, match=words):
            block_eal(folder, depth=depth)


# --- the command -----------------------------------------------------------------------------------


def test_command_prints_json_alone(folder, capsys):
    assert chain_command(str(folder), depth=2, json_output=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "chain" and found["depth"] == 2
    assert found["provenance"]["parameters"]["depth"] == 2
    assert [figures["rule"] for figures in found["rules"]] == RULES


def test_command_prints_a_table(folder, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert chain_command(str(folder), depth=2) == 0
    out = capsys.readouterr().out
    for text in (
        "token-wise",
        "block",
        "P(at least 2 accepted)",
        "EAL, with the bonus",
        "2 drafted",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110
