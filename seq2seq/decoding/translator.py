"""Translation of texts with a model or an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from seq2seq.config import Config, DecodingConfig, Direction, from_tree, require_effects
from seq2seq.data.tokenizer import pipeline_of
from seq2seq.decoding.engine import Hypothesis, Progress
from seq2seq.decoding.engines import Engines, decoding_precision
from seq2seq.decoding.segments import Decoder, EncodedRequest, Encoder, failed
from seq2seq.decoding.terms import Glossary
from seq2seq.decoding.translation import (
    Options,
    Request,
    Translation,
    document_requests,
    log_errors,
    write_document,
)
from seq2seq.documents.formats import read_document
from seq2seq.errors import UnfinishedError, UserError
from seq2seq.files import read_sums
from seq2seq.formats.ctranslate2 import converted
from seq2seq.formats.model_directory import (
    describe_model,
    find_model,
    is_exported,
    require_undamaged,
)
from seq2seq.machine.devices import default_device
from seq2seq.text.language import listed, unknown_language

if TYPE_CHECKING:
    from seq2seq.model.transformer import Transformer


class Translator:
    """Translates text with a model; the command line is a thin wrapper around this."""

    def __init__(
        self,
        engines: Engines,
        decoding: DecodingConfig,
        tag: str | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        """decoding: default search options. tag: symbol before every text. protect: patterns of
        protected spans, instead of the recipe's.
        """
        self.engines, self.decoding, self.tag = engines, decoding, tag
        self.tokenizer = engines.tokenizer
        if tag is not None and not self.tokenizer.translation_vocabularies[0].knows(tag):
            raise UserError(
                f"tag={tag!r} is not a symbol of this model's tokenizer: use a tag of its training "
                "corpora"
            )
        self.data, self._protect = engines.configs[0].pairs, protect
        self.encoder = cache(self._make_encoder)
        direction = self.data.directions[0]
        self.spelling = self.encoder(direction.target, direction.source).pipeline.spelling

    def _make_encoder(self, to: str = "", source: str = "") -> Encoder:
        """Return the encoder of texts for a target language and, if given, a source language.

        Raises UserError for a language that the model does not have, and without a target language
        if it has several.
        """
        data = self.data
        if not to and len(data.targets) > 1:
            raise UserError(
                f"{self.engines.name} translates to {listed(data.targets)}: name one with --to "
                '(in Python: to="...")'
            )
        for language, known, verb in (
            (to, data.targets, "translates to"),
            (source, data.languages, "has the languages"),
        ):
            if language and language not in known:
                raise UserError(f"{self.engines.name} {verb} {unknown_language(language, known)}")
        target = to or data.targets[0]
        directions = [x for x in data.directions if x.fits(target, source)]
        directions = directions or [Direction(source, target)]  # not trained, but possible
        if len(directions) > 1 and self.tokenizer.source.language_first:
            raise UserError(
                f"{self.engines.name} must be told the source language: name it with --from (in "
                'Python: source="...")'
            )
        pipeline = pipeline_of(
            data, self.tokenizer, directions, tag=self.tag, protect=self._protect
        )
        limit = min(config.max_source_tokens for config in self.engines.configs)
        max_target_len = min(limit, self.engines.max_target_len - 1)
        return Encoder(self.tokenizer, pipeline, limit, max_target_len)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        others: Sequence[str | Path] = (),
        checkpoint: str | None = None,
        tag: str | None = None,
        protect: Sequence[str] | None = None,
        device: str | None = None,
        **decoding: Any,
    ) -> Translator:
        """Load the best model of a run, a model directory, or a model exported to CTranslate2.

        others: runs or model directories with the same tokenizer, to form an ensemble. protect:
        patterns of protected spans (docs/text.md), instead of the recipe's `data.protect`.
        decoding: keys of the recipe's section `decoding`, to replace its values.
        """
        paths = [directory, *others]
        # A training that goes on moves the link `best`: engines loaded later must not follow it.
        folders = [find_model(Path(path), checkpoint).resolve() for path in paths]
        sums = [read_sums(folder) for folder in folders]
        name = " with ".join(map(str, paths))
        exported = any(map(is_exported, folders))
        if exported and others:
            raise UserError(
                f"{name}: CTranslate2 does not support ensembles; use the original runs"
            )
        if exported and decoding.get("precision"):
            raise UserError(f"{name} has the precision of its export: omit precision")
        descriptions = [describe_model(folder) for folder in folders]
        tokenizer = descriptions[0][1]
        for path, (config, other) in zip(paths, descriptions, strict=True):
            if not config.translates:
                raise UserError(f"{path} does not translate: its task is {config.task}")
            if other.checksum != tokenizer.checksum:
                raise UserError(f"{path} and {directory} have different tokenizers")
        configs = [config for config, _ in descriptions]
        settings = changed_decoding(configs[0].decoding, decoding)
        device = device or default_device()
        engines = Engines(
            tokenizer=tokenizer,
            configs=configs,
            device=device,
            precision="fp32" if exported else decoding_precision(settings, device),
            folder=lambda data_type: (
                nullcontext(folders[0]) if exported else converted(folders[0], data_type)
            ),
            models=None if exported else lambda: _load_models(folders, sums, device),
            name=name,
        )
        if exported:
            require_undamaged(folders[0])
        return cls(engines, settings, tag, protect)

    def translate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Return the translation of each text, in order. Blank texts have empty translations.

        options: see `translations`. If a text cannot be translated with these options, a warning
        is logged and its translation is empty.
        """
        translations = self.translations(texts, **{"scores": False, **options})
        return [translation.text for translation in translations]

    def translations(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        references: Sequence[Sequence[str]] | None = None,
        glossary: Glossary | None = None,
        nbest: int = 1,
        scores: bool = True,
        tokens: bool = False,
        alignment: bool = False,
        search: bool = True,
        to: str = "",
        source: str = "",
        **decoding: Any,
    ) -> list[Translation]:
        """Return a `Translation` for each text, in order.

        to: target language, if the model has several. source: source language; by default it is
        identified where it matters. prefixes: beginning of each translation. constraints: terms
        that must appear in each translation. references: translations of each text to score. nbest:
        number of translations of each text. scores: compute scores; this may take extra time.
        tokens: return log-probabilities of the pieces. alignment: return word alignments. search:
        translate; if False, only score the references. decoding: keys of the recipe's section
        `decoding`, to replace its values. The translator's tag, if any, is put before every text.
        """
        self.encoder(to, source)  # fails for an unknown language
        if isinstance(texts, str):
            raise TypeError("texts must be a list, not a string; write translate([text])[0]")
        count = len(texts)
        prefixes = prefixes or [""] * count
        constraints, references = constraints or [()] * count, references or [()] * count
        lists = {"prefixes": prefixes, "constraints": constraints, "references": references}
        for name, entries in lists.items():
            if len(entries) != count:
                raise UserError(f"{name} has length {len(entries)}, but texts has length {count}")
            if name != "prefixes" and any(isinstance(entry, str) for entry in entries):
                raise TypeError(f"{name} needs a list of strings for each text, such as [['a']]")
        requests = [
            Request(text, number, prefix, tuple(terms), tuple(targets), to, source)
            for number, (text, prefix, terms, targets) in enumerate(
                zip(texts, prefixes, constraints, references, strict=True)
            )
        ]
        changed = changed_decoding(self.decoding, decoding)
        options = Options(nbest, scores, tokens, alignment, search, glossary)
        translations = self.process(requests, options, changed)
        log_errors(translations)
        return translations

    def translate_document(
        self,
        text: str,
        *,
        format: str,
        glossary: Glossary | None = None,
        to: str = "",
        source: str = "",
        **decoding: Any,
    ) -> str:
        """Return a document with its text translated sentence by sentence.

        to, source: see `translations`. format: html, xml, xliff, po, srt or markdown
        (docs/text.md). A block that cannot be translated stays as it is, with a warning. Raises
        UserError for an invalid document.
        """
        document = read_document(text, format)
        self.encoder(to, source)  # fails for an unknown language
        make = partial(Request, to=to, source=source)
        requests, options = document_requests(document, self.spelling.pattern, glossary, make)
        changed = replace(changed_decoding(self.decoding, decoding), paragraphs=True)
        return write_document(document, options.words, self.process(requests, options, changed))

    def process(
        self,
        requests: Sequence[Request],
        options: Options | None = None,
        decoding: DecodingConfig | None = None,
        progress: Progress | None = None,
    ) -> list[Translation]:
        """Return a translation for each request, in order.

        Many requests are searched in parts. Another thread encodes the next ones meanwhile, and
        decodes the results. progress: called with the number of segments after each batch.
        """
        options = options or Options()
        decoding = decoding or self.decoding
        if decoding.precision != self.decoding.precision:
            raise TypeError("precision is an option of Translator.load only")
        if options.nbest < 1:
            raise UserError(f"nbest={options.nbest} must be at least 1")
        if not decoding.sample and options.nbest > decoding.beam:
            raise UserError(
                f"nbest={options.nbest} is larger than the beam of {decoding.beam}; increase beam"
            )
        terms = bool(options.glossary) or any(request.constraints for request in requests)
        engine = self.engines.engine_for(decoding, terms=terms)
        decoder = Decoder(engine, self.spelling, options, decoding)
        encode = partial(self._encode, options=options, decoding=decoding)

        def search(encoded: Sequence[EncodedRequest]) -> list[list[Hypothesis]]:
            if not options.search:
                return []
            sources = [source for request in encoded for source in request.sources]
            return engine.search(sources, decoding, nbest=options.nbest, progress=progress)

        size = engine.search_size
        if size is None or len(requests) <= size:
            encoded = encode(requests)
            return decoder.decode(encoded, search(encoded))
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        with ThreadPoolExecutor(1) as text_thread:
            decoded = [
                text_thread.submit(decoder.decode, encoded, search(encoded))
                for encoded in text_thread.map(encode, parts)
            ]
            return [translation for part in decoded for translation in part.result()]

    def _encode(
        self, requests: Sequence[Request], options: Options, decoding: DecodingConfig
    ) -> list[EncodedRequest]:
        """Encode requests, all of one direction at once."""
        encoded: dict[int, EncodedRequest] = {}
        for direction in dict.fromkeys((request.to, request.source) for request in requests):
            chosen = [i for i, x in enumerate(requests) if (x.to, x.source) == direction]
            own = [requests[i] for i in chosen]
            try:
                found = self.encoder(*direction).encode(own, options, decoding)
            except UserError as error:  # an unknown language
                found = [failed(request, error) for request in own]
            encoded |= zip(chosen, found, strict=True)
        return [encoded[i] for i in range(len(requests))]


def changed_decoding(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Return a section `decoding` with changed values; None leaves a value unchanged."""
    given = {key: value for key, value in changes.items() if value is not None}
    if not given:
        return decoding
    changed = from_tree(decoding, given, "arguments", "decoding")
    require_effects(replace(Config(), decoding=changed))
    return changed


def _load_models(
    folders: Sequence[Path], sums: Sequence[dict[str, str] | None], device: str
) -> list[Transformer]:
    """Load the PyTorch models of folders that still have the checksums `sums`."""
    from seq2seq.formats.weights import load_model  # imports torch

    for folder, expected in zip(folders, sums, strict=True):
        if read_sums(folder) != expected:
            raise UnfinishedError(
                f"{folder} was changed or deleted while in use: load the model again"
            )
    return [cast("Transformer", load_model(folder, device).model) for folder in folders]
