"""Preparing a corpus in chunks, and after interruptions."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import pkgutil
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_pairs
from forked import exit_code, fork, in_child

from seq2seq.config import Config, CorpusConfig, PairsConfig
from seq2seq.data import vocabulary
from seq2seq.data.store import PreparedData
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.files import draft_of
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation import corpora
from seq2seq.preparation import prepare as prepare_module
from seq2seq.preparation.chunks import Selection
from seq2seq.preparation.corpora import HubDataset, open_corpus
from seq2seq.preparation.folder import WORK
from seq2seq.preparation.prepare import encode_pairs, prepare

SMALL = 25
"""Pairs in a chunk."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "BATCH_PAIRS", SMALL)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two hundred pairs, with repetitions and blanks, across chunks."""
    pairs = [(f"the house number {i % 170}", f"das Haus Nummer {i % 170}") for i in range(200)]
    pairs[30] = pairs[130] = ("", "leer")
    write_pairs(tmp_path, "train", pairs)
    return tmp_path


def config_for(corpus: Path, store: str) -> Config:
    recipe = corpus / "recipe.yaml"
    recipe.write_text(
        f"data: {{source: en, target: de, train: {corpus}/train, dev_size: 9, test_size: 4}}\n"
        "tokenizer: {vocab_size: 320}\n"
    )
    return load_config(recipe, [f"data.store={corpus}/{store}"])


def sums(data: PreparedData) -> dict[str, str]:
    checksums: dict[str, str] = data.manifest["sha256"]
    return checksums


def test_what_is_prepared_does_not_depend_on_threads(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = prepare(config_for(corpus, "store1"))
    monkeypatch.setattr(vocabulary, "THREADED_TEXTS", 10)
    monkeypatch.setattr(vocabulary, "usable_cores", lambda: 3)
    two = prepare(config_for(corpus, "store2"))
    assert one.manifest["splits"] == two.manifest["splits"] and sums(one) == sums(two)
    facts = one.facts("train")
    assert len(facts["files"]) == 200 // SMALL and facts["read"] == 200
    # 170 different ones less the blank two, of which one came again, and those held out.
    assert facts["dropped"]["blank"] == 2
    assert facts["pairs"] == len(one.store("train"))
    assert facts["pairs"] + sum(facts["dropped"].values()) == 200
    texts = {f"{split}.{language}" for split in ("dev", "test") for language in ("en", "de")}
    files = {*sums(one), *texts, "manifest.json", "tokenizer.model"}
    assert {path.name for path in one.folder.iterdir()} == files
    sides = [(one.folder / f"dev.{side}").read_text().splitlines() for side in ("en", "de")]
    assert tuple(sides) == one.store("dev").texts()


def test_a_second_preparation_of_the_same_data_waits_for_the_first(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, waits = corpus / "begun", corpus / "waits"

    def until(path: Path) -> None:
        for _ in range(3000):
            if path.exists():
                return
            time.sleep(0.01)
        raise TimeoutError(path)

    def slow(*arguments: Any, **options: Any) -> Any:
        begun.touch()
        until(waits)
        return train_vocabulary(*arguments, **options)

    def say(message: str, *_: object) -> None:
        if message.startswith("waiting for another process"):
            waits.touch()

    monkeypatch.setattr(prepare_module, "train_vocabulary", slow)
    monkeypatch.setattr("seq2seq.preparation.folder.logger.info", say)
    first = fork(lambda: prepare(config_for(corpus, "store")))
    until(begun)
    begun.unlink()
    assert in_child(lambda: prepare(config_for(corpus, "store"))) == 0
    assert exit_code(first) == 0 and not begun.exists()  # the second one prepared nothing


@pytest.mark.parametrize(
    ("function", "call", "finished"),
    [
        ("chunks.write_chunk", 4, []),
        ("chunks.Selection.drop_duplicates", 1, ["corpora"]),
        ("prepare.train_vocabulary", 1, ["corpora"]),
        ("prepare.encode_pairs", 5, ["corpora", "tokenizer"]),
    ],
)
def test_a_kill_loses_only_the_stage_that_ran(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int, finished: list[str]
) -> None:
    whole = prepare(config_for(corpus, "whole"))

    def kill_in_call() -> None:
        module, _, name = f"seq2seq.preparation.{function}".rpartition(".")
        original, calls = pkgutil.resolve_name(f"{module}.{name}"), itertools.count(1)

        def killed(*arguments: Any, **options: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        setattr(pkgutil.resolve_name(module), name, killed)
        prepare(config_for(corpus, "killed"))

    assert in_child(kill_in_call) == -signal.SIGKILL
    [draft] = [path for path in (corpus / "killed").iterdir() if path.name.endswith(".tmp")]
    stages = draft / "work"
    assert sorted(path.name for path in stages.glob("[!.]*")) == finished
    files = [path for stage in finished for path in (stages / stage).iterdir()]
    before = {path: path.stat().st_mtime_ns for path in files}
    seen: dict[Path, int] = {}

    def encode(*arguments: Any, **options: Any) -> list[int]:
        seen.update((path, path.stat().st_mtime_ns) for path in before)
        return encode_pairs(*arguments, **options)

    monkeypatch.setattr("seq2seq.preparation.prepare.encode_pairs", encode)
    resumed = prepare(config_for(corpus, "killed"))
    assert seen == before
    assert sums(resumed) == sums(whole) and not draft_of(resumed.folder).exists()


@pytest.mark.parametrize("limit", [100, 3_000])
def test_a_full_disk_loses_no_finished_stage(corpus: Path, limit: int) -> None:
    config = config_for(corpus, "store")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with pytest.raises(
            UserError, match=r"could not be prepared: .* MB left\); the same command"
        ):
            prepare(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, before)
    assert sums(prepare(config)) == sums(prepare(config_for(corpus, "other")))


def test_an_error_names_its_line_and_leaves_nothing(corpus: Path) -> None:
    path = corpus / "train.de"
    lines = path.read_bytes().split(b"\n")
    lines[179] = b"\xff"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=f"{path.name}, line 180: not UTF-8"):
        prepare(config_for(corpus, "store"))
    assert not [path for path in (corpus / "store").iterdir() if path.is_dir()]


@pytest.mark.parametrize(("equal", "warned"), [(41, True), (40, False)])
def test_a_corpus_with_many_pairs_of_equal_sides_is_a_warning(
    corpus: Path, caplog: pytest.LogCaptureFixture, equal: int, warned: bool
) -> None:
    """Over a fifth of 200 pairs, in several chunks. Blank pairs do not count."""
    source, target = ((corpus / f"train.{side}").read_text().split("\n") for side in ("en", "de"))
    target[31 : 31 + equal] = source[31 : 31 + equal]
    source[30] = target[30] = ""
    (corpus / "train.en").write_text("\n".join(source))
    (corpus / "train.de").write_text("\n".join(target))
    data = prepare(config_for(corpus, "store"))
    expected = (
        f"data.train: {corpus}/train.en + {corpus}/train.de: both sides are equal in {equal} of "
        "200 pairs; check the names of files or columns"
    )
    warnings = [x.message for x in caplog.records if x.levelno == logging.WARNING]
    assert warnings == [expected] * warned
    facts = data.facts("train")
    assert facts["pairs"] + sum(facts["dropped"].values()) == 200


def test_a_chunk_of_which_nothing_is_kept_is_no_error(corpus: Path) -> None:
    for language in ("en", "de"):
        path = corpus / f"train.{language}"
        path.write_text("\n" * SMALL + path.read_text())
    data = prepare(config_for(corpus, "store"))
    assert data.facts("train")["dropped"]["blank"] == SMALL + 2
    assert len(data.store("train")) == data.facts("train")["pairs"] > 100


class DataSet:
    """The part of the interface of `datasets` that is used."""

    features = None

    def __init__(self, read: Callable[[], Iterable[dict[str, Any]]]) -> None:
        self._read = read

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._read())


def open_instead(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Iterable[dict[str, Any]]]
) -> None:
    monkeypatch.setattr(HubDataset, "open", lambda _: DataSet(read))


