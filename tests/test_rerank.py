"""Reranking of n-best lists."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import logits_of, make_language_model
from sacrebleu import sentence_bleu, sentence_chrf

from seq2seq import Translator
from seq2seq.config import TASKS
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.errors import UserError
from seq2seq.evaluation.rerank import (
    LanguageModelScorer,
    NBest,
    Reranker,
    best_texts,
    expected_utility,
    read_nbest,
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


def test_the_score_is_a_field_like_others() -> None:
    [alone] = Reranker({}, fields=["score"])([line()])
    assert json.loads(alone)["translation"] == TEXTS[0]
    [both] = Reranker({}, fields=["score", "comet"])([line()])
    assert json.loads(both)["rerank_score"] == pytest.approx(0.1)


def test_the_candidate_is_one_of_its_references() -> None:
    """The expectation is over all translations (Eikema and Aziz 2022), as a sum written out."""
    nbest = [each | {"log_prob": math.log(p)} for each, p in
             zip(line().candidates[:3], (0.7, 0.2, 0.1), strict=True)]  # fmt: skip
    texts, probs = [each["text"] for each in nbest], (0.7, 0.2, 0.1)
    found = {}
    for posterior in (False, True):
        [reranked] = Reranker({}, utility="chrf", posterior=posterior)(
            [NBest({"nbest": nbest}, "x")]
        )
        found[posterior] = {each["text"]: each["mbr"] for each in json.loads(reranked)["nbest"]}
    for text in texts:
        scores = [sentence_chrf(text, [other]).score for other in texts]
        assert found[False][text] == pytest.approx(sum(scores) / 3)
        weighted = sum(p * score for p, score in zip(probs, scores, strict=True))
        assert found[True][text] == pytest.approx(weighted)


def test_of_an_earlier_winner_only_what_is_still_true_remains() -> None:
    stale = {"translation": TEXTS[0], "tokens": [1], "alignment": [2], "warnings": ["repetition"],
             "terms": 2, "terms_kept": 1, "score": 5.0, "rerank_score": 3.0}  # fmt: skip
    [other] = Reranker({}, fields=["comet"])([line(**stale)])
    fields = json.loads(other)
    assert fields["translation"] == "a dog ran off" and fields["score"] == -2.0
    assert not fields.keys() & {"tokens", "alignment", "warnings", "terms", "terms_kept"}
    [same] = Reranker({}, fields=["score"])([line(**stale)])
    fields = json.loads(same)
    assert (fields["warnings"], fields["terms_kept"], fields["score"]) == (["repetition"], 1, 0.0)
    assert not fields.keys() & {"tokens", "alignment"} and fields["rerank_score"] == 0.0


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ({}, {}, "nothing to rerank by"),
        ({"x": 1.0}, {"utility": "bleu"}, "--weight x: no such feature; there are score, mbr"),
        ({}, {"utility": "bleu", "fields": ["mbr"]}, "--field mbr: --mbr makes a feature"),
        ({}, {"fields": ["cos"]}, 'x, line 1: not every candidate has a number "cos"'),
        ({"comet": math.nan}, {"fields": ["comet"]}, "x, line 1: the weighted sum"),
        ({"score": 1e308, "comet": 1e308}, {"fields": ["comet"]}, "x, line 1: the weighted sum"),
    ],
)
def test_mistakes_are_named(
    weights: dict[str, float], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Reranker(weights, **options)([line(nbest=[{"text": "a", "score": 10, "comet": 1}])])


@pytest.mark.parametrize("number", [math.inf, True, "1", None])
def test_a_field_is_a_finite_number(number: object) -> None:
    with pytest.raises(UserError, match='not every candidate has a number "comet"'):
        Reranker({}, fields=["comet"])([line(nbest=[{"text": "a", "score": 1, "comet": number}])])


@pytest.mark.parametrize(
    "text",
    [
        '{"nbest": [{"text": "a", "x": NaN}]}',
        '{"nbest": [{"text": "\\ud800"}]}',
        "no json",
        "[]",
        '{"text": "a"}',
        '{"nbest": []}',
        '{"nbest": [{"text": 3}]}',
    ],
)
def test_lines_without_an_nbest_list_are_named(text: str) -> None:
    with pytest.raises(UserError, match="x, line 3: not a JSON line with an n-best list"):
        read_nbest(text, "x, line 3")


def test_a_line_with_an_error_stays() -> None:
    failed = read_nbest('{"error": "too long"}', "x, line 1")
    assert json.loads(Reranker({}, utility="bleu")([failed])[0]) == {"error": "too long"}


def test_a_language_model_scores_lines(tmp_path: Path) -> None:
    model = make_language_model(context=8)
    letters = Alphabet("abcdefghij \n")
    config = replace(TASKS["language_model"].defaults, model=model.config)
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
        [found] = translator.translations([text], references=[["ein Haus"]], tokens=True)
        [reference] = found.references
        mean = np.mean(reference.log_probs)
        assert scored[text] == pytest.approx(mean, abs=1e-4)
    best = json.loads(reranked)["translation"]
    assert scored[best] == max(scored.values())
    with pytest.raises(UserError, match="needs the source"):
        Reranker({}, backward=Path("x"))([NBest({"nbest": nbest}, "x, line 1")])


def test_a_line_that_is_too_long_for_the_backward_model_is_left_as_it_is(
    make_translator: Callable[..., Translator],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    translator = make_translator(limit=20)
    monkeypatch.setattr(Translator, "load", lambda *_, **__: translator)
    lists = [
        {"text": "ein Haus", "nbest": [{"text": text, "score": 0.0} for text in ("a", target)]}
        for target in ("tree", "the dog " * 30)
    ]
    lines = [NBest(fields, f"x, line {number}") for number, fields in enumerate(lists, start=1)]
    first, second = map(json.loads, Reranker({}, backward=Path("x"))(lines))
    assert "backward" in first["nbest"][0] and second == lists[1]
    assert "x, line 2: not reranked: a text is too long" in caplog.text


def test_fields_of_candidates_are_not_those_of_the_line() -> None:
    nbest = [{"text": "Ein", "x": 1, "translation": "wrong", "id": 3}, {"text": "Das", "x": 2}]
    [reranked] = Reranker({"x": -1.0}, fields=["x"])(
        [NBest({"id": 7, "x": 5, "nbest": nbest}, "x")]
    )
    fields = json.loads(reranked)
    assert (fields["translation"], fields["id"], fields["x"]) == ("Ein", 7, 5)
    assert fields["nbest"][0]["translation"] == "wrong"


def test_a_score_is_needed_where_it_has_a_weight_only() -> None:
    lines = [NBest({"nbest": [{"text": "a", "comet": 1}, {"text": "b", "comet": 2}]}, "x, line 1")]
    [reranked] = Reranker({}, fields=["comet"])(lines)
    assert best_texts([reranked]) == ["b"]
    with pytest.raises(UserError, match='number "score"'):
        Reranker({"score": 1.0}, fields=["comet"])(lines)


def test_a_line_that_the_language_model_cannot_read_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, letters = make_language_model(context=8), Alphabet("abcdefghij \n")
    config = replace(TASKS["language_model"].defaults, model=model.config)
    save_model(tmp_path, snapshot(model), Tokenizer(letters, letters), config)
    lists = [{"nbest": [{"text": text, "score": 0.0} for text in texts]}
             for texts in (("ab", "cd"), ("ab", "xyz"))]  # fmt: skip
    lines = [NBest(fields, f"x, line {number}") for number, fields in enumerate(lists, start=1)]
    reranked = Reranker({}, language_model=tmp_path, device="cpu")(lines)
    assert "lm" in json.loads(reranked[0])["nbest"][0] and json.loads(reranked[1]) == lists[1]
    assert "x, line 2: not reranked: the character 'x'" in caplog.text
    assert best_texts(reranked)[1] == "ab" and best_texts(['{"error": "too long"}']) == [""]
