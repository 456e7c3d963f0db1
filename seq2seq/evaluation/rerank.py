"""Rerank n-best lists: minimum Bayes risk, backward model, language model, external scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from seq2seq.data.lines import read_object
from seq2seq.decoding.files import CANDIDATE_FIELDS, RESULT_FIELDS
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.translation import Options, Request
from seq2seq.decoding.translator import Translation, Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import text_nll, windows_of

Utility = Literal["bleu", "chrf"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NBest:
    """A JSON line of `seq2seq translate --json --nbest N`."""

    fields: dict[str, Any]
    where: str
    """File and line number, for error messages."""

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Candidate translations; empty if the line was not translated."""
        return list(self.fields.get("nbest", []))

    @property
    def texts(self) -> list[str]:
        """Texts of the candidates."""
        return [candidate["text"] for candidate in self.candidates]

    def __len__(self) -> int:
        return sum(map(len, self.texts))

    def numbers(self, name: str) -> list[float]:
        """Return a numeric field of all candidates; raises UserError if it is not a number."""
        values: list[Any] = [candidate.get(name) for candidate in self.candidates]
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
            raise UserError(f'{self.where}: not every candidate has a number "{name}"')
        return list(map(float, values))


def read_nbest(line: str, where: str) -> NBest:
    """Parse a JSON line; raises UserError if it has neither an n-best list nor an error."""
    try:
        fields = read_object(line)
        texts = [candidate["text"] for candidate in fields.get("nbest", [])]
        if all(isinstance(text, str) for text in texts) and (texts or "error" in fields):
            return NBest(fields, where)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise UserError(
        f"{where}: not a JSON line with an n-best list: write one with `seq2seq translate --json "
        "--nbest N`"
    )


def expected_utility(texts: Sequence[str], utility: Utility) -> list[float]:
    """Return the expected utility of each text, 0 to 100: its mean score with all as references.

    This is the objective of minimum Bayes risk decoding. If the texts are samples of a model, it is
    the Monte Carlo estimate of Eikema and Aziz (2022): every sample is a reference, the candidate
    included. utility: sentence-level BLEU or chrF2.
    """
    metric = BLEU(effective_order=True) if utility == "bleu" else CHRF()

    @cache
    def score(hypothesis: str, reference: str) -> float:
        return float(metric.sentence_score(hypothesis, [reference]).score)

    return [fmean(score(text, reference) for reference in texts) for text in texts]


def log_prob_of_text(generator: TextGenerator, text: str) -> float:
    """Return the log-probability per token, in nats, of a line of text after a newline."""
    [ids] = generator.tokenizer.target.encode([f"\n{text}\n"])
    context = generator.model.config.context
    windows = windows_of(len(ids), context, max(1, context // 2))
    nll, labels = text_nll(generator.model, np.array(ids), windows)
    return -nll / len(labels)


class Reranker:
    """Sorts n-best lists by a weighted sum of features."""

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        utility: Utility | None = None,
        backward: Path | None = None,
        language_model: Path | None = None,
        fields: Sequence[str] = (),
        device: str | None = None,
    ) -> None:
        """weights: feature weights; by default 1, but 0 for `score` with `utility` or `fields`.

        utility: metric of the feature `mbr`. backward: translation model in the other direction.
        fields: names of the candidates' numeric fields that another program has added.
        """
        models = {"mbr": utility, "backward": backward, "lm": language_model}
        features = [*(name for name, model in models.items() if model), *fields]
        if not features:
            raise UserError("nothing to rerank by: give --mbr, --backward, --lm or --field")
        self.weights = {"score": 0.0 if utility or fields else 1.0} | dict.fromkeys(features, 1.0)
        if unknown := weights.keys() - self.weights.keys():
            raise UserError(
                f"--weight {min(unknown)}: unknown feature; available: {', '.join(self.weights)}"
            )
        self.weights |= weights
        self.utility, self.fields = utility, tuple(fields)
        self._backward = self._generator = None
        if backward:
            self._backward = Translator.load(backward, device=device, precision="fp32")
            if len(targets := self._backward.data.targets) > 1:
                names = ", ".join(targets)
                raise UserError(f"--backward {backward} translates to {names}, not to one language")
        if language_model:
            self._generator = TextGenerator.load(language_model, device=device)

    def __call__(self, lines: Sequence[NBest]) -> list[dict[str, Any]]:
        """Return JSON objects with sorted n-best lists. `translation` is the best candidate."""
        scored: Iterator[Translation] = iter(())
        if self._backward:
            requests = []
            for line in lines:
                if line.candidates and not isinstance(line.fields.get("text"), str):
                    raise UserError(f'{line.where}: --backward needs the source as "text"')
                requests += [
                    Request(text, references=(line.fields["text"],)) for text in line.texts
                ]
            scored = iter(self._backward.process(requests, Options(search=False)))
        return [self._sorted(line, list(islice(scored, len(line.candidates)))) for line in lines]

    def _sorted(self, line: NBest, scored: Sequence[Translation]) -> dict[str, Any]:
        """Return the JSON object of a line; scored: scores of the source given each candidate."""
        if not line.candidates:
            return line.fields
        columns = {name: line.numbers(name) for name in self.fields}
        if self.weights["score"]:
            columns["score"] = line.numbers("score")
        if self.utility:
            columns["mbr"] = expected_utility(line.texts, self.utility)
        try:
            if self._backward:
                if any(result.error for result in scored):
                    raise UserError("a candidate is too long for the backward model")
                sources = [result.references[0] for result in scored]  # given each candidate
                columns["backward"] = [(x.log_prob or 0.0) / (len(x.pieces) + 1) for x in sources]
            if self._generator:
                columns["lm"] = [log_prob_of_text(self._generator, text) for text in line.texts]
        except UserError as error:  # a text is too long or has unknown characters
            logger.warning("%s: not reranked: %s", line.where, error)
            return line.fields
        nbest = []
        for i, candidate in enumerate(line.candidates):
            features = {name: column[i] for name, column in columns.items()}
            total = sum(self.weights[name] * value for name, value in features.items())
            nbest.append(candidate | features | {"rerank_score": total})
        nbest.sort(key=lambda candidate: -candidate["rerank_score"])
        best, replaced = nbest[0], RESULT_FIELDS - {"reference_scores"}
        kept = {key: value for key, value in line.fields.items() if key not in replaced}
        fields = {key: best[key] for key in best if key in {*CANDIDATE_FIELDS, "rerank_score"}}
        return {**kept, "translation": best["text"], **fields, "nbest": nbest}


def best_text(fields: Mapping[str, Any]) -> str:
    """Return the best translation of a line on one line; empty if the line has an error."""
    nbest = fields.get("nbest") or [{"text": ""}]
    return " ".join(nbest[0]["text"].splitlines())
