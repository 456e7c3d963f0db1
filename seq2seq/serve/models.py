"""The models of a server: which of them translate a language pair, and translation with them."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from seq2seq.decoding.translation import (
    Options,
    Request,
    Translation,
    document_requests,
    write_document,
)
from seq2seq.decoding.translator import Translator
from seq2seq.documents.formats import read_document
from seq2seq.errors import UserError
from seq2seq.serve import limits
from seq2seq.serve.collector import Collector
from seq2seq.text.language import (
    base_code,
    language_identifier,
    language_name,
    listed,
    unknown_language,
)

DETECTED = 1_000
"""Number of characters from which a language is detected."""
Pair = tuple[str, str]
"""Source and target language."""


class Hop(NamedTuple):
    """A model, and the direction in which it translates."""

    collector: Collector
    request: Callable[..., Request]
    """Makes the request of a line."""


class Models:
    """Translators of one or more language pairs, loaded and ready."""

    def __init__(
        self, runs: Sequence[Path], pivot: str | None = None, languages: Sequence[str] = ()
    ) -> None:
        """pivot: language through which to translate pairs without a model of their own.
        languages: only pairs of these; by default all.

        Raises UserError for two models of the same pair, and a language that no model has.
        """
        self.pivot = pivot = pivot.lower() if pivot else None
        self.hops: dict[Pair, Hop] = {}
        known: dict[str, None] = {}
        for run in runs:
            translator = Translator.load(run)
            directions = translator.data.directions
            source, target = directions[0]
            translator.translate(["."], to=target, source=source)  # nothing is read later
            collector = Collector(translator)
            known |= dict.fromkeys(translator.data.languages)
            for direction in directions:
                pair = direction.source.lower(), direction.target.lower()
                if languages and not {*direction} <= {*languages}:
                    continue
                if pair in self.hops:
                    raise UserError(f"{run} translates {' to '.join(pair)}, as another model does")
                request = partial(Request, to=direction.target, source=direction.source)
                self.hops[pair] = Hop(collector, request)
        if missing := [code for code in languages if code not in known]:
            raise UserError(f"--languages: the models have {unknown_language(missing[0], known)}")
        if not self.hops:
            raise UserError(f"--languages: no direction between {listed(languages)}")
        language_identifier()  # also loaded now, not by the first request
        if pivot and not any(pivot in pair for pair in self.hops):
            raise UserError(f"--pivot {pivot}: no model translates from or to this language")

    @cached_property
    def sources(self) -> list[str]:
        """Source languages, in the order of the models."""
        return list(dict.fromkeys(source for source, _ in self.hops))

    @cached_property
    def codes(self) -> list[str]:
        """All languages, source languages first."""
        return list(dict.fromkeys([*self.sources, *(target for _, target in self.hops)]))

    def targets(self, source: str) -> list[str]:
        """Target languages of a source language."""
        return [target for target in self.codes if self.route(source, target)]

    def route(self, source: str, target: str) -> list[Hop]:
        """Return the models that translate one after the other; none if there is no way."""
        if direct := self.hops.get((source, target)):
            return [direct]
        if self.pivot and source != target:
            parts = [(source, self.pivot), (self.pivot, target)]
            if all(part in self.hops for part in parts):
                return [self.hops[part] for part in parts]
        return []

    def languages(self) -> list[dict[str, Any]]:
        """Return code, name and targets of each language, as LibreTranslate does."""
        return [
            {"code": code, "name": language_name(code), "targets": self.targets(code)}
            for code in self.codes
        ]

    def detect(self, text: str, target: str = "") -> list[dict[str, Any]]:
        """Return the probable language of a text, of those that can be translated to a target."""
        scores = dict(language_identifier().rank(text[:DETECTED]))
        sources = [code for code in self.sources if self.route(code, target)] or self.sources
        scores = {code: float(scores.get(base_code(code), 0.0)) for code in sources}
        code = max(sources, key=lambda code: scores[code])
        return [{"confidence": round(100 * scores[code], 1), "language": code}]

    async def translate(
        self,
        texts: Sequence[str],
        pair: Pair,
        options: Options,
        prefix: str = "",
        *,
        beam: int = 0,
        paragraphs: bool = False,
    ) -> list[Translation]:
        """Translate lines. Equal lines are translated once.

        options, prefix, beam, paragraphs: of the last model, after a pivot language. A beam of 0 is
        the model's own; each is wide enough for the N best translations.
        """
        self._accept(texts)
        lines = translated = list(dict.fromkeys(texts))
        *before, last = self.route(*pair)
        for hop in before:
            requests = [hop.request(text, number) for number, text in enumerate(translated)]
            plain = Options(scores=False)
            results = await hop.collector.translate(requests, plain, paragraphs=True)
            translated = [x.text for x in results]
        own = last.collector.translator.decoding
        beam, paragraphs = max(options.nbest, beam or own.beam), paragraphs or own.paragraphs
        requests = [last.request(text, number, prefix) for number, text in enumerate(translated)]
        results = await last.collector.translate(
            requests, options, beam=beam, paragraphs=paragraphs
        )
        if error := next((result.error for result in results if result.error), None):
            raise HTTPException(400, f"Cannot translate text: {error}")
        found = dict(zip(lines, results, strict=True))
        return [found[text] for text in texts]

    async def translate_texts(
        self, texts: Sequence[str], pair: Pair, nbest: int = 1
    ) -> list[list[str]]:
        """Return the N best translations of each text, which may have several lines."""
        parts = [text.split("\n") for text in texts]
        options = Options(nbest=nbest, scores=False)
        lines = [line for part in parts for line in part]
        results = iter(await self.translate(lines, pair, options, paragraphs=True))
        translated = []
        for part in parts:
            found = [next(results).nbest for _ in part]
            ranks = range(max(map(len, found)))
            joined = ["\n".join(x[min(k, len(x) - 1)].text for x in found) for k in ranks]
            translated.append(list(dict.fromkeys(joined)))
        return translated

    async def translate_documents(
        self, texts: Sequence[str], form: str, pair: Pair
    ) -> Sequence[str]:
        """Return translated documents. Their blocks share the batches of other requests.

        Threads parse and write the documents, so that other requests are answered meanwhile.
        """
        for collector, request in self.route(*pair):
            spans = collector.translator.spelling.pattern
            to_requests = partial(document_requests, spans=spans, make=request)
            documents = await to_thread(list, (read_document(text, form) for text in texts))
            prepared = await to_thread(list, map(to_requests, documents))
            options = next((x for _, x in prepared if x.alignment), prepared[0][1])
            requests = [line for lines, _ in prepared for line in lines]
            self._accept([request.text for request in requests])
            results = iter(await collector.translate(requests, options, paragraphs=True))
            written = (
                write_document(document, options.words, list(islice(results, len(document.blocks))))
                for document in documents
            )
            texts = await to_thread(list, written)
        return texts

    @property
    def num_waiting(self) -> int:
        """Number of lines that are not yet translated."""
        return sum(x.num_waiting for x in {hop.collector for hop in self.hops.values()})

    def _accept(self, lines: Sequence[str]) -> None:
        """Count lines; raises an error if they are too many, alone or with the waiting ones."""
        limits.require_size(len(lines), "line", limits.MAX_WAITING)
        if self.num_waiting + len(lines) > limits.MAX_WAITING:
            raise HTTPException(429, "Slowdown: too many requests are waiting")
        limits.LINES.inc(len(lines))
        limits.CHARACTERS.inc(sum(map(len, lines)))
