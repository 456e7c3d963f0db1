"""What a run keeps on disk while it trains: checkpoints, the best models, the last one.

Tensors are copied at once and written by a thread, so that training waits for the copy alone.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import torch

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.folders import copy_linked, recover, require_room, sha256_of, written_whole
from seq2seq.model.directory import MODEL_FILES, WEIGHTS_FILE, save_model, snapshot
from seq2seq.model.transformer import Transformer
from seq2seq.training.checkpoint import (
    Progress,
    checkpoints,
    optimizer_state,
    save_state,
)

logger = logging.getLogger(__name__)

SPARE_BYTES = 2**20
"""Room for descriptions and the tokenizer."""


class Keeper:
    """Writes a run's models, one after the other; a failure shows at the next call."""

    def __init__(self, run: Path, tokenizer: Tokenizer, config: Config) -> None:
        self.run, self.tokenizer, self.config = run, tokenizer, config
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keeper")
        self._writing: Future[None] | None = None

    def save_checkpoint(
        self,
        model: Transformer,
        optimizers: Sequence[torch.optim.Optimizer],
        progress: Progress,
    ) -> None:
        """Write checkpoints/step_N and last/, and drop the checkpoints that are too old."""
        self.wait()
        weights, state = snapshot(model), optimizer_state(optimizers)
        record = deepcopy(progress)
        folder = self.run / "checkpoints" / f"step_{progress.step}"

        def write() -> None:
            tensors = [*weights.values(), *state.values()]
            require_room(folder, sum(t.nbytes for t in tensors) + SPARE_BYTES)
            with written_whole(folder) as draft:
                save_model(draft, weights, self.tokenizer, self.config)
                save_state(draft, state, record)
            self._follow(folder)

        self._start(write)

    def save_kept(self, model: Transformer, progress: Progress, *, best: bool) -> None:
        """Write the model of this update to kept/, as one of the best, and to best/ if it is."""
        self.wait()
        weights = snapshot(model)
        kept = {f"step_{step}" for _, step in progress.kept}
        folder = self.run / "kept" / f"step_{progress.step}"

        def write() -> None:
            require_room(folder, sum(t.nbytes for t in weights.values()) + SPARE_BYTES)
            with written_whole(folder) as draft:
                save_model(draft, weights, self.tokenizer, self.config)
            if best:
                self._copy_model(folder, self.run / "best")
            for other in folder.parent.iterdir():
                if other.name not in kept:
                    shutil.rmtree(other)

        self._start(write)

    def adopt_average(self) -> None:
        """Make the averaged model the best one."""
        self.wait()
        self._copy_model(self.run / "averaged", self.run / "best")

    def tidy(self, newest: Path | None) -> None:
        """Finish what a crash interrupted: drafts, last/, and checkpoints that are too old."""
        for folder in (self.run, self.run / "checkpoints", self.run / "kept"):
            for place in folder.glob(".*.old"):
                recover(folder / place.name.removeprefix(".").removesuffix(".old"))
            for leftover in (*folder.glob(".*.old"), *folder.glob(".*.tmp")):
                shutil.rmtree(leftover)
        if newest is not None:
            self._follow(newest)

    def wait(self) -> None:
        """Wait until all is written; raises what went wrong with it."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def check(self) -> None:
        """Raise what went wrong with writing, if it has ended; does not wait."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def _start(self, write: Callable[[], None]) -> None:
        def explained() -> None:
            try:
                write()
            except UserError as error:
                raise UserError(f"{error}; {describe_last(self.run)}") from None

        self._writing = self._thread.submit(explained)

    def _follow(self, newest: Path) -> None:
        """Let last/ hold the newest checkpoint's model, and drop checkpoints beyond keep_last."""
        weights = self.run / "last" / WEIGHTS_FILE
        if not (weights.exists() and sha256_of(weights) == sha256_of(newest / WEIGHTS_FILE)):
            self._copy_model(newest, self.run / "last")
        for old in checkpoints(self.run)[: -self.config.training.keep_last]:
            shutil.rmtree(old)

    def _copy_model(self, source: Path, folder: Path) -> None:
        with written_whole(folder) as draft:
            names = [name for name in MODEL_FILES if (source / name).exists()]
            copy_linked(source, names, draft)


def describe_last(run: Path) -> str:
    """Say which checkpoint the same command would go on from."""
    found = checkpoints(run)
    return f"the last checkpoint is {found[-1]}" if found else "there is no checkpoint yet"
