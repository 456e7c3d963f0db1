"""Protected spans: parts of a text, such as URLs and placeholders, that a translation must keep.

Spans are found by patterns. For the model, each span is a reserved symbol, which is a character of
its own that the tokenizer never splits.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from seq2seq.errors import UserError, did_you_mean

SYMBOLS = "".join(map(chr, range(0xE000, 0xE010)))
"""Reserved symbols, from Unicode's private use area."""
_URL = r"[^\s<>\"'“”„»«]*[^\s<>\"'“”„»«.,;:!?)\]}]"
_FOLDER = r"[\w.@%+~-]+/"
_PATH = rf"(?<![\w/.~<$])(?:(?:\$\w+|~|\.\.?)/|/{_FOLDER})(?:{_FOLDER})*(?:[\w.@%+~-]*\w)?"
_WINDOWS_PATH = r"(?<!\w)[A-Za-z]:\\[^\s<>:\"|?*,;]*[^\s<>:\"|?*,;.!)\]]"
_THOUSANDS = r"\d{1,3}(?:\.\d{3})+(?![\w.])"
_VERSION = rf"(?<![\w.])(?:[vV]\d+(?:\.\d+)*|(?!{_THOUSANDS})\d+(?:\.\d+){{2,}})"
_VERSION += r"(?:[-+~][\w.+~-]*\w|(?:a|b|rc)\d+)?(?!\w)"
_UNITS = "%|°[CF]|[kMGT]?i?B|[kMG]?Hz|[kcm]?m|[km]?g|ml|l|px|pt|s|ms|min|h"
PATTERNS = {
    "tag": r"</?[A-Za-z][^<>]*>",
    "url": rf"(?i:https?|ftp|file)://{_URL}|(?i:www)\.{_URL}",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "path": f"{_WINDOWS_PATH}|{_PATH}",
    "version": _VERSION,
    "entity": r"&(?:amp;)*(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);",
    "variable": r"\$\([\w.-]+\)|\$\{[\w.-]+\}|\$\[\w+\]|\$[A-Za-z_]\w*|%[A-Z_]{3,}%?|@[A-Z_]+@",
    "printf": r"%(?:\d+\$)?[-+0#]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|ll|[hljztLq])?[diouxXeEfFgGcs]"
    r"(?![A-Za-z])|%\(\w+\)[a-z]|%\d+(?!\w|[.,]\d)",
    "brace": r"\{[\w.:!-]*\}",
    "accelerator": r"(?<!\w)[~_&](?=[A-Za-z])|(?<=[A-Za-z])~(?=[a-z])",
    "emoji": "[\U0001f000-\U0001faff\u2190-\u21ff\u2600-\u27bf]"
    "[\ufe0f\u200d\U0001f000-\U0001faff]*",
    "number": rf"[-+]?\d+(?:[.,:/-]\d+)*(?:\s?(?:{_UNITS})(?!\w))?",
}
"""Named patterns. `all` stands for all of them except `number`."""


def compile_patterns(names: Sequence[str], where: str) -> re.Pattern[str] | None:
    """Return one regular expression for names of PATTERNS and own patterns NAME=REGEX, or None.

    where: option or key with the names, for errors. At one position the first pattern is used.
    """
    parts = []
    for name in names:
        own_name, is_own, own = name.partition("=")
        if name == "all":
            parts += [pattern for key, pattern in PATTERNS.items() if key != "number"]
        elif is_own:
            parts.append(_own_pattern(own, f"{where}: {own_name}={own}"))
        elif name in PATTERNS:
            parts.append(PATTERNS[name])
        else:
            known = ["all", *PATTERNS]
            raise UserError(
                f"{where}: unknown pattern {name!r}{did_you_mean(name, known)} write NAME=REGEX "
                f"for an own pattern; known are {', '.join(known)}"
            )
    if not parts:
        return None
    return re.compile("|".join(f"(?:{part})" for part in (f"[{SYMBOLS}]", *parts)))


