"""The programs of the recipes for selection, back-translation, distillation and context."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import write_lines

RECIPES = Path(__file__).parent.parent / "recipes"


def run(program: str, *arguments: object, text: str = "") -> str:
    """Return the standard output of a recipe's program."""
    command = [sys.executable, str(RECIPES / program), *map(str, arguments)]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "a\nb\nc\n\nd\ne\n"),
        (1, "a\na \u00a6 b\nb \u00a6 c\n\nd\nd \u00a6 e\n"),
        (2, "a\na \u00a6 b\na \u00a6 b \u00a6 c\n\nd\nd \u00a6 e\n"),
    ],
)
def test_previous_lines_of_the_same_document_are_joined(count: int, expected: str) -> None:
    assert run("context/join.py", count, text="a\nb\nc\n\nd\ne\n") == expected


def test_the_term_of_a_contrast_is_in_the_current_sentence(tmp_path: Path) -> None:
    sources = ["Draw it.", "Two lines.", "A number.", "Numbering."]
    joined = ["The line. \u00a6 Draw it.", "A page. \u00a6 Two lines.", "A number.", "Numbering."]
    targets = ["Die Linie.", "Zwei Linien, Linienart.", "Eine Nummer.", "Eine Nummer."]
    texts = {"sources": sources, "targets": targets, "joined": joined}
    files = [write_lines(tmp_path / name, lines) for name, lines in texts.items()]
    run("context/contrast.py", *files, tmp_path / "out")
    rows = [(tmp_path / f"out.{name}").read_text("utf-8").splitlines() for name in ("en", "wrong")]
    assert rows == [joined[1:3], ["Zwei Zeilen, Linienart.", "Eine Zahl."]]
    assert (tmp_path / "out.right").read_text("utf-8").splitlines() == targets[1:3]


def test_the_candidate_nearest_to_the_reference_is_chosen(tmp_path: Path) -> None:
    lists = [{"nbest": [{"text": x} for x in ("Ein Hund.", "Das Haus.")]}, {"error": "too long"}]
    nbest = write_lines(tmp_path / "nbest.jsonl", [json.dumps(x) for x in lists])
    references = write_lines(tmp_path / "references", ["Das Haus!", "Lang."])
    assert run("distillation/choose.py", nbest, references) == "Das Haus.\nLang.\n"


def test_shares_of_a_corpus_are_damaged(tmp_path: Path) -> None:
    sides = [[f"{side} {i}" for i in range(100)] for side in ("source", "target", "other")]
    source, target, other = (
        write_lines(tmp_path / name, lines) for name, lines in zip("abc", sides, strict=True)
    )
    outputs = tmp_path / "out" / "train.en", tmp_path / "out" / "train.de"
    run("selection/make_noise.py", source, target, source, other, *outputs)
    labels = (tmp_path / "out" / "train.labels").read_text().splitlines()
    sources, targets = (path.read_text().splitlines() for path in outputs)
    assert sources == sides[0]
    assert {x: labels.count(x) for x in labels} == {"ok": 60, "shuffled": 30, "other": 10}
    for i, (label, text) in enumerate(zip(labels, targets, strict=True)):
        assert (text == f"target {i}") == (label == "ok")
        assert (text == f"other {i}") == (label == "other")


