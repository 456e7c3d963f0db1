"""Translation of texts and documents for requests, within the limits of a server."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException

from seq2seq.decoding.documents import document_requests, write_document
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.decoding.translation import Options, Translation
from seq2seq.documents.formats import read_document
from seq2seq.serve.limits import Limits
from seq2seq.serve.metrics import Metrics
from seq2seq.serve.models import Models
from seq2seq.serve.requests import is_text, number, require_size

MAX_TERMS = 1_000
OWN_OPTIONS = "alignment", "beam", "glossary", "nbest", "paragraphs", "prefix", "tokens"


class Translations:
    """Translates with the models of a server."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = models, limits, metrics

    async def lines(
        self,
        texts: Sequence[str],
        pair: tuple[str, str],
        options: Options,
        prefix: str = "",
        decoding: dict[str, int] | None = None,
    ) -> list[Translation]:
        """Translate lines. Equal lines are translated once."""
        self._count(len(texts), sum(map(len, texts)))
        lines = list(dict.fromkeys(texts))
        new = await self.models.translate(lines, *pair, options, prefix=prefix, decoding=decoding)
        if error := next((result.error for result in new if result.error), None):
            raise HTTPException(400, f"Cannot translate text: {error}")
        self.metrics.tokens.inc(sum(len(x.nbest[0].pieces) for x in new if x.nbest))
        found = dict(zip(lines, new, strict=True))
        return [found[text] for text in texts]

    async def texts(
        self, texts: Sequence[str], pair: tuple[str, str], nbest: int = 1
    ) -> list[list[str]]:
        """Return the N best translations of each text, which may have several lines."""
        require_size(sum(x.count("\n") + 1 for x in texts), "line", self.limits.max_waiting)
        parts = [text.split("\n") for text in texts]
        options = Options(nbest=nbest, scores=False, paragraphs=True)
        beam = {"beam": nbest} if nbest > self._beam(pair) else {}
        lines = [line for part in parts for line in part]
        results = iter(await self.lines(lines, pair, options, decoding=beam))
        translated = []
        for part in parts:
            found = [next(results).nbest for _ in part]
            ranks = range(max(map(len, found)))
            texts_ = ["\n".join(x[min(k, len(x) - 1)].text for x in found) for k in ranks]
            translated.append(list(dict.fromkeys(texts_)))
        return translated

    async def with_options(
        self, texts: Sequence[str], pair: tuple[str, str], given: Any
    ) -> list[Translation]:
        """Translate lines with the options of this server."""
        if not isinstance(given, dict) or given.keys() - set(OWN_OPTIONS):
            names = ", ".join(OWN_OPTIONS)
            raise HTTPException(400, f"Invalid request: options must be an object of {names}")
        terms, prefix = given.get("glossary") or [], given.get("prefix") or ""
        are_pairs = isinstance(terms, list) and all(
            isinstance(term, list)
            and len(term) == 2
            and all(is_text(x) and x.strip() for x in term)
            for term in terms
        )
        if not are_pairs or not is_text(prefix) or len(terms) > MAX_TERMS:
            raise HTTPException(
                400,
                f"Invalid request: glossary needs at most {MAX_TERMS} [source, target] pairs, and "
                "prefix a string",
            )
        nbest = max(1, number(given.get("nbest", 1), "nbest", self.limits.max_alternatives + 1))
        options = Options(
            nbest=nbest,
            tokens=bool(given.get("tokens")),
            alignment=bool(given.get("alignment")),
            paragraphs=bool(given.get("paragraphs")),
            glossary=Glossary([Term(b, a) for a, b in terms]) if terms else None,
        )
        beam = max(nbest, number(given.get("beam", self._beam(pair)), "beam", 100))
        return await self.lines(texts, pair, options, prefix, {"beam": beam})

    async def documents(self, texts: Sequence[str], form: str, pair: tuple[str, str]) -> list[str]:
        """Return translated documents. Their blocks share the batches of other requests.

        Threads parse and write the documents, so that other requests are answered meanwhile.
        """
        for collector in self.models.route(*pair):
            spans = collector.translator.pipeline.spelling.pattern
            documents = await to_thread(list, (read_document(text, form) for text in texts))
            self._count(sum(len(x.blocks) for x in documents), sum(map(len, texts)))
            prepared = await to_thread(list, (document_requests(x, spans) for x in documents))
            options = next((x for _, x in prepared if x.alignment), prepared[0][1])
            requests = [request for lines, _ in prepared for request in lines]
            results = iter(await collector.translate(requests, options))
            written = (
                write_document(document, options.words, list(islice(results, len(document.blocks))))
                for document in documents
            )
            texts = await to_thread(list, written)
        return list(texts)

    def _beam(self, pair: tuple[str, str]) -> int:
        """Return the beam width of a pair's model."""
        return self.models.route(*pair)[-1].translator.decoding.beam

    def _count(self, lines: int, characters: int) -> None:
        """Count lines; raises an error if they are too many, alone or with the waiting ones."""
        limit = self.limits.max_waiting
        require_size(lines, "line", limit)
        if self.models.num_waiting + lines > limit:
            raise HTTPException(429, "Slowdown: too many requests are waiting")
        self.metrics.lines.inc(lines)
        self.metrics.characters.inc(characters)
