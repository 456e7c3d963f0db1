"""Formats of documents by name: PO, SRT and Markdown; `markup` reads HTML, XML and XLIFF."""

from __future__ import annotations

import codecs
import re
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from seq2seq.documents.blocks import Block, Token
from seq2seq.documents.markup import Parts, read_html, read_xliff, read_xml
from seq2seq.errors import UserError, did_you_mean, require_extra


class Document(NamedTuple):
    """Blocks to translate, and what makes a document of their translations."""

    blocks: list[Block]
    write: Callable[[list[str]], str]
    """Returns the document, given the translation of each block with its markup."""


def document_of(parts: Parts) -> Document:
    """Return a document that consists of blocks and text between them."""
    blocks = [part for part in parts if isinstance(part, Block)]

    def write(translations: list[str]) -> str:
        rest = iter(translations)
        return "".join(part if isinstance(part, str) else next(rest) for part in parts)

    return Document(blocks, write)


def read_po(text: str) -> Document:
    """Return the messages without translation. Fuzzy and obsolete messages stay as they are."""
    require_extra("translate-toolkit", "documents in PO format")
    from translate.storage import pypo

    declared = re.search(r"charset=\s*([^\s\\\"]+)", text)
    if declared and declared[1].lower() not in ("utf-8", "utf8", "us-ascii", "charset"):
        raise UserError(f"charset={declared[1]}: convert it with msgconv --to-code=UTF-8")
    try:
        catalogue = pypo.pofile.parsestring(text.encode())
        num_forms = int(catalogue.getheaderplural()[0] or 2)
    except (ValueError, IndexError, AttributeError) as error:  # as the parser raises
        raise UserError(f"not a PO file: {error}") from None
    if num_forms > 99:
        raise UserError(f"Plural-Forms: {num_forms} forms are too many: correct nplurals")
    units = [x for x in catalogue.units if x.istranslatable() and not (x.target or x.isfuzzy())]
    # A message has one form, or a singular and a plural.
    sources = [getattr(unit.source, "strings", [unit.source]) for unit in units]
    lines = [[str(form).split("\n") for form in forms] for forms in sources]
    blocks = [Block([Token("text", x, x)]) for forms in lines for form in forms for x in form]

    def write(translations: list[str]) -> str:
        rest = iter(translations)
        for unit, forms in zip(units, lines, strict=True):
            translated = ["\n".join(next(rest) for _ in form) for form in forms]
            if len(translated) > 1:  # a language may have more or fewer plural forms than English
                extra = max(0, num_forms - len(translated))
                unit.target = (translated + translated[-1:] * extra)[-num_forms:]
            else:
                unit.target = translated[0]
        return bytes(catalogue).decode()

    return Document(blocks, write)


_TIME = r"[ \t]*\d+(?:[^\w\s]\d+){2,3}[ \t]*"
_HEAD = re.compile(rf"^(?:\d+[ \t]*\r?\n)?{_TIME}-[ -][ \t]*>{_TIME}(?!\w).*$", re.MULTILINE)
"""Number and times of a caption: `00:00:01,000 --> 00:00:02,500`, maybe with a position."""
_NO_HEAD = re.compile(
    r"""
    (?:\A|\n[ \t]*\r?\n)\d+[ \t]*\r?\n.*?(?:->|\d:\d\d)  # a number, and no times
    |^(?=.*-->).*\d:\d+:\d
    """,
    re.MULTILINE | re.VERBOSE,
)
"""A line that should be the times of a caption."""
_BLANK_LINES = re.compile(r"(\r?\n(?:[ \t]*\r?\n)+)")


