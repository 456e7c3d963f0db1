"""Text classification with an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.config import Config
from seq2seq.data.examples import LabelledTexts
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import LabelEvaluator
from seq2seq.model.transformer import Classifier
from seq2seq.task import Evaluator, Task


class Classification(Task):
    """Labelled texts, encoder-only Transformer, accuracy."""

    unit = "texts"
    use = "classify {run} < FILE"

    def build_model(self, config: Config, tokenizer: Tokenizer) -> Classifier:
        return Classifier(config.model, tokenizer.source.size, tokenizer.target.size)

    def examples(self, config: Config, data: PreparedData) -> LabelledTexts:
        return LabelledTexts(config, data)

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        return LabelEvaluator(config, data, **options)

    def require_initial(self, tokenizer: Tokenizer, folder: Path) -> None:
        labels, initial = tokenizer.target.model, Tokenizer.load(folder).target.model
        if labels != initial:
            raise UserError(
                f"{folder} has the labels {initial.decode()}, but the training data have "
                f"{labels.decode()}: training.init_from needs the same labels"
            )


TASK = Classification()
