"""The tasks: training examples, evaluation and unit of each."""

from __future__ import annotations

from functools import partial

from seq2seq.config import Config
from seq2seq.data.context_windows import ContextWindows
from seq2seq.data.labelled import LabelledTexts
from seq2seq.data.pairs import Pairs
from seq2seq.data.prepared import PreparedData
from seq2seq.evaluation.accuracy import LabelEvaluator
from seq2seq.evaluation.bits import TextEvaluator
from seq2seq.evaluation.initial import with_initial_set
from seq2seq.evaluation.translation import TranslationEvaluator, choose_alignment_heads
from seq2seq.training.task import Task


def _pairs(config: Config, data: PreparedData) -> Pairs:
    labelled = config.task == "classification"
    examples = partial(LabelledTexts, context=config.model.context) if labelled else Pairs
    return examples(
        store=data.store("train"),
        tokenizer=data.tokenizer,
        corpus_sizes=data.facts("train")["pairs_per_corpus"],
        corpus_weights=[corpus.weight for corpus in config.data.train],
        bpe_dropout=config.tokenizer.bpe_dropout,
        checksum=data.checksum("train"),
    )


def _context_windows(config: Config, data: PreparedData) -> ContextWindows:
    tokens, checksum = data.tokens("train"), data.checksum("train")
    return ContextWindows(tokens, data.tokenizer, context=config.model.context, checksum=checksum)


TASKS = {
    "translation": Task(
        _pairs, with_initial_set(TranslationEvaluator), "pairs", choose_alignment_heads
    ),
    "language_model": Task(_context_windows, with_initial_set(TextEvaluator), unit="tokens"),
    "classification": Task(_pairs, with_initial_set(LabelEvaluator), unit="texts"),
}
