"""Evaluators of each task: nll, BLEU, bits per character, accuracy and others on a split."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seq2seq.config import Config, Direction
from seq2seq.data.batching import collate, context_window_batch, micro_batches, shard
from seq2seq.data.lines import map_sharded
from seq2seq.data.store import PreparedData, Store
from seq2seq.data.training_data import Tokens
from seq2seq.decoding.classification import TextClassifier
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import (
    EVALUATION_METRICS,
    VALIDATION_METRICS,
    Score,
    bleu_tokenizer,
    score,
)
from seq2seq.evaluation.systems import describe_search, sets_of, warn_of_tags
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import Classifier, LanguageModel, Transformer
from seq2seq.processes import Processes
from seq2seq.training.loss import ModelLoss, smoothed_cross_entropy

logger = logging.getLogger(__name__)


@dataclass
class SplitEvaluator(ABC):
    """Evaluates models on a split of prepared data.

    All processes call it, share the examples, and get the same metrics.
    """

    config: Config
    data: PreparedData
    split: str
    processes: Processes
    validation: bool = False
    """Whether to use the recipe's settings for validations during training."""

    description: str = field(init=False)
    """Amount of data and search settings, for the log."""
    facts: dict[str, object] = field(init=False, default_factory=dict)
    """Amount of data, settings and signatures of the metrics of the last call."""

    @abstractmethod
    def __call__(self, model: Any) -> dict[str, float]:
        """Return the metrics of a model, including `training.best_by`."""

    @property
    def limit(self) -> int | None:
        """Maximum number of examples; None for all."""
        return self.config.training.validation_sentences if self.validation else None


@dataclass
class TranslationEvaluator(SplitEvaluator):
    """Evaluates a translation model with sacreBLEU, on the set of each direction.

    If there are several, `bleu` is the mean over all directions, and `bleu/en-fr` the BLEU of one
    direction. This holds for every metric.
    """

    to: str = ""
    source: str = ""
    """Languages of the directions to evaluate; empty for all."""

    def __post_init__(self) -> None:
        model, self.decoding = self.config.model, self.config.decoding
        if self.validation:
            self.decoding = replace(self.decoding, beam=self.decoding.validation_beam)
        self.translates = not self.validation or self.config.training.best_by == "bleu"
        self.sets = sets_of(self.data, self.split, self.to, self.source)
        self.translations: dict[Direction, Sequence[str]] = {}
        """Translations of the last evaluation, in the order of the split."""
        for direction, store in self.sets.items():
            warn_of_tags(self.config, self.config.pairs.tag(self.split, direction))
            longest = max(int(lens.max()) for lens in store.lens)
            if model.positions == "learned" and longest > model.context:
                raise UserError(
                    f"the {self.split} set has a sentence of {longest} tokens, but model.positions="
                    f"learned has model.context={model.context} positions: train with more"
                )
        beam = self.decoding.beam
        search = "greedy search" if beam == 1 else f"beam {beam}"
        sizes = [len(store) for store in self.sets.values()]
        used = sum(min(size, self.limit or size) for size in sizes)
        self.description = f"{used:,} of {sum(sizes):,} sentences" + (
            f" in {len(sizes)} directions" if len(sizes) > 1 else ""
        )
        self.description += f", {search if self.translates else 'loss only'}"

    def __call__(self, model: Transformer) -> dict[str, float]:
        """Return loss, nll, perplexity, BLEU and chrF2.

        TER is slow and left out of validations.
        """
        engines = None
        if self.translates:
            engines = Engines.of_model(model, self.data.tokenizer, self.config)
            engines.is_logged = not self.validation
        found = {direction: self._evaluate(model, engines, direction) for direction in self.sets}
        (metrics, self.facts), *others = found.values()
        if not others:
            return metrics
        by_direction = {str(name): facts for name, (_, facts) in found.items()}
        common = [item for item in self.facts.items() if all(item in x.items() for _, x in others)]
        total = sum(len(store) for store in self.sets.values())
        self.facts = {**dict(common), "sentences": total, "directions": by_direction}
        means = {key: fmean(x[key] for x, _ in found.values()) for key in metrics}
        return means | {f"{key}/{name}": x[key] for name, (x, _) in found.items() for key in means}

    def _evaluate(
        self, model: Transformer, engines: Engines | None, direction: Direction
    ) -> tuple[dict[str, float], dict[str, object]]:
        """Return the metrics of a direction, and its facts. engines: None for loss and nll only."""
        store = self.sets[direction]
        sources, references = store.texts(self.limit)
        facts: dict[str, object] = {"sentences": len(sources)}
        metrics = self._nll(model, store, len(sources))
        if engines is None:
            return metrics, facts
        keys = VALIDATION_METRICS if self.validation else EVALUATION_METRICS
        if math.isnan(metrics["nll"]):  # a search would raise
            return metrics | dict.fromkeys(keys, math.nan), facts
        tag = self.config.pairs.tag(self.split, direction)
        translator = Translator(engines, self.decoding, tag)
        source, target = direction
        translate = partial(translator.translate, to=target, source=source)
        translations = map_sharded(translate, sources, self.processes)
        self.translations[direction] = translations
        scores: Sequence[Score] = ()
        if self.processes.is_main:  # others would take its cores
            tokenize = bleu_tokenizer(self.config.pairs, direction.target)
            scores = score(translations, [references], tokenize=tokenize, keys=keys)
        scores = self.processes.broadcast(scores)
        facts |= {metric.signature_key: metric.signature for metric in scores}
        facts["search"] = describe_search(self.decoding, engines.precision)
        return metrics | {metric.key: metric.value for metric in scores}, facts

    @torch.inference_mode()
    def _nll(self, model: Transformer, store: Store, size: int) -> dict[str, float]:
        """Return label-smoothed loss and nll in nats per target token, and perplexity.

        size: number of sentences.
        """
        training, processes = self.config.training, self.processes
        criterion = ModelLoss(model, training.label_smoothing)
        sums = np.zeros(3)
        lens = [side[:size] for side in store.lens]
        numbers = shard(lens[1], processes.index, processes.count)
        shard_lens = [side[numbers] for side in lens]
        for indices in micro_batches(*shard_lens, max_tokens=training.micro_batch_tokens):
            batch = collate(*store.pairs(numbers[indices]), self.data.tokenizer)
            adapt_threads(model.device)
            loss, nll = criterion(batch.to(model.device))
            sums += float(loss), float(nll), batch.num_labels
        loss_sum, nll_sum, num_tokens = processes.all_reduce(*sums.tolist())
        nll = nll_sum / num_tokens
        return {"loss": loss_sum / num_tokens, "nll": nll, "perplexity": math.exp(min(nll, 700))}


