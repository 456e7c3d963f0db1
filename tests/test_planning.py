"""`seq2seq new`: what it finds in a corpus, which model it chooses, the recipe that it writes."""

from __future__ import annotations

import gzip
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import run_recipe

from seq2seq.config import Config, PairsConfig, TextConfig, config_of, from_tree
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import validator
from seq2seq.evaluation.systems import split_of_run
from seq2seq.formats.model_directory import describe_model, find_model, load_config
from seq2seq.planning import plan as planning
from seq2seq.planning.new import (
    LR_FRACTION,
    LR_FRACTION_NEW_ONLY,
    corpora_of,
    count_examples,
    new_recipe,
)
from seq2seq.planning.plan import (
    DROPOUT_EPOCHS,
    SIZES,
    Request,
    Trial,
    dropout,
    sized_recipe,
    vocab_size,
)
from seq2seq.preparation.corpora import TextPair
from seq2seq.preparation.prepare import prepare
from seq2seq.training.records import corpus_files
from seq2seq.training.run import train
from seq2seq.training.schedule import learning_rate

DATA = {"source": "en", "target": "de", "train": ["a"]}
ANIMALS = [("dog", "Hund"), ("cat", "Katze"), ("horse", "Pferd"), ("bird", "Vogel")]


def pairs(count: int) -> list[TextPair]:
    drawn = random.Random(0)
    drawn_pairs = ((drawn.choice(ANIMALS), drawn.choice(ANIMALS)) for _ in range(count))
    return [
        (f"the {a[0]} number {i} sees the {b[0]}", f"{a[1]} Nummer {i} sieht {b[1]}")
        for i, (a, b) in enumerate(drawn_pairs)
    ]


