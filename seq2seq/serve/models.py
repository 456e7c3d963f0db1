"""The models of a server, and which of them translate from one language to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seq2seq.decoding.translation import Options, Request, Translation
from seq2seq.decoding.translator import Translator, changed_decoding
from seq2seq.errors import UserError
from seq2seq.formats.ctranslate2 import language_name
from seq2seq.preparation.cleaning import language_identifier
from seq2seq.serve.collector import Collector

DETECTED = 1_000
"""Number of characters from which a language is detected."""


class Models:
    """Translators of one or more language pairs, loaded and ready."""

    def __init__(
        self,
        runs: Sequence[Path],
        *,
        pivot: str | None = None,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        """pivot: language through which to translate pairs without a model of their own.

        Raises UserError for two models of the same pair, and a pivot that no model has.
        """
        self.pivot = pivot = pivot.lower() if pivot else None
        self.collectors: dict[tuple[str, str], Collector] = {}
        for run in runs:
            translator = Translator.load(run)
            data = translator.engines.configs[0].pairs
            pair = data.source.lower(), data.target.lower()
            if pair in self.collectors:
                raise UserError(f"{run} translates {' to '.join(pair)}, as another model does")
            translator.translate(["."])  # loads the model: nothing is read later
            self.collectors[pair] = Collector(translator, on_batch)
        language_identifier()  # also loaded now, not by the first request
        if pivot and not any(pivot in pair for pair in self.collectors):
            raise UserError(f"--pivot {pivot}: no model translates from or to this language")

    @property
    def sources(self) -> list[str]:
        """Source languages, in the order of the models."""
        return list(dict.fromkeys(source for source, _ in self.collectors))

    def targets(self, source: str) -> list[str]:
        """Target languages of a source language."""
        every = dict.fromkeys(target for _, target in self.collectors)
        return [target for target in every if self.route(source, target)]

    def route(self, source: str, target: str) -> list[Collector]:
        """Return the models that translate one after the other; none if there is no way."""
        if direct := self.collectors.get((source, target)):
            return [direct]
        if self.pivot and source != target:
            parts = [(source, self.pivot), (self.pivot, target)]
            if all(part in self.collectors for part in parts):
                return [self.collectors[part] for part in parts]
        return []

    def languages(self) -> list[dict[str, Any]]:
        """Return code, name and targets of each language, as LibreTranslate does."""
        codes = dict.fromkeys([*self.sources, *(target for _, target in self.collectors)])
        return [
            {"code": code, "name": language_name(code), "targets": self.targets(code)}
            for code in codes
        ]

    def detect(self, text: str, target: str = "") -> list[dict[str, Any]]:
        """Return the probable language of a text, of those that can be translated to a target."""
        scores = dict(language_identifier().rank(text[:DETECTED]))
        sources = [code for code in self.sources if target in self.targets(code)] or self.sources
        code = max(sources, key=lambda code: scores.get(code, 0.0))
        return [{"confidence": round(100 * float(scores.get(code, 0.0)), 1), "language": code}]

    async def translate(
        self,
        texts: Sequence[str],
        source: str,
        target: str,
        options: Options,
        *,
        prefix: str = "",
        decoding: dict[str, Any] | None = None,
    ) -> list[Translation]:
        """Translate texts. options, prefix, decoding: of the last model, after a pivot language."""
        *before, last = self.route(source, target)
        for collector in before:
            lines = [Request(text, number) for number, text in enumerate(texts)]
            plain = Options(scores=False, paragraphs=True)
            texts = [result.text for result in await collector.translate(lines, plain)]
        changed = changed_decoding(last.translator.decoding, decoding or {})
        lines = [Request(text, number, prefix) for number, text in enumerate(texts)]
        return await last.translate(lines, options, changed)

    @property
    def num_waiting(self) -> int:
        """Number of lines that are not yet translated."""
        return sum(collector.num_waiting for collector in self.collectors.values())
