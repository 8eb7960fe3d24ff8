"""Run configurations: those of the paper's tables, local substitutes, errors."""

import itertools
import re
from pathlib import Path

import pytest

from resispec_sim.errors import InputError
from resispec_sim.growmaps import parse_growmap
from resispec_sim.rules import parse_rule
from resispec_sim.run_config import RunConfig, TopKShape
from resispec_sim.run_config_files import (
    FOLDER,
    list_run_configs,
    override,
    read_local_config,
    read_run_config,
    replaced_entries,
    substitute,
)

ROOT = Path(__file__).resolve().parents[1]
DATASETS = {"cnn-dm": "cnn_dailymail", "openwebtext": "openwebtext", "c4": "c4"}
SHEARED = "princeton-nlp/Sheared-LLaMA-2.7B"
PAIRS = {
    "llama2-jf68m": ("meta-llama/Llama-2-7b-hf", "JackFram/llama-68m"),
    "sheared2.7b-sheared1.3b": (SHEARED, "princeton-nlp/Sheared-LLaMA-1.3B"),
    "sheared2.7b-tinyllama-1.1b": (SHEARED, "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T"),
    "sheared2.7b-tiny-vicuna-1b": (SHEARED, "Jiayi-Pan/Tiny-Vicuna-1B"),
}


@pytest.fixture(scope="module")
def configs() -> dict[str, RunConfig]:
    return {name: run for name, run in list_run_configs().items() if name.startswith("table")}


def fixed_rows() -> dict[str, tuple[str, str, str, float, tuple[str, ...]]]:
    """Target, draft, tree, temperature and datasets of every row of Tables 1, 3 and 6."""
    rows = {}
    llama = PAIRS["llama2-jf68m"]
    for heat, (short, dataset) in itertools.product((1.0, 0.6), DATASETS.items()):
        rows[f"table1-{short}-t{heat}"] = (*llama, "d5b3", heat, (dataset,))
        for (pair, models), tree in itertools.product(PAIRS.items(), ("d5b3", "d4b4")):
            rows[f"table6-{pair}-t{heat}-{short}-{tree}"] = (*models, tree, heat, (dataset,))
    for tree in ("d7b2", "d5b3", "d4b5", "d3b11"):
        rows[f"table3-{tree}"] = (*llama, tree, 1.0, tuple(DATASETS.values()))
    return rows


def test_every_row_of_the_tables_has_its_file(configs: dict[str, RunConfig]) -> None:
    rows = fixed_rows()
    assert sum(name.startswith("table6") for name in rows) == 48
    others = {"table2-eagle", *[f"table2-sequoia-{short}" for short in DATASETS]}
    assert set(configs) == set(rows) | others
    for name, (target, draft, tree, heat, datasets) in rows.items():
        config = configs[name]
        assert (config.target, config.draft, config.tree) == (target, draft, tree)
        assert (config.temperature, tuple(config.datasets)) == (heat, datasets)
        assert [method.rule for method in config.methods] == ["specinfer", "resispec"]
        assert (config.max_length, config.n_prompts) == (512, 200)
        number = int(re.search(r"row (\d+)", config.about)[1])
        assert config.about.startswith(f"Table {name[5]}, row {number}:")


def test_compatibility_rows(configs: dict[str, RunConfig]) -> None:
    for short, dataset in DATASETS.items():
        config = configs[f"table2-sequoia-{short}"]
        assert [method.rule for method in config.methods] == ["rrs-wor", "resispec-wor"]
        assert config.tree.endswith("-68m-7b-stochastic.pt")
        assert (config.max_length, tuple(config.datasets)) == (384, (dataset,))
    eagle = configs["table2-eagle"]
    assert eagle.tree == TopKShape(depth=6, width=10, budget=60)
    assert (eagle.max_new_tokens, eagle.warmup_prompts) == (128, 2)
    assert eagle.draft == "eagle:yuhuili/EAGLE-llama2-chat-7B"
    assert [method.rule for method in eagle.methods] == ["target-only", "resispec-eagle"]


def test_files_say_what_the_paper_leaves_open_and_name_no_path(configs) -> None:
    for name in configs:
        text = (FOLDER / f"{name}.toml").read_text()
        assert "Left open by the paper" in text
        assert "seed" in text.split("about =")[0]
        assert not re.search(r"/(home|root|work)/", text)


