"""The checkpoints and models of a run: what exists, is written and is removed; locking it.

checkpoints/step_N/     model, optimiser state and RunState
kept/step_N/            one of the best models
kept/average_N/         average of checkpoints
last, best, averaged    relative symbolic links to one of these
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from filelock import FileLock
from torch import Tensor

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import SharedError, UserError
from seq2seq.files import (
    acquired,
    atomic_folder,
    atomic_link,
    find_damage,
    remove_folder,
    remove_leftovers,
    require_space,
    sync,
)
from seq2seq.model.directory import save_model
from seq2seq.model.saved import LOCK_FILE, OPTIONAL_FILES, find_model, not_a_run
from seq2seq.processes import Processes
from seq2seq.training.checkpoint import RunState

OPTIMIZER_FILE = "training.safetensors"
SPARE_BYTES = 2**16
"""Space for the description of a model."""
MAX_PENDING = 2
"""Pending writes; one more snapshot may wait for them. A validation and a checkpoint often
coincide."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a model and, for a checkpoint, of its optimisers' state, in main memory."""

    config: Config
    tokenizer: Tokenizer
    weights: Mapping[str, Tensor]
    optimizers: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(x.nbytes for x in (*self.weights.values(), *self.optimizers.values()))

    def save(self, folder: Path) -> None:
        """Write the files to a folder."""
        save_model(folder, self.weights, self.tokenizer, self.config)
        if self.optimizers:
            safetensors.torch.save_file(dict(self.optimizers), str(folder / OPTIMIZER_FILE))