def write_tsv(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_examples_of_all_corpora_are_counted(tmp_path: Path) -> None:
    rows = pairs(50)
    corpora = [str(write_tsv(tmp_path / "a.tsv", rows[:15])), str(tmp_path / "b")]
    for side, language in enumerate(("en", "de")):
        with gzip.open(tmp_path / f"b.{language}.gz", "wt") as stream:
            stream.writelines(f"{row[side]}\n" for row in rows[15:])
    section = from_tree(PairsConfig(), {**DATA, "train": corpora}, "")
    assert count_examples(section, "--train") == [15, 35]
    (tmp_path / "a.txt").write_text("ä\nb")
    text = from_tree(TextConfig(), {"text": str(tmp_path / "a.txt")}, "")
    assert count_examples(text, "--train") == [3]


def test_files_are_corpora_in_the_form_of_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.en", "a.de", "prefix.en", "prefix.de", "d.tsv"):
        Path(name).touch()
    files = ["d.tsv", "prefix", "a.en", "a.de", "e.tsv.gz"]
    pair = {"source": "a.en", "target": "a.de"}
    assert corpora_of(files, "train", ["en", "de"]) == ["d.tsv", "prefix", pair, "e.tsv.gz"]
    missing = {"source": "none.en", "target": "a.de"}
    assert corpora_of(["none.en", "a.de"], "train", ["en", "de"]) == [missing]
    with pytest.raises(UserError, match=r"--train: a\.en is alone"):
        corpora_of(["a.en"], "train", ["en", "de"])
    with pytest.raises(UserError, match=r"--train: file not found: none\.en"):
        count_examples(from_tree(PairsConfig(), {**DATA, "train": "none"}, ""), "--train")


def request(count: int, minutes: float) -> Request:
    return Request("mine", "translation", DATA, minutes, count, count, 2)


@pytest.mark.parametrize(
    ("speed", "count", "minutes", "size"),
    [
        (8_000, 50_000, 15, "tiny"),
        (8_000, 50_000, 480, "small"),  # more time
        (8_000, 5_000, 480, "tiny"),  # too little text for a larger one
        (400_000, 200_000, 240, "medium"),
        (40_000_000, 4_500_000, 1440, "big"),
    ],
)
def test_time_speed_and_text_choose_the_size(
    speed: float, count: int, minutes: float, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(config: Config) -> Trial:
        """Take the time of as many products as the model has weights."""
        shape = config.model
        weights = shape.encoder_layers * shape.dim * (4 * shape.dim + 2 * shape.ffn_dim)
        tiny = 3 * 128 * (4 * 128 + 2 * 512)
        return Trial(speed * tiny / weights, 25.0 * count, weights, 1.0)

    monkeypatch.setattr(planning, "run_trial", trial)
    text = sized_recipe(request(count, minutes))
    [chosen] = [each for each in SIZES["translation"] if f"Model size `{each.name}`" in text]
    assert chosen.name == size
    config = config_of(yaml.safe_load(text), "x")
    assert (config.model.dim, config.training.max_minutes) == (chosen.dim, minutes)
    tokens, epochs = numbers(text)
    least = min(tokens, 99 * count * 25) / config.training.batch_tokens
    assert least <= config.training.max_steps <= 4.5 * least
    assert config.model.dropout == dropout(chosen, epochs)


def test_a_small_corpus_is_not_repeated_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "run_trial", lambda _: Trial(10_000.0, 2e4, 10**6, 1.0))
    text = sized_recipe(request(1000, 600))
    tokens, epochs = numbers(text)
    assert epochs == planning.MAX_EPOCHS and "1,000 pairs, 4 min of training" in text
    training = config_of(yaml.safe_load(text), "x").training
    assert training.max_steps * 2048 <= 1.1 * 100 * 1000 * 20
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert numbers(sized_recipe(request(1000, 600)))[0] == pytest.approx(4 * tokens, rel=1e-3)


def numbers(recipe: str) -> tuple[float, float]:
    """Return the numbers of tokens and epochs that a recipe is planned for."""
    found = re.search(r"([\d,.]+) million tokens in total, ([\d.]+) epochs", recipe)
    assert found
    return 1e6 * float(found[1].replace(",", "")), float(found[2])


def test_more_text_has_more_pieces_and_more_epochs_more_dropout() -> None:
    counts = 100, 19_999, 20_000, 399_999, 400_000, 2_000_000
    pieces = [vocab_size(request(count, 1)) for count in counts]
    assert pieces == [4_000, 4_000, 8_000, 8_000, 16_000, 32_000]
    nine = replace(request(0, 1), num_languages=9)
    totals = 350_000, 4_000_000, 20_000_000
    pieces = [vocab_size(replace(nine, num_examples=total)) for total in totals]
    assert pieces == [24_000, 48_000, 64_000]
    tiny = SIZES["translation"][0]
    assert [dropout(tiny, epochs) for epochs in (8, 8.1, 20, 21)] == [0.05, 0.15, 0.15, 0.3]


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a corpus of each task, in which the test runs; trials are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.planning.plan.SECONDS", 0.05)
    for task, sizes in SIZES.items():
        monkeypatch.setitem(SIZES, task, tuple(each._replace(batch_tokens=512) for each in sizes))
    rows = pairs(300)
    write_tsv(tmp_path / "pairs.tsv", rows)
    labelled = [("cat" if "cat" in source else "none", source) for source, _ in rows]
    write_tsv(tmp_path / "labelled.tsv", labelled)
    (tmp_path / "text.txt").write_text("".join(f"{source}\n" for source, _ in rows))
    return tmp_path


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("translation", "pairs.tsv"),
        ("language_model", "text.txt"),
        ("classification", "labelled.tsv"),
    ],
)
def test_the_recipe_of_each_task_is_valid_and_says_what_was_chosen(
    task: str, file: str, corpora: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="seq2seq")
    files: dict[str, Sequence[str]] = {"train": [file], "dev": [], "test": []}
    source, target = ("en", "de") if task == "translation" else ("", "")
    path = new_recipe("mine", files, task=task, source=source, target=target, minutes=1.0)
    config = load_config(path)
    assert config.name == "mine"
    assert config.task == task
    assert config.training.max_minutes == 1.0
    assert config.training.label_smoothing == (0.0 if task == "language_model" else 0.1)
    text = path.read_text()
    lines = text.splitlines()
    assert {line.index("  # ") for line in lines if not line.startswith("#")} == {44}
    assert re.search(r"^  dropout: .*# For [\d.]+ epochs; raise it", text, re.MULTILINE)
    assert "  ffn_dim:" in text and "# Inner width of the feed-forward networks\n" in text
    assert "measuring this machine" in caplog.text
    assert re.search(r"expected: .* of training, [\d.]+ GiB of memory; [\d.]+ million", caplog.text)
    assert ("pairs: expect poor quality" in caplog.text) == (task == "translation")
    with pytest.raises(UserError, match=r"recipes/mine\.yaml exists"):
        new_recipe("mine", files, task=task, source=source, target=target, minutes=1.0)


@pytest.fixture
def trained(recipe: Path, corpora: Path) -> Path:
    """Return a run of the toy recipe, in the folder of the corpora."""
    return run_recipe(recipe, corpora / "old")


def tuned(run: Path, *train: str, dev: Sequence[str] = (), test: Sequence[str] = ()) -> Path:
    files = {"train": train or ["pairs.tsv"], "dev": dev, "test": test}
    options: dict[str, Any] = {"task": "translation", "source": "", "target": "", "minutes": 1.0}
    return new_recipe("tuned", files, run=run, **options)


def test_fine_tuning_mixes_old_data_in_at_a_lower_rate(trained: Path, recipe: Path) -> None:
    before = load_config(recipe)
    config = load_config(tuned(trained))
    data, folder = config.pairs, trained.parent
    new, old = data.train
    assert (new.path, old.path, new.weight) == ("pairs.tsv", f"{folder}/train", 1.0)
    assert (data.dev_size, data.test_size) == (60, 60)
    assert 300 * old.weight == pytest.approx(300 - 60 - 60, rel=0.01)
    assert [corpus.path for corpus in data.exclude] == [f"{folder}/dev", f"{folder}/test"]
    assert config.training.lr == pytest.approx(LR_FRACTION * peak_rate(before))
    assert config.training.init_from == str(trained)
    run = run_recipe(Path("recipes/tuned.yaml"), Path("new"), "training.max_steps=2")
    assert (run / "best").exists()
    assert (load_config(run / "recipe.yaml").model.dim, data.source) == (16, "en")


