"""Selection of pairs by their hashes, compared with simple loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import feather

from seq2seq.preparation import selection
from seq2seq.preparation.cleaning import CODES, KEPT
from seq2seq.preparation.selection import Selection
from seq2seq.preparation.shards import Shard

Row = tuple[int, int, int]
"""Code of the rule, hash of the pair, hash of the source."""


def write_shards(folder: Path, sizes: list[int], distinct: int) -> tuple[Selection, list[Row]]:
    """Write shards of pairs with random rules and hashes, of which `distinct` differ."""
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, distinct, dtype=np.uint64)
    shards, rows = [], []
    for i, size in enumerate(sizes):
        rules = random.choice([KEPT, KEPT, KEPT, CODES["blank"]], size).astype(np.uint8)
        pairs, sources = random.choice(hashes, size), random.choice(hashes, size)
        texts = [str(value) for value in pairs.tolist()]
        shards.append(Shard(folder / f"0-{i}.feather"))
        columns = {"source": texts, "target": texts, "rule": rules, "pair_hash": pairs,
                   "source_hash": sources}  # fmt: skip
        feather.write_feather(pyarrow.table(columns), shards[-1].file)
        rows += list(zip(rules.tolist(), pairs.tolist(), sources.tolist(), strict=True))
    verdicts = np.concatenate([shard.column("rule") for shard in shards])
    return Selection(shards, verdicts, {}), rows


@pytest.mark.parametrize("at_once", [7, 64, 10_000])
def test_the_first_of_equal_pairs_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(selection, "SORTED_AT_ONCE", at_once)
    selected, rows = write_shards(tmp_path, [100, 1, 250], distinct=120)
    selected.drop_duplicates()
    expected, seen = [], set()
    for rule, pair, _ in rows:
        expected.append(CODES["duplicates"] if rule == KEPT and pair in seen else rule)
        if rule == KEPT:
            seen.add(pair)
    assert selected.verdicts.tolist() == expected
    assert selected.dropped()["duplicates"] == expected.count(CODES["duplicates"]) > 100


def test_sources_are_dropped_and_chosen_among_the_kept(tmp_path: Path) -> None:
    selected, rows = write_shards(tmp_path, [60, 60], distinct=50)
    kept = sorted({source for rule, _, source in rows if rule == KEPT})
    assert selected.smallest_sources(9).tolist() == kept[:9]
    assert selected.smallest_sources(99).tolist() == kept
    selected.drop_sources(np.array(kept[:9], dtype=np.uint64), "overlap")
    for (rule, _, source), code in zip(rows, selected.verdicts, strict=True):
        assert code == (CODES["overlap"] if rule == KEPT and source in kept[:9] else rule)
    assert selected.smallest_sources(3).tolist() == kept[9:12]


def test_a_sample_has_about_its_size_and_only_kept_pairs(tmp_path: Path) -> None:
    selected, rows = write_shards(tmp_path, [3000, 2000], distinct=100_000)
    kept = [str(pair) for rule, pair, _ in rows if rule == KEPT]
    sample = [source for source, _ in selected.sample(1000)]
    assert set(sample) <= set(kept)
    assert len(sample) == pytest.approx(1000 * len(kept) / len(rows), rel=0.1)
    assert [source for source, _ in selected.sample(5000)] == kept
