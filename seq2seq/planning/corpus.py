"""The corpora that the arguments of `seq2seq new` name, and what is in them."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from seq2seq.config import TASKS, CorpusConfig, LabelledConfig, PairsConfig, from_tree
from seq2seq.data.streams import count_lines
from seq2seq.errors import UserError
from seq2seq.preparation.cleaning import KEPT, RULES, pair_hashes, text_rule
from seq2seq.preparation.corpora import Corpus, TextPair
from seq2seq.preparation.formats import LabelledPairs, SentencePairs
from seq2seq.preparation.text import TextFiles, open_text

MOST_EXAMPLES = 500_000
"""Number of pairs that are read. The lines of a larger corpus are only counted."""
SAMPLE = 5_000
"""Number of pairs drawn for the trial training."""
TRIAL_CHARACTERS = 200_000
"""Characters of each block of a text for the trial training."""
UNITS = {"translation": "pairs", "classification": "texts", "language_model": "characters"}
"""What the examples of a corpus are."""
RULE_NAMES = list(RULES)

logger = logging.getLogger(__name__)


@dataclass
class CorpusFacts:
    """What was found in a corpus."""

    num_read: int = 0
    share_read: float = 1.0
    """Fraction of the corpus that was read."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of examples that each cleaning rule drops."""
    sample: list[TextPair] = field(default_factory=list)
    """Random examples among those that are kept."""

    @property
    def num_examples(self) -> int:
        """Number of examples, read or not."""
        return round(self.num_read / self.share_read)

    @property
    def num_kept(self) -> int:
        """Number of examples that cleaning keeps."""
        return round((self.num_read - self.dropped.total()) / self.share_read)


def data_of_files(
    task: str, files: Mapping[str, Sequence[str]], source: str, target: str
) -> dict[str, Any]:
    """Return the section `data` of a recipe for files; raises UserError for unsuitable ones.

    files: of `train`, `dev` and `test`.
    """
    if task == "translation":
        if not (source and target):
            raise UserError("--source and --target name the languages: --source en --target de")
        corpora = {split: corpora_of(own, source, target, split) for split, own in files.items()}
    else:
        if source or target:
            raise UserError(f"--source and --target are for translation, and not for --task {task}")
        corpora = {split: [_existing(name, split) for name in own] for split, own in files.items()}
    for split, own in corpora.items():
        if len(own) > 1 and (split != "train" or task == "language_model"):
            raise UserError(f"--{split}: name one corpus, not {len(own)}")
    given = {split: own[0] for split, own in corpora.items() if own and split != "train"}
    if task == "language_model":
        if given:
            raise UserError(f"--{min(given)}: parts of a language model's text are held out of it")
        return {"text": corpora["train"][0]}
    languages = {"source": source, "target": target} if task == "translation" else {}
    return {**languages, "train": corpora["train"], **given}


def corpora_of(files: Sequence[str], source: str, target: str, split: str) -> list[Any]:
    """Return parallel corpora, for data.train: prefixes, .tsv files, or files in pairs.

    Files that are neither are taken two at a time, source and target. split: for errors.
    """
    found: list[Any] = []
    rest = list(files)
    while rest:
        name = rest.pop(0)
        if _plain(name).endswith(".tsv"):
            found.append(_existing(name, split))
        elif not Path(name).exists() and _is_prefix(name, source, target):
            found.append(name)
        elif not rest:
            raise UserError(
                f"--{split}: {_existing(name, split)} is alone: name the {source} file and the "
                f"{target} file of the same lines, their prefix, or a .tsv file"
            )
        else:
            pair = [_existing(name, split), _existing(rest.pop(0), split)]
            if _plain(pair[0]).endswith(f".{target}") and _plain(pair[1]).endswith(f".{source}"):
                pair.reverse()
            prefix = _plain(pair[0]).removesuffix(f".{source}")
            named = [f"{prefix}.{source}", f"{prefix}.{target}"]
            is_prefix = [_plain(path) for path in pair] == named
            found.append(prefix if is_prefix else {"source": pair[0], "target": pair[1]})
    return found


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


def _is_prefix(name: str, *languages: str) -> bool:
    files = [[Path(f"{name}.{language}{end}") for end in ("", ".gz")] for language in languages]
    return all(plain.is_file() or zipped.is_file() for plain, zipped in files)


def _existing(name: str, split: str) -> str:
    if not Path(name).exists():
        raise UserError(f"--{split}: file not found: {name}")
    return name


def examine(task: str, data: Mapping[str, Any]) -> CorpusFacts:
    """Read the training data of a section `data`, and log what they are."""
    if task == "language_model":
        facts = examine_text(data["text"])
    else:
        facts = examine_pairs(opened(task, data), TASKS[task].defaults.pairs)
    about = "" if facts.share_read == 1 else "about "
    logger.info("the corpus has %s%s %s", about, f"{facts.num_examples:,}", UNITS[task])
    for rule, count in facts.dropped.most_common():
        logger.info("  dropped by cleaning: %s (%s)", f"{count:,}", RULES[rule])
    return facts


def opened(task: str, data: Mapping[str, Any]) -> list[Corpus]:
    """Open the training corpora of a section `data` of pairs."""
    named = [from_tree(CorpusConfig(), corpus, "--train") for corpus in data["train"]]
    if task == "classification":
        pairs: SentencePairs = LabelledPairs(LabelledConfig())
    else:
        pairs = SentencePairs(PairsConfig(source=data["source"], target=data["target"]))
    return [pairs.open(corpus, "--train") for corpus in named]


def examine_pairs(corpora: Sequence[Corpus], section: PairsConfig) -> CorpusFacts:
    """Read corpora; raises UserError for an invalid line.

    section: says by which rules pairs are dropped.
    """
    clean, drawn = section.clean, random.Random(1)
    facts, seen = CorpusFacts(), set[int]()
    for source, target in islice(chain.from_iterable(corpora), MOST_EXAMPLES):
        facts.num_read += 1
        whole, _ = pair_hashes(source, target)
        if (code := text_rule(clean, ("", ""), source, target)) != KEPT:
            facts.dropped[RULE_NAMES[code - 1]] += 1
        elif clean.duplicates and whole in seen:
            facts.dropped["duplicates"] += 1
        else:
            seen.add(whole)
            if len(seen) <= SAMPLE:
                facts.sample.append((source, target))
            elif (place := drawn.randrange(len(seen))) < SAMPLE:
                facts.sample[place] = source, target
    if facts.num_read == MOST_EXAMPLES:
        num_lines = count_lines([str(corpus.files[0]) for corpus in corpora]) or 0
        facts.share_read = MOST_EXAMPLES / max(MOST_EXAMPLES, num_lines)
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
