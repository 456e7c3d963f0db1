"""Rerank n-best lists: minimum Bayes risk, backward model, language model, external scores."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from seq2seq.data.json_objects import read_object
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.lines import CANDIDATE_FIELDS, TEXT_FIELDS
from seq2seq.decoding.options import Options
from seq2seq.decoding.segments import Request
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
    """File and line, for errors."""

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The translations; none of a line that was not translated."""
        return list(self.fields.get("nbest", []))

    def __len__(self) -> int:
        return sum(len(each["text"]) for each in self.candidates)

    def numbers(self, name: str) -> list[float]:
        """Return a field of the candidates; raises UserError if it is not a number in all."""
        values: list[Any] = [each.get(name) for each in self.candidates]
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
            raise UserError(f'{self.where}: not every candidate has a number "{name}"')
        return list(map(float, values))


def read_nbest(line: str, where: str) -> NBest:
    """Return a JSON line's n-best list; raises UserError if it has none and no error either."""
    try:
        fields = read_object(line)
        texts = [each["text"] for each in fields.get("nbest", [])]
        if all(isinstance(text, str) for text in texts) and (texts or "error" in fields):
            return NBest(fields, where)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise UserError(
        f"{where}: not a JSON line with an n-best list; make it with seq2seq translate --json "
        "--nbest N"
    )


def expected_utility(
    texts: Sequence[str], weights: Sequence[float], utility: Utility
) -> list[float]:
    """Return each text's utility, 0 to 100, averaged over all texts as references, itself included.

    With samples of a model as texts this is the Monte Carlo estimate of the expected utility, by
    which minimum Bayes risk decoding chooses: each sample is a reference, whether it is the
    candidate or not, since the expectation is over all translations (Eikema and Aziz 2022).
    weights: of the references. utility: sacreBLEU's sentence BLEU or chrF2.
    """
    metric = BLEU(effective_order=True) if utility == "bleu" else CHRF()

    @cache
    def score(hypothesis: str, reference: str) -> float:
        return float(metric.sentence_score(hypothesis, [reference]).score)

    mass: Counter[str] = Counter()
    for text, weight in zip(texts, weights, strict=True):
        mass[text] += weight  # type: ignore[assignment]
    total = sum(mass.values())
    return [sum(w * score(text, other) for other, w in mass.items()) / total for text in texts]


def log_prob_of_text(generator: TextGenerator, text: str) -> float:
    """Return the log-probability of a line after a line feed, per token, in nats."""
    [ids] = generator.tokenizer.target.encode([f"\n{text}\n"])
    tokens = np.array(ids)
    context = generator.model.config.context
    nll = 0.0
    for start, count in windows_of(len(tokens), context, max(1, context // 2)):
        row = tokens[None, start : start + context + 1]
        nll += text_nll(generator.model, row, torch.tensor([count]))[0]
    return -nll / (len(tokens) - 1)


class Reranker:
    """Sorts n-best lists by a weighted sum of features."""

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        utility: Utility | None = None,
        posterior: bool = False,
        backward: Path | None = None,
        language_model: Path | None = None,
        fields: Sequence[str] = (),
        device: str | None = None,
    ) -> None:
        """weights: by default 1 for each feature, but 0 for `score` with mbr or fields.

        utility: metric of the feature `mbr`. posterior: weight the candidates by the model's
        probabilities, as for a beam; otherwise equally, as for samples. backward: translation model
        of the other direction. fields: numbers of the candidates that another program has added.
        """
        models = {"mbr": utility, "backward": backward, "lm": language_model}
        features = [*(name for name, given in models.items() if given), *fields]
        if not features:
            raise UserError("nothing to rerank by: give --mbr, --backward, --lm or --field")
        self.weights = {"score": 0.0 if utility or fields else 1.0} | dict.fromkeys(features, 1.0)
        if unknown := weights.keys() - self.weights.keys():
            raise UserError(
                f"--weight {min(unknown)}: no such feature; there are {', '.join(self.weights)}"
            )
        self.weights |= weights
        self.utility, self.posterior, self.fields = utility, posterior, tuple(fields)
        self._backward = self._generator = None
        if backward:
            self._backward = Translator.load(backward, device=device, precision="fp32")
        if language_model:
            self._generator = TextGenerator.load(language_model, device=device)

    def __call__(self, lines: Sequence[NBest]) -> list[dict[str, Any]]:
        """Return the objects of lines with sorted n-best lists and the best as `translation`."""
        scored: Iterator[Translation] = iter(())
        if self._backward:
            requests = []
            for line in lines:
                if line.candidates and not isinstance(line.fields.get("text"), str):
                    raise UserError(f'{line.where}: the backward model needs the source, as "text"')
                requests += [
                    Request(each["text"], references=(line.fields["text"],))
                    for each in line.candidates
                ]
            scored = iter(self._backward.process(requests, Options(search=False)))
        return [self._sorted(line, list(islice(scored, len(line.candidates)))) for line in lines]

    def _sorted(self, line: NBest, scored: Sequence[Translation]) -> dict[str, Any]:
        """Return the object of a line; scored: the source, given each candidate."""
        candidates = line.candidates
        if not candidates:
            return line.fields
        texts = [each["text"] for each in candidates]
        columns = {name: line.numbers(name) for name in self.fields}
        if self.weights["score"]:
            columns["score"] = line.numbers("score")
        if self.utility:
            log_probs = line.numbers("log_prob") if self.posterior else [0.0] * len(candidates)
            shares = [math.exp(each - max(log_probs)) for each in log_probs]
            columns["mbr"] = expected_utility(texts, shares, self.utility)
        try:
            if self._backward:
                columns["backward"] = [_log_prob_of_source(each) for each in scored]
            if self._generator:
                columns["lm"] = [log_prob_of_text(self._generator, text) for text in texts]
        except UserError as error:  # a text that a model cannot read
            logger.warning("%s: not reranked: %s", line.where, error)
            return line.fields
        nbest = []
        for i, candidate in enumerate(candidates):
            features = {name: column[i] for name, column in columns.items()}
            total = sum(self.weights[name] * value for name, value in features.items())
            nbest.append(candidate | features | {"rerank_score": total})
        nbest.sort(key=lambda candidate: -candidate["rerank_score"])
        best = nbest[0]
        replaced = {*CANDIDATE_FIELDS, "nbest"}
        if best["text"] != line.fields.get("translation"):
            replaced |= TEXT_FIELDS
        kept = {key: value for key, value in line.fields.items() if key not in replaced}
        own = {key: best[key] for key in best if key in {*CANDIDATE_FIELDS, "rerank_score"}}
        return {**kept, "translation": best["text"], **own, "nbest": nbest}


def _log_prob_of_source(scored: Translation) -> float:
    """Return the log-probability per token of the source."""
    if scored.error:
        raise UserError("a text is too long for the backward model")
    [source] = scored.references
    return source.log_prob / (len(source.pieces) + 1)


def best_text(fields: Mapping[str, Any]) -> str:
    """Return the first text of a line, without line breaks; empty after an error."""
    nbest = fields.get("nbest") or [{"text": ""}]
    return " ".join(nbest[0]["text"].splitlines())