def test_one_option_makes_every_configuration_local(configs: dict[str, RunConfig]) -> None:
    local = read_local_config("smollm2")
    for config in configs.values():
        here = substitute(config, local)
        assert (here.target, here.draft, here.device) == ("smollm2", "exit:20", "cpu")
        assert all(Path(source).is_file() for source in here.prompts)
        assert Path(here.fit_text).is_file()
        assert [method.rule for method in here.methods] == [m.rule for m in config.methods]
        assert here.temperature == config.temperature
        if isinstance(here.tree, str):
            assert parse_growmap(here.tree).n_nodes > 1
        if config.tree == "d5b3":
            assert here.tree == "d5b3"
        assert override(here, {}) == here
    shipped = (FOLDER / "local" / "fit_text.txt").read_bytes()
    assert shipped == (ROOT / "logits_dumps" / "fit_text.txt").read_bytes()


def test_eight_systems_on_one_model_and_trees_of_one_size() -> None:
    config = list_run_configs()["smollm2-systems"]
    assert (config.target, config.device, len(config.methods)) == ("smollm2", "cpu", 8)
    assert all(Path(source).is_file() for source in config.prompts)
    assert Path(config.fit_text).is_file()
    for method in config.methods:
        tree = config.tree_of(method)
        if isinstance(tree, TopKShape):
            assert tree.budget == 40
        elif tree is not None:
            assert parse_growmap(tree).n_nodes == 40
    assert config.draft_of(config.methods[0]) is None


def test_eagle_drafts_have_a_substitute_of_their_own(configs, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('target = "t"\ndraft = "d"\neagle = "eagle:head"\n')
    local = read_local_config(path)
    assert substitute(configs["table2-eagle"], local).draft == "eagle:head"
    assert substitute(configs["table3-d5b3"], local).draft == "d"


BASE = """
about = "mine"
target = "t"
draft = "d"
tree = "d3b2"
prompts = ["mine.txt", "dataset:c4"]
"""
METHODS = '[[methods]]\nname = "A"\nrule = "specinfer"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_files_beside_the_configuration_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a\n")
    config = read_run_config(write(tmp_path, BASE + METHODS))
    assert config.prompts == (str(tmp_path / "mine.txt"), "dataset:c4")
    assert tuple(config.datasets) == ("mine", "c4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE + "n_prompts = 0\n" + METHODS, r"run\.toml: key 'n_prompts' is 0: .*>= 1"),
        (BASE + 'seed = "3"\n' + METHODS, r"run\.toml: key 'seed' is '3': .*int"),
        (BASE + "colour = 3\n" + METHODS, r"run\.toml: key 'colour' is 3: .*unknown field"),
        (BASE, r"run\.toml: .*missing required field `methods`"),
        (BASE + '[[methods]]\nname = "A"\n', r"key 'methods\[0\]' .*missing required field `rule`"),
        (
            BASE + '[[methods]]\nname = "A"\nrule = "best"\n',
            r"'methods.rule' is 'best': unknown rule",
        ),
        (BASE.replace("d3b2", "d3x2") + METHODS, r"key 'tree' is 'd3x2': .*not of the form"),
        (BASE.replace('"d3b2"', "{ depth = 5, width = 3 }") + METHODS, r"'tree'.*`budget`"),
        (BASE + "max_length = 100\n" + METHODS, r"'max_length' is 100: prompts of 128 tokens"),
        (BASE + METHODS + METHODS, r"'methods.name' is \['a', 'a'\]"),
        (BASE + 'order = "both"\n' + METHODS, r"key 'order' is 'both'"),
        (BASE + "seed = \n" + METHODS, r"run\.toml: cannot be read as TOML"),
    ],
)
def test_errors_name_file_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_run_config(write(tmp_path, text))


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(InputError, match="'table9'.*--list"):
        read_run_config("table9")
    with pytest.raises(InputError, match="'gpt'.*smollm2"):
        read_local_config("gpt")


def test_overrides_reach_every_method_and_are_checked(
    configs: dict[str, RunConfig], tmp_path
) -> None:
    text = (
        BASE + METHODS + '[[methods]]\nname = "B"\nrule = "resispec"\ndraft = "e"\ntree = "d2b2"\n'
    )
    config = read_run_config(write(tmp_path, text))
    assert [config.draft_of(m) for m in config.methods] == ["d", "e"]
    assert [config.tree_of(m) for m in config.methods] == ["d3b2", "d2b2"]
    assert replaced_entries(config, override(config, {"seed": 3})) == ("seed",)
    other = override(config, {"draft": "f", "tree": "d4b2", "n_prompts": 3})
    assert [other.draft_of(m) for m in other.methods] == ["f", "f"]
    assert [other.tree_of(m) for m in other.methods] == ["d4b2", "d4b2"]
    assert other.n_prompts == 3
    with pytest.raises(InputError, match="key 'n_prompts' is -1"):
        override(config, {"n_prompts": -1})
    assert all(parse_rule(m.rule) for m in configs["table2-eagle"].methods)