def house_rows(count: int = 60, noun: str = "house") -> list[dict[str, Any]]:
    return [{"en": f"the {noun} {i}", "de": f"das {noun} {i}"} for i in range(count)]


def hub_config(folder: Path) -> Config:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "data: {source: en, target: de, train: {dataset: far/away}, dev_size: 5, "
        f"store: {folder}/store}}\ntokenizer: {{vocab_size: 300}}\n"
    )
    return load_config(recipe)


def test_a_dataset_that_fails_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from house_rows(55)
        raise ConnectionError("no network")

    open_instead(monkeypatch, broken)
    with pytest.raises(UnfinishedError, match="no network"):
        prepare(hub_config(tmp_path))
    open_instead(monkeypatch, house_rows)
    resumed = prepare(hub_config(tmp_path))
    assert resumed.facts("train")["read"] == 60
    (tmp_path / "other").mkdir()
    assert sums(resumed) == sums(prepare(hub_config(tmp_path / "other")))


def test_a_dataset_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is recorded, without the tag of the corpus."""
    readings = []

    def read() -> list[dict[str, Any]]:
        readings.append(1)
        return [
            {"translation": {"en": f"the house {i}", "de": f"das\nHaus {i}"}} for i in range(60)
        ]

    open_instead(monkeypatch, read)
    config = hub_config(tmp_path)
    tagged = replace(config.pairs.train[0], tag="<news>")
    data = prepare(replace(config, data=replace(config.pairs, train=(tagged,))))
    lines = "".join(f"the house {i}\tdas Haus {i}\n" for i in range(60))
    checksum = hashlib.sha256(lines.encode()).hexdigest()
    assert data.manifest["inputs"] == [{"dataset": "far/away:train", "sha256": checksum}]
    assert len(readings) == 1


def test_an_error_in_the_tokenizers_sample_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(selection: Selection, size: int, data: Any) -> Iterator[tuple[str, str]]:
        yield from [("a house", "ein Haus")] * 9
        raise KeyboardInterrupt

    monkeypatch.setattr(Selection, "sample", broken)
    open_instead(monkeypatch, house_rows)
    with pytest.raises(KeyboardInterrupt):
        prepare(hub_config(tmp_path))


def test_a_file_that_changes_during_preparation_is_an_error(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*arguments: Any) -> Any:
        with (corpus / "train.en").open("a") as file:
            file.write("one more\n")
        return train_vocabulary(*arguments)

    monkeypatch.setattr(prepare_module, "train_vocabulary", changed)
    with pytest.raises(UserError, match="changed during preparation"):
        prepare(config_for(corpus, "store"))
    assert not list((corpus / "store").glob(".*.tmp"))


def test_long_texts_make_small_batches(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = PairsConfig(source="en", target="de")
    files = open_corpus(data, CorpusConfig(path=f"{corpus}/train"), "")
    monkeypatch.setattr(corpora, "BATCH_PAIRS", 10_000)
    [whole] = files.batches()
    assert len(whole) == 200
    monkeypatch.setattr("seq2seq.preparation.corpora.BATCH_CHARACTERS", 1000)
    small = list(files.batches())
    assert len(small) > 5 and list(chain(*small)) == whole


def test_corpora_with_tags_over_several_chunks(corpus: Path) -> None:
    for column, language in enumerate(("en", "de")):
        lines = (f"{('news', 'Nachricht')[column]} {i}\n" for i in range(60))
        (corpus / f"news.{language}").write_text("".join(lines))
    corpora = f"{{path: {corpus}/news, tag: <news>, weight: 2}}, {{path: {corpus}/train}}"
    config_for(corpus, "")
    options = [f"data.train=[{corpora}]", f"data.store={corpus}/store", "data.test_size=0"]
    data = prepare(load_config(corpus / "recipe.yaml", options))
    facts, store = data.facts("train"), data.store("train")
    texts = data.tokenizer.source.decode(
        [ids.tolist() for ids in store.pairs(np.arange(len(store)))[0]]
    )
    news = [text.startswith("<news>") for text in texts]
    assert facts["pairs_per_corpus"] == [news.count(True), news.count(False)]
    assert news == sorted(news, reverse=True) and facts["read"] == 260
    tagged = [text.startswith("news") for text in data.store("dev").texts()[0]]
    [first], _ = data.store("dev").pairs(np.arange(1))
    assert data.tokenizer.source.decode([first.tolist()])[0].startswith("<news> ")
    assert news.count(True) + tagged.count(True) == 60


def test_sources_of_excluded_corpora_are_dropped(corpus: Path) -> None:
    for language in ("en", "de"):
        lines = (corpus / f"train.{language}").read_text().splitlines(keepends=True)
        (corpus / f"known.{language}").write_text("".join(lines[40:47]))
    config_for(corpus, "")
    options = [f"data.exclude={corpus}/known", "data.clean.overlap=false"]
    data = prepare(load_config(corpus / "recipe.yaml", [*options, f"data.store={corpus}/store"]))
    assert data.facts("train")["dropped"]["overlap"] == 7


def test_pairs_are_selected_by_scores(corpus: Path) -> None:
    scores = corpus / "scores"
    train = f"data.train={{path: {corpus}/train, scores: {scores}}}"
    options = [train, "data.clean.min_score=50", f"data.store={corpus}/store"]
    config_for(corpus, "")

    def drops(factor: float) -> int:
        """Return the number of pairs dropped by scores of 0 to 199 times a factor."""
        scores.write_text("".join(f"{factor * i}\n" for i in range(200)))
        prepared = prepare(load_config(corpus / "recipe.yaml", options))
        return int(prepared.facts("train")["dropped"]["scores"])

    assert drops(1) == 49  # one of the first 50 pairs is blank
    assert drops(0.5) == 99  # other scores make other data, although no option has changed


def test_an_interruption_of_the_last_step_loses_no_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def interrupted(folder: Path, *, ignore_errors: bool) -> None:
        if folder.name == WORK:
            next((folder / "corpora").iterdir()).unlink()
            raise KeyboardInterrupt
        remove(folder, ignore_errors=ignore_errors)

    open_instead(monkeypatch, house_rows)
    config = hub_config(tmp_path)
    whole = prepare(config).facts("train")["pairs"]
    shutil.rmtree(config.data.store)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("seq2seq.preparation.folder.shutil.rmtree", interrupted)
        prepare(config)
    assert prepare(config).facts("train")["pairs"] == whole
