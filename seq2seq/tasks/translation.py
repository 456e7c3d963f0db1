"""Translation of sentences: encoder and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config import Config
from seq2seq.data.prepared import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.evaluation.test_sets import encode_given_pairs, tag_of
from seq2seq.model.converted import converted, has_ctranslate2
from seq2seq.preparation.formats import SentencePairs
from seq2seq.preparation.prepare import prepare_pairs
from seq2seq.task import Evaluator, Task

if TYPE_CHECKING:  # loads torch, which `prepare` does not need
    from seq2seq.data.examples import Pairs
    from seq2seq.model.transformer import Transformer


class Translation(Task):
    """Pairs of sentences, an encoder-decoder Transformer, and BLEU."""

    unit = "pairs"
    use = "translate {run} < FILE"

    def prepare(self, config: Config, split: str | None = None) -> PreparedData:
        return prepare_pairs(config, SentencePairs(config.pairs), split)

    def encode(
        self, config: Config, tokenizer: Tokenizer, data: str, folder: Path
    ) -> dict[str, Any]:
        pairs = SentencePairs(config.pairs)
        return encode_given_pairs(pairs, tokenizer, data, folder, tag_of(config))

    def build_model(self, config: Config, tokenizer: Tokenizer) -> Transformer:
        from seq2seq.model.transformer import Transformer

        source_size = None if tokenizer.shared else tokenizer.source.size
        return Transformer(config.model, tokenizer.target.size, source_size)

    def examples(self, config: Config, data: PreparedData) -> Pairs:
        from seq2seq.data.examples import Pairs

        return Pairs.of(config, data)

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        from seq2seq.evaluation.evaluators import TranslationEvaluator

        return TranslationEvaluator(config, data, **options)

    def finish(self, folders: Sequence[Path]) -> None:
        """Write the form of the models for CTranslate2."""
        for folder in folders if has_ctranslate2() else ():
            with converted(folder):
                pass


TASK = Translation()
