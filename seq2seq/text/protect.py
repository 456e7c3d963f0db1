"""Protected spans: parts of a text, such as URLs and placeholders, that a translation must keep.

Spans are found by patterns. For the model, each span is a placeholder: a reserved character that
the tokenizer never splits. After the search, spans are checked, and repaired by cross-attention.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from seq2seq.errors import UserError, did_you_mean

if TYPE_CHECKING:  # not at run time: `seq2seq --help` does not wait for NumPy
    import numpy as np
    from numpy.typing import NDArray

PLACEHOLDERS = "".join(map(chr, range(0xE000, 0xE010)))
"""Placeholders, from Unicode's private use area."""
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
    return re.compile("|".join(f"(?:{part})" for part in (f"[{PLACEHOLDERS}]", *parts)))


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


class ProtectedText(NamedTuple):
    """A text with a placeholder for each protected span."""

    text: str
    spans: tuple[tuple[str, str], ...] = ()
    """Placeholder and text of each span, in the order of the text."""
    separator: str = ""
    """White space before the text, if it is part of a longer text."""

    @property
    def plain(self) -> str:
        """The text with its spans."""
        return self.restore(self.text)

    def part(self, text: str, start: int, separator: str) -> ProtectedText:
        """Return a part of the text. start: number of spans before the part."""
        count = sum(map(text.count, PLACEHOLDERS)) if self.spans else 0
        return ProtectedText(text, self.spans[start : start + count], separator)

    def restore(self, text: str) -> str:
        """Return a text with the spans for their placeholders, and without superfluous ones."""
        spans: dict[str, deque[str]] = defaultdict(deque)
        for symbol, span in self.spans:
            spans[symbol].append(span)
        return _PLACEHOLDER.sub(lambda m: spans[m[0]].popleft() if spans[m[0]] else "", text)

    def lost(self, text: str) -> list[int]:
        """Return the indices of the spans whose placeholder is missing in a text."""
        counts = Counter(text)
        indices = []
        for index, (symbol, _) in enumerate(self.spans):
            counts[symbol] -= 1
            if counts[symbol] < 0:
                indices.append(index)
        return indices

    def clean(self, text: str) -> str:
        """Return a text without the placeholders that are repeated or not in this text."""
        symbols = tuple((symbol, symbol) for symbol, _ in self.spans)
        return ProtectedText(self.text, symbols).restore(text)

    def protect(self, text: str, pattern: re.Pattern[str]) -> str:
        """Return a translation with placeholders for the spans; other spans are not changed."""
        symbols: dict[str, deque[str]] = defaultdict(deque)
        for symbol, span in self.spans:
            symbols[span].append(symbol)
        return pattern.sub(lambda m: symbols[m[0]].popleft() if symbols[m[0]] else m[0], text)


_PLACEHOLDER = re.compile(f"[{PLACEHOLDERS}]")


def protect(
    text: str, pattern: re.Pattern[str] | None, only: Counter[str] | None = None
) -> ProtectedText:
    """Replace the spans of a text by placeholders. only: spans to replace, and their numbers.

    The first placeholder depends on the text, so that training sees all of them.
    """
    if not (pattern and pattern.search(text)):
        return ProtectedText(text)
    done = Counter[str]()
    first = zlib.crc32(text.lower().encode("utf-8", "surrogatepass"))
    spans: list[tuple[str, str]] = []

    def replace(match: re.Match[str]) -> str:
        span = match.group()
        if not span or (only is not None and done[span] == only[span]):
            return span
        done[span] += 1
        spans.append((PLACEHOLDERS[(first + len(spans)) % len(PLACEHOLDERS)], span))
        return spans[-1][0]

    return ProtectedText(pattern.sub(replace, text), tuple(spans))


def protect_pair(source: str, target: str, pattern: re.Pattern[str] | None) -> tuple[str, str]:
    """Replace the spans that occur on both sides of a training pair by placeholders."""
    if not (pattern and (found := Counter(pattern.findall(source)))):
        return source, target
    protected = protect(source, pattern, found & Counter(pattern.findall(target)))
    return protected.text, protected.protect(target, pattern)


