"""Pre-trained models get a new language, lose pieces that are not needed, and go back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from m2m100 import Family, make_family
from test_marian import opus_folder
from trained import LINES, PAIRS

from seq2seq.config import Direction, TokenizerConfig
from seq2seq.data.extension import extended, lacking_pieces
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import validator
from seq2seq.export import export
from seq2seq.formats.model_directory import load_config
from seq2seq.formats.weights import load_model
from seq2seq.planning.new import new_recipe
from seq2seq.training.records import read_metrics
from seq2seq.training.run import train

NEW = [(source, target[::-1].replace("e", "\u0436")) for source, target in PAIRS]
"""Pairs of a new language, whose words and letter the old vocabulary lacks."""


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family("nllb", tmp_path_factory.mktemp("new") / "nllb")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, texts in zip(("eng_Latn", "xyz_Cyrl"), zip(*NEW, strict=True), strict=True):
        Path(f"new.{name}").write_text("".join(f"{text}\n" for text in texts))
    return tmp_path / "new"


def tuned_recipe(nllb: Family, corpus: Path, language: str = "xyz_Cyrl") -> Path:
    options: dict[str, Any] = {"task": "translation", "source": "", "target": "", "minutes": 0.05}
    files: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    pairs = [("eng_Latn", language, str(corpus))]
    return new_recipe("tuned", files, pairs=pairs, run=nllb.folder, **options)


def test_a_new_language_is_added_and_trained(nllb: Family, corpus: Path) -> None:
    schedule = "training.schedule=inverse_sqrt"
    config = load_config(tuned_recipe(nllb, corpus), [schedule, "training.max_steps=3"])
    assert config.tokenizer.new_pieces == 1000 and config.pairs.dev_size == 80
    assert (config.training.optimizer, config.training.lr) == ("muon", 0.004)
    run = Path("runs/tuned")
    train(config, run, validator)
    old, new = load_model(nllb.folder, "cpu"), load_model(run / "last", "cpu")
    before, after = (x.tokenizer.translation_vocabularies[0] for x in (old, new))
    added = after.pieces(range(before.size, after.size))
    assert after.pieces(range(before.size)) == before.pieces(range(before.size))
    assert added[0] == "xyz_Cyrl" and "\u0436" in added and len(added) > 20
    texts = [target for _, target in NEW]
    assert before.unk_id in before.encode(texts)[0] or before.unk_id in before.encode(texts)[1]
    assert not any(after.unk_id in row for row in after.encode(texts))
    assert sum(map(len, after.encode(texts))) < sum(map(len, before.encode(texts)))
    direction = Direction("eng_Latn", "xyz_Cyrl")
    assert new.tokenizer.prefix(direction) == "xyz_Cyrl eng_Latn"

    prepared = {*Path("data/store").glob("*/manifest.json")}
    config = load_config("recipes/tuned.yaml", [schedule, "training.max_steps=5"], run)
    assert train(config, run, validator).step == 5  # resumed, with the same prepared data
    assert {*Path("data/store").glob("*/manifest.json")} == prepared

    export(run, Path("there"), to="huggingface")
    family = Family("nllb", Path("there"))
    tokenizer = family.tokenizer()
    tokenizer.tgt_lang = "xyz_Cyrl"
    own, _ = load_model(run / "best", "cpu").tokenizer.translation_vocabularies
    targets = tokenizer(text_target=texts).input_ids
    [symbol] = own.piece_ids([["xyz_Cyrl"]])[0]
    assert targets == [[symbol, *row, 2] for row in own.encode(texts)]


def test_new_rows_are_means_of_the_old_ones(nllb: Family, corpus: Path) -> None:
    config = load_config(tuned_recipe(nllb, corpus), ["training.max_steps=1", "training.lr=1e-12"])
    train(config, Path("runs/tuned"), validator)
    old, new = load_model(nllb.folder, "cpu"), load_model(Path("runs/tuned/last"), "cpu")
    rows, table = (dict(x.model.named_parameters())["target_embedding.weight"] for x in (old, new))
    torch.testing.assert_close(table[: len(rows)], rows)
    before, after = (x.tokenizer.translation_vocabularies[0] for x in (old, new))
    symbols = [before.piece_ids([[name]])[0][0] for name in before.languages.values()]
    torch.testing.assert_close(table[len(rows)], rows[symbols].mean(dim=0))
    for i, piece in enumerate(after.pieces(range(len(rows) + 1, after.size)), len(rows) + 1):
        if piece == "\u0436":  # unknown to the old vocabulary
            torch.testing.assert_close(table[i], rows.mean(dim=0))
        elif piece.startswith("\u2581"):
            spelled = [x for x in before.encode([piece[1:]])[0] if x != before.unk_id]
            expected = rows[spelled] if spelled else rows
            torch.testing.assert_close(table[i], expected.mean(dim=0))


def test_frozen_embeddings_stay(nllb: Family, corpus: Path) -> None:
    Path("new.deu_Latn").write_text(Path("new.xyz_Cyrl").read_text())
    recipe = f"""{{
data: {{train: {{path: {corpus}, languages: [eng_Latn, deu_Latn]}}, dev_size: 9}},
training: {{init_from: {nllb.folder}, freeze_embeddings: true, max_steps: 2, optimizer: muon}}}}"""
    Path("frozen.yaml").write_text(recipe)
    train(load_config("frozen.yaml"), Path("runs/frozen"), validator)
    old, new = (
        dict(load_model(folder, "cpu").model.named_parameters())
        for folder in (nllb.folder, Path("runs/frozen/last"))
    )
    same = [name for name, x in old.items() if torch.equal(x, new[name])]
    assert same == ["target_embedding.weight"]


def test_new_pieces_are_trained(nllb: Family, corpus: Path) -> None:
    recipe = tuned_recipe(nllb, corpus)
    with pytest.raises(UserError, match="would not train the pieces"):
        load_config(recipe, ["training.freeze_embeddings=true"])
    steps = ["training.max_steps=2", "training.validate_every=2"]
    train(load_config(recipe, steps), Path("runs/tuned"), validator)
    records = read_metrics(Path("runs/tuned"))  # the initial model does not have the language
    assert [x["step"] for x in records if x["kind"] == "validation"] == [2]


@pytest.mark.parametrize("language", ["xyz_Cyrl", "deu_Latn"])
def test_a_recipe_for_little_memory_saves_it(
    nllb: Family, corpus: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    Path("new.deu_Latn").write_text(Path("new.xyz_Cyrl").read_text())
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=100_000))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    training = load_config(tuned_recipe(nllb, corpus, language)).training
    assert training.gradient_checkpointing and training.micro_batch_tokens == 1024
    assert training.freeze_embeddings == (language == "deu_Latn")  # new pieces are trained


@pytest.mark.parametrize("languages", ["eng_Latn, xyz_Cyrl", "xyz_Cyrl, eng_Latn"])
def test_a_language_that_is_not_added_is_named(languages: str, nllb: Family, corpus: Path) -> None:
    recipe = f"""{{
data: {{train: {{path: {corpus}, languages: [{languages}]}}, dev_size: 9}},
training: {{init_from: {nllb.folder}, max_steps: 1}}}}"""
    Path("wrong.yaml").write_text(recipe)
    with pytest.raises(UserError, match=r"not 'xyz_Cyrl'; tokenizer.new_pieces=1000 adds it"):
        train(load_config("wrong.yaml"), Path("runs/wrong"), validator)
    with pytest.raises(UserError, match=r"not 'de' \(nearest: deu_Latn\)"):
        Translator.load(nllb.folder).translate(LINES[:1], source="eng_Latn", to="de")
    with pytest.raises(UserError, match="must be told the source language"):
        Translator.load(nllb.folder).translate(LINES[:1], to="deu_Latn")


def test_a_smaller_vocabulary_translates_the_same(nllb: Family, tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("".join(f"{line}\n" for line in LINES[:100]))
    translator, small = Translator.load(nllb.folder, device="cpu"), tmp_path / "small"
    options: dict[str, Any] = {"source": "eng_Latn", "to": "deu_Latn", "beam": 4}
    right = translator.translate(LINES, **options)
    with kept.open("a") as stream:
        stream.writelines(f"{line}\n" for line in right)
    languages = ["eng_Latn", "deu_Latn"]
    export(nllb.folder, small, to="seq2seq", languages=languages, keep_pieces=[kept])
    old, _ = translator.tokenizer.translation_vocabularies
    new, _ = load_model(small, "cpu").tokenizer.translation_vocabularies
    assert {*new.languages} == {*languages} and new.size < old.size - 20
    assert Translator.load(small, device="cpu").translate(LINES[:100], **options) == right[:100]
    # What was dropped is split into smaller pieces.
    dropped = {*old.pieces(range(old.size))} - {*new.pieces(range(new.size))}
    words = [piece[1:] for piece in dropped if piece.startswith("\u2581") and len(piece) > 2]
    assert words and not any(new.unk_id in row for row in new.encode(words))
    with pytest.raises(UserError, match="not 'fra_Latn'"):
        Translator.load(small).translate(LINES, source="eng_Latn", to="fra_Latn")
    with pytest.raises(UserError, match=r"--languages: .* not 'de' \(nearest: deu_Latn\)"):
        export(nllb.folder, tmp_path / "no", to="seq2seq", languages=["eng_Latn", "de"])


def vocabularies(kind: str, folder: Path) -> Tokenizer:
    """Return a tokenizer with symbols of languages."""
    if kind == "opus":
        return load_model(opus_folder(folder, codes=(">>de<<", ">>nl<<")), "cpu").tokenizer
    if kind == "own":
        texts = [text for pair in PAIRS for text in pair]
        own = train_vocabulary(
            texts, TokenizerConfig(vocab_size=330), ["\u2581<2de>", "\u2581<2en>"]
        )
        return Tokenizer(own, own)
    return load_model(make_family(kind, folder).folder, "cpu").tokenizer


@pytest.mark.parametrize(
    ("kind", "symbol"),
    [
        ("nllb", "xyz"),
        ("m2m100", "__xyz__"),
        ("small100", "__xyz__"),
        ("opus", ">>xyz<<"),
        ("own", "\u2581<2xyz>"),
    ],
)
def test_every_kind_of_vocabulary_is_extended(kind: str, symbol: str, tmp_path: Path) -> None:
    tokenizer = vocabularies(kind, tmp_path / "model")
    texts = [text for _, text in NEW]
    pieces = lacking_pieces(
        tokenizer.translation_vocabularies[1],
        train_vocabulary(texts, TokenizerConfig(vocab_size=330), []),
    )
    new = extended(tokenizer, ["xyz"], pieces)
    new.save(tmp_path)
    sides = zip(tokenizer.translation_vocabularies, new.translation_vocabularies, strict=True)
    for old, vocabulary in sides:
        assert vocabulary.pieces(range(old.size)) == old.pieces(range(old.size))
        assert vocabulary.languages == {**old.languages, "xyz": symbol}
        rows = vocabulary.encode(texts)
        assert not any(vocabulary.unk_id in row for row in rows)
        assert sum(map(len, rows)) < sum(map(len, old.encode(texts)))
        text = f"{symbol.lstrip(chr(0x2581))} {texts[0]}"
        assert vocabulary.encode_pieces([text])[0][0] == symbol
        assert vocabulary.decode_pieces([vocabulary.encode_pieces([texts[0]])[0]]) == [texts[0]]
    assert Tokenizer.load(tmp_path).checksum == new.checksum
