"""`seq2seq score`: sacreBLEU's numbers, comparisons in words, breakdowns, mistakes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import seq2seq
from conftest import write_lines
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from seq2seq.config import PairsConfig
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.comparison import (
    MAX_TESTED_LINES,
    Comparison,
    by_length,
    compare,
    mark_differences,
    most_different,
)
from seq2seq.evaluation.metrics import bleu_tokenizer, tokenizer_of
from seq2seq.evaluation.systems import System, TestSet, load_systems, read_line_scores
from seq2seq.files import write_sums
from seq2seq.processes import Processes

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "out", "of"]


def made_up(lines: int = 60) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return two systems, of which the second is better, and two lists of references."""
    random = np.random.default_rng(1)
    references = [" ".join(random.choice(WORDS, size=random.integers(1, 15))) for _ in range(lines)]

    def worsened(share: float) -> list[str]:
        return [
            " ".join(word if random.random() > share else "oh" for word in text.split())
            for text in references
        ]

    return worsened(0.4), worsened(0.3), references, worsened(0.1)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    names = ("first", "second", "ref", "ref2")
    return [
        write_lines(tmp_path / name, lines) for name, lines in zip(names, made_up(), strict=True)
    ]


def sacrebleu(*arguments: object) -> str:
    command = [sys.executable, "-m", "sacrebleu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


SACREBLEU_OPTIONS = ("-m", "bleu", "chrf", "ter", "--ter-case-sensitive", "-w", "3")


def check_scores(own: dict[str, Any], file: Path, references: Sequence[Path]) -> None:
    text = sacrebleu(*references, "-i", file, *SACREBLEU_OPTIONS, "--confidence")
    for each in json.loads(text):
        key = {"BLEU": "bleu", "chrF2": "chrf", "TER": "ter"}[each["name"]]
        assert own[key] == pytest.approx(each["score"], abs=6e-4)
        assert own[f"{key}_interval"] == pytest.approx(each["confidence_var"], abs=6e-4)
        name = "signature" if key == "bleu" else f"{key}_signature"
        assert own[name] == each["signature"].replace("bs:1000|seed:12345|", "")


def test_scores_intervals_and_tests_are_those_of_sacrebleu(files: list[Path]) -> None:
    first, second, reference, _ = files
    found = json.loads(seq2seq("score", first, reference, "--against", second, "--json").stdout)
    [other] = found["against"]
    check_scores(found, first, [reference])
    check_scores(other, second, [reference])
    plus = sacrebleu(reference, "-i", first, "-m", "chrf", "--chrf-word-order", "2", "-w", "3")
    assert found["chrf++"] == pytest.approx(json.loads(plus)["score"], abs=6e-4)
    for test, key in (("bs", "p_bootstrap"), ("ar", "p_randomization")):
        text = sacrebleu(
            reference, "-i", first, second, *SACREBLEU_OPTIONS, f"--paired-{test}", "-f", "text"
        )
        expected = [float(p) for p in re.findall(r"\(p = ([0-9.]+)\)", text)]
        compared = [other["comparisons"][name][key] for name in ("BLEU", "chrF2", "TER")]
        assert compared == pytest.approx(expected, abs=6e-5)


def test_scores_against_several_references_are_those_of_sacrebleu(files: list[Path]) -> None:
    first, _, *references = files
    found = json.loads(seq2seq("score", first, *references, "--json").stdout)
    check_scores(found, first, references)


def test_a_comparison_says_what_can_be_said() -> None:
    def sentence(difference: float, *p: float, metric: str = "BLEU", different: int = 900) -> str:
        p_values = (p[0], p[1]) if p else None
        return Comparison("A", "B", metric, difference, 1463, different, p_values).sentence()

    assert sentence(0.84, 4 / 1001, 21 / 10001) == (
        "B is better than A by 0.8 BLEU (p = 0.004 bootstrap, 0.0021 randomisation, 1,463 lines)"
    )
    assert sentence(-0.84, 0.001, 0.001).startswith("A is better than B by 0.8 BLEU (")
    ter = "B is better than A by 2.0 TER (lower is better; p = 0.001 bootstrap, "
    assert sentence(-2, 0.001, 0.001, metric="TER").startswith(ter)
    for found, result in [
        (sentence(0.84, 0.03, 0.06), "BLEU: B +0.8 (p = 0.03 bootstrap, 0.06 randomisation, "),
        (sentence(-0.84, 0.06, 0.03), "BLEU: B -0.8 (p = 0.06"),
        (sentence(50.0, 0.001, 0.001, different=9), "BLEU: B +50.0 (only 9 of 1,463 lines differ)"),
    ]:
        assert found.startswith(f"no significant difference in {result}")
    assert sentence(0.5) == "BLEU: B +0.5 (not tested: more than 10,000 lines)"
    for p in [(1.0, 1.0), ()]:
        assert sentence(0.0, *p) == "BLEU: B and A have the same score (1,463 lines)"


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange lines 100 times, not 10,000: enough where no p-value is compared."""
    monkeypatch.setitem(PairedTest._DEFAULT_SAMPLES, "ar", 100)


@pytest.mark.usefixtures("few_trials")
def test_numbers_of_other_programs_are_compared_line_by_line(tmp_path: Path) -> None:
    first, second, references, _ = made_up(40)
    random = np.random.default_rng(0)
    low = random.normal(0.5, 0.1, 40)
    high = low + random.normal(0.2, 0.05, 40)
    systems = [System("a", first), System("b", second)]
    files = [
        write_lines(tmp_path / name, list(map(str, x))) for name, x in (("a", low), ("b", high))
    ]
    line_scores = read_line_scores([["COMET", *map(str, files)]], systems)
    result = compare(systems, TestSet([references]), keys=["bleu"], line_scores=line_scores)
    assert [own[-1].value for own in result.scores] == pytest.approx([low.mean(), high.mean()])
    comparison = result.comparisons[1][-1]
    assert comparison.metric == "COMET" and comparison.is_significant
    assert comparison.difference == pytest.approx((high - low).mean())
    # The mean of n numbers varies by their deviation / sqrt(n).
    expected = 1.96 * low.std() / 40**0.5
    assert result.scores[0][-1].margin == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("MetricX", ["one"], "needs one file per system: 2 files, not 1"),
        ("MetricX", ["one", "text"], "so .*text must have as many, with a number"),
        ("TER", ["one", "one"], "TER is a sacreBLEU metric"),
    ],
)
def test_line_scores_are_a_number_a_line(
    name: str, files: list[str], message: str, tmp_path: Path
) -> None:
    texts = {"one": "3.5\n1\n", "short": "1\n", "text": "good\n1\n"}
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    systems = [System("a", ["x", "y"]), System("b", ["x", "z"])]
    given = [[name, *(str(tmp_path / file) for file in files)]]
    with pytest.raises(UserError, match=message):
        read_line_scores(given, systems)


@pytest.mark.parametrize(
    ("text", "other", "shown"),
    [
        ("the cat sat on the mat", "the dog sat on a mat", "the [cat] sat on [the] mat"),
        ("我爱狗", "我爱猫", "我爱[狗]"),
    ],
)
def test_words_that_the_other_text_lacks_are_marked(text: str, other: str, shown: str) -> None:
    assert mark_differences(text, other, "[", "]") == shown


def test_lines_that_differ_most_are_sorted_and_differ() -> None:
    references = ["a good line", "another line", "the same", "the last of the lines"]
    first = ["a good line", "x", "the same", "the last of lines"]
    second = ["a bad one", "another line", "the same", "the last of the lines"]
    test_set = TestSet([references], ["s1", "s2", "s3", "s4"])
    better, worse = most_different([System("a", first), System("b", second)], test_set, 5)
    assert [each["line"] for each in better] == [2, 4] and [each["line"] for each in worse] == [1]
    assert better[0]["difference"] > better[1]["difference"] > 0 > worse[0]["difference"]
    assert (worse[0]["source"], worse[0]["reference"]) == ("s1", "a good line")


def test_groups_by_length() -> None:
    references = ["a b", "a b c d e f", "x"]
    system = System("a", references)
    groups = by_length([system], TestSet([references]))
    assert [(group["group"], group["lines"]) for group in groups] == [("1-5", 2), ("6-10", 1)]
    assert all(group["a"]["chrf"] == 100 for group in groups)


@pytest.mark.usefixtures("few_trials")
def test_runs_are_translated_and_compared(run: Path, tmp_path: Path) -> None:
    evaluated = json.loads(seq2seq("evaluate", run, "--json", "-o", tmp_path / "kept").stdout)
    alone = json.loads(seq2seq("score", run, "--json").stdout)
    for key in ("bleu", "chrf", "ter", "search"):
        assert alone[key] == pytest.approx(evaluated[key], abs=1e-4) or alone[key] == evaluated[key]
    assert alone["lines"] == 30
    other = tmp_path / "other"
    shutil.copytree(run, other, symlinks=True)
    done = seq2seq("score", run, "--against", other, tmp_path / "kept", "--lines", "3")
    text = done.stdout.decode()
    assert "BLEU: kept and run have the same score (30 lines)" in text
    assert "words of the reference" in text


def test_runs_with_other_tags_and_tokenizers(run: Path, tmp_path: Path) -> None:
    """The run's own sources have its tag; other data get the tag that the recipe's test set has."""

    def changed(name: str, **changes: Any) -> Path:
        folder = tmp_path / name
        shutil.copytree(run, folder, symlinks=True)
        path = (folder / "best").resolve() / "model.json"
        description = json.loads(path.read_text())
        description["recipe"]["data"] |= changes
        path.write_text(json.dumps(description))
        write_sums(path.parent)
        return folder

    recipe = json.loads((run / "best" / "model.json").read_text())["recipe"]
    tagged = changed("tagged", test=[recipe["data"]["test"][0] | {"tag": "<x>"}])
    other = changed("other", tokenized=True)
    write_lines(tmp_path / "given.en", ["the dog number 1"])
    write_lines(tmp_path / "given.de", ["der Hund Nummer 1"])
    given = str(tmp_path / "given")
    [(test_set, systems)] = load_systems([run, tagged], [], Processes(), data=given).values()
    assert test_set.sources == ["the dog number 1"]
    for folder, system, tag in ((run, systems[0], None), (tagged, systems[1], "<x>")):
        translator = Translator.load(folder, tag=tag, precision="fp32")
        assert list(system.lines) == translator.translate(test_set.sources)
    [(alone, _)] = load_systems([other], [], Processes(), data=given).values()
    assert alone.tokenize == "none"
    [(held_out, _)] = load_systems([tagged], [], Processes()).values()
    assert held_out.sources[0] == "the dog number 0 test"  # its tag is not text


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [("ja", "ja-mecab"), ("zh-TW", "zh"), ("kor_Hang", "ko-mecab"), ("TH", "char"), ("de", "13a")],
)
def test_the_language_chooses_the_tokenizer(language: str, tokenizer: str) -> None:
    assert bleu_tokenizer(PairsConfig(), language) == tokenizer
    assert bleu_tokenizer(PairsConfig(tokenized=True), language) == "none"


def test_without_its_packages_a_tokenizer_counts_characters(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("seq2seq.evaluation.metrics.find_spec", lambda _: None)
    tokenizer_of.cache_clear()
    found = [tokenizer_of(language) for language in ("ja", "ja", "zh", "fr")]
    tokenizer_of.cache_clear()
    assert found == ["char", "char", "zh", "13a"]
    [message] = caplog.messages
    assert "ja-mecab needs pip install" in message


def test_files_are_scored_by_the_words_of_their_language(tmp_path: Path) -> None:
    lines = ["これは本です。今日は雨です。"] * 2, ["これは本です。明日は雨です。"] * 2
    paths = [
        write_lines(tmp_path / name, x) for name, x in zip(("hyp", "ref.ja"), lines, strict=True)
    ]
    found = json.loads(seq2seq("score", *paths, "--json").stdout)
    expected = BLEU(tokenize="ja-mecab").corpus_score(lines[0], [lines[1]])
    assert found["bleu"] == pytest.approx(expected.score) and expected.score > 40
    assert "tok:ja-mecab" in found["signature"] and "asian:yes" in found["ter_signature"]


def test_options_may_stand_between_hypothesis_and_reference(files: list[Path]) -> None:
    first, _, reference, _ = files
    between = seq2seq("score", first, "--lowercase", reference, "--metrics", "bleu", "--json")
    assert "case:lc" in json.loads(between.stdout)["signature"]


@pytest.mark.usefixtures("few_trials")
def test_blank_lines_and_resamples_without_a_match(tmp_path: Path) -> None:
    """sacreBLEU's own interval fails where some resamples score 0."""
    one = write_lines(tmp_path / "one", ["der Hund", "", "xyz", "xyz", "xyz"])
    two = write_lines(tmp_path / "two", ["der Hund", "", "ab", "xyz", "uvw"])
    reference = write_lines(tmp_path / "ref", ["der Hund", "", "ab", "cd", "ef"])
    done = seq2seq("score", one, reference, "--against", two, "--lines", 2)
    assert done.returncode == 0, done.stderr
    assert b"only 2 of 5 lines differ" in done.stdout and b"line 3: two +" in done.stdout
    tree = json.loads(seq2seq("score", one, reference, "--against", two, "--json").stdout)
    assert not any(x["significant"] for x in tree["against"][0]["comparisons"].values())


def test_many_lines_are_scored_without_resampling(tmp_path: Path) -> None:
    lines = ["a b c d"] * (MAX_TESTED_LINES + 1)
    given = {"one": lines, "two": [*lines[1:], "a b c e"], "ref": lines}
    files = [write_lines(tmp_path / name, own) for name, own in given.items()]
    done = seq2seq("score", files[0], files[2], "--against", files[1], "--metrics", "bleu")
    assert b"not tested: more than 10,000 lines" in done.stdout and "±" not in done.stdout.decode()