def test_fine_tuning_keeps_the_selection_of_the_old_data(recipe: Path, corpora: Path) -> None:
    count = len((corpora / "train.en").read_text().splitlines())
    (corpora / "scores").write_text("".join(f"{i}\n" for i in range(count)))
    train = f"data.train={{path: {corpora}/train, scores: {corpora}/scores}}"
    run = run_recipe(recipe, corpora / "old", train, "data.clean.min_score=100")
    data = load_config(tuned(run)).pairs
    assert [corpus.scores for corpus in data.train] == [None, f"{corpora}/scores"]
    assert (data.clean.min_score, data.clean.best_share) == (100, None)


def test_fine_tuning_trains_on_nothing_that_is_held_out(recipe: Path, corpora: Path) -> None:
    """Neither of the new pairs nor of those of the initial model."""
    none = [f"data.{split}=null" for split in ("dev", "test")]
    run = run_recipe(recipe, corpora / "old", *none, "data.dev_size=30", "data.test_size=10")
    before = prepare(load_config(run / "recipe.yaml"))
    old = {source for split in ("dev", "test") for source in before.store(split).texts()[0]}
    known = [(source, f"not {source}") for source in sorted(old)[:7]]
    write_tsv(corpora / "mixed.tsv", [*pairs(300), *known])
    data = prepare(load_config(tuned(run, "mixed.tsv")))
    assert data.facts("train")["dropped"]["overlap"] == len(old) + 7
    new = {source for split in ("dev", "test") for source in data.store(split).texts()[0]}
    ids, _ = data.store("train").pairs(np.arange(len(data.store("train"))))
    trained_on = {*data.tokenizer.source.decode([row.tolist() for row in ids])}
    assert not trained_on & (old | new) and new < {source for source, _ in pairs(300)}


def test_sets_that_are_given_are_not_held_out(trained: Path) -> None:
    data = load_config(tuned(trained, dev=["dev"], test=["test"])).pairs
    assert [corpus.path for corpus in (*data.dev, *data.test)] == ["dev", "test"]
    assert (data.dev_size, data.test_size) == (0, 0)


@pytest.mark.parametrize("moved", [False, True])
def test_the_data_of_a_run_are_found_from_anywhere(
    recipe: Path, corpora: Path, tmp_path_factory: Any, monkeypatch: Any, moved: bool
) -> None:
    """From another working directory, and after the whole tree has another place."""
    relative = [f"data.{split}={split}" for split in ("train", "dev", "test")]
    run = run_recipe(recipe, Path("runs/old"), *relative, "data.store=data/store")
    run, tokenizer = run.resolve(), Tokenizer.load(find_model(run))
    made = split_of_run(describe_model(find_model(run))[0], run, "test", tokenizer)
    if moved:
        place = tmp_path_factory.mktemp("place") / "moved"
        shutil.move(corpora, place)
        run = place / run.relative_to(corpora)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    found = split_of_run(describe_model(find_model(run))[0], run, "test", tokenizer)
    assert found.manifest["sha256"] == made.manifest["sha256"]
    assert moved or found.folder == made.folder
    assert not [*elsewhere.iterdir()]
    assert all(file.exists() for file in corpus_files(run))
    if not moved:  # resumed by its own recipe
        state = train(
            load_config(run / "recipe.yaml", ["training.max_steps=7"], run), run, validator
        )
        assert state.step == 7


def test_fine_tuning_without_the_old_data_says_so(
    trained: Path, recipe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = load_config(recipe)
    for path in trained.parent.glob("train.*"):
        path.unlink()
    config = load_config(tuned(trained))
    assert [corpus.path for corpus in config.pairs.train] == ["pairs.tsv"]
    assert config.training.lr == pytest.approx(LR_FRACTION_NEW_ONLY * peak_rate(before))
    assert "cannot mix in the old training data (" in caplog.text


def peak_rate(config: Config) -> float:
    """Return the highest learning rate of the initial model's warm-up and of what follows."""
    steps = range(1, 3 * config.training.warmup_steps)
    return max(learning_rate(config.training, config.model.dim, step) for step in steps)


def test_the_tables_of_the_documentation_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[1] / "docs" / "sizes.md").read_text(encoding="utf-8")
    for task, layers in (("translation", "{0}+{0}"), ("language_model", "{0}")):
        for size in SIZES[task]:
            cells = [*map(str, size[:4]), layers.format(size.layers)]
            assert f"| {' | '.join(cells)} | " in text
    few, more = DROPOUT_EPOCHS
    low, middle, high = SIZES["translation"][0].dropouts
    rates = f"{low} up to {few} epochs, {middle} up to {more}, {high} above"
    assert rates in " ".join(text.split())
