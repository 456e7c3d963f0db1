"""From raw corpora to a folder that training maps into memory.

The corpora are read in a stream, and three times: to note what their pairs are, to train the
tokenizer on a bounded sample, and to tokenise what is kept. Several processes share the first
and the last; what they have finished when the command is killed is not done again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from textwrap import shorten
from typing import Any

from seq2seq.config import Config
from seq2seq.data.cleaning import RULES, require_left
from seq2seq.data.corpus import Pair
from seq2seq.data.encode import Encoded, EncodeTask, encode_block, encode_held_out, tagged
from seq2seq.data.prepared import WORK, PreparedData, describe_inputs, find_or_make, fingerprint_of
from seq2seq.data.progress_bar import ProgressBar
from seq2seq.data.selection import Selection, Sources
from seq2seq.data.store import Store
from seq2seq.data.text import prepare_text
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.data.workers import in_order, num_processes
from seq2seq.folders import sync

logger = logging.getLogger(__name__)


def prepare(config: Config) -> PreparedData:
    """Make the recipe's prepared folder, or find the one made before from the same inputs."""
    if config.task == "language_model":
        return prepare_text(config)
    sources = Sources.open(config)
    models = sources.own_tokenizer.checksum if sources.own_tokenizer else None
    fingerprint = fingerprint_of(config, sources.files(), models)
    return find_or_make(config, fingerprint, lambda folder: _write(config, sources, folder))


def drop_table(manifest: dict[str, Any]) -> str:
    """Return how many training pairs each rule dropped, and how many every split holds."""
    splits = manifest["splits"]
    rows = [("read", splits["train"]["read"], "")]
    rows += [
        (f"- {rule}", count, RULES[rule])
        for rule, count in sorted(
            splits["train"]["dropped"].items(), key=lambda item: list(RULES).index(item[0])
        )
    ]
    rows += [(split, splits[split]["pairs"], "") for split in ("train", "dev", "test")
             if split in splits]  # fmt: skip
    if labels := splits["train"].get("labels"):
        listed = ", ".join(f"{label}: {count:,}" for label, count in labels.items())
        rows.append(("labels", len(labels), f"in train {shorten(listed, 200)}"))
    return "\n".join(f"  {name:12} {count:>12,}  {note}".rstrip() for name, count, note in rows)


