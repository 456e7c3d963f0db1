"""The systems that `seq2seq score` compares, from files or made by runs, and their test set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError, did_you_mean, shared_errors
from seq2seq.evaluation.metrics import DEFAULT_TOKENIZER, require_aligned

if TYPE_CHECKING:
    from seq2seq.evaluation.run_systems import Run
    from seq2seq.processes import Processes

Texts = tuple[list[str], list[list[str]]]
"""Source sentences, and one or more lists of references."""
MUCH = 0.05
"""Relative difference of the numbers of target tokens from which runs are said to differ."""


@dataclass(frozen=True)
class System:
    """Translations of a test set, and what made them."""

    name: str
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    """Of a run: updates, target tokens, training data (a checksum), search."""


@dataclass(frozen=True)
class TestSet:
    """One or more lists of references, and the source sentences, if they are known."""

    references: Sequence[Sequence[str]]
    sources: Sequence[str] = ()
    is_tagged: bool = False
    """Whether the sources have the tags of a run's data."""
    training: Callable[[], Iterable[str]] = tuple
    """Reads the source sentences of the training data of a run."""
    tokenize: str = DEFAULT_TOKENIZER
    """sacreBLEU's tokenizer, as the recipes of the runs say."""
    lowercase: bool = False

    __test__ = False  # pytest takes it for a test


@shared_errors()
def load_systems(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    processes: Processes | None = None,
    *,
    split: str = "test",
    data: str | None = None,
    test_set: tuple[str, str] | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    source: Path | None = None,
) -> tuple[TestSet, list[System]]:
    """Return the test set and the translations of each system, a file or a run.

    The test set is sacreBLEU's `test_set`, a name and a language pair; or `data`
    (`test_sets.given_files`); or the reference files; or the split of the first run. processes:
    needed for runs, whose work they share. tokenize: if not as the recipes say. source: source
    sentences of reference files. Raises SharedError.
    """
    if len(set(hypotheses)) < len(hypotheses):
        raise UserError("a system is given twice: name different files or runs")
    if missing := next((path for path in hypotheses if not path.exists()), None):
        raise UserError(
            f"{missing} is neither a file of translations nor a run; `seq2seq runs` lists the runs"
        )
    runs: dict[Path, Run] = {}
    if folders := [path for path in hypotheses if path.is_dir()]:
        from seq2seq.evaluation.run_systems import Run  # imports torch

        runs = {path: Run(path) for path in folders}
    if [path for path in references if path.is_dir()]:
        raise UserError("references are files; compare with another run by --against RUN")
    if sum([bool(references), data is not None, test_set is not None]) > 1:
        raise UserError("give reference files, --data or --test-set, one of them")
    if references and runs:
        raise UserError(
            f"{next(iter(runs))} is a run, which needs source sentences too: give --data PREFIX "
            "instead of reference files"
        )
    if source and not references:
        raise UserError("--source belongs to files of references; elsewhere sources are known")
    if not references and not runs and test_set is None:
        raise UserError(
            "no references: name their file before --against, as in `seq2seq score HYP REF "
            "--against HYP2`, or --test-set; of runs no file is needed"
        )
    tokenize = tokenize or _tokenizer_of(list(runs.values()))
    files = {path: read_file(path) for path in hypotheses if path not in runs}
    if test_set:
        sources, lists = _sacrebleu_test_set(*test_set, list(runs.values()))
    elif references:
        lists = [read_file(path) for path in references]
        sources = read_file(source) if source else []
        if source:
            require_aligned(f"lines in {source}", sources, lists)
    else:
        sources, lists = _test_set_of_runs(list(runs.values()), split, data)
    chosen = TestSet(
        lists,
        sources,
        is_tagged=bool(runs) and test_set is None and data is None,
        training=next((run.training_sources for run in runs.values()), tuple),
        tokenize=tokenize,
        lowercase=lowercase,
    )
    for path, lines in files.items():  # before the runs take their time
        require_aligned(f"lines in {path}", lines, chosen.references)
    names = [path.name for path in hypotheses]
    short = len(set(names)) == len(names)
    systems = []
    for path in hypotheses:
        name = path.name if short else str(path)
        if path in runs:
            assert processes is not None
            systems.append(runs[path].translate(name, chosen, processes))
        else:
            systems.append(System(name, files[path]))
    return chosen, systems


def _tokenizer_of(runs: Sequence[Run]) -> str:
    """Return sacreBLEU's tokenizer of all runs."""
    found = {run.config.data.bleu_tokenizer for run in runs}
    if len(found) > 1:
        raise UserError(
            f"the runs' BLEU is by {' and '.join(sorted(found))}: choose one of sacreBLEU's "
            "tokenizers with --tokenize"
        )
    return found.pop() if found else DEFAULT_TOKENIZER


def _test_set_of_runs(runs: Sequence[Run], split: str, data: str | None) -> Texts:
    sources, references = found = runs[0].texts(split, data)
    for run in runs[1:] if data is None else ():
        if run.texts(split) != found:
            raise UserError(
                f"{run.path} and {runs[0].path} have different {split} sets: name one for "
                "both with --data PREFIX"
            )
    return sources, [references]


def _sacrebleu_test_set(name: str, languages: str, runs: Sequence[Run]) -> Texts:
    """Return a test set of sacreBLEU, which downloads it the first time."""
    from sacrebleu import utils

    known = utils.get_available_testsets()
    if name not in known:
        near = did_you_mean(name, known)
        raise UserError(f"sacreBLEU has no test set {name}{near} `sacrebleu --list` shows them")
    if runs and not languages:
        languages = f"{runs[0].config.pairs.source}-{runs[0].config.pairs.target}"
    pairs = utils.get_langpairs_for_testset(name)
    if languages not in pairs:
        missing = f"has no language pair {languages}" if languages else "needs a language pair"
        raise UserError(f"{name} {missing}: --test-set {name}:PAIR, of {', '.join(sorted(pairs))}")
    try:
        source = utils.get_source_file(name, languages)
        references = utils.get_reference_files(name, languages)
    except (SystemExit, Exception) as error:  # whatever its download raises
        raise UserError(
            f"sacreBLEU cannot download {name}: {error or 'no network'}; with a copy of the files "
            "give them as HYP REF"
        ) from None
    return read_file(Path(source)), [read_file(Path(path)) for path in references]


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
