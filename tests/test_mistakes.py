"""Mistakes of users: one line says what, where and what to do, and nothing is lost.

A mistake is a command in the folder of `prepared.py`, and what its message has to say.
"""

from __future__ import annotations

import gzip
import io
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from seq2seq.cli import main

RECIPES = [
    ("train", "the following arguments are required: RECIPE; see"),
    ("train nothing.yaml", "recipe not found: nothing.yaml; create one with `seq2seq new`"),
    ("train recipes", "recipes is not a readable YAML recipe"),
    ("train recipes/broken.yaml", "recipes/broken.yaml is not a readable YAML recipe", "line 1"),
    ("train recipes/empty.yaml", "recipes/empty.yaml is not a recipe", "`key: value`"),
    ("train recipes/twice.yaml", "line 2: duplicate key task"),
    ("train recipes/mine.yaml model.dimm=3", "'model.dimm'; did you mean 'model.dim'?"),
    ("train recipes/mine.yaml training.lr=fast", "training.lr='fast' should be a finite number"),
    ("train recipes/mine.yaml model.num_heads=3", "model.dim=16 is not divisible by"),
    ("train recipes/mine.yaml training.schedule=linear", "one of: noam, inverse_sqrt, cosine"),
    ("train recipes/mine.yaml training.lr", "write section.key=value"),
    ("train recipes/mine.yaml 'data.train=[a'", "not valid YAML: quote it"),
    ("train recipes/mine.yaml data.train.0.path=a", "unknown key 'data.train.0'"),
    ("train recipes/mine.yaml training.average_last=9", "exceeds training.keep_last=5"),
    ("train recipes/mine.yaml data.text=mybook.txt", "with task=language_model"),
    ("train recipes/mine.yaml --run a.de", "a.de: File exists"),
    ("train recipes/mine.yaml --rn runs/x", "unknown argument --rn; did you mean --run?"),
]
DATA = [
    ("data.train=corpus/nothing", "data.train: file not found: corpus/nothing.en"),
    ("data.train=corpus/train.en", "corpus/train.en is a file; give the common prefix"),
    ("data.source=", "data.source is empty: give the language, such as data.source=en"),
    ("data.train=corpus/bad", "corpus/bad.en has 2 lines but corpus/bad.de has 1", "aligned"),
    ("data.train=corpus/latin", "corpus/latin.de, line 1: not UTF-8", "iconv -f WINDOWS-1252"),
    ("data.train=wide.tsv", "wide.tsv, line 1: not UTF-8", "iconv -f UTF-16"),
    ("data.train=corpus/empty", "corpus/empty.en + corpus/empty.de is empty"),
    ("data.train=notab.tsv", "notab.tsv, line 1: ", "is not SOURCE<TAB>TARGET"),
    ("data.train=cut.tsv.gz", "cut.tsv.gz is not a complete gzip file", "copy it again"),
    ("data.dev=null", "no development set: set data.dev=PREFIX, or hold out pairs"),
    ("data.dev_size=10", "data.dev_size=10 has no effect with data.dev: leave it out"),
    ("data.dev=null data.dev_size=100000", "hold out fewer, such as 299"),
    ("data.clean.min_score=1", "min_score and best_share need the `scores` of"),
    ("data.clean.max_len=1", "no training pair is left: dropped", "change data.clean"),
]
RUNS = [
    ("train recipes/mine.yaml model.dim=32 --run runs/mine", "model.dim was 16, is 32", "--run"),
    ("average runs/mine --last 99 -o averaged", "fewer than the 99 to average: take fewer"),
    ("export runs/mybook --to ctranslate2 -o exported", "are for translation models"),
    (
        "export runs/mine --to huggingface --quantization int8 -o x",
        "is for ctranslate2, argos, browser",
    ),
    ("export runs/mine --to ctranslate2 -o corpus", "corpus exists; name a new folder with -o"),
    ("trian recipes/mine.yaml", "invalid choice: 'trian'", "did you mean train?"),
]
TRANSLATION = [
    ("translate", "the following arguments are required: RUN; see"),
    ("translate ''", "argument RUN: the path is empty"),
    ("translate runs/mine --json --scores", "--scores: not allowed with argument --json"),
    ("translate runs/nothing", "no such run or model directory: runs/nothing; `seq2seq runs`"),
    ("translate runs", "runs does not hold a trained model; models there: "),
    ("translate runs/mybook input.en", "does not translate: its task is language_model"),
    ("translate runs/mine nothing.en", "file not found: nothing.en"),
    ("translate runs/mine input.en -o nowhere/out", "cannot be written", "there is no folder"),
    ("translate runs/mine input.en --beam 0", "decoding.beam=0 must be at least 1"),
    ("translate runs/mine input.en --nbest 9", "nbest=9 is larger than the beam", "increase"),
    ("translate runs/mine input.en --checkpoint step_99", "'step_99'; models there: checkpoints"),
    ("translate runs/mine input.en --with runs/reviews", "runs/reviews does not translate"),
    ("translate runs/mine input.en --glossary input.en", "input.en, line 1", "source<TAB>target"),
    ("translate runs/mine input.en --score-target short.de", "short.de", "line"),
    ("translate runs/mine input.en --precision int4", "invalid choice: 'int4'", "int8"),
    ("evaluate runs/damaged", "is damaged: model.safetensors has changed", "another"),
    ("translate runs/bare input.en", "tokenizer.model: No such file"),
]
SCORES = [
    ("score", "the following arguments are required: HYP; see"),
    ("score a.de", "no references: name the file before --against"),
    ("score a.de short.de", "4 lines in a.de but 1 references", "aligned"),
    ("score corpus/empty.en corpus/empty.de", "no lines to score: the files are empty"),
    ("score a.de reference.de --metrics blue", "invalid choice: 'blue'", "did you mean bleu?"),
    ("score a.de reference.de --line-scores comet nothing.txt", "file not found: nothing.txt"),
    ("score runs/mybook", "runs/mybook does not translate"),
    ("score runs/mine reference.de", "give either reference files or --data PREFIX"),
    ("evaluate runs/mine --stride 3", "--stride needs a language model: the task of runs/mine"),
    ("evaluate runs/mine --data nothing", "--data: file not found: nothing.en"),
]
OTHER_TASKS = [
    ("generate runs/mine", "runs/mine is not a language model: its task is translation"),
    ("generate runs/mybook --samples 0", "argument --samples: 0 is below 1"),
    ("generate runs/mybook --prompt 日本", "'日' is not in the alphabet of", "tokenizer.kind=byte"),
    ("classify runs/mine input.en", "runs/mine is not a classifier: its task is translation"),
]
NEW_RECIPES = [
    ("new mine --source en --target de --train corpus/train", "recipes/mine.yaml exists"),
    ("new a/b --source en --target de --train corpus/train", "name='a/b' must be a folder name"),
    ("new x --source en --target de --train corpus/train.en", "is alone: give a source file and"),
    ("new x --train corpus/train", "give the languages, such as --source en --target de"),
    ("new x --source en --target de --train short.de short.de", "short.de has 1 pairs", "needed"),
    (
        "new x --from runs/mine --target fr --train corpus/train",
        "the languages en, de, not 'fr'",
    ),
    ("new x --task language_model --source en --train mybook.txt", "are for translation"),
    ("new x --task language_model --train mybook.txt --dev texts.txt", "--dev: not for language"),
    ("new x --source en --target de --train corpus/train --minutes 0", "0 is not from 0.1"),
]
MISTAKES = [
    *RECIPES,
    *((f"train recipes/mine.yaml {mistake} --run runs/x", *said) for mistake, *said in DATA),
    *RUNS,
    *TRANSLATION,
    *SCORES,
    *OTHER_TASKS,
    *NEW_RECIPES,
]


