"""HTML, XML and XLIFF. Everything but the translated text stays as it is, byte for byte.

Regular expressions find the tags. lxml and selectolax would write the whole document anew, with
other quotes, entities and white space.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from html.entities import html5
from itertools import accumulate
from xml.parsers import expat

from seq2seq.documents.blocks import Block, Token, kept, matching
from seq2seq.errors import UserError

Parts = list[str | Block]
"""A document: text to keep, and blocks to translate."""
INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|label|mark|q|s"
    "|samp|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
"""Elements of HTML within a sentence. All others begin and end a block."""
KEPT = re.compile(
    "code|kbd|samp|var|literal|command|filename|option|userinput"
    "|script|style|pre|textarea|svg|math|template|noscript|programlisting|screen"
)
"""Elements of HTML and DocBook whose content is not translated."""
VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
"""Elements of HTML without content."""
_NO_TRANSLATION = re.compile(
    r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*["'][^"']*\bnotranslate\b)""", re.IGNORECASE
)


def read_html(text: str) -> Parts:
    """Split HTML into blocks, which end at elements such as paragraphs and table cells."""
    return _html_parts(html_tokens(text), _escape_html)


def _html_parts(tokens: Sequence[Token], escape: Callable[[str], str]) -> Parts:
    return _parts(tokens, [bool(INLINE.fullmatch(token.name)) for token in tokens], escape)


def read_xml(text: str) -> Parts:
    """Split XML into blocks: elements with text, including the elements beside the text."""
    tokens = xml_tokens(text)
    if any(token.name == "html" for token in tokens):
        return _html_parts(tokens, _escape)
    pairs, parents = matching(tokens), [-1]
    has_text = set()
    inside = []
    for i, token in enumerate(tokens):
        if token.kind == "close":
            parents.pop()
        inside.append(parents[-1])
        if token.kind == "open":
            parents.append(i)
        elif token.kind == "text" and token.text.strip():
            has_text.add(parents[-1])
    is_inline = [inside[min(i, pairs.get(i, i))] in has_text for i in range(len(tokens))]
    return _parts(tokens, is_inline, _escape)


def read_xliff(text: str) -> Parts:
    """Return the sources of segments without translation as blocks, to be written as targets."""
    tokens = xml_tokens(text)
    pairs = matching(tokens)
    parts: Parts = []
    done = 0
    open_elements: list[tuple[bool, list[int]]] = [(False, [])]
    """Whether the element is kept, and its children so far."""
    for i, token in enumerate(tokens):
        if token.kind == "open":
            is_kept = _is_kept(token) or token.name.endswith("alt-trans")
            open_elements[-1][1].append(i)
            open_elements.append((is_kept or open_elements[-1][0], []))
        if token.kind != "close":
            continue
        is_kept, children = open_elements.pop()
        names = [tokens[j].name.rpartition(":")[2] for j in children]
        if is_kept or "source" not in names:
            continue
        first = names.index("source")
        names, children = names[first:], children[first:]
        source = children[0]
        if source < done or _is_kept(tokens[source]):
            continue
        prefix = tokens[source].name[:-6]
        start, close = f"<{prefix}target>", f"</{prefix}target>"
        before = stop = pairs[children["seg-source" in names]] + 1  # a target is behind it
        if "target" in names:
            before = children[names.index("target")]
            stop = pairs[before] + 1
            if any(tokens[j].text.strip() for j in range(before, stop)):
                continue
            start = tokens[before].raw.removesuffix("/>").rstrip().removesuffix(">") + ">"
        parts += [_raw(tokens[done:before]), start]
        parts += [Block(tokens[source + 1 : pairs[source]], _escape), close]
        done = stop
    return [*parts, _raw(tokens[done:])]


