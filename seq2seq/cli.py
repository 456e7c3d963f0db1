"""The `seq2seq` command: arguments and wiring, no logic.

torch and the rest of the package are imported inside the commands, so that --help is quick.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq import __version__
from seq2seq.errors import SharedError, UserError
from seq2seq.machine.threads import choose_threads, keep_threads

if TYPE_CHECKING:
    from seq2seq.data.streams import LineFunction
    from seq2seq.processes import Processes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user error ends it with a one-line message and exit code 1."""
    options = _parse(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the encoding of the terminal
    choose_threads()
    logging.basicConfig(handlers=[_StandardError()], format="%(message)s", level=logging.WARNING)
    logging.getLogger("seq2seq").setLevel(logging.INFO)
    try:
        options.command(options)
    except SharedError as error:
        # Once on each machine.
        sys.exit(1 if int(os.environ.get("LOCAL_RANK", "0")) else f"seq2seq: error: {error}")
    except UserError as error:
        sys.exit(f"seq2seq: error: {error}")
    except (RuntimeError, MemoryError) as error:
        explanation = _explain(error, options)
        if explanation is None:
            raise
        sys.exit(f"seq2seq: {explanation}")
    except BrokenPipeError:
        # The reader of the output has ended; flushing at exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # no permission, no space, no such folder
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(f"seq2seq: error: {place}{error.strerror or error}")
    except KeyboardInterrupt:
        print("seq2seq: stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
    finally:
        keep_threads()


def _explain(error: RuntimeError | MemoryError, options: argparse.Namespace) -> str | None:
    """Return the message for a failure of the machine or the network; None for a bug."""
    from seq2seq.machine.memory import out_of_memory
    from seq2seq.processes import peer_is_lost, peer_is_silent

    if out_of_memory(error):
        if "batch_tokens" in options:
            return "error: out of memory; lower --batch-tokens"
        if "samples" in options:
            return "error: out of memory; lower --samples or --length"
        return (
            "error: out of memory; lower training.micro_batch_tokens, decoding.batch_tokens (in "
            "validations) or the model's size"
        )
    rank = os.environ.get("RANK")
    if rank and peer_is_lost(error):
        return f"process {rank} ends because another process ended"
    if rank and peer_is_silent(error):
        return (
            f"error: process {rank} timed out waiting for another one: a machine or the network "
            "failed, or a process hangs. The same command resumes from the last saved state"
        )
    return None


class _StandardError(logging.Handler):
    """Writes to the current `sys.stderr`, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse; the last positional arguments may come before and after options."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    several = ("files", "overrides", "runs")
    positionals = next((getattr(options, name) for name in several if name in options), None)
    if rest and (positionals is None or any(argument.startswith("-") for argument in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if positionals is not None:
        positionals.extend(rest)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seq2seq",
        description="Train Transformers that translate, continue or classify texts, and use them.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(command=lambda _: parser.exit(2, parser.format_help()))

    def add(name: str, command: object, summary: str) -> argparse.ArgumentParser:
        below = commands.add_parser(name, help=summary, description=summary)
        below.set_defaults(command=command)
        return below

    prepare = add("prepare", _prepare, "train a recipe's tokenizer and binarise its data")
    _add_recipe(prepare)

    train = add("train", _train, "train a recipe's model, or resume its run")
    _add_recipe(train)
    train.add_argument("--run", type=Path, metavar="DIR", help="run directory (runs/NAME)")
    train.add_argument(
        "--print-config", action="store_true", help="print the resolved recipe and stop"
    )

    translate = add("translate", _translate, "translate lines of text")
    _add_run(translate)
    _add_files(translate)
    translate.add_argument(
        "--with", type=Path, action="append", default=[], dest="others", metavar="RUN",
        help="add a model to an ensemble; may be repeated",
    )  # fmt: skip
    translate.add_argument("--beam", type=int, metavar="W", help="beam width; 1 is greedy")
    translate.add_argument("--length-penalty", type=float, metavar="ALPHA")
    _add_batch_tokens(translate)
    translate.add_argument("--tag", metavar="SYMBOL", help="symbol before every line, as <news>")

    generate = add("generate", _generate, "let a language model continue a text")
    _add_run(generate)
    generate.add_argument("--prompt", default="", metavar="TEXT", help="beginning of the text")
    generate.add_argument("--length", type=_count, default=500, metavar="N", help="tokens (500)")
    generate.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (1)"
    )
    generate.add_argument("--top-k", type=int, metavar="K", help="sample from K tokens")
    generate.add_argument(
        "--top-p", type=float, metavar="P", help="sample from tokens of total probability P"
    )
    generate.add_argument("--seed", type=int, metavar="N", help="random seed (a new one each time)")
    generate.add_argument("--samples", type=_count, default=1, metavar="N", help="texts (1)")

    classify = add("classify", _classify, "label lines of text: LABEL<TAB>PROBABILITY")
    _add_run(classify)
    _add_batch_tokens(classify)
    _add_files(classify)

    score = add("score", _score, "BLEU, chrF2 and TER of a translation")
    score.add_argument("hypothesis", type=Path, metavar="HYP")
    score.add_argument("references", type=Path, nargs="+", metavar="REF")
    score.add_argument(
        "--tokenize",
        default="13a",
        choices=["13a", "intl", "none", "char", "zh"],
        help="sacreBLEU tokenizer (13a)",
    )
    score.add_argument("--lowercase", action="store_true", help="ignore case")
    score.add_argument("--json", action="store_true", help="print one JSON object")

    evaluate = add(
        "evaluate", _evaluate, "loss and BLEU, bits per character or accuracy on a split"
    )
    _add_run(evaluate)
    _add_batch_tokens(evaluate)
    evaluate.add_argument("--split", choices=["dev", "test"], default="test")
    evaluate.add_argument(
        "--stride", type=_count, metavar="N",
        help="stride of a language model's windows, in tokens (half a context)",
    )  # fmt: skip
    evaluate.add_argument(
        "--random-windows", type=_count, metavar="N",
        help="also evaluate a language model on N random context windows",
    )  # fmt: skip
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")

    average = add("average", _average, "average the weights of several models of a run")
    average.add_argument("run", type=Path, metavar="RUN")
    which = average.add_mutually_exclusive_group()
    which.add_argument("--last", type=_count, default=5, metavar="N", help="checkpoints (5)")
    which.add_argument("--best", type=_count, metavar="N", help="best models kept")
    average.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")

    plot = add("plot", _plot, "plot the metrics of runs")
    plot.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    plot.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="as x.svg")
    plot.add_argument(
        "--metric", metavar="KIND/NAME",
        help="such as train/loss (the main metric on the dev set)",
    )  # fmt: skip
    plot.add_argument("--over", choices=["minutes", "updates"], default="minutes")
    plot.add_argument(
        "--goal", type=float, action="append", default=[], metavar="VALUE",
        help="print when each run reaches it",
    )  # fmt: skip
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run or model directory")
    parser.add_argument("--checkpoint", metavar="NAME", help="such as step_1000, last or averaged")


def _add_batch_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-tokens", type=_count, metavar="N", help="tokens in memory at once (the recipe's)"
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="input (standard input)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="(standard output)")
    parser.add_argument(
        "--errors",
        choices=["strict", "replace"],
        default="strict",
        help="for input that is not UTF-8: stop, or replace invalid bytes",
    )


def _prepare(options: argparse.Namespace) -> None:
    from seq2seq.model.recipe import load_config
    from seq2seq.preparation.prepare import prepare

    print(prepare(load_config(options.recipe, options.overrides)).folder)


def _train(options: argparse.Namespace) -> None:
    from seq2seq.config import default_run, to_yaml
    from seq2seq.model.recipe import load_config

    config = load_config(options.recipe, options.overrides, options.run)
    if options.print_config:
        sys.stdout.write(to_yaml(config))
        return
    from seq2seq.evaluation.tasks import TASKS
    from seq2seq.training.run import train

    train(config, options.run or default_run(config.name), TASKS[config.task])


def _translate(options: argparse.Namespace) -> None:
    from seq2seq.decoding.translator import Translator
    from seq2seq.processes import LONG_TIMEOUT, Processes

    processes = Processes.join(LONG_TIMEOUT)
    translator = Translator.load(
        options.run,
        others=options.others,
        device=str(processes.device),
        checkpoint=options.checkpoint,
        beam=options.beam,
        length_penalty=options.length_penalty,
        batch_tokens=options.batch_tokens,
        tag=options.tag,
    )
    _process(options, translator.translate, processes)


def _process(options: argparse.Namespace, function: LineFunction, processes: Processes) -> None:
    from seq2seq.data.streams import process_streams

    process_streams(
        function, options.files, options.output, errors=options.errors, processes=processes
    )
    processes.exit()


def _generate(options: argparse.Namespace) -> None:
    from seq2seq.decoding.generation import TextGenerator
    from seq2seq.decoding.sampling import Sampling
    from seq2seq.processes import Processes

    processes = Processes.join()
    if processes.is_main:  # more processes would not be faster
        sampling = Sampling(options.temperature, options.top_k, options.top_p)
        generator = TextGenerator.load(
            options.run, checkpoint=options.checkpoint, device=str(processes.device)
        )
        seed = secrets.randbits(32) if options.seed is None else options.seed
        for part in generator.stream(
            options.prompt,
            length=options.length,
            sampling=sampling,
            seed=seed,
            samples=options.samples,
        ):
            sys.stdout.buffer.write(part.encode("utf-8", "surrogateescape"))
            sys.stdout.buffer.flush()
    processes.exit()


def _classify(options: argparse.Namespace) -> None:
    from seq2seq.decoding.classification import TextClassifier
    from seq2seq.processes import LONG_TIMEOUT, Processes

    processes = Processes.join(LONG_TIMEOUT)
    classifier = TextClassifier.load(
        options.run,
        checkpoint=options.checkpoint,
        batch_tokens=options.batch_tokens,
        device=str(processes.device),
    )
    _process(options, classifier.classify_lines, processes)


def _score(options: argparse.Namespace) -> None:
    from seq2seq.data.lines import read_file
    from seq2seq.evaluation.metrics import score, scores_json, scores_text

    scores = score(
        read_file(options.hypothesis),
        [read_file(path) for path in options.references],
        tokenize=options.tokenize,
        lowercase=options.lowercase,
    )
    print(scores_json(scores) if options.json else scores_text(scores))


def _evaluate(options: argparse.Namespace) -> None:
    from seq2seq.evaluation.evaluator import evaluate_run, metrics_text
    from seq2seq.processes import Processes

    processes = Processes.join()
    metrics = evaluate_run(
        options.run,
        options.checkpoint,
        options.split,
        processes,
        stride=options.stride,
        random_windows=options.random_windows,
        batch_tokens=options.batch_tokens,
    )
    if options.json and processes.is_main:
        print(json.dumps(metrics))
    elif processes.is_main:
        print(metrics_text(metrics))
    processes.exit()


def _average(options: argparse.Namespace) -> None:
    from seq2seq.model.directory import average_models
    from seq2seq.training.run_directory import RunDirectory

    run = RunDirectory(options.run)
    folders = run.best_models(options.best) if options.best else run.last_models(options.last)
    average_models(folders, options.output)
    print(options.output)


def _plot(options: argparse.Namespace) -> None:
    from seq2seq.report.curves import (
        main_metric,
        plot_curves,
        reached_text,
        read_curves,
        require_plots,
    )

    require_plots(options.output)
    metric = options.metric or main_metric(options.runs[0])
    curves = read_curves(options.runs, metric, options.over)
    plot_curves(curves, options.output, metric, options.over, options.goal)
    print(reached_text(curves, options.goal, options.over) if options.goal else options.output)
