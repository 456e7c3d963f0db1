"""The tasks, by the values of the recipe key `task`."""

from __future__ import annotations

from seq2seq.config import Config
from seq2seq.data.examples import ContextWindows, LabelledTexts, Pairs
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation.evaluators import LabelEvaluator, TextEvaluator, TranslationEvaluator
from seq2seq.model.transformer import Classifier, LanguageModel, Transformer
from seq2seq.task import Task


def _transformer(config: Config, tokenizer: Tokenizer) -> Transformer:
    source_size = None if tokenizer.shared else tokenizer.source.size
    return Transformer(config.model, tokenizer.target.size, source_size)


TASKS = {
    "translation": Task(
        unit="pairs",
        use="translate {run} < FILE",
        build_model=_transformer,
        examples=Pairs,
        evaluator=TranslationEvaluator,
    ),
    "language_model": Task(
        unit="tokens",
        use="generate {run} --prompt TEXT",
        build_model=lambda config, tokenizer: LanguageModel(config.model, tokenizer.target.size),
        examples=ContextWindows,
        evaluator=TextEvaluator,
    ),
    "classification": Task(
        unit="texts",
        use="classify {run} < FILE",
        build_model=lambda config, tokenizer: Classifier(
            config.model, tokenizer.source.size, tokenizer.target.size
        ),
        examples=LabelledTexts,
        evaluator=LabelEvaluator,
    ),
}
