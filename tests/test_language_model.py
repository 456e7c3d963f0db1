"""Language models: context windows, causality, bits per character, generation, resuming."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LETTERS, VOCABULARY, logits_of, make_language_model, run_recipe, write_recipe

from seq2seq.cli import main
from seq2seq.config import Config, ModelConfig
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.training_data import ContextWindows
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.rules import Sampling
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluate import evaluate_run
from seq2seq.evaluation.evaluators import TextEvaluator, windows_of
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes

TOKENIZER = Tokenizer(LETTERS, LETTERS)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Write a regular text: `ab` and `ba` alternate, with occasional spaces."""
    path = tmp_path / "text.txt"
    path.write_text("ab ba é abba baab\n" * 200, encoding="utf-8")
    return path


@pytest.fixture
def recipe(text: Path) -> Path:
    return write_recipe(text.parent, "language_model")


def test_labels_of_context_windows_are_the_next_tokens(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint8).tofile(tmp_path / "train.bin")
    facts = {"files": ["train.bin"], "dtype": "uint8"}
    manifest = {"splits": {"train": facts}, "sha256": {"train.bin": ""}}
    alphabet = Alphabet(None)
    data = PreparedData(tmp_path, Tokenizer(alphabet, alphabet), manifest)
    windows = ContextWindows(Config(model=ModelConfig(context=7)), data)
    order = windows.order(seed=1, epoch=0)
    assert len(order) == 93 // 7 and not np.array_equal(order, windows.order(1, 1))
    assert np.array_equal(order, windows.order(1, 0))
    many = np.concatenate([windows.order(1, epoch) for epoch in range(60)])
    assert set(many) == set(range(93))  # the last context window's last label is the last token
    batch = windows.collate(windows.load(order[:3], np.arange(3), seed=1, epoch=0))
    ids = batch.inputs[0].ids.view(3, 7)
    assert ids[:, 0].tolist() == order[:3].tolist()
    assert torch.equal(batch.labels.view(3, 7), ids + 1)
    assert torch.equal(batch.inputs[0].positions.view(3, 7), torch.arange(7).expand(3, 7))
    assert batch.num_labels == len(batch.inputs[0].ids) == 21


@pytest.mark.parametrize("count", [2, 8, 9, 23])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_every_token_but_the_first_is_predicted_once_with_enough_context(
    count: int, stride: int
) -> None:
    context = 8
    foretold: list[int] = []
    for start, predictions in windows_of(count, context, stride):
        length = min(context, count - 1 - start)
        new = range(start + length - predictions + 1, start + length + 1)
        foretold += new
        for place in new:
            assert place - start >= min(place, context - stride + 1)
    assert foretold == list(range(1, count))


def text_evaluator(tokens: np.ndarray, **options: Any) -> TextEvaluator:
    """Return the evaluator of a text of LETTERS, with a context of 8."""

    class Data:
        tokenizer = TOKENIZER

        def tokens(self, split: str) -> np.ndarray:
            return tokens

    config = Config(model=ModelConfig(context=8))
    data: Any = Data()
    return TextEvaluator(config, data, split="dev", processes=Processes(), **options)


def test_bits_equal_those_of_one_token_at_a_time() -> None:
    model = make_language_model()
    random = np.random.default_rng(0)
    tokens = random.integers(0, LETTERS.size, 40).astype(np.uint8)
    metrics = text_evaluator(tokens, stride=3)(model)
    expected = 0.0
    for start, predictions in windows_of(40, 8, 3):
        length = min(8, 39 - start)
        log_probs = logits_of(model, tokens[start : start + length].tolist()).log_softmax(dim=-1)
        for place in range(length - predictions, length):
            expected -= float(log_probs[place, tokens[start + place + 1]])
    assert metrics["nll"] == pytest.approx(expected / 39, abs=1e-5)
    assert metrics["bits_per_character"] == pytest.approx(expected / 39 / math.log(2), abs=1e-5)


