"""Reranking of n-best lists."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import logits_of, make_language_model
from sacrebleu import sentence_bleu, sentence_chrf

from seq2seq import Translator
from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.errors import UserError
from seq2seq.evaluation.rerank import (
    LanguageModelScorer,
    NBest,
    NBestReader,
    Reranker,
    best_texts,
    expected_utility,
)
from seq2seq.model.directory import save_model, snapshot

TEXTS = ["the cat sat on the mat", "the cat sat on a mat", "a dog ran off", "the cat sat on a mat"]


def line(**fields: Any) -> NBest:
    candidates = [
        {"text": text, "score": -float(i), "log_prob": -2.0 * i, "comet": c}
        for i, (text, c) in enumerate(zip(TEXTS, (0.1, 0.4, 0.9, 0.2), strict=True))
    ]
    return NBest({"text": "source", "id": 7, "nbest": candidates, **fields}, "x, line 1")


def test_expected_utility_is_the_mean_of_sacrebleu() -> None:
    weights = [1.0, 0.5, 0.25, 0.0]
    chrf = expected_utility(TEXTS, weights, "chrf")
    bleu = expected_utility(TEXTS, weights, "bleu")
    for i, text in enumerate(TEXTS):
        pairs = list(zip(TEXTS, weights, strict=True))
        expected = sum(w * sentence_chrf(text, [other]).score for other, w in pairs) / 1.75
        assert chrf[i] == pytest.approx(expected)
        expected = sum(w * sentence_bleu(text, [other]).score for other, w in pairs) / 1.75
        assert bleu[i] == pytest.approx(expected)


def test_minimum_bayes_risk_prefers_what_others_resemble() -> None:
    [reranked] = Reranker({}, utility="chrf")([line()])
    fields = json.loads(reranked)
    assert fields["translation"] == "the cat sat on a mat" and fields["id"] == 7
    assert [each["text"] for each in fields["nbest"]][-1] == "a dog ran off"
    values = [each["rerank_score"] for each in fields["nbest"]]
    assert values == sorted(values, reverse=True)
    assert best_texts([reranked]) == ["the cat sat on a mat"]
    nbest = [each | {"log_prob": -100.0 * i} for i, each in enumerate(line().candidates)]
    sharp = NBest({**line().fields, "nbest": nbest}, "x")
    [reranked] = Reranker({}, utility="chrf", posterior=True)([sharp])
    assert json.loads(reranked)["translation"] == TEXTS[0]


def test_fields_and_weights() -> None:
    [by_field] = Reranker({}, fields=["comet"])([line()])
    assert json.loads(by_field)["translation"] == "a dog ran off"
    [mixed] = Reranker({"score": 1.0, "comet": 2.0}, fields=["comet"])([line()])
    assert json.loads(mixed)["translation"] == TEXTS[0]
    assert json.loads(mixed)["rerank_score"] == pytest.approx(0.2)


def test_mistakes_are_named() -> None:
    def message(action: Callable[[], object]) -> str:
        with pytest.raises(UserError) as error:
            action()
        return str(error.value)

    assert "nothing to rerank by" in message(lambda: Reranker({}))
    assert "--weight x: no such feature; there are score, mbr" in message(
        lambda: Reranker({"x": 1.0}, utility="bleu")
    )
    assert 'x, line 1: not every candidate has a number "cos"' in message(
        lambda: Reranker({}, fields=["cos"])([line()])
    )
    for text in ("no json", "[]", '{"text": "a"}', '{"nbest": []}', '{"nbest": [{"text": 3}]}'):
        assert "x, line 3: not a JSON line with an n-best list" in message(
            lambda text=text: NBestReader()(text, 2, "x, line 3")  # type: ignore[misc]
        )
    failed = NBestReader()('{"error": "too long"}', 0, "x, line 1")
    assert json.loads(Reranker({}, utility="bleu")([failed])[0]) == {"error": "too long"}


def test_a_language_model_scores_lines(tmp_path: Path) -> None:
    model = make_language_model(context=8)
    letters = Alphabet("abcdefghij \n")
    config = Config(task="language_model", model=model.config)
    save_model(tmp_path, snapshot(model), Tokenizer(letters, letters), config)
    scorer = LanguageModelScorer(tmp_path, "cpu")
    [ids] = letters.encode(["\nabba\n"])
    log_probs = logits_of(model, ids).log_softmax(-1)
    expected = sum(float(log_probs[t, ids[t + 1]]) for t in range(len(ids) - 1)) / (len(ids) - 1)
    assert scorer("abba") == pytest.approx(expected, abs=1e-5)
    assert math.isfinite(scorer("abcdefghij" * 5))


def test_a_backward_model_scores_the_source(
    make_translator: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make_translator()
    monkeypatch.setattr(Translator, "load", lambda *_, **__: translator)
    nbest = [{"text": text, "score": 0.0} for text in ("the dog", "a red house", "tree")]
    fields = {"text": "ein Haus", "nbest": nbest}
    [reranked] = Reranker({}, backward=Path("x"))([NBest(fields, "x, line 1")])
    scored = {each["text"]: each["backward"] for each in json.loads(reranked)["nbest"]}
    for text in ("the dog", "a red house", "tree"):
        [found] = translator.translate([text], references=[["ein Haus"]], tokens=True)
        [reference] = found.references
        mean = np.mean([x for _, x in reference.tokens])
        assert scored[text] == pytest.approx(mean, abs=1e-4)
    best = json.loads(reranked)["translation"]
    assert scored[best] == max(scored.values())
    with pytest.raises(UserError, match="needs the source"):
        Reranker({}, backward=Path("x"))([NBest({"nbest": nbest}, "x, line 1")])
