"""The labels of a classifier's corpora."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError
from seq2seq.preparation.ingest import IngestedBlock

MAX_LABELS = 1000
"""More labels are considered a mistake."""


def read_labels(blocks: Iterable[IngestedBlock]) -> Labels:
    """Return the labels of `train`; raises UserError if other splits have different ones."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for block in blocks:
        labels = found[block.split]
        labels |= block.labels()
        if not all(label.strip() for label in labels):
            raise UserError(f"data.{block.split}: a text has no label")
        if len(labels) > MAX_LABELS:
            example = max(labels, key=len)
            raise UserError(
                f"data.{block.split}: over {MAX_LABELS} different labels, such as "
                f"{example[:80]!r}: a line is LABEL<TAB>TEXT, in that order"
            )
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
