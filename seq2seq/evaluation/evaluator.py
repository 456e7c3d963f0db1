"""A model's loss and translation scores on one split of its recipe's data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seq2seq.config import Config, DecodingConfig
from seq2seq.config.saved import find_model
from seq2seq.data.prepare import PreparedData, prepare
from seq2seq.decoding.translator import Translator, translate_shared
from seq2seq.errors import UserError
from seq2seq.evaluation.likelihood import likelihood
from seq2seq.evaluation.metrics import bleu_signature, score
from seq2seq.model.directory import load_model
from seq2seq.model.transformer import Transformer
from seq2seq.processes import Processes


class Evaluator:
    """Called with a model, returns its metrics on the split; BLEU and chrF2 by sacreBLEU."""

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        *,
        split: str,
        decoding: DecodingConfig,
        processes: Processes,
        max_sentences: int | None = None,
        translates: bool = True,
    ) -> None:
        self.config, self.decoding, self.processes = config, decoding, processes
        self.translates = translates
        self.tokenize = config.data.bleu_tokenizer
        self.tokenizer = data.tokenizer
        self.store = data.store(split)
        self.sources, self.references = self.store.texts(max_sentences)

    @classmethod
    def for_training(cls, config: Config, data: PreparedData, processes: Processes) -> Evaluator:
        """Return the evaluator of the validations: the development set, a narrow beam."""
        training = config.training
        decoding = replace(config.decoding, beam=config.decoding.validation_beam)
        return cls(
            config,
            data,
            split="dev",
            decoding=decoding,
            processes=processes,
            max_sentences=training.validation_sentences,
            translates=training.best_by == "bleu",
        )

    def __call__(self, model: Transformer) -> dict[str, float]:
        """Return loss, nll and perplexity, and bleu, chrf and ter; the processes share the work."""
        metrics = likelihood(
            model,
            self.store,
            self.tokenizer,
            smoothing=self.config.training.label_smoothing,
            max_tokens=self.config.training.micro_batch_tokens,
            processes=self.processes,
        )
        if not self.translates:
            return metrics
        translator = Translator(model, self.tokenizer, self.config, self.decoding)
        translations = translate_shared(translator, self.sources, self.processes)
        scores = score(translations, [self.references], tokenize=self.tokenize)
        return metrics | {each.key: each.value for each in scores}


def evaluate_run(
    run: Path, checkpoint: str | None, split: str, processes: Processes
) -> dict[str, float | str]:
    """Return a trained model's metrics on a split, and the BLEU signature."""
    loaded = load_model(find_model(run, checkpoint), processes.device)
    config = loaded.config
    with processes.main_first():
        data = prepare(config)
    if data.tokenizer.checksum != loaded.tokenizer.checksum:
        raise UserError(
            f"the prepared data in {data.folder} have another tokenizer than {run}: the corpora "
            "have changed since it was trained"
        )
    evaluator = Evaluator(config, data, split=split, decoding=config.decoding, processes=processes)
    metrics: dict[str, float | str] = {**evaluator(loaded.model)}
    return metrics | {
        "signature": bleu_signature(evaluator.tokenize), "sentences": len(evaluator.sources)
    }  # fmt: skip
