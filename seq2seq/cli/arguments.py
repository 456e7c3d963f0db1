"""The arguments of each command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from seq2seq import __version__
from seq2seq.cli import commands
from seq2seq.cli.argument_types import Parser, count, minutes, path, test_set, up_to, weight
from seq2seq.cli.completion import SHELLS, PrintCompletion
from seq2seq.config import DecodingConfig
from seq2seq.errors import did_you_mean
from seq2seq.task import task_names

SEARCH_HELP = {
    "beam": "beam width; 1 is greedy",
    "length_penalty": "exponent of the length penalty",
    "penalty_form": "((5 + length) / 6)^X, or length^X",
    "coverage_penalty": "weight of the coverage penalty",
    "min_length": "minimum length, in tokens",
    "max_factor": "maximum length: this times the source tokens, plus --max-extra",
    "max_extra": "see --max-factor",
    "no_repeat_ngram": "length of n-grams that may occur only once",
    "retry_repetitions": "search again where a translation repeats itself",
    "diverse_groups": "groups of the beam that avoid each other's tokens",
    "diversity": "penalty for a token of an earlier group",
    "sample": "draw translations at random",
    "temperature": "divisor of the logits of --sample; 0 is greedy",
    "top_k": "sample from N tokens",
    "top_p": "sample from tokens of total probability X",
    "seed": "random seed of --sample",
    "precision": "of matrix products: fp32, bf16, fp16 (on a GPU), int8 (on a CPU), or the fastest",
    "lookahead": "stop when nothing better is possible within N more tokens",
    "batch_tokens": "source tokens times beam width in memory at once",
}


EXPORT_FORMATS = ("ctranslate2", "huggingface", "argos")
QUANTIZATIONS = (
    "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16",
    "float32",
)  # fmt: skip
"""Data types in which CTranslate2 stores weights."""
TOKENIZERS = (
    "13a", "intl", "none", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200",
)  # fmt: skip
"""Of sacreBLEU, for BLEU."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse; the last positional arguments may come before and after options."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    several = ("files", "overrides", "runs", "references")
    positionals = next((getattr(options, name) for name in several if name in options), None)
    unknown = next((each for each in rest if each.startswith("-")), None)
    if unknown:
        flags = options.parser._option_string_actions
        name = unknown.partition("=")[0]
        options.parser.error(f"unknown option {unknown}{did_you_mean(name, flags)}")
    elif rest and positionals is None:
        options.parser.error(f"too many arguments: {' '.join(rest)}")
    if positionals is not None:
        paths = "runs" in options or "references" in options
        positionals.extend(map(path, rest) if paths else rest)
    return options


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="seq2seq",
        description="Train Transformers that translate, continue or classify texts, and use them.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--print-completion", action=PrintCompletion, choices=SHELLS, help="for a shell"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(command=lambda _: parser.exit(2, parser.format_help()), parser=parser)

    def add(name: str, command: object, summary: str) -> argparse.ArgumentParser:
        below = subparsers.add_parser(name, help=summary, description=summary)
        below.set_defaults(command=command, parser=below)
        return below

    new = add("new", commands.new, "write a recipe for your own files, sized for this machine")
    new.add_argument("name", metavar="NAME", help="of the recipe, recipes/NAME.yaml, and its run")
    new.add_argument("--task", choices=task_names(), default="translation", help="(translation)")
    new.add_argument(
        "--from", type=path, dest="run", metavar="RUN", help="continue this model on the files"
    )
    new.add_argument("--source", default="", metavar="LANGUAGE", help="such as en")
    new.add_argument("--target", default="", metavar="LANGUAGE", help="such as de")
    new.add_argument(
        "--train", nargs="+", required=True, metavar="FILE",
        help="source and target file, their common prefix, or a .tsv file; several corpora; of a "
        "language model a text or a folder, of a classifier LABEL<TAB>TEXT lines",
    )  # fmt: skip
    for split, name in (("dev", "development"), ("test", "test")):
        new.add_argument(
            f"--{split}", nargs="+", default=[], metavar="FILE",
            help=f"the {name} set; without it examples are held out of the training set",
        )  # fmt: skip
    new.add_argument(
        "--minutes", type=minutes, default=15.0, metavar="N", help="training time (15)"
    )

    prepare = add("prepare", commands.prepare, "train a recipe's tokenizer and binarise its data")
    _add_recipe(prepare)

    train = add("train", commands.train, "train a recipe's model, or resume its run")
    _add_recipe(train)
    train.add_argument("--run", type=path, metavar="DIR", help="run directory (runs/NAME)")
    train.add_argument(
        "--print-config", action="store_true", help="print the resolved recipe and stop"
    )

    translate = add("translate", commands.translate, "translate lines of text")
    _add_run(translate)
    _add_files(translate)
    translate.add_argument(
        "--with", type=path, action="append", default=[], dest="others", metavar="RUN",
        help="add a model to an ensemble; may be repeated",
    )  # fmt: skip
    translate.add_argument("--tag", metavar="SYMBOL", help="symbol before every line, as <news>")
    _add_output(translate)
    _add_search(translate)

    rerank = add("rerank", commands.rerank, "rerank n-best lists of `translate --json --nbest N`")
    _add_files(rerank)
    rerank.add_argument(
        "--mbr",
        choices=["bleu", "chrf"],
        help="minimum Bayes risk: average of this metric with all candidates as references",
    )
    rerank.add_argument(
        "--posterior",
        action="store_true",
        help="weight the references of --mbr by the model's probabilities, as for a beam",
    )
    rerank.add_argument(
        "--backward", type=path, metavar="RUN", help="translation model of the other direction"
    )
    rerank.add_argument("--lm", type=path, metavar="RUN", help="language model of the target")
    rerank.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME",
        help="a number that each candidate has; may be repeated",
    )
    rerank.add_argument(
        "--weight",
        type=weight,
        action="append",
        default=[],
        metavar="NAME=X",
        help="weight of score, mbr, backward, lm or a field (1; score: 0 with --mbr or --field)",
    )
    rerank.add_argument("--text", action="store_true", help="write only the best translations")

    generate = add("generate", commands.generate, "let a language model continue a text")
    _add_run(generate)
    generate.add_argument("--prompt", default="", metavar="TEXT", help="beginning of the text")
    generate.add_argument("--length", type=count, default=500, metavar="N", help="tokens (500)")
    generate.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (1)"
    )
    generate.add_argument("--top-k", type=int, metavar="K", help="sample from K tokens")
    generate.add_argument(
        "--top-p", type=float, metavar="P", help="sample from tokens of total probability P"
    )
    generate.add_argument("--seed", type=int, metavar="N", help="random seed (a new one each time)")
    generate.add_argument("--samples", type=up_to(10_000), default=1, metavar="N", help="texts (1)")

    classify = add("classify", commands.classify, "label lines of text: LABEL<TAB>PROBABILITY")
    _add_run(classify)
    _add_batch_tokens(classify)
    _add_files(classify)

    score = add("score", commands.score, "BLEU, chrF2 and TER; comparison of systems")
    score.add_argument(
        "hypothesis", type=path, metavar="HYP", help="translations, or a run that makes them"
    )
    score.add_argument("references", type=path, nargs="*", metavar="REF", help="(of a run: none)")
    score.add_argument(
        "--against", type=path, nargs="+", default=[], metavar="HYP",
        help="other translations or runs, each compared with the first",
    )  # fmt: skip
    _add_test_data(score)
    score.add_argument(
        "--source", type=path, metavar="FILE", help="source sentences, to be shown with --lines"
    )
    score.add_argument(
        "--test-set", type=test_set, metavar="NAME[:PAIR]",
        help="a test set of sacreBLEU, such as wmt14/full:en-de; of a run the languages are known",
    )  # fmt: skip
    score.add_argument(
        "--lines", type=up_to(10_000, 0), metavar="N",
        help="show scores by groups; of two systems, N lines each where they differ most",
    )  # fmt: skip
    score.add_argument(
        "--html", type=path, metavar="FILE", help="write all of this to a page, with --lines 20"
    )
    score.add_argument(
        "--line-scores", nargs="+", action="append", default=[], metavar=("NAME", "FILE"),
        help="numbers of another metric for each line of each system (COMET, MetricX, columns)",
    )  # fmt: skip
    score.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        help="sacreBLEU tokenizer of BLEU (13a, or what the recipe of a run says)",
    )
    score.add_argument(
        "--metrics", nargs="+", choices=["bleu", "chrf", "chrf++", "ter", "spbleu"],
        metavar="METRIC",
        help="bleu, chrf, chrf++, ter, spbleu (the first four; spbleu where its model is on disk)",
    )  # fmt: skip
    score.add_argument("--lowercase", action="store_true", help="ignore case")
    score.add_argument("--json", action="store_true", help="print one JSON object")

    evaluate = add(
        "evaluate", commands.evaluate, "loss and BLEU, bits per character or accuracy on a split"
    )
    _add_run(evaluate)
    _add_batch_tokens(evaluate)
    _add_test_data(evaluate)
    evaluate.add_argument("-o", "--output", type=path, metavar="FILE", help="keep the translations")
    evaluate.add_argument(
        "--stride", type=count, metavar="N",
        help="stride of a language model's windows, in tokens (half a context)",
    )  # fmt: skip
    evaluate.add_argument(
        "--random-windows", type=up_to(1_000_000), metavar="N",
        help="also evaluate a language model on N random context windows",
    )  # fmt: skip
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")

    runs = add("runs", commands.runs, "list runs, their state and scores")
    runs.add_argument(
        "folder", type=path, nargs="?", default=Path("runs"), metavar="DIR", help="(runs)"
    )
    runs.add_argument("--json", action="store_true", help="print a JSON list")

    average = add("average", commands.average, "average the weights of several models of a run")
    average.add_argument("run", type=path, metavar="RUN")
    which = average.add_mutually_exclusive_group()
    which.add_argument("--last", type=count, default=5, metavar="N", help="checkpoints (5)")
    which.add_argument("--best", type=count, metavar="N", help="best models kept")
    average.add_argument("-o", "--output", type=path, required=True, metavar="DIR")

    export = add("export", commands.export, "write a model in the format of another program")
    export.add_argument("runs", type=path, nargs="+", metavar="RUN", help="run or model directory")
    export.add_argument("--checkpoint", metavar="NAME", help="such as step_1000, last or averaged")
    export.add_argument("--to", required=True, choices=EXPORT_FORMATS, help="docs/export.md")
    export.add_argument(
        "-o", "--output", type=path, required=True, metavar="DIR", help="new folder"
    )
    export.add_argument(
        "--quantization", choices=QUANTIZATIONS,
        help="data type of the weights, for ctranslate2 and argos (float32)",
    )  # fmt: skip

    report = add("report", commands.report, "write a page about runs: curves, data, samples")
    report.add_argument("runs", type=path, nargs="+", metavar="RUN")
    report.add_argument(
        "-o", "--output", type=path, metavar="FILE", help="page to write (report.html)"
    )
    report.add_argument(
        "--quick", action="store_true", help="no samples, and nothing that has to be computed"
    )
    report.add_argument(
        "--watch", action="store_true", help="write the page again every minute while a run goes on"
    )
    report.add_argument("--sentence", metavar="TEXT", help="show the beam search of this source")
    report.add_argument(
        "--goal", type=float, action="append", default=[], metavar="SCORE",
        help="say when each run reached this score; may be repeated",
    )  # fmt: skip
    add("doctor", commands.doctor, "say what works on this machine, with a short self-test")
    return parser


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=path, metavar="RECIPE", help="YAML file")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="replaces a value of the recipe"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=path, metavar="RUN", help="run or model directory")
    parser.add_argument("--checkpoint", metavar="NAME", help="such as step_1000, last or averaged")


