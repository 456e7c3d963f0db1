"""Accuracy of a classifier."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.decoding.classification import TextClassifier
from seq2seq.model.classifier import Classifier
from seq2seq.processes import Processes


class LabelEvaluator:
    """Evaluates a classifier on a split; the processes share the work."""

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        *,
        split: str,
        processes: Processes,
        validation: bool = False,
    ) -> None:
        """validation: evaluate as training.validation_sentences says."""
        self.config, self.tokenizer, self.processes = config, data.tokenizer, processes
        store = data.store(split)
        limit = config.training.validation_sentences if validation else None
        count = len(store) if limit is None else min(limit, len(store))
        self._size = len(store)
        self.texts, labels = store.pairs(np.arange(count))
        self.labels = np.array([int(row[0]) for row in labels])
        self.confusion: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """Counts, (true label, predicted label), of the last call."""

    def extent(self) -> str:
        """Return on how many texts it evaluates."""
        return f"{len(self.texts):,} of {self._size:,} texts"

    def details(self) -> dict[str, object]:
        """Return the confusion matrix, one row per true label."""
        names = self.tokenizer.target.decode([[i] for i in range(self.tokenizer.target.size)])
        rows = self.confusion.tolist()
        return {"confusion": {name: dict(zip(names, row, strict=True))
                              for name, row in zip(names, rows, strict=True)},
                "texts": len(self.labels)}  # fmt: skip

    def __call__(self, model: Classifier) -> dict[str, float]:
        """Return nll in nats per text, and accuracy and macro F1 in per cent."""
        classifier = TextClassifier(model, self.tokenizer, self.config)
        own = list(self.processes.shard(len(self.texts)))
        log_probs = classifier.log_probs([self.texts[i] for i in own]).numpy()
        gathered = self.processes.all_gather(
            [(int(row.argmax()), float(row[self.labels[i]])) for i, row in zip(own, log_probs,
                                                                              strict=True)]
        )  # fmt: skip
        predicted = np.array([label for label, _ in gathered])
        size = self.tokenizer.target.size
        self.confusion = np.bincount(self.labels * size + predicted, minlength=size**2).reshape(
            size, size
        )
        return {
            "nll": -math.fsum(log_prob for _, log_prob in gathered) / len(gathered),
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
