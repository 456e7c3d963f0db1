"""Prepare the corpora of a recipe: tokenizer and memory-mapped token ids.

Stages: read the corpora once into chunks of text, select pairs, train the tokenizer on a sample,
encode all pairs. After an interruption, finished chunks and a finished tokenizer are used again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from seq2seq.config import Config, Direction, LabelledConfig, PairsConfig, TextConfig
from seq2seq.data.extension import extended, lacking_pieces
from seq2seq.data.store import PreparedData, write_store
from seq2seq.data.tokenizer import Tokenizer, language_piece
from seq2seq.data.vocabulary import Labels, SentencePieces, train_vocabulary
from seq2seq.errors import UserError
from seq2seq.files import write_file
from seq2seq.preparation.chunks import Chunk, Selection, read_chunks, sha256_of_pairs, write_chunks
from seq2seq.preparation.cleaning import CODES, KEPT, RULES, require_languages, require_pairs
from seq2seq.preparation.corpora import Corpus, TextPair, open_corpora
from seq2seq.preparation.folder import WORK, finish_stage, load_or_prepare
from seq2seq.preparation.text import prepare_text
from seq2seq.terminal import ProgressBar
from seq2seq.text.language import unknown_language
from seq2seq.text.pipeline import training_pair
from seq2seq.text.protect import PLACEHOLDERS, compile_patterns

SPLITS = "train", "dev", "test"
BATCH_SIZE = 2_000
"""Number of pairs encoded at once."""
MAX_LABELS = 1000
"""Maximum number of labels of a classifier. More are considered a mistake."""

logger = logging.getLogger(__name__)


def prepare(config: Config) -> PreparedData:
    """Return the prepared data of a recipe, reused if already prepared from the same inputs."""
    if isinstance(config.data, TextConfig):
        return prepare_text(config)
    data = config.pairs
    if data.clean.languages:
        require_languages(*data.languages)
    corpora, pretrained = open_corpora(data), _pretrained(config)
    files = [path for corpus in corpora for path in (*corpus.files, corpus.scores) if path]
    write = partial(_prepare_pairs, config, corpora, pretrained)
    return load_or_prepare(config, list(dict.fromkeys(files)), pretrained, write)


def _tags(data: PairsConfig) -> list[str]:
    return sorted({corpus.tag for corpus in data.corpora if corpus.tag})


def new_languages(data: PairsConfig, tokenizer: Tokenizer) -> list[str]:
    """Return the languages that need a symbol and have none in a pre-trained tokenizer."""
    needed = data.languages if tokenizer.source.language_first else data.targets
    if not tokenizer.languages and len(data.targets) == 1:
        return []
    return [language for language in needed if language not in tokenizer.languages]


def _pretrained(config: Config) -> Tokenizer | None:
    """Load the recipe's pre-trained tokenizer, if any."""
    models = [Path(path) for path in config.tokenizer.models]
    if not models:
        return None
    tokenizer = Tokenizer.from_files(models)
    if not isinstance(tokenizer.source, SentencePieces):
        raise UserError(f"{models[0]} is a language model's alphabet: give a SentencePiece model")
    for model, vocabulary in zip(models, tokenizer.translation_vocabularies, strict=False):
        if config.tokenizer.bpe_dropout and not vocabulary.has_merges():
            raise UserError(f"{model} is not a BPE model: set tokenizer.bpe_dropout=0")
    for tag in _tags(config.pairs):
        if not tokenizer.source.knows(tag):
            raise UserError(
                f"data.train: {tag!r} is not a symbol of {models[0]}: train that model with it "
                "in user_defined_symbols"
            )
    known = tokenizer.languages
    if (missing := new_languages(config.pairs, tokenizer)) and not (
        known and config.tokenizer.new_pieces
    ):
        raise UserError(
            f"data.train: {models[0]} has the languages {unknown_language(missing[0], known)}"
            + ("; tokenizer.new_pieces=1000 adds it" if known else "")
        )
    if config.pairs.protect and not tokenizer.has_placeholders:
        raise UserError(
            f"data.protect needs reserved symbols, which {models[0]} lacks: leave data.protect "
            "out (`translate --protect` works without them)"
        )
    return tokenizer