class RunDirectory:
    """Reads, writes and removes the checkpoints and models of a run.

    Everything is written by a thread, so that training only waits for a copy of the tensors. An
    error of the thread is raised by one of the next calls.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="run_directory")
        self._waiting: deque[Future[None]] = deque()

    def checkpoints(self) -> list[Path]:
        """Return all checkpoints, oldest first; some may be damaged."""
        found = {step_of(path): path for path in self.path.glob("checkpoints/step_*")}
        return [found[step] for step in sorted(step for step in found if step is not None)]

    def newest_checkpoint(self) -> Path | None:
        """Return the newest undamaged checkpoint; log a warning for each newer one.

        Raises UserError if there are checkpoints, but all are damaged.
        """
        found = self.checkpoints()
        for folder in reversed(found):
            problem = find_damage(folder, OPTIONAL_FILES)
            if problem is None:
                return folder
            logger.warning("%s is damaged: %s; trying the one before it", folder, problem)
        if found:
            raise UserError(
                f"every checkpoint of {self.path} is damaged; restore one from a copy, or delete "
                f"{self.path / 'checkpoints'} to start again"
            )
        return None

    def averageable_checkpoints(self) -> list[Path]:
        """Return the checkpoints that other runs of the recipe have too: not those of signals."""
        return [folder for folder in self.checkpoints() if _is_by_signal(folder) is False]

    def last_models(self, count: int) -> list[Path]:
        """Return the last `count` checkpoints, without those of signals.

        Raises UserError if there are fewer.
        """
        found = self.averageable_checkpoints()
        if len(found) < count:
            find_model(self.path)  # raises if it is not a run
            raise UserError(
                f"{self.path} holds {len(found)} scheduled checkpoints, fewer than the {count} to "
                "average: take fewer with --last, or write more (training.checkpoint_every) and "
                "keep them (training.keep_last)"
            )
        return found[-count:]

    def best_models(self, count: int) -> list[Path]:
        """Return the `count` best models; raises UserError if there are fewer."""
        found = self.checkpoints()
        kept = RunState.load(found[-1]).kept if found else []
        if len(kept) < count:
            find_model(self.path)  # raises if it is not a run
            raise UserError(
                f"{self.path} keeps {len(kept)} of its best models, fewer than the {count} to "
                "average; take fewer with --best, or train with a larger training.keep_best"
            )
        return [self.path / "kept" / f"step_{step}" for _, step in kept[:count]]

    def linked_models(self) -> list[Path]:
        """Return the folders that `best`, `last` and `averaged` point to, each once."""
        links = (self.path / name for name in ("best", "last", "averaged"))
        return list(dict.fromkeys(link.resolve() for link in links if link.exists()))

    def describe_last(self) -> str:
        """Return a phrase that names the last checkpoint."""
        found = self.checkpoints()
        return f"the last checkpoint is {found[-1]}" if found else "there is no checkpoint yet"

    def reconcile(self, newest: Path | None, state: RunState) -> None:
        """Make the directory consistent with the checkpoint that the run resumes from.

        Newer checkpoints are damaged: they are renamed, so that they do not count as the newest.
        """
        for parent in (self.path, self.path / "checkpoints", self.path / "kept"):
            remove_leftovers(parent)
        if newest is None:
            return
        for folder in self.checkpoints():
            if (step_of(folder) or 0) > state.step:
                aside = folder.with_name(f"{folder.name}.damaged")
                if aside.exists():
                    remove_folder(aside)
                folder.rename(aside)
        self._link(state, newest)
        self._remove_models(state)

    def save_checkpoint(self, state: RunState, snapshot: Snapshot, keep_last: int) -> None:
        """Write checkpoints/step_N, update `last`, and remove what is no longer needed."""
        self._start(self.path / "checkpoints" / f"step_{state.step}", state, snapshot, keep_last)

    def save_kept(self, state: RunState, snapshot: Snapshot) -> None:
        """Write the model of this update to kept/, and update `best`."""
        self._start(self.path / "kept" / f"step_{state.step}", state, snapshot)

    def wait(self) -> None:
        """Wait until everything is written; raises an error of the thread."""
        while self._waiting:
            self._waiting.popleft().result()

    def check(self) -> None:
        """Raise an error of the thread, if any, without waiting."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def _start(self, folder: Path, state: RunState, *arguments: Any) -> None:
        """Let the thread write a folder."""
        while len(self._waiting) >= MAX_PENDING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._write, folder, deepcopy(state), *arguments))

    def _write(
        self, folder: Path, state: RunState, snapshot: Snapshot, keep_last: int | None = None
    ) -> None:
        """Write a folder and update the links; keep_last: number of checkpoints, if it is one."""
        try:
            sync(self.path / "metrics.jsonl")  # its lines are not written again
            require_space(folder, snapshot.num_bytes + SPARE_BYTES)
            with atomic_folder(folder) as draft:
                snapshot.save(draft)
                if keep_last:
                    state.save(draft)
            self._link(state, folder if keep_last else None)
            if keep_last:
                self._remove_old(state, folder, keep_last)
        except UserError as error:
            raise UserError(f"{error}; {self.describe_last()}") from None

    def _link(self, state: RunState, last: Path | None = None) -> None:
        """Point `last`, `best` and `averaged` to what they are according to the state."""
        targets = {
            "last": last,
            "best": self.path / state.best if state.best else None,
            "averaged": self.path / "kept" / f"average_{state.averaged}",
        }
        for name, target in targets.items():
            if target and target.exists():
                atomic_link(self.path / name, target)

    def _remove_old(self, state: RunState, newest: Path, keep_last: int) -> None:
        """Remove old checkpoints, those of signals, and models that the run does not need."""
        older = {folder: _is_by_signal(folder) for folder in self.checkpoints() if folder != newest}
        scheduled = [folder for folder, is_by_signal in older.items() if is_by_signal is False]
        kept = scheduled[max(0, len(scheduled) - (keep_last - 1)) :]
        for folder, is_by_signal in older.items():
            if is_by_signal is not None and folder not in kept:  # a damaged one is not touched
                remove_folder(folder)
        self._remove_models(state)

    def _remove_models(self, state: RunState) -> None:
        """Remove the models in kept/ that the run does not need, and links to removed ones."""
        for folder in (self.path / "kept").glob("[!.]*"):
            if folder.name not in state.models():
                remove_folder(folder)
        for link in (self.path / "best", self.path / "averaged"):
            if link.is_symlink() and not link.exists():  # to a model after the last checkpoint
                link.unlink()


def step_of(folder: Path) -> int | None:
    """Return the update in a checkpoint's name; None for other paths."""
    number = folder.name.removeprefix("step_")
    return int(number) if number.isdecimal() and folder.is_dir() else None


def _is_by_signal(folder: Path) -> bool | None:
    """Return whether only a signal caused a checkpoint; None if its state is damaged."""
    try:
        return RunState.load(folder).by_signal
    except UserError:
        return None


@contextmanager
def locked(run: Path, processes: Processes) -> Iterator[None]:
    """Lock a run directory against other training commands.

    Raises SharedError if it is locked, or if it is no run directory. The operating system releases
    the lock when the process ends, even if it crashes.
    """
    lock = FileLock(run / LOCK_FILE)
    refusal = not_a_run(run) if processes.is_main else None
    if processes.is_main and not refusal and not acquired(lock):
        refusal = (
            f"{run} is in use: another process is training there; wait for it, stop it, or name "
            "another directory with --run"
        )
    if refusal := processes.broadcast(refusal):
        raise SharedError(refusal)
    try:
        yield
    finally:
        lock.release()
