"""State of a run in a checkpoint, and the check that a recipe may resume from it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from seq2seq.config import Config, TrainingConfig, leaves, to_tree, with_paths
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import describe_model

STATE_FILE = "training.json"
FREE_KEYS = {
    "name",
    *(f"training.{key.name}" for key in fields(TrainingConfig) if "changeable" in key.metadata),
}
"""Recipe keys that may change on resume. Keys in `decoding` may always change. Apart from dropout
masks and rounding, only training.batch_tokens affects the updates."""
LENGTH_KEYS = {"training.max_steps", "training.max_minutes"}
"""Keys that determine the end of a cosine schedule."""


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
    """Training time at the last checkpoint."""
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
    """Updates of the checkpoints that are kept and averaged. Checkpoints saved only because of a
    signal are not included: the next checkpoint replaces them."""
    totals: Totals = field(default_factory=Totals)
    """Sums of the updates since metrics were last logged."""
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
        ranked = sorted([*self.kept, (score, self.step)], key=lambda kept: (-kept[0], kept[1]))
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
