"""Reranking of n-best lists."""

from __future__ import annotations

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
from seq2seq.decoding.generation import TextGenerator
from seq2seq.errors import UserError
from seq2seq.evaluation.rerank import (
    NBest,
    Reranker,
    best_text,
    expected_utility,
    log_prob_of_text,
    read_nbest,
)
from seq2seq.formats.weights import save_model, snapshot

TEXTS = ["the cat sat on the mat", "the cat sat on a mat", "a dog ran off", "the cat sat on a mat"]


def line(**fields: Any) -> NBest:
    candidates = [
        {"text": text, "score": -float(i), "log_prob": -2.0 * i, "comet": c}
        for i, (text, c) in enumerate(zip(TEXTS, (0.1, 0.4, 0.9, 0.2), strict=True))
    ]
    return NBest({"text": "source", "id": 7, "nbest": candidates, **fields}, "x, line 1")


def test_expected_utility_is_the_mean_of_sacrebleu() -> None:
    chrf = expected_utility(TEXTS, "chrf")
    bleu = expected_utility(TEXTS, "bleu")
    for i, text in enumerate(TEXTS):
        expected = sum(sentence_chrf(text, [other]).score for other in TEXTS) / 4
        assert chrf[i] == pytest.approx(expected)
        expected = sum(sentence_bleu(text, [other]).score for other in TEXTS) / 4
        assert bleu[i] == pytest.approx(expected)


def test_minimum_bayes_risk_prefers_what_others_resemble() -> None:
    [reranked] = Reranker({}, utility="chrf")([line()])
    assert reranked["translation"] == "the cat sat on a mat" and reranked["id"] == 7
    assert reranked["nbest"][-1]["text"] == "a dog ran off"
    values = [each["rerank_score"] for each in reranked["nbest"]]
    assert values == sorted(values, reverse=True)
    assert best_text(reranked) == "the cat sat on a mat"


@pytest.mark.parametrize(
    ("weights", "fields", "best", "score"),
    [
        ({}, ["comet"], "a dog ran off", 0.9),
        ({"score": 1.0, "comet": 2.0}, ["comet"], TEXTS[0], 0.2),
        ({}, ["score", "comet"], TEXTS[0], 0.1),
        ({"comet": -1.0}, ["comet"], TEXTS[0], -0.1),
    ],
)
def test_fields_and_weights(
    weights: dict[str, float], fields: list[str], best: str, score: float
) -> None:
    [reranked] = Reranker(weights, fields=fields)([line()])
    assert reranked["translation"] == best
    assert reranked["rerank_score"] == pytest.approx(score)


def test_of_an_earlier_winner_only_what_is_still_true_remains() -> None:
    lists = {"tokens": [1], "alignment": [2], "warnings": ["repetition"]}
    stale = lists | {"translation": TEXTS[0], "terms": 2, "score": 5.0, "rerank_score": 3.0}
    [other] = Reranker({}, fields=["comet"])([line(**stale)])
    assert other["translation"] == "a dog ran off" and other["score"] == -2.0
    assert not other.keys() & {*lists, "terms"}
    [same] = Reranker({}, fields=["score"])([line(**stale)])
    assert (same["score"], same["rerank_score"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ({}, {}, "nothing to rerank by"),
        ({"x": 1.0}, {"utility": "bleu"}, "--weight x: unknown feature; available: score, mbr"),
        ({}, {"fields": ["cos"]}, 'x, line 1: not every candidate has a number "cos"'),
        ({"score": 1.0}, {"fields": ["comet"]}, 'not every candidate has a number "score"'),
        ({}, {"fields": ["infinite"]}, 'not every candidate has a number "infinite"'),
    ],
)
def test_mistakes_are_named(
    weights: dict[str, float], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Reranker(weights, **options)(
            [line(nbest=[{"text": "a", "comet": 1, "infinite": math.inf}])]
        )


@pytest.mark.parametrize(
    "text",
    [
        '{"nbest": [{"text": "\\ud800"}]}',
        "no json",
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
    [reranked] = Reranker({}, utility="bleu")([failed])
    assert reranked == {"error": "too long"} and best_text(reranked) == ""


def language_model(folder: Path) -> Path:
    """Save a language model of the letters a to j."""
    model, letters = make_language_model(context=8), Alphabet("abcdefghij \n")
    config = replace(TASKS["language_model"].defaults, model=model.config)
    save_model(folder, snapshot(model), Tokenizer(letters, letters), config)
    return folder


def test_a_language_model_scores_lines(tmp_path: Path) -> None:
    generator = TextGenerator.load(language_model(tmp_path), device="cpu")
    [ids] = generator.tokenizer.target.encode(["\nabba\n"])
    log_probs = logits_of(generator.model, ids).log_softmax(-1)
    expected = sum(float(log_probs[t, ids[t + 1]]) for t in range(len(ids) - 1)) / (len(ids) - 1)
    assert log_prob_of_text(generator, "abba") == pytest.approx(expected, abs=1e-5)
    assert math.isfinite(log_prob_of_text(generator, "abcdefghij" * 5))


def test_a_backward_model_scores_the_source(
    make_translator: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make_translator()
    monkeypatch.setattr(Translator, "load", lambda *_, **__: translator)
    nbest = [{"text": text, "score": 0.0} for text in ("the dog", "a red house", "tree")]
    fields = {"text": "ein Haus", "nbest": nbest}
    [reranked] = Reranker({}, backward=Path("x"))([NBest(fields, "x, line 1")])
    scored = {each["text"]: each["backward"] for each in reranked["nbest"]}
    for text in ("the dog", "a red house", "tree"):
        [found] = translator.translations([text], references=[["ein Haus"]], tokens=True)
        [reference] = found.references
        assert scored[text] == pytest.approx(np.mean(reference.log_probs), abs=1e-4)
    assert scored[reranked["translation"]] == max(scored.values())
    with pytest.raises(UserError, match="needs the source"):
        Reranker({}, backward=Path("x"))([NBest({"nbest": nbest}, "x, line 1")])


def reranked_all_but_the_second(
    reranker: Reranker, lists: list[dict[str, Any]], feature: str
) -> None:
    lines = [NBest(fields, f"x, line {number}") for number, fields in enumerate(lists, start=1)]
    first, second = reranker(lines)
    assert feature in first["nbest"][0] and second == lists[1]


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
    reranked_all_but_the_second(Reranker({}, backward=Path("x")), lists, "backward")
    assert "x, line 2: not reranked: a candidate is too long" in caplog.text


def test_a_line_that_the_language_model_cannot_read_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lists = [
        {"nbest": [{"text": text, "score": 0.0} for text in texts]}
        for texts in (("ab", "cd"), ("ab", "xyz"))
    ]
    reranker = Reranker({}, language_model=language_model(tmp_path), device="cpu")
    reranked_all_but_the_second(reranker, lists, "lm")
    assert "x, line 2: not reranked: the character 'x'" in caplog.text


def test_fields_of_candidates_are_not_those_of_the_line() -> None:
    nbest = [{"text": "Ein", "x": 1, "translation": "wrong", "id": 3}, {"text": "Das", "x": 2}]
    fields = {"id": 7, "x": 5, "nbest": nbest}
    [reranked] = Reranker({"x": -1.0}, fields=["x"])([NBest(fields, "x")])
    assert (reranked["translation"], reranked["id"], reranked["x"]) == ("Ein", 7, 5)
    assert reranked["nbest"][0]["translation"] == "wrong"
