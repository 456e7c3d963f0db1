"""`seq2seq report`: one self-contained page about one run or several."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from seq2seq.config import to_yaml
from seq2seq.errors import UserError, named_output
from seq2seq.files import write_text
from seq2seq.report import charts as charts_module
from seq2seq.report.charts import Charts
from seq2seq.report.curves import curves_section, reached
from seq2seq.report.data_section import data_section
from seq2seq.report.page import page, paragraphs, table
from seq2seq.report.runs import RunRecord, differences, flat_recipe, read_run
from seq2seq.report.translation_samples import require_sentence
from seq2seq.task import load_task

WATCH_SECONDS = 60
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
    records = [read_run(path) for path in runs]
    tasks = {record.config.task for record in records if record.config}
    if len(tasks) > 1:
        raise UserError(
            f"the runs have different tasks, {' and '.join(sorted(tasks))}: a page each"
        )
    if sentence is not None:
        if not all(load_task(task).translates for task in tasks):
            raise UserError("--sentence is for translation models")
        if quick:
            raise UserError("--sentence shows a search, which --quick leaves out")
        require_sentence(runs, sentence)
    if len({record.path.resolve() for record in records}) < len(records):
        raise UserError("a run is given twice: name different runs")
    names = [record.name for record in records]
    if len(set(names)) < len(names):
        names = [str(record.path) for record in records]
    charts = Charts()
    body = [*_what(records, names), *_goals(records, names, goals)]
    body += curves_section(charts, records, names)
    body += data_section(charts, records[0], quick=quick)
    for record, name in zip(records, names, strict=True) if not quick else ():
        body += _samples(charts, record, name, device, sentence)
    body += _provenance(records, names)
    title = names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"
    text = page(title, [*body, charts.scripts()], style=charts_module.STYLE)
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


def _what(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return what the runs are and how far they got, and in what they differ."""
    rows = [["run", "status", "task", "updates", "minutes", "best score on dev", "device"]]
    for record, name in zip(records, names, strict=True):
        start: dict[str, Any] = dict(record.starts[-1]) if record.starts else {}
        best = "none yet" if record.best_score is None else (
            f"{record.best_score:.2f} {record.main_metric.replace('_', ' ')}")  # fmt: skip
        rows.append([
            name, record.status, record.config.task if record.config else "?",
            f"{record.updates:,}", f"{record.minutes:.1f}", best,
            f"{start.get('device', '?')}, {start.get('precision', '?')}",
        ])  # fmt: skip
    body = [table(rows, kind="text")]
    body += [paragraphs([f"{name}: {record.problem}"]) for record, name in
             zip(records, names, strict=True) if record.problem]  # fmt: skip
    if len(records) > 1:
        if records[0].config and load_task(records[0].config.task).translates:
            command = f"seq2seq score {records[0].path} --against {records[1].path} --html FILE"
            body.append(paragraphs([COMPARE.format(command=command)], "note"))
        recipes = [flat_recipe(record) for record in records]
        keys = sorted({key for own in differences(records) for key in own or {}})
        rows = [["key", *names]]
        for key in keys:
            values = [json.dumps(recipe.get(key), ensure_ascii=False) for recipe in recipes]
            rows.append([key, *(value if recipe else "?" for value, recipe in
                                zip(values, recipes, strict=True))])  # fmt: skip
        body.append("<h2>Differences of the recipes</h2>")
        same = paragraphs(["The recipes are equal."])
        body.append(table(rows, kind="text") if keys else same)
    return body


def _goals(records: Sequence[RunRecord], names: Sequence[str], goals: Sequence[float]) -> list[str]:
    """Return when each run first reached the scores."""
    if not goals:
        return []
    rows = [[f"dev {records[0].main_metric}", *names]]
    for goal in goals:
        cells = []
        for record in records:
            each = reached(record, goal)
            cells.append("never" if each is None else
                         f"{each['minutes']:.1f} min, update {each['updates']:,.0f}")  # fmt: skip
        rows.append([f"{goal:g}", *cells])
    return ["<h2>Time to a score</h2>", table(rows)]


def _samples(
    charts: Charts, record: RunRecord, name: str, device: str, sentence: str | None
) -> list[str]:
    """Return what the model does, or why that cannot be shown."""
    if not record.config:
        return []
    task, before = load_task(record.config.task), dict(charts.specs)
    try:
        return task.samples(charts, record.path, name, device, sentence)
    except UserError as error:
        logger.warning("no samples of %s: %s", record.path, error)
        charts.specs = before
        return [f"<h2>{escape(name)}</h2>", paragraphs([f"There are no samples: {error}"])]


def _provenance(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return versions, commits and hardware of each start, and the recipes."""
    rows = [["run", "started", "from update", "commit", "device", "precision", "packages"]]
    for record, name in zip(records, names, strict=True):
        for start in record.starts:
            packages = start.get("packages", {})
            listed = ", ".join(f"{key} {value}" for key, value in packages.items())
            rows.append([
                name, str(start["time"]), str(start.get("step", "?")),
                str(start.get("commit") or "unknown")[:12], str(start.get("device", "?")),
                str(start.get("precision", "?")), listed,
            ])  # fmt: skip
    body = ["<h2>Where it comes from</h2>", table(rows, kind="text")]
    for record, name in zip(records, names, strict=True):
        if record.config:
            text = escape(to_yaml(record.config))
            body.append(f"<details><summary>Recipe of {escape(name)}</summary><pre>{text}</pre>"
                        "</details>")  # fmt: skip
    written = datetime.now().astimezone().isoformat(" ", "minutes")
    return [*body, paragraphs([f"Written {written} by seq2seq."], "note")]
