"""The frame of self-contained HTML pages: style, headings, tables. Nothing is loaded from a net."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --text: #1d2733; --dim: #5c6875; --line: #d8dde3;
  --panel: #f6f7f9; --mark: #ffe08a; --accent: #1f6feb; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e8ee; --dim: #9aa6b2; --line: #333c47;
  --panel: #1b222b; --mark: #6b5200; --accent: #6cb0ff; --page: #12171d; } }
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
mark { background: var(--mark); color: inherit; border-radius: 2px; padding: 0 2px; }
figure { margin: 1rem 0; } code, pre { font-size: 0.85em; }
pre { overflow-x: auto; background: var(--panel); padding: 0.75rem; }
details > summary { cursor: pointer; }
@media print { :root { color-scheme: light; --text: #1d2733; --dim: #5c6875; --line: #d8dde3;
  --panel: #f6f7f9; --mark: #ffe08a; --page: #ffffff; }
  body { max-width: none; padding: 0; font-size: 11px; }
  h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""


def page(title: str, body: Sequence[str], *, style: str = "") -> str:
    """Return a page; body: its parts, as HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
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


def text_fields(rows: Sequence[tuple[str, str]], caption: str = "") -> str:
    """Return a table of named texts, which are HTML."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows)
    title = f'<caption class="dim">{escape(caption)}</caption>' if caption else ""
    return f'<div class="scroll"><table class="text">{title}{cells}</table></div>'


def paragraphs(texts: Sequence[str], kind: str = "") -> str:
    """Return a paragraph for each text."""
    name = f' class="{kind}"' if kind else ""
    return "".join(f"<p{name}>{escape(text)}</p>" for text in texts)
