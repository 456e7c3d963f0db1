"""Data augmentation: each change, its rate, and independence of batches and processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
from forked import in_child
from hypothesis import given
from hypothesis import strategies as st

from seq2seq.data.augmentation import generators, uniform
from seq2seq.data.training_data import Pairs, TrainingData
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare
from seq2seq.text.augment import CHANGES, NEIGHBOURS, join

PAIR = ("Don't open the “file” – yet.", "Die Datei noch nicht öffnen, groß.")


def changed(name: str, pair: tuple[str, str] = PAIR, draw: int = 0) -> tuple[str, str]:
    [random] = generators(np.array([draw]), seed=1, epoch=0)
    return CHANGES[name](pair, random)


def test_lower_case_changes_both_sides_of_sentences() -> None:
    assert changed("lower") == (PAIR[0].lower(), PAIR[1].lower())
    assert changed("lower", ("Not A Sentence", "Kein Satz.")) == ("Not A Sentence", "Kein Satz.")


def test_changes_of_the_source_leave_the_target() -> None:
    assert changed("quotes") == ('Don\'t open the "file" - yet.', PAIR[1])
    assert changed("quotes", ("a 'b' - c", "d")) == ("a ’b’ – c", "d")
    texts, targets = zip(*(changed("spaces", draw=draw) for draw in range(50)), strict=True)
    assert {text.replace(" ", "") for text in texts} == {PAIR[0].replace(" ", "")}
    assert {len(text) - len(PAIR[0]) for text in texts} == {-1, 1} and set(targets) == {PAIR[1]}


def test_typos_of_a_word() -> None:
    seen = {changed("typos", ("of", "x"), draw) for draw in range(300)}
    assert seen == {(source, "x") for source in ("f", "oof", "fo", "if", "pf")}
    assert NEIGHBOURS["o"] == "ip"
    assert changed("typos", ("%1$d 12", "x")) == ("%1$d 12", "x")  # no word


def test_noise_is_the_same_on_both_sides() -> None:
    for draw in range(20):
        source, target = changed("noise", ("a", "b"), draw)
        assert source.replace("a", "") == target.replace("b", "")
        assert len(source) == 3


@given(st.text(), st.text(), st.integers(0, 100))
def test_no_change_fails_on_any_text(source: str, target: str, draw: int) -> None:
    for name in CHANGES:
        changed(name, (source, target), draw)
    assert join([(source, target)] * 2) == (f"{source} {source}", f"{target} {target}")


def test_uniform_numbers_depend_on_the_position_alone() -> None:
    every = uniform(np.arange(100), 6, seed=1, epoch=0)
    some = np.array([40, 7, 99])
    np.testing.assert_array_equal(uniform(some, 6, seed=1, epoch=0), every[some])
    assert len(np.unique(every)) == every.size
    assert uniform(np.empty(0, dtype=np.int64), 6, seed=1, epoch=0).shape == (0, 6)
    assert not np.isin(uniform(np.arange(100), 6, seed=1, epoch=1), every).any()


@pytest.fixture
def pairs(recipe: Path) -> Pairs:
    rates = "lower: 0.2, spaces: 0.2, typos: 0.2, quotes: 0.2, noise: 0.2, join: 0.2"
    return pairs_of(recipe, f"data.augment={{{rates}}}")


def pairs_of(recipe: Path, *overrides: str) -> Pairs:
    """Return pairs with a long one, so that no change is too long."""
    for language, word in (("en", "house"), ("de", "Haus")):
        (recipe.parent / f"long.{language}").write_text(f"{word} " * 100 + "\n")
    train = f"data.train=[{recipe.parent}/train, {recipe.parent}/long]"
    config = load_config(recipe, [train, *overrides])
    return Pairs(config, prepare(config))


def texts(pairs: Pairs, positions: list[int], epoch: int = 0) -> list[tuple[str, str]]:
    indices, places = pairs.order(1, epoch)[positions], np.array(positions)
    rows = zip(*pairs.load(indices, places, seed=1, epoch=epoch), strict=True)
    source, target = (
        vocabulary.decode([row.tolist() for row in side])
        for vocabulary, side in zip(
            (pairs.tokenizer.source, pairs.tokenizer.target), rows, strict=True
        )
    )
    return list(zip(source, target, strict=True))


def test_pairs_do_not_depend_on_batches(pairs: Pairs) -> None:
    every = texts(pairs, list(range(40)))
    assert texts(pairs, [3, 30, 17]) == [every[i] for i in (3, 30, 17)]
    assert texts(pairs, list(range(40)), epoch=1) != every


def test_a_resumed_epoch_has_the_same_batches(pairs: Pairs) -> None:
    data = TrainingData(pairs, batch_tokens=100, micro_batch_tokens=60, seed=1)
    updates = [next(iterator) for iterator in [data.updates(0)] for _ in range(6)]
    resumed = next(data.updates(updates[4].next_epoch, updates[4].next_offset))
    for batch, again in zip(updates[5].batches, resumed.batches, strict=True):
        for side, same in zip(batch.inputs, again.inputs, strict=True):
            assert side.ids.equal(same.ids)


def test_other_processes_load_the_same_batches(recipe: Path) -> None:
    pairs = pairs_of(recipe, "data.augment.typos=0.3", "tokenizer.bpe_dropout=0.1")
    data = TrainingData(pairs, batch_tokens=100, micro_batch_tokens=60, seed=1)
    expected = list(islice(data.updates(0, 20), 80))  # longer than an epoch
    updates = replace(data, num_workers=2).updates(0, 20)
    for update, other in zip(expected, updates, strict=False):
        assert (update.next_epoch, update.next_offset) == (other.next_epoch, other.next_offset)
        for batch, same in zip(update.batches, other.batches, strict=True):
            assert batch.labels.equal(same.labels) and batch.num_labels == same.num_labels
            for side, copy in zip(batch.inputs, same.inputs, strict=True):
                assert side.ids.equal(copy.ids) and side.offsets.equal(copy.offsets)
    assert expected[-1].next_epoch > 0
    assert len(multiprocessing.active_children()) == 2
    updates.close()
    gc.collect()
    assert not multiprocessing.active_children()


def test_processes_end_with_a_killed_parent(recipe: Path, tmp_path: Path) -> None:
    pairs = pairs_of(recipe, "data.augment.typos=0.3")
    data = TrainingData(pairs, batch_tokens=100, micro_batch_tokens=60, seed=1, num_workers=1)

    def killed() -> None:
        updates = data.updates(0)
        next(updates)
        [child] = multiprocessing.active_children()
        (tmp_path / "pid").write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the process outlives its parent"
        time.sleep(0.1)


def test_rates_are_shares_of_the_pairs(recipe: Path) -> None:
    plain, noisy = pairs_of(recipe), pairs_of(recipe, "data.augment.noise=0.3")
    before, after = (texts(pairs, list(range(300))) for pairs in (plain, noisy))
    changes = [(x, y) for x, y in zip(before, after, strict=True) if x != y]
    assert 60 < len(changes) < 120
    for pair, (source, target) in changes:
        assert pair[0] in source and source.replace(pair[0], "") == target.replace(pair[1], "")


def test_joined_pairs_are_whole_and_short(recipe: Path) -> None:
    plain, joined = pairs_of(recipe), pairs_of(recipe, "data.augment.join=0.9")
    every = dict(texts(plain, list(range(300))))
    some = texts(joined, list(range(300)))
    longer = [(source, target) for source, target in some if source not in every]
    assert len(longer) > 30
    for source, target in longer:
        starts = [x for x in every if source.startswith(f"{x} ")]
        assert any(target.startswith(f"{every[start]} ") for start in starts)


def test_a_tag_is_not_changed(recipe: Path, corpus: Path) -> None:
    parts = (f"{{path: {corpus}/{name}, tag: <news>}}" for name in ("train", "long"))
    tagged = f"data.train=[{', '.join(parts)}]"
    for name in ("noise", "typos", "join"):
        pairs = pairs_of(recipe, tagged, f"data.augment.{name}=0.9")
        sources = [source for source, _ in texts(pairs, list(range(50)))]
        assert all(source.startswith("<news> ") for source in sources)
        assert all(source.count("<") == 1 for source in sources)


def test_no_pair_becomes_longer_than_the_longest(recipe: Path) -> None:
    config = load_config(recipe, ["data.augment.typos=0.99", "data.augment.noise=0.99"])
    pairs = Pairs(config, prepare(config))
    rows = pairs.load(pairs.order(1, 0), np.arange(300), seed=1, epoch=0)
    assert max(max(map(len, row)) for row in rows) < pairs.longest


def test_a_process_without_an_example_of_an_update(recipe: Path) -> None:
    data = TrainingData(
        pairs_of(recipe, "data.augment.typos=0.9"),
        batch_tokens=100,
        micro_batch_tokens=60,
        seed=1,
        process=1,
        num_processes=2,
    )
    [batch] = data[np.array([0]), 0, 0, 1, 0].batches
    assert batch.num_labels == 0
