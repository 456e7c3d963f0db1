"""What is done to a text before a model reads it, and undone in its translation.

Protected spans become placeholders, then stages change the text or split it, and at last it gets a
tag. A new stage is a class with the methods of `Stage` and an entry in `Pipeline.stages`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from seq2seq.text.case import Ranges, SentenceCase
from seq2seq.text.language import Sentences
from seq2seq.text.protect import ProtectedText, Spelling, protect, protect_pair


class Stage(Protocol):
    """A change of texts before a model reads them, and its reverse."""

    def before(self, text: ProtectedText) -> tuple[list[ProtectedText], Any]:
        """Return the changed text, or its parts, and what the other methods need to know."""

    def given(self, text: str, undo: Any) -> str:
        """Return a given translation of the text as the model writes it."""

    def after(self, texts: Sequence[str], undo: Any) -> str:
        """Return the translation of the text, from the translations of its parts."""


class Undo(NamedTuple):
    """A stage, its state for a text, and the `Undo` of the next stage for each part."""

    stage: Stage
    state: Any
    parts: Sequence[Undo | None]
    """None after the last stage."""


class Segment(NamedTuple):
    """A text, or a part of it, as a model reads it."""

    text: ProtectedText
    """The text with placeholders, without tag."""
    read: str
    """What the model reads."""
    tag: str = ""
    """Symbols before the text in what the model reads."""


class Prepared(NamedTuple):
    """A text in the form that a model reads, and how to reverse this in a translation."""

    whole: ProtectedText
    """The text with placeholders, before all stages."""
    segments: Sequence[Segment]
    """Empty if there is nothing to translate."""
    spelling: Spelling
    undo: Undo | None

    def given(self, text: str) -> str:
        """Return a given translation as the model writes it; the text must have one segment."""
        if self.spelling.pattern:
            text = self.whole.protect(text, self.spelling.pattern)
        undo = self.undo
        while undo:
            text = undo.stage.given(text, undo.state)
            [undo] = undo.parts
        return self.spelling.read(self.whole, text)

    def checked(self, written: Sequence[str]) -> list[str]:
        """Return the translations of the segments with each placeholder once.

        written: the translations as the model has written them.
        """
        if not self.whole.spans:
            return list(written)
        pairs = zip(self.segments, written, strict=True)
        return [self.spelling.checked(segment.text, text) for segment, text in pairs]

    def joined(self, written: Sequence[str]) -> str:
        """Return the translation in the case that the model writes."""
        pairs = zip(self.segments, self.checked(written), strict=True)
        return self.whole.restore("".join(x.text.separator + text for x, text in pairs))

    def after(self, written: Sequence[str]) -> str:
        """Return the translation, from what the model has written for each segment."""
        if not self.segments:  # blank, or nothing but protected spans
            return self.whole.plain if self.whole.spans else ""
        text = _after(self.undo, iter(self.checked(written)))
        return self.whole.restore(text) if self.whole.spans else text


@dataclass(frozen=True)
class Pipeline:
    """The way of texts to a model and back, as a recipe and its tokenizer need it."""

    spelling: Spelling
    languages: Sequence[str] = ()
    """Possible source languages."""
    tag: str | None = None
    """Symbols before every text: of the target language, and of the kind of text."""
    spaces: Mapping[int, str] = field(default_factory=dict)
    """Translation table of spaces that the model can only read as bytes."""
    knows: Callable[[str], bool] = lambda word: False
    """Whether the vocabulary has a word."""

    def stages(
        self,
        *,
        recase: bool = True,
        terms: Callable[[str], Ranges] = lambda text: (),
        sentences: Sentences | None = None,
    ) -> list[Stage]:
        """Return the stages for a search with these options. terms: see `SentenceCase`."""
        case = [SentenceCase(self.knows, terms, self.spelling.pattern)] if recase else []
        return [*case, sentences, *case] if sentences else [*case]

    def before(self, text: str, stages: Sequence[Stage]) -> Prepared:
        """Prepare a text for the model."""
        whole = protect(text, self.spelling.pattern)
        only_spans = whole.spans and not any(map(str.isalnum, whole.text))
        if not text.strip() or only_spans:
            return Prepared(whole, (), self.spelling, None)
        parts, undo = _before(whole, stages)
        segments = list(map(self.segment, parts))
        return Prepared(whole, segments, self.spelling, undo)

    def segment(self, text: ProtectedText) -> Segment:
        """Return a text after all stages as the model reads it."""
        return Segment(text, self.read(text), self.tag or "")

    def read(self, text: ProtectedText) -> str:
        """Return what the model reads: the tag, if any, and the text."""
        plain = self.spelling.read(text, text.text.translate(self.spaces))
        return f"{self.tag} {plain}" if self.tag else plain


def training_pair(
    source: str, target: str, pattern: re.Pattern[str] | None, tag: str | None
) -> tuple[str, str]:
    """Return a training pair as the model reads and writes it."""
    source, target = protect_pair(source, target, pattern)
    return (f"{tag} {source}" if tag and source.strip() else source), target


def _before(
    text: ProtectedText, stages: Sequence[Stage]
) -> tuple[list[ProtectedText], Undo | None]:
    """Return the parts of a text after all stages."""
    if not stages:
        return [text], None
    parts, undo = stages[0].before(text)
    results = [_before(part, stages[1:]) for part in parts]
    leaves = [leaf for found, _ in results for leaf in found]
    return leaves, Undo(stages[0], undo, [rest for _, rest in results])


def _after(undo: Undo | None, texts: Iterator[str]) -> str:
    """Return the translation of a text, from the translations of the parts after all stages."""
    if undo is None:
        return next(texts)
    return undo.stage.after([_after(part, texts) for part in undo.parts], undo.state)
