"""Where systems differ: line by line, and by length, rare words and nearness to training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import numpy as np

from seq2seq.data.words import words, words_with_space
from seq2seq.evaluation.metrics import Score, make_metric, score
from seq2seq.evaluation.systems import System, TestSet

LENGTHS = (1, 6, 11, 21, 41)
"""First number of words of each group."""
FREQUENCIES = (0, 1, 10, 100, 1_000)
NEARNESS = (0, 1, 50, 100, 101)
"""In per cent, of which there are no more than 100."""
DEFAULT_LINES = 20
NGRAM = 3
"""Number of words of the n-grams by which nearness is measured."""

Show = Callable[[str, bool], str]
"""Formats a text, marked or not."""
Marked = list[tuple[str, bool]]
"""The words of a text with the white space after them, each with whether only this text has it."""


@dataclass(frozen=True)
class LineDifference:
    """A line of two systems."""

    number: int
    """From 1."""
    source: str
    reference: str
    texts: Mapping[str, Marked]
    """Of both systems, by name."""
    difference: float
    """Sentence-level chrF2 of the second less that of the first."""

    def rows(self, show: Show) -> list[tuple[str, str]]:
        """Return names and texts: the source, if it is known, the reference, and both systems."""
        source = [("source", show(self.source, False))] if self.source else []
        texts = [(name, _joined(text, show)) for name, text in self.texts.items()]
        return [*source, ("reference", show(self.reference, False)), *texts]

    def tree(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        texts = {name: "".join(word for word, _ in text) for name, text in self.texts.items()}
        return {"line": self.number, "difference": round(self.difference, 4),
                "source": self.source, "reference": self.reference, **texts}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Scores of the systems on groups of lines."""

    title: str
    groups: Sequence[tuple[str, int, Mapping[str, Sequence[Score]]]]
    """Name, number of lines, and the scores of each system, by its name."""

    def rows(self, corner: str = "") -> list[list[str]]:
        """Return rows of cells: a header, and a column for each metric of each system."""
        first = self.groups[0][2]
        metrics = [each.name for each in next(iter(first.values()))]
        rows = [[corner, "lines", *(f"{name} {metric}" for metric in metrics for name in first)]]
        for group, count, scores in self.groups:
            by_metric = zip(*scores.values(), strict=True)
            values = [f"{each.value:.2f}" for own in by_metric for each in own]
            rows.append([group, f"{count:,}", *values])
        return rows

    def tree(self) -> list[dict[str, Any]]:
        """Return it as a JSON array."""
        return [
            {"group": group, "lines": count} | {
                name: {each.key: round(each.value, 4) for each in own}
                for name, own in scores.items()
            }
            for group, count, scores in self.groups
        ]  # fmt: skip


@dataclass(frozen=True)
class Breakdown:
    """Tables of all systems, and lines of the first two."""

    tables: Sequence[Table]
    better: Sequence[LineDifference] = ()
    """Where the second system differs most from the first."""
    worse: Sequence[LineDifference] = ()

    def tree(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "groups": {table.title: table.tree() for table in self.tables},
            "better": [each.tree() for each in self.better],
            "worse": [each.tree() for each in self.worse],
        }


def break_down(
    systems: Sequence[System], test_set: TestSet, num_lines: int | None = None
) -> Breakdown:
    """Return where systems differ; num_lines: better and worse lines (by default 20 each)."""
    tables = [by_length(systems, test_set), *by_training_data(systems, test_set)]
    if len(systems) == 1:
        return Breakdown(tables)
    count = DEFAULT_LINES if num_lines is None else num_lines
    return Breakdown(tables, *most_different(systems[0], systems[1], test_set, count))


def most_different(
    first: System, second: System, test_set: TestSet, count: int
) -> tuple[list[LineDifference], list[LineDifference]]:
    """Return at most `count` lines where the second system is better, and where it is worse.

    By chrF2 of the sentence, the largest differences first; equal lines are left out.
    """
    metric = make_metric("chrf", lowercase=test_set.lowercase)
    lines = zip(first.lines, second.lines, zip(*test_set.references, strict=True), strict=True)
    differences = [
        metric.sentence_score(new, list(references)).score
        - metric.sentence_score(old, list(references)).score
        for old, new, references in lines
    ]
    order = sorted(range(len(differences)), key=lambda i: -differences[i])
    better = [i for i in order[:count] if differences[i] > 0]
    worse = [i for i in order[::-1][:count] if differences[i] < 0]

    def described(i: int) -> LineDifference:
        texts = zip((first.name, second.name), marked(first.lines[i], second.lines[i]), strict=True)
        source = test_set.sources[i] if test_set.sources else ""
        reference = test_set.references[0][i]
        return LineDifference(i + 1, source, reference, dict(texts), differences[i])

    return [described(i) for i in better], [described(i) for i in worse]


