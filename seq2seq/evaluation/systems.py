"""Test sets, and the systems that `seq2seq score` compares on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from seq2seq.config import Config, CorpusConfig, DecodingConfig, Direction, PairsConfig, with_paths
from seq2seq.data.lines import map_sharded, read_file
from seq2seq.data.store import PreparedData, Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import (
    DEFAULT_TOKENIZER,
    NAMES,
    bleu_tokenizer,
    make_metric,
    tokenizer_of,
)
from seq2seq.formats.model_directory import describe_model, find_model
from seq2seq.preparation.corpora import TextPair, open_corpus
from seq2seq.preparation.folder import find_prepared
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes
from seq2seq.training.records import current_path, last_start

SEARCH_KEYS = ("beam", "patience", "length_penalty", "penalty_form")
"""Keys of the section `decoding` that are always shown. Other keys are shown if changed."""
NO_SEARCH_KEYS = ("precision", "batch_tokens", "validation_beam")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class System:
    """Translations of a test set, and the search settings if a run made them."""

    name: str
    lines: Sequence[str]
    search: str = ""


@dataclass(frozen=True)
class TestSet:
    """One or more lists of references, and the source sentences if a run's data name them."""

    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    tokenize: str = DEFAULT_TOKENIZER
    """sacreBLEU's tokenizer for BLEU."""
    lowercase: bool = False

    __test__ = False  # not a pytest class

    def metric(self, key: str) -> Any:
        """Return a metric of sacreBLEU with the options of this test set."""
        return make_metric(key, tokenize=self.tokenize, lowercase=self.lowercase)


def load_systems(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    processes: Processes,
    *,
    split: str = "test",
    data: str | None = None,
    to: str = "",
    source: str = "",
    tokenize: str | None = None,
    lowercase: bool = False,
) -> dict[Direction | None, tuple[TestSet, list[System]]]:
    """Return the test set and the translations of all systems, by direction (None: files alone).

    hypotheses: files or runs. The references come from `references`, from the files named by `data`
    or from a split of the first run. processes: they share the translation. to, source: only
    directions with these languages. tokenize: by default the tokenizer of the first run's recipe,
    or of the language that is the suffix of the references.
    """
    runs = {path: _config_of(path) for path in hypotheses if path.is_dir()}
    if references and (runs or data is not None):
        raise UserError(
            "give either reference files or --data PREFIX (runs translate its source sentences)"
        )
    files = {path: read_file(path) for path in hypotheses if path not in runs}
    test_sets: dict[Direction | None, TestSet] = {}
    if references:
        lists, language = [read_file(path) for path in references], references[0].suffix[1:]
        test_sets[None] = TestSet(lists, (), tokenize or tokenizer_of(language), lowercase)
    elif runs:
        first = next(iter(runs.values())).pairs
        for direction, (sources, targets) in _texts(runs, split, data, to, source).items():
            tokenizer = tokenize or bleu_tokenizer(first, direction.target)
            test_sets[direction] = TestSet([targets], sources, tokenizer, lowercase)
    else:
        raise UserError(
            "no references: name the file before --against, as in `seq2seq score HYP REF "
            "--against HYP2`; runs need no file"
        )
    if files and len(test_sets) > 1:
        names = ", ".join(map(str, test_sets))
        raise UserError(f"a file has one direction of {names}: name it with --from and --to")
    for path, lines in files.items():  # fail before the runs translate
        for texts in next(iter(test_sets.values())).references:
            if len(texts) != len(lines):
                raise UserError(
                    f"{len(lines)} lines in {path} but {len(texts)} references: they must be "
                    "aligned line by line"
                )
        if not lines:
            raise UserError("no lines to score: the files are empty")
    is_short = len({path.name for path in hypotheses}) == len(hypotheses)
    systems: dict[Direction | None, list[System]] = {direction: [] for direction in test_sets}
    for path in hypotheses:
        name = path.name if is_short else str(path)
        if path in files:
            [of_direction] = systems.values()
            of_direction.append(System(name, files[path]))
            continue
        found = _translated(path, runs[path], split, test_sets, processes)
        for direction, translations, search in found:
            systems[direction].append(System(name, translations, search))
    return {key: (test_set, systems[key]) for key, test_set in test_sets.items()}


def _translated(
    run: Path,
    config: Config,
    split: str,
    test_sets: Mapping[Direction | None, TestSet],
    processes: Processes,
) -> Iterator[tuple[Direction, Sequence[str], str]]:
    """Yield direction, translations and search settings of each test set.

    The search uses the settings of the recipe, as in `evaluate`.
    """
    load = cache(lambda tag: Translator.load(run, device=processes.device, tag=tag))
    for direction, test_set in test_sets.items():
        assert direction  # of a run
        only, *others = config.pairs.directions
        to, source = (direction if others else only)[::-1]
        tag = config.pairs.tag(split, Direction(source, to))
        warn_of_tags(config, tag)
        translator = load(tag)
        if processes.is_main:
            name = f"{run} ({direction})" if len(test_sets) > 1 else run
            logger.info("translating %s sentences with %s", f"{len(test_set.sources):,}", name)
        translate = partial(translator.translate, to=to, source=source)
        lines = map_sharded(translate, test_set.sources, processes)
        yield direction, lines, describe_search(translator.decoding, translator.engines.precision)


