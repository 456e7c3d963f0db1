"""The systems that `seq2seq score` compares: files of translations, or runs that translate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from seq2seq.config import DecodingConfig
from seq2seq.data.lines import read_file
from seq2seq.data.prepared import PreparedData, checksum_of
from seq2seq.data.streams import process_shared
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError, shared_errors
from seq2seq.evaluation.metrics import DEFAULT_TOKENIZER, require_aligned
from seq2seq.evaluation.test_sets import given_pairs, split_of_run, tag_of
from seq2seq.model.saved import describe_model, find_model, load_tokenizer
from seq2seq.processes import Processes
from seq2seq.training.records import data_of, read_metrics, tokens_until

Texts = tuple[list[str], list[list[str]]]
"""Source sentences, and one or more lists of references."""
SEARCH_KEYS = ("beam", "patience", "length_penalty", "penalty_form")
"""Keys of the section `decoding` that always describe a search; others if they are changed."""
NO_SEARCH_KEYS = ("precision", "batch_tokens", "validation_beam")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class System:
    """Translations of a test set, and what made them."""

    name: str
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    """Updates, target tokens, training data (a checksum) and search of a run."""


@dataclass(frozen=True)
class TestSet:
    """One or more lists of references, and the source sentences, if they are known."""

    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    is_tagged: bool = False
    """Whether the sources have the tags of a run's data."""
    tokenize: str = DEFAULT_TOKENIZER
    """sacreBLEU's tokenizer, as the recipes of the runs say."""
    lowercase: bool = False

    __test__ = False  # pytest takes it for a test


class Run:
    """A run or model directory that translates, opened without its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self._checksum = describe_model(find_model(path))
        if not self.config.translates:
            raise UserError(
                f"{path} does not translate: its task is {self.config.task}; compare such runs by "
                "`seq2seq evaluate` of each, and by `seq2seq report` of both"
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return load_tokenizer(find_model(self.path), self._checksum)

    def prepared(self, split: str) -> PreparedData:
        """Return the data that the run was trained with."""
        return split_of_run(self.config, self.path, split, self.tokenizer)

    def translate(self, name: str, test_set: TestSet, processes: Processes) -> System:
        """Translate with the recipe's search, as `evaluate` does."""
        tag = None if test_set.is_tagged else tag_of(self.config)
        translator = Translator.load(self.path, device=processes.device, tag=tag)
        if processes.is_main:
            logger.info("%s translates %d sentences", self.path, len(test_set.sources))
        lines = process_shared(translator.translate, test_set.sources, processes)
        facts: dict[str, Any] = {}
        steps, tokens = tokens_until(read_metrics(self.path))
        if len(steps) > 1:
            facts |= {"updates": steps[-1], "target tokens": round(tokens[-1])}
        if trained_with := data_of(self.path):  # not a model directory
            facts["training data"] = checksum_of(trained_with, "train")[:12]
        search = describe_search(translator.decoding, translator.engines.precision)
        return System(name, lines, facts | {"search": search})


def describe_search(decoding: DecodingConfig, precision: str) -> str:
    """Return what a search depends on, and other options that are not at their defaults."""
    default = asdict(DecodingConfig())
    shown = [
        f"{key}={value}"
        for key, value in asdict(decoding).items()
        if key in SEARCH_KEYS or (key not in NO_SEARCH_KEYS and value != default[key])
    ]
    return " ".join([*shown, f"precision={precision}"])


@shared_errors()
def load_systems(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    processes: Processes | None = None,
    *,
    split: str = "test",
    data: str | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    source: Path | None = None,
) -> tuple[TestSet, list[System]]:
    """Return the test set and the translations of each system, a file or a run.

    The test set is the reference files, or `data` (`test_sets.given_files`), or the split of the
    first run. processes: needed for runs, whose work they share. tokenize: as the first run's
    recipe says. source: source sentences of reference files. Raises SharedError.
    """
    if len(set(hypotheses)) < len(hypotheses):
        raise UserError("a system is given twice: name different files or runs")
    runs = {path: Run(path) for path in hypotheses if path.is_dir()}
    opened = list(runs.values())
    if references and (runs or data is not None):
        raise UserError(
            "give either reference files or --data PREFIX, whose source sentences runs translate"
        )
    if source and not references:
        raise UserError("--source belongs to files of references; elsewhere sources are known")
    if tokenize is None:
        tokenize = opened[0].config.data.bleu_tokenizer if opened else DEFAULT_TOKENIZER
    files = {path: read_file(path) for path in hypotheses if path not in runs}
    if references:
        lists = [read_file(path) for path in references]
        sources = read_file(source) if source else []
        if source:
            require_aligned(f"lines in {source}", sources, lists)
    elif runs:
        sources, lists = _test_set_of_runs(opened, split, data)
    else:
        raise UserError(
            "no references: name their file before --against, as in `seq2seq score HYP REF "
            "--against HYP2`; of runs no file is needed"
        )
    chosen = TestSet(
        lists,
        sources,
        is_tagged=bool(runs) and data is None,
        tokenize=tokenize,
        lowercase=lowercase,
    )
    for path, lines in files.items():  # before the runs take their time
        require_aligned(f"lines in {path}", lines, lists)
    is_short = len({path.name for path in hypotheses}) == len(hypotheses)
    systems = []
    for path in hypotheses:
        name = path.name if is_short else str(path)
        if path in runs:
            assert processes is not None
            systems.append(runs[path].translate(name, chosen, processes))
        else:
            systems.append(System(name, files[path]))
    return chosen, systems


def _test_set_of_runs(runs: Sequence[Run], split: str, data: str | None) -> Texts:
    """Return the files that `data` names, or the split that all runs have."""
    if data is not None:
        pairs = given_pairs(runs[0].config.pairs, data)
        return [source for source, _ in pairs], [[target for _, target in pairs]]
    sources, references = found = runs[0].prepared(split).store(split).texts()
    for run in runs[1:]:
        if run.prepared(split).store(split).texts() != found:
            raise UserError(
                f"{run.path} and {runs[0].path} have different {split} sets: name one for "
                "both with --data PREFIX"
            )
    return sources, [references]
