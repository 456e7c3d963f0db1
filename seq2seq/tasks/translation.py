"""Translation with an encoder and a decoder."""

from __future__ import annotations

from typing import Any

from seq2seq.config import Config
from seq2seq.data.examples import Pairs
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation.evaluators import TranslationEvaluator
from seq2seq.model.transformer import Transformer
from seq2seq.task import Evaluator, Task


class Translation(Task):
    """Sentence pairs, encoder-decoder Transformer, BLEU."""

    unit = "pairs"
    use = "translate {run} < FILE"

    def build_model(self, config: Config, tokenizer: Tokenizer) -> Transformer:
        source_size = None if tokenizer.shared else tokenizer.source.size
        return Transformer(config.model, tokenizer.target.size, source_size)

    def examples(self, config: Config, data: PreparedData) -> Pairs:
        return Pairs(config, data)

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        return TranslationEvaluator(config, data, **options)


TASK = Translation()
