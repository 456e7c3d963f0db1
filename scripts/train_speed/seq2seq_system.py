"""seq2seq: its model, loss, optimiser and check for finite gradients, as its trainer runs them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.data.packing import Batch, pack_pairs
from seq2seq.model.transformer import Transformer
from seq2seq.training.finite import FiniteCheck
from seq2seq.training.loss import TranslationLoss
from seq2seq.training.memory import keep_freed_memory
from seq2seq.training.optimizer import build_optimizers, step_optimizers

BOS, EOS = 2, 3


class System:
    """One model in training."""

    def __init__(self, shape: dict[str, Any], vocab_size: int, precision: str) -> None:
        keep_freed_memory()
        config = ModelConfig(
            dim=shape["dim"],
            ffn_dim=shape["ffn_dim"],
            num_heads=shape["num_heads"],
            encoder_layers=shape["layers"],
            decoder_layers=shape["layers"],
            dropout=shape["dropout"],
        )
        self.precision, self.rate = precision, shape["rate"]
        self.model = Transformer(config, vocab_size).train()
        self.loss = TranslationLoss(self.model, shape["label_smoothing"])
        self.optimizers = build_optimizers(self.model, TrainingConfig())
        self.finite = FiniteCheck(10)

    def prepare(self, batch: dict[str, list[list[int]]]) -> Batch:
        """Return the batch as the system wants it."""
        rows = {side: [np.array(row) for row in batch[side]] for side in ("source", "target")}
        return pack_pairs(
            [np.append(row, EOS) for row in rows["source"]],
            [np.insert(row, 0, BOS) for row in rows["target"]],
            [np.append(row, EOS) for row in rows["target"]],
        )

    def update(self, batch: Batch) -> Tensor:
        """Make one update; return the loss for each target token, in nats."""
        fast = torch.autocast("cpu", torch.bfloat16)
        with fast if self.precision == "bf16" else contextlib.nullcontext():
            loss, likelihood = self.loss(batch)
        (loss / batch.num_target_tokens).backward()
        skip = self.finite.judge(list(self.model.parameters()), None)
        step_optimizers(self.optimizers, self.rate, skip)
        return likelihood / batch.num_target_tokens
