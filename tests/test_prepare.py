"""Preparing a corpus by several processes, in pieces, and after a kill."""

from __future__ import annotations

import gzip
import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seq2seq.config import Config, load_config
from seq2seq.data import prepare as prepare_module
from seq2seq.data import selection, workers
from seq2seq.data.cleaning import CODES
from seq2seq.data.corpus import HubDataset, LineFiles, TabFile
from seq2seq.data.encode import Encoded, EncodeTask, encode_block
from seq2seq.data.prepare import prepare
from seq2seq.data.prepared import PreparedData
from seq2seq.data.progress_bar import ProgressBar
from seq2seq.data.selection import note_block
from seq2seq.data.workers import in_order
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.folders import draft_of

SMALL_BLOCK = 25


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "BLOCK_PAIRS", SMALL_BLOCK)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two hundred pairs, with repetitions and blanks, across blocks."""
    pairs = [(f"the house number {i % 170}", f"das Haus Nummer {i % 170}") for i in range(200)]
    pairs[30] = pairs[130] = ("", "leer")
    for column, language in enumerate(("en", "de")):
        text = "".join(pair[column] + "\n" for pair in pairs)
        (tmp_path / f"train.{language}").write_text(text)
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


def test_several_processes_prepare_the_same_bytes(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for processes in (1, 2):
        monkeypatch.setattr(prepare_module, "num_processes", lambda count=processes: count)
        made.append(prepare(config_for(corpus, f"store{processes}")))
    one, two = made
    assert one.manifest["splits"] == two.manifest["splits"] and sums(one) == sums(two)
    facts = one.facts("train")
    assert len(facts["files"]) == 200 // SMALL_BLOCK and facts["read"] == 200
    # 170 different ones less the blank two, of which one came again, and those held out.
    assert facts["dropped"]["blank"] == 2
    assert facts["pairs"] == len(one.store("train"))
    assert facts["pairs"] + sum(facts["dropped"].values()) == 200
    assert {path.name for path in one.folder.iterdir()} == {
        *sums(one), "manifest.json", "tokenizer.model"
    }  # fmt: skip


def test_what_is_finished_before_a_kill_is_not_done_again(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare(config_for(corpus, "whole"))
    program = f"""
import os, signal
from pathlib import Path
from seq2seq.config import load_config
from seq2seq.data import encode, prepare, selection
selection.BLOCK_PAIRS = {SMALL_BLOCK}
count = 0
def encode_block(task):
    global count
    count += 1
    if count == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode.encode_block(task)
prepare.encode_block = encode_block
prepare.num_processes = lambda: 1
prepare.prepare(load_config(Path({str(corpus / "recipe.yaml")!r}), ["data.store={corpus}/killed"]))
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    [draft] = [path for path in (corpus / "killed").iterdir() if path.name.endswith(".tmp")]
    before = {path.name: path.stat().st_mtime_ns for path in draft.glob("train-*.arrow")}
    notes = {path.name: path.stat().st_mtime_ns for path in (draft / "work").glob("*.npy")}
    assert len(before) == 3 and len(notes) == 8
    seen: dict[str, int] = {}

    def watched(task: EncodeTask) -> Encoded:
        done = encode_block(task)
        seen[task.file.name] = task.file.stat().st_mtime_ns
        for name, stamp in notes.items():
            assert (task.work / name).stat().st_mtime_ns == stamp
        return done

    monkeypatch.setattr(prepare_module, "encode_block", watched)
    monkeypatch.setattr(prepare_module, "num_processes", lambda: 1)
    resumed = prepare(config_for(corpus, "killed"))
    assert {name: seen[name] for name in before} == before
    assert sums(resumed) == sums(whole) and not draft_of(resumed.folder).exists()


@pytest.mark.parametrize("limit", [100, 3_000])
def test_a_disk_that_takes_no_more_costs_nothing_that_is_done(corpus: Path, limit: int) -> None:
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


def test_a_piece_that_was_made_of_other_pairs_is_made_anew(corpus: Path, tmp_path: Path) -> None:
    folder = prepare(config_for(corpus, "store")).folder
    block = next(LineFiles(corpus / "train.en", corpus / "train.de").blocks(SMALL_BLOCK))
    verdicts = np.zeros(SMALL_BLOCK, dtype=np.uint8)
    file = tmp_path / "piece.arrow"
    task = EncodeTask(block, verdicts, None, None, tokenizer=folder, checksum="",
                      file=file, work=folder)  # fmt: skip
    assert encode_block(task).pairs == SMALL_BLOCK
    stamp = file.stat().st_mtime_ns
    assert encode_block(task).pairs == SMALL_BLOCK and file.stat().st_mtime_ns == stamp
    verdicts[3] = CODES["duplicates"]
    assert encode_block(task).pairs == SMALL_BLOCK - 1 and file.stat().st_mtime_ns != stamp
    stamp = file.stat().st_mtime_ns
    encode_block(replace(task, checksum="of another tokenizer"))
    assert file.stat().st_mtime_ns != stamp


