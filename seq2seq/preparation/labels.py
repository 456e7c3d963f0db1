"""Labels of a classifier's training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

from seq2seq.data.vocabulary import Labels
from seq2seq.errors import UserError
from seq2seq.preparation.shards import Shard

MAX_LABELS = 1000
"""Maximum number of labels. More are considered a mistake."""


def find_labels(shards: Mapping[str, Sequence[Shard]]) -> Labels:
    """Return the labels of the training set. Raises UserError for unsuitable labels.

    shards: texts and labels of each split.
    """
    known: set[str] = set()
    for shard in shards["train"]:
        known |= shard.targets()
        if len(known) > MAX_LABELS:
            raise UserError(
                f"data.train: over {MAX_LABELS} different labels, such as "
                f"{max(known, key=len)[:80]!r}: lines must be LABEL<TAB>TEXT, in this order"
            )
    listed = shorten(", ".join(sorted(known)), 200)
    if len(known) < 2:
        raise UserError(
            f"data.train: all texts have the label {listed}: at least two labels are needed"
        )
    for split, parts in shards.items():
        labels = set[str]().union(*(shard.targets() for shard in parts))
        if "" in labels:
            raise UserError(f"data.{split}: a text has no label")
        if unknown := sorted(labels - known):
            raise UserError(
                f"data.{split}: the label {unknown[0]!r} is not in the training data ({listed})"
            )
    return Labels(known)
