"""Translation of sentences: encoder and decoder."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq.config import Config, PairsConfig, check_corpora, require
from seq2seq.errors import UserError
from seq2seq.planning.sizes import TRANSLATION, vocab_size
from seq2seq.task import Evaluator, Planner, Task

if TYPE_CHECKING:
    from seq2seq.data.examples import Pairs
    from seq2seq.data.prepared import PreparedData
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.model.transformer import Transformer
    from seq2seq.planning.corpus import CorpusFacts
    from seq2seq.preparation.corpora import TextPair
    from seq2seq.report.page import Charts

logger = logging.getLogger(__name__)

_SPECIAL_SYMBOL = re.compile(r"<(unk|s|/s|pad|0x[0-9A-F]{2})>")


class PairsPlanner(Planner):
    """Recipes for parallel corpora."""

    unit = "pairs"
    sizes = TRANSLATION
    enough = 20_000
    comments: ClassVar = {
        "tokenizer.vocab_size": "pieces of words; small corpora need fewer",
        "decoding.beam": "1 is more than twice as fast, and one or two BLEU worse",
        "decoding.length_penalty": "higher: longer translations",
    }

    def data(self, files: Mapping[str, Sequence[str]], source: str, target: str) -> dict[str, Any]:
        from seq2seq.planning.corpus import corpora_of

        if not (source and target):
            raise UserError(
                "--source and --target name the languages, as in --source en --target de"
            )
        data: dict[str, Any] = {"source": source, "target": target}
        for split in ("train", "dev", "test"):
            corpora = corpora_of(files[split], source, target, f"--{split}")
            if split == "train":
                data["train"] = corpora
            elif len(corpora) > 1:
                raise UserError(f"--{split}: name one corpus, not {len(corpora)}")
            elif corpora:
                data[split] = corpora[0]
        return data

    def examine(self, data: dict[str, Any]) -> CorpusFacts:
        from seq2seq.planning.corpus import examine_pairs, log_languages, opened

        languages = data["source"], data["target"]
        facts = examine_pairs(opened(data), TASK.defaults.pairs.clean, self.unit, languages)
        logger.info(
            "  words: %.1f in a source and %.1f in a target on average; 99 %% of the pairs have at "
            "most %d and %d", *facts.words, *facts.longest,
        )  # fmt: skip
        log_languages(facts, *languages)
        return facts

    def settings(self, facts: CorpusFacts) -> dict[str, dict[str, Any]]:
        return {
            "training": {"validation_sentences": 200},
            "tokenizer": {"vocab_size": vocab_size(facts.num_kept)},
            "decoding": {"beam": 5, "length_penalty": 1.0},
        }

    def sample_data(
        self, data: PairsConfig, sample: Sequence[TextPair], folder: Path
    ) -> PairsConfig:
        from seq2seq.planning.corpus import write_sample

        return write_sample(data, sample, folder)

    def tokens_per_example(self, data: PreparedData, sample: Sequence[TextPair]) -> float:
        return float(data.store("train").target_lens.mean()) + 1  # the end symbol


class Translation(Task):
    """Pairs of sentences, an encoder-decoder Transformer, and BLEU."""

    defaults = Config()
    unused = ("model.pooling",)
    best_by = ("bleu", "nll")
    unit = "pairs"
    use = "translate {run} < FILE"
    pipeline_tag = "translation"
    planner = PairsPlanner()
    translates = True

    def check(self, config: Config) -> None:
        data, model = config.pairs, config.model
        for key, language in [("data.source", data.source), ("data.target", data.target)]:
            require(bool(language.strip()), f"{key} is empty: name the language, such as {key}=en")
        check_corpora(config)
        max_len = data.clean.max_len
        require(
            model.positions != "learned" or (max_len is not None and max_len < model.context),
            f"model.positions=learned has model.context={model.context} positions, so "
            f"data.clean.max_len={max_len} must be below that",
        )
        require(
            model.positions == "learned" or model.context == self.defaults.model.context,
            f"model.context={model.context} has no effect for task=translation with "
            f"model.positions={model.positions}: leave it out",
        )
        for corpus in data.corpora:
            if corpus.tag is not None:
                _check_tag(corpus.tag)

    def prepare(self, config: Config, split: str | None = None) -> PreparedData:
        from seq2seq.preparation.formats import SentencePairs
        from seq2seq.preparation.prepare import prepare_pairs

        return prepare_pairs(config, SentencePairs(config.pairs), split)

    def encode(
        self, config: Config, tokenizer: Tokenizer, data: str, folder: Path
    ) -> dict[str, Any]:
        from seq2seq.evaluation.test_sets import encode_given_pairs, tag_of
        from seq2seq.preparation.formats import SentencePairs

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
        from seq2seq.evaluation.evaluators import TranslationEvaluator, with_initial_set

        return with_initial_set(TranslationEvaluator(config, data, **options))

    def samples(
        self, charts: Charts, run: Path, name: str, device: str, sentence: str | None
    ) -> list[str]:
        from seq2seq.report.samples import translation_section

        return translation_section(charts, run, name, device, sentence)

    def finish(self, folders: Sequence[Path]) -> None:
        from seq2seq.model.converted import converted, has_ctranslate2

        for folder in folders if has_ctranslate2() else ():
            with converted(folder):
                pass

    def languages(self, config: Config) -> list[str]:
        languages = [config.pairs.source, config.pairs.target]
        return languages if all(languages) else []


def _check_tag(tag: str) -> None:
    require(
        bool(tag) and not any(c.isspace() or c == "\u2581" for c in tag),
        f"data: tag={tag!r} must be one symbol without spaces, such as <news>",
    )
    require(
        not _SPECIAL_SYMBOL.fullmatch(tag),
        f"data: tag={tag} is a special symbol of the tokenizer; choose another name",
    )


TASK = Translation()