@pytest.mark.parametrize("scores", [False, True])
def test_a_translation_in_parts_resumes_after_the_last_finished_part(
    tmp_path: Path, scores: bool
) -> None:
    """The second part fails the first time."""
    program = tmp_path / "seq2seq"
    option, joined = ("--score-target", 'paste -d "" "$4"') if scores else ("--beam", "sed s/^/x/")
    expected = ["a1", "b2", "c3", "d4", "e5"] if scores else ["x1", "x2", "x3", "x4", "x5"]
    program.write_text(
        f"""#!/usr/bin/env bash
set -e
[ "$*" = "translate RUN {option} $4 $5 -o $7" ]
echo "$(wc -l <"$5")" >>log
[ "$(head -n 1 "$5")" != 3 ] || [ -e failed ] || {{ touch failed; exit 1; }}
{joined} "$5" >"$7"
"""
    )
    program.chmod(0o755)
    write_lines(tmp_path / "input", ["1", "2", "3", "4", "5"])
    write_lines(tmp_path / "target", ["a", "b", "c", "d", "e"])
    command = [str(RECIPES / "translate_parts.sh"), "input", "output", "2", "RUN"]
    command += [] if scores else ["--beam", "1"]
    environment = {
        "PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
        "SCORE_TARGET": "target" if scores else "",
    }
    codes = [
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True).returncode
        for _ in range(3)
    ]
    assert codes == [1, 0, 0]
    assert (tmp_path / "output").read_text().splitlines() == expected
    assert (tmp_path / "log").read_text().split() == ["2", "2", "2", "1"]
    assert not (tmp_path / "output.parts").exists()


def test_values_of_a_recipe_are_assignments_of_the_shell(tmp_path: Path) -> None:
    corpus = tmp_path / "my corpus"
    files = [write_lines(Path(f"{corpus}.{suffix}"), list("abcdefgh")) for suffix in ("en", "de")]
    data = f"data: {{source: en, target: de, train: {corpus}, dev_size: 1, test_size: 1, store: s}}"
    recipe = write_lines(tmp_path / "mine.yaml", [data, "tokenizer: {vocab_size: 280}"])

    def values(*overrides: str, then: str = "") -> subprocess.CompletedProcess[str]:
        command = shlex.join([sys.executable, str(RECIPES / "values.py"), str(recipe), *overrides])
        script = f'set -e; values=$({command}); eval "$values"; {then}'
        return subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
        )

    done = values(then='echo "$name,$target,$source_text,$target_text"; cat "$prepared/test.en"')
    prefix, held_out = done.stdout.splitlines()
    assert prefix == f"mine,de,{files[0]},{files[1]}"
    # What the recipe holds out is the test set of trainings on other pairs, too.
    other = [write_lines(tmp_path / f"other.{suffix}", list("ijklmnop")) for suffix in ("en", "de")]
    train = f"data.train={{source: {other[0]}, target: {other[1]}}}"
    prepare = f'{sys.executable} -m seq2seq prepare {recipe} "{train}" "$@" 2>/dev/null'
    again = values(then=prepare)
    assert (tmp_path / again.stdout.strip() / "test.en").read_text() == f"{held_out}\n"
    for wrong, message in (
        ("data.test_size=0", "this needs a test set"),
        (f"data.train=[{corpus}, {corpus}]", "has 2 corpora"),
        (f"data.train={{path: {corpus}, tag: <x>}}", "no keys but its files"),
        ("data.train=none", "none.en"),
    ):
        failed = values(wrong)
        assert failed.returncode == 1 and failed.stdout == ""
        assert failed.stderr.startswith("error: ") and message in failed.stderr


def test_only_training_paragraphs_become_pairs_of_sentences() -> None:
    prepare = runpy.run_path(str(RECIPES / "libreoffice" / "prepare.py"))

    def pair(page: int, source: str, target: str) -> object:
        return prepare["Pair"]("help", f"page{page}", "key", source, target)

    paragraph = pair(1, "Save it. Close it.", "保存します。閉じます。")
    sentences = [pair(1, "Save it.", "保存します。"), pair(1, "Close it.", "閉じます。")]
    assert prepare["sentence_pairs"](paragraph, "ja") == sentences
    other = pair(1, "Save it. Close it.", "Speichern und schließen.")
    assert prepare["sentence_pairs"](other, "de") == [other]

    words = [f"w{i:04x}".translate(str.maketrans("0123456789", "ghijklmnop")) for i in range(800)]
    pages = [pair(i, f"Save {x}. Close it.", f"Sichern {x}. Ende.") for i, x in enumerate(words)]
    splits = prepare["split_pairs"](pages, "de", Counter())
    assert splits["dev"] and {*splits["dev"], *splits["test"]} < {*pages}
    assert len(splits["train"]) > 1000 and not {*splits["train"]} & {*pages}
