"""Faults of runs, on real processes: kills, damaged files, full disks, memory, NaN."""

from __future__ import annotations

import errno
import itertools
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import conftest
import psutil
import pytest
import torch
from commands import ENVIRONMENT
from conftest import records
from forked import exit_code, fork, in_child, in_processes
from torch import Tensor

from seq2seq.cli import main
from seq2seq.data.batching import Batch
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluators import TranslationEvaluator
from seq2seq.files import find_damage, sha256_of
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare
from seq2seq.training.loss import ModelLoss
from seq2seq.training.run_directory import RunDirectory
from seq2seq.training.trainer import Trainer

SCRIPTS = Path(__file__).parent.parent / "scripts"
OPTIONS = (
    "training.max_steps=24",
    "training.checkpoint_every=5",
    "training.validate_every=8",
    "training.average_last=2",
    "training.keep_last=2",
    "training.keep_best=2",
    "decoding.max_extra=3",
)


def run_recipe(recipe: Path, run: Path, *overrides: str) -> Path:
    return conftest.run_recipe(recipe, run, *OPTIONS, *overrides)


def command(recipe: Path, run: Path, *overrides: str) -> list[str]:
    train = [sys.executable, "-m", "seq2seq", "train", str(recipe), "--run", str(run)]
    return [*train, *OPTIONS, *overrides]


def run_command(recipe: Path, run: Path, *overrides: str) -> None:
    main(command(recipe, run, *overrides)[3:])


def started(work: Callable[[], object], log: Path) -> int:
    """Run `work` in a forked process that writes its messages to a file; return its id."""
    log.touch()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    process = fork(work, (0, output, output))
    os.close(output)
    return process


def finished(work: Callable[[], object], log: Path) -> tuple[int, str]:
    """Run `work` in a forked process; return its exit code and messages."""
    code = exit_code(started(work, log))
    return code, log.read_text()


def weights_sum(run: Path) -> str:
    return sha256_of(run / "last" / "model.safetensors")


def outcome(run: Path) -> list[object]:
    """Return models and metrics of a run, without times and speeds."""
    models = [
        (str(path.relative_to(run)), sha256_of(path))
        for name in ("last", "best", "averaged", "kept", "checkpoints")
        for path in sorted((run / name).rglob("*.safetensors"))
    ]
    clock = {"minutes", "tokens_per_second", "memory_gib"}
    metrics = [{k: v for k, v in record.items() if k not in clock} for record in records(run)]
    return [*models, *metrics]