def test_evaluation_needs_no_training_text(recipe: Path, text: Path, tmp_path: Path) -> None:
    run = run_recipe(recipe, tmp_path / "run", "training.max_steps=2", "training.warmup_steps=1")
    expected = evaluate_run(run, None, "test", Processes())
    given = prepare(load_config(run / "recipe.yaml")).folder / "test.txt"
    assert evaluate_run(run, None, "test", Processes(), data=str(given)) == expected
    text.unlink()
    next(tmp_path.rglob("train.bin")).unlink()
    assert evaluate_run(run, None, "test", Processes()) == expected


def test_bits_count_characters_and_bytes(recipe: Path, tmp_path: Path) -> None:
    short = ("training.max_steps=2", "training.warmup_steps=1")
    run = run_recipe(recipe, tmp_path / "char", *short)
    chars = evaluate_run(run, None, "test", Processes(), stride=16)
    num_bytes = len(("ab ba é abba baab\n" * 10).encode())
    share = chars["bits_per_byte"] / chars["bits_per_character"]
    assert share == pytest.approx(180 / num_bytes, rel=0.01)
    run = run_recipe(recipe, tmp_path / "byte", "tokenizer.kind=byte", *short)
    in_bytes = evaluate_run(run, None, "test", Processes(), stride=16)
    assert in_bytes["bits_per_byte"] == pytest.approx(in_bytes["nll"] / math.log(2))
    assert in_bytes["bits_per_character"] > in_bytes["bits_per_byte"]
    run = run_recipe(recipe, tmp_path / "bpe", "tokenizer={kind: bpe, vocab_size: 290}", *short)
    in_pieces = evaluate_run(run, None, "test", Processes(), stride=16)
    share = in_pieces["bits_per_byte"] / in_pieces["bits_per_character"]
    assert share == pytest.approx(180 / num_bytes, rel=0.02)