def read_srt(text: str) -> Document:
    """Return the captions. A caption keeps its number of lines."""
    parts: Parts = []
    line_break = "\r\n" if "\r\n" in text else "\n"
    done = 0
    for head in [*_HEAD.finditer(text), None]:
        start = head.start() if head else len(text)
        caption = text[done:start]
        if broken := _NO_HEAD.search(caption) or (not done and re.search(r"\S", caption)):
            line = text.count("\n", 0, done + broken.end() - 1) + 1
            raise UserError(f"line {line}: not a caption with number and times")
        for raw in _BLANK_LINES.split(caption):
            lines = raw.splitlines(keepends=True)
            is_dialogue = any(line.lstrip().startswith("-") for line in lines)
            for part in lines if is_dialogue else [raw]:
                bare = part.strip()
                wrap = partial(_wrapped, count=bare.count("\n") + 1, line_break=line_break)
                block = Block(_caption_tokens(bare), lay_out=wrap)
                if not any(map(str.isalpha, block.text)):
                    parts.append(part)
                    continue
                before = part.find(bare)
                parts += [part[:before], block, part[before + len(bare) :]]
        if head:
            parts.append(head[0])
            done = head.end()
    return document_of(parts)


def _caption_tokens(text: str) -> list[Token]:
    tokens = []
    for part in re.split(r"(<[^<>]*>|\{[^{}]*\})", text):
        tag = re.fullmatch(r"<(/?)(\w+)[^<>]*>", part)
        if tag:
            tokens.append(Token("close" if tag[1] else "open", part, name=tag[2].lower()))
        elif re.match(r"[<{].*[>}]$", part):
            tokens.append(Token("other", part))
        else:
            tokens.append(Token("text", part, re.sub(r"\r?\n", " ", part)))
    return tokens


def _wrapped(text: str, count: int, line_break: str) -> str:
    """Wrap a caption to at most `count` lines of similar length."""
    text = re.sub(r"<[^<>]*>", lambda tag: tag[0].replace(" ", "\0"), text)  # tags stay whole

    def lines(width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    widths = range(len(text) // count + 1, len(text) + 1)
    index = bisect_left(widths, -count, key=lambda width: -len(lines(width)))
    if count > 1 and index < len(widths):
        text = line_break.join(lines(widths[index]))
    return text.replace("\0", " ")


def read_markdown(text: str) -> Document:
    """Return the paragraphs, headings and table cells of a Markdown document."""
    require_extra("markdown-it-py", "documents in Markdown")
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"store_labels": True}).enable(["table", "strikethrough"])
    front = re.match(r"---\r?\n.*?\n---(?:\r?\n|\Z)", text, re.DOTALL)
    done = front.end() if front else 0
    starts = [done, *(match.end() + done for match in re.finditer("\r\n?|\n", text[done:]))]
    parts: Parts = [text[:done]]
    for token in parser.parse(text[done:]):
        if token.type != "inline" or not token.map:
            continue
        # The parser gives the lines of a block, and its text without the signs before them.
        lines = token.content.split("\n")
        limit = [*starts, len(text)][token.map[1]]
        start = text.find(lines[0], max(done, starts[token.map[0]]), limit)
        end = start
        for line in lines:
            found = text.find(line, end, limit)
            end = (found if found >= 0 else limit + 1) + len(line)
        block = Block(_markdown_tokens(token.children or []), _escape_markdown)
        if done <= start < end <= limit and any(map(str.isalpha, block.text)):
            parts += [text[done:start], block]
            done = end
    return document_of([*parts, text[done:]])


