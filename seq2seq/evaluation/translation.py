"""nll and BLEU of a translation model on a split."""

from __future__ import annotations

import math
from dataclasses import replace

from seq2seq.config import Config, DecodingConfig
from seq2seq.data.prepared import PreparedData
from seq2seq.decoding.streams import process_shared
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import bleu_signature, score
from seq2seq.evaluation.nll import compute_nll
from seq2seq.model.transformer import Transformer
from seq2seq.processes import Processes


class TranslationEvaluator:
    """Evaluates a translation model on a split, with sacreBLEU."""

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        *,
        split: str,
        processes: Processes,
        decoding: DecodingConfig | None = None,
        max_sentences: int | None = None,
        translates: bool = True,
    ) -> None:
        self.config, self.processes = config, processes
        self.decoding = decoding or config.decoding
        self.translates = translates
        self.tokenize = config.data.bleu_tokenizer
        self.tokenizer = data.tokenizer
        self.store = data.store(split)
        self.sources, self.references = self.store.texts(max_sentences)
        longest = max(int(self.store.source_lens.max()), int(self.store.target_lens.max()))
        if config.model.positions == "learned" and longest > config.model.context:
            raise UserError(
                f"the {split} set has a sentence of {longest} tokens, but model.positions=learned "
                f"has model.context={config.model.context} positions: train with more"
            )

    @classmethod
    def for_training(
        cls, config: Config, data: PreparedData, processes: Processes
    ) -> TranslationEvaluator:
        """Return the evaluator for validations: development set and validation beam."""
        training = config.training
        decoding = replace(config.decoding, beam=config.decoding.validation_beam)
        return cls(
            config,
            data,
            split="dev",
            processes=processes,
            decoding=decoding,
            max_sentences=training.validation_sentences,
            translates=training.best_by == "bleu",
        )

    def details(self) -> dict[str, object]:
        """Return the BLEU signature and the number of sentences."""
        return {"signature": bleu_signature(self.tokenize), "sentences": len(self.sources)}

    def __call__(self, model: Transformer) -> dict[str, float]:
        """Return loss, nll, perplexity, bleu, chrf and ter; the processes share the work."""
        metrics = compute_nll(
            model,
            self.store,
            self.tokenizer,
            max_sentences=len(self.sources),
            smoothing=self.config.training.label_smoothing,
            max_tokens=self.config.training.micro_batch_tokens,
            processes=self.processes,
        )
        if not self.translates:
            return metrics
        if math.isnan(metrics["nll"]):  # a search would raise
            return metrics | dict.fromkeys(("bleu", "chrf", "ter"), math.nan)
        translator = Translator(model, self.tokenizer, self.config, self.decoding)
        translations = process_shared(translator.translate, self.sources, self.processes)
        scores = score(translations, [self.references], tokenize=self.tokenize)
        return metrics | {each.key: each.value for each in scores}
