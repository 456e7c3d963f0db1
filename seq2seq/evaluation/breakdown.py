"""Where systems differ: line by line, and by length, rare words and nearness to training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

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
    first: Marked
    second: Marked
    difference: float
    """Sentence-level chrF2 of the second less that of the first."""

    def rows(self, names: Sequence[str], show: Show) -> list[tuple[str, str]]:
        """Return names and texts: the source, if it is known, the reference, and both systems."""
        source = [("source", show(self.source, False))] if self.source else []
        return [
            *source,
            ("reference", show(self.reference, False)),
            (names[0], _joined(self.first, show)),
            (names[1], _joined(self.second, show)),
        ]


@dataclass(frozen=True)
class Table:
    """Scores of the systems on groups of lines."""

    title: str
    groups: Sequence[tuple[str, int, Sequence[Sequence[Score]]]]
    """Name, number of lines, and the scores of each system."""

    def rows(self, names: Sequence[str], corner: str = "") -> list[list[str]]:
        """Return rows of cells: a header, and a column for each metric of each system."""
        metrics = [each.name for each in self.groups[0][2][0]]
        columns = [f"{name} {metric}" for metric in metrics for name in names]
        rows = [[corner, "lines", *columns]]
        for group, count, scores in self.groups:
            values = [f"{own[i].value:.2f}" for i in range(len(metrics)) for own in scores]
            rows.append([group, f"{count:,}", *values])
        return rows


@dataclass(frozen=True)
class Breakdown:
    """Tables of all systems, and lines of the first two."""

    names: Sequence[str]
    tables: Sequence[Table]
    better: Sequence[LineDifference]
    """Where the second system differs most from the first."""
    worse: Sequence[LineDifference]

    def tree(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "groups": {table.title: self._groups(table) for table in self.tables},
            "better": [self._line(each) for each in self.better],
            "worse": [self._line(each) for each in self.worse],
        }

    def _groups(self, table: Table) -> list[dict[str, Any]]:
        return [
            {"group": name, "lines": count} | {
                system: {each.key: round(each.value, 4) for each in own}
                for system, own in zip(self.names, scores, strict=True)
            }
            for name, count, scores in table.groups
        ]  # fmt: skip

    def _line(self, each: LineDifference) -> dict[str, Any]:
        texts = {name: "".join(word for word, _ in side) for name, side in
                 zip(self.names, (each.first, each.second), strict=False)}  # fmt: skip
        return {"line": each.number, "difference": round(each.difference, 4),
                "source": each.source, "reference": each.reference, **texts}  # fmt: skip


def break_down(
    systems: Sequence[System],
    test_set: TestSet,
    num_lines: int | None = None,
    *,
    lowercase: bool = False,
) -> Breakdown:
    """Return where systems differ; num_lines: better and worse lines (by default 20 each)."""
    tables = [by_length(systems, test_set, lowercase=lowercase)]
    if test_set.training:
        training = test_set.training()
        tables += by_training_data(systems, test_set, training, lowercase=lowercase)
    better: list[LineDifference] = []
    worse: list[LineDifference] = []
    if len(systems) > 1:
        count = DEFAULT_LINES if num_lines is None else num_lines
        better, worse = most_different(systems[0], systems[1], test_set, count, lowercase=lowercase)
    return Breakdown([system.name for system in systems], tables, better, worse)


def most_different(
    first: System, second: System, test_set: TestSet, count: int, *, lowercase: bool = False
) -> tuple[list[LineDifference], list[LineDifference]]:
    """Return at most `count` lines where the second system is better, and where it is worse.

    By chrF2 of the sentence, the largest differences first; equal lines are left out.
    """
    metric = make_metric("chrf", lowercase=lowercase)
    references = list(zip(*test_set.references, strict=True))

    def line_scores(lines: Sequence[str]) -> list[float]:
        pairs = zip(lines, references, strict=True)
        return [metric.sentence_score(line, list(own)).score for line, own in pairs]

    pairs = zip(line_scores(first.lines), line_scores(second.lines), strict=True)
    differences = [own - other for other, own in pairs]
    order = sorted(range(len(differences)), key=lambda i: -differences[i])
    better = [i for i in order[:count] if differences[i] > 0]
    worse = [i for i in order[::-1][:count] if differences[i] < 0]

    def described(number: int) -> LineDifference:
        old, new = marked(first.lines[number], second.lines[number])
        source = test_set.sources[number] if test_set.sources else ""
        reference = test_set.references[0][number]
        return LineDifference(number + 1, source, reference, old, new, differences[number])

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


def by_length(systems: Sequence[System], test_set: TestSet, *, lowercase: bool = False) -> Table:
    """Return scores by the number of words of the (first) reference."""
    lens = [len(words(text)) for text in test_set.references[0]]
    return _table("words of the reference", systems, test_set, lens, LENGTHS, lowercase)


def by_training_data(
    systems: Sequence[System],
    test_set: TestSet,
    training: Iterable[str],
    *,
    lowercase: bool = False,
) -> list[Table]:
    """Return scores by the frequency of the rarest word of the source, and by nearness.

    training: source sentences. Nearness: the largest share of a source's trigrams of words that one
    training sentence has; of shorter n-grams for a shorter source.
    """
    found = _traces(test_set.sources, training)
    if found is None:
        return []
    frequencies, nearness = found
    return [
        _table("occurrences of the rarest word of the source in the training data", systems,
               test_set, frequencies, FREQUENCIES, lowercase),
        _table("three-word sequences of the source in the nearest training sentence, in per cent",
               systems, test_set, nearness, NEARNESS, lowercase),
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
    lowercase: bool,
) -> Table:
    groups = []
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else None
        # What is below the first group, such as an empty reference, belongs to it.
        chosen = [i for i, value in enumerate(values)
                  if (value >= start or not index) and (end is None or value < end)]  # fmt: skip
        if not chosen:
            continue
        name = f"{start:,} or more" if end is None else f"{start:,}-{end - 1:,}"
        if end == start + 1:
            name = f"{start:,}"
        references = [[lines[i] for i in chosen] for lines in test_set.references]
        scores = [
            score(
                [system.lines[i] for i in chosen],
                references,
                keys=("bleu", "chrf"),
                tokenize=test_set.tokenize,
                lowercase=lowercase,
            )
            for system in systems
        ]
        groups.append((name, len(chosen), scores))
    return Table(title, groups)
