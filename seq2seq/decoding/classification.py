"""Classification of texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from seq2seq.config import Config, with_batch_tokens
from seq2seq.data.batching import add_bos, micro_batches, pack, truncate
from seq2seq.data.store import Ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, not_a_number
from seq2seq.formats.model_directory import find_model
from seq2seq.formats.weights import load_model
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import Classifier


class TextClassifier:
    """Predicts labels with a model; the command line is a thin wrapper around this."""

    def __init__(
        self, model: Classifier, tokenizer: Tokenizer, config: Config, name: str = "the model"
    ) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.context = config.model.context
        self._max_tokens = config.training.micro_batch_tokens

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        checkpoint: str | None = None,
        batch_tokens: int | None = None,
        device: str | None = None,
    ) -> TextClassifier:
        """Load the best model of a run, or a model directory; batch_tokens: tokens per batch."""
        loaded = load_model(find_model(Path(directory), checkpoint), device)
        if not isinstance(loaded.model, Classifier):
            raise UserError(f"{directory} is not a classifier: its task is {loaded.config.task}")
        config = with_batch_tokens(loaded.config, batch_tokens)
        return cls(loaded.model, loaded.tokenizer, config, str(directory))

    def classify(self, texts: Sequence[str]) -> list[tuple[str, float] | None]:
        """Return the label and its probability for each text, or None for a blank text."""
        encoded = self.tokenizer.source.encode([text for text in texts if text.strip()])
        rows = [np.array(ids, dtype=np.int32) for ids in encoded]
        values, labels = self.log_probs(rows).max(dim=-1)
        if bool(values.isnan().any()):
            raise UserError(not_a_number(self.name))
        names = self.tokenizer.target.decode([[label] for label in labels.tolist()])
        predictions = zip(names, values.exp().tolist(), strict=True)
        return [next(predictions) if text.strip() else None for text in texts]

    def classify_lines(self, texts: Sequence[str]) -> list[str]:
        """Return `label<TAB>probability` for each text, or an empty line for a blank text."""
        return ["" if p is None else f"{p[0]}\t{p[1]:.4f}" for p in self.classify(texts)]

    @torch.inference_mode()
    def log_probs(self, texts: Sequence[Ids]) -> Tensor:
        """Return log-probabilities of the labels, (texts, labels); texts: token ids."""
        log_probs = torch.empty(len(texts), self.tokenizer.target.size)
        texts = [truncate(text, self.context - 1) for text in texts]
        rows = add_bos(texts, self.tokenizer.source)
        lens = np.array([len(row) for row in rows], dtype=np.int32)
        for indices in micro_batches(lens, max_tokens=self._max_tokens):
            batch = pack([rows[i] for i in indices])
            adapt_threads(self.model.device)
            logits = self.model.output(self.model(batch.to(self.model.device)))
            log_probs[torch.from_numpy(indices)] = logits.float().log_softmax(dim=-1).cpu()
        return log_probs