def _parts(
    tokens: Sequence[Token], is_inline: Sequence[bool], escape: Callable[[str], str]
) -> Parts:
    """Split tokens into blocks and the tokens between them."""
    pairs = matching(tokens)
    inside = [
        x or (token.kind not in ("open", "close") and not token.name)
        for x, token in zip(is_inline, tokens, strict=True)
    ]
    # An inline element around the end of a block is not part of a block.
    ends = [0, *accumulate(not x for x in inside)]
    inside = [x and ends[i] == ends[pairs.get(i, i)] for i, x in enumerate(inside)]
    parts: Parts = []
    run: list[Token] = []

    def end_block() -> None:
        tokens = [x._replace(text=re.sub(r"[ \t\r\n]+", " ", x.text)) for x in run]
        block = Block(tokens, escape)
        is_text = any(map(str.isalpha, block.text))
        parts.append(block if is_text else _raw(run))
        run.clear()

    i = 0
    while i < len(tokens):
        token, stop = tokens[i], i + 1
        is_element = token.kind == "open" and i in pairs
        if is_element and (_is_kept(token) or KEPT.fullmatch(token.name)):
            stop = pairs[i] + 1
            token = kept(tokens[i:stop])
        if inside[i]:
            run.append(token)
        else:
            end_block()
            parts.append(token.raw)
        i = stop
    end_block()
    return parts


def _is_kept(token: Token) -> bool:
    """Return whether the content of an element is marked as not to be translated."""
    return bool(_NO_TRANSLATION.search(token.raw))


def _raw(tokens: Sequence[Token]) -> str:
    return "".join(token.raw for token in tokens)


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _escape_html(text: str) -> str:
    return _escape(text).replace("\xa0", "&nbsp;")


_HTML = re.compile(
    r"""
    (?P<text>[^<]+|<(?![a-z/!?]))
    |<!--(?:-?>|.*?(?:--!?>|\Z))|<!\[CDATA\[.*?(?:\]\]>|\Z)|<(?:[!?]|/(?![a-z]))[^>]*>?
    |<(?P<close>/?)(?P<name>(?P<raw>(?<!/)(?:script|style|textarea)(?=[\s/>]))|[a-z][^\s/>]*)
    (?:[^=/>]+|/(?!>)|(?P<empty>/)|=\s*(?:"[^"]*"?|'[^']*'?|[^\s>]*))*>?
    (?(raw)(?(empty)|.*?(?:</(?P=raw)(?=[\s/>])[^>]*>?|\Z)))  # the content of a script is no markup
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""A token of HTML. As in browsers, any text is HTML, and an unclosed token ends with the text.

No alternative fails after it has read more than a tag's name: the time is linear.
"""


def html_tokens(text: str) -> list[Token]:
    """Return the tokens of an HTML document. Tags need not be balanced."""
    tokens = []
    for match in _HTML.finditer(text):
        name, kind = (match["name"] or "").lower(), "close" if match["close"] else "open"
        if not name or match["empty"] or match["raw"] or VOID.fullmatch(name):
            kind = "text" if match["text"] else "other"
        content = re.sub("&#[0-9]{99,};?", "\ufffd", match["text"] or "")  # int() refuses it
        tokens.append(Token(kind, match[0], html.unescape(content), name))
    return tokens


_XML = re.compile(
    r"""
    \A\ufeff
    |(?P<text>\s*\n\s*|[^<&]*[^<&\s]|[^<&]+|&\#\w+;)|&(?P<entity>[^;]+;)
    |<(?P<close>/?)(?P<name>[^\s/>!?]+)[^"'/>]*(?:(?:"[^"]*"|'[^']*')[^"'/>]*)*(?P<empty>/?)>
    |<!--.*?-->|<\?.*?\?>|<!\[CDATA\[.*?]]>
    |<!(?:[^>"'[]|"[^"]*"|'[^']*'|\[(?:[^]"'<]|"[^"]*"|'[^']*'|<!--.*?-->|<\?.*?\?>|<)*])*>
    """,
    re.VERBOSE | re.DOTALL,
)
"""A token of well-formed XML; the last alternative is a DOCTYPE with its declarations. White space
with a line break at the ends of an element is a token of its own, which stays as it is."""


def xml_tokens(text: str) -> list[Token]:
    """Return the tokens of an XML document; raises UserError if it is not well-formed."""
    try:
        expat.ParserCreate("utf-8").Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise UserError(
            f"not well-formed XML: {reason} (line {error.lineno}, column {error.offset + 1})"
        ) from None
    tokens = []
    for match in _XML.finditer(text):
        content, entity, close, name, empty = match.groups("")
        content = html.unescape(content.replace("\r\n", "\n")) or html5.get(entity, "")
        kind = "close" if close else "open" if name else "text" if content else "other"
        tokens.append(Token(kind, match[0], content, name))
        if empty:
            tokens.append(Token("close", "", name=name))
    return tokens
