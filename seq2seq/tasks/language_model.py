"""Language modelling with a decoder."""

from __future__ import annotations

from typing import Any

from seq2seq.config import Config
from seq2seq.data.examples import ContextWindows
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation.evaluators import TextEvaluator
from seq2seq.model.transformer import LanguageModel
from seq2seq.task import Evaluator, Task


class LanguageModelling(Task):
    """Context windows of a text, decoder-only Transformer, bits per character."""

    unit = "tokens"
    use = "generate {run} --prompt TEXT"

    def build_model(self, config: Config, tokenizer: Tokenizer) -> LanguageModel:
        return LanguageModel(config.model, tokenizer.target.size)

    def examples(self, config: Config, data: PreparedData) -> ContextWindows:
        return ContextWindows(
            tokens=data.tokens("train"),
            context=config.model.context,
            checksum=data.checksum("train"),
        )

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        return TextEvaluator(config, data, **options)


TASK = LanguageModelling()
