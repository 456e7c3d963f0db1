"""Rerank n-best lists: minimum Bayes risk, backward model, language model, external scores."""

from __future__ import annotations

import json
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

from seq2seq.data.json_objects import read_object, write_object
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.lines import CANDIDATE_FIELDS, TEXT_FIELDS
from seq2seq.decoding.options import Outputs
from seq2seq.decoding.segments import Request
from seq2seq.decoding.translator import Translation, Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import text_nll, windows_of

Utility = Literal["bleu", "chrf"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NBest:
    """A JSON line of `seq2seq translate --json --nbest N`."""

    fields: Mapping[str, Any]
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
    reason = ""
    try:
        fields = read_object(line)
        texts = [each["text"] for each in fields.get("nbest", [])]
        if all(isinstance(text, str) for text in texts) and (texts or "error" in fields):
            return NBest(fields, where)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f" ({error})" if isinstance(error, ValueError) else ""
    raise UserError(
        f"{where}: not a JSON line with an n-best list{reason}; make it with seq2seq translate "
        "--json --nbest N"
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


class LanguageModelScorer:
    """Scores lines of text with a language model."""

    def __init__(self, run: Path, device: str | None = None) -> None:
        generator = TextGenerator.load(run, device=device)
        self.model, self.vocabulary = generator.model, generator.tokenizer.target

    def __call__(self, text: str) -> float:
        """Return the log-probability of a line after a line feed, per token, in nats."""
        [ids] = self.vocabulary.encode([f"\n{text}\n"])
        tokens = np.array(ids)
        context = self.model.config.context
        nll = 0.0
        for start, count in windows_of(len(tokens), context, max(1, context // 2)):
            row = tokens[None, start : start + context + 1]
            nll += text_nll(self.model, row, torch.tensor([count]))[0]
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
        own = [name for name, given in models.items() if given]
        if twice := set(own) & set(fields):
            raise UserError(f"--field {min(twice)}: --{min(twice)} makes a feature of this name")
        if not own and not fields:
            raise UserError("nothing to rerank by: give --mbr, --backward, --lm or --field")
        default = {"score": 0.0 if utility or fields else 1.0} | dict.fromkeys([*own, *fields], 1.0)
        if unknown := weights.keys() - default.keys():
            raise UserError(
                f"--weight {min(unknown)}: no such feature; there are {', '.join(default)}"
            )
        self.weights = default | dict(weights)
        self.utility, self.posterior, self.fields = utility, posterior, tuple(fields)
        self._backward = self._language_model = None
        if backward:
            self._backward = Translator.load(backward, device=device, precision="fp32")
        if language_model:
            self._language_model = LanguageModelScorer(language_model, device)

    def __call__(self, lines: Sequence[NBest]) -> list[str]:
        """Return the JSON lines with sorted n-best lists and the best as `translation`."""
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
            scored = iter(self._backward.process(requests, Outputs(search=False)))
        return [self._sorted(line, list(islice(scored, len(line.candidates)))) for line in lines]

    def _sorted(self, line: NBest, scored: Sequence[Translation]) -> str:
        """Return a line; scored: the source, given each candidate, by the backward model."""
        candidates = line.candidates
        if not candidates:
            return write_object(line.fields)
        read = [*self.fields, *(["score"] if self.weights["score"] else [])]
        columns = {name: line.numbers(name) for name in read}
        if self.utility:
            log_probs = line.numbers("log_prob") if self.posterior else [0.0] * len(candidates)
            shares = [math.exp(each - max(log_probs)) for each in log_probs]
            texts = [each["text"] for each in candidates]
            columns["mbr"] = expected_utility(texts, shares, self.utility)
        try:
            if self._backward:  # log-probability per token of the source
                columns["backward"] = [_mean_log_prob(each) for each in scored]
            if self._language_model:
                columns["lm"] = [self._language_model(each["text"]) for each in candidates]
        except UserError as error:  # a text that a model cannot read
            logger.warning("%s: not reranked: %s", line.where, error)
            return write_object(line.fields)
        totals = [
            sum(self.weights[name] * column[i] for name, column in columns.items())
            for i in range(len(candidates))
        ]
        if not all(map(math.isfinite, totals)):
            raise UserError(f"{line.where}: the weighted sum of the features is not finite")
        nbest = []
        for i in sorted(range(len(candidates)), key=lambda i: -totals[i]):
            features = {name: columns[name][i] for name in columns if name != "score"}
            nbest.append(candidates[i] | features | {"rerank_score": totals[i]})
        best = nbest[0]
        replaced = {*CANDIDATE_FIELDS, "nbest"}
        if best["text"] != line.fields.get("translation"):
            replaced |= TEXT_FIELDS
        kept = {key: value for key, value in line.fields.items() if key not in replaced}
        own = {key: best[key] for key in best if key in {*CANDIDATE_FIELDS, "rerank_score"}}
        return write_object({**kept, "translation": best["text"], **own, "nbest": nbest})


def _mean_log_prob(scored: Translation) -> float:
    if scored.error:
        raise UserError("a text is too long for the backward model")
    [source] = scored.references
    return source.log_prob / (len(source.pieces) + 1)


def best_texts(lines: Sequence[str]) -> list[str]:
    """Return the first texts of JSON lines, without line breaks; empty after errors."""
    lists = [json.loads(line).get("nbest") or [{"text": ""}] for line in lines]
    return [" ".join(nbest[0]["text"].splitlines()) for nbest in lists]