def _write(config: Config, sources: Sources, folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    work, processes = folder / WORK, num_processes()
    work.mkdir(exist_ok=True)
    selection = Selection.scan(config, sources, work, processes)
    place = work / f"tokenizer-{selection.digest}"  # another text's is not taken for it
    tokenizer = _find_or_make_tokenizer(config, selection, place)
    splits: dict[str, Any] = {}
    for split, (options, corpus) in sources.held_out.items():
        pairs = ((tagged(options.tag, source), target) for source, target in corpus)
        splits[split] = _write_held_out(folder, split, pairs, tokenizer)
    splits |= _write_train(config, selection, folder, tokenizer, place, processes)
    if config.task == "classification":
        store = Store([folder / file for file in splits["train"]["files"]])
        splits["train"]["labels"] = _count_labels(store, tokenizer)
    inputs = describe_inputs(sources.files()) + selection.inputs
    manifest = {"inputs": inputs, "splits": splits}
    logger.info(drop_table(manifest))
    return tokenizer, manifest


def _find_or_make_tokenizer(config: Config, selection: Selection, folder: Path) -> Tokenizer:
    """Return the tokenizer in a folder, which is there whole or not at all."""
    if not folder.exists():
        draft = folder.with_suffix(".tmp")
        draft.mkdir(exist_ok=True)
        _make_tokenizer(config, selection).save(draft)
        sync(*draft.iterdir(), draft)
        draft.rename(folder)
    return Tokenizer.load(folder)


def _count_labels(store: Store, tokenizer: Tokenizer) -> dict[str, int]:
    """Return how many training texts each label has; warn of those that cannot be learned."""
    counts = store.target_counts()
    names = tokenizer.target.decode([[i] for i in range(tokenizer.target.size)])
    labels = {name: counts.get(i, 0) for i, name in enumerate(names)}
    if rare := [name for name, count in labels.items() if count < 2]:
        logger.warning(
            "labels with one training text or none: %s; a header line would be read as one of them",
            shorten(", ".join(map(repr, rare)), 200),
        )
    return labels


def _make_tokenizer(config: Config, selection: Selection) -> Tokenizer:
    own, options, tags = selection.sources.own_tokenizer, config.tokenizer, selection.sources.tags()
    if not own:
        logger.info("training the tokenizer: %s, %d pieces", options.kind, options.vocab_size)
    if config.task == "classification":
        texts = (text for text, _ in selection.sample(options.sample))
        source = own.source if own else train_vocabulary(texts, options, tags)
        return Tokenizer(source, selection.labels)
    if own:
        return own
    if options.shared:
        texts = (text for pair in selection.sample(options.sample) for text in pair)
        vocabulary = train_vocabulary(texts, options, tags)
        return Tokenizer(vocabulary, vocabulary)
    source = train_vocabulary(
        (source for source, _ in selection.sample(options.sample)), options, tags
    )
    target = train_vocabulary(
        (target for _, target in selection.sample(options.sample)), options, []
    )
    return Tokenizer(source, target)


def _write_held_out(
    folder: Path, split: str, pairs: Iterable[Pair], tokenizer: Tokenizer
) -> dict[str, Any]:
    file = f"{split}.arrow"
    return {"files": [file], "pairs": encode_held_out(folder / file, pairs, tokenizer)}


def _write_train(
    config: Config,
    selection: Selection,
    folder: Path,
    tokenizer: Tokenizer,
    place: Path,
    processes: int,
) -> dict[str, Any]:
    """Tokenise what is kept; `place` is the folder with the tokenizer, for other processes."""
    # A classifier reads as much of a text as its context holds.
    max_len = None if config.task == "classification" else config.data.clean.max_len
    corpora = selection.sources.train
    total, per_corpus = Encoded(), [0] * len(corpora)
    held_out: dict[str, dict[int, Pair]] = {
        split: {} for split in sorted(set(selection.held_out.values()))
    }
    numbers: list[int] = []
    sizes: list[int] = []
    files: list[str] = []
    work = folder / WORK

    def tasks() -> Iterator[EncodeTask]:
        for number, block, verdicts in selection.blocks():
            numbers.append(number)
            sizes.append(len(block))
            files.append(f"train-{len(files):05}.arrow")
            yield EncodeTask(
                block,
                verdicts,
                corpora[number][0].tag,
                max_len,
                tokenizer=place,
                checksum=tokenizer.checksum,
                file=folder / files[-1],
                work=work,
            )

    with (
        ProgressBar("tokenising", len(selection.verdicts)) as progress_bar,
        closing(in_order(encode_block, tasks(), processes)) as parts,
    ):
        for i, part in enumerate(parts):
            progress_bar.advance(sizes[i], sizes[i])
            per_corpus[numbers[i]] += part.pairs
            total.add(part)
            for value, source, target in part.held_out:
                held_out[selection.held_out[value]].setdefault(value, (source, target))
    require_left(total.pairs, total.dropped)
    if total.dropped["held_out"] > total.pairs:
        logger.warning(
            "data.dev_size, data.test_size hold out %d pairs, more than the %d left for training",
            total.dropped["held_out"],
            total.pairs,
        )
    splits: dict[str, Any] = {
        split: _write_held_out(folder, split, pairs.values(), tokenizer)
        for split, pairs in held_out.items()
    }
    splits["train"] = {
        "files": files,
        "read": len(selection.verdicts),
        "dropped": dict(total.dropped),
        "pairs": total.pairs,
        "pairs_per_corpus": per_corpus,
        "source_tokens": total.source_tokens,
        "target_tokens": total.target_tokens,
    }
    return splits