def test_a_rule_is_learned_evaluated_and_continued(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = load_config(recipe)
    assert (config.model.encoder_layers, config.training.best_by) == (0, "nll")
    run = run_recipe(recipe, tmp_path / "run", "training.max_steps=180", "training.lr=0.015")
    metrics = evaluate_run(run, None, "dev", Processes(), stride=4)
    # The text repeats eighteen characters, of which a context holds most.
    assert metrics["bits_per_character"] < 0.6
    assert metrics["stride"] == 4 and metrics["context"] == 16
    news = TextGenerator.load(run).generate("ab ba é abba", length=40, sampling=Sampling(0), seed=1)
    written = "".join(text for [text] in news)
    assert written.startswith(" baab\nab ba é") and len(written) == 40
    greedy = ["--prompt", "ab ba é abba", "--length", "40", "--temperature", "0"]
    main(["generate", str(run), *greedy])
    assert capfd.readouterr().out == f"ab ba é abba{written}\n"
    drawn = ["generate", str(run), "--seed", "3", "--samples", "2", "--top-k", "5"]
    main(drawn)
    first = capfd.readouterr().out
    main(drawn)
    assert capfd.readouterr().out == first and "-" * 20 in first
    main(["evaluate", str(run), "--split", "dev", "--stride", "4"])
    assert "bits per character" in capfd.readouterr().out


@pytest.mark.parametrize("kind", ["char", "byte", "bpe, vocab_size: 300"])
def test_a_text_is_restored_from_its_ids(
    text: Path, recipe: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if blocks end within characters."""
    monkeypatch.setattr("seq2seq.preparation.text.READ_SIZE", 5)
    odd = "  two  spaces\ttab\r\nlast" + "\u00e9\u4f60\U0001f600" * 40 + "\n\n ends "
    text.write_bytes(text.read_bytes() + odd.encode())
    data = prepare(load_config(recipe, [f"tokenizer={{kind: {kind}}}"]))
    ids = np.concatenate([data.tokens(split) for split in ("train", "dev", "test")])
    pieces = data.tokenizer.target.token_bytes
    assert b"".join(pieces[i] for i in ids) == text.read_bytes()
    held_out = b"".join((data.folder / f"{split}.txt").read_bytes() for split in ("dev", "test"))
    assert held_out and text.read_bytes().endswith(held_out)
    sizes = [len(data.tokens(split)) for split in ("train", "dev", "test")]
    assert sizes[1] == pytest.approx(len(ids) / 20, abs=1) == pytest.approx(sizes[2], abs=1)


def test_a_folder_of_files_and_gzip_is_one_text(tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "books"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("one\n" * 100, encoding="utf-8-sig")  # as Notepad writes
    with gzip.open(folder / "b.txt.gz", "wt") as stream:
        stream.write("two\n" * 100)
    (folder / "deep/c.txt").write_text("three\n" * 100)
    (folder / ".hidden").write_text("not this")
    data = prepare(load_config(recipe, [f"data.text={folder}", "data.test_share=0"]))
    ids = np.concatenate([data.tokens(split) for split in ("train", "dev")])
    whole = "".join(data.tokenizer.target.decode([ids.tolist()]))
    assert whole == "one\n" * 100 + "two\n" * 100 + "three\n" * 100
    with pytest.raises(UserError, match="has no test set"):
        data.tokens("test")


def test_a_text_from_a_dataset(tmp_path: Path, recipe: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a line", "two\nlines"] * 50})
    rows.save_to_disk(str(tmp_path / "rows"))
    data = prepare(load_config(recipe, [f"data.text={{dataset: {tmp_path}/rows}}"]))
    ids = np.concatenate([data.tokens(split) for split in ("train", "dev", "test")])
    assert data.tokenizer.target.decode([ids.tolist()]) == ["a line\ntwo\nlines\n" * 50]


@pytest.mark.parametrize(
    ("content", "overrides", "message"),
    [
        (b"", [], "data.text is empty"),
        (b"short", [], "only 0 of 5 tokens for dev"),
        (b"fine \xff bad" * 90, [], "text.txt, line 1: not UTF-8 (byte 6 is 0xff)"),
        (None, ["data.clean.foo=1"], "unknown key 'data.clean'"),
        (None, ["decoding.beam=2"], "decoding.beam=2 has no effect for task=language_model: leave"),
        (None, ["data.text={path: x, dataset: x}"], "give either path"),
        (None, ["data.dev_share=0.5", "data.test_share=0.5"], "must sum to less than 1"),
    ],
)
def test_user_errors_name_their_cause(
    text: Path, recipe: Path, content: bytes | None, overrides: list[str], message: str
) -> None:
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(UserError) as error:
        prepare(load_config(recipe, overrides))
    assert message in str(error.value)


def test_prepared_text_shorter_than_the_context(recipe: Path, tmp_path: Path) -> None:
    prepare(load_config(recipe))
    with pytest.raises(UserError, match=r"too short for one window of model\.context=9000"):
        run_recipe(recipe, tmp_path / "run", "model.context=9000", "training.batch_tokens=9000")
    run = run_recipe(recipe, tmp_path / "run", "training.max_steps=5", "data.dev_share=0.004")
    with pytest.raises(UserError, match=r"stride=17 must be from 1 to model\.context=16"):
        evaluate_run(run, None, "dev", Processes(), stride=17)
    assert 1 < evaluate_run(run, None, "dev", Processes())["tokens"] < 16


def test_a_tokenizer_of_a_translation_model_is_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "own.model").write_bytes(VOCABULARY.model)
    with pytest.raises(UserError, match="does not preserve all spaces and line feeds"):
        prepare(load_config(recipe, [f"tokenizer.models={tmp_path}/own.model"]))
    data = prepare(load_config(recipe, ["tokenizer.kind=bpe", "tokenizer.vocab_size=300"]))
    again = prepare(load_config(recipe, [f"tokenizer.models={data.folder}/tokenizer.model"]))
    assert again.tokenizer.checksum == data.tokenizer.checksum


def test_the_tokenizer_is_trained_on_the_training_part_only(text: Path, recipe: Path) -> None:
    text.write_text("\u4f60\u597d" * 9000 + "xyz" * 600, encoding="utf-8")  # one long line
    data = prepare(load_config(recipe, ["tokenizer={kind: bpe, vocab_size: 280}"]))
    pieces = data.tokenizer.target.token_bytes
    learned = b"".join(piece for piece in pieces if len(piece) > 1)
    assert "\u4f60\u597d".encode() in learned and b"x" not in learned
