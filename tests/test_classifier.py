"""Classifiers: labels, accuracy and F1, training."""

from __future__ import annotations

import random
import re
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from conftest import records, run_recipe, write_recipe

from seq2seq.cli import main
from seq2seq.data.batching import truncate
from seq2seq.decoding.classification import TextClassifier
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluate import evaluate_run, metrics_text
from seq2seq.evaluation.evaluators import macro_f1
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes

GOOD, BAD = ["fine", "good", "lovely", "great"], ["awful", "bad", "dull", "poor"]
FILLER = ["the", "film", "was", "a", "bit", "of", "it", "and", "so", "on"]


def labelled_lines(count: int, seed: int) -> str:
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        label = rng.choice("01")
        words = [*rng.choices(FILLER, k=rng.randint(3, 12)), rng.choice((BAD, GOOD)[int(label)])]
        rng.shuffle(words)
        lines.append(f"{label}\t{' '.join(words)}\n")
    return "".join(lines)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Write reviews whose label depends on one word, and a recipe that learns them in seconds."""
    (tmp_path / "train.tsv").write_text(labelled_lines(400, 1))
    (tmp_path / "test.tsv").write_text(labelled_lines(60, 2))
    return write_recipe(tmp_path, "classification")


def test_reviews_are_learned_classified_and_evaluated(recipe: Path, tmp_path: Path) -> None:
    config = load_config(recipe)
    assert (config.model.decoder_layers, config.training.best_by) == (0, "accuracy")
    run = run_recipe(recipe, tmp_path / "run")
    last = records(run, "train")[-1]
    assert 600 < last["tokens_per_update"] <= 1500  # input tokens
    metrics = evaluate_run(run, None, "test", Processes())
    given = prepare(load_config(run / "recipe.yaml")).folder / "test.tsv"
    assert evaluate_run(run, None, "test", Processes(), data=str(given)) == metrics
    given = tmp_path / "given.tsv"
    given.write_text("unheard\ttext\n")
    with pytest.raises(UserError, match="has the label 'unheard'"):
        evaluate_run(run, None, "test", Processes(), data=str(given))
    assert metrics["accuracy"] > 95 and metrics["f1"] > 95
    confusion = metrics["confusion"]
    assert sum(confusion[true][given] for true in "01" for given in "01") == metrics["texts"] == 60
    right = confusion["0"]["0"] + confusion["1"]["1"]
    assert metrics["accuracy"] == pytest.approx(100 * right / 60)
    assert "confusion" in metrics_text(metrics)
    classifier = TextClassifier.load(run)
    lines = ["the film was good", "", "a dull film", "  ", "so so"]
    answers = classifier.classify_lines(lines)
    assert len(answers) == 5 and answers[1] == answers[3] == ""
    assert answers[0].startswith("1\t") and answers[2].startswith("0\t")
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    main(["classify", str(run), str(tmp_path / "in"), "-o", str(tmp_path / "out")])
    assert (tmp_path / "out").read_text() == "\n".join(answers) + "\n"
    alone = [classifier.classify([line])[0] for line in lines]
    assert [x and x[0] for x in alone] == [x and x[0] for x in classifier.classify(lines)]


def test_a_text_longer_than_the_context_keeps_both_ends(recipe: Path, tmp_path: Path) -> None:
    short = ["training.max_steps=2", "training.warmup_steps=1"]
    run = run_recipe(recipe, tmp_path / "run", "model.context=8", *short)
    classifier = TextClassifier.load(run)
    first, longer = "the film was", "the film was" + " good" * 50 + " to the end"
    [row] = classifier.tokenizer.source.encode([longer])
    assert len(row) > 20
    whole, kept = np.array(row, dtype=np.int32), np.array(row[:1] + row[-6:], dtype=np.int32)
    torch.testing.assert_close(classifier.log_probs([whole]), classifier.log_probs([kept]))
    assert [len(truncate(whole[:size], 7)) for size in (0, 6, 7, 8)] == [0, 6, 7, 7]
    assert len(classifier.classify([longer, first])) == 2
    with torch.no_grad():
        next(classifier.model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="run predicts NaN probabilities"):
        classifier.classify([first])


def test_a_labelled_dataset(recipe: Path, tmp_path: Path) -> None:
    columns = {"text": [f"good {i}" for i in range(60)], "label": [i % 3 for i in range(60)]}
    rows = datasets.Dataset.from_dict(columns)
    rows.save_to_disk(str(tmp_path / "rows"))
    numbered = ["data.test=null", f"data.train={{dataset: {tmp_path}/rows}}"]
    assert prepare(load_config(recipe, numbered)).facts("train")["labels"] == [*"012"]
    names = datasets.ClassLabel(names=["so so", "good", "bad"])
    rows.cast_column("label", names).save_to_disk(str(tmp_path / "named"))
    named = ["data.test=null", f"data.train={{dataset: {tmp_path}/named}}"]
    data = prepare(load_config(recipe, named))
    assert data.facts("train")["labels"] == ["bad", "good", "so so"]
    texts, labels = data.store("dev").texts()
    assert labels == [["so so", "good", "bad"][int(text.split()[1]) % 3] for text in texts]
    rows_of_dev = [f"{label}\t{text}\n" for text, label in zip(texts, labels, strict=True)]
    assert (data.folder / "dev.tsv").read_text() == "".join(rows_of_dev)
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, -1]})
    rows.cast_column("label", names).save_to_disk(str(tmp_path / "half"))
    with pytest.raises(UserError, match="a text has no label"):
        prepare(load_config(recipe, ["data.test=null", f"data.train={{dataset: {tmp_path}/half}}"]))


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        ("train.tsv", "no tab here\n", "line 401: 'no tab here' is not LABEL<TAB>TEXT"),
        ("test.tsv", "2\tneither\n", "test: the label '2' is not in the training data"),
        (
            "train.tsv",
            "".join(f"review {i}\t1\n" for i in range(1200)),
            "LABEL<TAB>TEXT, in this order",
        ),
    ],
)
def test_bad_lines_are_errors(
    recipe: Path, tmp_path: Path, file: str, lines: str, message: str
) -> None:
    with (tmp_path / file).open("a") as stream:
        stream.write(lines)
    with pytest.raises(UserError, match=message):
        prepare(load_config(recipe))


def test_a_single_label_is_an_error(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"1\ta review {i}\n" for i in range(90)))
    with pytest.raises(UserError, match="all texts have the label 1"):
        prepare(load_config(recipe))


def test_labels_are_listed_and_a_header_line_is_seen(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    prepare(load_config(recipe))
    assert re.search("labels +2  0, 1", caplog.text)
    lines = (tmp_path / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(f"label\ttext\n{lines}")
    prepare(load_config(recipe))
    assert re.search("labels +3  0, 1, label", caplog.text)


def test_a_start_from_other_labels_is_refused(recipe: Path, tmp_path: Path) -> None:
    short = ["training.max_steps=1", "training.warmup_steps=1"]
    base = run_recipe(recipe, tmp_path / "base", *short)
    own = [f"training.init_from={base}", "model.activation_dropout=0.1"]
    more = run_recipe(recipe, tmp_path / "more", *short, *own)
    assert load_config(recipe, [f"training.init_from={more}"]).model.dim == 16
    for split in ("train", "test"):
        path = tmp_path / f"{split}.tsv"
        path.write_text(path.read_text().replace("1\t", "yes\t").replace("0\t", "no\t"))
    with pytest.raises(UserError, match='has the labels \\["0", "1"\\], but'):
        run_recipe(recipe, tmp_path / "other", *short, f"training.init_from={base}")


def test_macro_f1_against_its_definition() -> None:
    confusion = np.array([[8, 2, 0], [1, 4, 0], [0, 0, 0]])
    first = 2 * 8 / (2 * 8 + 1 + 2)
    second = 2 * 4 / (2 * 4 + 2 + 1)
    assert macro_f1(confusion) == pytest.approx((first + second) / 2)
