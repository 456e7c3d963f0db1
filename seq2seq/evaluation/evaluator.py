"""A model's loss and translation scores on one split of its recipe's data."""

from __future__ import annotations

from dataclasses import replace

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.prepare import PreparedData
from seq2seq.decoding.translator import Translator
from seq2seq.evaluation.likelihood import likelihood
from seq2seq.evaluation.metrics import Score, score
from seq2seq.model.transformer import Transformer


class Evaluator:
    """Called with a model, returns its metrics on the split; BLEU and chrF2 by sacreBLEU."""

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        *,
        split: str,
        decoding: DecodingConfig,
        max_sentences: int | None = None,
    ) -> None:
        self.config, self.decoding = config, decoding
        self.tokenizer = data.tokenizer
        self.store = data.store(split)
        self.sources, self.references = self.store.texts(max_sentences)

    @classmethod
    def for_training(cls, config: Config, data: PreparedData) -> Evaluator:
        """Return the evaluator of the validations: the development set, a narrow beam."""
        training = config.training
        decoding = replace(config.decoding, beam=config.decoding.validation_beam)
        limit = training.validation_sentences
        return cls(config, data, split="dev", decoding=decoding, max_sentences=limit)

    def __call__(self, model: Transformer) -> dict[str, float]:
        """Return loss, nll, perplexity, bleu and chrf."""
        metrics = likelihood(
            model,
            self.store,
            self.tokenizer,
            smoothing=self.config.training.label_smoothing,
            max_tokens=self.config.training.micro_batch_tokens,
        )
        return metrics | {s.name.lower(): s.value for s in self.translation_scores(model)}

    def translation_scores(self, model: Transformer) -> list[Score]:
        """Translate the split and score it."""
        translator = Translator(model, self.tokenizer, self.config, self.decoding)
        return score(translator.translate(self.sources), [self.references])