@dataclass
class TextEvaluator(SplitEvaluator):
    """Evaluates a language model on a text with a sliding context window.

    The window advances by `stride` tokens, and its last `stride` predictions are scored. Each token
    but the first is scored once, given at least context - stride preceding tokens (fewer in the
    first window).
    """

    stride: int | None = None
    """Tokens; by default half a context, in validations a whole context (disjoint windows)."""

    def __post_init__(self) -> None:
        self.context = self.config.model.context
        default = self.context if self.validation else max(1, self.context // 2)
        self.advance = default if self.stride is None else self.stride
        if not 1 <= self.advance <= self.context:
            raise UserError(f"stride={self.advance} must be from 1 to model.context={self.context}")
        self.tokens = self.data.tokens(self.split)
        self.windows = windows_of(len(self.tokens), self.context, self.advance)[: self.limit]
        pieces = self.data.tokenizer.target.token_bytes
        self._num_bytes = np.array([len(piece) for piece in pieces])
        # Characters are counted by their first byte: continuation bytes are 10xxxxxx.
        self._num_characters = np.array([sum(b & 0xC0 != 0x80 for b in piece) for piece in pieces])
        self.description = f"{len(self.windows):,} windows of {self.context} tokens"
        self.facts = {"context": self.context, "tokens": len(self.tokens)}

    def __call__(self, model: LanguageModel) -> dict[str, float]:
        """Return nll in nats per token, perplexity, bits per character and per byte, and stride."""
        sums = np.zeros(4)  # nll, tokens, characters and bytes of the scored predictions
        size = max(1, self.config.training.micro_batch_tokens // self.context)
        shard = [self.windows[i] for i in self.processes.shard(len(self.windows))]
        for first in range(0, len(shard), size):
            batch_nll, labels = text_nll(model, self.tokens, shard[first : first + size])
            counts = [each[labels].sum() for each in (self._num_characters, self._num_bytes)]
            sums += batch_nll, len(labels), *counts
        nll, tokens, characters, num_bytes = self.processes.all_reduce(*sums.tolist())
        bits = nll / math.log(2)
        return {
            "nll": nll / tokens,
            "perplexity": math.exp(min(nll / tokens, 700)),
            "bits_per_character": bits / max(1.0, characters),
            "bits_per_byte": bits / max(1.0, num_bytes),
            "stride": self.advance,
        }


def windows_of(num_tokens: int, context: int, stride: int) -> list[tuple[int, int]]:
    """Return start and number of scored predictions, the last ones, of each context window."""
    last = num_tokens - 1  # number of predictions
    first = min(context, last)
    ends = [min(done + stride, last) for done in range(first, last, stride)]
    return [(0, first), *((end - context, end - done) for done, end in pairwise([first, *ends]))]


@torch.inference_mode()
def text_nll(
    model: LanguageModel, tokens: Tokens, windows: Sequence[tuple[int, int]]
) -> tuple[float, NDArray[np.int64]]:
    """Return the summed nll of the scored predictions of context windows, and the predicted ids.

    windows: from `windows_of`.
    """
    length = min(model.config.context, len(tokens) - 1)  # a short text has one window
    batch = context_window_batch(np.stack([tokens[i : i + length + 1] for i, _ in windows]))
    counts = torch.tensor([count for _, count in windows])
    chosen = (torch.arange(length) >= length - counts[:, None]).flatten()
    on_device = batch.to(model.device)
    labels = batch.labels[chosen]
    adapt_threads(model.device)
    hidden = model(*on_device.inputs)[chosen.to(model.device)]
    _, nll = smoothed_cross_entropy(
        hidden, model.output.weight, labels.to(model.device), len(labels), 0.0
    )
    return float(nll), labels.numpy()


@dataclass
class LabelEvaluator(SplitEvaluator):
    """Evaluates a classifier by nll, accuracy and macro F1."""

    def __post_init__(self) -> None:
        self.store = self.data.store(self.split)
        self.texts, labels = self.store.pairs(np.arange(len(self.store))[: self.limit])
        self.labels = np.concatenate(labels)
        self.description = f"{len(self.texts):,} of {len(self.store):,} texts"

    def __call__(self, model: Classifier) -> dict[str, float]:
        """Return the nll in nats per text, and accuracy and macro F1 in per cent."""
        classifier = TextClassifier(model, self.data.tokenizer, self.config)
        shard = list(self.processes.shard(len(self.texts)))
        log_probs = classifier.log_probs([self.texts[i] for i in shard]).numpy()
        nll = -log_probs[np.arange(len(shard)), self.labels[shard]]
        results = list(zip(log_probs.argmax(axis=1).tolist(), nll.tolist(), strict=True))
        predicted, nlls = map(np.array, zip(*self.processes.all_gather(results), strict=True))
        names = self.data.tokenizer.target.pieces(range(self.data.tokenizer.target.size))
        confusion = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(confusion, (self.labels, predicted), 1)
        rows = [dict(zip(names, row, strict=True)) for row in confusion.tolist()]
        self.facts = {
            "confusion": dict(zip(names, rows, strict=True)),  # rows are true labels
            "texts": len(self.labels),
        }
        return {
            "nll": math.fsum(nlls) / len(nlls),
            "accuracy": 100 * float((predicted == self.labels).mean()),
            "f1": 100 * macro_f1(confusion),
        }


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Return the mean F1 of the labels, each 2 TP / (2 TP + FP + FN), from 0 to 1.

    confusion: counts by true label and predicted label. Labels that occur in neither are ignored.
    """
    correct = np.diag(confusion)
    total = confusion.sum(axis=0) + confusion.sum(axis=1)
    seen = total > 0
    return float((2 * correct[seen] / total[seen]).mean())


def evaluator_of(
    config: Config, data: PreparedData, split: str, processes: Processes, **options: Any
) -> SplitEvaluator:
    """Return the evaluator of a recipe's task. options: fields of the evaluator."""
    kinds = {"language_model": TextEvaluator, "classification": LabelEvaluator}
    kind = kinds.get(config.task, TranslationEvaluator)
    return kind(config, data, split, processes, **options)


def validator(config: Config, data: PreparedData, processes: Processes) -> SplitEvaluator:
    """Return the evaluator of validations during training."""
    evaluator = evaluator_of(config, data, "dev", processes, validation=True)
    logger.info("validations on the development set: %s", evaluator.description)
    return evaluator
