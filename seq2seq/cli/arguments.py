"""The arguments of each command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from seq2seq import __version__
from seq2seq.cli import commands
from seq2seq.cli.parser import (
    Parser,
    count,
    minutes,
    path,
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
EXPORT_FORMATS = "ctranslate2", "huggingface", "argos"
QUANTIZATIONS = (
    *("int8", "int8_float32", "int8_float16", "int8_bfloat16"),
    *("int16", "float16", "bfloat16", "float32"),
)
"""Data types in which CTranslate2 stores weights."""
TOKENIZERS = (
    *("13a", "intl", "none", "char", "zh", "ja-mecab", "ko-mecab"),
    *("flores101", "flores200"),
)
"""sacreBLEU's tokenizers for BLEU."""
METRICS = "bleu", "chrf", "chrf++", "ter", "spbleu"


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
    parser.add_argument("--version", action="version", version=__version__)
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
    corpora = "source and target file, their prefix or a .tsv; a text; LABEL<TAB>TEXT lines"
    add("--train", nargs="+", required=True, metavar="FILE", help=corpora)
    for split, name in (("dev", "development"), ("test", "test")):
        held_out = f"{name} set (held out of the training set)"
        add(f"--{split}", nargs="+", default=[], metavar="FILE", help=held_out)
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
    repeated = partial(add, action="append", default=[])
    repeated(
        "--with", type=path, dest="others", metavar="RUN", help="another model, for an ensemble"
    )
    add("--tag", metavar="SYMBOL", help="symbol before every line, as <news>")
    _add_output(translate)
    _add_search(translate)

    rerank = command("rerank", "rerank n-best lists of `translate --json --nbest N`")
    _add_files(rerank)
    add = rerank.add_argument
    add("--mbr", choices=["bleu", "chrf"], help="minimum Bayes risk by this metric")
    add("--posterior", action="store_true", help="weight candidates in --mbr by their probability")
    add("--backward", type=path, metavar="RUN", help="translation model of the other direction")
    add("--lm", type=path, metavar="RUN", help="language model of the target")
    repeated = partial(add, action="append", default=[])
    repeated("--field", metavar="NAME", help="a number that each candidate has; may be repeated")
    weights = "weight of score, mbr, backward, lm or a field (1; score: 0 with --mbr or --field)"
    repeated("--weight", type=weight, metavar="NAME=X", help=weights)
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
    others = "other translations or runs, each compared with the first"
    add("--against", type=path, nargs="+", default=[], metavar="HYP", help=others)
    _add_test_data(score)
    differ = "show scores by groups; of two systems, N lines each where they differ most"
    add("--lines", type=up_to(10_000, 0), metavar="N", help=differ)
    add_scores = partial(add, "--line-scores", nargs="+", action="append", default=[])
    numbers = "another metric (COMET, MetricX): a file for each system, a number for each line"
    add_scores(metavar=("NAME", "FILE"), help=numbers)
    add("--tokenize", choices=TOKENIZERS, help="sacreBLEU's tokenizer (the recipe's, or 13a)")
    names = f"{', '.join(METRICS)} (the first four)"
    add("--metrics", nargs="+", choices=METRICS, metavar="METRIC", help=names)
    add("--lowercase", action="store_true", help="ignore case")
    add("--json", action="store_true", help="print one JSON object")

    evaluate = command("evaluate", "loss and BLEU, bits per character or accuracy on a split")
    _add_run(evaluate)
    _add_batch_tokens(evaluate)
    _add_test_data(evaluate)
    add = evaluate.add_argument
    add("-o", "--output", type=path, metavar="FILE", help="keep the translations")
    stride = "stride of a language model's windows, in tokens (half a context)"
    add("--stride", type=count, metavar="N", help=stride)
    add("--json", action="store_true", help="print one JSON object")

    add = command("runs", "list runs, their state and scores").add_argument
    default = [Path("runs")]
    add(
        "folders",
        type=path,
        nargs="*",
        default=default,
        metavar="DIR",
        help="runs or folders (runs)",
    )
    add("--json", action="store_true", help="print a JSON list")

    average = command("average", "average the weights of several models of a run")
    average.add_argument("run", type=path, metavar="RUN", help="run directory")
    which = average.add_mutually_exclusive_group()
    which.add_argument("--last", type=count, default=5, metavar="N", help="checkpoints (5)")
    which.add_argument("--best", type=count, metavar="N", help="best models kept")
    average.add_argument(
        "-o", "--output", type=path, required=True, metavar="DIR", help="new folder"
    )

    export = command("export", "write a model in the format of another program")
    _add_run(export)
    add = export.add_argument
    add("--to", required=True, choices=EXPORT_FORMATS, help="docs/export.md")
    add("-o", "--output", type=path, required=True, metavar="DIR", help="new folder")
    add("--quantization", choices=QUANTIZATIONS, help="of ctranslate2 and argos (float32)")

    add = command("report", "write a page about runs: curves, data, samples").add_argument
    add("runs", type=path, nargs="+", metavar="RUN")
    add("-o", "--output", type=path, metavar="FILE", help="page to write (report.html)")
    add("--quick", action="store_true", help="no samples, and nothing that has to be computed")

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
    several = "the N best translations on one line: SCORE<TAB>LOG_PROB<TAB>TEXT for each"
    add("--nbest", type=up_to(10_000), default=1, metavar="N", help=several)
    add("--alignment", action="store_true", help="add a column of word alignments, as 0-0 1-2")
    form = group.add_mutually_exclusive_group().add_argument
    form("--scores", action="store_true", help="SCORE<TAB>LOG_PROB<TAB>TEXT")
    form("--json", action="store_true", help="write a JSON object for each line")
    add("--json-input", action="store_true", help="each input line is a JSON object with a text")
    add("--tokens", action="store_true", help="with --json: log-probabilities of the tokens")
    add("--no-split", action="store_false", dest="split", help="do not translate lines in parts")
    add_file = partial(add, type=path, metavar="FILE")
    add_file("--score-target", help="score these translations instead")
    add_file("--prefixes", help="beginning of each translation")
    add_file("--constraints", help="tab-separated terms that must appear in a line")
    add_file("--glossary", help="SOURCE<TAB>TERM: a term for the lines that contain SOURCE")


def _add_test_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", choices=["dev", "test"], default="test", help="of a run's data (test)")
    add("--data", metavar="PREFIX", help="other data, in the form of the recipe's data.test")


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key of a recipe's section `decoding`."""
    group = parser.add_argument_group(
        "search",
        "by default as the recipe's section `decoding` says; in brackets what it is where the "
        "recipe says nothing",
    )
    hints, defaults = get_type_hints(DecodingConfig), DecodingConfig()
    for name, text in SEARCH_HELP.items():
        hint, default = hints[name], getattr(defaults, name)
        if isinstance(default, bool):
            default = "yes" if default else "no"
        shown = "no limit" if default is None else default
        add = partial(group.add_argument, f"--{name.replace('_', '-')}", help=f"{text} ({shown})")
        if hint is bool:
            add(action=argparse.BooleanOptionalAction)
        elif get_origin(hint) is Literal:
            add(choices=get_args(hint))
        else:
            kind = next(kind for kind in (*get_args(hint), hint) if kind in (int, float))
            add(type=kind, metavar="N" if kind is int else "X")


def _add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="input (standard input)")
    add("-o", "--output", type=path, metavar="FILE", help="(standard output)")
    invalid = "for input that is not UTF-8: stop, or replace invalid bytes"
    add("--errors", choices=["strict", "replace"], default="strict", help=invalid)
