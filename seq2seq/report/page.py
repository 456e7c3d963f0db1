"""Self-contained HTML pages with tables and charts. They need no network.

Charts use Vega-Lite. Its embedded JavaScript takes 0.9 MB (plotly: 1.1 to 4.5 MB). The charts are
SVG in the colours of the page, print well and show values under the pointer, unlike matplotlib's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Rows = list[dict[str, Any]]

STYLE = """
:root { color-scheme: light dark; --line: rgb(128 128 128 / 0.3); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.25rem; } h3 { font-size: 1rem; }
p { opacity: 0.7; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
table.text td, table.text th { text-align: left; }
table.text td { overflow-wrap: break-word; white-space: normal; }
table.text td:last-child { min-width: 14rem; }
pre { overflow-x: auto; border: 1px solid var(--line); padding: 0.75rem; font-size: 0.85em; }
tr { break-inside: avoid; }
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


def details(summary: str, content: str) -> str:
    """Return collapsible HTML content below a summary text."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def paragraph(text: str) -> str:
    """Return an HTML paragraph."""
    return f"<p>{escape(text)}</p>"


def line_charts(rows: Rows, titles: Mapping[str, str]) -> str:
    """Return the HTML of charts, with their script: one for each field, a curve for each run.

    rows: with `run`, `updates`, `minutes` and any of the fields. titles: titles by field.
    """
    import vl_convert

    menu = {"input": "select", "options": ["updates", "minutes"], "name": "over "}
    spec = {
        "data": {"values": rows},
        "params": [{"name": "axis", "value": "updates", "bind": menu}],
        "transform": [
            {"fold": list(titles), "as": ["field", "value"]},
            {"filter": "isValid(datum.value)"},
            {"calculate": "datum[axis]", "as": "x"},
        ],
        "facet": {
            "field": "field",
            "sort": list(titles),
            "header": {"title": None, "labelExpr": f"{json.dumps(titles)}[datum.value]"},
        },
        "columns": 2,
        "spec": {
            "width": 460,
            "height": 180,
            "mark": {"type": "line", "point": {"size": 12}, "strokeWidth": 1.5},
            "encoding": {
                "x": {"field": "x", "type": "quantitative"},
                "y": {"field": "value", "type": "quantitative", "scale": {"zero": False}},
                "color": {"field": "run"},
                "tooltip": [
                    {"field": "run"},
                    {"field": "updates"},
                    {"field": "minutes", "format": ".1f"},
                    {"field": "value", "format": ".4~g"},
                ],
            },
        },
        "resolve": {"scale": {"y": "independent"}, "axis": {"x": "independent"}},
        "config": {
            "background": "transparent",
            "font": "system-ui, sans-serif",
            "style": {"guide-label": {"fill": "currentColor"}},
            "axis": {"title": None, "gridColor": "rgba(128,128,128,0.25)"},
            "legend": {"title": None, "orient": "top"},
        },
    }
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # `</script>` in a text must not end the script
    code = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    code = code.replace("</script", "<\\/script")
    options = '{bind: "#axis", actions: false, renderer: "svg"}'
    return (
        '<div id="axis"></div><div id="curves" class="scroll"></div>'
        f'<script type="module">{code}\nvegaEmbed("#curves", {text}, {options});</script>'
    )
