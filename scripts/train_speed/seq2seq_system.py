"""seq2seq system: the updater of its trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
from accelerate import Accelerator

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.data.batching import Batch, pack_pairs
from seq2seq.machine.devices import keep_freed_memory
from seq2seq.machine.precision import Precision
from seq2seq.model.transformer import Transformer
from seq2seq.training.update import Updater

BOS, EOS = 2, 3


class System:
    """Model in training."""

    def __init__(self, shape: dict[str, Any], vocab_size: int, precision: Precision) -> None:
        keep_freed_memory()
        config = ModelConfig(
            dim=shape["dim"],
            ffn_dim=shape["ffn_dim"],
            num_heads=shape["num_heads"],
            encoder_layers=shape["layers"],
            decoder_layers=shape["layers"],
            dropout=shape["dropout"],
        )
        accelerator = Accelerator(mixed_precision="no", cpu=True)
        training = TrainingConfig(label_smoothing=shape["label_smoothing"])
        self.rate = shape["rate"]
        self.updater = Updater(Transformer(config, vocab_size), training, accelerator, precision)

    def prepare(self, batch: dict[str, list[list[int]]]) -> Batch:
        """Return a batch in the format of seq2seq."""
        rows = {side: [np.array(row) for row in batch[side]] for side in ("source", "target")}
        return pack_pairs(
            [np.append(row, EOS) for row in rows["source"]],
            [np.insert(row, 0, BOS) for row in rows["target"]],
            [np.append(row, EOS) for row in rows["target"]],
        )

    def update(self, batch: Batch) -> None:
        """Make one update."""
        self.updater.update([batch], batch.num_labels, self.rate)
