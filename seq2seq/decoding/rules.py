"""Rules of a search: minimum length, forced prefix, n-gram blocking, terms, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

import numpy as np
import torch
import xxhash
from torch import Tensor

from seq2seq.config import DecodingConfig, from_tree
from seq2seq.decoding.search import BeamState, Rule
from seq2seq.decoding.terms import Term, is_word
from seq2seq.machine.devices import to_device

MIN_TEMPERATURE = 1e-6
"""Lower temperatures select the most probable token: divided by them, logits would overflow."""


@dataclass(frozen=True)
class MinLength:
    """Forbids the end symbol before a hypothesis has `length` other tokens."""

    length: int
    eos_id: int

    def __call__(self, state: BeamState, values: Tensor) -> Tensor:
        if state.length > self.length:
            return values
        values = values.clone()
        values[:, :, self.eos_id] = -torch.inf
        return values


@dataclass(frozen=True)
class Prefix:
    """Makes the hypotheses of a sentence start with its prefix.

    The other rules apply after the prefix only: they might forbid tokens of the prefix.
    """

    prefixes: Sequence[Sequence[int]]
    """Token ids, by sentence."""
    other_rules: Sequence[Rule] = ()

    def __call__(self, state: BeamState, values: Tensor) -> Tensor:
        restricted = values
        for rule in self.other_rules:
            restricted = rule(state, restricted)
        position = state.length - 1
        forced = [
            (row, self.prefixes[sentence][position])
            for row, sentence in enumerate(state.sentences.tolist())
            if position < len(self.prefixes[sentence])
        ]
        if not forced:
            return restricted
        rows, tokens = to_device(np.array(forced), values.device).unbind(1)
        restricted = restricted.clone()
        restricted[rows] = -torch.inf
        restricted[rows, :, tokens] = values[rows, :, tokens]
        return restricted


@dataclass(frozen=True)
class NoRepeatNgram:
    """Forbids tokens that would repeat an n-gram of the hypothesis (Paulus et al. 2017)."""

    n: int

    def __call__(self, state: BeamState, values: Tensor) -> Tensor:
        if state.length < self.n:
            return values
        # (B, W, positions, n)
        ngrams = np.lib.stride_tricks.sliding_window_view(state.tokens, self.n, axis=-1)
        last = state.tokens[:, :, None, state.length - self.n + 1 :]
        row, column, position = (ngrams[..., :-1] == last).all(axis=-1).nonzero()
        banned_ids = np.stack([row, column, ngrams[row, column, position, -1]])
        values = values.clone()
        values[to_device(banned_ids, values.device).unbind()] = -torch.inf
        return values


class TokenTexts:
    """Texts of the tokens of a vocabulary. A leading space marks the start of a word."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._bytes = token_bytes
        first = (text.decode("utf-8", "ignore")[:1] for text in token_bytes)
        self.continues_word = torch.tensor([is_word(character) for character in first])

    def join(self, tokens: Sequence[int]) -> str:
        """Return the text of a token sequence. An incomplete character at the end is dropped."""
        return b"".join(self._bytes[i] for i in tokens).decode("utf-8", "ignore")


@dataclass(frozen=True)
class RequiredTerms:
    """Makes hypotheses contain the terms of their sentence, by dynamic beam allocation.

    Candidates are the best continuations of a sentence and, for each hypothesis, the best token,
    the best token that starts a word, and the next token of each missing term. The beam is divided
    equally among banks of candidates with equal numbers of term tokens (Post and Vilar 2018). A
    hypothesis with a missing term cannot end.
    """

    terms: Sequence[Sequence[Term]]
    """Terms with their token ids, by sentence."""
    texts: TokenTexts
    eos_id: int

    def __call__(self, state: BeamState, values: Tensor) -> Tensor:
        values = values.clone()
        for row, sentence in enumerate(state.sentences.tolist()):
            if terms := self.terms[sentence]:
                hypotheses = state.tokens[row].tolist()
                values[row] = self._select(terms, hypotheses, state.totals[row], values[row])
        return values

    def _select(
        self, terms: Sequence[Term], hypotheses: list[list[int]], log_probs: Tensor, values: Tensor
    ) -> Tensor:
        """Return the values of a sentence, (W, V), with all but W continuations at -inf."""
        beam, vocab_size = values.shape
        candidates: set[tuple[int, int]] = set()
        for i in log_probs.isfinite().nonzero()[:, 0].tolist():
            text = self.texts.join(hypotheses[i])
            missing = [term.tokens for term in terms if not term.kept(text)]
            if missing:
                values[i, self.eos_id] = -torch.inf
            candidates.add((i, int(values[i].argmax())))
            # Continuing the last word of a term would lose the term.
            next_word = values[i].masked_fill(
                self.texts.continues_word.to(values.device), -torch.inf
            )
            candidates.add((i, int(next_word.argmax())))
            for tokens in missing:
                candidates.add((i, tokens[_overlap(hypotheses[i], tokens)]))
        priorities = log_probs[:, None] + values
        indices = priorities.flatten().topk(min(2 * beam, priorities.numel())).indices
        candidates |= {divmod(index, vocab_size) for index in indices.tolist()}
        banks: dict[int, list[tuple[float, int, int]]] = {}
        for i, token in candidates:
            if (value := float(priorities[i, token])) > -torch.inf:
                path = hypotheses[i] + [token] * (token != self.eos_id)
                banks.setdefault(self._num_term_tokens(terms, path), []).append((value, i, token))
        queues = [sorted(banks[count], reverse=True) for count in sorted(banks, reverse=True)]
        round_robin = filter(None, chain.from_iterable(zip_longest(*queues)))
        selected = torch.full_like(values, -torch.inf)
        for _, i, token in islice(round_robin, beam):
            selected[i, token] = values[i, token]
        return selected

    def _num_term_tokens(self, terms: Sequence[Term], path: list[int]) -> int:
        """Return the number of term tokens in a hypothesis, including one unfinished term."""
        text = self.texts.join(path)
        missing = [term.tokens for term in terms if not term.kept(text)]
        complete = sum(len(term.tokens) for term in terms if term.tokens not in missing)
        return complete + max((_overlap(path, tokens) for tokens in missing), default=0)