def _own_pattern(pattern: str, where: str) -> str:
    try:
        re.compile(pattern)
        compiled = re.compile(f"x|(?:{pattern})")  # as a part of the whole pattern
    except re.error as error:
        raise UserError(f"{where} is not a regular expression: {error}") from None
    if compiled.groups:
        raise UserError(f"{where} has a capturing group: write (?:...) instead of (...)")
    if compiled.match(""):
        raise UserError(f"{where} matches the empty text")
    return pattern


def span_ranges(text: str, pattern: re.Pattern[str] | None) -> list[tuple[int, int]]:
    """Return start and end of each protected span of a text."""
    return [match.span() for match in pattern.finditer(text)] if pattern else []


@dataclass(frozen=True)
class Masked:
    """A text with a reserved symbol for each protected span."""

    text: str
    spans: tuple[tuple[str, str], ...] = ()
    """Symbol and text of each span, in the order of the text."""

    def only_spans(self) -> bool:
        """Return whether there is nothing to translate beside the spans."""
        return bool(self.spans) and not any(map(str.isalnum, self.text))

    def part(self, text: str, start: int) -> Masked:
        """Return a part of the text. start: number of spans before the part."""
        return Masked(text, self.spans[start : start + sum(map(text.count, SYMBOLS))])

    def restore(self, text: str) -> str:
        """Return a text with the spans for their symbols, and without superfluous symbols."""
        spans: dict[str, deque[str]] = defaultdict(deque)
        for symbol, span in self.spans:
            spans[symbol].append(span)
        return _SYMBOL.sub(lambda m: spans[m[0]].popleft() if spans[m[0]] else "", text)

    def lost(self, text: str) -> list[int]:
        """Return the indices of the spans whose symbol is missing in a text."""
        counts = Counter(text)
        indices = []
        for index, (symbol, _) in enumerate(self.spans):
            counts[symbol] -= 1
            if counts[symbol] < 0:
                indices.append(index)
        return indices

    def clean(self, text: str) -> str:
        """Return a text without the symbols that are repeated or not in the source."""
        symbols = tuple((symbol, symbol) for symbol, _ in self.spans)
        return Masked(self.text, symbols).restore(text)

    def mask(self, text: str, pattern: re.Pattern[str]) -> str:
        """Return a translation with the symbols for the spans; other spans are not changed."""
        symbols: dict[str, deque[str]] = defaultdict(deque)
        for symbol, span in self.spans:
            symbols[span].append(symbol)
        return pattern.sub(lambda m: symbols[m[0]].popleft() if symbols[m[0]] else m[0], text)


_SYMBOL = re.compile(f"[{SYMBOLS}]")


def mask(text: str, pattern: re.Pattern[str], only: Counter[str] | None = None) -> Masked:
    """Replace the spans of a text by symbols. only: spans to replace, and their numbers.

    The first symbol depends on the text, so that training sees all of them.
    """
    done = Counter[str]()
    first = zlib.crc32(text.lower().encode("utf-8", "surrogatepass"))
    spans: list[tuple[str, str]] = []

    def replace(match: re.Match[str]) -> str:
        span = match.group()
        if not span or (only is not None and done[span] == only[span]):
            return span
        done[span] += 1
        spans.append((SYMBOLS[(first + len(spans)) % len(SYMBOLS)], span))
        return spans[-1][0]

    return Masked(pattern.sub(replace, text), tuple(spans))


def mask_pair(source: str, target: str, pattern: re.Pattern[str] | None) -> tuple[str, str]:
    """Replace the spans that occur on both sides of a training pair by symbols."""
    if not (pattern and (found := Counter(pattern.findall(source)))):
        return source, target
    masked = mask(source, pattern, found & Counter(pattern.findall(target)))
    return masked.text, masked.mask(target, pattern)
