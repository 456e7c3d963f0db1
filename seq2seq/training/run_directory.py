"""Checkpoints and models of a run: what they record, and how they are written, found and removed.

checkpoints/step_N/     model, optimiser state and RunState
kept/step_N/            one of the best models
kept/average_N/         average of checkpoints
last, best, averaged    relative symbolic links to one of these

This module does not import torch.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from filelock import FileLock

from seq2seq.config import Config, TrainingConfig, leaves, to_tree, with_paths
from seq2seq.data.tokenizer import Tokenizer
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
from seq2seq.formats.model_directory import OPTIONAL_FILES, describe_model, find_model
from seq2seq.processes import Processes
from seq2seq.training.records import LOCK_FILE, METRICS_FILE, not_a_run

STATE_FILE = "training.json"
MAX_PENDING = 2
"""Maximum number of pending writes. A validation and a checkpoint often coincide."""
FREE_KEYS = {
    "name",
    *(f"training.{key.name}" for key in fields(TrainingConfig) if "changeable" in key.metadata),
}
"""Recipe keys that may change on resume. Keys in `decoding` may always change. Apart from dropout
masks and rounding, only training.batch_tokens affects the updates."""
LENGTH_KEYS = {"training.max_steps", "training.max_minutes"}
"""Keys that determine the end of a cosine schedule."""

logger = logging.getLogger(__name__)


@dataclass
class Totals:
    """Sums over all processes since metrics were last logged.

    The first five values exclude skipped updates; the others include them.
    """

    loss: float = 0.0
    nll: float = 0.0
    trained_labels: float = 0.0
    gradient_norms: float = 0.0
    """Sum of gradient norms before clipping."""
    applied_updates: float = 0.0
    """Number of updates that were not skipped."""
    tokens: int = 0
    """Number of target tokens (classifier: input tokens)."""
    updates: int = 0
    lr: float = 0.0
    """Learning rate of the last update."""
    seconds: float = 0.0


@dataclass
class RunState:
    """Counters, scores and data position `(epoch, offset)` of a run.

    Random states are not saved: random numbers depend only on seed, update and process.
    """

    step: int = 0
    """Number of the last update; skipped updates count."""
    epoch: int = 0
    offset: int = 0
    """Number of sentences of this epoch already used."""
    minutes: float = 0.0
    """Training time of the run, including the time before it was resumed."""
    minutes_at_checkpoint: float = 0.0
    skipped: int = 0
    """Number of updates skipped because of a non-finite gradient."""
    overflows: int = 0
    """Number of fp16 updates skipped because the loss scale was too high."""
    consecutive_skips: int = 0
    """Number of updates with a non-finite gradient since the last finite gradient."""
    best: str | None = None
    """Path of the best model, relative to the run directory."""
    best_score: float | None = None
    """Validation score of the best model: BLEU, accuracy or negated nll; higher is better."""
    kept: list[tuple[float, int]] = field(default_factory=list)
    """Validation score and update of the models in kept/, best first."""
    validations_since_best: int = 0
    validated: int = -1
    """Update of the last validation, or -1."""
    averaged: int = -1
    """Update of the last average of checkpoints, or -1."""
    scheduled: list[int] = field(default_factory=list)
    """Updates of the last `keep_last` checkpoints that were due. Those saved only because of a
    signal are not included: the next checkpoint replaces them."""
    totals: Totals = field(default_factory=Totals)
    loss_scale: dict[str, float] = field(default_factory=dict)
    """State of the gradient scaler; empty unless in fp16."""
    data: str = ""
    """SHA-256 of the training data."""

    def add_validation(self, score: float, keep_best: int) -> bool:
        """Rank the model of this update by its validation score; return whether it is the best.

        A NaN score is never ranked.
        """
        self.validated = self.step
        self.validations_since_best += 1
        if math.isnan(score):
            return False
        ranked = sorted([*self.kept, (score, self.step)], key=lambda pair: (-pair[0], pair[1]))
        self.kept = ranked[:keep_best]
        if best := self._update_best(f"step_{self.step}", score):
            self.validations_since_best = 0
        return best

    def add_average(self, score: float) -> bool:
        """Record the average of checkpoints as best if it is better; return whether it is."""
        self.averaged = self.step
        return self._update_best(f"average_{self.step}", score)

    def _update_best(self, name: str, score: float) -> bool:
        """Record a model in kept/ as the best if its score is higher; return whether it is."""
        if not score > (-math.inf if self.best_score is None else self.best_score):
            return False
        self.best, self.best_score = f"kept/{name}", score
        return True

    def models(self) -> set[str]:
        """Return the names of the models in kept/ that the run needs."""
        names = {f"step_{step}" for _, step in self.kept}
        names |= {Path(self.best).name} if self.best else set()
        return names | ({f"average_{self.averaged}"} if self.averaged >= 0 else set())

    def save(self, folder: Path) -> None:
        """Write the state to a checkpoint."""
        (folder / STATE_FILE).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> RunState:
        """Read the state from a checkpoint; raises UserError if it is damaged."""
        try:
            saved = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
            state = cls(**saved)
            state.kept = [(score, step) for score, step in saved["kept"]]
            state.totals = Totals(**saved["totals"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{folder / STATE_FILE} cannot be read ({error}): it is damaged, or was written by "
                "another version of seq2seq"
            ) from None
        return state


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
        """Return the checkpoints of `state.scheduled` that exist, oldest first."""
        folders = (self.path / "checkpoints" / f"step_{step}" for step in state.scheduled)
        return [folder for folder in folders if folder.is_dir()]

    def describe_last(self) -> str:
        """Return a phrase that names the last checkpoint."""
        last = self.checkpoints()[-1:]
        return f"the last checkpoint is {last[0]}" if last else "there is no checkpoint yet"

    def save(self, state: RunState, write: Callable[[Path], None], *, is_checkpoint: bool) -> None:
        """Write a checkpoint, or a model to kept/, and update the links.

        After a checkpoint, checkpoints and models that are no longer needed are removed. `write`
        writes the tensors to a folder. They are copies in CPU memory: the thread calls it.
        """
        self.wait(MAX_PENDING - 1)
        writing = self._thread.submit(self._write, deepcopy(state), write, is_checkpoint)
        self._waiting.append(writing)

    def wait(self, pending: int = 0) -> None:
        """Wait until at most `pending` writes are left; raises an error of a finished write."""
        while len(self._waiting) > pending or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()

    def _write(self, state: RunState, write: Callable[[Path], None], is_checkpoint: bool) -> None:
        folder = self.path / ("checkpoints" if is_checkpoint else "kept") / f"step_{state.step}"
        try:
            sync(self.path / METRICS_FILE)  # a resumed run does not write its lines again
            with atomic_folder(folder) as draft:
                write(draft)
                if is_checkpoint:
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


def require_same_run(
    folder: Path, tokenizer: Tokenizer, config: Config, *, saved_data: str, data: str
) -> None:
    """Raise UserError, naming all changed keys, if recipe or data differ from a checkpoint's.

    saved_data, data: checksums of the training data, in the checkpoint and now. If they are equal,
    changed `data` keys except weights are ignored. If the tokenizer is unchanged, its keys except
    bpe_dropout are ignored.
    """
    saved, old_tokenizer = describe_model(folder)
    same_data, same_tokenizer = saved_data == data, old_tokenizer.checksum == tokenizer.checksum
    free = FREE_KEYS - (LENGTH_KEYS if config.training.schedule == "cosine" else set())
    old, new = (leaves(to_tree(with_paths(recipe))) for recipe in (saved, config))
    changed = [
        f"{key} was {old.get(key)}, is {new.get(key)}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
        and not (
            key in free
            or key.startswith("decoding.")
            or (key.startswith("data.") and same_data and not key.endswith(".weight"))
            or (key.startswith("tokenizer.") and same_tokenizer and key != "tokenizer.bpe_dropout")
        )
    ]
    if not changed and not same_tokenizer:
        changed = ["the tokenizer has changed"]
    if not changed and not same_data:
        changed = ["the text of the corpora has changed"]
    if changed:
        raise UserError(
            f"{folder} was trained with another recipe or other data: {'; '.join(changed)}. "
            "Restore it, or name another run directory with --run (training.init_from starts a new "
            "run from these weights)"
        )


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
