"""Rules of a beam search: minimum length, forced prefix, n-gram blocking, terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

import numpy as np
import torch
from torch import Tensor

from seq2seq.decoding.search import BeamState, Rule
from seq2seq.decoding.terms import Term, is_word
from seq2seq.machine.devices import to_device


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
        self,
        terms: Sequence[Term],
        hypotheses: list[list[int]],
        log_probs: Tensor,
        values: Tensor,
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
