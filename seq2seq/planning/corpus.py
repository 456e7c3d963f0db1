"""The corpora that the arguments of `seq2seq new` name, and what they are."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import CleaningConfig, CorpusConfig, PairsConfig, from_tree
from seq2seq.data.words import words
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import (
    KEPT,
    RULES,
    language_identifier,
    pair_hashes,
    text_rule,
)
from seq2seq.preparation.corpora import Corpus, TextPair, warn_of_header
from seq2seq.preparation.formats import SentencePairs
from seq2seq.preparation.text import TextFiles, open_text

MOST_EXAMPLES = 500_000
"""Of a corpus; more are not read, but estimated from the size of the files."""
SAMPLE = 5_000
"""Pairs that are drawn for the trial training, and to find out languages."""
TRIAL_CHARACTERS = 200_000
"""Of each block of a text, for the trial training."""
TEXTS_AT_ONCE = 20
"""Sentences whose language is identified together: short ones alone are often mistaken."""
RULE_NAMES = list(RULES)

logger = logging.getLogger(__name__)


@dataclass
class CorpusFacts:
    """What was found in a corpus."""

    num_read: int = 0
    share_read: float = 1.0
    """Fraction of the corpus that was read."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of examples for each cleaning rule that drops them."""
    words: tuple[float, ...] = (0.0, 0.0)
    """Average number of words, of each side."""
    longest: tuple[int, ...] = (0, 0)
    """Number of words that 99 % of the examples do not exceed, of each side."""
    sample: list[TextPair] = field(default_factory=list)
    """Examples that are kept, drawn at random."""

    @property
    def num_examples(self) -> int:
        """Number of examples, read or not."""
        return round(self.num_read / self.share_read)

    @property
    def num_kept(self) -> int:
        """Number of examples that cleaning keeps."""
        return round((self.num_read - sum(self.dropped.values())) / self.share_read)


def examine_pairs(
    corpora: Sequence[Corpus], clean: CleaningConfig, unit: str, languages: Sequence[str]
) -> CorpusFacts:
    """Read corpora and return what they are, with a log of sizes and of what cleaning drops.

    unit: what the pairs are called. Raises UserError for an invalid line.
    """
    for corpus in corpora:
        warn_of_header(corpus, languages)
    facts, seen, drawn = CorpusFacts(), set[int](), random.Random(1)
    lens: list[tuple[int, int]] = []
    done, total = 0, sum(corpus.num_bytes or 0 for corpus in corpora)
    for pairs, work in chain.from_iterable(corpus.batches() for corpus in corpora):
        for source, target in pairs:
            facts.num_read += 1
            if rule := _rule(source, target, clean, seen):
                facts.dropped[rule] += 1
                continue
            kept = len(lens)
            lens.append((len(words(source)), len(words(target))))
            if kept < SAMPLE:
                facts.sample.append((source, target))
            elif (place := drawn.randrange(kept + 1)) < SAMPLE:
                facts.sample[place] = source, target
        done += work
        if facts.num_read >= MOST_EXAMPLES and total:
            facts.share_read = min(1.0, done / total)
            break
    if lens:
        table = np.array(lens)
        facts.words = tuple(table.mean(axis=0).tolist())
        facts.longest = tuple(np.percentile(table, 99, axis=0).astype(int).tolist())
    about = "" if facts.share_read == 1 else "about "
    logger.info("the corpus has %s%s %s", about, f"{facts.num_examples:,}", unit)
    for rule, count in facts.dropped.most_common():
        logger.info("  dropped by cleaning: %s (%s)", f"{count:,}", RULES[rule])
    return facts


def examine_text(path: str) -> CorpusFacts:
    """Read a file or folder of text; its examples are characters."""
    text = open_text(CorpusConfig(path=path), "text", "--train")
    assert isinstance(text, TextFiles)  # no dataset
    facts = CorpusFacts()
    for block in text.texts():
        facts.num_read += len(block)
        if len(facts.sample) < SAMPLE // 10:
            facts.sample.append((block[:TRIAL_CHARACTERS], ""))
    return facts


