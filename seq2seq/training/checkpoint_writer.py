"""Write checkpoints and the best and last models of a run.

Tensors are copied at once and written by a thread, so that training only waits for the copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.folders import (
    SUMS_FILE,
    copy_linked,
    remove_whole,
    require_space,
    sha256_of,
    sweep,
    sync,
    written_whole,
)
from seq2seq.model.directory import MODEL_FILES, WEIGHTS_FILE, save_model, snapshot
from seq2seq.model.network import Network
from seq2seq.training.checkpoint import (
    PROGRESS_FILE,
    Progress,
    checkpoints,
    is_regular,
    optimizer_state,
    save_progress,
    save_state,
    step_of,
)

SPARE_BYTES = 2**16
"""Space for the description of a model."""
MAX_WAITING = 2
"""Copies of the model in memory: a validation and a checkpoint often coincide."""


class CheckpointWriter:
    """Writes models one after the other; a failure is raised by one of the next calls."""

    def __init__(self, run: Path, tokenizer: Tokenizer, config: Config) -> None:
        self.run, self.tokenizer, self.config = run, tokenizer, config
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint_writer")
        self._waiting: deque[Future[None]] = deque()
        self._step: int | None = None
        """Update of the last checkpoint."""

    def tidy(self, newest: Path | None, progress: Progress) -> None:
        """Make the run directory consistent with the checkpoint that the run resumes from.

        Newer checkpoints, which are damaged, are renamed so that they do not count as the newest.
        """
        for parent in (self.run, self.run / "checkpoints", self.run / "kept"):
            sweep(parent)
        if newest is None:
            return
        for folder in checkpoints(self.run):
            if (step_of(folder) or 0) > progress.step:
                aside = folder.with_name(f"{folder.name}.damaged")
                if aside.exists():
                    remove_whole(aside)
                folder.rename(aside)
        self._restore(newest, self.run / "last")
        self._forget_checkpoints(newest)
        self._forget_kept(progress)
        best = self.run / "kept" / f"step_{progress.kept[0][1]}" if progress.kept else None
        if best and best.exists() and progress.best_score == progress.kept[0][0]:
            self._restore(best, self.run / "best")  # it may be newer than the checkpoint

    def save_checkpoint(
        self,
        model: Network,
        optimizers: Sequence[torch.optim.Optimizer],
        progress: Progress,
    ) -> None:
        """Write checkpoints/step_N and last/, and remove old checkpoints.

        A second call in the same step only writes the progress again.
        """
        record = deepcopy(progress)
        folder = self.run / "checkpoints" / f"step_{progress.step}"
        if progress.step == self._step:
            self._start(lambda: self._write_progress(folder, record))
            return
        self._step = progress.step
        weights, state = snapshot(model), optimizer_state(optimizers)

        def write() -> None:
            sync(self.run / "metrics.jsonl")  # its lines are not written again
            self._require_space(folder, [*weights.values(), *state.values()])
            with written_whole(folder) as draft:
                save_model(draft, weights, self.tokenizer, self.config)
                save_state(draft, state, record)
            self._copy_model(folder, self.run / "last")
            self._forget_checkpoints(folder)
            self._forget_kept(record)

        self._start(write)

    def _write_progress(self, folder: Path, progress: Progress) -> None:
        sync(self.run / "metrics.jsonl")
        names = [path.name for path in folder.iterdir()]
        with written_whole(folder) as draft:
            copy_linked(folder, sorted({*names} - {SUMS_FILE, PROGRESS_FILE}), draft)
            save_progress(draft, progress)
        self._forget_checkpoints(folder)
        self._forget_kept(progress)

    def save_kept(self, model: Network, step: int, *, best: bool) -> None:
        """Write the model of this update to kept/, and to best/ if it is the best."""
        weights = snapshot(model)
        folder = self.run / "kept" / f"step_{step}"

        def write() -> None:
            self._require_space(folder, weights.values())
            with written_whole(folder) as draft:
                save_model(draft, weights, self.tokenizer, self.config)
            if best:
                self._copy_model(folder, self.run / "best")

        self._start(write)

    def adopt_average(self) -> None:
        """Make the averaged model the best one."""
        self._start(lambda: self._copy_model(self.run / "averaged", self.run / "best"))

    def wait(self) -> None:
        """Wait until everything is written; raises an error of the thread."""
        while self._waiting:
            self._waiting.popleft().result()

    def check(self) -> None:
        """Raise an error of the thread, if any, without waiting."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def _start(self, write: Callable[[], None]) -> None:
        def write_and_explain() -> None:
            try:
                write()
            except UserError as error:
                raise UserError(f"{error}; {describe_last(self.run)}") from None

        while len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(write_and_explain))

    def _forget_checkpoints(self, newest: Path) -> None:
        """Remove old checkpoints and those written because of a signal."""
        older = [folder for folder in checkpoints(self.run) if folder != newest]
        by_signal = [folder for folder in older if is_regular(folder) is False]
        regular = [folder for folder in older if is_regular(folder)]
        too_old = regular[: max(0, len(regular) - (self.config.training.keep_last - 1))]
        for folder in (*by_signal, *too_old):  # but not damaged ones
            remove_whole(folder)

    def _forget_kept(self, progress: Progress) -> None:
        """Remove models that are no longer among the best, once a checkpoint records that."""
        names = {f"step_{step}" for _, step in progress.kept}
        for folder in (self.run / "kept").glob("step_*"):
            if folder.name not in names:
                remove_whole(folder)

    def _restore(self, source: Path, folder: Path) -> None:
        """Copy a model unless the copy exists."""
        weights = folder / WEIGHTS_FILE
        if not (weights.exists() and sha256_of(weights) == sha256_of(source / WEIGHTS_FILE)):
            self._copy_model(source, folder)

    def _copy_model(self, source: Path, folder: Path) -> None:
        with written_whole(folder) as draft:
            names = [name for name in MODEL_FILES if (source / name).exists()]
            copy_linked(source, names, draft)

    def _require_space(self, folder: Path, tensors: Iterable[Tensor]) -> None:
        vocabularies = {self.tokenizer.source, self.tokenizer.target}
        text = sum(len(vocabulary.model) for vocabulary in vocabularies) + SPARE_BYTES
        require_space(folder, sum(tensor.nbytes for tensor in tensors) + text)


def describe_last(run: Path) -> str:
    """Return a phrase that names the last checkpoint."""
    found = checkpoints(run)
    return f"the last checkpoint is {found[-1]}" if found else "there is no checkpoint yet"
