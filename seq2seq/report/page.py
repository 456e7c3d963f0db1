"""Self-contained HTML pages: style, headings, tables and charts. Nothing is loaded from a net.

Charts are by Vega-Lite, whose JavaScript is embedded. Its code takes 0.9 MB (plotly's 1.1 to 4.5
MB), its charts are SVG that follows the page's colours and prints well, and points are read under
the pointer; matplotlib's SVG has no pointer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

STYLE = """
:root { color-scheme: light dark; --text: light-dark(#1d2733, #e3e8ee);
  --dim: light-dark(#5c6875, #9aa6b2); --line: light-dark(#d8dde3, #333c47);
  --panel: light-dark(#f6f7f9, #1b222b); --mark: light-dark(#ffe08a, #6b5200);
  --page: light-dark(#ffffff, #12171d); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.25rem; } h3 { font-size: 1rem; }
p.note, figcaption, .dim { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
table.text td, table.text th { text-align: left; }
td { white-space: nowrap; }
table.text td { overflow-wrap: break-word; white-space: normal; }
table.text td:last-child { min-width: 14rem; }
ul.tree, ul.tree ul { padding-left: 1.5rem; } ul.tree { white-space: nowrap; }
mark { background: var(--mark); color: inherit; border-radius: 2px; padding: 0 2px; }
figure { margin: 1rem 0; } code, pre { font-size: 0.85em; }
pre { overflow-x: auto; background: var(--panel); padding: 0.75rem; }
details > summary { cursor: pointer; }
.chart { width: 100%; min-height: 12rem; } .chart svg { max-width: 100%; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.charts figure { margin: 0; min-width: 0; }
#vg-tooltip-element { font: 13px system-ui, sans-serif; }
@media print { :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 11px; }
  h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""
SIZE = {"width": "container", "height": 180}
SCRIPT = """
const page = JSON.parse(document.getElementById("page-data").textContent);
function draw() {
  const text = {labelColor: "currentColor", titleColor: "currentColor"};
  const line = "rgba(128,128,128,0.6)";
  const config = {
    background: "transparent", font: "system-ui, sans-serif", view: {stroke: null},
    axis: {...text, gridColor: "rgba(128,128,128,0.25)", domainColor: line, tickColor: line,
      titleFontWeight: "normal"},
    legend: {...text, orient: "top", title: null},
    range: {category: ["#3b82c4", "#e0802f", "#43a35c", "#b75ab2", "#c94f4f", "#8a7a3d", "#3aa6a6",
      "#888888"]},
  };
  for (const [id, spec] of Object.entries(page.charts)) {
    const copy = structuredClone(spec);
    copy.config = config;
    const name = copy.data.name;
    if (name) {
      const axis = document.getElementById("axis");
      copy.datasets = {[name]: page.data[name]};
      Object.assign(copy.encoding.x, {field: axis.value, title: axis.selectedOptions[0].text});
    }
    vegaEmbed("#" + id, copy, {actions: false, renderer: "svg", theme: undefined});
  }
}
draw();
document.getElementById("axis")?.addEventListener("change", draw);
"""


def page(title: str, body: Sequence[str]) -> str:
    """Return a page; body: its parts, as HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def table(rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """Return a table with a header row; cells are text. kind: its class, such as `text`."""
    header, *rest = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rest]
    name = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll"><table{name}><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def text_fields(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of named texts, which are HTML."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows)
    return f'<div class="scroll"><table class="text">{cells}</table></div>'


def details(summary: str, content: str) -> str:
    """Return HTML that is shown when its summary, a text, is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def paragraphs(texts: Sequence[str], kind: str = "") -> str:
    """Return a paragraph for each text."""
    name = f' class="{kind}"' if kind else ""
    return "".join(f"<p{name}>{escape(text)}</p>" for text in texts)


@cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


class Charts:
    """The charts of a page, and the data that they share."""

    def __init__(self) -> None:
        self.specs: dict[str, Spec] = {}
        self.data: dict[str, Rows] = {}

    def add(self, title: str, spec: Spec) -> str:
        """Return a figure; title: with units."""
        name = f"chart-{len(self.specs)}"
        self.specs[name] = spec
        label = escape(title)
        return (
            f'<figure><figcaption>{label}</figcaption><div class="chart" id="{name}" role="img" '
            f'aria-label="{label}"></div></figure>'
        )

    def scripts(self) -> str:
        """Return the scripts that draw all charts."""
        page = {"charts": self.specs, "data": self.data}
        # One number that JSON has not, such as NaN, would spoil all charts.
        page = json.loads(json.dumps(page), parse_constant=lambda _: None)
        text = json.dumps(page, ensure_ascii=False, separators=(",", ":"))
        text = text.replace("<", "\\u003c")  # a text in it must not end the script
        code = javascript().replace("</script", "<\\/script")
        return (
            f'<script type="application/json" id="page-data">{text}</script>'
            f'<script type="module">{code}\n{SCRIPT}</script>'
        )


def line_chart(data: str, field: str, title: str, *, points: bool) -> Spec:
    """Return curves of a field of shared data, one for each `run`, over what the page chooses."""
    point = {"size": 25} if points else {"size": 12, "opacity": 0}
    y = {"field": field, "title": title}
    minutes = {"field": "minutes", "format": ".1f"}
    tooltip = [{"field": "run"}, {"field": "updates"}, minutes, {**y, "format": ".4~g"}]
    return {
        "data": {"name": data},
        **SIZE,
        "transform": [{"filter": f"isValid(datum['{field}'])"}],
        "mark": {"type": "line", "point": point, "strokeWidth": 1.5, "tooltip": True},
        "encoding": {
            "x": {"field": "updates", "type": "quantitative"},
            "y": {**y, "type": "quantitative", "scale": {"zero": False}},
            "color": {"field": "run", "type": "nominal"},
            "tooltip": tooltip,
        },
    }


def bar_chart(rows: Rows, x: str, y: str) -> Spec:
    """Return bars in the order of the rows; x, y: fields, and the titles of the axes."""
    axis = {"labelAngle": 0, "labelOverlap": True}
    return {
        "data": {"values": rows},
        **SIZE,
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": x, "type": "ordinal", "sort": None, "axis": axis},
            "y": {"field": y, "type": "quantitative"},
            "tooltip": [{"field": x}, {"field": y}],
        },
    }


def heat_map(
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float]],
    titles: tuple[str, str, str],
) -> Spec:
    """Return a picture of a matrix; titles: of columns, rows and cells."""
    x, y, value = titles
    cells = [
        {x: f"{i} {column}", y: f"{j} {row}", value: round(values[j][i], 4)}
        for j, row in enumerate(rows)
        for i, column in enumerate(columns)
    ]
    # The number before a name keeps equal names apart; it is not shown.
    axis = {"labelExpr": "slice(datum.label, indexof(datum.label, ' ') + 1)", "labelLimit": 120}
    side = {"type": "ordinal", "sort": None}
    shade = {"scale": {"range": ["rgba(59,130,196,0.03)", "rgb(59,130,196)"]}, "legend": None}
    return {
        "data": {"values": cells},
        "width": {"step": 20},
        "height": {"step": 20},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": x, **side, "axis": {**axis, "labelAngle": -60}},
            "y": {"field": y, **side, "axis": {**axis, "labelAngle": 0}},
            "color": {"field": value, "type": "quantitative", **shade},
            "tooltip": [{"field": each} for each in (y, x, value)],
        },
    }
