"""Classification of texts: an encoder only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq.config import (
    CleaningConfig,
    Config,
    CorpusConfig,
    ModelConfig,
    PairsConfig,
    TrainingConfig,
    check_corpora,
    require,
)
from seq2seq.errors import SharedError
from seq2seq.planning.sizes import CLASSIFICATION, vocab_size
from seq2seq.task import Evaluator, Planner, Task

if TYPE_CHECKING:
    from seq2seq.data.examples import LabelledTexts
    from seq2seq.data.prepared import PreparedData
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.model.transformer import Classifier
    from seq2seq.planning.corpus import CorpusFacts
    from seq2seq.preparation.corpora import TextPair
    from seq2seq.report.page import Charts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledConfig(PairsConfig):
    """Corpora of labelled texts."""

    source: str = ""
    """The dataset's column of text (`text`)."""
    target: str = ""
    """The dataset's column of labels (`label`)."""
    clean: CleaningConfig = field(
        # Text and label differ in length and language, and long texts are truncated: these three
        # are unused, below.
        default_factory=lambda: CleaningConfig(max_ratio=None, languages=False, max_len=None)
    )


class LabelledPlanner(Planner):
    """Recipes for labelled texts."""

    unit = "texts"
    sizes = CLASSIFICATION
    comments: ClassVar = {
        "tokenizer.vocab_size": "pieces of words; small corpora need fewer",
        "tokenizer.bpe_dropout": "splits words at random",
        "model.context": "tokens that it sees at once",
        "model.activation": "of the feed-forward networks",
        "training.weight_decay": "a classifier overfits soon",
        "training.adam_eps": "rare words are learned slowly",
        "training.best_by": "steadier than the accuracy",
    }

    def data(self, files: Mapping[str, Sequence[str]], source: str, target: str) -> dict[str, Any]:
        from seq2seq.planning.corpus import existing, one_file, require_no_languages

        require_no_languages(source, target, "classification")
        data: dict[str, Any] = {"train": [existing(name, "--train") for name in files["train"]]}
        return data | {
            split: one_file(files[split], f"--{split}") for split in ("dev", "test") if files[split]
        }

    def examine(self, data: dict[str, Any]) -> CorpusFacts:
        from seq2seq.planning.corpus import examine_pairs
        from seq2seq.preparation.formats import LabelledPairs

        pairs = LabelledPairs(LabelledConfig())
        corpora = [pairs.open(CorpusConfig(path=name), "--train") for name in data["train"]]
        facts = examine_pairs(corpora, TASK.defaults.pairs.clean, self.unit, ())
        logger.info("  words: %.1f in a text on average; 99 %% of the texts have at most %d",
                    facts.words[0], facts.longest[0])  # fmt: skip
        return facts

    def settings(self, facts: CorpusFacts) -> dict[str, dict[str, Any]]:
        pieces = min(16_000, 2 * vocab_size(facts.num_kept))
        return {
            "tokenizer": {"vocab_size": pieces, "bpe_dropout": 0.1},
            "model": {"positions": "learned", "activation": "gelu"},
            "training": {"best_by": "nll", "weight_decay": 0.1, "adam_eps": 1e-4},
        }

    def sample_data(
        self, data: PairsConfig, sample: Sequence[TextPair], folder: Path
    ) -> PairsConfig:
        from seq2seq.planning.corpus import write_sample

        return write_sample(data, [(label, text) for text, label in sample], folder)

    def tokens_per_example(self, data: PreparedData, sample: Sequence[TextPair]) -> float:
        return float(data.store("train").source_lens.mean()) + 1  # the start symbol


class Classification(Task):
    """Texts with labels, an encoder-only Transformer, and accuracy."""

    defaults = Config(
        task="classification",
        data=LabelledConfig(),
        model=ModelConfig(decoder_layers=0),
        training=TrainingConfig(best_by="accuracy"),
    )
    unused = (
        "data.clean.max_len", "data.clean.max_ratio", "data.clean.languages", "data.tokenized",
        "tokenizer.shared", "model.tied", "decoding",
    )  # fmt: skip
    best_by = ("accuracy", "nll")
    unit = "texts"
    pipeline_tag = "text-classification"
    planner = LabelledPlanner()
    use = "classify {run} < FILE"

    def check(self, config: Config) -> None:
        data = config.pairs
        check_corpora(config)
        require(not any(corpus.tag for corpus in data.corpora), "data: a tag is for translation")
        for key, column in [("data.source", data.source), ("data.target", data.target)]:
            require(
                not column or any(corpus.dataset for corpus in data.corpora),
                f"{key}={column} has no effect for task=classification with texts from files: "
                "leave it out",
            )

    def prepare(self, config: Config, split: str | None = None) -> PreparedData:
        from seq2seq.preparation.formats import LabelledPairs
        from seq2seq.preparation.prepare import prepare_pairs

        return prepare_pairs(config, LabelledPairs(config.pairs), split)

    def encode(
        self, config: Config, tokenizer: Tokenizer, data: str, folder: Path
    ) -> dict[str, Any]:
        from seq2seq.evaluation.test_sets import encode_given_pairs
        from seq2seq.preparation.formats import LabelledPairs

        return encode_given_pairs(LabelledPairs(config.pairs), tokenizer, data, folder)

    def build_model(self, config: Config, tokenizer: Tokenizer) -> Classifier:
        from seq2seq.model.transformer import Classifier

        return Classifier(config.model, tokenizer.source.size, tokenizer.target.size)

    def examples(self, config: Config, data: PreparedData) -> LabelledTexts:
        from seq2seq.data.examples import LabelledTexts

        return LabelledTexts.of(config, data, context=config.model.context)

    def evaluator(self, config: Config, data: PreparedData, **options: Any) -> Evaluator:
        from seq2seq.evaluation.evaluators import LabelEvaluator, with_initial_set

        return with_initial_set(LabelEvaluator(config, data, **options))

    def samples(
        self, charts: Charts, run: Path, name: str, device: str, sentence: str | None
    ) -> list[str]:
        from seq2seq.report.samples import classifier_section

        return classifier_section(charts, run, name, device)

    def require_initial(self, tokenizer: Tokenizer, folder: Path) -> None:
        from seq2seq.data.tokenizer import Tokenizer

        own, theirs = tokenizer.target.model, Tokenizer.load(folder).target.model
        if own != theirs:
            raise SharedError(
                f"{folder} has the labels {theirs.decode()}, but the training data have "
                f"{own.decode()}: training.init_from needs the same labels"
            )


TASK = Classification()