@pytest.fixture(scope="session")
def steady(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    folder = tmp_path_factory.mktemp("steady")
    recipe = conftest.write_recipe(conftest.write_corpus(folder))
    return outcome(run_recipe(recipe, folder / "run"))


def test_kills_at_any_moment_change_no_bit() -> None:
    soak = [sys.executable, str(SCRIPTS / "soak_resume.py"), "--kills", "2"]
    result = subprocess.run(soak, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("kill ") == 2


def kill_at(call: int, names: Sequence[tuple[object, str]]) -> None:
    """Let the process kill itself at the `call`th of some system calls, before it is made."""
    counter = [0]
    synced: dict[Path, int] = {}
    os_fsync = os.fsync
    for owner, name in names:
        original = getattr(owner, name)

        def counted(
            *arguments: object, _original: Callable[..., object] = original, **options: object
        ) -> object:
            counter[0] += 1
            path = (
                Path(f"/proc/self/fd/{arguments[0]}").readlink() if _original is os_fsync else None
            )
            if counter[0] == call:
                # What was written last has not all reached the disk, but links are there already.
                if path and path.is_file() and path.stat().st_nlink == 1:
                    os.truncate(path, (synced.get(path, 0) + path.stat().st_size) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            if path and path.name == "metrics.jsonl":  # the only file that grows
                synced[path] = path.stat().st_size
            return _original(*arguments, **options)

        setattr(owner, name, counted)


def test_a_kill_at_any_step_of_writing_checkpoints_loses_nothing(
    recipe: Path, tmp_path: Path, steady: list[object]
) -> None:
    calls = [(os, name) for name in ("fsync", "rename", "replace", "link", "symlink")]

    def killed(call: int, run: Path) -> None:
        kill_at(call, [*calls, (shutil, "rmtree")])
        run_recipe(recipe, run)

    outcomes = []
    for call in range(1, 400, 17):
        run = tmp_path / f"run{call}"
        outcomes.append(in_child(lambda call=call, run=run: killed(call, run)))  # type: ignore[misc]
        for folder in (*RunDirectory(run).checkpoints(), run / "best", run / "last"):
            if folder.exists():  # what is in its place is whole
                assert find_damage(folder) is None, (call, folder)
        run_recipe(recipe, run)
        assert outcome(run) == steady, call
        assert not list(run.rglob(".*.tmp")), call
        shutil.rmtree(run)
        if outcomes[-1] == 0:
            break
    assert outcomes[-1] == 0 and set(outcomes[:-1]) == {-signal.SIGKILL}
    assert len(outcomes) > 8


def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    recipe: Path, tmp_path: Path, steady: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole = run_recipe(recipe, tmp_path / "whole", "training.max_steps=15")
    for name, kept in (
        ("model.safetensors", 1.0),  # with a changed bit
        ("training.safetensors", 0.5),
        ("training.json", 0.0),
        ("SHA256SUMS", None),
    ):
        run = shutil.copytree(whole, tmp_path / name, symlinks=True)
        newest = RunDirectory(run).checkpoints()[-1]
        data = bytearray((newest / name).read_bytes())
        data[len(data) // 2] ^= 4
        (newest / name).unlink()
        if kept is not None:
            (newest / name).write_bytes(data[: int(len(data) * kept)])
        caplog.clear()
        run_recipe(recipe, run)
        assert f"{newest} is damaged: " in caplog.text and "after update 10" in caplog.text
        assert outcome(run) == steady and newest.name == "step_15"


def test_a_run_without_an_undamaged_checkpoint_is_not_overwritten(
    recipe: Path, tmp_path: Path
) -> None:
    run = run_recipe(recipe, tmp_path / "run")
    for folder in RunDirectory(run).checkpoints():
        (folder / "training.safetensors").write_bytes(b"")
    before = weights_sum(run)
    with pytest.raises(UserError, match=r"every checkpoint of .* is damaged"):
        run_recipe(recipe, run, "training.max_steps=30")
    assert weights_sum(run) == before


def test_a_failing_write_keeps_the_last_checkpoint(
    recipe: Path, tmp_path: Path, steady: list[object]
) -> None:
    run = run_recipe(recipe, tmp_path / "run", "training.max_steps=10")

    def limited() -> None:  # smaller than the weights: the system refuses to write on
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        run_command(recipe, run, "training.validate_every=1000")  # which writes files, too

    code, log = finished(limited, tmp_path / "log")
    assert code == 1 and "Traceback" not in log, log
    message = log.splitlines()[-1]
    assert "could not be written: " in message and "the last checkpoint is" in message
    assert "step_10, " not in message and not list(run.rglob(".*.tmp"))
    assert [path.name for path in RunDirectory(run).checkpoints()] == ["step_5", "step_10"]
    run_recipe(recipe, run)
    assert ("last/model.safetensors", weights_sum(run)) in steady


def signalled(
    work: Callable[[], object], log: Path, *signals: int, wait_for: str = "  loss "
) -> tuple[int, str]:
    """Send signals to a process once its log shows a text; return its exit code and log."""
    process = started(work, log)
    while wait_for not in log.read_text():
        time.sleep(0.01)
    for i, number in enumerate(signals):
        if i:
            time.sleep(2.2)  # sooner, a second one would be taken for the first, passed on
        os.kill(process, number)
    return exit_code(process), log.read_text()


def test_a_signal_saves_and_stops_a_run(recipe: Path, tmp_path: Path) -> None:
    """Each of three, sent to one run after the other."""
    intervals = "training.validate_every=20", "training.checkpoint_every=20"
    options = ("training.max_steps=60", *intervals)
    steady, run = outcome(run_recipe(recipe, tmp_path / "steady", *options)), tmp_path / "run"
    update = Trainer.update

    def slowly(*arguments: Any) -> None:  # so that the signal comes before the end
        time.sleep(0.05)
        update(*arguments)

    def work() -> None:
        patch.object(Trainer, "update", slowly).start()
        run_command(recipe, run, *options)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        code, log = signalled(work, tmp_path / number.name, number)
        assert code == 128 + number
        assert f"{number.name}: finishing this update and saving" in log
        assert f"stopped by {number.name} after update " in log and "Traceback" not in log
        [newest] = RunDirectory(run).checkpoints()[-1:]
        assert f"the last checkpoint is {newest}" in log
    assert outcome(run_recipe(recipe, run, *options)) == steady


def test_a_run_is_saved_when_its_terminal_is_closed(recipe: Path, tmp_path: Path) -> None:
    """Nothing can be written to it any more."""
    options = ("training.max_steps=100000", "training.checkpoint_every=100000")
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, command(recipe, tmp_path / "run", *options), ENVIRONMENT)
    shown = b""
    while b"update 4" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    assert exit_code(child) == 128 + signal.SIGHUP
    assert len(RunDirectory(tmp_path / "run").checkpoints()) == 1


def stuck(*_: object) -> None:
    """Do nothing for a minute, in the place of what takes long."""
    os.write(2, b"stuck\n")
    time.sleep(60)


def test_a_second_signal_ends_at_once(recipe: Path, tmp_path: Path) -> None:
    def work() -> None:
        patch.object(Trainer, "update", stuck).start()
        run_command(recipe, tmp_path / "run")

    before = time.monotonic()
    code, log = signalled(work, tmp_path / "log", signal.SIGTERM, signal.SIGTERM, wait_for="stuck")
    assert code == 128 + signal.SIGTERM and "exiting without saving" in log
    assert time.monotonic() - before < 30


def test_a_signal_does_not_wait_for_a_validation(
    recipe: Path, tmp_path: Path, steady: list[object]
) -> None:
    def work() -> None:
        patch.object(TranslationEvaluator, "__call__", stuck).start()
        run_command(recipe, tmp_path / "run")

    code, log = signalled(work, tmp_path / "log", signal.SIGTERM, wait_for="stuck")
    assert code == 128 + signal.SIGTERM and "stopped by SIGTERM after update 8" in log
    assert RunDirectory(tmp_path / "run").checkpoints()[-1].name == "step_8"
    assert outcome(run_recipe(recipe, tmp_path / "run")) == steady  # the validation is made up


def test_a_run_directory_is_locked(recipe: Path, tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    endless = ("training.max_steps=100000", "training.log_every=5")
    first = started(lambda: run_command(recipe, run, *endless), output)
    try:
        while "update 5 " not in output.read_text():
            time.sleep(0.01)
        for count in (1, 2):
            log = tmp_path / f"log{count}"
            codes = in_processes(count, lambda: run_command(recipe, run), log)
            assert codes == [1] * count
            assert f"{run} is in use: another process" in log.read_text()
    finally:
        os.kill(first, signal.SIGKILL)
        assert exit_code(first) == -signal.SIGKILL  # until then it went on
    run_recipe(recipe, run)  # a kill gives the lock back


def test_a_file_system_without_locks_is_a_warning(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    prepare(load_config(recipe))
    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    run_recipe(recipe, tmp_path / "run", "training.max_steps=2")
    assert "cannot lock " in caplog.text and "No locks available" in caplog.text


def test_a_batch_that_exceeds_the_memory_is_an_error_before_the_first_update(
    recipe: Path, tmp_path: Path
) -> None:
    """With 16,000 tokens on each side; the same model trains with fewer."""
    options = ["model.dim=64", "model.ffn_dim=16384", "training.max_steps=1"]
    options.append("training.batch_tokens=16000")

    def limited(size: int) -> None:
        space = psutil.Process().memory_info().vms + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        run_command(recipe, tmp_path / "run", *options, f"training.micro_batch_tokens={size}")

    code, log = finished(lambda: limited(16000), tmp_path / "log")
    assert code == 1 and "Traceback" not in log, log
    assert "training.micro_batch_tokens=16000 does not fit into memory (" in log
    assert finished(lambda: limited(500), tmp_path / "small")[0] == 0


def poison(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    """Make the loss NaN at some calls; call 0 is the first after the memory dry run."""
    forward, numbers = ModelLoss.forward, itertools.count()

    def poisoned(loss: ModelLoss, batch: Batch) -> tuple[Tensor, Tensor]:
        value, nll = forward(loss, batch)
        if loss.training and next(numbers) in calls:
            value = value * torch.nan
        return value, nll

    monkeypatch.setattr(ModelLoss, "forward", poisoned)


NAN_OPTIONS = (
    "training.micro_batch_tokens=9999",
    "training.checkpoint_every=1",
    "training.keep_last=99",
    "training.max_steps=9",
)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_non_finite_update_changes_nothing(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    poison(monkeypatch, 3)
    run = run_recipe(recipe, tmp_path / "run", *NAN_OPTIONS, f"training.optimizer={optimizer}")
    for name in ("model.safetensors", "training.safetensors"):
        sums = [sha256_of(folder / name) for folder in RunDirectory(run).checkpoints()]
        assert sums[1] == sums[2] and len(set(sums)) == 8
    logged = {record["step"]: record for record in records(run, "train")}
    assert logged[2]["skipped"] == 0 and logged[4]["skipped"] == logged[8]["skipped"] == 1
    assert all(0 < record["loss"] < 10 for record in logged.values())


def test_too_many_skipped_updates_end_the_run(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 2, 5, 6, 7)
    with pytest.raises(
        UserError, match=r"3 consecutive updates, ending at or shortly before update 7 \(epoch"
    ) as error:
        run_recipe(recipe, tmp_path / "run", *NAN_OPTIONS, "training.max_skipped=3")
    assert str(error.value).endswith(f"is {tmp_path / 'run' / 'checkpoints' / 'step_6'}")


def test_a_full_disk_loses_no_checkpoint(
    recipe: Path, tmp_path: Path, steady: list[object]
) -> None:
    run = tmp_path / "disk"
    run.mkdir()
    mount = f"mount -t tmpfs -o size={{}} tmpfs {run}"
    if subprocess.run(["unshare", "-Urm", "sh", "-c", mount.format("1m")]).returncode:
        pytest.skip("this system lets no user mount a tmpfs")
    line = " ".join(command(recipe, run))
    shell = f"""
        {mount.format("600k")} && {line}
        echo code $?; ls -A {run} {run}/checkpoints
        mount -o remount,size=100m {run} && {line} 2>&1
        echo code $?; sha256sum {run}/last/model.safetensors
    """
    result = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", shell], env=ENVIRONMENT, capture_output=True, text=True
    )
    first, second = result.stdout.split("code 1\n")
    assert not first and "Traceback" not in result.stderr
    message = result.stderr.splitlines()[-1]
    assert "could not be written: " in message and " MB left)" in message, message
    assert "step_" in message.partition("the last checkpoint is ")[2], message
    assert ".tmp" not in second and "step_" in second
    assert "resuming" in second and "code 0" in second
    sums: dict[str, str] = dict(entry for entry in steady if isinstance(entry, tuple))
    assert second.split("code 0\n")[1].startswith(sums["last/model.safetensors"])