@pytest.fixture(scope="module")
def folder(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with good files and bad ones."""
    folder = tmp_path_factory.mktemp("mistakes") / "folder"
    shutil.copytree(prepared, folder, symlinks=True)
    files = {
        "latin.txt": "Straße\n".encode("latin-1"),
        "wide.tsv": "a\tb\n".encode("utf-16"),
        "short.de": b"ein\n",
        "corpus/bad.en": b"a\nb\n",
        "corpus/bad.de": b"a\n",
        "corpus/latin.en": b"a\n" * 200,
        "corpus/latin.de": "ß\n".encode("latin-1") * 200,
        "corpus/empty.en": b"",
        "corpus/empty.de": b"",
        "notab.tsv": b"a b\n" * 50,
        "cut.tsv.gz": gzip.compress(b"a\tb\n" * 5000)[:-20],
        "recipes/broken.yaml": b"data: {source: en\n",
        "recipes/empty.yaml": b"",
        "recipes/twice.yaml": b"task: translation\ntask: translation\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for name, file in (("damaged", "model.safetensors"), ("bare", "tokenizer.model")):
        shutil.copytree(folder / "runs" / "mine", folder / "runs" / name, symlinks=True)
        path = folder / "runs" / name / "best" / file
        path.write_bytes(path.read_bytes()[:500])
        if name == "bare":
            path.unlink()
    return folder


@pytest.mark.parametrize(("mistake", "said"), [(mistake, said) for mistake, *said in MISTAKES])
def test_a_mistake_is_explained_and_loses_nothing(
    mistake: str,
    said: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    before = files_of(folder)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(mistake))
    code = ended.value.code
    if isinstance(code, int):  # of the parser, which prints the message itself
        assert code == 2
        code = capfd.readouterr().err.removesuffix("\n")
    assert isinstance(code, str)
    assert code.startswith("seq2seq") and "error: " in code
    assert "\n" not in code and "Traceback" not in code
    for part in said:
        assert part in code, code
    after = files_of(folder)
    assert {path: after.get(path) for path in before} == before


def files_of(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return what changes with a file's content, of all files apart from locks."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            if ".lock" not in name:
                path = Path(parent, name)
                stat = path.stat()
                found[path] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found
