"""Text generation with a language model."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.rules import Sampling, sample_tokens
from seq2seq.errors import UserError, not_a_number
from seq2seq.formats.model_directory import find_model
from seq2seq.formats.weights import load_model
from seq2seq.machine.threads import adapt_threads
from seq2seq.model.transformer import LanguageModel, for_inference


class TextGenerator:
    """Generates text with a model; the command line is a thin wrapper around this."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, name: str = "the model") -> None:
        self.model, self.tokenizer, self.name = for_inference(model, "fp32"), tokenizer, name
        self._pieces = tokenizer.target.token_bytes

    @classmethod
    def load(
        cls, directory: str | Path, *, checkpoint: str | None = None, device: str | None = None
    ) -> TextGenerator:
        """Load the best model of a run, or a model directory."""
        loaded = load_model(find_model(Path(directory), checkpoint), device)
        if not isinstance(loaded.model, LanguageModel):
            task = loaded.config.task
            raise UserError(f"{directory} is not a language model: its task is {task}")
        return cls(loaded.model, loaded.tokenizer, str(directory))

    def generate(
        self,
        prompt: str = "",
        *,
        length: int,
        sampling: Sampling,
        seed: int,
        samples: int = 1,
    ) -> Iterator[list[str]]:
        """Yield the new text of each sample, once for each of `length` tokens.

        Incomplete UTF-8 characters are held back; after the last token they become U+FFFD. The text
        of a sample depends only on prompt, sampling, seed and sample number, up to rounding.
        """
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(samples)]
        start = torch.tensor([self._start(prompt)] * samples, device=self.model.device)
        for tokens in self._tokens(start, length, sampling, seed):
            yield [
                decoder.decode(self._pieces[token])
                for decoder, token in zip(decoders, tokens.tolist(), strict=True)
            ]
        yield [decoder.decode(b"", final=True) for decoder in decoders]

    def stream(
        self, prompt: str = "", *, length: int, sampling: Sampling, seed: int, samples: int = 1
    ) -> Iterator[str]:
        """Yield prompts and texts for a terminal. Only the first sample is yielded token by token.

        The samples are generated as one batch. A line of dashes separates them.
        """
        texts = [prompt] * samples
        parts = self.generate(prompt, length=length, sampling=sampling, seed=seed, samples=samples)
        for number, new_texts in enumerate(parts):
            yield new_texts[0] if number else prompt + new_texts[0]
            texts = [text + new for text, new in zip(texts, new_texts, strict=True)]
        yield "\n"
        for text in texts[1:]:
            yield f"{'-' * 20}\n{text}\n"

    def _start(self, prompt: str) -> list[int]:
        """Return the ids of the prompt, or of a line feed if the prompt is empty."""
        vocabulary = self.tokenizer.target
        if prompt:
            return vocabulary.encode([prompt])[0]
        try:
            return vocabulary.encode(["\n"])[0]
        except UserError:  # the training text is a single line
            return [0]

    @torch.inference_mode()
    def _tokens(
        self, history: Tensor, length: int, sampling: Sampling, seed: int
    ) -> Iterator[Tensor]:
        """Yield the next token of each sample, (R,), `length` times.

        When the key/value cache has reached the context length, it is emptied, and the last half of
        the context is recomputed.
        """
        context = self.model.config.context
        state = self.model.start()
        unread = history[:, -context:]
        for step in range(length):
            adapt_threads(unread.device)
            logits = self.model.step(unread, state)
            if bool(logits.isnan().any()):
                raise UserError(not_a_number(self.name))
            seeds = [(seed, sample, step) for sample in range(len(logits))]
            tokens = sample_tokens(sampling.restrict(logits), seeds)
            yield tokens
            unread = tokens[:, None]
            history = torch.cat([history[:, -context:], unread], dim=1)
            if state.length == context:
                state = self.model.start()
                unread = history[:, -max(1, context // 2) :]