def marked(first: str, second: str) -> tuple[Marked, Marked]:
    """Return the words of two texts, with those marked that only one of them has there."""
    sides = words_with_space(first), words_with_space(second)
    differs = [[True] * len(side) for side in sides]
    old_words, new_words = ([word.rstrip() for word in side] for side in sides)
    matcher = SequenceMatcher(None, old_words, new_words, autojunk=False)
    for block in matcher.get_matching_blocks():
        for side, start in zip(differs, (block.a, block.b), strict=True):
            side[start : start + block.size] = [False] * block.size
    old, new = (list(zip(*each, strict=True)) for each in zip(sides, differs, strict=True))
    return old, new


def _joined(marked_words: Marked, show: Show) -> str:
    """Return the text of marked words; the white space after them is not marked."""
    bare = [(word.rstrip(), word, differs) for word, differs in marked_words]
    parts = [show(text, differs) + word[len(text) :] for text, word, differs in bare]
    return "".join(parts) or show("(empty)", False)


def by_length(systems: Sequence[System], test_set: TestSet) -> Table:
    """Return scores by the number of words of the (first) reference."""
    lens = [len(words(text)) for text in test_set.references[0]]
    return _table("words of the reference", systems, test_set, lens, LENGTHS)


def by_training_data(systems: Sequence[System], test_set: TestSet) -> list[Table]:
    """Return scores by the frequency of the rarest word of the source, and by nearness.

    Nearness: the largest share of a source's trigrams of words that one training sentence has; of
    shorter n-grams for a shorter source. Nothing without training sentences.
    """
    found = _traces(test_set.sources, test_set.training())
    if found is None:
        return []
    frequencies, nearness = found
    return [
        _table("occurrences of the rarest word of the source in the training data", systems,
               test_set, frequencies, FREQUENCIES),
        _table("three-word sequences of the source in the nearest training sentence, in per cent",
               systems, test_set, nearness, NEARNESS),
    ]  # fmt: skip


def _traces(sources: Sequence[str], training: Iterable[str]) -> tuple[list[int], list[int]] | None:
    """Return the frequency of each source's rarest word, and its nearness in per cent.

    None if there are no training sentences.
    """
    split = [words(source) for source in sources]
    ngrams = [set(_ngrams(own, NGRAM)) for own in split]
    holders: dict[tuple[str, ...], list[int]] = {}
    for i, own in enumerate(ngrams):
        for ngram in own:
            holders.setdefault(ngram, []).append(i)
    sizes = {len(ngram) for ngram in holders}
    counts = dict.fromkeys((word for own in split for word in own), 0)
    most, is_empty = [0] * len(sources), True
    for text in training:
        is_empty, theirs = False, words(text)
        for word in theirs:
            if word in counts:
                counts[word] += 1
        found = {ngram for size in sizes for ngram in _ngrams(theirs, size) if ngram in holders}
        common = Counter(i for ngram in found for i in holders[ngram])
        for i, count in common.items():
            most[i] = max(most[i], count)
    if is_empty:
        return None
    rarest = [min((counts[word] for word in own), default=0) for own in split]
    pairs = zip(most, ngrams, strict=True)
    return rarest, [100 * count // len(own) if own else 100 for count, own in pairs]


def _ngrams(own: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield n-grams of `size` words; one of all words if there are fewer."""
    if own:
        size = min(size, len(own))
        yield from zip(*(own[start:] for start in range(size)), strict=False)


def _table(
    title: str,
    systems: Sequence[System],
    test_set: TestSet,
    values: Sequence[int],
    starts: Sequence[int],
) -> Table:
    # What is below the first group, such as an empty reference, belongs to it.
    places = np.maximum(0, np.searchsorted(starts, values, side="right") - 1)
    groups = []
    for place, (start, end) in enumerate(zip_longest(starts, starts[1:])):
        chosen = np.flatnonzero(places == place).tolist()
        if not chosen:
            continue
        name = f"{start:,}"
        if end is None:
            name += " or more"
        elif end > start + 1:
            name += f"-{end - 1:,}"
        references = [[lines[i] for i in chosen] for lines in test_set.references]
        scores = {
            system.name: score(
                [system.lines[i] for i in chosen],
                references,
                keys=("bleu", "chrf"),
                tokenize=test_set.tokenize,
                lowercase=test_set.lowercase,
            )
            for system in systems
        }
        groups.append((name, len(chosen), scores))
    return Table(title, groups)
