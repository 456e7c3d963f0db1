"""A language model that continues a text."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from seq2seq.config.saved import find_model
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.sampling import Draws, Sampling
from seq2seq.errors import UserError, not_a_number
from seq2seq.machine.threads import timed
from seq2seq.model.directory import load_model
from seq2seq.model.language_model import LanguageModel

SEPARATOR = "-" * 20
"""The line between two samples."""


class TextGenerator:
    """Writes text with a model; the command line is a thin wrapper around this."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, name: str = "the model") -> None:
        """name: for errors."""
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self._pieces = tokenizer.target.token_bytes()

    @classmethod
    def load(
        cls, directory: str | Path, *, checkpoint: str | None = None, device: str | None = None
    ) -> TextGenerator:
        """Load a run's best model, or a model directory."""
        loaded = load_model(find_model(Path(directory), checkpoint), device)
        if not isinstance(loaded.model, LanguageModel):
            raise UserError(f"{directory} is no language model: its task is {loaded.config.task}")
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
        """Yield, after each of `length` tokens, the text that each sample has gained.

        A character comes when it is whole; the last yield has what is left of others. A sample's
        text depends on prompt, sampling and seed, and on its own number alone, but for rounding.
        """
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(samples)]
        draws = Draws(seed, samples)
        start = torch.tensor([self._start(prompt)] * samples, device=self.model.device)
        for tokens in self._tokens(start, length, sampling, draws):
            yield [
                decoder.decode(self._pieces[token])
                for decoder, token in zip(decoders, tokens.tolist(), strict=True)
            ]
        yield [decoder.decode(b"", final=True) for decoder in decoders]

    def stream(
        self, prompt: str = "", *, length: int, sampling: Sampling, seed: int, samples: int = 1
    ) -> Iterator[str]:
        """Yield the texts, prompts and all, for a terminal: the first as it is written.

        All are written at once, since that takes hardly longer than one; a line stands between.
        """
        texts = [prompt] * samples
        parts = self.generate(prompt, length=length, sampling=sampling, seed=seed, samples=samples)
        for number, news in enumerate(parts):
            yield news[0] if number else prompt + news[0]
            texts = [text + new for text, new in zip(texts, news, strict=True)]
        yield "\n"
        for text in texts[1:]:
            yield f"{SEPARATOR}\n{text}\n"

    def _start(self, prompt: str) -> list[int]:
        """Return the prompt's ids; without one, the text begins as if after a line's end."""
        vocabulary = self.tokenizer.target
        if prompt:
            if not isinstance(vocabulary, Alphabet) and any(
                "\ud800" <= c < "\ue000" for c in prompt
            ):
                raise UserError("the prompt is not UTF-8: only a model of bytes could read it")
            return vocabulary.encode([prompt])[0]
        try:
            return vocabulary.encode(["\n"])[0]
        except UserError:  # a text of one line
            return [0]

    @torch.inference_mode()
    def _tokens(
        self, history: Tensor, length: int, sampling: Sampling, draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the next token of every sample, (R,), `length` times.

        The model reads each token once and remembers it. When its context is full, the last half of
        it is read anew, and what came before is forgotten.
        """
        context = self.model.config.context
        caches = self.model.start()
        unread = history[:, -context:]
        for _ in range(length):
            with timed("generation", unread.numel(), unread.device):
                logits = self.model.step(unread, caches)
            if bool(logits.isnan().any()):
                raise UserError(not_a_number(self.name))
            tokens = draws.draw(sampling.probabilities(logits))
            yield tokens
            unread = tokens[:, None]
            history = torch.cat([history[:, -context:], unread], dim=1)
            if caches[0].length == context:
                caches = self.model.start()
                unread = history[:, -max(1, context // 2) :]