def _add_batch_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-tokens", type=count, metavar="N", help="tokens in memory at once (the recipe's)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input and output")
    add = group.add_argument
    add(
        "--nbest",
        type=up_to(10_000),
        default=1,
        metavar="N",
        help="the N best translations on one line: SCORE<TAB>LOG_PROB<TAB>TEXT for each",
    )
    add("--alignment", action="store_true", help="add a column of word alignments, as 0-0 1-2")
    output_format = group.add_mutually_exclusive_group()
    output_format.add_argument(
        "--scores", action="store_const", const="scores", default="text", dest="output_format",
        help="SCORE<TAB>LOG_PROB<TAB>TEXT",
    )  # fmt: skip
    output_format.add_argument(
        "--json", action="store_const", const="json", dest="output_format",
        help="write a JSON object for each line",
    )  # fmt: skip
    output_format.add_argument(
        "--nbest-format", choices=["moses"], dest="output_format",
        help="a line for each translation: NUMBER ||| TEXT ||| FEATURES ||| SCORE",
    )  # fmt: skip
    add("--json-input", action="store_true", help="each input line is a JSON object with a text")
    add("--tokens", action="store_true", help="with --json: log-probabilities of the tokens")
    add("--score-target", type=path, metavar="FILE", help="score these translations instead")
    add(
        "--no-split",
        action="store_false",
        dest="split",
        help="do not translate lines that are too long in parts",
    )
    add("--prefixes", type=path, metavar="FILE", help="beginning of each translation")
    add(
        "--constraints",
        type=path,
        metavar="FILE",
        help="for each line, terms that must appear, separated by tabs; !TERM must not",
    )
    add(
        "--glossary",
        type=path,
        metavar="FILE",
        help="lines SOURCE<TAB>TERM: a term for the lines that contain SOURCE",
    )


def _add_test_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--split", choices=["dev", "test"], default="test", help="of a run's data (test)"
    )
    parser.add_argument(
        "--data", metavar="PREFIX", help="other data instead, in the form of the recipe's data.test"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key of a recipe's section `decoding`."""
    group = parser.add_argument_group(
        "search",
        "by default as the recipe's section `decoding` says; in brackets what it is where the "
        "recipe says nothing",
    )
    hints = get_type_hints(DecodingConfig)
    for key in fields(DecodingConfig):
        if key.name == "validation_beam":
            continue
        flag, hint = f"--{key.name.replace('_', '-')}", hints[key.name]
        if hint is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, dest=key.name)
        elif get_origin(hint) is Literal:
            group.add_argument(flag, choices=get_args(hint), dest=key.name)
        else:
            kind = next(kind for kind in (*get_args(hint), hint) if kind in (int, float))
            metavar = "N" if kind is int else "X"
            group.add_argument(flag, type=kind, metavar=metavar, dest=key.name)
    names, defaults = {None: "no limit", True: "yes", False: "no"}, DecodingConfig()
    for action in group._group_actions:
        default = getattr(defaults, action.dest)
        value = names[default] if default is None or isinstance(default, bool) else default
        action.help = f"{SEARCH_HELP[action.dest]} ({value})"


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="input (standard input)")
    parser.add_argument("-o", "--output", type=path, metavar="FILE", help="(standard output)")
    parser.add_argument(
        "--errors",
        choices=["strict", "replace"],
        default="strict",
        help="for input that is not UTF-8: stop, or replace invalid bytes",
    )
