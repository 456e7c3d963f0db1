"""Command line arguments of all commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin, get_type_hints

from seq2seq import __version__
from seq2seq.cli import commands
from seq2seq.config import TASKS, DecodingConfig, attribute_docs
from seq2seq.errors import did_you_mean

EXPORT_FORMATS = "ctranslate2", "huggingface", "argos", "browser", "seq2seq"
INTEGERS = "int8", "int8_float32", "int8_float16", "int8_bfloat16"
QUANTIZATIONS = *INTEGERS, "float16", "bfloat16", "float32"
"""Data types in which CTranslate2 stores weights."""
TOKENIZERS = ["13a", "intl", "none", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200"]
"""Tokenizers of sacreBLEU for BLEU."""
METRICS = "bleu", "chrf", "chrf++", "ter", "spbleu"


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, with a suggestion for a misspelt choice."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        separator = "" if message.endswith(("?", ";")) else ";"
        self.exit(2, f"{self.prog}: error: {message}{separator} see `{self.prog} --help`\n")


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def minutes(text: str) -> float:
    """Parse a number of minutes, an integer or a decimal number."""
    number = float(text)
    if not 0.1 <= number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 1,000,000")
    return number


def path(text: str) -> Path:
    """Parse a path; an empty one is an error."""
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def weight(text: str) -> tuple[str, float]:
    """Parse NAME=X; return the name and the number."""
    name, _, number = text.rpartition("=")
    return name, float(number)


def pair(text: str) -> tuple[str, str, str]:
    """Parse SOURCE-TARGET:PREFIX. Languages may have a region: en-pt-br, pt-BR-en."""
    languages, _, prefix = text.partition(":")
    found = re.fullmatch(r"(\w+(?:-[A-Z]\w+)?)-(\w+(?:-\w+)?)", languages)
    if not (found and prefix):
        raise argparse.ArgumentTypeError(f"{text!r} is not like en-de:corpus/de")
    return found[1], found[2], prefix


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments. Options may come between the last positional arguments."""
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    positionals = options.parser._get_positional_actions()
    several = [action for action in positionals if action.nargs in ("*", "+")]
    if unknown := [text for text in rest if text.startswith("-") or not several]:
        flags = options.parser._option_string_actions
        name = unknown[0].partition("=")[0]
        options.parser.error(f"unknown argument {unknown[0]}{did_you_mean(name, flags)}")
    for action in several:
        getattr(options, action.dest).extend(map(action.type or str, rest))
    return options


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="seq2seq",
        description="Train and run Transformers that translate, generate or classify text.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(command=lambda _: parser.exit(2, parser.format_help()), parser=parser)

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        subparser.set_defaults(command=getattr(commands, name), parser=subparser)
        return subparser

    add = command("new", "write a recipe for your own files, sized for this machine").add_argument
    add("name", metavar="NAME", help="name of recipes/NAME.yaml and runs/NAME")
    add("--task", choices=list(TASKS), default="translation", help="task (translation)")
    add("--from", type=path, dest="run", metavar="RUN", help="fine-tune this model")
    add("--source", default="", metavar="LANGUAGE", help="source language, such as en")
    add("--target", default="", metavar="LANGUAGE", help="target language, such as de")
    corpora = "parallel files, PREFIX or a .tsv; a text; or LABEL<TAB>TEXT lines"
    add("--train", nargs="+", default=[], metavar="FILE", help=corpora)
    several = "corpora of several directions, such as en-de:corpus/de en-fr:corpus/fr"
    add("--pairs", nargs="+", type=pair, default=[], metavar="SOURCE-TARGET:PREFIX", help=several)
    for split, name in (("dev", "development"), ("test", "test")):
        held_out = f"{name} set (held out from the training set)"
        add(f"--{split}", nargs="+", default=[], metavar="FILE", help=held_out)
    add("--minutes", type=minutes, default=15.0, metavar="N", help="training time in minutes (15)")

    _add_recipe(command("prepare", "train the tokenizer of a recipe and encode its data"))

    train = command("train", "train the model of a recipe, or resume its run")
    _add_recipe(train)
    add = train.add_argument
    add("--run", type=path, metavar="DIR", help="run directory (runs/NAME)")
    add("--print-config", action="store_true", help="print the resolved recipe and exit")

    translate = command("translate", "translate lines of text")
    _add_run(translate)
    _add_files(translate)
    add = translate.add_argument
    repeated = partial(add, action="append", default=[])
    repeated("--with", type=path, dest="others", metavar="RUN", help="add a model to the ensemble")
    _add_languages(translate)
    add("--tag", metavar="SYMBOL", help="tag to prepend to each line, such as <news>")
    patterns = "spans to keep: all, a name (docs/text.md) or NAME=REGEX; may be repeated"
    repeated("--protect", metavar="PATTERN", help=f"{patterns} (the recipe's)")
    formats = "translate a document: html, xml, xliff, po, srt or markdown (by the name of FILE)"
    add("--format", metavar="FORMAT", help=f"{formats}; text: lines")
    _add_output(translate)
    _add_search(translate)

    rerank = command("rerank", "rerank n-best lists of `translate --json --nbest N`")
    _add_files(rerank)
    add = rerank.add_argument
    add("--mbr", choices=["bleu", "chrf"], help="minimum Bayes risk with this metric")
    add("--backward", type=path, metavar="RUN", help="translation model in the reverse direction")
    add("--lm", type=path, metavar="RUN", help="language model of the target language")
    repeated = partial(add, action="append", default=[])
    repeated("--field", metavar="NAME", help="numeric field of the candidates; may be repeated")
    weights = "weight of score, mbr, backward, lm or a field (1; score: 0 with --mbr or --field)"
    repeated("--weight", type=weight, metavar="NAME=X", help=weights)
    add("--text", action="store_true", help="write the best translations as text instead of JSON")

    generate = command("generate", "generate text with a language model")
    _add_run(generate)
    add = generate.add_argument
    add("--prompt", default="", metavar="TEXT", help="beginning of the text")
    add("--length", type=count, default=500, metavar="N", help="number of tokens (500)")
    add("--temperature", type=float, default=1.0, metavar="T", help="temperature; 0 is greedy (1)")
    add("--top-k", type=int, metavar="K", help="sample from the K most probable tokens")
    add("--top-p", type=float, metavar="P", help="nucleus sampling with total probability P")
    add("--seed", type=int, metavar="N", help="random seed (different each time)")
    add("--samples", type=count, default=1, metavar="N", help="number of texts (1)")

    classify = command("classify", "classify lines of text: LABEL<TAB>PROBABILITY")
    _add_run(classify)
    _add_batch_tokens(classify)
    _add_files(classify)

    score = command("score", "compute BLEU, chrF2, chrF2++ and TER, and compare systems")
    add = score.add_argument
    add("hypothesis", type=path, metavar="HYP", help="file of translations, or a run")
    references = "reference files (not for runs)"
    add("references", type=path, nargs="*", default=[], metavar="REF", help=references)
    others = "files or runs to compare with HYP"
    add("--against", type=path, nargs="+", default=[], metavar="HYP", help=others)
    _add_test_data(score)
    differ = "show scores by length, and the N lines where the second system differs most"
    add("--lines", type=count, metavar="N", help=differ)
    add_scores = partial(add, "--line-scores", nargs="+", action="append", default=[])
    numbers = "scores of another metric (COMET, MetricX): a file per system, a number per line"
    add_scores(metavar=("NAME", "FILE"), help=numbers)
    add("--tokenize", choices=TOKENIZERS, help="sacreBLEU's tokenizer (the language's)")
    names = f"metrics: {', '.join(METRICS)} (the first four)"
    add("--metrics", nargs="+", choices=METRICS, metavar="METRIC", help=names)
    add("--lowercase", action="store_true", help="ignore case")
    add("--json", action="store_true", help="print one JSON object")

    evaluate = command("evaluate", "compute loss and BLEU, bits per character or accuracy")
    _add_run(evaluate)
    _add_batch_tokens(evaluate)
    _add_test_data(evaluate)
    add = evaluate.add_argument
    add("-o", "--output", type=path, metavar="FILE", help="write the translations to FILE")
    add("--robustness", action="store_true", help="add scores with typos, in lower case and others")
    stride = "language model: stride of the context window, in tokens (half a context)"
    add("--stride", type=count, metavar="N", help=stride)
    add("--json", action="store_true", help="print one JSON object")

    add = command("runs", "list runs with their status, scores and recipes").add_argument
    folders = "runs, or folders of runs (runs)"
    add("folders", type=path, nargs="*", default=[Path("runs")], metavar="DIR", help=folders)
    add("--json", action="store_true", help="print a JSON list")

    average = command("average", "average the weights of checkpoints of a run")
    average.add_argument("run", type=path, metavar="RUN", help="run directory")
    add = average.add_mutually_exclusive_group().add_argument
    last = "last N checkpoints (5); usually no gain after schedule=cosine"
    add("--last", type=count, default=5, metavar="N", help=last)
    add("--best", type=count, metavar="N", help="best N checkpoints")
    add = average.add_argument
    add("-o", "--output", type=path, required=True, metavar="DIR", help="new folder")

    export = command("export", "export a model to the format of another program")
    add = export.add_argument
    several = "run or model directory; --to browser takes several, one per direction"
    add("runs", type=path, nargs="+", metavar="RUN", help=several)
    _add_checkpoint(export)
    add("--to", required=True, choices=EXPORT_FORMATS, help="format (docs/export.md)")
    add("-o", "--output", type=path, required=True, metavar="DIR", help="new folder")
    add(
        "--quantization",
        choices=QUANTIZATIONS,
        help="of the weights (browser: int8; others: float32)",
    )
    _add_selection(export)
    kept = "drop the pieces of a pre-trained vocabulary that these texts do not need"
    add("--keep-pieces", type=path, nargs="+", default=[], metavar="FILE", help=kept)

    add = command("report", "write an HTML page about runs: curves, data, samples").add_argument
    add("runs", type=path, nargs="+", metavar="RUN", help="run directory")
    page = "page to write (report.html)"
    add("-o", "--output", type=path, default=Path("report.html"), metavar="FILE", help=page)
    add("--quick", action="store_true", help="leave out samples")

    serve = command("serve", "answer requests over HTTP, as LibreTranslate and DeepL")
    add = serve.add_argument
    add("runs", type=path, nargs="+", metavar="RUN", help="runs, models or exported models")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=5000, metavar="N", help="port (5000)")
    add("--pivot", metavar="LANGUAGE", help="translate other pairs through this language")
    _add_selection(serve)
    add("--keys", type=path, metavar="FILE", help="API keys, one per line (no keys)")
    add("--rate", type=count, default=0, metavar="N", help="requests per minute and key (no limit)")
    proxy = "trust the X-Forwarded headers of this address or network (none)"
    add("--proxy", type=ip_network, action="append", default=[], metavar="ADDRESS", help=proxy)
    add("--max-characters", type=count, default=100_000, metavar="N", help="of a text (100000)")

    command("doctor", "check the installation with a short self-test")
    return parser


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", type=path, metavar="RECIPE", help="YAML file")
    changes = "override a value of the recipe"
    add("overrides", nargs="*", default=[], metavar="section.key=value", help=changes)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=path, metavar="RUN", help="run or model directory")
    _add_checkpoint(parser)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="NAME", help="step_N, last or averaged (best)")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    only = "only directions between these languages (all)"
    parser.add_argument("--languages", nargs="+", default=[], metavar="LANGUAGE", help=only)


