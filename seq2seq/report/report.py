"""`seq2seq report`: one self-contained page about one run or several."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config import to_yaml
from seq2seq.errors import UserError, named_output
from seq2seq.extras import require_extra
from seq2seq.files import write_text
from seq2seq.report.data_section import data_section
from seq2seq.report.page import Charts, Rows, details, line_chart, page, paragraphs, table
from seq2seq.report.runs import COLUMNS, RunRecord, differences, flat_recipe, read_run
from seq2seq.report.samples import require_sentence, samples
from seq2seq.training.records import METRICS, tokens_until

WATCH_SECONDS = 60
MOST_POINTS = 3_000
"""Of all runs together; a page of ten megabytes cannot be mailed."""
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
COMPARE = (
    "The best of several scores on the development set does not show which run is better: "
    "{command} compares them on the test set, and says what chance alone does."
)

logger = logging.getLogger(__name__)


def write_report(
    runs: Sequence[Path],
    output: Path,
    *,
    device: str,
    quick: bool = False,
    sentence: str | None = None,
    goals: Sequence[float] = (),
) -> list[RunRecord]:
    """Write a page about runs of one task; return what is known of them.

    quick: without samples, which need the models and a minute each, and without reading the data.
    sentence: a source whose beam search is shown. goals: scores for which to say when each run
    reached them.
    """
    require_extra("vl-convert-python", "seq2seq report (the extra report)")
    records = [read_run(path) for path in runs]
    tasks = {record.config.task for record in records if record.config}
    if len(tasks) > 1:
        raise UserError(
            f"the runs have different tasks, {' and '.join(sorted(tasks))}: a page each"
        )
    if sentence is not None:
        if quick:
            raise UserError("--sentence shows a search, which --quick leaves out")
        require_sentence(runs, sentence)
    short = len({record.name for record in records}) == len(records)
    named = {record.name if short else str(record.path): record for record in records}
    charts = Charts()
    body = _what(named)
    if goals:
        rows = [[f"dev {records[0].main_metric}", *named]]
        rows += [[f"{goal:g}", *(record.reached(goal) for record in records)] for goal in goals]
        body += ["<h2>Time to a score</h2>", table(rows)]
    body += _curves(charts, named)
    body += data_section(records[0], quick=quick)
    for name, record in named.items() if not quick else ():
        logger.info("samples of %s: some seconds", name)
        body += _samples(charts, record, name, device, sentence)
    body += _provenance(named)
    title = ", ".join(named) if len(named) == 1 else f"{len(named)} runs: {', '.join(named)}"
    text = page(title, [*body, charts.scripts()])
    with named_output(output):
        write_text(output.resolve(), text)
    return records


def watch_report(runs: Sequence[Path], output: Path, **options: Any) -> None:
    """Write the page again every minute, as long as one of the runs is running."""
    while True:
        records = write_report(runs, output, **options)
        if not any(record.status == "running" for record in records):
            return
        logger.info("%s written; again in %d s, Ctrl-C ends", output, WATCH_SECONDS)
        time.sleep(WATCH_SECONDS)


def _what(runs: Mapping[str, RunRecord]) -> list[str]:
    """Return what the runs are and how far they got, and in what they differ."""
    rows = [["run", *COLUMNS, "device"]]
    for name, record in runs.items():
        start = record.starts[-1] if record.starts else {}
        device = f"{start.get('device', '?')}, {start.get('precision', '?')}"
        rows.append([name, *record.cells(), device])
    body = [table(rows, kind="text")]
    body += [paragraphs([f"{name}: {each.problem}"]) for name, each in runs.items() if each.problem]
    if len(runs) == 1:
        return body
    records = list(runs.values())
    if records[0].config and records[0].config.translates:
        command = f"seq2seq score {records[0].path} --against {records[1].path}"
        body.append(paragraphs([COMPARE.format(command=command)], "note"))
    recipes = [flat_recipe(record) for record in records]
    keys = sorted({key for own in differences(records) for key in own or {}})
    rows = [["key", *runs]]
    for key in keys:
        values = [json.dumps(own.get(key), ensure_ascii=False) if own else "?" for own in recipes]
        rows.append([key, *values])
    shown = table(rows, kind="text") if keys else paragraphs(["The recipes are equal."])
    return [*body, "<h2>Differences of the recipes</h2>", shown]


def curve_rows(runs: Mapping[str, RunRecord], kind: str) -> Rows:
    """Return the metrics of a kind of all runs, thinned out, with updates, tokens and minutes."""
    fields = TRAINING if kind == "train" else SCORES
    most = max(2, MOST_POINTS // max(1, len(runs)))
    rows: Rows = []
    for name, record in runs.items():
        found = record.of_kind(kind)
        steps, tokens = tokens_until(record.metrics)
        chosen = sorted({round(i) for i in np.linspace(0, len(found) - 1, min(len(found), most))})
        for each in (found[i] for i in chosen):
            row = {
                "run": name,
                "updates": each["step"],
                "tokens": round(float(np.interp(each["step"], steps, tokens)) / 1e6, 4),
                "minutes": round(float(each.get("minutes", 0.0)), 3),
            }
            row |= {key: _short(each[key]) for key in fields if key in each}
            rows.append(row)
    return rows


def _short(value: float) -> float | None:
    """Return a number of five digits, which takes less space; None for NaN, which JSON lacks."""
    return float(f"{float(value):.5g}") if np.isfinite(float(value)) else None


def _curves(charts: Charts, runs: Mapping[str, RunRecord]) -> list[str]:
    """Return the curves of all runs, with a choice of the axis."""
    charts.data["train"] = curve_rows(runs, "train")
    charts.data["validation"] = curve_rows(runs, "validation")
    figures = []
    for data, fields in (("validation", SCORES), ("train", TRAINING)):
        for field, title in fields.items():
            if any(row.get(field) is not None for row in charts.data[data]):
                short = title.partition(": ")[2].partition(" (")[0]
                spec = line_chart(data, field, short, points=data != "train")
                figures.append(charts.add(title, spec))
    if not figures:
        return ["<h2>Curves</h2><p>No metrics have been logged yet.</p>"]
    choice = (
        '<p><label>over <select id="axis"><option>updates</option><option value="tokens">million '
        "target tokens</option><option>minutes</option></select></label></p>"
    )
    return ["<h2>Curves</h2>", choice, f'<div class="charts">{"".join(figures)}</div>']


def _samples(
    charts: Charts, record: RunRecord, name: str, device: str, sentence: str | None
) -> list[str]:
    """Return what the model does, or why that cannot be shown."""
    if not record.config:
        return []
    before = dict(charts.specs)
    try:
        return samples(charts, record.config, record.path, name, device, sentence)
    except UserError as error:
        logger.warning("no samples of %s: %s", record.path, error)
        charts.specs = before
        return [f"<h2>{escape(name)}</h2>", paragraphs([f"There are no samples: {error}"])]


def _provenance(runs: Mapping[str, RunRecord]) -> list[str]:
    """Return versions, commits and hardware of each start, and the recipes."""
    rows = [["run", "started", "from update", "commit", "device", "precision", "packages"]]
    for name, record in runs.items():
        for start in record.starts:
            packages = start.get("packages", {})
            listed = ", ".join(f"{key} {value}" for key, value in packages.items())
            commit = str(start.get("commit") or "unknown")[:12]
            step, device, precision = (
                str(start.get(key, "?")) for key in ("step", "device", "precision")
            )
            rows.append([name, start["time"], step, commit, device, precision, listed])
    body = ["<h2>Where it comes from</h2>", table(rows, kind="text")]
    for name, record in runs.items():
        if record.config:
            text = f"<pre>{escape(to_yaml(record.config))}</pre>"
            body.append(details(f"Recipe of {name}", text))
    written = datetime.now().astimezone().isoformat(" ", "minutes")
    return [*body, paragraphs([f"Written {written} by seq2seq."], "note")]
