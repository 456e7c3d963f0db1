"""No command replaces or empties a file that it reads, or that is not its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import COMMAND, ENVIRONMENT, error, seq2seq
from conftest import run_recipe
from forked import exit_code, fork

from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.files import remove_leftovers
from seq2seq.training.records import STARTS_FILE

FILES = {
    "in": "the dog\n",
    "ref.de": "der Hund\n",
    "prefixes": "der\n",
    "terms": "Hund\n",
    "glossary.tsv": "dog\tHund\n",
}
OPTIONS = {
    "--score-target": "ref.de",
    "--prefixes": "prefixes",
    "--constraints": "terms",
    "--glossary": "glossary.tsv",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("suffix", ["", ".part"])
def test_an_option_s_file_is_not_the_output(
    run: Path, folder: Path, option: str, suffix: str
) -> None:
    read = folder / f"{OPTIONS[option]}{suffix}"
    (folder / OPTIONS[option]).rename(read)
    output = folder / OPTIONS[option]
    for name in (output, folder / "." / output.name):
        message = error("translate", run, folder / "in", option, read, "-o", name)
        assert f"{read.name} would be overwritten" in message
    (folder / "link").symlink_to(read)
    if not suffix:
        (folder / "other").symlink_to(output)
        arguments = ["translate", run, folder / "in", option, folder / "link"]
        assert "would be overwritten" in error(*arguments, "-o", folder / "other")
    assert read.read_text(encoding="utf-8") == FILES[OPTIONS[option]]


def test_standard_input_is_not_the_output(run: Path, folder: Path) -> None:
    for command in (["translate", run], ["rerank", "--mbr", "bleu"]):
        with (folder / "in").open() as stream, (folder / "log").open("w") as log:
            streams = [stream.fileno(), log.fileno(), log.fileno()]
            child = fork(lambda: main([*map(str, command), "-o", str(folder / "in")]), streams)  # noqa: B023
            assert exit_code(child) == 1
        assert "would be overwritten" in (folder / "log").read_text()
        assert (folder / "in").read_text() == FILES["in"]


def test_the_files_of_a_prefix_are_not_the_output(run: Path, folder: Path) -> None:
    for language in ("en", "de"):
        (folder / f"test[1].{language}").write_text("dog\n")
    arguments = ["evaluate", run, "--data", folder / "test[1]", "-o", folder / "test[1].de"]
    assert "test[1].de would be overwritten" in error(*arguments)


def test_a_run_s_files_are_not_the_output(run: Path, folder: Path) -> None:
    run = shutil.copytree(run, folder / "run", symlinks=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for name in ("recipe.yaml", "best/model.json", "last/new.de", "averaged"):
        for command in (["translate", run, folder / "in"], ["rerank", "--mbr", "bleu"]):
            assert "belongs to a run or a model" in error(*command, "-o", run / name)
    assert "belongs to" in error("report", run, "-o", run / "best" / "page.html")
    for name in ("best", "last", "kept/mine", "checkpoints/step_9", "averaged"):
        message = error("average", run, "--last", 1, "-o", run / name)
        assert "belongs to a run or a model" in message
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert seq2seq("translate", run, folder / "in", "-o", run / "out.de").returncode == 0
    assert seq2seq("average", run, "--last", 1, "-o", run / "mine").returncode == 0


def test_links_in_place_of_part_files_are_not_followed(run: Path, folder: Path) -> None:
    victim, part = folder / "ref.de", folder / "o.part"
    for make in (
        lambda: part.symlink_to(victim),
        lambda: part.hardlink_to(victim),
        lambda: os.mkfifo(part),
        lambda: part.write_text("of a run that was killed"),
    ):
        make()
        assert seq2seq("translate", run, folder / "in", "-o", folder / "o").returncode == 0
        assert victim.read_text() == FILES["ref.de"] and not part.exists()
        assert (folder / "o").read_text().count("\n") == 1
        assert not (folder / "o").is_symlink() and not (folder / ".o.lock").exists()


def test_a_pipe_is_written_and_not_replaced(run: Path, folder: Path) -> None:
    pipe, document = folder / "pipe", folder / "in.html"
    document.write_text("<p>the dog</p>")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    for command in (["translate", run, document], ["evaluate", run]):
        assert seq2seq(*command, "-o", pipe).returncode == 0
        assert os.read(reader, 1 << 16) and pipe.is_fifo()


def test_a_folder_that_is_no_run_is_left_alone(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for name in ("recipe.yaml", "tokenizer.model", "checkpoints", "model.json"):
        folder.mkdir()
        (folder / name).write_text("precious")
        with pytest.raises(UserError, match=f"holds {name}, but is not a run directory"):
            run_recipe(recipe, folder)
        assert [path.read_text() for path in folder.iterdir()] == ["precious"]
        shutil.rmtree(folder)
    # Other files do not matter, and hidden ones of others are not taken for leftovers.
    (folder / ".cache.tmp").mkdir(parents=True)
    run_recipe(recipe, folder)
    remove_leftovers(folder)
    assert (folder / ".cache.tmp").is_dir()
    assert (folder / STARTS_FILE).exists()


def in_shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = " ".join(shlex.quote(str(each)) for each in (*COMMAND, *arguments))
    return subprocess.run(
        ["sh", "-c", f"{words} {redirection}"], capture_output=True, text=True, env=ENVIRONMENT
    )


def test_results_that_cannot_be_printed_are_an_error(folder: Path) -> None:
    done = in_shell("> /dev/full", "score", folder / "in", folder / "in")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("seq2seq: error: standard output cannot be written: ")


def test_a_closed_standard_output_is_an_error(run: Path, folder: Path) -> None:
    done = in_shell(">&-", "translate", run, folder / "in")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    message = "seq2seq: error: standard output cannot be written: Bad file descriptor"
    assert done.stderr.splitlines()[-1] == message
    done = in_shell(">&-", "translate", run, folder / "in", "-o", folder / "out")
    assert done.returncode == 0 and (folder / "out").read_text().count("\n") == 1
