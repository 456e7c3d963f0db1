"""The command line: input and output, errors, speed of --help."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import select
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import COMMAND, ENVIRONMENT, error, seq2seq
from forked import exit_code, fork
from safetensors.torch import load_file, save_file

from seq2seq.cli import main
from seq2seq.config import DecodingConfig
from seq2seq.data.lines import count_lines
from seq2seq.decoding.ctranslate2_engine import CTranslate2Engine
from seq2seq.decoding.engine import Source
from seq2seq.decoding.translator import Translator
from seq2seq.evaluation.evaluate import evaluate_run
from seq2seq.files import write_sums
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes
from seq2seq.terminal import ProgressBar


@pytest.mark.parametrize("command", ["--help", "runs {}", "score {}/recipe.yaml {}/recipe.yaml"])
def test_torch_is_imported_where_it_is_needed(run: Path, command: str) -> None:
    code = """if True:
        import atexit, sys
        atexit.register(lambda: print({"torch", "datasets"} & {*sys.modules}))
        from seq2seq.cli import main
        main(sys.argv[1:])
    """
    arguments = command.replace("{}", str(run)).split()
    done = subprocess.check_output([sys.executable, "-c", code, *arguments], env=ENVIRONMENT)
    assert done.endswith(b"\nset()\n") and len(done) > 20


def test_help_lists_commands_that_work() -> None:
    alone = seq2seq()
    assert (alone.returncode, alone.stderr) == (2, seq2seq("--help").stdout)
    listed = re.findall(rb"^ {4}(\w+)", seq2seq("--help").stdout, re.MULTILINE)
    assert len(listed) > 10
    for command in listed:
        assert seq2seq(command.decode(), "--help").returncode == 0
    shown = " ".join(seq2seq("translate", "--help").stdout.decode().split())
    for key in fields(DecodingConfig):
        assert (f"--{key.name.replace('_', '-')}" in shown) == (key.name != "validation_beam")
    assert "--beam N beam width. 1 is greedy search (4)" in shown
    assert "docstring" not in shown


def test_prepare_and_train_write_results_to_standard_output_only(run: Path, tmp_path: Path) -> None:
    result = seq2seq("prepare", run / "recipe.yaml", f"data.store={tmp_path}")
    assert Path(result.stdout.decode().strip(), "manifest.json").exists()
    result = seq2seq(
        "train", run / "recipe.yaml", "--run", tmp_path / "run", f"data.store={tmp_path}"
    )
    assert result.returncode == 0 and result.stdout == b"", result.stderr
    assert b"validation" in result.stderr and b"Traceback" not in result.stderr


def test_standard_output_is_utf8_on_any_terminal(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = str(run / "recipe.yaml")
    command = [*COMMAND, "train", recipe, "--print-config", "name=Übersetzer"]
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert "name: Übersetzer\n" in subprocess.check_output(command).decode()


@pytest.mark.parametrize("end", [b"\n", b""])
def test_there_are_as_many_output_lines_as_input_lines(run: Path, end: bytes) -> None:
    text = "\n".join(
        ["the dog", "", "  ", "x\u2028y\x0bz\x85", "dog \r", "\t", "number 1", "ä" * 90]
    )
    result = seq2seq("translate", run, stdin=text.encode() + end)
    lines = result.stdout.split(b"\n")
    assert len(lines) == 9 and lines[-1] == b""
    assert lines[1] == lines[2] == lines[5] == b""
    assert b"90 characters exceeds the maximum source length of 40 tokens" in result.stderr
    assert seq2seq("translate", run, stdin=b"").stdout == b""


def test_files_and_pipes_have_the_same_result(run: Path, tmp_path: Path) -> None:
    text = b"the dog number 3\n\nthe dog\n"
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(text)
    piped = seq2seq("translate", run, stdin=text + text).stdout
    assert seq2seq("translate", run, tmp_path / "a", tmp_path / "b").stdout == piped
    seq2seq("translate", run, tmp_path / "a", "-o", tmp_path / "out", tmp_path / "b")
    assert (tmp_path / "out").read_bytes() == piped


def test_a_pipe_gets_the_translation_of_a_line_at_once(run: Path) -> None:
    (source, to_it), (from_it, target) = os.pipe(), os.pipe()

    def work() -> None:
        os.close(to_it)  # else the input would not end
        main(["translate", str(run)])

    process = fork(work, (source, target, 2), **ENVIRONMENT)
    os.close(target)
    answers = []
    with os.fdopen(from_it, "rb") as output, os.fdopen(to_it, "wb") as given:
        for line in (b"the dog number 1\n", b"\n", b"the dog number 2\n"):
            given.write(line)
            given.flush()
            ready, _, _ = select.select([output], [], [], 60)
            assert ready, "the line is held back"
            answers.append(output.readline())
        given.close()
        assert exit_code(process) == 0
    os.close(source)
    whole = seq2seq("translate", run, stdin=b"the dog number 1\n\nthe dog number 2\n").stdout
    assert b"".join(answers) == whole


def test_a_closed_output_pipe_is_no_error(run: Path) -> None:
    command = " ".join(map(str, [*COMMAND, "translate", run]))
    result = subprocess.run(
        f"yes 'the dog' | head -5000 | {command} | head -1",
        shell=True,
        capture_output=True,
        env=ENVIRONMENT,
    )
    assert result.stdout.count(b"\n") == 1 and b"Traceback" not in result.stderr


def test_evaluate_other_data_and_keep_the_translations(run: Path, tmp_path: Path) -> None:
    data = prepare(load_config(run / "recipe.yaml"))
    split = json.loads(seq2seq("evaluate", run, "--json", "-o", tmp_path / "own").stdout)
    prefix, kept = data.folder / "test", tmp_path / "kept"
    done = seq2seq("evaluate", run, "--json", "--data", prefix, "-o", kept)
    assert json.loads(done.stdout) == split and split["sentences"] == 30
    assert split["search"].startswith("beam=4 patience=1.5 length_penalty=1.0 penalty_form=")
    assert split["search"].endswith("precision=fp32")
    assert kept.read_text() == (tmp_path / "own").read_text()
    (tmp_path / "other.tsv").write_text("the dog number 1\tder Hund Nummer 1\n")
    other = json.loads(seq2seq("evaluate", run, "--json", "--data", tmp_path / "other.tsv").stdout)
    assert other["sentences"] == 1


def test_batch_tokens_limits_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"the dog\nthe dog number 3\n\n"
    assert (
        seq2seq("translate", run, "--batch-tokens", 1, stdin=text).stdout
        == seq2seq("translate", run, stdin=text).stdout
    )
    sizes: list[int] = []
    submit = CTranslate2Engine._submit

    def noted(self: CTranslate2Engine, sources: list[Source], *rest: Any) -> list[Any]:
        sizes.append(len(sources))
        return submit(self, sources, *rest)

    monkeypatch.setattr(CTranslate2Engine, "_submit", noted)
    for tokens in (1, None):
        translator = Translator.load(run, batch_tokens=tokens)
        translator.translate(["the dog"] * 3)
        evaluate_run(run, None, "test", Processes(), batch_tokens=tokens)
    # A sentence whose best translation has the maximum length is searched again, alone.
    several = [size for size in sizes[33:] if size > 1]
    assert sizes[:33] == [1] * 33 and several[0] == 3 and min(several[1:]) > 2

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(CTranslate2Engine, "_submit", exhausted)
    for command in ("translate", "evaluate"):
        message = error(command, run, stdin=text)
        assert "out of memory; lower --batch-tokens" in message


def test_json_lines_stream_and_stop_at_a_mistake(run: Path) -> None:
    lines = [b'{"text": "the dog", "id": 1}', b"", b'{"text": 3}', b'{"text": "the dog"}']
    text, options = b"\n".join(lines) + b"\n", ("translate", run, "--json")
    done = seq2seq(*options, "--json-input", stdin=text)
    assert done.returncode == 1 and b"standard input, line 3" in done.stderr
    first, blank = map(json.loads, done.stdout.splitlines())
    assert first["id"] == 1 and blank["text"] == blank["translation"] == ""
    assert seq2seq("translate", run, stdin=b"the dog\n").stdout.decode() == (
        f"{first['translation']}\n"
    )
    # Without --json-input they are texts, whatever they look like.
    plain = map(json.loads, seq2seq(*options, stdin=text).stdout.splitlines())
    assert [each["text"].encode() for each in plain] == lines


def test_a_file_has_a_progress_bar_and_a_pipe_has_none(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(ProgressBar, "show", lambda _, text: shown.append(text))
    (tmp_path / "in").write_text("the dog\n\na house")
    with gzip.open(tmp_path / "in.gz", "wb") as stream:
        stream.write(b"the dog\n")
    files = [tmp_path / "in", tmp_path / "in.gz"]
    assert count_lines(files) == 4 and count_lines([]) is None
    options = ["-o", str(tmp_path / "out"), "--batch-tokens", "1"]
    main(["translate", str(run), *map(str, files), *options])
    assert len(shown) > 3 and shown[-1].startswith("4 of 4 lines")
    assert "lines/s" in shown[-1]
    assert b"lines" not in seq2seq("translate", run, stdin=b"the dog\n").stderr


def test_a_tag_is_put_before_every_line(run: Path) -> None:
    tagged = seq2seq("translate", run, "--tag", "<x>", stdin=b"the dog\n\nnumber 1\n").stdout
    assert tagged == seq2seq("translate", run, stdin=b"<x> the dog\n\n<x> number 1\n").stdout
    assert "tag='dog' is not a symbol" in error("translate", run, "--tag", "dog")


def test_a_model_that_predicts_nan_is_an_error(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "nan")
    weights = tmp_path / "nan" / "best" / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor * math.nan for name, tensor in tensors.items()}, weights)
    write_sums(weights.parent)
    message = error("translate", tmp_path / "nan", stdin=b"the dog\n")
    assert f"{(tmp_path / 'nan' / 'best').resolve()} predicts NaN probabilities" in message
    metrics = json.loads(seq2seq("evaluate", tmp_path / "nan", "--json").stdout)
    assert math.isnan(metrics["nll"]) and math.isnan(metrics["bleu"])


def test_input_that_is_not_utf8(run: Path, tmp_path: Path) -> None:
    text = b"the dog\nnumber \xff 1\n"
    message = error("translate", run, stdin=text)
    assert "standard input, line 2: not UTF-8" in message
    (tmp_path / "bad").write_bytes(text)
    assert "bad, line 2: not UTF-8" in error("translate", run, tmp_path / "bad")
    good = seq2seq("translate", run, stdin=b"the dog\n").stdout
    assert seq2seq("translate", run, stdin=text).stdout == good  # what came before is not lost
    assert seq2seq("translate", run, tmp_path / "bad").stdout == good
    replaced = seq2seq("translate", run, "--errors", "replace", stdin=text)
    assert replaced.returncode == 0 and replaced.stdout.count(b"\n") == 2


def test_an_output_is_replaced_when_it_is_complete(run: Path, tmp_path: Path) -> None:
    one, two, part = tmp_path / "one", tmp_path / "two", tmp_path / "new.part"
    for path in (one, part):
        path.write_text("a\n")
    two.write_text("a\nb\n")
    assert "new.part would be overwritten" in error("translate", run, part, "-o", tmp_path / "new")
    full = "/dev/full cannot be written: No space left on device"
    assert full in error("translate", run, one, "-o", "/dev/full")
    assert one.read_text() == part.read_text() == "a\n"
    (tmp_path / "bad").write_bytes(b"a\n\xff\n")
    assert "line 2: not UTF-8" in error("translate", run, tmp_path / "bad", "-o", two)
    assert two.read_text() == "a\nb\n"  # what was there before
    assert (tmp_path / "two.part").read_text().count("\n") == 1
