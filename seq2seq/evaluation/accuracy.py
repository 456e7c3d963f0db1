"""Accuracy of a classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seq2seq.decoding.classification import TextClassifier
from seq2seq.evaluation.split_evaluator import SplitEvaluator
from seq2seq.model.transformer import Classifier


@dataclass
class LabelEvaluator(SplitEvaluator):
    """Evaluates a classifier."""

    def __post_init__(self) -> None:
        store = self.data.store(self.split)
        self.size = len(store)
        self.texts, labels = store.pairs(np.arange(self.size)[: self.limit])
        self.labels = np.array([int(row[0]) for row in labels])
        self.confusion: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """Counts, (true label, predicted label), of the last call."""

    def extent(self) -> str:
        """Return on how many texts it evaluates."""
        return f"{len(self.texts):,} of {self.size:,} texts"

    def details(self) -> dict[str, object]:
        """Return the confusion matrix, one row per true label."""
        names = self.data.tokenizer.target.pieces(range(len(self.confusion)))
        rows = [dict(zip(names, row, strict=True)) for row in self.confusion.tolist()]
        return {"confusion": dict(zip(names, rows, strict=True)), "texts": len(self.labels)}

    def __call__(self, model: Classifier) -> dict[str, float]:
        """Return nll in nats per text, and accuracy and macro F1 in per cent."""
        classifier = TextClassifier(model, self.data.tokenizer, self.config)
        own = list(self.processes.shard(len(self.texts)))
        found = classifier.log_probs([self.texts[i] for i in own]).numpy()
        gathered = self.processes.all_gather(
            [(int(row.argmax()), float(row[self.labels[i]]))
             for i, row in zip(own, found, strict=True)]
        )  # fmt: skip
        predicted, log_probs = map(np.array, zip(*gathered, strict=True))
        size = self.data.tokenizer.target.size
        self.confusion = np.zeros((size, size), dtype=np.int64)
        np.add.at(self.confusion, (self.labels, predicted), 1)
        return {
            "nll": -math.fsum(log_probs) / len(log_probs),
            "accuracy": 100 * float((predicted == self.labels).mean()),
            "f1": 100 * macro_f1(self.confusion),
        }


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Return the mean over the labels of 2 TP / (2 TP + FP + FN).

    confusion: counts, (true label, predicted label). Labels that do not occur are ignored.
    """
    right = np.diag(confusion)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    seen = both > 0
    return float((2 * right[seen] / both[seen]).mean())
