"""Input and output lines of `translate`, plain and JSON."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seq2seq.decoding.files import (
    RESULT_FIELDS,
    LineTranslator,
    RequestReader,
    json_line,
    plain_line,
)
from seq2seq.decoding.translation import Candidate, Options, Request, Translation
from seq2seq.errors import UserError
from seq2seq.processes import Processes

REQUEST = Request("a house", number=7)


def candidate(text: str, score: float, log_prob: float, **details: Any) -> Candidate:
    return Candidate(text, text.split(), log_prob, score, **details)


def test_the_request_of_a_json_line() -> None:
    read = RequestReader(json_lines=True)
    line = {"text": "a", "prefix": "b", "constraints": ["c d", "!"], "references": ["f"], "id": 7}
    expected = Request("a", 0, "b", ("c d", "!"), ("f",), fields=line)
    assert read(json.dumps(line), "x, line 1") == expected
    assert read(" ", "x, line 2") == Request(" ", 1)
    for plain in ("a plain line", "{name} is plain", '{"text": "a"}', '{"text', ""):
        assert RequestReader()(plain, "x, line 1") == Request(plain)


NO_OBJECT, WRONG_FIELD = "not a JSON object", 'a JSON object needs a string "text"'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', NO_OBJECT),
        ('["a"]', "not a JSON object (it is another JSON value)"),
        ('{"id": 3}', WRONG_FIELD),
        ('{"text": 3}', WRONG_FIELD),
        ('{"text": "a", "constraints": "b"}', WRONG_FIELD),
        ('{"text": "a", "references": [1]}', WRONG_FIELD),
        ('{"text": "a", "id": NaN}', NO_OBJECT),
        ('{"text": "a", "id": 1e400}', NO_OBJECT),
        ('{"text": "\\ud800"}', NO_OBJECT),
        ('{"text": "a", "id": ' + "9" * 5_000 + "}", NO_OBJECT),
    ],
)
def test_invalid_json_lines_are_errors(line: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        RequestReader(json_lines=True)(line, "x, line 4")
    assert str(error.value).startswith("x, line 4: ") and len(str(error.value)) < 250


def test_parallel_files(tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("a b\tc\n\n")
    (tmp_path / "prefixes").write_text("p\n\n")
    read = RequestReader(constraints=tmp_path / "terms", prefixes=tmp_path / "prefixes")
    assert read("the house", "line 1") == Request("the house", 0, "p", ("a b", "c"))
    assert read("x", "line 2") == Request("x", 1)
    read.finish()
    with pytest.raises(UserError, match="prefixes has no line for line 3"):
        read("y", "line 3")
    short = RequestReader(references=tmp_path / "terms")
    assert short("x", "line 1").references == ("a b\tc",)
    with pytest.raises(UserError, match="terms has more lines than the input"):
        short.finish()
    with pytest.raises(UserError, match="file not found"):
        RequestReader(references=tmp_path / "none")


def test_a_parallel_file_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("der\n\n",))
    writer.start()
    read = RequestReader(prefixes=pipe)
    assert [read("x", f"line {i}").prefix for i in range(2)] == ["der", ""]
    read.finish()
    writer.join()


def test_the_columns_of_plain_lines() -> None:
    first = candidate("ein\tHaus", -1.5, -3.0, alignment=((0, 0), (1, 1)))
    both = Translation(REQUEST, (first, candidate("Haus", -2.0, -4.0)))
    assert plain_line(both, scores=False, alignment=False) == "ein Haus\tHaus"
    assert plain_line(Translation(REQUEST, (first,)), scores=True, alignment=True) == (
        "-1.500000\t-3.000000\tein Haus\t0-0 1-1"
    )
    # A carriage return is replaced: at the end of a line it would be part of the line break.
    carriage_returns = Translation(REQUEST, [candidate("a\rb\r", -2.0, -4.0)])
    assert plain_line(carriage_returns, scores=False, alignment=False) == "a b "
    assert plain_line(Translation(REQUEST), scores=True, alignment=True) == ""
    scored = Translation(REQUEST, references=(first,))
    assert plain_line(scored, scores=True, alignment=False).endswith("ein Haus")


def test_the_fields_of_json_lines() -> None:
    request_fields = {"text": "a house", "id": [1, {"x": None}], "score": "old"}
    request = Request("a house", fields=request_fields)
    details = {"log_probs": (-1.0, -0.5, -1.5), "alignment": [(0, 0)]}
    best = candidate("ein Haus", -1.5, -3.0, **details)
    translation = Translation(request, [best], [best], repeats=True, terms=2, terms_kept=1)
    fields = json.loads(json_line(translation, nbest=True))
    assert fields["text"] == "a house" and fields["id"] == [1, {"x": None}]
    assert fields["translation"] == "ein Haus" and fields["score"] == -1.5
    tokens = [(token["piece"], token["log_prob"]) for token in fields["tokens"]]
    assert tokens == [("ein", -1.0), ("Haus", -0.5), ("</s>", -1.5)]
    assert fields["alignment"] == [[0, 0]]
    assert fields["nbest"][0]["text"] == fields["reference_scores"][0]["text"] == "ein Haus"
    assert fields["warnings"] == ["repetition"]
    assert (fields["terms"], fields["terms_kept"]) == (2, 1)
    failed = json.loads(json_line(Translation(request, error="too long"), nbest=True))
    assert failed["error"] == "too long" and "translation" not in failed


def test_fields_of_an_earlier_translation_are_dropped() -> None:
    details = {"log_probs": (-1.0, -0.5, -1.5), "alignment": [(0, 0)]}
    best = candidate("ein Haus", -1.5, -3.0, **details)
    request = Request("a house", fields={"text": "a house", "id": 3})
    full = Translation(request, [best, best], [best], True, terms=2, terms_kept=1, spans=1)
    first = json.loads(json_line(full, nbest=True))
    failed = json.loads(json_line(Translation(request, error="too long"), nbest=True))
    added = RESULT_FIELDS - {"rerank_score"}
    assert first.keys() | failed.keys() == added | {"text", "id"}
    plain = {"text", "id", "translation", "score", "log_prob"}
    again = Request("a house", fields=first | failed | {"rerank_score": 3.0})
    second = json.loads(json_line(Translation(again, [candidate("x", -1.0, -2.0)]), nbest=False))
    assert second.keys() == plain and second["translation"] == "x" and second["id"] == 3
    third = json.loads(json_line(Translation(again, error="new"), nbest=False))
    assert third == {"text": "a house", "id": 3, "error": "new"}
    # Scoring does not translate: the earlier translation stays.
    scored = json.loads(json_line(Translation(again, references=[best]), nbest=False))
    assert scored["translation"] == "ein Haus" and scored["nbest"] == first["nbest"]
    assert "error" not in scored


def test_the_report_of_repetitions_errors_and_terms(caplog: pytest.LogCaptureFixture) -> None:
    best = [candidate("x", -1.0, -2.0)]
    translations = [
        Translation(REQUEST, repeats=True),
        Translation(REQUEST, best, repeats=True, terms=2, terms_kept=1),
        Translation(REQUEST, error="too long"),
    ]
    translator: Any = SimpleNamespace(process=lambda *_, **__: translations)
    translate = LineTranslator(translator, Processes(), Options())
    assert len(translate([REQUEST] * 3)) == 3
    translate.report()
    assert caplog.messages == [
        "line 8 not translated: too long",
        "translations with repetitions: 2 (try --no-repeat-ngram 4)",
        "lines not translated: 1",
        "terms in the translations: 1 of 2",
    ]