def _overlap(path: list[int], tokens: Sequence[int]) -> int:
    """Return the length of the longest proper prefix of `tokens` at the end of `path`."""
    counts = range(min(len(tokens) - 1, len(path)), 0, -1)
    return next((n for n in counts if path[-n:] == list(tokens[:n])), 0)


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling."""

    temperature: float = 1.0
    """Divisor of the logits; 0 selects the most probable token."""
    top_k: int | None = None
    """Sample only from the K most probable tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of most probable tokens with this total probability
    (nucleus sampling, Holtzman et al. 2020)."""

    def __post_init__(self) -> None:
        from_tree(DecodingConfig(), vars(self), "options", "decoding")  # checks the values

    def restrict(self, logits: Tensor) -> Tensor:
        """Return logits, (R, V), divided by the temperature, with excluded tokens at -inf."""
        if self.temperature < MIN_TEMPERATURE:
            best = logits.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
        logits = logits / self.temperature
        if self.top_p is not None:
            ordered, order = logits.sort(dim=-1, descending=True)
            probs = ordered.softmax(dim=-1)
            excluded = probs.cumsum(dim=-1) - probs >= self.top_p
            excluded[:, 0] = False  # at least one token, despite rounding
            logits = logits.masked_fill(excluded.scatter(-1, order, excluded), -torch.inf)
        if self.top_k is not None:
            values, tokens = logits.topk(min(self.top_k, logits.shape[-1]))
            logits = torch.full_like(logits, -torch.inf).scatter_(-1, tokens, values)
        return logits


def sample_tokens(logits: Tensor, seeds: Sequence[Sequence[int]]) -> Tensor:
    """Sample a token for each row of logits, (R, V), from their softmax distribution.

    seeds: random seed of each row, a sequence of integers. The token is the argmax of the logits
    plus Gumbel noise (Gumbel 1954). Equal seeds and logits give equal tokens. Rounding of the
    logits changes a token only if the two highest sums are that close.
    """
    return (logits + gumbel_noise(seeds, logits.shape[-1], logits.device)).argmax(dim=-1)


def gumbel_noise(seeds: Sequence[Sequence[int]], size: int, device: torch.device) -> Tensor:
    """Return standard Gumbel noise, (R, size), determined by the seed of each row."""
    noise = torch.empty(len(seeds), size)
    for row, seed in zip(noise, seeds, strict=True):
        key = xxhash.xxh3_64_intdigest(repr(tuple(seed)).encode())
        row.exponential_(generator=torch.Generator().manual_seed(key))
    return noise.to(device, non_blocking=True).log_().neg_()


@dataclass(frozen=True)
class Sampler:
    """Samples the next token of each hypothesis. The beam width must be 1.

    Samples do not depend on the batch: each sentence has its own random seed.
    """

    sampling: Sampling
    seeds: Sequence[Sequence[int]]
    """Random seeds, by sentence."""

    def __call__(self, state: BeamState, values: Tensor) -> Tensor:
        seeds = [(*self.seeds[sentence], state.length) for sentence in state.sentences.tolist()]
        tokens = sample_tokens(self.sampling.restrict(values[:, 0]), seeds)[:, None, None]
        masked = torch.full_like(values, -torch.inf)
        return masked.scatter_(2, tokens, values.gather(2, tokens))