def _prepare_pairs(
    config: Config, corpora: Sequence[Corpus], pretrained: Tokenizer | None, folder: Path
) -> PreparedData:
    """Fill a folder. Skips stages that an interrupted preparation has finished."""
    data, work = config.pairs, folder / WORK
    finish_stage(work / "corpora", lambda draft: write_chunks(draft, corpora, data))
    all_chunks = read_chunks(work / "corpora", corpora)
    chunks = {
        split: [chunk for chunk in all_chunks if chunk.corpus.split == split]
        for split in (*SPLITS, "exclude")
    }
    labels = find_labels(chunks) if isinstance(data, LabelledConfig) else None
    selection = Selection(chunks["train"])
    if data.clean.duplicates:
        selection.drop_duplicates()
    others = chunks["exclude"]
    if data.clean.overlap:
        others = others + chunks["dev"] + chunks["test"]
    if others:
        selection.drop_overlap(others)
    selection.drop_low_scores(data.clean)
    held_out = selection.hold_out(data)
    require_pairs(len(selection.kept), selection.dropped())
    finish_stage(
        work / "tokenizer",
        lambda draft: _make_tokenizer(config, pretrained, labels, selection).save(draft),
    )
    tokenizer = Tokenizer.load(work / "tokenizer")
    splits: dict[str, Any] = {}
    for split in ("dev", "test"):
        sets = {key: list(selection.pairs(x)) for key, x in held_out.get(split, {}).items()}
        for chunk in chunks[split]:
            sets.setdefault(chunk.corpus.direction, []).extend(chunk.pairs())
        several = len({*data.directions, *sets}) > 1
        for direction, pairs in sets.items():
            name = f"{split}.{direction}".replace("/", "_") if several else split
            tag = data.tag(split, direction)
            encode_pairs(folder / f"{name}.arrow", pairs, tokenizer, data, direction, tag=tag)
            _write_text(folder, name, pairs, data, direction)
            facts = splits.setdefault(split, {"files": [], "pairs": 0, "directions": []})
            facts["files"].append(f"{name}.arrow")
            facts["directions"].append(list(direction))
            facts["pairs"] += len(pairs)
    splits["train"] = _encode_training_pairs(folder, selection, tokenizer, data)
    checksums = {
        corpus.name: sha256_of_pairs(chunk for chunk in all_chunks if chunk.corpus is corpus)
        for corpus in corpora
        if not corpus.files
    }
    logger.info(drop_table(splits))
    return PreparedData(folder, tokenizer, {"splits": splits, "datasets": checksums})


def _make_tokenizer(
    config: Config, pretrained: Tokenizer | None, labels: Labels | None, selection: Selection
) -> Tokenizer:
    options = config.tokenizer
    pattern = compile_patterns(config.pairs.protect, "data.protect")

    def trained(*sides: int) -> SentencePieces:
        sample = selection.sample(options.sample, config.pairs)
        pairs = (training_pair(*pair, pattern, None) for pair in sample)
        targets = config.pairs.targets
        symbols = [*_tags(config.pairs), *map(language_piece, targets if len(targets) > 1 else ())]
        symbols = [*(symbols if 0 in sides else []), *(PLACEHOLDERS if pattern else [])]
        return train_vocabulary((pair[side] for pair in pairs for side in sides), options, symbols)

    if labels:
        return Tokenizer(pretrained.source if pretrained else trained(0), labels)
    if pretrained:
        for language in new_languages(config.pairs, pretrained):
            trained_on = train_vocabulary(
                selection.texts(language), replace(options, vocab_size=options.new_pieces + 260), []
            )
            pieces = lacking_pieces(pretrained.translation_vocabularies[1], trained_on)
            logger.info("  %d new pieces for %s", len(pieces), language)
            pretrained = extended(pretrained, [language], pieces)
        return pretrained
    if not options.shared:
        return Tokenizer(trained(0), trained(1))
    vocabulary = trained(0, 1)
    return Tokenizer(vocabulary, vocabulary)


def _encode_training_pairs(
    folder: Path, selection: Selection, tokenizer: Tokenizer, data: PairsConfig
) -> dict[str, Any]:
    """Encode the kept training pairs. Returns the manifest entry of the split `train`."""
    files: list[str] = []
    pairs_per_corpus = dict.fromkeys((chunk.corpus for chunk in selection.chunks), 0)
    with ProgressBar(len(selection.codes)) as progress_bar:
        for chunk, codes in selection.by_chunk():
            indices = np.flatnonzero(codes == KEPT)
            pairs = list(chunk.pairs(indices))
            files.append(f"train-{len(files):05}.arrow")
            direction, tag = chunk.corpus.direction, chunk.corpus.tag
            too_long = encode_pairs(
                folder / files[-1], pairs, tokenizer, data, direction, tag=tag, training=True
            )
            codes[indices[too_long]] = CODES["max_len"]
            pairs_per_corpus[chunk.corpus] += len(pairs) - len(too_long)
            progress_bar.advance(len(codes))
            progress_bar.show(f"  encoding: {sum(pairs_per_corpus.values()):,} pairs")
    num_pairs, dropped = sum(pairs_per_corpus.values()), selection.dropped()
    require_pairs(num_pairs, dropped)
    facts: dict[str, Any] = {
        "files": files,
        "read": len(selection.codes),
        "dropped": dropped,
        "pairs": num_pairs,
        "pairs_per_corpus": list(pairs_per_corpus.values()),
    }
    if isinstance(tokenizer.target, Labels):
        facts["labels"] = tokenizer.target.names
    return facts


