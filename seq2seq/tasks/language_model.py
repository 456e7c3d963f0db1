"""A language model of one text: a decoder only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.preparation.text import encode_text, prepare_text
from seq2seq.task import Evaluator, Task

if TYPE_CHECKING:  # loads torch, which `prepare` does not need
    from seq2seq.data.examples import ContextWindows
    from seq2seq.model.transformer import LanguageModel


class LanguageModelling(Task):
    """Context windows of a text, a decoder-only Transformer, and bits per character."""

    unit = "tokens"
    use = "generate {run} --prompt TEXT"
    evaluation_options = ("stride", "random_windows")

    def prepare(self, config: Config, split: str | None = None) -> PreparedData:
        return prepare_text(config, split)

    def encode(
        self, config: Config, tokenizer: Tokenizer, data: str, folder: Path
    ) -> dict[str, Any]:
        return encode_text(tokenizer, data, folder)

    def build_model(self, config: Config, tokenizer: Tokenizer) -> LanguageModel:
        from seq2seq.model.transformer import LanguageModel

        return LanguageModel(config.model, tokenizer.target.size)

    def examples(self, config: Config, data: PreparedData) -> ContextWindows:
        from seq2seq.data.examples import ContextWindows

        return ContextWindows(
            tokens=data.tokens("train"),
            context=config.model.context,
            checksum=data.checksum("train"),
        )

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        from seq2seq.evaluation.evaluators import TextEvaluator

        return TextEvaluator(config, data, **options)


TASK = LanguageModelling()
