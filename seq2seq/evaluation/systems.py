"""What `seq2seq score` compares: translations from files or runs, and numbers for their lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
Column = tuple[str | None, list[float]]
"""The name of a system, if the file has it, and the number of each of its lines."""
KEYS = ("score", "prediction")
"""Fields of a JSON line with its number, besides the metric's name: MetricX writes `prediction`."""
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
    opened = list(runs.values())
    if [path for path in references if path.is_dir()]:
        raise UserError("references are files; compare with another run by --against RUN")
    if sum([bool(references), data is not None, test_set is not None]) > 1:
        raise UserError("give reference files, --data or --test-set, one of them")
    if references and runs:
        raise UserError(
            f"{opened[0].path} is a run, which needs source sentences too: give --data PREFIX "
            "instead of reference files"
        )
    if source and not references:
        raise UserError("--source belongs to files of references; elsewhere sources are known")
    if not references and not runs and test_set is None:
        raise UserError(
            "no references: name their file before --against, as in `seq2seq score HYP REF "
            "--against HYP2`, or --test-set; of runs no file is needed"
        )
    tokenize = tokenize or _tokenizer_of(opened)
    files = {path: read_file(path) for path in hypotheses if path not in runs}
    if test_set:
        sources, lists = _sacrebleu_test_set(*test_set, opened)
    elif references:
        lists = [read_file(path) for path in references]
        sources = read_file(source) if source else []
        if source:
            require_aligned(f"lines in {source}", sources, lists)
    else:
        sources, lists = _test_set_of_runs(opened, split, data)
    chosen = TestSet(
        lists,
        sources,
        is_tagged=bool(runs) and test_set is None and data is None,
        training=opened[0].training_sources if opened else tuple,
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
    found = []
    for key in ("updates", "target tokens", "training data", "search"):
        values = {system.name: system.facts.get(key) for system in systems if system.facts}
        if None not in values.values() and _differ(list(values.values())):
            listed = "; ".join(f"{name} {shown_fact(value)}" for name, value in values.items())
            found.append(f"the runs differ in {key}: {listed}")
    return found


def _differ(values: Sequence[Any]) -> bool:
    if len(set(values)) > 1 and isinstance(values[0], int):
        return max(values) - min(values) > MUCH * max(values)
    return len(set(values)) > 1


def shown_fact(value: object) -> str:
    """Return a fact about a run as text."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def read_line_scores(
    given: Sequence[Sequence[str]], systems: Sequence[System]
) -> dict[str, list[list[float]]]:
    """Return the numbers of each line, of each system, by the names of metrics.

    given: of each metric its name and its files. A file is what `comet-score --to_json` writes,
    JSON lines with a field `name`, `score` or `prediction`, or a table of numbers with a
    tab-separated column for each system; its first line may be a header. Several files: the columns
    of the first come first, unless the files name the systems, as COMET's do.
    """
    found: dict[str, list[list[float]]] = {}
    for name, *files in given:
        if not files:
            raise UserError(f"--line-scores {name}: name a file after the metric's name")
        columns = [column for file in files for column in _read(Path(file), name)]
        listed = ", ".join(files)
        if len(columns) != len(systems):
            raise UserError(
                f"--line-scores {name}: {len(systems)} system(s), but {len(columns)} column(s) in "
                f"{listed}"
            )
        found[name] = _in_order(name, columns, systems, listed)
        for system, column in zip(systems, found[name], strict=True):
            if len(column) != len(system.lines):
                raise UserError(
                    f"--line-scores {name}: {len(system.lines)} lines, but {len(column)} numbers "
                    f"in {listed}"
                )
    return found


def _in_order(
    name: str, columns: Sequence[Column], systems: Sequence[System], listed: str
) -> list[list[float]]:
    """Return the numbers of each system, which a file may name; else they are in order."""
    named = {Path(key).name: numbers for key, numbers in columns if key is not None}
    if not named:
        return [numbers for _, numbers in columns]
    own = [Path(system.name).name for system in systems]
    if len(set(own)) < len(own) or {*named} != {*own}:
        raise UserError(
            f"--line-scores {name}: {listed} is about {', '.join(named)}, but the systems are "
            f"{', '.join(own)}: score files of these names, or give columns of numbers"
        )
    return [named[each] for each in own]


def _read(path: Path, name: str) -> list[Column]:
    lines = [line for line in read_file(path) if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty")
    try:
        is_json = lines[0].lstrip().startswith("{")
        values = _from_json(lines, name) if is_json else _from_table(lines)
        columns = [(system, list(map(float, column))) for system, column in values]
        if not all(math.isfinite(number) for _, column in columns for number in column):
            raise ValueError("not finite")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path} holds no numbers of {name}: neither what comet-score writes, nor JSON lines "
            f"with a field {name}, {' or '.join(KEYS)}, nor columns of numbers"
        ) from None
    return columns


def _from_json(lines: Sequence[str], name: str) -> list[tuple[str | None, list[Any]]]:
    with suppress(ValueError):  # one object a line
        whole: dict[str, Any] = json.loads("\n".join(lines))
        if any(isinstance(value, list) for value in whole.values()):
            return [(key, [_value(each, name) for each in own]) for key, own in whole.items()]
    return [(None, [_value(json.loads(line), name) for line in lines])]


def _value(fields: dict[str, Any], name: str) -> Any:
    by_name = {key.lower(): value for key, value in fields.items()}
    keys = [key for key in (name.lower(), *KEYS) if key in by_name]
    return by_name[keys[0]]


def _from_table(lines: Sequence[str]) -> list[tuple[str | None, Sequence[Any]]]:
    rows = [line.split("\t") for line in lines]
    try:
        list(map(float, rows[0]))
    except ValueError:  # a header
        del rows[0]
    return [(None, column) for column in zip(*rows, strict=True)]
