"""Files that `translate` reads and writes: plain lines, JSON lines, and documents."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.data.lines import lines_of, read_object, require_files, write_object
from seq2seq.decoding.translation import (
    END,
    SPANS,
    Candidate,
    Options,
    Request,
    Translation,
    log_errors,
)
from seq2seq.decoding.translator import Translator
from seq2seq.documents.formats import decode_document, encode_document
from seq2seq.errors import UserError, named_output
from seq2seq.files import output_file
from seq2seq.processes import Processes
from seq2seq.terminal import ProgressBar

logger = logging.getLogger(__name__)

CANDIDATE_FIELDS = {"score", "log_prob", "tokens", "alignment"}
"""Fields of a JSON line and of its candidates."""
SCORING_FIELDS = {"reference_scores", "error"}
RESULT_FIELDS = {"translation", "nbest", "warnings", "terms", "terms_kept", "rerank_score"}
RESULT_FIELDS |= {"spans", "spans_repaired"}
RESULT_FIELDS |= CANDIDATE_FIELDS | SCORING_FIELDS
"""Fields that `translate` and `rerank` may add to a JSON line."""


class RequestReader:
    """Makes requests from input lines and the lines of parallel files."""

    def __init__(
        self,
        *,
        json_lines: bool = False,
        prefixes: Path | None = None,
        constraints: Path | None = None,
        references: Path | None = None,
        to: str = "",
        source: str = "",
    ) -> None:
        """json_lines: non-blank lines are JSON objects. prefixes, constraints, references: files
        with one line for each input line; terms in a line of constraints are separated by tabs.
        to, source: languages (see `Request`); the field "to" of a JSON line replaces `to`.
        """
        self.json_lines, self.to, self.source = json_lines, to, source
        paths = {"prefixes": prefixes, "constraints": constraints, "references": references}
        self._paths = {name: path for name, path in paths.items() if path}
        require_files(self._paths.values())
        self._lines = {name: lines_of(path) for name, path in self._paths.items()}
        self._numbers = itertools.count()

    def __call__(self, line: str, where: str) -> Request:
        """Return the request of the next line; `where` names file and line in errors."""
        number = next(self._numbers)
        parallel = {name: self._parallel_line(name, where) for name in self._lines}
        fields = _json_fields(line, where) if self.json_lines and line.strip() else {}
        constraints = filter(str.strip, parallel.get("constraints", "").split("\t"))
        references = [parallel["references"]] if "references" in parallel else []
        return Request(
            fields.get("text", line),
            number,
            prefix=fields.get("prefix", parallel.get("prefixes", "")),
            constraints=(*constraints, *fields.get("constraints", ())),
            references=(*references, *fields.get("references", ())),
            to=fields.get("to", self.to),
            source=self.source,
            fields=fields,
        )

    def _parallel_line(self, name: str, where: str) -> str:
        line = next(self._lines[name], None)
        if line is None:
            path = self._paths[name]
            raise UserError(f"{path} has no line for {where}: it needs as many lines as the input")
        return line

    def finish(self) -> None:
        """Raise UserError if a parallel file has more lines than the input."""
        for name, lines in self._lines.items():
            if next(lines, None) is not None:
                raise UserError(f"{self._paths[name]} has more lines than the input")


def _json_fields(line: str, where: str) -> dict[str, Any]:
    """Return the fields of a JSON line. Raises UserError if it is not an object with a text."""
    try:
        fields = read_object(line)
    except ValueError as error:
        raise UserError(f"{where}: not a JSON object ({error})") from None
    strings = [fields.get("text"), fields.get("prefix", ""), fields.get("to", "")]
    for name in ("constraints", "references"):
        entries = fields.get(name, [])
        strings += entries if isinstance(entries, list) else [None]
    if not all(isinstance(string, str) for string in strings):
        raise UserError(
            f'{where}: a JSON object needs a string "text"; "prefix" and "to" must be strings, and '
            '"constraints" and "references" must be lists of strings'
        )
    return fields


def plain_line(translation: Translation, *, scores: bool, alignment: bool) -> str:
    """Return the columns of all translations, or of all references if there are any.

    The columns are score and log_prob (if `scores`), text, and alignment in Pharaoh format, such as
    `0-0 1-2` (if `alignment`).
    """
    columns = []
    for candidate in translation.references or translation.nbest:
        if scores:
            columns += [f"{candidate.score:.6f}", f"{candidate.log_prob:.6f}"]
        columns.append(candidate.text.replace("\t", " ").replace("\r", " "))
        if alignment:
            columns.append(" ".join(f"{i}-{j}" for i, j in candidate.alignment))
    return "\t".join(columns)


def json_line(translation: Translation, *, nbest: bool) -> str:
    """Return a JSON object with the fields of the request and of its translation.

    Fields of an earlier translation in the request are dropped.
    """
    request = translation.request
    dropped = RESULT_FIELDS if translation.nbest or translation.error else SCORING_FIELDS
    kept = {key: value for key, value in request.fields.items() if key not in dropped}
    fields: dict[str, Any] = {"text": request.text, **kept}
    return write_object(fields | json_fields(translation, nbest=nbest))


def json_fields(translation: Translation, *, nbest: bool) -> dict[str, Any]:
    """Return a translation as JSON fields."""
    if translation.error:
        return {"error": translation.error}
    fields: dict[str, Any] = {}
    if translation.nbest:
        best = _fields(translation.nbest[0])
        fields |= {"translation": best.pop("text"), **best}
    if nbest:
        fields["nbest"] = [_fields(candidate) for candidate in translation.nbest]
    if translation.references:
        fields["reference_scores"] = [_fields(candidate) for candidate in translation.references]
    if translation.terms:
        fields |= {"terms": translation.terms, "terms_kept": translation.terms_kept}
    if translation.spans:
        fields |= {"spans": translation.spans, "spans_repaired": translation.spans_repaired}
    if translation.repeats:
        fields["warnings"] = ["repetition"]
    return fields


def _fields(candidate: Candidate) -> dict[str, Any]:
    names = "text", "score", "log_prob"
    fields: dict[str, Any] = {name: getattr(candidate, name) for name in names}
    if candidate.log_probs:
        tokens = zip([*candidate.pieces, END], candidate.log_probs, strict=True)
        fields["tokens"] = [{"piece": piece, "log_prob": x} for piece, x in tokens]
    if candidate.alignment:
        fields["alignment"] = candidate.alignment
    return fields


@dataclass
class LineTranslator:
    """Translates requests to output lines, and shows a progress bar."""

    translator: Translator
    processes: Processes
    options: Options
    json: bool = False
    total: int | None = None
    """Total number of lines; None hides the progress bar."""

    def __post_init__(self) -> None:
        self._done, self._start = 0, time.monotonic()
        self._counts: Counter[str] = Counter()
        visible = self.total is not None and self.processes.is_main
        self.bar = ProgressBar(self.total, visible=visible)

    def __call__(self, requests: Sequence[Request]) -> list[str]:
        """Return an output line for each request."""
        done = self._done + len(requests)

        def advance(segments: int) -> None:  # a long line has several segments, a blank line none
            self._advance(min(segments, done - self._done))

        translations = self.translator.process(requests, self.options, progress=advance)
        self._advance(done - self._done)
        for translation in translations:
            self._counts["repetitions"] += translation.repeats
            self._counts["errors"] += bool(translation.error)
            self._counts["terms"] += translation.terms
            self._counts["kept"] += translation.terms_kept
            self._counts["spans"] += translation.spans
            self._counts["repaired"] += translation.spans_repaired
        log_errors(translations)
        if self.json:
            return [json_line(x, nbest=self.options.nbest > 1) for x in translations]
        scores, alignment = self.options.scores, self.options.alignment
        return [plain_line(x, scores=scores, alignment=alignment) for x in translations]

    def _advance(self, lines: int) -> None:
        self._done += lines
        count = self.processes.count  # assume equal progress of all processes
        self.bar.advance(lines * count)
        speed = self._done * count / max(time.monotonic() - self._start, 1e-3)
        total = f" of {self.total:,}" if self.total is not None else ""
        self.bar.show(f"{self._done * count:,}{total} lines, {speed:,.0f} lines/s")

    def report(self) -> None:
        """Log the number of repetitions, errors, terms and spans of all processes."""
        counts = sum(self.processes.all_gather([self._counts]), Counter())
        if not self.processes.is_main:
            return
        if count := counts["repetitions"]:
            logger.warning("translations with repetitions: %d (try --no-repeat-ngram 4)", count)
        if count := counts["errors"]:
            logger.warning("lines not translated: %d", count)
        if count := counts["terms"]:
            logger.warning("terms in the translations: %d of %d", counts["kept"], count)
        if count := counts["spans"]:
            logger.info(SPANS, count, counts["repaired"])


def translate_file(
    translate: Callable[[str], str], path: Path, output: Path | None, form: str
) -> None:
    """Translate a document file. output: standard output if None."""
    try:
        text, encoding = decode_document(path.read_bytes(), form)
        content = encode_document(translate(text), encoding, form)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    file = output_file(output) if output else nullcontext(sys.stdout.buffer)
    with named_output(output or "standard output"), file as stream:
        stream.write(content)
