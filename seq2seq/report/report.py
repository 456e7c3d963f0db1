"""`seq2seq report`: an HTML page about one or more runs that needs no network.

Charts use Vega-Lite. Its embedded JavaScript takes 0.9 MB (plotly: 1.1 to 4.5 MB). The charts are
SVG in the colours of the page, print well and show values under the pointer, unlike matplotlib's.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any

from seq2seq.config import Config, to_yaml
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.classification import TextClassifier
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.rules import Sampling
from seq2seq.decoding.translation import END, Candidate
from seq2seq.decoding.translator import Translation, Translator
from seq2seq.errors import UserError, named_output, require_extra
from seq2seq.evaluation.systems import split_of_run
from seq2seq.files import output_file
from seq2seq.formats.model_directory import find_model
from seq2seq.preparation.cleaning import RULES
from seq2seq.report.runs import COLUMNS, RunRecord, differences, flat_recipe, read_run
from seq2seq.training.records import METRICS

MOST_POINTS = 3_000
"""Maximum number of points of each kind of curve, all runs together. It limits the page size."""
TRAINING = {
    "loss": "Training: loss (nats per target token)",
    "lr": "Training: learning rate (per update)",
    "gradient_norm": "Training: norm of the gradient (before clipping)",
    "tokens_per_second": "Training: speed (target tokens per second)",
    "memory_gib": "Training: memory (GiB)",
}
SCORES = {
    name: f"Development set: {metric.title}" for name, metric in METRICS.items() if metric.title
}
NUM_SAMPLES = 8
"""Maximum number of translations."""
NUM_TEXTS, TEXT_TOKENS = 3, 400
"""Number and length of the samples of a language model."""
NUM_ERRORS = 10
MAX_CLASSIFIED = 5_000
MAX_CHARACTERS = 400
"""Number of characters of a classified text that are shown."""

logger = logging.getLogger(__name__)


def write_report(runs: Sequence[Path], output: Path, *, device: str, quick: bool = False) -> None:
    """Write a page about runs. quick: leave out samples (up to a minute per run)."""
    require_extra("vl-convert-python", "seq2seq report (the extra report)")
    records = {str(path): read_run(path) for path in runs}
    body = [*_summary(records), *_curves(records), *_data(records[str(runs[0])])]
    for name, record in records.items():
        if record.config and not quick:
            logger.info("samples of %s: up to a minute", name)
            body += _samples(record.config, record.path, name, device)
    body += _provenance(records)
    with named_output(output), output_file(output) as stream:
        stream.write(page(", ".join(records), body).encode())


def _summary(runs: Mapping[str, RunRecord]) -> list[str]:
    """Return tables of the runs with their progress, and of the differences of their recipes."""
    rows = [["run", *COLUMNS], *(row for name, record in runs.items() for row in record.rows(name))]
    body = [table(rows, kind="text")]
    problems = [f"{name}: {run.problem}" for name, run in runs.items() if run.problem]
    body += [f"<p>{escape(problem)}</p>" for problem in problems]
    if len(runs) == 1:
        return body
    records = list(runs.values())
    recipes = [flat_recipe(record) for record in records]
    keys = sorted({key for changed in differences(records) for key in changed or {}})
    rows = [["key", *runs]]
    for key in keys:
        values = [json.dumps(r.get(key), ensure_ascii=False) if r else "?" for r in recipes]
        rows.append([key, *values])
    return [*body, "<h2>Differences between recipes</h2>", table(rows, kind="text")]


def curve_rows(runs: Mapping[str, RunRecord]) -> list[dict[str, Any]]:
    """Return the finite metrics of all runs, subsampled, with updates and minutes."""
    limit = MOST_POINTS // len(runs)
    rows: list[dict[str, Any]] = []
    for name, record in runs.items():
        for kind, fields in (("train", TRAINING), ("validation", SCORES)):
            records = record.of_kind(kind)
            every = len(records) // limit + 1
            for metrics in records[::-every][::-1]:  # with the newest record
                row = {"run": name, "updates": metrics["step"], "minutes": metrics["minutes"]}
                known = [key for key in fields if math.isfinite(metrics.get(key, math.nan))]
                rows.append(row | {key: float(f"{metrics[key]:.5g}") for key in known})
    return rows


def _curves(runs: Mapping[str, RunRecord]) -> list[str]:
    """Return the curves of all runs, with a menu for the horizontal axis."""
    rows = curve_rows(runs)
    titles = SCORES | TRAINING
    titles = {key: titles[key] for key in titles if any(key in row for row in rows)}
    if not titles:
        return ["<h2>Curves</h2><p>No metrics have been logged yet.</p>"]
    return ["<h2>Curves</h2>", line_charts(rows, titles)]


def _data(record: RunRecord) -> list[str]:
    """Return tables of the corpora, splits and dropped pairs of a run."""
    manifest: dict[str, Any] = record.starts[-1]["data"] if record.starts else {}
    if not manifest:
        return []
    splits = manifest["splits"]
    rows = [["split", "pairs or tokens"]]
    for name, facts in splits.items():
        rows.append([name, f"{facts.get('pairs', facts.get('tokens', 0)):,}"])
    inputs = [["corpus", "size", "SHA-256"]]
    for source in manifest["inputs"]:
        size = f"{source['bytes']:,} bytes" if "bytes" in source else ""
        inputs.append([source.get("file") or source["dataset"], size, source["sha256"][:16]])
    body = ["<h2>Data</h2>", table(rows), table(inputs, kind="text")]
    if "read" not in (train := splits["train"]):
        return body  # of a language model
    rows = [["", "pairs", ""], ["read", f"{train['read']:,}", ""]]
    for rule, count in train["dropped"].items():
        rows.append([f"dropped: {rule}", f"{count:,}", RULES[rule]])
    rows.append(["kept", f"{train['pairs']:,}", ""])
    return [*body, "<h3>Cleaning</h3>", table(rows)]


def _samples(config: Config, run: Path, name: str, device: str) -> list[str]:
    """Return samples of the best model of a run, as HTML, or the reason why there are none."""
    sections = {"translation": _translation_samples, "language_model": _text_samples}
    try:
        body = sections.get(config.task, _classifications)(config, run, device)
    except UserError as error:
        logger.warning("no samples of %s: %s", run, error)
        body = [f"<p>No samples: {escape(str(error))}</p>"]
    return [f"<h2>{escape(name)}: the development set</h2>", *body]


def _translation_samples(config: Config, run: Path, device: str) -> list[str]:
    sets = split_of_run(config, run, "dev", Tokenizer.load(find_model(run))).sets("dev")
    body = [
        "<h3>Samples</h3>",
        "<p>Dark tokens have a low probability. Point at a token for its probability.</p>",
    ]
    load = cache(lambda tag: Translator.load(run, device=device, tag=tag))
    for direction, store in sets.items():
        translator = load(config.pairs.tag("dev", direction))
        sources, references = store.texts()
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        chosen = order[:: len(order) * len(sets) // NUM_SAMPLES + 1]  # of all lengths
        texts = [sources[i] for i in chosen]
        width = min(5, translator.decoding.beam)
        results = translator.translations(texts, tokens=True, nbest=width, to=direction.target)
        pairs = zip(chosen, results, strict=True)
        body += [f"<h4>{direction}</h4>"] if len(sets) > 1 else []
        body += [_translation(sources[i], references[i], result) for i, result in pairs]
    return body


def _translation(source: str, reference: str, result: Translation) -> str:
    """Return a table of one translation, and its n-best list."""
    best = result.nbest[0] if result.nbest else None
    found = _tokens(best) if best else escape(result.error or "")
    cells = {"source": escape(source), "reference": escape(reference), "translation": found}
    rows = "".join(f"<tr><th>{name}</th><td>{cell}</td></tr>" for name, cell in cells.items())
    nbest = [["score", "log-probability", "translation"]]
    nbest += [[f"{h.score:.3f}", f"{h.log_prob:.2f}", h.text] for h in result.nbest]
    return (
        f'<table class="text">{rows}</table><details><summary>{len(result.nbest)}-best list'
        f"</summary>{table(nbest, kind='text')}</details>"
    )


def _tokens(hypothesis: Candidate) -> str:
    """Return the tokens of a translation, shaded by their probability."""
    spans = []
    for piece, log_prob in zip([*hypothesis.pieces, END], hypothesis.log_probs, strict=True):
        prob = math.exp(log_prob)
        shade = f"background: rgba(224, 128, 47, {0.75 * (1 - prob):.2f})"
        text = escape(piece.replace("▁", " ")) or "&nbsp;"
        spans.append(f'<span style="{shade}" title="{prob:.1%}">{text}</span>')
    return f'<span style="white-space: pre-wrap">{"".join(spans)}</span>'


def _text_samples(config: Config, run: Path, device: str) -> list[str]:
    generator = TextGenerator.load(run, device=device)
    sampling = Sampling(temperature=0.8)
    parts = generator.generate(length=TEXT_TOKENS, sampling=sampling, seed=1, samples=NUM_TEXTS)
    texts = map("".join, zip(*parts, strict=True))
    blocks = [f'<pre style="white-space: pre-wrap">{escape(text)}</pre>' for text in texts]
    return ["<h3>Samples</h3>", "<p>Temperature 0.8, seed 1.</p>", *blocks]


def _classifications(config: Config, run: Path, device: str) -> list[str]:
    """Return the confusion matrix and the most confident errors."""
    classifier = TextClassifier.load(run, device=device)
    data = split_of_run(config, run, "dev", classifier.tokenizer)
    texts, labels = data.store("dev").texts(MAX_CLASSIFIED)
    predictions = classifier.classify(texts)
    counts: Counter[tuple[str, str]] = Counter()
    errors = []
    for text, label, prediction in zip(texts, labels, predictions, strict=True):
        if prediction:
            predicted, prob = prediction
            counts[label, predicted] += 1
            if predicted != label:
                errors.append((prob, label, predicted, text))
    target = classifier.tokenizer.target
    names = target.pieces(range(target.size))
    confusion = [["true \\ predicted", *names]]
    confusion += [[label, *(f"{counts[label, name]:,}" for name in names)] for label in names]
    rows = [["true", "predicted", "probability", "text"]]
    for prob, label, predicted, text in sorted(errors, reverse=True)[:NUM_ERRORS]:
        rows.append([label, predicted, f"{prob:.1%}", shorten(text, MAX_CHARACTERS)])
    return [
        "<h3>Confusion matrix</h3>",
        table(confusion),
        "<h3>Most confident errors</h3>",
        f"<p>Errors: {len(errors):,} of {counts.total():,} texts.</p>",
        table(rows, kind="text"),
    ]


def _provenance(runs: Mapping[str, RunRecord]) -> list[str]:
    """Return versions, commit and hardware of each start, and the recipes."""
    rows = [["run", "started", "from update", "device", "precision", "commit", "packages"]]
    for name, record in runs.items():
        for start in record.starts:
            packages = ", ".join(f"{key} {value}" for key, value in start["packages"].items())
            facts = [str(start[key]) for key in ("time", "step", "device", "precision")]
            rows.append([name, *facts, str(start["commit"] or "unknown")[:12], packages])
    body = ["<h2>Provenance</h2>", table(rows, kind="text")]
    for name, record in runs.items():
        if record.config:
            title, text = escape(f"Recipe of {name}"), escape(to_yaml(record.config))
            body.append(f"<details><summary>{title}</summary><pre>{text}</pre></details>")
    return body


def _asset(name: str) -> str:
    return files("seq2seq.report").joinpath(name).read_text("utf-8")


def page(title: str, body: Sequence[str]) -> str:
    """Return an HTML page; body: parts of it, as HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def table(rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """Return an HTML table; the first row is the header, cells are text. kind: CSS class."""
    lines = []
    for row, tag in zip(rows, ("th", *("td" for _ in rows[1:])), strict=True):
        lines.append(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>")
    return f'<div class="scroll"><table class="{kind}">{"".join(lines)}</table></div>'


def line_charts(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Return the HTML of charts, with their script: one for each field, a curve for each run.

    rows: with `run`, `updates`, `minutes` and any of the fields. titles: titles by field.
    """
    import vl_convert

    spec = json.loads(_asset("curves.json"))
    spec["data"] = {"values": rows}
    spec["transform"][0]["fold"] = spec["facet"]["sort"] = list(titles)
    spec["facet"]["header"]["labelExpr"] = f"{json.dumps(titles)}[datum.value]"
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # `</script>` in a text must not end the script
    code = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    code = code.replace("</script", "<\\/script")
    options = '{bind: "#axis", actions: false, renderer: "svg"}'
    return (
        '<div id="axis"></div><div id="curves" class="scroll"></div>'
        f'<script type="module">{code}\nvegaEmbed("#curves", {text}, {options});</script>'
    )