def test_recipes_with_the_same_data_share_them(corpus: Path) -> None:
    one = prepare(config_for(corpus, "store"))
    other = prepare(replace(config_for(corpus, "store"), name="another"))
    assert other.folder == one.folder


def test_a_data_set_from_elsewhere_leaves_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_instead(monkeypatch, lambda: [
        {"translation": {"en": f"the house {i}", "de": f"das\nHaus {i}"}} for i in range(60)
    ])  # fmt: skip
    data = prepare(hub_config(tmp_path))
    lines = "".join(f"the house {i}\tdas Haus {i}\n" for i in range(60))
    assert data.manifest["inputs"] == [
        {"dataset": "far/away:train", "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    ]


@pytest.mark.parametrize("language", ["en", "de"])
def test_an_error_names_its_line_from_any_process_and_leaves_nothing(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr(prepare_module, "num_processes", lambda: 2)
    path = corpus / f"train.{language}"
    lines = path.read_bytes().split(b"\n")
    lines[179] = b"\xff"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=f"{path.name}, line 180: not UTF-8"):
        prepare(config_for(corpus, "store"))
    assert not [path for path in (corpus / "store").iterdir() if path.is_dir()]


def test_a_block_of_which_nothing_is_kept_is_no_fault(corpus: Path) -> None:
    for language in ("en", "de"):
        path = corpus / f"train.{language}"
        path.write_text("\n" * SMALL_BLOCK + path.read_text())
    data = prepare(config_for(corpus, "store"))
    assert data.facts("train")["dropped"]["blank"] == SMALL_BLOCK + 2
    assert len(data.store("train")) == data.facts("train")["pairs"] > 100


def test_labels_are_counted_over_all_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MAX_LABELS", SMALL_BLOCK + 5)
    monkeypatch.setattr(prepare_module, "num_processes", lambda: 1)
    (tmp_path / "texts.tsv").write_text("".join(f"{i}\ta text\n" for i in range(40)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"task: classification\ndata: {{train: {tmp_path}/texts.tsv, dev_size: 5, "
        f"store: {tmp_path}/store}}\ntokenizer: {{vocab_size: 300}}\n"
        "model: {context: 16}\n"
    )
    with pytest.raises(UserError, match="over 30 different labels"):
        prepare(load_config(recipe))


class DataSet:
    """What `datasets` opens, as far as it is used: rows, read anew each time."""

    features = None

    def __init__(
        self, read: Callable[[], Iterable[dict[str, Any]]], num_bytes: int | None = None
    ) -> None:
        self._read = read
        split = SimpleNamespace(num_bytes=num_bytes)
        self.info = SimpleNamespace(splits=num_bytes and {"train": split})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._read())


def open_instead(
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[], Iterable[dict[str, Any]]],
    num_bytes: int | None = None,
) -> None:
    monkeypatch.setattr(HubDataset, "_dataset", lambda _: DataSet(read, num_bytes))


def house_rows(count: int = 60, noun: str = "house") -> list[dict[str, Any]]:
    return [{"en": f"the {noun} {i}", "de": f"das {noun} {i}"} for i in range(count)]


def hub_config(folder: Path) -> Config:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "data: {source: en, target: de, train: {dataset: far/away}, dev_size: 5, "
        f"store: {folder}/store}}\ntokenizer: {{vocab_size: 300}}\n"
    )
    return load_config(recipe)


