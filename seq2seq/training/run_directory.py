"""Write, find and remove the checkpoints and models of a run directory, and lock it.

checkpoints/step_N/     model, optimiser state and RunState
kept/step_N/            one of the best models
kept/average_N/         average of checkpoints
last, best, averaged    relative symbolic links to one of these
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import safetensors.torch
from filelock import FileLock
from torch import Tensor

from seq2seq.errors import UserError
from seq2seq.files import (
    atomic_folder,
    atomic_link,
    find_damage,
    remove_folder,
    remove_leftovers,
    sync,
    try_lock,
)
from seq2seq.formats.model_directory import OPTIONAL_FILES, find_model
from seq2seq.processes import Processes
from seq2seq.training.checkpoint import RunState
from seq2seq.training.records import LOCK_FILE, not_a_run

OPTIMIZER_FILE = "training.safetensors"
MAX_PENDING = 2
"""Maximum number of pending writes. A validation and a checkpoint often coincide."""

Tensors = dict[str, Tensor]
Save = Callable[[Path], None]
"""Function that saves a model to a folder."""

logger = logging.getLogger(__name__)


class RunDirectory:
    """Reads, writes and removes the checkpoints and models of a run.

    A thread writes all files, so that training only waits for a copy of the tensors. An error of
    the thread is raised by one of the next calls.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run_directory")
        self._waiting: deque[Future[None]] = deque()

    def checkpoints(self) -> list[Path]:
        """Return all checkpoints, oldest first; some may be damaged."""
        return sorted(self.path.glob("checkpoints/step_*[0-9]"), key=step_of)

    def newest_checkpoint(self) -> Path | None:
        """Return the newest undamaged checkpoint, or None; log a warning for each damaged one.

        Raises UserError if all checkpoints are damaged.
        """
        checkpoints = self.checkpoints()
        for folder in reversed(checkpoints):
            problem = find_damage(folder, OPTIONAL_FILES)
            if problem is None:
                return folder
            logger.warning("%s is damaged: %s; trying the previous checkpoint", folder, problem)
        if checkpoints:
            raise UserError(
                f"every checkpoint of {self.path} is damaged; restore one from a copy, or delete "
                f"{self.path / 'checkpoints'} to start again"
            )
        return None

    def models_to_average(self, last: int, best: int | None = None) -> list[Path]:
        """Return the last `last` scheduled checkpoints or, if `best` is given, the best models.

        Raises UserError if there are fewer.
        """
        find_model(self.path)  # raises UserError if it is not a run
        checkpoints = self.checkpoints()
        state = RunState.load(checkpoints[-1]) if checkpoints else RunState()
        if best:
            models = [self.path / "kept" / f"step_{step}" for _, step in state.kept[:best]]
        else:
            models = self.scheduled_checkpoints(state)[-last:]
        if len(models) < (best or last):
            raise UserError(
                f"{self.path} keeps {len(models)} models of this kind, fewer than the "
                f"{best or last} to average: take fewer, or train with a larger training.keep_last "
                "or keep_best"
            )
        return models

    def scheduled_checkpoints(self, state: RunState) -> list[Path]:
        """Return the checkpoints that were due, not only saved on a signal, oldest first."""
        folders = (self.path / "checkpoints" / f"step_{step}" for step in state.scheduled)
        return [folder for folder in folders if folder.is_dir()]

    def describe_last(self) -> str:
        """Return a phrase that names the last checkpoint."""
        last = self.checkpoints()[-1:]
        return f"the last checkpoint is {last[0]}" if last else "there is no checkpoint yet"

    def save(self, state: RunState, save_model: Save, optimizers: Tensors | None) -> None:
        """Write a checkpoint or, without optimisers, a model to kept/, and update the links.

        After a checkpoint, checkpoints and models that are no longer needed are removed. All
        tensors are copies in CPU memory: the thread writes them.
        """
        self.wait(MAX_PENDING - 1)
        writing = self._thread.submit(self._write, deepcopy(state), save_model, optimizers)
        self._waiting.append(writing)

    def wait(self, pending: int = 0) -> None:
        """Wait until at most `pending` writes are left; raises an error of a finished write."""
        while len(self._waiting) > pending or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()

    def _write(self, state: RunState, save_model: Save, optimizers: Tensors | None) -> None:
        is_checkpoint = optimizers is not None
        folder = self.path / ("checkpoints" if is_checkpoint else "kept") / f"step_{state.step}"
        try:
            sync(self.path / "metrics.jsonl")  # a resumed run does not write its lines again
            with atomic_folder(folder) as draft:
                save_model(draft)
                if optimizers is not None:
                    safetensors.torch.save_file(optimizers, str(draft / OPTIMIZER_FILE))
                    state.save(draft)
            self.reconcile(state, folder if is_checkpoint else None)
            for other in self.checkpoints() if is_checkpoint else ():
                if other != folder and step_of(other) not in state.scheduled:
                    remove_folder(other)
        except UserError as error:
            raise UserError(f"{error}; {self.describe_last()}") from None

    def reconcile(self, state: RunState, last: Path | None) -> None:
        """Update links and, if `last` is a checkpoint with this state, remove unneeded models."""
        targets = {
            "last": last,
            "best": self.path / state.best if state.best else None,
            "averaged": self.path / "kept" / f"average_{state.averaged}",
        }
        for name, target in targets.items():
            if target and target.exists():
                atomic_link(self.path / name, target)
        for model in (self.path / "kept").glob("[!.]*") if last else ():
            if model.name not in state.models():
                remove_folder(model)


def step_of(checkpoint: Path) -> int:
    """Return the update number in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step_"))


@contextmanager
def locked(run: Path, processes: Processes) -> Iterator[None]:
    """Lock a run directory against other training commands, and remove leftovers of a crash.

    Raises UserError if it is locked or is another kind of folder. The operating system releases
    the lock when the process ends, even in a crash.
    """
    lock = FileLock(run / LOCK_FILE)
    refusal = not_a_run(run) if processes.is_main else None
    if processes.is_main and not refusal and not try_lock(lock):
        refusal = (
            f"{run} is in use: another process is training there; wait for it, stop it, or name "
            "another directory with --run"
        )
    if processes.is_main and not refusal:
        for parent in (run, run / "checkpoints", run / "kept"):
            remove_leftovers(parent)
    if refusal := processes.broadcast(refusal):
        raise UserError(refusal)
    try:
        yield
    finally:
        lock.release()
