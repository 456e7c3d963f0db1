"""Recipes: values, overrides and error messages."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
import yaml

from seq2seq.config import (
    TASKS,
    Config,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
    commented_yaml,
    config_of,
    from_tree,
    to_tree,
    to_yaml,
)
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import load_config

MINIMAL = "data: {source: en, target: de, train: a, dev: b}\n"


def write(folder: Path, text: str, name: str = "recipe.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_short_recipe_takes_the_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL))
    assert config.name == tmp_path.name
    assert config.pairs.train[0].path == "a"
    assert config.model.dim == 512 and config.training.label_smoothing == 0.1


def test_overrides_reach_every_section(tmp_path: Path) -> None:
    overrides = ["model.dim=64", "training.lr=1e-3", "data.clean.max_len=null"]
    overrides += ["data.dev={path: b, tag: <x>}", "data.train=[{path: c, weight: 2}, d]"]
    config = load_config(write(tmp_path, MINIMAL, "small.yaml"), overrides)
    assert (config.name, config.model.dim, config.training.lr) == ("small", 64, 0.001)
    assert config.pairs.clean.max_len is None
    [dev] = config.pairs.dev
    assert (dev.path, dev.tag) == ("b", "<x>")
    assert [(c.path, c.weight) for c in config.pairs.train] == [("c", 2.0), ("d", 1.0)]


def test_the_resolved_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL), ["tokenizer.models=[x.model]", "name=run"])
    again = load_config(write(tmp_path, to_yaml(config), "again.yaml"))
    assert again == config
    assert from_tree(Config(), to_tree(config), "x") == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.augment.upper=0.1"], "unknown key 'data.augment.upper'"),
        (["data.augment.copy=0.1"], "copy=0.1 has no effect without data.protect"),
        (["data.train={path: a, scores: b}"], "data.train has scores: set data.clean.min_score"),
        (["data.protect=[mail]"], "data.protect: unknown pattern 'mail'"),
        (["data.clean.ratio=3"], "did you mean 'data.clean.max_ratio'"),
        (["decoding.length_penalty=-1"], "length_penalty=-1.0 must be at least 0"),
        (["training.precision=fp8"], "precision='fp8' must be one of: auto, fp32, fp16, bf16"),
        (["data.target=no"], "put it into quotes"),
        (["model.dropout=1"], "model.dropout=1.0 must be at most"),
        (["training.lr_end=0.1"], "lr_end=0.1 has no effect with training.schedule=noam"),
        (["tokenizer.shared=false", "tokenizer.models=[a]"], "two (source, target)"),
        (["data.corpora=3"], "see docs/recipe.md"),
        *(([f"name={name}"], "must be a folder name") for name in ("../a", "..", ".hidden", "a/b")),
        (["data.train=[]"], "data.train is empty"),
        (["data.train=[{path: a, tag: 'x y'}]"], "a symbol without spaces"),
        (["tokenizer.kind=char", "tokenizer.bpe_dropout=0.1"], "has no effect with"),
        (["task=summaries"], "must be one of: translation"),
        (["model.positions=learned", "model.context=256"], "needs data.clean.max_len below"),
        (["tokenizer.kind=byte"], "is for language models"),
        (["task=language_model"], "with task=translation"),
        (["task=classification", "data.augment.typos=0.3"], "augment.typos=0.3 has no effect"),
        (["task=[x]"], "task=['x'] must be one of: translation"),
        (["model.context=9"], "context=9 has no effect with model.positions=sinusoidal"),
        (["data.source=[" + "x, " * 2_000 + "]"], "data.source=['x', 'x', 'x', 'x', 'x', 'x', ..."),
    ],
)
def test_user_errors_name_their_cause(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_config(write(tmp_path, MINIMAL), overrides)
    assert message in str(error.value)


@pytest.mark.parametrize("section", [TokenizerConfig, ModelConfig, TrainingConfig, DecodingConfig])
def test_every_number_of_a_recipe_has_bounds(section: type) -> None:
    """So that no value overflows in an array, or is infinite in fp32."""
    hints = get_type_hints(section, include_extras=True).values()
    options = [get_args(hint) if get_origin(hint) is UnionType else (hint,) for hint in hints]
    assert not {int, float} & {*chain(*options)}


def test_an_alias_is_a_copy(tmp_path: Path) -> None:
    """Merged keys are no duplicates; an override changes one place only."""
    merged = "decoding: {<<: {beam: 3}, beam: 2}\n"
    corpora = MINIMAL.replace("train: a, dev: b", "train: [&a {path: a}], dev: *a")
    config = load_config(write(tmp_path, corpora + merged), ["data.dev.path=other"])
    [train], [dev] = config.pairs.train, config.pairs.dev
    assert (config.decoding.beam, train.path, dev.path) == (2, "a", "other")


def test_every_recipe_of_the_repository_is_valid() -> None:
    recipes = sorted((Path(__file__).parent.parent / "recipes").glob("*/*.yaml"))
    assert len(recipes) >= 10
    for path in recipes:
        load_config(path)


@pytest.mark.parametrize("task", TASKS)
def test_the_whole_recipe_of_a_task_reads_back(task: str) -> None:
    """Keys without effect are in the recipe of a run, with their defaults."""
    defaults = TASKS[task].defaults
    assert config_of(to_tree(defaults), "x") == defaults
    commented = yaml.safe_load(commented_yaml(to_tree(defaults), {}))
    assert config_of(commented, "x") == defaults


def test_a_recipe_has_comments_from_docstrings() -> None:
    corpora = ["a#1", {"source": "f", "target": "g: h"}]
    data = {"source": "no", "train": corpora, "dev": "x  # y", "augment": {"typos": 0.1}}
    tree = {"data": data, "training": {"patience": None, "adam_eps": 1e-4}}
    text = commented_yaml(tree, {"training.patience": "Off"})
    assert yaml.safe_load(text) == tree
    assert "    - a#1\n    - {source: f, target: 'g: h'}\n" in text
    keys = [line for line in text.splitlines() if not line.startswith("    - ")]
    lines = [line.rstrip().rpartition("  # ") for line in keys]
    comments = {key.split(":")[0]: (len(key.rstrip()), comment) for key, _, comment in lines}
    assert {key: comment for key, (_, comment) in comments.items()} == {
        "data": "Languages and parallel corpora",
        "  source": "Source language, such as `en`",
        "  train": "Training corpus, or a list of training corpora",
        "  dev": "Development set, used to select the best model",
        "  augment": "Shares of training pairs that are changed at random",
        "    typos": "Typos in a fifth of the words of the source",
        "training": "Optimisation, batches, validations and checkpoints",
        "  patience": "Off",
        "  adam_eps": "Term added to Adam's denominator",
    }
    assert "# Decoupled weight decay of matrices and embeddings (Loshchilov and Hutter 2019)\n" in (
        commented_yaml({"training": {"weight_decay": 0}}, {})
    )