def test_a_data_set_that_breaks_off_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from house_rows(55)
        raise ConnectionError("no network")

    monkeypatch.setattr(prepare_module, "num_processes", lambda: 1)
    open_instead(monkeypatch, broken)
    with pytest.raises(UserError, match="no network"):
        prepare(hub_config(tmp_path))
    notes = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").glob(".*.tmp/work/*")}
    assert len(notes) == 2
    noted = []

    def watched(task: selection.NoteTask) -> set[str]:
        noted.append(task.block.first)
        assert {path: path.stat().st_mtime_ns for path in notes} == notes
        return note_block(task)

    monkeypatch.setattr(selection, "note_block", watched)
    open_instead(monkeypatch, house_rows)
    assert prepare(hub_config(tmp_path)).facts("train")["read"] == 60
    assert noted == [51]


@pytest.mark.parametrize("fault", [ConnectionError("no network"), KeyboardInterrupt()])
def test_what_breaks_off_the_tokenizers_sample_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    readings = iter(range(9))

    def broken() -> Iterator[dict[str, Any]]:
        yield from house_rows(2 * SMALL_BLOCK)
        if next(readings) == 1:
            raise fault
        yield from house_rows()[2 * SMALL_BLOCK :]

    monkeypatch.setattr(prepare_module, "num_processes", lambda: 1)
    open_instead(monkeypatch, broken)
    with pytest.raises((UnfinishedError, KeyboardInterrupt)) as found:
        prepare(hub_config(tmp_path))
    assert "no network" in str(found.value) or isinstance(fault, KeyboardInterrupt)
    assert len(list((tmp_path / "store").glob(".*.tmp/work/*.npy"))) == 3


def test_a_data_set_tells_how_much_there_is_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(len(text) for row in house_rows() for text in row.values())
    open_instead(monkeypatch, house_rows, num_bytes=size)
    data_set = HubDataset("far/away", None, "train", "en", "de")
    blocks = list(data_set.blocks(SMALL_BLOCK))
    assert sum(block.work for block in blocks) == data_set.num_bytes == size
    left: list[float | None] = []

    class Watched(ProgressBar):
        def advance(self, pairs: int, work: float) -> None:
            super().advance(pairs, work)
            left.append(self._bar.tasks[0].remaining)

    with monkeypatch.context() as patch:
        patch.setattr(selection, "ProgressBar", Watched)
        prepare(hub_config(tmp_path))
    sizes = [block.work for block in blocks]
    assert left[: len(sizes)] == [sum(sizes[i + 1 :]) for i in range(len(sizes))]
    open_instead(monkeypatch, house_rows)
    assert data_set.num_bytes is None


def test_a_data_set_that_changes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(range(9))
    open_instead(monkeypatch, lambda: house_rows(noun=f"house {next(readings)}"))
    with pytest.raises(UserError, match="far/away:train has changed while it was prepared"):
        prepare(hub_config(tmp_path))


def test_a_data_set_that_becomes_shorter_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([60, 2 * SMALL_BLOCK])
    open_instead(monkeypatch, lambda: house_rows(next(sizes)))
    with pytest.raises(UserError, match=r"data\.train has become shorter"):
        prepare(hub_config(tmp_path))


def test_a_tokenizer_of_other_rows_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "num_processes", lambda: 1)
    with monkeypatch.context() as patch:
        open_instead(patch, lambda: house_rows(noun="xylophone"))
        patch.setattr(prepare_module, "in_order", None)  # fails once the tokenizer is there
        with pytest.raises(TypeError):
            prepare(hub_config(tmp_path))
    assert list((tmp_path / "store").glob(".*/work/tokenizer-*"))
    open_instead(monkeypatch, lambda: house_rows(noun="quilt"))
    pieces = b"".join(prepare(hub_config(tmp_path)).tokenizer.source.token_bytes())
    assert b"quilt" in pieces and b"xylo" not in pieces


def test_long_texts_make_small_blocks(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LineFiles(corpus / "train.en", corpus / "train.de")
    whole = list(files.blocks(10_000))
    assert [len(block) for block in whole] == [200]
    monkeypatch.setattr("seq2seq.data.corpus.BLOCK_BYTES", 1000)
    small = list(files.blocks(10_000))
    assert len(small) > 5 and [pair for block in small for pair in block.pairs()] == list(files)
    assert [block.first for block in small][:2] == [1, 1 + len(small[0])]
    assert sum(block.work for block in small) == whole[0].work == files.num_bytes


def test_how_far_a_compressed_file_has_been_read(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv.gz"
    numbers = np.random.default_rng(0).integers(0, 10**9, 60_000)
    with gzip.open(path, "wt") as stream:
        stream.writelines(f"the {number}\tder {number}\n" for number in numbers)
    blocks = list(TabFile(path).blocks(20_000))
    assert sum(block.work for block in blocks) == path.stat().st_size == TabFile(path).num_bytes
    assert all(block.work > 0.2 * path.stat().st_size for block in blocks)


def test_corpora_with_tags_over_several_blocks_and_processes(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for column, language in enumerate(("en", "de")):
        lines = (f"{('news', 'Nachricht')[column]} {i}\n" for i in range(60))
        (corpus / f"news.{language}").write_text("".join(lines))
    corpora = (f"data.train=[{{path: {corpus}/news, tag: <news>, weight: 2}}, "
               f"{{path: {corpus}/train}}]")  # fmt: skip
    made = []
    for processes in (1, 2):
        monkeypatch.setattr(prepare_module, "num_processes", lambda count=processes: count)
        config_for(corpus, "")
        options = [corpora, f"data.store={corpus}/store{processes}", "data.test_size=0"]
        made.append(prepare(load_config(corpus / "recipe.yaml", options)))
    assert sums(made[0]) == sums(made[1])
    facts, store = made[0].facts("train"), made[0].store("train")
    texts = made[0].tokenizer.source.decode(
        [ids.tolist() for ids in store.pairs(np.arange(len(store)))[0]]
    )
    news = [text.startswith("<news>") for text in texts]
    assert facts["pairs_per_corpus"] == [news.count(True), news.count(False)]
    assert news == sorted(news, reverse=True) and facts["read"] == 260
    tagged = [text.startswith("<news> news") for text in made[0].store("dev").texts()[0]]
    assert news.count(True) + tagged.count(True) == 60


def end_at_seven(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def test_results_come_in_order_and_a_lost_process_is_named() -> None:
    assert list(in_order(end_at_seven, range(7), 2)) == [i * i for i in range(7)]
    with pytest.raises(UnfinishedError, match="goes on where it stopped"):
        list(in_order(end_at_seven, range(20), 2))


def test_items_are_not_read_far_ahead() -> None:
    read = []

    def items() -> Iterator[int]:
        for number in range(50):
            read.append(number)
            yield number

    results = in_order(abs, items(), 2)
    next(results)
    assert len(read) <= 1 + workers.WAITING * 2
    results.close()
