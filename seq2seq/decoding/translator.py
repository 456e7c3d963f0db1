"""Translate lines of text in batches, including blank and very long lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from seq2seq.config import DecodingConfig
from seq2seq.data.streams import LINES_AT_ONCE
from seq2seq.decoding.alignment import align, words_in
from seq2seq.decoding.engine import Advance, Engine
from seq2seq.decoding.engines import Engines, search_precision
from seq2seq.decoding.hypothesis import Hypothesis
from seq2seq.decoding.options import Options, changed_decoding
from seq2seq.decoding.segments import (
    Request,
    Segment,
    Segmenter,
    Translation,
    make_requests,
)
from seq2seq.decoding.terms import Glossary
from seq2seq.errors import OptionError, UserError
from seq2seq.machine.devices import default_device
from seq2seq.model.converted import converted
from seq2seq.model.saved import (
    describe_model,
    find_model,
    is_exported,
    load_tokenizer,
    require_undamaged,
)

if TYPE_CHECKING:
    from seq2seq.model.transformer import Transformer

Candidate = tuple[str, list[str], Hypothesis]
"""Text and pieces of a source, and a translation of it."""

logger = logging.getLogger(__name__)


class Translator:
    """Translates text with a model; the command line is a thin wrapper around this."""

    def __init__(self, engines: Engines, decoding: DecodingConfig, tag: str | None = None) -> None:
        """decoding: of texts for which no other options are given. tag: put before every text."""
        self.engines, self.decoding, self.tag = engines, decoding, tag
        self.tokenizer = engines.tokenizer
        if tag is not None and not self.tokenizer.source.knows(tag):
            raise OptionError(
                f"`tag`={tag!r} is not a symbol of this model's tokenizer: name a tag of its "
                "training corpora"
            )
        limit = engines.max_source_len
        target_limit = min(limit, engines.max_target_len - 1)
        self._segmenter = Segmenter(self.tokenizer, tag, limit, target_limit)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        others: Sequence[str | Path] = (),
        checkpoint: str | None = None,
        tag: str | None = None,
        device: str | None = None,
        **decoding: Any,
    ) -> Translator:
        """Load a run's best model, a model directory, or a model exported to CTranslate2.

        others: more runs or model directories with the same tokenizer, to form an ensemble.
        decoding: keys of the recipe's section `decoding`, to replace its values.
        """
        paths = [directory, *others]
        folders = [find_model(Path(path), checkpoint) for path in paths]
        name = " with ".join(map(str, paths))
        exported = any(map(is_exported, folders))
        if exported and others:
            raise UserError(
                f"{name}: CTranslate2 forms no ensembles; name the runs that were exported"
            )
        if exported and decoding.get("precision"):
            raise OptionError(f"{name} has the precision of its export: leave `precision` out")
        described = [describe_model(folder) for folder in folders]
        for path, (config, checksum) in zip(paths, described, strict=True):
            if not config.translates:
                raise UserError(f"{path} does not translate: its task is {config.task}")
            if checksum != described[0][1]:
                raise UserError(f"{path} and {directory} have different tokenizers")
        configs = [config for config, _ in described]
        settings = changed_decoding(configs[0].decoding, decoding)
        device = device or default_device()
        engines = Engines(
            tokenizer=load_tokenizer(folders[0], described[0][1]),
            configs=configs,
            device=device,
            precision="fp32" if exported else search_precision(settings, device),
            folder=lambda: nullcontext(folders[0]) if exported else converted(folders[0]),
            models=None if exported else lambda: _load_models(folders, device),
            name=name,
        )
        if exported:
            require_undamaged(folders[0])
        return cls(engines, settings, tag)

    def translate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Return the translation of each text, in order; that of a blank text is empty.

        options: those of `translations`. A text that cannot be translated with them has an empty
        translation, and a warning is logged.
        """
        found = self.translations(texts, **{"scores": False, **options})
        return [translation.text for translation in found]

    def translations(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        references: Sequence[Sequence[str]] | None = None,
        glossary: Glossary | None = None,
        split: bool = True,
        nbest: int = 1,
        scores: bool = True,
        tokens: bool = False,
        alignment: bool = False,
        search: bool = True,
        **decoding: Any,
    ) -> list[Translation]:
        """Return a `Translation` for each text, in order: its score, and what is asked for.

        prefixes: their beginnings. constraints: terms that must appear, of each text. references:
        translations to score. split: translate parts of a text that is too long; otherwise its
        `Translation` has an error. nbest: number of translations of each text. scores: with scores,
        which take time. tokens: with pieces and their log-probabilities. alignment: with word
        alignments. search: translate; otherwise only score the references. decoding: keys of the
        recipe's section `decoding`, to replace its values. The translator's tag, if any, is put
        before every text.
        """
        requests = make_requests(texts, prefixes, constraints, references)
        changed = changed_decoding(self.decoding, decoding)
        options = Options(nbest, scores, tokens, alignment, search, split, glossary)
        found = []
        for start in range(0, len(requests), LINES_AT_ONCE):
            found += self.process(requests[start : start + LINES_AT_ONCE], options, changed)
        log_errors(found)
        return found

    def process(
        self,
        requests: Sequence[Request],
        options: Options | None = None,
        decoding: DecodingConfig | None = None,
        advance: Advance | None = None,
    ) -> list[Translation]:
        """Return a translation for each request, in order. All of them are searched together."""
        options = options or Options()
        decoding = decoding or self.decoding
        if decoding.precision != self.decoding.precision:
            raise TypeError("precision is an option of Translator.load alone")
        if options.nbest < 1:
            raise OptionError(f"`nbest`={options.nbest} must be at least 1")
        if not decoding.sample and options.nbest > decoding.beam:
            raise OptionError(
                f"`nbest`={options.nbest} needs a beam of at least as many hypotheses, not "
                f"{decoding.beam}; widen `beam`"
            )
        terms = bool(options.glossary) or any(request.constraints for request in requests)
        engine = self.engines.choose(decoding, terms=terms)
        translations = self._segmenter.segmented(requests, options)
        if options.search:
            engine.search(
                [segment for one in translations for segment in one.segments],
                decoding,
                nbest=options.nbest,
                scores=options.scores or options.tokens,
                advance=advance,
            )
        self._complete(engine, translations, options, decoding)
        return translations

    def _complete(
        self,
        engine: Engine,
        translations: Sequence[Translation],
        options: Options,
        decoding: DecodingConfig,
    ) -> None:
        """Make the outputs of segments that have been searched, and join the segments."""
        if decoding.sample:
            for one in translations:
                _sort_samples(one.segments)
        segments = [each for one in translations for each in one.segments]
        found = [(own.text, own.source, each) for own in segments for each in own.found]
        texts = self._segmenter.target.decode_pieces([each.pieces for *_, each in found])
        for (*_, each), text in zip(found, texts, strict=True):
            each.text = text
        candidates = [*found, *self._scored_references(engine, translations, decoding)]
        if options.tokens:  # where the search has not made them
            without = [(source, each) for _, source, each in found if not each.log_probs]
            pairs = [(source, each.pieces) for source, each in without]
            scored = engine.log_probs(pairs, decoding)
            for (_, each), log_probs in zip(without, scored, strict=True):
                each.log_probs = log_probs
        else:
            for *_, each in candidates:
                each.log_probs = ()
        if options.alignment:
            self._align(engine, candidates, decoding)
        if options.search:
            for one in translations:
                one.join()

    def _scored_references(
        self, engine: Engine, translations: Sequence[Translation], decoding: DecodingConfig
    ) -> list[Candidate]:
        """Score the references of all requests, as the tokenizer segments them; return them."""
        valid = [one for one in translations if not one.error]
        given = [(one, text) for one in valid for text in one.request.references]
        sources = [self._segmenter.encode(one.request.text) for one, _ in given]
        targets = self._segmenter.target.encode_pieces([text for _, text in given])
        scored = engine.score(list(zip(sources, targets, strict=True)), decoding)
        candidates = []
        for (one, text), source, each in zip(given, sources, scored, strict=True):
            each.text = text
            one.references = [*one.references, each]
            candidates.append((one.request.text, source, each))
        return candidates

    def _align(
        self, engine: Engine, candidates: Sequence[Candidate], decoding: DecodingConfig
    ) -> None:
        """Add word alignments."""
        vocabularies, tags = self.tokenizer.sentence_pieces, int(self.tag is not None)
        pairs = [(source, each.pieces) for _, source, each in candidates]
        attention = engine.attention(pairs, decoding)
        for (text, source, each), weights in zip(candidates, attention, strict=True):
            tagged = self._segmenter.tagged(text)
            words = words_in(tagged, source, vocabularies[0])
            links = align(weights, words, words_in(each.text, each.pieces, vocabularies[1]))
            each.alignment = [(i - tags, j) for i, j in links if i >= tags]


def log_errors(translations: Sequence[Translation]) -> None:
    """Log why lines were not translated."""
    for each in translations:
        if each.error:
            logger.warning("line %d: not translated: %s", each.request.number + 1, each.error)


def _sort_samples(segments: Sequence[Segment]) -> None:
    """Sort the samples of a line, in all of its parts alike: one draw stays one translation."""
    draws = list(zip(*(segment.found for segment in segments), strict=False))
    draws.sort(key=lambda parts: -sum(part.score for part in parts))
    for i, segment in enumerate(segments):
        segment.found = [parts[i] for parts in draws]


def _load_models(folders: Sequence[Path], device: str) -> list[Transformer]:
    from seq2seq.model.directory import load_model  # which loads torch

    return [cast("Transformer", load_model(folder, device).model) for folder in folders]