def encode_pairs(
    file: Path,
    pairs: Sequence[TextPair],
    tokenizer: Tokenizer,
    data: PairsConfig,
    direction: Direction,
    *,
    tag: str | None,
    training: bool = False,
) -> list[int]:
    """Write pairs to a store, as the model reads and writes them. tag: of the corpus.

    Training pairs with more than `data.clean.max_len` tokens on either side are dropped. Returns
    their indices. Of other pairs, the text is stored too.
    """
    pattern = compile_patterns(data.protect, "data.protect")
    max_len = data.clean.max_len if training else None
    prefix = tokenizer.prefix(direction, tag)
    too_long: list[int] = []

    def batches() -> Iterator[Sequence[Sequence[Any]]]:
        for start in range(0, len(pairs), BATCH_SIZE):
            batch = pairs[start : start + BATCH_SIZE]
            texts = zip(*(training_pair(*pair, pattern, prefix) for pair in batch), strict=True)
            vocabularies = tokenizer.source, tokenizer.target
            ids = [x.encode(side) for x, side in zip(vocabularies, texts, strict=True)]
            longest = (max(map(len, sides)) for sides in zip(*ids, strict=True))
            fits = [max_len is None or length <= max_len for length in longest]
            too_long.extend(start + i for i, fit in enumerate(fits) if not fit)
            columns = ids if training else [*ids, *zip(*batch, strict=True)]
            yield [list(compress(column, fits)) for column in columns]

    write_store(file, batches(), with_text=not training)
    return too_long


def _write_text(
    folder: Path, name: str, pairs: Sequence[TextPair], data: PairsConfig, direction: Direction
) -> None:
    """Write a development or test set as text files, for `--data` and other programs."""
    if isinstance(data, LabelledConfig):
        lines = (f"{label}\t{text}\n" for text, label in pairs)
        write_file(folder / f"{name}.tsv", "".join(lines))
        return
    suffixes = direction if direction.source != direction.target else ("source", "target")
    for suffix, texts in zip(suffixes, zip(*pairs, strict=True), strict=True):
        path = folder / f"{name}.{suffix.replace('/', '_')}"
        write_file(path, "".join(f"{text}\n" for text in texts))


def find_labels(chunks: Mapping[str, Sequence[Chunk]]) -> Labels:
    """Return the labels of the training set. Raises UserError for unsuitable labels.

    chunks: texts and labels by split.
    """
    known: set[str] = set()
    for chunk in chunks["train"]:
        known |= chunk.targets()
        if len(known) > MAX_LABELS:
            raise UserError(
                f"data.train: over {MAX_LABELS} different labels, such as "
                f"{max(known, key=len)[:80]!r}: lines must be LABEL<TAB>TEXT, in this order"
            )
    listed = shorten(", ".join(sorted(known)), 200)
    if len(known) < 2:
        raise UserError(
            f"data.train: all texts have the label {listed}: at least two labels are needed"
        )
    for split in SPLITS:
        labels = set[str]().union(*(chunk.targets() for chunk in chunks[split]))
        if "" in labels:
            raise UserError(f"data.{split}: a text has no label")
        if unknown := sorted(labels - known):
            raise UserError(
                f"data.{split}: the label {unknown[0]!r} is not in the training data ({listed})"
            )
    return Labels(known)


def drop_table(splits: dict[str, Any]) -> str:
    """Return a table of dropped training pairs by rule and of pairs by split."""
    train = splits["train"]
    rows = [("read", train["read"], "")]
    rows += [(f"- {rule}", count, RULES[rule]) for rule, count in train["dropped"].items()]
    rows += [(name, splits[name]["pairs"], "") for name in SPLITS if name in splits]
    if labels := train.get("labels"):
        rows.append(("labels", len(labels), shorten(", ".join(labels), 80)))
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)
