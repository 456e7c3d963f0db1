"""Hugging Face transformers: a Marian model with random weights, in a bare loop."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianConfig, MarianMTModel

PAD, EOS = 1, 2


class System:
    """One model in training."""

    def __init__(self, shape: dict[str, Any], vocab_size: int, precision: str) -> None:
        sides: dict[str, Any] = {}
        for side in ("encoder", "decoder"):
            sides |= {
                f"{side}_layers": shape["layers"], f"{side}_attention_heads": shape["num_heads"],
                f"{side}_ffn_dim": shape["ffn_dim"],
            }  # fmt: skip
        config = MarianConfig(
            vocab_size=vocab_size, d_model=shape["dim"], dropout=shape["dropout"],
            attention_dropout=0.0, activation_dropout=0.0, activation_function="relu",
            scale_embedding=True, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD,
            use_cache=False, **sides,
        )  # fmt: skip
        self.precision, self.smoothing = precision, shape["label_smoothing"]
        self.model = MarianMTModel(config).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=shape["rate"], betas=(0.9, 0.98), eps=1e-9
        )

    def prepare(self, batch: dict[str, list[list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch as the system wants it."""

        def pad(rows: list[list[int]], value: int) -> Tensor:
            tensors = [torch.tensor(row) for row in rows]
            return pad_sequence(tensors, batch_first=True, padding_value=value)

        source = pad([[*row, EOS] for row in batch["source"]], PAD)
        begun = pad([[PAD, *row] for row in batch["target"]], PAD)
        return source, begun, pad([[*row, EOS] for row in batch["target"]], -100)

    def update(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        """Make one update."""
        source, begun, labels = batch
        fast = torch.autocast("cpu", torch.bfloat16)
        with fast if self.precision == "bf16" else contextlib.nullcontext():
            logits = self.model(
                input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=begun
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), label_smoothing=self.smoothing
            )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
