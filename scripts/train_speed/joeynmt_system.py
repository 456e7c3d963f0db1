"""JoeyNMT: its Transformer and loss, in the loop of its trainer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from joeynmt.batch import Batch
from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary
from torch.nn.utils.rnn import pad_sequence

UNK, PAD, BOS, EOS = range(4)


class System:
    """One model in training; on a CPU JoeyNMT has no half precision."""

    def __init__(self, shape: dict[str, Any], vocab_size: int, precision: str) -> None:
        special = SimpleNamespace(
            unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
            unk_id=UNK, pad_id=PAD, bos_id=BOS, eos_id=EOS, lang_tags=[],
        )  # fmt: skip
        vocabulary = Vocabulary([f"w{i}" for i in range(vocab_size - 4)], special)
        stack = {
            "type": "transformer", "num_layers": shape["layers"], "num_heads": shape["num_heads"],
            "hidden_size": shape["dim"], "ff_size": shape["ffn_dim"], "dropout": shape["dropout"],
            "embeddings": {"embedding_dim": shape["dim"], "scale": True}, "layer_norm": "post",
        }  # fmt: skip
        model = {
            "encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True,
            "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform",
        }  # fmt: skip
        self.model = build_model(model, vocabulary, vocabulary).train()
        self.model.loss_function = ("crossentropy", shape["label_smoothing"])
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=shape["rate"], betas=(0.9, 0.98), eps=1e-9
        )

    def prepare(self, batch: dict[str, list[list[int]]]) -> Batch:
        """Return the batch as the system wants it."""
        source = [torch.tensor([*row, EOS]) for row in batch["source"]]
        target = [torch.tensor([BOS, *row, EOS]) for row in batch["target"]]
        return Batch(
            src=pad_sequence(source, batch_first=True, padding_value=PAD),
            src_length=torch.tensor([len(row) for row in source]),
            src_prompt_mask=None,
            trg=pad_sequence(target, batch_first=True, padding_value=PAD),
            trg_prompt_mask=None,
            indices=torch.arange(len(source)),
            device=torch.device("cpu"),
            pad_index=PAD,
            eos_index=EOS,
        )

    def update(self, batch: Batch) -> None:
        """Make one update."""
        loss, *_ = self.model(return_type="loss", **vars(batch))
        loss = loss / batch.ntokens
        loss.backward()
        self.optimizer.step()
        self.model.zero_grad()
