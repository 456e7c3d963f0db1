"""The commands. Each command passes its arguments to a function of the package.

torch and the rest of the package are imported inside the commands to keep --help fast.
"""

from __future__ import annotations

import argparse
import gc
import glob
import json
import logging
import secrets
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq.errors import UserError, named_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seq2seq.evaluation.rerank import NBest
    from seq2seq.processes import Processes

logger = logging.getLogger(__name__)


def _print(result: object, end: str = "\n") -> None:
    """Print and flush a result; raises UserError if it cannot be written."""
    with named_output("standard output"):
        print(result, end=end, flush=True)


def new(options: argparse.Namespace) -> None:
    """Write a recipe for a corpus and this machine."""
    from seq2seq.planning.new import new_recipe
    from seq2seq.planning.plan import num_gpus

    recipe = new_recipe(
        options.name,
        {"train": options.train, "dev": options.dev, "test": options.test},
        pairs=options.pairs,
        task=options.task,
        source=options.source,
        target=options.target,
        minutes=options.minutes,
        run=options.run,
    )
    _print(recipe)
    train = "scripts/train" if num_gpus() > 1 else "seq2seq train"
    logger.info("next:\n  %s %s", train, recipe)


def prepare(options: argparse.Namespace) -> None:
    """Train the tokenizer and encode the data of a recipe."""
    from seq2seq.formats.model_directory import load_config
    from seq2seq.preparation.prepare import prepare

    config = load_config(options.recipe, options.overrides)
    _print(prepare(config).folder)


def train(options: argparse.Namespace) -> None:
    """Train the model of a recipe, or resume its run."""
    from seq2seq.config import to_yaml
    from seq2seq.formats.model_directory import load_config

    config = load_config(options.recipe, options.overrides, options.run)
    if options.print_config:
        _print(to_yaml(config), end="")
        return
    from seq2seq.evaluation.evaluators import validator
    from seq2seq.training.run import train

    train(config, options.run or Path("runs", config.name), validator)


def translate(options: argparse.Namespace) -> None:
    """Translate lines of text."""
    from seq2seq.config import DecodingConfig
    from seq2seq.data.lines import count_lines
    from seq2seq.decoding.files import LineTranslator, RequestReader, translate_file
    from seq2seq.decoding.terms import Glossary
    from seq2seq.decoding.translation import Options
    from seq2seq.decoding.translator import Translator

    processes, process_files = _on_files(options)
    values = vars(options)
    decoding = {key.name: values.get(key.name) for key in fields(DecodingConfig)}
    reader = RequestReader(
        json_lines=options.json_input,
        prefixes=options.prefixes,
        constraints=options.constraints,
        references=options.score_target,
        to=options.to,
        source=options.source,
    )
    glossary = Glossary.load(options.glossary) if options.glossary else None
    translator = Translator.load(
        options.run,
        others=options.others,
        device=processes.device,
        checkpoint=options.checkpoint,
        tag=options.tag,
        protect=options.protect or None,
        **decoding,
    )
    gc.freeze()  # the collector would visit all objects of the packages again and again,
    gc.set_threshold(100_000)  # and finds little: translations are freed by their reference counts
    if options.to or not options.json_input:
        translator.encoder(options.to, options.source)  # fail before lines are read
    if document := _document_format(options):
        if processes.is_main:  # more processes would not be faster
            [path] = options.files
            translate = partial(
                translator.translate_document,
                format=document,
                glossary=glossary,
                to=options.to,
                source=options.source,
            )
            translate_file(translate, path, options.output, document)
        processes.exit()
        return
    terms = bool(glossary or options.constraints)
    translator.engines.engine_for(translator.decoding, terms=terms)  # fail before lines are read
    search = options.score_target is None
    translation_options = Options(
        options.nbest,
        scores=options.scores or options.json or options.nbest > 1 or not search,
        tokens=options.tokens,
        alignment=options.alignment,
        search=search,
        glossary=glossary,
    )
    total = count_lines(options.files) if processes.is_main else None
    translate_lines = LineTranslator(
        translator, processes, translation_options, options.json, total
    )
    with translate_lines.bar:
        process_files(translate_lines, read=reader, finish=reader.finish)
    translate_lines.report()
    processes.exit()


def rerank(options: argparse.Namespace) -> None:
    """Rerank n-best lists."""
    from seq2seq.data.lines import write_object
    from seq2seq.evaluation.rerank import Reranker, best_text, read_nbest

    processes, process_files = _on_files(options)
    reranker = Reranker(
        dict(options.weight),
        utility=options.mbr,
        backward=options.backward,
        language_model=options.lm,
        fields=options.field,
        device=processes.device,
    )

    def rerank_lines(lines: Sequence[NBest]) -> list[str]:
        return list(map(best_text if options.text else write_object, reranker(lines)))

    process_files(rerank_lines, read=read_nbest)
    processes.exit()


