"""Selection of pairs by their hashes, compared with simple loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import feather

from seq2seq.config import CleaningConfig, CorpusConfig, Direction, PairsConfig
from seq2seq.errors import UserError
from seq2seq.preparation.chunks import Chunk, Selection
from seq2seq.preparation.cleaning import CODES, KEPT
from seq2seq.preparation.corpora import Corpus

Row = tuple[int, int, int]
"""Code of the rule, hash of the pair, hash of the source."""


def write_chunks(
    folder: Path, sizes: list[int], distinct: int, corpora: tuple[int, ...] = (0, 0, 0)
) -> tuple[Selection, list[Row]]:
    """Write chunks of pairs with random rules and hashes, of which `distinct` differ.

    corpora: number of the corpus of each chunk.
    """
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, distinct, dtype=np.uint64)
    direction = Direction("en", "de")
    opened = [
        Corpus("train", direction, None, str(i), [], lambda: iter(()), scores)
        for i, scores in enumerate([folder / "scores", None])
    ]
    chunks, rows = [], []
    for i, size in enumerate(sizes):
        rules = random.choice([KEPT, KEPT, KEPT, CODES["blank"]], size).astype(np.uint8)
        pairs, sources = random.choice(hashes, size), random.choice(hashes, size)
        texts = [str(value) for value in pairs.tolist()]
        chunks.append(Chunk(folder / f"0-{i}.feather", opened[corpora[i]]))
        columns = {"source": texts, "target": texts, "rule": rules}
        targets = pairs - np.uint64(3) * sources  # the hash of a pair is 3 * source + target
        columns |= {"source_hash": sources, "target_hash": targets}
        feather.write_feather(pyarrow.table(columns), chunks[-1].file)
        rows += list(zip(rules.tolist(), pairs.tolist(), sources.tolist(), strict=True))
    return Selection(chunks), rows


def test_the_smallest_hashes_of_the_first_corpus_are_held_out(tmp_path: Path) -> None:
    """With their first targets; other corpora lose the pairs with these sources."""
    selected, rows = write_chunks(tmp_path, [30, 10, 60], distinct=50, corpora=(0, 0, 1))
    sources = sorted({source for rule, _, source in rows[:40] if rule == KEPT})
    sets = selected.hold_out(PairsConfig(dev_size=6, test_size=3))
    held_out = {split: indices[Direction("en", "de")] for split, indices in sets.items()}
    for split, chosen in (("dev", sources[:6]), ("test", sources[6:9])):
        first = {source: i for i, (rule, _, source) in reversed([*enumerate(rows)]) if rule == KEPT}
        assert held_out[split].tolist() == sorted(first[source] for source in chosen)
        texts = [pair[0] for pair in selected.pairs(held_out[split])]
        assert texts == [str(rows[i][1]) for i in held_out[split]]
    for (rule, _, source), code in zip(rows, selected.codes, strict=True):
        assert code == (CODES["held_out"] if rule == KEPT and source in sources[:9] else rule)
    with pytest.raises(UserError, match=r"only \d+ different sources: .* such as \d+$"):
        selected.hold_out(PairsConfig(test_size=99))


def test_the_first_of_equal_pairs_is_kept(tmp_path: Path) -> None:
    selected, rows = write_chunks(tmp_path, [300, 200, 100], distinct=150)
    selected.drop_duplicates()
    seen: set[int] = set()
    for (rule, pair, _), code in zip(rows, selected.codes, strict=True):
        assert code == (CODES["duplicates"] if rule == KEPT and pair in seen else rule)
        if rule == KEPT:
            seen.add(pair)


def test_a_sample_has_about_its_size_and_only_kept_pairs(tmp_path: Path) -> None:
    selected, rows = write_chunks(tmp_path, [3000, 2000], distinct=100_000)
    kept = [str(pair) for rule, pair, _ in rows if rule == KEPT]
    data = PairsConfig(train=(CorpusConfig(weight=0.1),))
    sample = [source for source, _ in selected.sample(1000, data)]
    assert set(sample) <= set(kept)
    assert len(sample) == pytest.approx(1000 * len(kept) / len(rows), rel=0.1)
    assert [source for source, _ in selected.sample(5000, data)] == kept


@pytest.mark.parametrize("min_score", [None, 0.4, -9.0])
@pytest.mark.parametrize("share", [None, 0.5, 1e-9])
def test_pairs_with_low_scores_are_dropped(
    min_score: float | None, share: float | None, tmp_path: Path
) -> None:
    """By simple loops: the best share of what is left of the corpus, above the threshold."""
    selected, rows = write_chunks(tmp_path, [30, 10, 60], distinct=50, corpora=(0, 0, 1))
    scores = np.random.default_rng(1).random(40).round(1).tolist()  # with equal ones
    lines = [f"a\tb\t{score}\n" for score in scores]
    (tmp_path / "scores").write_text("".join(lines))
    selected.drop_low_scores(CleaningConfig(min_score=min_score, best_share=share))
    kept = [i for i, (rule, *_) in enumerate(rows[:40]) if rule == KEPT]
    best = sorted(kept, key=lambda i: -scores[i])[: round(len(kept) * (share or 1))]
    best = [i for i in best if min_score is None or scores[i] >= min_score]
    others = [i for i, (rule, *_) in enumerate(rows) if rule == KEPT and i >= 40]
    assert selected.kept.tolist() == sorted(best) + others
    assert selected.dropped().get("scores", 0) == len(kept) - len(best)

    (tmp_path / "scores").write_text("".join(lines[1:]))
    with pytest.raises(UserError, match="has 39 lines, but 0 has 40 pairs"):
        selected.drop_low_scores(CleaningConfig(best_share=0.5))
    (tmp_path / "scores").write_text("0.5\n\n")
    with pytest.raises(UserError, match="scores, line 2: '' is not a score"):
        selected.drop_low_scores(CleaningConfig(best_share=0.5))
