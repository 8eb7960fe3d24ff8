"""`resispec rules`: every rule, with what a reader needs to choose one."""

import json

import pytest

from resispec_sim.cli import run_command
from resispec_sim.rules import RULES, parse_rule
from resispec_sim.rules.siblings import SCHEMES
from resispec_sim.rules_command import describe_rules


def test_every_rule_is_described():
    found = {rule["name"]: rule for rule in describe_rules()}
    assert list(found) == list(RULES)
    for name, rule in found.items():
        made = parse_rule(name, **rule["options"])
        assert made == RULES[name]()
        assert (rule["exact"], rule["siblings"]) == (made.exact, made.siblings)
        assert rule["siblings"] in SCHEMES and rule["siblings_words"] == SCHEMES[rule["siblings"]]
        assert rule["n_siblings"] == made.only_count
        assert rule["complexity"] and rule["paper"] and rule["summary"].endswith(".")


@pytest.mark.parametrize("columns", ["80", "110"])
def test_the_table_names_every_rule(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert run_command(["rules"]) == 0
    out = capsys.readouterr().out
    first = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert set(RULES) <= first
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "fill=capacity" in out and "or water|index" in out and "arXiv:2411.05289" in out


def test_json(capsys):
    assert run_command(["rules", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rules"] == describe_rules()
