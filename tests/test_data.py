"""Corpora, cleaning, splits and the prepared store."""

from __future__ import annotations

import codecs
import gzip
import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
from conftest import write_pairs

from seq2seq.config import Config
from seq2seq.data.lines import read_lines
from seq2seq.data.store import PreparedData
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import warn_of_tags
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.cleaning import require_languages
from seq2seq.preparation.prepare import drop_table, prepare

PAIRS = [(f"the house number {i}", f"das Haus Nummer {i}") for i in range(40)]
NO_CLEANING = (
    "data.clean={blank: false, max_ratio: null, duplicates: false, overlap: false, max_len: null}"
)


def config_for(folder: Path, *overrides: str, train: str | None = None) -> Config:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"data: {{source: en, target: de, train: {train or folder / 'train'}, "
        f"dev: {folder / 'dev'}, store: {folder / 'store'}}}\n"
        "tokenizer: {vocab_size: 320}\n"
    )
    return load_config(recipe, overrides)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pairs(tmp_path, "train", PAIRS)
    write_pairs(tmp_path, "dev", [("the garden", "der Garten"), ("a tree", "ein Baum")])
    return tmp_path


def train_pairs(data: PreparedData) -> list[tuple[str, str]]:
    store = data.store("train")
    sources, targets = store.pairs(np.arange(len(store)))
    return list(
        zip(
            data.tokenizer.source.decode([ids.tolist() for ids in sources]),
            data.tokenizer.target.decode([ids.tolist() for ids in targets]),
            strict=True,
        )
    )


def dropped(data: PreparedData) -> dict[str, int]:
    counts: dict[str, int] = data.manifest["splits"]["train"]["dropped"]
    return counts


def test_every_kind_of_corpus_gives_the_same_pairs(folder: Path) -> None:
    tsv = "".join(f"{en}\t{de}\tmore\n" for en, de in PAIRS)
    (folder / "all.tsv").write_text(tsv)
    with gzip.open(folder / "all.tsv.gz", "wt") as stream:
        stream.write(tsv)
    for language in ("en", "de"):
        data = (folder / f"train.{language}").read_bytes()
        (folder / f"zipped.{language}.gz").write_bytes(gzip.compress(data))
    rows = [{"translation": {"en": en, "de": de}} for en, de in PAIRS]
    (folder / "json").mkdir()
    (folder / "json" / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    flat = [{"en": en, "de": de} for en, de in PAIRS]
    datasets.Dataset.from_list(flat).save_to_disk(folder / "disk")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(flat)}).save_to_disk(folder / "dict")
    for corpus in [
        f"{folder}/train",
        f"{folder}/zipped",
        f"{folder}/all.tsv",
        f"{folder}/all.tsv.gz",
        f"{{source: {folder}/train.en, target: {folder}/zipped.de.gz}}",
        f"{{dataset: {folder}/json, split: train}}",
        f"{{dataset: {folder}/disk}}",
        f"{{dataset: {folder}/dict, split: train}}",
    ]:
        assert train_pairs(prepare(config_for(folder, f"data.train=[{corpus}]"))) == PAIRS, corpus


def test_lines_end_at_line_feeds_only(folder: Path) -> None:
    odd = "one\u2028two\x0bthree\x0cfour\x85five\rsix"
    write_pairs(folder, "train", [*PAIRS, (odd, odd)])
    pairs = train_pairs(prepare(config_for(folder)))
    assert len(pairs) == 41 and pairs[-1] == (odd, odd)
    assert list(read_lines([b"windows\r\n", b"last"], "x")) == ["windows", "last"]


def test_a_byte_order_mark_is_removed(folder: Path) -> None:
    for name in ("train.en", "train.de"):
        (folder / name).write_bytes(codecs.BOM_UTF8 + (folder / name).read_bytes())
    tsv = "".join(f"{en}\t{de}\r\n" for en, de in PAIRS)
    (folder / "excel.tsv").write_text(tsv, encoding="utf-8-sig")
    for corpus in ("train", "excel.tsv"):
        assert train_pairs(prepare(config_for(folder, f"data.train={folder}/{corpus}"))) == PAIRS
    # Elsewhere it is a space without width, as it always was.
    assert list(read_lines([b"a\n", codecs.BOM_UTF8 + b"b"], "x")) == ["a", "\ufeffb"]