def _add_batch_tokens(parser: argparse.ArgumentParser) -> None:
    size = "batch size in tokens (the recipe's)"
    parser.add_argument("--batch-tokens", type=count, metavar="N", help=size)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input and output")
    add = group.add_argument
    several = "write the N best translations: SCORE<TAB>LOG_PROB<TAB>TEXT, repeated on one line"
    add("--nbest", type=count, default=1, metavar="N", help=several)
    add("--alignment", action="store_true", help="add a column of word alignments, such as 0-0 1-2")
    form = group.add_mutually_exclusive_group().add_argument
    form("--scores", action="store_true", help="write SCORE<TAB>LOG_PROB<TAB>TEXT")
    form("--json", action="store_true", help="write a JSON object for each line")
    add("--json-input", action="store_true", help="read a JSON object from each line")
    add("--tokens", action="store_true", help="with --json: add tokens and their log-probabilities")
    add_file = partial(add, type=path, metavar="FILE")
    add_file("--score-target", help="score the translations in FILE instead of translating")
    add_file("--prefixes", help="force each translation to begin with a line of FILE")
    add_file("--constraints", help="terms that a translation must contain, tab-separated")
    add_file("--glossary", help="SOURCE<TAB>TERM: use TERM if a line contains SOURCE")


def _add_test_data(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", choices=["dev", "test"], default="test", help="split of the data (test)")
    add("--data", metavar="PREFIX", help="other test data, in the format of data.test in a recipe")
    _add_languages(parser)


def _add_languages(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--to", default="", metavar="LANGUAGE", help="target language, if the model has several")
    several = "source language, if the model has several (identified where it matters)"
    add("--from", dest="source", default="", metavar="LANGUAGE", help=several)


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add an option for each recipe key in `decoding` that `translate` uses."""
    group = parser.add_argument_group(
        "search",
        "options override the recipe's section `decoding`; in parentheses the defaults of recipes",
    )
    docs = attribute_docs(DecodingConfig)
    for name, hint in get_type_hints(DecodingConfig).items():
        if name == "validation_beam":
            continue
        text = " ".join(docs[name].removesuffix(".").split())
        default = getattr(DecodingConfig, name)
        if hint is bool:
            default = "yes" if default else "no"
        shown = "" if default is None else f" ({default})"
        flag = f"--{name.replace('_', '-')}"
        add = partial(group.add_argument, flag, help=f"{text[0].lower()}{text[1:]}{shown}")
        if hint is bool:
            add(action=argparse.BooleanOptionalAction)
        elif get_origin(hint) is Literal:
            add(choices=get_args(hint))
        else:
            kind = next(kind for kind in (*get_args(hint), hint) if kind in (int, float))
            add(type=kind, metavar="N" if kind is int else "X")


def _add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", type=path, nargs="*", default=[], metavar="FILE", help="input (standard input)")
    add("-o", "--output", type=path, metavar="FILE", help="output (standard output)")
    invalid = "invalid UTF-8 input: stop, or replace invalid bytes (strict)"
    add("--errors", choices=["strict", "replace"], default="strict", help=invalid)
