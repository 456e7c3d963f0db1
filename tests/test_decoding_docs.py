"""Every example of docs/decoding.md and every Python block run, and every option has an example."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import VOCABULARY, drawn, small_shape
from test_cli import run, seq2seq  # noqa: F401

from seq2seq.cli.arguments import make_parser
from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, Labels
from seq2seq.model.classifier import Classifier
from seq2seq.model.directory import save_model, snapshot
from seq2seq.model.language_model import LanguageModel

ROOT = Path(__file__).parents[1]
DOCS = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^    (seq2seq .*)$", DOCS, re.MULTILINE)
LM_SHAPE = small_shape(encoder_layers=0, context=16)
SOURCES = ["the dog", "", "the dog number 3", "a house number 1 is old"]


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Return a folder with everything that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "runs").mkdir()
    for name in ("RUN", "OTHER_RUN", "REVERSE_RUN", "runs/libreoffice_en_de"):
        (folder / name).symlink_to(run)
    letters, config = Alphabet(None), Config(task="language_model", model=LM_SHAPE)
    model = drawn(LanguageModel(LM_SHAPE, letters.size))
    for name in ("LM_RUN", "runs/mybook"):
        (folder / name).mkdir()
        save_model(folder / name, snapshot(model), Tokenizer(letters, letters), config)
    (folder / "runs" / "reviews").mkdir()
    shape = small_shape(decoder_layers=0)
    labels = Tokenizer(VOCABULARY, Labels(["neg", "pos"]))
    classifier = drawn(Classifier(shape, VOCABULARY.size, 2))
    config = Config(task="classification", model=shape)
    save_model(folder / "runs" / "reviews", snapshot(classifier), labels, config)
    files = {
        "input.en": SOURCES,
        "reference.de": ["der Hund", "", "der Hund Nummer 3", "ein Haus"],
        "prefixes.de": ["der", "", "", "ein"],
        "constraints.de": ["Hund\t!Haus", "", "", "Haus"],
        "glossary.tsv": ["dog\tHund", "house\t!Hund"],
        "input.jsonl": [json.dumps({"text": text, "id": i}) for i, text in enumerate(SOURCES)],
        "scored.jsonl": [
            json.dumps({"nbest": [{"text": "a", "score": -1.0, "comet": 0.5},
                                  {"text": "b", "score": -2.0, "comet": 0.7}]})
        ],
    }  # fmt: skip
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    lists: dict[str, list[object]] = {"samples": ["--sample"], "nbest": ["--beam", 4]}
    for name, options in lists.items():  # examples of other workers may come first
        output = folder / f"{name}.jsonl"
        done = seq2seq(
            "translate", folder / "RUN", folder / "input.en", "--json", "--nbest", 4, *options,
            "-o", output,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples(folder: Path, monkeypatch: pytest.MonkeyPatch, example: str) -> None:
    monkeypatch.chdir(folder)
    words = [word.replace("<news>", "<x>") for word in shlex.split(example)[1:]]
    done = seq2seq(*words)
    assert done.returncode == 0, done.stderr.decode()
    output = Path(words[words.index("-o") + 1]).read_bytes() if "-o" in words else done.stdout
    lines = output.decode().removesuffix("\n").split("\n")
    if "moses" in words:
        numbers = [int(line.split(" ||| ")[0]) for line in lines]
        assert numbers == [0] * 4 + [1] + [2] * 4 + [3] * 4  # a blank line has one translation
        return
    assert len(lines) == (1 if "scored.jsonl" in words else len(SOURCES))
    if "--json" in words or (words[0] == "rerank" and "--text" not in words):
        objects = [json.loads(line) for line in lines]
        assert all("translation" in each or "reference_scores" in each for each in objects)
        assert "input.jsonl" not in words or [each["id"] for each in objects] == [0, 1, 2, 3]


PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("recipes/*/*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
}
BLOCKS = {
    name: blocks
    for name, text in PAGES.items()
    if (blocks := re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
}


@pytest.mark.parametrize("page", BLOCKS)
def test_the_python_blocks_of_a_page_run_one_after_the_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for block in BLOCKS[page]:
        exec(compile(block, page, "exec"), names)


def test_the_pages_with_python_are_found() -> None:
    assert {"README.md", "docs/decoding.md"} <= BLOCKS.keys()
    assert sum(map(len, BLOCKS.values())) == sum(text.count("```python") for text in PAGES.values())


@pytest.mark.parametrize("command", ["translate", "rerank"])
def test_every_option_has_an_example(command: str) -> None:
    [commands] = [
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    shown = {word for example in EXAMPLES for word in shlex.split(example)}
    common = {"--help", "--errors", "--checkpoint", "--no-sample", "--output"}
    for action in commands.choices[command]._actions:
        options = {option for option in action.option_strings if option.startswith("--")}
        if options and not options & common:
            assert options & shown, options