def test_a_line_break_within_a_dataset_row_becomes_a_space(folder: Path) -> None:
    rows = [{"en": "two\nlines", "de": "zwei\r\nZeilen"}] + [{"en": a, "de": b} for a, b in PAIRS]
    datasets.Dataset.from_list(rows).save_to_disk(folder / "disk")
    data = prepare(config_for(folder, f"data.train=[{{dataset: {folder}/disk}}]"))
    assert train_pairs(data)[0] == ("two lines", "zwei Zeilen")


DIRTY = [
    ("", "leer"),
    ("blank", " \t "),
    ("a bell\a", "eine Glocke"),
    ("x" * 90, "y" * 10),
    ("ok", "Einverstanden"),
    *PAIRS[:3],
    ("the garden", "ein Garten"),
    ("a b c d e f g h i j k l m n o p q r s t u v w x y z", "a b c d e f g h i j k l m n o p q"),
]


@pytest.mark.parametrize(
    ("rule", "value", "count"),
    [
        ("blank", "true", 2),
        ("control", "true", 1),
        ("max_ratio", "4", 1),
        ("duplicates", "true", 3),
        ("overlap", "true", 1),
        ("max_len", "24", 1),
    ],
)
def test_each_cleaning_rule_counts_and_can_be_switched_off(
    folder: Path, rule: str, value: str, count: int
) -> None:
    write_pairs(folder, "train", PAIRS + DIRTY)
    data = prepare(config_for(folder, NO_CLEANING, f"data.clean.{rule}={value}"))
    assert dropped(data) == {rule: count}
    assert len(data.store("train")) == len(PAIRS) + len(DIRTY) - count


def test_the_table_lists_every_rule_and_split(folder: Path) -> None:
    write_pairs(folder, "train", PAIRS + DIRTY)
    data = prepare(config_for(folder, "data.clean.max_len=24", "data.clean.control=true"))
    table = drop_table(data.manifest["splits"])
    rows = [line.replace("-", " ").split() for line in table.splitlines()]
    found = {row[0]: int(row[1]) for row in rows}
    rules = {"blank": 2, "control": 1, "max_ratio": 1, "duplicates": 3, "overlap": 1, "max_len": 1}
    assert found == {"read": 50, **rules, "train": 41, "dev": 2}


def test_sentences_in_another_language_are_dropped(folder: Path) -> None:
    english = "The committee has adopted this report by a large majority and thanks its authors."
    german = "Der Ausschuss hat diesen Bericht mit großer Mehrheit angenommen und dankt allen."
    french = "La commission a adopté ce rapport à une large majorité et remercie ses auteurs."
    pairs = [(english, german), (french, german), (english, french), ("OK", "OK")]
    pairs += [("When signing", "Lors de la signature"), ("Line width", "Linienbreite")]
    write_pairs(folder, "train", PAIRS + pairs)
    data = prepare(config_for(folder, NO_CLEANING, "data.clean.languages=true"))
    assert dropped(data) == {"languages": 3}
    with pytest.raises(UserError, match="py3langid does not support 'xx'"):
        require_languages("en", "xx")


def test_the_first_of_a_repeated_pair_is_kept(folder: Path) -> None:
    write_pairs(folder, "train", PAIRS + PAIRS[::-1] + PAIRS)
    data = prepare(config_for(folder))
    assert train_pairs(data) == PAIRS and dropped(data) == {"duplicates": 80}


def test_development_sets_are_tagged_like_their_corpus(folder: Path) -> None:
    named = prepare(config_for(folder, f"data.dev={{path: {folder}/dev, tag: <news>}}"))
    store = named.store("dev")
    assert store.texts()[0] == ["the garden", "a tree"]
    assert (named.folder / "dev.en").read_text() == "the garden\na tree\n"
    read = named.tokenizer.source.decode([x.tolist() for x in store.pairs(np.arange(2))[0]])
    assert read == ["<news> the garden", "<news> a tree"]
    corpus = f"data.train=[{{path: {folder}/train, tag: <help>}}]"
    held_out = prepare(config_for(folder, corpus, "data.dev=null", "data.dev_size=3"))
    store = held_out.store("dev")
    read = held_out.tokenizer.source.decode([x.tolist() for x in store.pairs(np.arange(3))[0]])
    assert read == [f"<help> {text}" for text in store.texts()[0]]


