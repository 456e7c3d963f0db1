"""The labels of a classifier's texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from textwrap import shorten

from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError
from seq2seq.preparation.shards import Shard

MAX_LABELS = 1000
"""More labels are considered a mistake."""

logger = logging.getLogger(__name__)


def read_labels(shards: Mapping[str, Sequence[Shard]]) -> Labels:
    """Return the labels of `train`; raises UserError if other splits have different ones."""
    found = {split: _labels_of(split, own) for split, own in shards.items() if own}
    known = ", ".join(sorted(found["train"])[:10])
    if len(found["train"]) < 2:
        raise UserError(f"data.train: all texts have one label, {known}: there is nothing to learn")
    for split, labels in found.items():
        if unknown := sorted(labels - found["train"]):
            raise UserError(
                f"data.{split}: the label {unknown[0]!r} is not in the training data, which has "
                f"{known}"
            )
    return Labels(found["train"])


def _labels_of(split: str, shards: Sequence[Shard]) -> set[str]:
    labels: set[str] = set()
    for shard in shards:
        labels |= shard.targets()
        if not all(label.strip() for label in labels):
            raise UserError(f"data.{split}: a text has no label")
        if len(labels) > MAX_LABELS:
            example = max(labels, key=len)
            raise UserError(
                f"data.{split}: over {MAX_LABELS} different labels, such as "
                f"{example[:80]!r}: a line is LABEL<TAB>TEXT, in that order"
            )
    return labels


def count_labels(store: Store, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the number of training texts of each label; warn of very rare labels."""
    counts = store.target_counts()
    names = tokenizer.target.decode([[i] for i in range(tokenizer.target.size)])
    labels = {name: counts.get(i, 0) for i, name in enumerate(names)}
    if rare := [name for name, count in labels.items() if count < 2]:
        logger.warning(
            "labels with one training text or none: %s; a header line would be read as one of them",
            shorten(", ".join(map(repr, rare)), 200),
        )
    return labels