def log_languages(facts: CorpusFacts, source: str, target: str) -> None:
    """Log the languages of a corpus of pairs, and warn of unexpected ones.

    Raises UserError if source and target are the other way round.
    """
    seen = [language_of(pair[side] for pair in facts.sample) for side in (0, 1)]
    if source != target and seen == [target, source]:
        raise UserError(
            f"--train: the source is in {target!r} and the target in {source!r}: name the files "
            "the other way round, or exchange --source and --target"
        )
    for side, expected, found in zip(("source", "target"), (source, target), seen, strict=True):
        if found == expected:
            logger.info("  the %s seems to be in %r, as it should be", side, found)
        elif found and len(expected) == 2:
            logger.warning(
                "the %s seems to be in %r, and not in %r: look at the files before you train",
                side, found, expected,
            )  # fmt: skip


def _rule(source: str, target: str, clean: CleaningConfig, seen: set[int]) -> str | None:
    """Return the name of the cleaning rule that drops a pair, if one does."""
    code = text_rule(clean, ("", ""), source, target)
    if code != KEPT:
        return RULE_NAMES[code - 1]
    whole, _ = pair_hashes(source, target)
    if whole in seen and clean.duplicates:
        return "duplicates"
    seen.add(whole)
    return None


def language_of(texts: Iterable[str]) -> str | None:
    """Return the code of the language that most of some texts are in; None if they do not agree."""
    some = [text for text in islice(texts, 25 * TEXTS_AT_ONCE) if text.strip()]
    groups = [" ".join(some[i : i + TEXTS_AT_ONCE]) for i in range(0, len(some), TEXTS_AT_ONCE)]
    votes = Counter(language_identifier().classify(group)[0] for group in groups)
    if not votes:
        return None
    language, count = votes.most_common(1)[0]
    return str(language) if count > 0.6 * len(groups) else None


def corpora_of(files: Sequence[str], source: str, target: str, flag: str) -> list[Any]:
    """Return parallel corpora, for data.train: prefixes, .tsv files, or files in pairs.

    Files that are neither are taken two at a time, source and target. flag: for errors.
    """
    found: list[Any] = []
    rest = list(files)
    while rest:
        name = rest.pop(0)
        if _plain(name).endswith(".tsv"):
            found.append(existing(name, flag))
        elif not Path(name).exists() and _has_suffixes(name, source, target):
            found.append(name)
        else:
            if not rest:
                raise UserError(
                    f"{flag}: {existing(name, flag)} is alone: name the {source} file and the "
                    f"{target} file of the same lines, their prefix, or a .tsv file"
                )
            pair = [existing(name, flag), existing(rest.pop(0), flag)]
            if _plain(pair[0]).endswith(f".{target}") and _plain(pair[1]).endswith(f".{source}"):
                pair.reverse()
            prefix = _plain(pair[0]).removesuffix(f".{source}")
            is_prefix = {_plain(each) for each in pair} == {f"{prefix}.{source}",
                                                            f"{prefix}.{target}"}  # fmt: skip
            found.append(prefix if is_prefix else {"source": pair[0], "target": pair[1]})
    return found


def one_file(files: Sequence[str], flag: str) -> str:
    """Return the only file or folder."""
    if len(files) != 1:
        raise UserError(f"{flag}: name one file, not {len(files)}")
    return existing(files[0], flag)


def require_no_languages(source: str, target: str, task: str) -> None:
    """Raise UserError if languages are given for a task without them."""
    if source or target:
        raise UserError(f"--source and --target are for translation, and not for --task {task}")


def write_sample(data: PairsConfig, rows: Sequence[Sequence[str]], folder: Path) -> PairsConfig:
    """Write a corpus of tab-separated rows; return a section `data` that reads only that."""
    path = folder / "sample.tsv"
    lines = ("\t".join(column.replace("\t", " ") for column in row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    size = max(2, len(rows) // 20)
    corpus = CorpusConfig(path=str(path))
    return replace(data, train=(corpus,), dev=None, test=None, dev_size=size, test_size=0)


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


def _has_suffixes(prefix: str, *languages: str) -> bool:
    files = ([Path(f"{prefix}.{language}{end}") for end in ("", ".gz")] for language in languages)
    return all(plain.is_file() or zipped.is_file() for plain, zipped in files)


def existing(name: str, flag: str) -> str:
    """Return the name of a file; raises UserError if there is none."""
    if not Path(name).exists():
        raise UserError(f"{flag}: file not found: {name}")
    return name


def opened(data: dict[str, Any]) -> list[Corpus]:
    """Open the training corpora of a section `data` of pairs."""
    named = [from_tree(CorpusConfig(), each, "--train") for each in data["train"]]
    pairs = SentencePairs(PairsConfig(source=data["source"], target=data["target"]))
    return [pairs.open(each, "--train") for each in named]
