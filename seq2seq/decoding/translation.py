"""Translations with their scores, and their form as plain or JSON lines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seq2seq.data.json_lines import write_object
from seq2seq.decoding.request import Request

CANDIDATE_FIELDS = frozenset({"score", "log_prob", "tokens", "alignment"})
"""Fields of a JSON line, and of a candidate in it."""
TEXT_FIELDS = frozenset({"warnings", "terms", "terms_kept"})
"""Fields of a JSON line that are about the text of the translation."""
SCORING_FIELDS = frozenset({"reference_scores", "error"})
RESULT_FIELDS = (
    CANDIDATE_FIELDS | TEXT_FIELDS | SCORING_FIELDS | {"translation", "nbest", "rerank_score"}
)
"""All fields that a translation, or its reranking, may add to a JSON line."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """One translation of a text."""

    text: str
    score: float
    """log_prob divided by the length penalty; a sum over the parts of a long text."""
    log_prob: float
    """In nats, end symbol included."""
    tokens: tuple[tuple[str, float], ...] = ()
    """Pieces with their log-probabilities, end symbol included."""
    alignment: tuple[tuple[int, int], ...] = ()
    """Source word and target word, counted from 0."""


@dataclass(frozen=True)
class Translation:
    """The translations of a text, the best first, and scored references."""

    nbest: tuple[Candidate, ...]
    references: tuple[Candidate, ...] = ()
    warnings: tuple[str, ...] = ()
    """`repetition`: repeats itself; `retried`: no longer does, after a second search; `omission`:
    seems to leave out part of the source."""
    terms: int = 0
    terms_kept: int = 0
    error: str | None = None
    """Why the text was not translated."""

    @property
    def text(self) -> str:
        """The best translation; empty after an error."""
        return self.nbest[0].text if self.nbest else ""

    @property
    def score(self) -> float:
        """Its score."""
        return self.nbest[0].score

    @property
    def log_prob(self) -> float:
        """Its log-probability."""
        return self.nbest[0].log_prob

    @property
    def tokens(self) -> tuple[tuple[str, float], ...]:
        """Its tokens."""
        return self.nbest[0].tokens

    @property
    def alignment(self) -> tuple[tuple[int, int], ...]:
        """Its alignment."""
        return self.nbest[0].alignment


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Return an alignment in Pharaoh format: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def plain_line(translation: Translation, *, scores: bool, alignment: bool) -> str:
    """Return a line of tab-separated columns: for each candidate, score, log_prob and text.

    alignment: a further column. References, if there are any, instead of translations.
    """
    columns = []
    for candidate in translation.references or translation.nbest:
        if scores:
            columns += [f"{candidate.score:.6f}", f"{candidate.log_prob:.6f}"]
        columns.append(candidate.text.replace("\t", " ").replace("\r", " "))
        if alignment:
            columns.append(pharaoh(candidate.alignment))
    return "\t".join(columns)


def moses_lines(number: int, translation: Translation, *, alignment: bool) -> str:
    """Return a line `NUMBER ||| TEXT ||| FEATURES ||| SCORE` for each candidate, as Moses has them.

    number: of the input line, from 0. alignment: a further column. An input line that was not
    translated has one empty candidate.
    """
    lines = []
    for each in translation.references or translation.nbest or (Candidate("", 0.0, 0.0),):
        text = " ".join(each.text.split()).replace("|||", "&#124;&#124;&#124;")
        columns = [str(number), text, f"logprob= {each.log_prob:.6f}", f"{each.score:.6f}"]
        lines.append(" ||| ".join([*columns, *([pharaoh(each.alignment)] if alignment else [])]))
    return "\n".join(lines)


def json_line(request: Request, translation: Translation, *, nbest: bool) -> str:
    """Return a JSON object: the fields of the request and those of its translation.

    Those of an earlier translation are not kept.
    """
    earlier = RESULT_FIELDS if translation.nbest or translation.error else SCORING_FIELDS
    own = {key: value for key, value in request.fields.items() if key not in earlier}
    fields: dict[str, Any] = {"text": request.text, **own}
    if translation.error:
        return write_object(fields | {"error": translation.error})
    if translation.nbest:
        best = _fields(translation.nbest[0])
        fields |= {"translation": best.pop("text"), **best}
    if nbest:
        fields["nbest"] = [_fields(candidate) for candidate in translation.nbest]
    if translation.references:
        fields["reference_scores"] = [_fields(each) for each in translation.references]
    if translation.terms:
        fields |= {"terms": translation.terms, "terms_kept": translation.terms_kept}
    if translation.warnings:
        fields["warnings"] = list(translation.warnings)
    return write_object(fields)


def _fields(candidate: Candidate) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": candidate.text, "score": candidate.score, "log_prob": candidate.log_prob
    }  # fmt: skip
    if candidate.tokens:
        fields["tokens"] = [{"piece": piece, "log_prob": x} for piece, x in candidate.tokens]
    if candidate.alignment:
        fields["alignment"] = [list(link) for link in candidate.alignment]
    return fields


def count(translations: Sequence[Translation]) -> Counter[str]:
    """Count warnings, errors and terms."""
    counts: Counter[str] = Counter()
    for each in translations:
        counts.update(each.warnings)
        counts.update({"terms": each.terms, "kept": each.terms_kept, "errors": bool(each.error)})
    return counts


def log_errors(requests: Sequence[Request], translations: Sequence[Translation]) -> None:
    """Log why lines were not translated."""
    for request, translation in zip(requests, translations, strict=True):
        if translation.error:
            logger.warning("line %d: not translated: %s", request.number + 1, translation.error)


def summary(counts: Counter[str]) -> list[str]:
    """Return what a user should know at the end, as messages."""
    messages = []
    if looped := counts["repetition"] + counts["retried"]:
        messages.append(
            f"{looped} translation(s) repeated themselves; {counts['retried']} were replaced by "
            "one without repeated n-grams"
        )
    if counts["omission"]:
        messages.append(f"{counts['omission']} translation(s) seem to leave out part of the source")
    if counts["errors"]:
        messages.append(f"{counts['errors']} line(s) were not translated")
    if counts["terms"]:
        messages.append(f"terms kept: {counts['kept']} of {counts['terms']}")
    return messages