@dataclass(frozen=True)
class Spelling:
    """How a model reads and writes protected spans: as placeholders, or as they are."""

    pattern: re.Pattern[str] | None
    has_placeholders: bool
    """Whether the model's vocabulary has the placeholders."""

    def read(self, source: ProtectedText, text: str) -> str:
        """Return what the model reads for a text with placeholders."""
        return text if self.has_placeholders or not source.spans else source.restore(text)

    def placeholders(self, source: ProtectedText, text: str) -> str:
        """Return a translation, as the model has written it, with placeholders for its spans."""
        if self.has_placeholders or not (source.spans and self.pattern):
            return text
        text = source.protect(text, self.pattern)
        for index in source.lost(text):  # the pattern may need other characters around a span
            symbol, span = source.spans[index]
            text = text.replace(span, symbol, 1)
        symbols = {span: symbol for symbol, span in source.spans}
        return self.pattern.sub(lambda match: symbols.get(match[0], match[0]), text)

    def faults(self, source: ProtectedText, text: str) -> tuple[list[int], int]:
        """Return the indices of the spans that a translation lacks, and the number of repetitions.

        text: the translation as the model has written it.
        """
        text = self.placeholders(source, text)
        return source.lost(text), len(text) - len(source.clean(text))

    def repair(
        self,
        source: ProtectedText,
        read: str,
        text: str,
        lost: Sequence[int],
        attention: NDArray[np.float32],
        columns: Sequence[int],
        rows: Sequence[int],
    ) -> str:
        """Insert the placeholders of lost spans where the model attends to the spans most.

        read: source as the model reads it. text: translation as the model has written it. lost:
        indices of spans. attention: (T, S). columns, rows: position of each source piece in `read`
        and of each target piece in `text`.
        """
        edits = []
        for index in lost:
            start, end = self._range(source, read, index)
            ends = [*columns[1:], len(read)]
            own = [
                start < piece_end and begin < end
                for begin, piece_end in zip(columns, ends, strict=True)
            ]
            first = last = int(attention[:, own].sum(axis=1).argmax())
            if not self.has_placeholders:  # what the model wrote instead of the span
                inside = [own[column] for column in attention.argmax(axis=1)]
                while last < len(rows) and inside[last]:
                    last += 1
            stop = rows[last] if last < len(rows) else len(text)
            around = read[:start][-1:], read[end:][:1]
            edits.append((rows[first], stop, source.spans[index][0], around))
        end = len(text)
        for begin, stop, symbol, (before, after) in sorted(edits, reverse=True):
            stop, end = min(stop, end), begin  # two spans may have the same place
            left, right = text[:begin].rstrip(), text[stop:].lstrip()
            left += "" if not left or _is_glued(before, left[-1]) else " "
            right = right if not right or _is_glued(after, right[0]) else f" {right}"
            text = f"{left}{symbol}{right}"
        return text

    def _range(self, source: ProtectedText, read: str, index: int) -> tuple[int, int]:
        """Return start and end of a span in what the model reads, with a tag before the text."""
        text = source.text
        place = [i for i, character in enumerate(text) if character in PLACEHOLDERS][index]
        start = len(read) - len(self.read(source, text))
        before, until = (len(self.read(source, text[:end])) for end in (place, place + 1))
        return start + before, start + until

    def checked(self, source: ProtectedText, text: str) -> str:
        """Return a translation, as the model has written it, with each placeholder once.

        Placeholders that are still missing, as of an empty translation, are added at the end.
        """
        text = self.placeholders(source, text)
        missing = [source.spans[i][0] for i in source.lost(text)]
        checked = source.clean(" ".join([text, *missing]))
        return " ".join(checked.split()) if checked != text else text


def _is_glued(source: str, target: str) -> bool:
    """Return whether no space is needed beside an inserted span, given the characters there."""
    return source.isalnum() or (source == target and not source.isspace())
