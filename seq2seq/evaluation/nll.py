"""Negative log-likelihood of references."""

from __future__ import annotations

import math

import numpy as np
import torch

from seq2seq.data.batching import micro_batches
from seq2seq.data.packing import collate
from seq2seq.data.store import Store
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.machine.threads import timed
from seq2seq.model.transformer import Transformer
from seq2seq.processes import Processes
from seq2seq.training.loss import ModelLoss


@torch.inference_mode()
def compute_nll(
    model: Transformer,
    store: Store,
    tokenizer: Tokenizer,
    *,
    max_sentences: int | None = None,
    smoothing: float,
    max_tokens: int,
    processes: Processes,
) -> dict[str, float]:
    """Return label-smoothed `loss` and `nll`, nats per target token, and `perplexity`, exp(nll).

    max_sentences: use only the first N pairs.
    """
    criterion = ModelLoss(model, smoothing)
    device = model.device
    loss_sum = nll_sum = num_tokens = 0.0
    first = slice(max_sentences)
    sources, targets = store.pairs(np.arange(len(store))[first])
    plan = micro_batches(
        store.source_lens[first],
        store.target_lens[first],
        max_tokens=max_tokens,
        num_processes=processes.count,
    )
    for places in plan[processes.index]:
        batch = collate([sources[i] for i in places], [targets[i] for i in places], tokenizer)
        with timed("scoring", batch.num_padded_tokens, device):
            loss, nll = criterion(batch.to(device))
        loss_sum, nll_sum = loss_sum + float(loss), nll_sum + float(nll)
        num_tokens += batch.num_labels
    loss_sum, nll_sum, num_tokens = processes.all_reduce_sum(loss_sum, nll_sum, num_tokens)
    nll = nll_sum / num_tokens
    return {"loss": loss_sum / num_tokens, "nll": nll, "perplexity": math.exp(min(nll, 700))}