def test_untagged_text_is_unusual_only_if_all_corpora_have_tags(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original, translated = (f"{{path: {folder}/train}}", f"{{path: {folder}/train, tag: <t>}}")
    warn_of_tags(config_for(folder, f"data.train=[{original}, {translated}]"), None)
    assert not caplog.text
    warn_of_tags(config_for(folder, f"data.train=[{translated}, {translated}]"), None)
    assert "these have no tag" in caplog.text


def test_the_store_is_reused_until_something_changes(folder: Path) -> None:
    first = prepare(config_for(folder))
    stamp = (first.folder / "train-00000.arrow").stat().st_mtime_ns
    again = prepare(
        config_for(folder, "training.lr=3", "tokenizer.bpe_dropout=0.1", "data.augment.typos=0.3")
    )
    assert again.folder == first.folder
    assert (again.folder / "train-00000.arrow").stat().st_mtime_ns == stamp
    assert prepare(config_for(folder, "tokenizer.vocab_size=330")).folder != first.folder
    assert prepare(config_for(folder, "data.clean.max_len=90")).folder != first.folder
    write_pairs(folder, "train", PAIRS[:-1])
    changed = prepare(config_for(folder))
    assert changed.folder != first.folder and len(changed.store("train")) == 39


def test_a_changed_tokenizer_is_an_error(folder: Path) -> None:
    first = prepare(config_for(folder))
    other = prepare(config_for(folder, "tokenizer.vocab_size=330"))
    shutil.copy(other.folder / "tokenizer.model", first.folder / "tokenizer.model")
    with pytest.raises(UserError, match="tokenizer has changed; delete the folder"):
        prepare(config_for(folder))


def test_separate_and_own_tokenizers(folder: Path) -> None:
    apart = prepare(config_for(folder, "tokenizer.shared=false"))
    assert not apart.tokenizer.shared and train_pairs(apart) == PAIRS
    models = f"tokenizer.models=[{apart.folder}/source.model, {apart.folder}/target.model]"
    own = prepare(config_for(folder, "tokenizer.shared=false", models))
    assert own.tokenizer.checksum == apart.tokenizer.checksum
    with pytest.raises(UserError, match="is not a symbol of"):
        tagged = f"data.train=[{{path: {folder}/train, tag: <x>}}]"
        prepare(config_for(folder, "tokenizer.shared=false", models, tagged))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("data.train={source: @, target: @}", "is a folder"),
        ("data.train={path: @/train, dataset: x}", "exactly one of"),
        ("data.train={source: @/train.en}", "give both source and target"),
        ("data.train={dataset: @/french}", "no column 'en'; the columns are fr, de"),
        ("data.train={dataset: @/nothing}", "cannot be read"),
        ("data.dev=@/train", "no training pair is left: dropped 40 overlap"),
    ],
)
def test_invalid_input_is_an_error(folder: Path, option: str, message: str) -> None:
    datasets.Dataset.from_list([{"fr": "x", "de": "y"}]).save_to_disk(folder / "french")
    with pytest.raises(UserError) as error:
        prepare(config_for(folder, option.replace("@", str(folder))))
    assert message.replace("@", str(folder)) in str(error.value)


def test_a_held_out_split_shares_no_source_with_train(folder: Path) -> None:
    again = [(en, de + " doch") for en, de in PAIRS[:20]]
    write_pairs(folder, "train", PAIRS + again)
    data = prepare(config_for(folder, "data.dev=null", "data.dev_size=7", "data.test_size=5"))
    splits = {split: data.store(split).texts()[0] for split in ("dev", "test")}
    train = {en for en, _ in train_pairs(data)}
    assert len(splits["dev"]) == 7 and len(splits["test"]) == 5
    assert not train & set(splits["dev"] + splits["test"])
    assert not set(splits["dev"]) & set(splits["test"])
    assert len(train) == 40 - 12
