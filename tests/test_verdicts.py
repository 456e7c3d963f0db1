"""What becomes of pairs by their hashes, against loops that are plainly right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seq2seq.data import verdicts
from seq2seq.data.cleaning import CODES, KEPT
from seq2seq.data.verdicts import (
    NOTE,
    Notes,
    drop_duplicates,
    drop_sources,
    sampled,
    smallest_sources,
)


def write_notes(folder: Path, sizes: list[int], distinct: int) -> Notes:
    """Write notes of N blocks, with hashes out of `distinct` ones."""
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, distinct, dtype=np.uint64)
    files = []
    for i, size in enumerate(sizes):
        block = np.zeros(size, dtype=NOTE)
        block["pair"], block["source"] = random.choice(hashes, size), random.choice(hashes, size)
        block["rule"] = random.choice([KEPT, KEPT, KEPT, CODES["blank"]], size)
        files.append(folder / f"{i}.npy")
        np.save(files[-1], block)
    return Notes(files)


@pytest.mark.parametrize("at_once", [7, 64, 10_000])
def test_the_first_kept_of_equal_pairs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(verdicts, "SORTED_AT_ONCE", at_once)
    notes = write_notes(tmp_path, [100, 1, 250], distinct=120)
    found = notes.rules()
    drop_duplicates(notes, found)
    expected, seen = [], set()
    for note in np.concatenate(list(notes.blocks())):
        again = note["rule"] == KEPT and int(note["pair"]) in seen
        expected.append(CODES["duplicates"] if again else int(note["rule"]))
        if note["rule"] == KEPT:
            seen.add(int(note["pair"]))
    assert found.tolist() == expected
    assert expected.count(CODES["duplicates"]) > 100


def test_sources_are_dropped_and_chosen_among_the_kept(tmp_path: Path) -> None:
    notes = write_notes(tmp_path, [60, 60], distinct=50)
    found, every = notes.rules(), np.concatenate(list(notes.blocks()))
    kept = sorted({int(note["source"]) for note in every if note["rule"] == KEPT})
    assert smallest_sources(notes, found, 9).tolist() == kept[:9]
    assert smallest_sources(notes, found, 99).tolist() == kept
    chosen = np.array(kept[:9], dtype=np.uint64)
    drop_sources(notes, found, chosen, "overlap")
    for note, code in zip(every, found, strict=True):
        hit = note["rule"] == KEPT and int(note["source"]) in kept[:9]
        assert code == (CODES["overlap"] if hit else note["rule"])
    assert smallest_sources(notes, found, 3).tolist() == kept[9:12]


def test_a_sample_has_about_its_size_and_none_that_is_dropped(tmp_path: Path) -> None:
    notes = write_notes(tmp_path, [3000, 2000], distinct=100_000)
    found = notes.rules()
    drawn = np.concatenate(list(sampled(notes, found, 1000)))
    assert not (drawn & (found != KEPT)).any()
    assert drawn.sum() == pytest.approx(1000 * (found == KEPT).mean(), rel=0.1)
    whole = np.concatenate(list(sampled(notes, found, 5000)))
    assert (whole == (found == KEPT)).all()