def generate(options: argparse.Namespace) -> None:
    """Generate text with a language model."""
    from seq2seq.decoding.generation import TextGenerator
    from seq2seq.decoding.rules import Sampling
    from seq2seq.processes import Processes

    processes = Processes.join()
    if processes.is_main:  # more processes would not be faster
        sampling = Sampling(options.temperature, options.top_k, options.top_p)
        generator = TextGenerator.load(
            options.run, checkpoint=options.checkpoint, device=processes.device
        )
        seed = secrets.randbits(32) if options.seed is None else options.seed
        for part in generator.stream(
            options.prompt,
            length=options.length,
            sampling=sampling,
            seed=seed,
            samples=options.samples,
        ):
            _print(part, end="")
    processes.exit()


def classify(options: argparse.Namespace) -> None:
    """Classify lines of text."""
    from seq2seq.decoding.classification import TextClassifier

    processes, process_files = _on_files(options)
    classifier = TextClassifier.load(
        options.run,
        checkpoint=options.checkpoint,
        batch_tokens=options.batch_tokens,
        device=processes.device,
    )
    process_files(classifier.classify_lines)
    processes.exit()


def score(options: argparse.Namespace) -> None:
    """Score translations, and compare systems."""
    from seq2seq.data.lines import require_files
    from seq2seq.evaluation import comparison
    from seq2seq.evaluation.systems import load_systems, read_line_scores
    from seq2seq.processes import Processes

    hypotheses = [options.hypothesis, *options.against]
    files = [Path(name) for _, *names in options.line_scores for name in names]
    require_files(files)  # fail before runs translate
    processes = Processes.join() if any(path.is_dir() for path in hypotheses) else Processes()
    loaded = load_systems(
        hypotheses,
        options.references,
        processes,
        split=options.split,
        data=options.data,
        to=options.to,
        source=options.source,
        tokenize=options.tokenize,
        lowercase=options.lowercase,
    )
    if len(loaded) > 1 and (options.line_scores or options.lines is not None):
        raise UserError("--lines and --line-scores are for one direction: name it with --to")
    if processes.is_main:
        results = {
            str(direction or ""): comparison.compare(
                systems,
                test_set,
                keys=options.metrics,
                line_scores=read_line_scores(options.line_scores, systems),
            )
            for direction, (test_set, systems) in loaded.items()
        }
        result, *others = results.values()
        tree, text = result.to_dict(), result.text()
        if others:
            tree, text = comparison.results_of_directions(results)
        if options.lines is not None:
            [(test_set, systems)] = loaded.values()
            breakdown = comparison.break_down(systems, test_set, options.lines)
            tree |= {"breakdown": breakdown}
            details = comparison.breakdown_text(breakdown, on_terminal=sys.stdout.isatty())
            text = f"{text}\n\n{details}"
        _print(json.dumps(tree) if options.json else text)
    processes.exit()


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate a model on a split or on other files."""
    from seq2seq.evaluation.evaluate import evaluate_run, metrics_text
    from seq2seq.processes import Processes

    _require_writable_output(options)
    processes = Processes.join()
    metrics = evaluate_run(
        options.run,
        options.checkpoint,
        options.split,
        processes,
        data=options.data,
        to=options.to,
        source=options.source,
        output=options.output,
        stride=options.stride,
        with_robustness=options.robustness,
        batch_tokens=options.batch_tokens,
    )
    if processes.is_main:
        _print(json.dumps(metrics) if options.json else metrics_text(metrics))
    processes.exit()


def runs(options: argparse.Namespace) -> None:
    """List runs with their status, scores and recipes."""
    from seq2seq.report.runs import find_runs, runs_text, runs_tree

    records = find_runs(*options.folders)
    if options.json:
        _print(json.dumps(runs_tree(records)))
    elif not records:
        logger.warning("no runs in %s", ", ".join(map(str, options.folders)))
    else:
        _print(runs_text(records))


def average(options: argparse.Namespace) -> None:
    """Average the weights of checkpoints of a run."""
    from seq2seq.formats.weights import average_models
    from seq2seq.training.records import require_new_folder
    from seq2seq.training.run_directory import RunDirectory

    require_new_folder(options.output)
    folders = RunDirectory(options.run).models_to_average(options.last, options.best)
    logger.info("averaging %s", ", ".join(folder.name for folder in folders))
    average_models(folders, options.output)
    _print(options.output)


def export(options: argparse.Namespace) -> None:
    """Export a model to the format of another program, or models to a web page."""
    from seq2seq.export import export, export_page

    checkpoint, quantization = options.checkpoint, options.quantization
    if options.to == "browser":
        if options.languages or options.keep_pieces:
            raise UserError("--to browser does not support --languages and --keep-pieces")
        export_page(options.runs, options.output, checkpoint=checkpoint, quantization=quantization)
    elif len(options.runs) > 1:
        raise UserError(f"--to {options.to} takes one RUN, not {len(options.runs)}")
    else:
        export(
            options.runs[0],
            options.output,
            to=options.to,
            checkpoint=checkpoint,
            quantization=quantization,
            languages=options.languages,
            keep_pieces=options.keep_pieces,
        )
    _print(options.output)


def report(options: argparse.Namespace) -> None:
    """Write an HTML page about runs."""
    from seq2seq.processes import Processes
    from seq2seq.report.report import write_report

    _require_writable_output(options)
    processes = Processes.join()
    if processes.is_main:  # more processes would not be faster
        write_report(options.runs, options.output, device=processes.device, quick=options.quick)
        _print(options.output)
    processes.exit()


def serve(options: argparse.Namespace) -> None:
    """Answer translation requests over HTTP."""
    from seq2seq.errors import require_extra

    for package in ("starlette", "uvicorn", "prometheus-client", "python-multipart"):
        require_extra(package, "seq2seq serve (the extra serve)")
    from seq2seq.serve.app import Server, serve
    from seq2seq.serve.limits import Keys
    from seq2seq.serve.models import Models

    keys = Keys.load(options.keys, options.rate)
    models = Models(options.runs, options.pivot, options.languages)
    server = Server(models, keys, options.max_characters)
    serve(server, options.host, options.port, list(map(str, options.proxy)))


def doctor(options: argparse.Namespace) -> None:
    """Check the installation with a short self-test."""
    from seq2seq.doctor import examine

    logging.getLogger("seq2seq").setLevel(logging.ERROR)
    failed = 0
    for finding in examine():
        _print(f"{finding.level:8} {finding.text}")
        failed += finding.level == "failed"
    if failed:
        raise UserError(f"failed checks: {failed}; the lines marked `failed` say what to do")


def _document_format(options: argparse.Namespace) -> str | None:
    """Return the format of the document to translate, or None for lines of text."""
    from seq2seq.documents.formats import SUFFIXES

    found = (SUFFIXES.get(path.suffix.lower()) for path in options.files)
    named = options.format or next(filter(None, found), "text")
    if named == "text":
        return None
    if len(options.files) != 1:
        raise UserError("give one document at a time (--format text translates lines)")
    names = ["alignment", "scores", "json", "json_input", "tokens", "score_target", "prefixes"]
    used = [name for name in [*names, "constraints"] if getattr(options, name)]
    if used or options.nbest > 1:
        option = (used or ["nbest"])[0].replace("_", "-")
        raise UserError(f"--{option} is for lines of text, not for documents (--format text)")
    return str(named)


def _on_files(options: argparse.Namespace) -> tuple[Processes, partial[None]]:
    """Return the processes of a command, and `process_streams` with its files and output.

    Raises UserError if a file cannot be read or written. Call it before loading a model.
    """
    from seq2seq.data.lines import process_streams, require_files
    from seq2seq.processes import LONG_TIMEOUT, Processes

    _require_writable_output(options)
    processes = Processes.join(LONG_TIMEOUT)
    require_files(options.files)
    return processes, partial(
        process_streams,
        files=options.files,
        output=options.output,
        errors=options.errors,
        processes=processes,
    )


def _require_writable_output(options: argparse.Namespace) -> None:
    """Raise UserError if the output is not writable or would overwrite another file.

    Protected are standard input, the files of runs and models, and files that options name.
    """
    from seq2seq.files import require_writable
    from seq2seq.training.records import require_outside_of_runs

    if options.output is None:
        return
    require_outside_of_runs(options.output)
    inputs = [Path("/dev/stdin")]
    for name, value in vars(options).items():
        values = value if isinstance(value, list) else [value]
        inputs += [path for path in values if isinstance(path, Path) and name != "output"]
    prefix = Path(getattr(options, "data", None) or "/")
    inputs += prefix.parent.glob(f"{glob.escape(prefix.name)}*") if prefix.name else ()
    require_writable(options.output, inputs)
