"""Evaluation of a trained model on a split or other files, also with typos and other changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from seq2seq.config import Config, TextConfig, with_batch_tokens
from seq2seq.data.augmentation import generators
from seq2seq.data.lines import map_sharded
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Labels
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError, named_output, not_a_number
from seq2seq.evaluation.evaluators import TranslationEvaluator, evaluator_of
from seq2seq.evaluation.metrics import VALIDATION_METRICS, bleu_tokenizer, score
from seq2seq.evaluation.systems import direction_of, read_pairs, split_of_run
from seq2seq.files import output_file
from seq2seq.formats.model_directory import find_model
from seq2seq.formats.weights import load_model
from seq2seq.model.transformer import Transformer
from seq2seq.preparation.prepare import encode_pairs
from seq2seq.preparation.text import encode_text
from seq2seq.processes import Processes
from seq2seq.terminal import aligned
from seq2seq.text.augment import CHANGES, Pair, join
from seq2seq.training.records import direction_rows, metric_name

logger = logging.getLogger(__name__)


def evaluate_run(
    run: Path,
    checkpoint: str | None,
    split: str,
    processes: Processes,
    *,
    data: str | None = None,
    to: str = "",
    source: str = "",
    output: Path | None = None,
    batch_tokens: int | None = None,
    stride: int | None = None,
    with_robustness: bool = False,
) -> dict[str, Any]:
    """Return the metrics of a trained model on a split, and the settings of the evaluation.

    data: files to evaluate on instead of a split (`encode_files`). to, source: evaluate only
    directions with these languages. output: file for the translations. batch_tokens: overrides
    training.micro_batch_tokens and decoding.batch_tokens. stride: see `TextEvaluator`.
    with_robustness: add the table of `robustness`.
    """
    loaded = load_model(find_model(run, checkpoint), processes.device)
    config = with_batch_tokens(loaded.config, batch_tokens)
    if stride and config.task != "language_model":
        raise UserError(f"--stride needs a language model: the task of {run} is {config.task}")
    given = {"-o": output, "--robustness": with_robustness, "--to": to, "--from": source}
    used = [option for option, value in given.items() if value]
    if used and not config.translates:
        raise UserError(f"{used[0]} needs a translation model: the task of {run} is {config.task}")
    options: dict[str, Any] = {"stride": stride} if stride else {}
    options |= {"to": to, "source": source} if config.translates else {}
    with TemporaryDirectory() as folder:
        if data is not None:
            prepared = encode_files(config, loaded.tokenizer, data, Path(folder), to, source)
            split = "test"
        else:
            with processes.main_first():
                prepared = split_of_run(config, run, split, loaded.tokenizer)
        evaluator = evaluator_of(config, prepared, split, processes, **options)
        single = bool(output or with_robustness)
        if isinstance(evaluator, TranslationEvaluator) and len(evaluator.sets) > 1 and single:
            raise UserError(f"{used[0]} is for one direction: name it with --from and --to")
        logger.info("evaluating %s on %s", run, evaluator.description)
        metrics: dict[str, Any] = evaluator(loaded.model)
        metrics |= evaluator.facts
        if single:
            assert isinstance(evaluator, TranslationEvaluator)
            assert isinstance(loaded.model, Transformer)
            [(direction, store)] = evaluator.sets.items()
            if not (translations := evaluator.translations.get(direction, ())):
                raise UserError(not_a_number(str(run)))
            if output and processes.is_main:
                with named_output(output), output_file(output) as stream:
                    stream.writelines(f"{line}\n".encode() for line in translations)
            if with_robustness:
                engines = Engines.of_model(loaded.model, loaded.tokenizer, config)
                tag = config.pairs.tag(split, direction)
                translator = Translator(engines, config.decoding, tag)
                translate = partial(translator.translate, to=direction.target)
                metrics["robustness"] = robustness(
                    partial(map_sharded, translate, processes=processes),
                    list(zip(*store.texts(), strict=True)),
                    tokenize=bleu_tokenizer(config.pairs, direction.target),
                )
    return metrics


def encode_files(
    config: Config, tokenizer: Tokenizer, data: str, folder: Path, to: str = "", source: str = ""
) -> PreparedData:
    """Encode files to a folder as the split `test`. to, source: see `direction_of`.

    data: as `data.test` in a recipe: PREFIX of two files or a .tsv for translation, a file of
    `label<TAB>text` lines for a classifier, a file or folder of text for a language model.
    """
    if isinstance(config.data, TextConfig):
        facts = encode_text(tokenizer, data, folder)
        return PreparedData(folder, tokenizer, {"splits": {"test": facts}})
    direction = direction_of(config.pairs, to, source)
    pairs = read_pairs(config.pairs, data, direction)
    known = tokenizer.target.names if isinstance(tokenizer.target, Labels) else None
    if known and (unknown := {label for _, label in pairs}.difference(known)):
        raise UserError(f"--data: {data} has the label {min(unknown)!r}, unknown to the model")
    tag = config.pairs.tag("test", direction)
    encode_pairs(folder / "test.arrow", pairs, tokenizer, config.pairs, direction, tag=tag)
    facts = {"files": ["test.arrow"], "pairs": len(pairs), "directions": [list(direction)]}
    return PreparedData(folder, tokenizer, {"splits": {"test": facts}})


def changed_pairs(pairs: Sequence[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    """Yield the name of each change, and all pairs after it."""
    yield "clean", list(pairs)
    for name, change in CHANGES.items():
        if name != "copy":  # not something that users type
            random = generators(np.arange(len(pairs)), seed=0, epoch=0)
            yield name, list(map(change, pairs, random))
    yield "join", [join(pairs[i : i + 2]) for i in range(0, len(pairs), 2)]


def robustness(
    translate: Callable[[Sequence[str]], Sequence[str]], pairs: Sequence[Pair], *, tokenize: str
) -> dict[str, dict[str, float]]:
    """Return BLEU and chrF2 of test pairs as they are, and under each change of data.augment.

    Changes of both sides also change the references. `join` puts two lines on one.
    """
    table: dict[str, dict[str, float]] = {}
    for name, changed in changed_pairs(pairs):
        sources, references = zip(*changed, strict=True)
        hypotheses = translate(sources)
        scores = score(hypotheses, [references], tokenize=tokenize, keys=VALIDATION_METRICS)
        table[name] = {metric.key: metric.value for metric in scores}
        table[name]["chrf_lost"] = table["clean"]["chrf"] - table[name]["chrf"]
    return table


def metrics_text(metrics: dict[str, Any]) -> str:
    """Return the result of `evaluate_run` as text, a metric on each line."""
    lines: list[str] = []
    for name, value in metrics.items():
        if "/" in name:  # of a direction: in the table below
            continue
        if name == "directions":
            lines = [f"mean of {len(value)} directions:", *lines]
            lines += ["", *aligned(direction_rows(metrics)), ""]
            if "signature" not in metrics:  # the tokenizers differ
                signatures = {key: facts.get("signature") for key, facts in value.items()}
                lines += [f"{key}: BLEU {text}" for key, text in signatures.items() if text]
        elif name == "robustness":
            rows = [["change", "BLEU", "chrF2", "chrF2 lost"]]
            for change, scores in value.items():
                rows.append([change, *(f"{number:.2f}" for number in scores.values())])
            lines += ["", *aligned(rows)]
        elif isinstance(value, dict):
            rows = [["", *value]]
            rows += [[label, *map(str, counts.values())] for label, counts in value.items()]
            lines += [f"{name} (rows: true labels, columns: predictions)", *aligned(rows)]
        else:
            text = f"{value:.4f}" if isinstance(value, float) else value
            label = metric_name(name)
            if name.endswith("signature"):
                metric = name.removesuffix("signature").removesuffix("_") or "bleu"
                label = f"{metric_name(metric)} signature"
            lines.append(f"{label:20} {text}")
    return "\n".join(lines)