def _markdown_tokens(children: Sequence[Any]) -> list[Token]:
    tokens, links = list[Token](), list[str]()
    for child in children:
        kind = child.type.removesuffix("_open").removesuffix("_close")
        if links and not links[-1]:  # the text of a link such as <https://example.org>
            if child.type == "link_close":
                links.pop()
        elif child.type in ("text", "text_special", "softbreak"):
            text = " " if kind == "softbreak" else child.content
            tokens.append(Token("text", _escape_markdown(text), text))
        elif child.type == "link_open" and child.markup == "autolink":
            url = child.attrs.get("href", "").removeprefix("mailto:")
            tokens.append(Token("other", f"<{url}>"))
            links.append("")
        elif child.type == "link_open":
            links.append(_destination(child, child.attrs.get("href", "")))
            tokens.append(Token("open", "[", name="link"))
        elif child.type == "link_close":
            tokens.append(Token("close", links.pop(), name="link"))
        elif child.type == "image":
            target = _destination(child, child.attrs.get("src", ""))
            tokens.append(Token("other", f"![{child.content}{target}"))
        elif child.type == "code_inline":
            mark, code = child.markup, child.content
            code = f" {code} " if "`" in (code[:1], code[-1:]) else code
            tokens.append(Token("keep", f"{mark}{code}{mark}", child.content))
        elif child.type == "hardbreak" or child.content.startswith("<br"):
            tokens += [Token("other", "<br>"), Token("text", " ", " ")]
        elif child.type == "html_inline":
            tokens += _caption_tokens(child.content)
        else:
            side = {1: "open", -1: "close"}.get(child.nesting, "other")
            tokens.append(Token(side, child.markup or child.content, name=kind))
    return tokens


def _destination(child: Any, url: str) -> str:
    """Return the end of a link or image: `](url "title")`, or `][label]`."""
    if label := child.meta.get("label"):
        return f"][{label}]"
    title = str(child.attrs.get("title", "")).replace('"', '\\"')
    title = f' "{title}"' if title else ""
    return f"]({url}{title})"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*<]|(?<!\w)_|_(?!\w))", r"\\\1", text)


FORMATS: dict[str, Callable[[str], Document]] = {
    "html": lambda text: document_of(read_html(text)),
    "xml": lambda text: document_of(read_xml(text)),
    "xliff": lambda text: document_of(read_xliff(text)),
    "po": read_po,
    "srt": read_srt,
    "markdown": read_markdown,
}
SUFFIXES = {
    **{".html": "html", ".htm": "html", ".xhtml": "xml", ".xml": "xml", ".xlf": "xliff"},
    **{".xliff": "xliff", ".po": "po", ".pot": "po", ".srt": "srt", ".md": "markdown"},
}


def read_document(text: str, name: str) -> Document:
    """Parse a document. Raises UserError for an unknown format, or with the place of an error."""
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UserError(f"unknown format {name!r}{did_you_mean(name, FORMATS)} known are {known}")
    text = text.encode("utf-8", "replace").decode()  # no half of a surrogate pair
    return FORMATS[name](text)


DECLARED = {
    "html": rb"""<meta[^>]*charset=["']?([\w-]+)""",
    "xml": rb"""<\?xml[^>]*encoding=["']([\w-]+)""",
    "xliff": rb"""<\?xml[^>]*encoding=["']([\w-]+)""",
}
"""Where a format declares its encoding."""


def decode_document(content: bytes, name: str) -> tuple[str, str]:
    """Return the text of a document, and the encoding that it declares (UTF-8 by default).

    Raises UserError if the text is not in this encoding.
    """
    declared = name in DECLARED and re.search(DECLARED[name], content[:2000], re.IGNORECASE)
    encoding = declared[1].decode() if declared else "utf-8"
    if encoding.lower() in ("utf-8", "utf8") and content.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    try:
        if encoding.encode().decode(encoding) == encoding:  # as the declaration is ASCII
            return content.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"line {line}: not {encoding}: {error.reason}") from None
    except (LookupError, UnicodeError):
        pass
    raise UserError(f"unknown encoding {encoding!r}: convert the document to UTF-8")


def encode_document(text: str, encoding: str, name: str) -> bytes:
    """Return a document of a format in its encoding.

    XML and HTML can refer to characters that the encoding lacks.
    """
    try:
        return text.encode(encoding, "xmlcharrefreplace" if name in DECLARED else "strict")
    except UnicodeError as error:
        raise UserError(f"cannot be written in {encoding}: {error}") from None
