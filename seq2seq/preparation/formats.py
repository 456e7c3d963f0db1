"""What the pairs of a task are, in files and in prepared data: sentences, or texts and labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from seq2seq.config import CorpusConfig, PairsConfig
from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError
from seq2seq.files import write_text
from seq2seq.preparation.corpora import (
    Corpus,
    HubDataset,
    LabelledFile,
    LineFiles,
    TabFile,
    TextPair,
)
from seq2seq.preparation.shards import Shard

MAX_LABELS = 1000
"""More labels are considered a mistake."""

logger = logging.getLogger(__name__)


class SentencePairs:
    """Sentences and their translations."""

    def __init__(self, data: PairsConfig) -> None:
        self.data = data

    def open(self, corpus: CorpusConfig, key: str) -> Corpus:
        """Open a corpus; key: its key in the recipe, for errors."""
        kinds = {
            "path": corpus.path,
            "source and target": corpus.source or corpus.target,
            "dataset": corpus.dataset,
        }
        given = [kind for kind, value in kinds.items() if value]
        if len(given) != 1:
            raise UserError(
                f"{key}: give exactly one of {', '.join(kinds)}; given: "
                f"{', '.join(given) or 'none'}"
            )
        languages = self.data.source, self.data.target
        if corpus.dataset:
            return _dataset(corpus, languages, key)
        if corpus.path and corpus.path.removesuffix(".gz").endswith(".tsv"):
            return TabFile(existing(corpus.path, key))
        if corpus.path:
            return LineFiles(*(_by_prefix(corpus.path, language, key) for language in languages))
        if not (corpus.source and corpus.target):
            raise UserError(f"{key}: source and target files go together; one is missing")
        return LineFiles(existing(corpus.source, key), existing(corpus.target, key))

    def labels(self, shards: Mapping[str, Sequence[Shard]]) -> Labels | None:
        """Return the vocabulary of the targets; None if the tokenizer's is trained for them, too.

        shards: of each split. Raises UserError for labels that are unsuitable.
        """
        return None

    def write(self, folder: Path, split: str, pairs: Sequence[TextPair]) -> None:
        """Write a development or test set as text, for other programs and `--data`."""
        languages = [self.data.source, self.data.target]
        if languages[0] == languages[1]:
            languages = ["source", "target"]
        for side, language in enumerate(languages):
            path = folder / f"{split}.{language.replace('/', '_')}"
            write_text(path, "".join(f"{pair[side]}\n" for pair in pairs))

    def facts(self, store: Store, tokenizer: Tokenizer) -> dict[str, Any]:
        """Return what the manifest says of the training pairs in particular."""
        return {}


class LabelledPairs(SentencePairs):
    """Texts and their labels."""

    def open(self, corpus: CorpusConfig, key: str) -> Corpus:
        if corpus.dataset and not corpus.path:
            columns = self.data.source or "text", self.data.target or "label"
            return _dataset(corpus, columns, key)
        if not corpus.path or corpus.dataset or corpus.source or corpus.target:
            raise UserError(
                f"{key}: give a file of `label<TAB>text` lines as its path, or a dataset"
            )
        return LabelledFile(existing(corpus.path, key))

    def labels(self, shards: Mapping[str, Sequence[Shard]]) -> Labels:
        found: dict[str, set[str]] = {}
        for split, own in shards.items():
            for shard in own:
                found[split] = found.get(split, set()) | shard.targets()
                if len(found[split]) > MAX_LABELS:
                    example = max(found[split], key=len)
                    raise UserError(
                        f"data.{split}: over {MAX_LABELS} different labels, such as "
                        f"{example[:80]!r}: a line is LABEL<TAB>TEXT, in that order"
                    )
        known = ", ".join(sorted(found["train"])[:10])
        if len(found["train"]) < 2:
            raise UserError(
                f"data.train: all texts have one label, {known}: there is nothing to learn"
            )
        for split, labels in found.items():
            if any(not label.strip() for label in labels):
                raise UserError(f"data.{split}: a text has no label")
            if unknown := sorted(labels - found["train"]):
                raise UserError(
                    f"data.{split}: the label {unknown[0]!r} is not in the training data, which "
                    f"has {known}"
                )
        return Labels(found["train"])

    def write(self, folder: Path, split: str, pairs: Sequence[TextPair]) -> None:
        rows = (f"{label}\t{text}\n" for text, label in pairs)
        write_text(folder / f"{split}.tsv", "".join(rows))

    def facts(self, store: Store, tokenizer: Tokenizer) -> dict[str, Any]:
        """Return the number of training texts of each label; warn of very rare labels."""
        counts = store.target_counts()
        names = tokenizer.target.decode([[i] for i in range(tokenizer.target.size)])
        labels = {name: counts.get(i, 0) for i, name in enumerate(names)}
        if rare := [name for name, count in labels.items() if count < 2]:
            logger.warning(
                "labels with one training text or none: %s; a header line would be read as one of "
                "them",
                shorten(", ".join(map(repr, rare)), 200),
            )
        return {"labels": labels}


def _dataset(corpus: CorpusConfig, columns: tuple[str, str], key: str) -> HubDataset:
    """Open a dataset, by default the split that the key names."""
    split = corpus.split or key.rpartition(".")[2]
    return HubDataset(corpus.dataset or "", corpus.subset, split, columns)


def _by_prefix(prefix: str, language: str, key: str) -> Path:
    plain, zipped = Path(f"{prefix}.{language}"), Path(f"{prefix}.{language}.gz")
    if Path(prefix).is_file() and not (plain.is_file() or zipped.is_file()):
        raise UserError(
            f"{key}: {prefix} is a file; give the common prefix of both languages' files, to which "
            f".{language} is added"
        )
    return zipped if zipped.is_file() and not plain.is_file() else existing(plain, key)


def existing(name: str | Path, key: str) -> Path:
    """Return the path of a file; raises UserError if there is none."""
    path = Path(name)
    if path.is_dir():
        raise UserError(f"{key}: {path} is a folder; name a file, or the folder as `dataset`")
    if not path.is_file():
        raise UserError(f"{key}: file not found: {path}")
    return path
