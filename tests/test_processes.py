"""Several processes, with gloo on a CPU: they train like one and end together."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from commands import ENVIRONMENT
from conftest import records, write_recipe
from forked import exit_code, fork_several, free_port, in_processes, seq2seq
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from seq2seq.cli import main
from seq2seq.data.batching import Batch
from seq2seq.evaluation.evaluators import TranslationEvaluator, validator
from seq2seq.files import sha256_of
from seq2seq.formats.model_directory import load_config
from seq2seq.processes import Processes, peer_is_lost
from seq2seq.training.run import train
from seq2seq.training.run_directory import RunDirectory
from seq2seq.training.update import Updater

# Adam divides by the gradient's size: without its epsilon, rounding noise would become steps.
OPTIONS = (
    "model.dropout=0",
    "training.adam_eps=1e-3",
    "training.micro_batch_tokens=60",
    "training.clip_norm=0.5",
    "decoding.max_extra=5",
)
SCHEDULE = "training.max_steps=9", "training.validate_every=3", "training.checkpoint_every=4"


# What a record says about the work and the machine; "perplexity" repeats "nll", less exactly.
OF_THE_WORK = {"tokens_per_second", "minutes", "perplexity", "memory_gib"}


def assert_same_course(one: Path, other: Path, *, rel: float, count: int) -> None:
    pairs = list(zip(records(one), records(other), strict=True))
    assert len(pairs) == count
    for first, second in pairs:
        found, expected = (
            {key: value for key, value in record.items() if key not in OF_THE_WORK}
            for record in (first, second)
        )
        assert found.pop("kind") == expected.pop("kind")
        assert found == pytest.approx(expected, rel=rel)


# Of an update of one sentence, the second process has none.
@pytest.mark.parametrize(("count", "batch_tokens"), [(2, 1), (4, 300)])
def test_several_processes_train_like_one(
    recipe: Path, corpus: Path, tmp_path: Path, count: int, batch_tokens: int
) -> None:
    # A development sentence longer than the position table makes it grow on one process alone.
    for language, word in (("en", "dog"), ("de", "Hund")):
        with (corpus / f"dev.{language}").open("a") as stream:
            stream.write(f"{word} " * 300 + "\n")
    options = [*OPTIONS, *SCHEDULE, "tokenizer.bpe_dropout=0.2"]
    options.append(f"training.batch_tokens={batch_tokens}")
    several = tmp_path / "several"
    log = seq2seq(count, tmp_path / "log", "train", recipe, *options, "--run", several)
    assert f"(processes: {count}, " in log and log.count("update 9  validation") == 1
    train(load_config(recipe, options), tmp_path / "one", validator)
    assert_same_course(several, tmp_path / "one", rel=1e-5, count=5 + 3)


@pytest.mark.parametrize("task", ["language_model", "classification"])
def test_two_processes_train_other_tasks_like_one(corpus: Path, tmp_path: Path, task: str) -> None:
    lines = (corpus / "train.en").read_text().splitlines()
    labelled = "".join(f"{len(line) % 2}\t{line}\n" for line in lines)
    for name in ("text.txt", "train.tsv"):
        (tmp_path / name).write_text(labelled)
    recipe = write_recipe(tmp_path, task)
    options = [*OPTIONS[1:4], "training.max_steps=6", "training.batch_tokens=200"]
    options += ["training.validate_every=3", "training.log_every=2"]
    if task == "classification":
        options += ["tokenizer.bpe_dropout=0.2", "data.test=null"]
    runs = tmp_path / "two", tmp_path / "one"
    seq2seq(2, tmp_path / "log", "train", recipe, *options, "--run", runs[0])
    train(load_config(recipe, options), runs[1], validator)
    assert_same_course(*runs, rel=1e-5, count=3 + 2)


def test_gradients_are_exchanged_once_per_update(recipe: Path, tmp_path: Path) -> None:
    """Not for each of its micro-batches."""
    make, update, log = Updater.__init__, Updater.update, tmp_path / "log"
    exchanges: list[object] = []

    def watched(updater: Updater, *arguments: Any) -> None:
        def hook(group: Any, bucket: Any) -> Any:
            exchanges.append(bucket)
            return allreduce_hook(group, bucket)

        make(updater, *arguments)
        updater.loss.register_comm_hook(None, lambda group, bucket: hook(group, bucket))

    def checked(updater: Updater, batches: Sequence[Batch], *arguments: Any) -> Any:
        result = update(updater, batches, *arguments)
        assert len(batches) > 1 == len(exchanges)
        exchanges.clear()
        return result

    def work() -> None:
        patch.multiple(Updater, __init__=watched, update=checked).start()
        main(["train", str(recipe), *OPTIONS, "--run", str(tmp_path / "run")])

    assert in_processes(2, work, log) == [0, 0], log.read_text()


def test_a_run_resumes_with_another_number_of_processes(recipe: Path, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", ("training.max_steps=5", "training.max_steps=10")
    seq2seq(2, tmp_path / "log", "train", recipe, *OPTIONS, steps[0], "--run", run)
    for folder, config in ((run, steps[1]), (tmp_path / "one", steps[1])):
        train(load_config(recipe, [*OPTIONS, config]), folder, validator)
    two, one = records(run), records(tmp_path / "one")
    assert [r["step"] for r in two if r["kind"] == "train"] == [2, 4, 5, 6, 8, 10]
    assert two[-1]["nll"] == pytest.approx(one[-1]["nll"], rel=1e-5)


def test_processes_share_translation_and_evaluation(
    recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    run, file = tmp_path / "run", tmp_path / "in"
    overrides = ["decoding.max_extra=5", "decoding.precision=fp32"]
    train(load_config(recipe, overrides), run, validator)
    lines = (corpus / "train.en").read_text().splitlines()[:101]
    text = "\n".join([*lines, "", "the dog"]).encode()  # an odd number, a blank line, no end
    file.write_bytes(text)

    def by(count: int, *arguments: object) -> tuple[str, str]:
        """Return what a command of this many processes writes to a file, and its log."""
        output = tmp_path / "out"
        log = seq2seq(count, tmp_path / f"log{count}", *arguments, "-o", output)
        return output.read_text(), log

    alone, _ = by(1, "translate", run, file)
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2 -m seq2seq translate"
    command = [sys.executable, *torchrun.split(), str(run)]
    done = subprocess.run(command, env=ENVIRONMENT, input=text, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == alone and alone.count("\n") == 103
    options = ["--json", "--sample", "--nbest", "2", "--tokens", "--min-length", "3"]
    outputs = [by(count, "translate", run, file, *options)[0] for count in (1, 2)]
    for line, other in zip(*map(str.splitlines, outputs), strict=True):
        one, two = json.loads(line), json.loads(other)
        assert one["text"] == two["text"]
        assert [c["text"] for c in one["nbest"]] == [c["text"] for c in two["nbest"]]
    metrics = []
    for count in (1, 2):
        _, log = by(count, "evaluate", run, "--split", "dev", "--json")
        [line] = [line for line in log.splitlines() if line.startswith('{"')]
        metrics.append(json.loads(line))
    expected, found = metrics
    assert found.pop("nll") == pytest.approx(expected.pop("nll"), rel=1e-6)
    assert found["bleu"] == expected["bleu"] and found["sentences"] == 20


def test_a_signal_to_one_process_saves_and_stops_all(recipe: Path, tmp_path: Path) -> None:
    options = [*OPTIONS, "training.max_steps=50", "training.log_every=5"]
    arguments, log = ["train", str(recipe), *options, "--run"], tmp_path / "log"
    children = fork_several(2, lambda: main([*arguments, str(tmp_path / "run")]), log)
    while "update 5 " not in log.read_text():
        time.sleep(0.01)
    os.kill(children[1], signal.SIGTERM)
    assert all(exit_code(child) for child in children)
    text = log.read_text()
    assert "SIGTERM: finishing this update and saving" in text
    assert text.count("stopped by SIGTERM after update") == 1
    assert RunDirectory(tmp_path / "run").checkpoints()
    require_steady(tmp_path, arguments)


def require_steady(folder: Path, arguments: Sequence[str]) -> None:
    """Resume a run, which must end as one that was never stopped."""
    for name in ("run", "steady"):
        seq2seq(2, folder / "log", *arguments, folder / name)
    sums = [sha256_of(folder / name / "last/model.safetensors") for name in ("run", "steady")]
    assert sums[0] == sums[1]


def test_a_signal_to_one_process_in_a_validation_loses_no_update(
    recipe: Path, tmp_path: Path
) -> None:
    options = [*OPTIONS, *SCHEDULE]
    arguments, log = ["train", str(recipe), *options, "--run"], tmp_path / "log"

    evaluate = TranslationEvaluator.__call__

    def slow(*arguments: Any) -> Any:
        if os.environ["RANK"] == "1":
            os.write(2, b"validating\n")
            time.sleep(60)
        return evaluate(*arguments)

    def work() -> None:
        patch.object(TranslationEvaluator, "__call__", slow).start()
        main([*arguments, str(tmp_path / "run")])

    children = fork_several(2, work, log)
    while "validating" not in log.read_text():
        time.sleep(0.1)
    time.sleep(1)  # the main process has done its share, and waits
    os.kill(children[1], signal.SIGTERM)
    assert [exit_code(child) for child in children] == [1, 128 + signal.SIGTERM]
    assert "process 0 ends because another process ended" in log.read_text()
    assert [folder.name for folder in RunDirectory(tmp_path / "run").checkpoints()] == ["step_3"]
    require_steady(tmp_path, arguments)
    assert_same_course(tmp_path / "run", tmp_path / "steady", rel=1e-9, count=5 + 3)


def test_an_error_on_one_process_ends_all_with_its_message(recipe: Path, tmp_path: Path) -> None:
    update = Updater.update

    def failing(*arguments: Any) -> Any:
        if os.environ["RANK"] == "1":
            raise ValueError("the disk of the second process is broken")
        return update(*arguments)

    def work() -> None:
        patch.object(Updater, "update", failing).start()
        main(["train", str(recipe), *OPTIONS, "--run", str(tmp_path / "run")])

    began, log = time.monotonic(), tmp_path / "log"
    assert all(in_processes(2, work, log)) and time.monotonic() - began < 30
    text = log.read_text()
    assert "ValueError: the disk of the second process is broken" in text
    assert "closed by peer" not in text and "Connection reset" not in text


def test_processes_start_from_a_model(recipe: Path, tmp_path: Path) -> None:
    base, log = tmp_path / "base", tmp_path / "log"
    main(["train", str(recipe), *OPTIONS, "training.max_steps=2", "--run", str(base)])
    options = [*OPTIONS[:2], *OPTIONS[3:], f"training.init_from={base}", "training.max_steps=2"]
    text = seq2seq(2, log, "train", recipe, *options, "--run", tmp_path / "run")
    assert "update 0  validation" in text


def test_a_hanging_process_is_a_timeout(recipe: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"

    join, update, updates = Processes.join, Updater.update, itertools.count(1)

    def hanging(*arguments: Any) -> Any:
        if next(updates) == 3 and os.environ["RANK"] == "1":
            time.sleep(7)
            os._exit(9)
        return update(*arguments)

    def work() -> None:
        patch.object(Processes, "join", lambda: join(timedelta(seconds=4))).start()
        patch.object(Updater, "update", hanging).start()
        main(["train", str(recipe), *OPTIONS, "--run", str(tmp_path / "run")])

    assert in_processes(2, work, log) == [1, 9]
    assert "error: process 0 timed out waiting for another" in log.read_text()
    assert "Timed out waiting" not in log.read_text()


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    def work() -> None:
        processes = Processes.join()
        processes.barrier()
        if not processes.is_main:
            os._exit(3)
        with pytest.raises(RuntimeError) as error, processes.main_first():
            pass
        assert peer_is_lost(error.value)

    log = tmp_path / "log"
    assert in_processes(2, work, log) == [0, 3], log.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("name=run{rank}", "process 1 of 2: does not see runs/run"),
        ("name=run data.clean.max_len={rank}6", "process 1 of 2: has prepared different data"),
    ],
)
def test_machines_with_different_files_are_refused(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def work() -> None:
        rank = os.environ["RANK"]
        os.environ["LOCAL_RANK"] = "0"  # each is the first of its machine
        main(["train", str(recipe), *OPTIONS, *options.format(rank=rank).split()])

    log = tmp_path / "log"
    assert in_processes(2, work, log) == [1, 1]
    assert log.read_text().count(message) == 2  # on each machine
    assert {path.name for path in tmp_path.glob("runs/*/*")} <= {".lock"}


def test_two_machines_find_each_other(recipe: Path, tmp_path: Path) -> None:
    """Two launches on this machine with the launch configuration of the repository."""
    example = Path(__file__).parent.parent / "recipes/wmt14_en_de/accelerate/two_machines.yaml"
    options = [*OPTIONS, "training.max_steps=4"]

    port, logs = free_port(), [tmp_path / f"log{rank}" for rank in range(2)]
    machines = []
    for rank, log in enumerate(logs):
        command = (
            f"-m accelerate.commands.launch --config_file {example} --num_processes 2 "
            f"--main_process_ip 127.0.0.1 --main_process_port {port} --machine_rank {rank} "
            f"-m seq2seq train {recipe} name=both"
        )
        with log.open("w") as errors:
            machine = [sys.executable, *command.split(), *options]
            machines.append(subprocess.Popen(machine, env=ENVIRONMENT, cwd=tmp_path, stderr=errors))
    codes = [machine.wait(timeout=120) for machine in machines]
    assert codes == [0, 0], [log.read_text() for log in logs]
    assert "(processes: 2, " in logs[0].read_text()
    train(load_config(recipe, options), tmp_path / "one", validator)
    assert_same_course(tmp_path / "runs" / "both", tmp_path / "one", rel=1e-5, count=2 + 1)
