"""A language model of one text: a decoder only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq.config import (
    Config,
    CorpusConfig,
    ModelConfig,
    TextConfig,
    TokenizerConfig,
    TrainingConfig,
    require,
)
from seq2seq.errors import UserError
from seq2seq.planning.sizes import LANGUAGE_MODEL
from seq2seq.task import Evaluator, Planner, Task

if TYPE_CHECKING:
    from seq2seq.data.examples import ContextWindows
    from seq2seq.data.prepared import PreparedData
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.model.transformer import LanguageModel
    from seq2seq.planning.corpus import CorpusFacts
    from seq2seq.preparation.corpora import TextPair
    from seq2seq.report.page import Charts

logger = logging.getLogger(__name__)


class TextPlanner(Planner):
    """Recipes for a text; its examples are characters."""

    unit = "characters"
    sizes = LANGUAGE_MODEL
    comments: ClassVar = {
        "tokenizer.kind": "a token is a character; also: byte, bpe",
        "model.context": "tokens that it sees at once",
        "model.activation": "of the feed-forward networks",
        "training.label_smoothing": "not used for language models",
    }

    def data(self, files: Mapping[str, Sequence[str]], source: str, target: str) -> dict[str, Any]:
        from seq2seq.planning.corpus import one_file, require_no_languages

        require_no_languages(source, target, "language_model")
        for split in ("dev", "test"):
            if files[split]:
                raise UserError(f"--{split}: parts of a language model's text are held out of it")
        return {"text": one_file(files["train"], "--train")}

    def examine(self, data: dict[str, Any]) -> CorpusFacts:
        from seq2seq.planning.corpus import examine_text

        facts = examine_text(data["text"])
        logger.info("the text has %s characters", f"{facts.num_examples:,}")
        return facts

    def held_out(self, data: dict[str, Any], facts: CorpusFacts) -> dict[str, int]:
        return {}  # shares of the text, by default

    def settings(self, facts: CorpusFacts) -> dict[str, dict[str, Any]]:
        return {
            "tokenizer": {"kind": "char"},
            "model": {"activation": "gelu"},
            "training": {"label_smoothing": 0.0},
        }

    def sample_data(self, data: TextConfig, sample: Sequence[TextPair], folder: Path) -> TextConfig:
        path = folder / "sample.txt"
        path.write_text("".join(text for text, _ in sample), encoding="utf-8")
        return replace(data, text=CorpusConfig(path=str(path)))

    def tokens_per_example(self, data: PreparedData, sample: Sequence[TextPair]) -> float:
        return len(data.tokens("train")) / max(1, sum(len(text) for text, _ in sample))


class LanguageModelling(Task):
    """Context windows of a text, a decoder-only Transformer, and bits per character."""

    defaults = Config(
        task="language_model",
        data=TextConfig(),
        model=ModelConfig(encoder_layers=0),
        training=TrainingConfig(best_by="nll"),
    )
    unused = ("tokenizer.shared", "model.pooling", "decoding")
    best_by = ("nll",)
    unit = "tokens"
    pipeline_tag = "text-generation"
    planner = TextPlanner()
    use = "generate {run} --prompt TEXT"
    evaluation_options = ("stride", "random_windows")

    def check(self, config: Config) -> None:
        data, tokenizer = config.text, config.tokenizer
        require(data.text is not None, "data.text is empty: name a text, such as data.text=my.txt")
        dev, test = data.dev_share, data.test_share
        require(
            0 < dev < 1 and 0 <= test < 1 and dev + test < 1,
            f"data.dev_share={dev} and data.test_share={test} must be fractions that sum to less "
            "than 1, the first above 0",
        )
        text = data.text
        require(
            not (text and (text.tag or text.weight != 1)),
            "data.text: tag and weight are for corpora",
        )
        require(
            not (text and text.path and data.source),
            f"data.source={data.source} has no effect with a text from files: leave it out",
        )
        require(
            not tokenizer.bpe_dropout,
            "tokenizer.bpe_dropout is not for language models, whose text is tokenised only once",
        )
        if tokenizer.kind != "bpe":
            for key in ("vocab_size", "sample"):
                value = getattr(tokenizer, key)
                require(
                    value == getattr(TokenizerConfig(), key),
                    f"tokenizer.{key}={value} has no effect for task=language_model with "
                    f"tokenizer.kind={tokenizer.kind}: leave it out",
                )

    def prepare(self, config: Config, split: str | None = None) -> PreparedData:
        from seq2seq.preparation.text import prepare_text

        return prepare_text(config, split)

    def encode(
        self, config: Config, tokenizer: Tokenizer, data: str, folder: Path
    ) -> dict[str, Any]:
        from seq2seq.preparation.text import encode_text

        return encode_text(tokenizer, data, folder)

    def build_model(self, config: Config, tokenizer: Tokenizer) -> LanguageModel:
        from seq2seq.model.transformer import LanguageModel

        return LanguageModel(config.model, tokenizer.target.size)

    def examples(self, config: Config, data: PreparedData) -> ContextWindows:
        from seq2seq.data.examples import ContextWindows

        return ContextWindows(
            tokens=data.tokens("train"),
            tokenizer=data.tokenizer,
            context=config.model.context,
            checksum=data.checksum("train"),
        )

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        from seq2seq.evaluation.evaluators import TextEvaluator, with_initial_set

        return with_initial_set(TextEvaluator(config, data, **options))

    def samples(
        self, charts: Charts, run: Path, name: str, device: str, sentence: str | None
    ) -> list[str]:
        from seq2seq.report.samples import language_model_section

        return language_model_section(charts, run, name, device)


TASK = LanguageModelling()
