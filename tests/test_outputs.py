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

from seq2seq.errors import UserError
from seq2seq.files import draft_of, remove_leftovers, write_file
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
        arguments = [str(each) for each in (*command, "-o", folder / "in")]
        child = os.fork()
        if child == 0:
            os.dup2(os.open(folder / "in", os.O_RDONLY), 0)
            done = 1
            try:
                error(*arguments)
                done = 0
            finally:
                os._exit(done)
        os.waitpid(child, 0)
        assert (folder / "in").read_text() == FILES["in"]


def test_a_run_s_files_are_not_the_output(run: Path, folder: Path) -> None:
    run = shutil.copytree(run, folder / "run", symlinks=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    names = (
        "recipe.yaml",
        "metrics.jsonl",
        "best/model.json",
        "last/new.de",
        "kept/new.de",
        "averaged",
    )
    for name in names:
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


def test_links_in_place_of_drafts_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    for make in (draft_of(path).symlink_to, draft_of(path).hardlink_to, path.symlink_to):
        path.unlink(missing_ok=True)
        make(victim)
        write_file(path, b"new")
        assert path.read_text() == "new" and not path.is_symlink()
        assert victim.read_text() == "precious" and not draft_of(path).exists()
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "fsync", lambda _: Path("/dev/null/nothing").stat())
        write_file(path, b"half")
    assert path.read_text() == "new" and not draft_of(path).exists()


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


def test_a_recipe_s_name_is_no_pattern(recipe: Path, tmp_path: Path) -> None:
    for name in ("**", "[a", "a*"):
        run_recipe(recipe, tmp_path / "run", f"name={name!r}", f"tokenizer.vocab_size={400}")
        shutil.rmtree(tmp_path / "run")
        shutil.rmtree(recipe.parent / "store")


def in_shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell."""
    words = " ".join(shlex.quote(str(each)) for each in (*COMMAND, *arguments))
    return subprocess.run(
        ["sh", "-c", f"{words} {redirection}"], capture_output=True, text=True, env=ENVIRONMENT
    )


def test_results_that_cannot_be_printed_are_an_error(folder: Path) -> None:
    done = in_shell("> /dev/full", "score", folder / "in", folder / "in")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("seq2seq: error: standard output cannot be written: ")


@pytest.mark.parametrize("output", [False, True])
def test_messages_do_not_go_to_the_output_if_standard_error_is_closed(
    run: Path, folder: Path, output: bool
) -> None:
    (folder / "in").write_text("the dog\nthe house\n")
    options = ("-o", folder / "out") if output else ()
    done = in_shell("2>&-", "translate", run, folder / "in", *options)
    text = (folder / "out").read_text() if output else done.stdout
    expected = seq2seq("translate", run, folder / "in").stdout.decode()
    assert done.returncode == 0 and text == expected and text.count("\n") == 2


def test_a_closed_standard_output_is_an_error(run: Path, folder: Path) -> None:
    done = in_shell(">&-", "translate", run, folder / "in")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    message = "seq2seq: error: standard output cannot be written: Bad file descriptor"
    assert done.stderr.splitlines()[-1] == message
    done = in_shell(">&-", "translate", run, folder / "in", "-o", folder / "out")
    assert done.returncode == 0 and (folder / "out").read_text().count("\n") == 1


def test_a_closed_standard_input_is_empty(run: Path) -> None:
    done = in_shell("<&-", "translate", run)
    assert (done.returncode, done.stdout) == (0, "") and "Traceback" not in done.stderr