def _config_of(run: Path) -> Config:
    config, _ = describe_model(find_model(run))
    if not config.translates:
        raise UserError(
            f"{run} does not translate: its task is {config.task}; compare such runs with "
            "`seq2seq evaluate RUN` or `seq2seq report RUN RUN`"
        )
    return config


def _texts(
    runs: Mapping[Path, Config], split: str, data: str | None, to: str, source: str
) -> dict[Direction, tuple[list[str], list[str]]]:
    """Return sources and references by direction.

    They come from the files named by `data`, or from the split of the runs: the sets that all of
    them have. Runs of one direction may have different names for its languages.
    """
    if data is not None:
        first_config = next(iter(runs.values())).pairs
        direction = direction_of(first_config, to, source)
        sources, targets = zip(*read_pairs(first_config, data, direction), strict=True)
        return {direction: (list(sources), list(targets))}
    found = []
    for run, config in runs.items():
        prepared = split_of_run(config, run, split, Tokenizer.load(find_model(run)))
        sets = sets_of(prepared, split, to, source)
        found.append({direction: store.texts() for direction, store in sets.items()})
    first, *others = found
    others = [x if len(x) > 1 else dict.fromkeys(first, *x.values()) for x in others]
    texts = {key: value for key, value in first.items() if all(x.get(key) == value for x in others)}
    if not texts:
        raise UserError(f"the runs have different {split} sets: name one with --data PREFIX")
    return texts


def sets_of(
    data: PreparedData, split: str, to: str = "", source: str = ""
) -> dict[Direction, Store]:
    """Return the sets of a split, only those with a target and a source language if given."""
    sets = data.sets(split)
    chosen = {direction: store for direction, store in sets.items() if direction.fits(to, source)}
    if not chosen:
        wanted = f"{source or 'any language'} to {to or 'any language'}"
        raise UserError(f"no {split} set from {wanted}, only {', '.join(map(str, sets))}")
    return chosen


def direction_of(config: PairsConfig, to: str, source: str) -> Direction:
    """Return the direction of `--data`. Raises UserError if a model has several that fit."""
    if to and source:
        return Direction(source, to)
    fitting = [direction for direction in config.directions if direction.fits(to, source)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(map(str, config.directions))
    raise UserError(f"--data has one direction of {names}: name it with --from and --to")


def read_line_scores(
    metrics: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[str]]]:
    """Return the scores of all lines of all systems, as text, by metric name.

    metrics: name of each metric, followed by a file for each system with one number per line.
    """
    scores = {}
    for name, *files in metrics:
        if name.lower() in NAMES:
            raise UserError(f"--line-scores {name} is a sacreBLEU metric: use another name")
        if len(files) != len(systems):
            raise UserError(
                f"--line-scores {name} needs one file per system: {len(systems)} files, not "
                f"{len(files)}"
            )
        scores[name] = [read_file(Path(file)) for file in files]
        for file, numbers, system in zip(files, scores[name], systems, strict=True):
            try:
                count = len(list(map(float, numbers)))
            except ValueError:
                count = 0
            if count != len(system.lines):
                raise UserError(
                    f"{system.name} has {len(system.lines):,} lines, so {file} must have as many, "
                    "with a number on each line"
                )
    return scores


def split_of_run(config: Config, run: Path, split: str, tokenizer: Tokenizer) -> PreparedData:
    """Return the prepared data that a run was trained with. The corpora may be gone.

    If the prepared data are gone, they are prepared again. Raises UserError if they have changed.
    """
    if not any(corpus.path or corpus.source or corpus.dataset for corpus in config.data.corpora):
        raise UserError(f"{run} has no record of its training data: name a test set with --data")
    trained_with = last_start(run).get("data", {})  # {} of a model directory
    config = with_paths(config, partial(current_path, run=run))
    folder = find_prepared(Path(config.data.store), trained_with.get("fingerprint", ""))
    data = PreparedData.load(folder, split) if folder else prepare(config)
    recorded = replace(data, manifest=trained_with)
    splits = trained_with.get("splits", {})
    same_split = split not in splits or data.checksum(split) == recorded.checksum(split)
    if data.tokenizer.checksum != tokenizer.checksum or not same_split:
        raise UserError(
            f"the {split} set in {data.folder} is not the one that {run} was trained with: the "
            "corpora have changed; restore them, or train a new run"
        )
    return data


def read_pairs(config: PairsConfig, data: str, direction: Direction) -> list[TextPair]:
    """Read pairs of source and target, or text and label, without tags."""
    corpus = CorpusConfig(path=data, languages=tuple(direction))
    pairs = list(open_corpus(config, corpus, "--data").read())
    if not pairs:
        raise UserError(f"--data: {data} is empty")
    return pairs


def warn_of_tags(config: Config, tag: str | None) -> None:
    """Log a warning if all training data have tags, but a test set has none."""
    train = config.pairs.train
    if tag is None and train and all(corpus.tag for corpus in train):
        logger.warning("the model was trained with tagged source sentences: these have no tag")


def describe_search(decoding: DecodingConfig, precision: str) -> str:
    """Return the main search settings, and those that differ from their defaults."""
    default = asdict(DecodingConfig())
    settings = [
        f"{key}={value}"
        for key, value in asdict(decoding).items()
        if key in SEARCH_KEYS or (key not in NO_SEARCH_KEYS and value != default[key])
    ]
    return " ".join([*settings, f"precision={precision}"])
