"""The curves of runs: loss, scores, learning rate, gradient, speed and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seq2seq.report.charts import Charts, Rows, line_chart
from seq2seq.report.runs import RunRecord
from seq2seq.training.records import METRICS, tokens_until

MOST_POINTS = 3_000
"""Of all runs together; a page of ten megabytes cannot be mailed."""
TRAINING = {
    "loss": "Training: loss (nats per target token)",
    "lr": "Training: learning rate (per update)",
    "gradient_norm": "Training: norm of the gradient (before clipping)",
    "tokens_per_second": "Training: speed (target tokens per second)",
    "mfu_percent": "Training: MFU (per cent of the measured peak FLOP/s)",
    "memory_gib": "Training: memory (GiB)",
}
SCORES = {
    name: f"Development set: {metric.title}" for name, metric in METRICS.items() if metric.title
}


def curve_rows(records: Sequence[RunRecord], names: Sequence[str], kind: str) -> Rows:
    """Return the metrics of a kind of all runs, thinned out, with updates, tokens and minutes."""
    fields = TRAINING if kind == "train" else SCORES
    most = max(2, MOST_POINTS // max(1, len(records)))
    rows: Rows = []
    for record, name in zip(records, names, strict=True):
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
            values = each | ({"mfu_percent": 100 * each["mfu"]} if "mfu" in each else {})
            row |= {key: _short(values[key]) for key in fields if key in values}
            rows.append(row)
    return rows


def _short(value: float) -> float | None:
    """Return a number of five digits, which takes less space; None for NaN, which JSON lacks."""
    return float(f"{float(value):.5g}") if np.isfinite(float(value)) else None


def curves_section(charts: Charts, records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return the curves of all runs, with a choice of the axis."""
    charts.data["train"] = curve_rows(records, names, "train")
    charts.data["validation"] = curve_rows(records, names, "validation")
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
        '<p><label>over <select id="axis"><option>updates</option><option>tokens</option>'
        "<option>minutes</option></select></label></p>"
    )
    return ["<h2>Curves</h2>", choice, f'<div class="charts">{"".join(figures)}</div>']


def reached(record: RunRecord, goal: float) -> dict[str, float] | None:
    """Return minutes and updates of the first validation whose main metric reaches a goal."""
    metric = record.main_metric
    for each in record.of_kind("validation"):
        if metric not in each:
            continue
        value = float(each[metric])
        if value <= goal if METRICS[metric].lower_is_better else value >= goal:
            return {"minutes": float(each.get("minutes", 0.0)), "updates": float(each["step"])}
    return None
