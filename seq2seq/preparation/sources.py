"""Open the corpora and the pre-trained tokenizer of a recipe."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seq2seq.config import Config, CorpusConfig
from seq2seq.data.sentencepiece_file import read_model_type
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.errors import UserError, shown
from seq2seq.preparation.cleaning import require_languages
from seq2seq.preparation.corpora import Corpus, LabelledFile, open_corpus, open_labelled

logger = logging.getLogger(__name__)

HEADER_WORDS = {
    "source", "target", "src", "tgt", "trg", "text", "label", "sentence", "sentence1", "sentence2",
    "input", "output", "id", "score", "translation", "reference", "english", "german", "french",
    "spanish", "italian",
}  # fmt: skip
"""What a column is called, in lower case, besides the codes of its language."""


@dataclass(frozen=True)
class Source:
    """A corpus and the split that it belongs to."""

    split: str
    tag: str | None
    corpus: Corpus


def open_sources(config: Config, *, labelled: bool) -> list[Source]:
    """Open the corpora of a recipe, training corpora first.

    labelled: they have texts and labels. Raises UserError for a missing or unsuitable file.
    """
    data = config.pairs
    named: list[tuple[str, CorpusConfig]] = [("train", corpus) for corpus in data.train]
    named += [("dev", data.dev)] if data.dev else []
    named += [("test", data.test)] if data.test else []

    def opened(corpus: CorpusConfig, key: str) -> Corpus:
        if labelled:
            return open_labelled(corpus, key, data.source or "text", data.target or "label")
        return open_corpus(corpus, data.source, data.target, key)

    if data.clean.languages:
        require_languages(data.source, data.target)
    return [Source(split, each.tag, opened(each, f"data.{split}")) for split, each in named]


def tags_of(sources: Iterable[Source]) -> list[str]:
    """Return the distinct tags of the corpora."""
    return sorted({source.tag for source in sources if source.tag})


def warn_of_header(corpus: Corpus, languages: Collection[str]) -> None:
    """Warn if the first line of a file seems to name its columns.

    languages: codes of the languages, such as `en`.
    """
    names = HEADER_WORDS | {language.lower() for language in languages}
    pair = next(iter(corpus), ()) if corpus.files else ()
    if pair and all(side.strip(' \ufeff"#').lower() in names for side in pair):
        columns = pair[::-1] if isinstance(corpus, LabelledFile) else pair
        logger.warning(
            "%s: the first line, %s, looks like a header; it is read as an example like the "
            "others: remove it if it is one", corpus, shown("\t".join(columns)),
        )  # fmt: skip


def pretrained_tokenizer(config: Config, tags: Sequence[str]) -> Tokenizer | None:
    """Read `tokenizer.models`, if the recipe names any; tags: symbols that they must have."""
    models = [Path(path) for path in config.tokenizer.models]
    if not models:
        return None
    tokenizer = Tokenizer.from_files(models)
    if isinstance(tokenizer.source, Alphabet):
        raise UserError(f"{models[0]} is the alphabet of a language model: name SentencePiece")
    for model in models if config.tokenizer.bpe_dropout else []:
        if (kind := read_model_type(model.read_bytes())) != "bpe":
            raise UserError(
                f"tokenizer.bpe_dropout is for BPE, and {model} is a {kind} model, which has no "
                "merges to drop; set tokenizer.bpe_dropout=0"
            )
    for tag in tags:
        if not tokenizer.source.knows(tag):
            raise UserError(
                f"data.train: tag={tag!r} is not a symbol of {models[0]}: train that model with it "
                "as user_defined_symbols"
            )
    return tokenizer
