"""Self-contained HTML pages with tables and charts. They need no network.

Charts use Vega-Lite. Its embedded JavaScript takes 0.9 MB (plotly: 1.1 to 4.5 MB). The charts are
SVG in the colours of the page, print well and show values under the pointer, unlike matplotlib's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

STYLE = """
:root { color-scheme: light dark; --text: light-dark(#1d2733, #e3e8ee);
  --dim: light-dark(#5c6875, #9aa6b2); --line: light-dark(#d8dde3, #333c47);
  --panel: light-dark(#f6f7f9, #1b222b);
  --page: light-dark(#ffffff, #12171d); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.25rem; } h3 { font-size: 1rem; }
p.note, figcaption { color: var(--dim); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
table.text td, table.text th { text-align: left; }
td { white-space: nowrap; }
table.text td { overflow-wrap: break-word; white-space: normal; }
table.text td:last-child { min-width: 14rem; }
table.shares th, table.shares td { padding: 0 0.25rem; border: 0; font-weight: normal; }
table.shares tr:first-child th { writing-mode: vertical-rl; }
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
AXIS = """
<p><label>over <select id="axis"><option>updates</option><option>minutes</option></select></label>
</p>
"""
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
  const axis = document.getElementById("axis");
  page.charts.forEach((spec, i) => {
    const chart = {...structuredClone(spec), config, datasets: {rows: page.rows}};
    Object.assign(chart.encoding.x, {field: axis.value, title: axis.value});
    vegaEmbed("#chart-" + i, chart, {actions: false, renderer: "svg", theme: undefined});
  });
}
draw();
document.getElementById("axis").addEventListener("change", draw);
"""


def page(title: str, body: Sequence[str]) -> str:
    """Return an HTML page; body: parts of it, as HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def table(rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """Return an HTML table; the first row is the header, cells are text. kind: CSS class."""
    header, *rest = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rest]
    name = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll"><table{name}><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def text_fields(rows: Sequence[tuple[str, str]]) -> str:
    """Return an HTML table with a name and an HTML text in each row."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows)
    return f'<div class="scroll"><table class="text">{cells}</table></div>'


def details(summary: str, content: str) -> str:
    """Return collapsible HTML content below a summary text."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def paragraphs(texts: Sequence[str], kind: str = "") -> str:
    """Return an HTML paragraph for each text; kind: CSS class."""
    name = f' class="{kind}"' if kind else ""
    return "".join(f"<p{name}>{escape(text)}</p>" for text in texts)


def line_charts(rows: Rows, charts: Mapping[str, Spec]) -> str:
    """Return the HTML of charts, with their script. charts: specifications by caption."""
    import vl_convert

    figures = []
    for i, label in enumerate(map(escape, charts)):
        figures.append(
            f'<figure><figcaption>{label}</figcaption><div class="chart" id="chart-{i}" '
            f'role="img" aria-label="{label}"></div></figure>'
        )
    data = {"charts": list(charts.values()), "rows": rows}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # `</script>` in a text must not end the script
    code = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    code = code.replace("</script", "<\\/script")
    return (
        f'{AXIS}<div class="charts">{"".join(figures)}</div>'
        f'<script type="application/json" id="page-data">{text}</script>'
        f'<script type="module">{code}\n{SCRIPT}</script>'
    )


def line_chart(field: str, title: str, *, points: bool) -> Spec:
    """Return a chart of a field of the rows, with a curve for each run."""
    point = {"size": 25} if points else {"size": 12, "opacity": 0}
    y = {"field": field, "title": title}
    minutes = {"field": "minutes", "format": ".1f"}
    tooltip = [{"field": "run"}, {"field": "updates"}, minutes, {**y, "format": ".4~g"}]
    return {
        "data": {"name": "rows"},
        "width": "container",
        "height": 180,
        "transform": [{"filter": f"isValid(datum['{field}'])"}],
        "mark": {"type": "line", "point": point, "strokeWidth": 1.5, "tooltip": True},
        "encoding": {
            "x": {"field": "updates", "type": "quantitative"},
            "y": {**y, "type": "quantitative", "scale": {"zero": False}},
            "color": {"field": "run", "type": "nominal"},
            "tooltip": tooltip,
        },
    }


def shaded_table(
    rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float]]
) -> str:
    """Return a matrix of shares, 0 to 1, as a heat map with the values as tooltips."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, row in zip(rows, shares, strict=True):
        cells = [
            f'<td style="background: rgba(59, 130, 196, {share:.2f})" title="{share:.0%}"></td>'
            for share in row
        ]
        lines.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table class="shares">{"".join(lines)}</table></div>'
