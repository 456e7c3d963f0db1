"""The arguments of each command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from seq2seq import __version__
from seq2seq.cli import commands
from seq2seq.cli.parser import (
    Parser,
    PrintCompletion,
    count,
    minutes,
    path,
    test_set,
    up_to,
    weight,
)
from seq2seq.config import DecodingConfig
from seq2seq.errors import did_you_mean
from seq2seq.planning.sizes import SIZES

SEARCH_HELP = {
    "beam": "beam width; 1 is greedy",
    "patience": "a line is done when beam times X hypotheses have ended",
    "length_penalty": "exponent of the length penalty",
    "penalty_form": "length^X, or ((5 + length) / 6)^X",
    "min_length": "minimum length, in tokens",
    "max_factor": "maximum length: this times the source tokens, plus --max-extra",
    "max_extra": "see --max-factor",
    "no_repeat_ngram": "length of n-grams that may occur only once",
    "sample": "draw translations at random",
    "temperature": "divisor of the logits of --sample; 0 is greedy",
    "top_k": "sample from N tokens",
    "top_p": "sample from tokens of total probability X",
    "seed": "random seed of --sample",
    "precision": "precision of matrix products: fp32, int8 (on a CPU), bf16 or fp16 (on a GPU)",
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
    if unknown := next((each for each in rest if each.startswith("-")), None):
        flags = options.parser._option_string_actions
        name = unknown.partition("=")[0]
        options.parser.error(f"unknown option {unknown}{did_you_mean(name, flags)}")
    positionals = options.parser._get_positional_actions()
    several = [each for each in positionals if each.nargs in ("*", "+")]
    if rest and not several:
        options.parser.error(f"too many arguments: {' '.join(rest)}")
    for action in several:
        getattr(options, action.dest).extend(map(action.type or str, rest))
    return options


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="seq2seq",
        description="Train Transformers that translate, continue or classify texts, and use them.",
    )
    add = parser.add_argument
    add("--version", action="version", version=__version__)
    shells = ("bash", "zsh", "tcsh")
    add("--print-completion", action=PrintCompletion, choices=shells, help="for a shell")
    subparsers = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(command=lambda _: parser.exit(2, parser.format_help()), parser=parser)

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        below = subparsers.add_parser(name, help=summary, description=summary)
        below.set_defaults(command=getattr(commands, name), parser=below)
        return below

    add = command("new", "write a recipe for your own files, sized for this machine").add_argument
    add("name", metavar="NAME", help="of the recipe, recipes/NAME.yaml, and its run")
    add("--task", choices=list(SIZES), default="translation", help="(translation)")
    add("--from", type=path, dest="run", metavar="RUN", help="continue this model on the files")
    add("--source", default="", metavar="LANGUAGE", help="such as en")
    add("--target", default="", metavar="LANGUAGE", help="such as de")
    add("--train", nargs="+", required=True, metavar="FILE",
        help="source and target file, their common prefix, or a .tsv file; several corpora; of a "
        "language model a text or a folder, of a classifier LABEL<TAB>TEXT lines")  # fmt: skip
    for split, name in (("dev", "development"), ("test", "test")):
        add(f"--{split}", nargs="+", default=[], metavar="FILE",
            help=f"the {name} set; without it examples are held out of the training set"
        )  # fmt: skip
    add("--minutes", type=minutes, default=15.0, metavar="N", help="training time (15)")

    _add_recipe(command("prepare", "train a recipe's tokenizer and binarise its data"))

    train = command("train", "train a recipe's model, or resume its run")
    _add_recipe(train)
    add = train.add_argument
    add("--run", type=path, metavar="DIR", help="run directory (runs/NAME)")
    add("--print-config", action="store_true", help="print the resolved recipe and stop")

    translate = command("translate", "translate lines of text")
    _add_run(translate)
    _add_files(translate)
    add = translate.add_argument
    add("--with", type=path, action="append", default=[], dest="others", metavar="RUN",
        help="add a model to an ensemble; may be repeated")  # fmt: skip
    add("--tag", metavar="SYMBOL", help="symbol before every line, as <news>")
    _add_output(translate)
    _add_search(translate)

    rerank = command("rerank", "rerank n-best lists of `translate --json --nbest N`")
    _add_files(rerank)
    add = rerank.add_argument
    add("--mbr", choices=["bleu", "chrf"],
        help="minimum Bayes risk: average of this metric with all candidates as references"
    )  # fmt: skip
    add("--posterior", action="store_true",
        help="weight the references of --mbr by the model's probabilities, as for a beam"
    )  # fmt: skip
    add("--backward", type=path, metavar="RUN", help="translation model of the other direction")
    add("--lm", type=path, metavar="RUN", help="language model of the target")
    add("--field", action="append", default=[], metavar="NAME",
        help="a number that each candidate has; may be repeated")  # fmt: skip
    add("--weight", type=weight, action="append", default=[], metavar="NAME=X",
        help="weight of score, mbr, backward, lm or a field (1; score: 0 with --mbr or --field)"
    )  # fmt: skip
    add("--text", action="store_true", help="write only the best translations")

    generate = command("generate", "let a language model continue a text")
    _add_run(generate)
    add = generate.add_argument
    add("--prompt", default="", metavar="TEXT", help="beginning of the text")
    add("--length", type=count, default=500, metavar="N", help="tokens (500)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (1)")
    add("--top-k", type=int, metavar="K", help="sample from K tokens")
    add("--top-p", type=float, metavar="P", help="sample from tokens of total probability P")
    add("--seed", type=int, metavar="N", help="random seed (a new one each time)")
    add("--samples", type=up_to(10_000), default=1, metavar="N", help="texts (1)")

    classify = command("classify", "label lines of text: LABEL<TAB>PROBABILITY")
    _add_run(classify)
    _add_batch_tokens(classify)
    _add_files(classify)

    score = command("score", "BLEU, chrF2 and TER; comparison of systems")
    add = score.add_argument
    add("hypothesis", type=path, metavar="HYP", help="translations, or a run that makes them")
    add("references", type=path, nargs="*", metavar="REF", help="(of a run: none)")
    add("--against", type=path, nargs="+", default=[], metavar="HYP",
        help="other translations or runs, each compared with the first")  # fmt: skip
    _add_test_data(score)
    add("--source", type=path, metavar="FILE",
        help="source sentences, to be shown with --lines")  # fmt: skip
    add("--test-set", type=test_set, metavar="NAME[:PAIR]",
        help="a test set of sacreBLEU, such as wmt14/full:en-de; of a run the languages are known"
    )  # fmt: skip
    add("--lines", type=up_to(10_000, 0), metavar="N",
        help="show scores by groups; of two systems, N lines each where they differ most"
    )  # fmt: skip
    add("--html", type=path, metavar="FILE", help="write all of this to a page, with --lines 20")
    add("--line-scores", nargs="+", action="append", default=[], metavar=("NAME", "FILE"),
        help="numbers of another metric for each line of each system (COMET, MetricX, columns)"
    )  # fmt: skip
    add("--tokenize", choices=TOKENIZERS,
        help="sacreBLEU tokenizer of BLEU (13a, or what the recipe of a run says)")  # fmt: skip
    add("--metrics", nargs="+", choices=["bleu", "chrf", "chrf++", "ter", "spbleu"],
        metavar="METRIC",
        help="bleu, chrf, chrf++, ter, spbleu (the first four)"
    )  # fmt: skip
    add("--lowercase", action="store_true", help="ignore case")
    add("--json", action="store_true", help="print one JSON object")

    evaluate = command("evaluate", "loss and BLEU, bits per character or accuracy on a split")
    _add_run(evaluate)
    _add_batch_tokens(evaluate)
    _add_test_data(evaluate)
    add = evaluate.add_argument
    add("-o", "--output", type=path, metavar="FILE", help="keep the translations")
    add("--stride", type=count, metavar="N",
        help="stride of a language model's windows, in tokens (half a context)")  # fmt: skip
    add("--random-windows", type=up_to(1_000_000), metavar="N",
        help="also evaluate a language model on N random context windows")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object")

    add = command("runs", "list runs, their state and scores").add_argument
    add("folders", type=path, nargs="*", default=[Path("runs")], metavar="DIR",
        help="runs, or folders of runs (runs)")  # fmt: skip
    add("--json", action="store_true", help="print a JSON list")

    average = command("average", "average the weights of several models of a run")
    average.add_argument("run", type=path, metavar="RUN", help="run directory")
    which = average.add_mutually_exclusive_group()
    which.add_argument("--last", type=count, default=5, metavar="N", help="checkpoints (5)")
    which.add_argument("--best", type=count, metavar="N", help="best models kept")
    average.add_argument(
        "-o", "--output", type=path, required=True, metavar="DIR", help="new folder"
    )

    add = command("export", "write a model in the format of another program").add_argument
    add("runs", type=path, nargs="+", metavar="RUN", help="run or model directory")
    add("--checkpoint", metavar="NAME", help="such as step_1000, last or averaged")
    add("--to", required=True, choices=EXPORT_FORMATS, help="docs/export.md")
    add("-o", "--output", type=path, required=True, metavar="DIR", help="new folder")
    add("--quantization", choices=QUANTIZATIONS,
        help="data type of the weights, for ctranslate2 and argos (float32)")  # fmt: skip

    add = command("report", "write a page about runs: curves, data, samples").add_argument
    add("runs", type=path, nargs="+", metavar="RUN")
    add("-o", "--output", type=path, metavar="FILE", help="page to write (report.html)")
    add("--quick", action="store_true", help="no samples, and nothing that has to be computed")
    add("--watch", action="store_true",
        help="write the page again every minute while a run goes on")  # fmt: skip
    add("--sentence", metavar="TEXT", help="show the beam search of this source")

    command("doctor", "say what works on this machine, with a short self-test")
    return parser


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", type=path, metavar="RECIPE", help="YAML file")
    add("overrides", nargs="*", metavar="section.key=value", help="replaces a value of the recipe")


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
    add("--nbest", type=up_to(10_000), default=1, metavar="N",
        help="the N best translations on one line: SCORE<TAB>LOG_PROB<TAB>TEXT for each"
    )  # fmt: skip
    add("--alignment", action="store_true", help="add a column of word alignments, as 0-0 1-2")
    add_format = partial(group.add_mutually_exclusive_group().add_argument, dest="output_format")
    add_format("--scores", action="store_const", const="scores", default="text",
               help="SCORE<TAB>LOG_PROB<TAB>TEXT")  # fmt: skip
    add_format("--json", action="store_const", const="json",
               help="write a JSON object for each line")  # fmt: skip
    add_format("--nbest-format", choices=["moses"],
               help="a line for each translation: NUMBER ||| TEXT ||| FEATURES ||| SCORE"
    )  # fmt: skip
    add("--json-input", action="store_true", help="each input line is a JSON object with a text")
    add("--tokens", action="store_true", help="with --json: log-probabilities of the tokens")
    add("--score-target", type=path, metavar="FILE", help="score these translations instead")
    add("--no-split", action="store_false", dest="split",
        help="do not translate lines that are too long in parts")  # fmt: skip
    add("--prefixes", type=path, metavar="FILE", help="beginning of each translation")
    add("--constraints", type=path, metavar="FILE",
        help="for each line, terms that must appear, separated by tabs; !TERM must not"
    )  # fmt: skip
    add("--glossary", type=path, metavar="FILE",
        help="lines SOURCE<TAB>TERM: a term for the lines that contain SOURCE")  # fmt: skip


def _add_test_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", choices=["dev", "test"], default="test", help="of a run's data (test)")
    add("--data", metavar="PREFIX",
        help="other data instead, in the form of the recipe's data.test")  # fmt: skip


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
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="input (standard input)")
    add("-o", "--output", type=path, metavar="FILE", help="(standard output)")
    add("--errors", choices=["strict", "replace"], default="strict",
        help="for input that is not UTF-8: stop, or replace invalid bytes")  # fmt: skip
