"""The systems that `seq2seq score` compares: translations from files, or made by runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from seq2seq.config import Config
from seq2seq.data.lines import read_file
from seq2seq.data.prepared import PreparedData
from seq2seq.data.streams import process_shared
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.metrics import require_aligned
from seq2seq.evaluation.test_sets import given_files, split_of_run
from seq2seq.evaluation.translation import describe_search
from seq2seq.model.directory import load_tokenizer
from seq2seq.model.inference import choose_precision
from seq2seq.model.saved import describe_model, find_model
from seq2seq.processes import Processes
from seq2seq.training.provenance import last_start

MUCH = 0.05
"""Relative difference of the numbers of target tokens from which runs are said to differ."""

READ_SENTENCES = 10_000
"""Number of training sentences in memory at once."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class System:
    """Translations of a test set, and what made them."""

    name: str
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    """Of a run: updates, target tokens, training data (a checksum), search."""


@dataclass(frozen=True)
class TestSet:
    """Source sentences, if they are known, and one or more lists of references."""

    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    training: Callable[[], Iterator[str]] | None = None
    """Reads the source sentences of the training data of a run."""

    __test__ = False  # pytest takes it for a test


class Run:
    """A run or model directory, opened without its weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Config
        self.config, checksum = describe_model(find_model(path))
        if self.config.task != "translation":
            raise UserError(f"{path} does not translate: its task is {self.config.task}")
        self._checksum = checksum

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return load_tokenizer(find_model(self.path), self._checksum)

    def test_set(self, split: str, data: str | None) -> TestSet:
        """Return a split of the run's data, or other files (`given_files`)."""
        if data is None:
            texts = self.prepared(split).store(split).texts()
        else:
            with TemporaryDirectory() as folder:
                given = given_files(self.config, self.tokenizer, data, Path(folder))
                texts = given.store("test").texts()
        sources, references = texts
        return TestSet([references], sources, self._training_sources)

    def prepared(self, split: str) -> PreparedData:
        """Return the data that the run was trained with."""
        return split_of_run(self.config, self.path, split, self.tokenizer)

    def _training_sources(self) -> Iterator[str]:
        try:
            store = self.prepared("train").store("train")
        except UserError as error:
            logger.warning("nothing is said about the training data: %s", error)
            return
        for start in range(0, len(store), READ_SENTENCES):
            rows, _ = store.pairs(np.arange(start, min(start + READ_SENTENCES, len(store))))
            yield from self.tokenizer.source.decode([row.tolist() for row in rows])

    def translate(self, name: str, sources: Sequence[str], processes: Processes) -> System:
        """Translate with the recipe's search, as `evaluate` does."""
        # As for papers: in single precision on a CPU, and without a second search.
        precision = choose_precision(
            self.config.decoding.precision, torch.device(processes.device), evaluation=True
        )
        translator = Translator.load(
            self.path, device=str(processes.device), precision=precision, retry_repetitions=False
        )
        if processes.is_main:
            logger.info("%s translates %d sentences", self.path, len(sources))
        lines = process_shared(translator.translate, sources, processes)
        search = describe_search(translator.decoding, precision)
        return System(name, lines, self._facts() | {"search": search})

    def _facts(self) -> dict[str, Any]:
        """Return what is known of the training."""
        facts: dict[str, Any] = {}
        steps = [(0, 0.0), *self._updates()]
        if len(steps) > 1:
            facts["updates"] = steps[-1][0]
            spans = zip(pairwise(step for step, _ in steps), steps[1:], strict=True)
            tokens = sum((end - start) * each for (start, end), (_, each) in spans)
            facts["target tokens"] = round(tokens)
        manifest = last_start(self.path).get("data", {})
        sums = manifest.get("sha256", {})
        files = manifest.get("splits", {}).get("train", {}).get("files", [])
        if files:
            facts["training data"] = " ".join(sums.get(file, "")[:12] for file in files)
        return facts

    def _updates(self) -> Iterator[tuple[int, float]]:
        """Yield update and target tokens per update of each log step."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                if record["kind"] == "train":
                    yield int(record["step"]), float(record["tokens_per_update"])
            except (ValueError, KeyError, TypeError):
                continue


def load_systems(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    processes: Processes,
    *,
    split: str = "test",
    data: str | None = None,
    test_set: tuple[str, str] | None = None,
) -> tuple[TestSet, list[System]]:
    """Return the test set and the translations of each system, a file or a run.

    The test set is, in this order: sacreBLEU's `test_set`, a name and a language pair; `data`; the
    reference files; the split of the first run.
    """
    runs = {path: Run(path) for path in hypotheses if path.is_dir()}
    if [path for path in references if path.is_dir()]:
        raise UserError("references are files; compare with another run by --against RUN")
    if sum([bool(references), data is not None, test_set is not None]) > 1:
        raise UserError("give reference files, --data or --test-set, one of them")
    if references and runs:
        raise UserError(
            f"{next(iter(runs))} is a run, which needs source sentences too: give --data PREFIX "
            "instead of reference files"
        )
    if not references and not runs and test_set is None:
        raise UserError("give a file of references, or --test-set; or runs instead of HYP")
    if test_set:
        name, languages = test_set
        if runs and not languages:
            data_config = next(iter(runs.values())).config.data
            languages = f"{data_config.source}-{data_config.target}"
        chosen = _sacrebleu_test_set(name, languages)
    elif references:
        chosen = TestSet([read_file(path) for path in references])
    else:
        chosen = _test_set_of_runs(list(runs.values()), split, data)
    if len(set(hypotheses)) < len(hypotheses):
        raise UserError("a system is given twice: name different files or runs")
    names = [path.name for path in hypotheses]
    short = len(set(names)) == len(names)
    systems = []
    for path in hypotheses:
        name = path.name if short else str(path)
        if path in runs:
            systems.append(runs[path].translate(name, chosen.sources, processes))
        else:
            systems.append(System(name, read_file(path)))
        require_aligned(f"lines in {path}", systems[-1].lines, chosen.references)
    return chosen, systems


def _test_set_of_runs(runs: Sequence[Run], split: str, data: str | None) -> TestSet:
    first, *others = (run.test_set(split, data) for run in runs)
    for run, other in zip(runs[1:], others, strict=True):
        if (other.sources, other.references) != (first.sources, first.references):
            raise UserError(
                f"{run.path} and {runs[0].path} have different {split} sets: name one for both "
                "with --data PREFIX"
            )
    return first


def _sacrebleu_test_set(name: str, languages: str) -> TestSet:
    """Return a test set of sacreBLEU, which downloads it the first time."""
    from sacrebleu import utils

    known = utils.get_available_testsets()
    if name not in known:
        raise UserError(f"sacreBLEU has no test set {name}; it has {', '.join(sorted(known))}")
    pairs = utils.get_langpairs_for_testset(name)
    if languages not in pairs:
        missing = f"has no language pair {languages}" if languages else "needs a language pair"
        raise UserError(f"{name} {missing}: --test-set {name}:PAIR, of {', '.join(sorted(pairs))}")
    try:
        source = utils.get_source_file(name, languages)
        references = utils.get_reference_files(name, languages)
    except (OSError, SystemExit, Exception) as error:  # whatever its download raises
        raise UserError(
            f"sacreBLEU cannot download {name}: {error or 'no network'}; with a copy of the files "
            "give them as HYP REF"
        ) from None
    return TestSet([read_file(Path(path)) for path in references], read_file(Path(source)))


def differences(systems: Sequence[System]) -> list[str]:
    """Return in what runs differ besides their settings, so that scores may not compare these."""
    runs = [system for system in systems if system.facts]
    found = []
    for key in ("updates", "target tokens", "training data", "search"):
        values = [system.facts.get(key) for system in runs]
        if None in values or len(values) < 2 or not _differ(values):
            continue
        shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
        listed = "; ".join(f"{run.name} {text}" for run, text in zip(runs, shown, strict=True))
        found.append(f"the runs differ in {key}: {listed}")
    return found


def _differ(values: Sequence[Any]) -> bool:
    if all(isinstance(value, int) for value in values):
        return max(values) - min(values) > MUCH * max(values)
    return len(set(values)) > 1
