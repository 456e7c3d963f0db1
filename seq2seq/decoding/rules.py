"""Rules of a search: minimum length, forced prefix, n-gram blocking, terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

import numpy as np
import torch
from torch import Tensor

from seq2seq.decoding.search import Live, Rule
from seq2seq.decoding.terms import Term, is_word
from seq2seq.machine.devices import to_device


@dataclass(frozen=True)
class MinLength:
    """Forbids the end symbol before a hypothesis has `length` other tokens."""

    length: int
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with that of the end symbol at -inf."""
        if live.length > self.length:
            return values
        values = values.clone()
        values[:, :, self.eos_id] = -torch.inf
        return values


@dataclass(frozen=True)
class Prefix:
    """Makes the hypotheses of each sentence start with given tokens.

    Other rules apply after the prefix only: they may forbid what the prefix contains.
    """

    prefixes: Sequence[Sequence[int]]
    others: Sequence[Rule] = ()

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values of the other rules, or all but the prefix's next token at -inf."""
        free_values = values
        for rule in self.others:
            free_values = rule(live, free_values)
        position = live.length - 1
        forced = [
            (row, self.prefixes[sentence][position])
            for row, sentence in enumerate(live.sentences.tolist())
            if position < len(self.prefixes[sentence])
        ]
        if not forced:
            return free_values
        rows, tokens = to_device(np.array(forced), values.device).unbind(1)
        only = torch.full_like(values, -torch.inf)
        only[rows, :, tokens] = values[rows, :, tokens]
        free = torch.ones(len(values), dtype=torch.bool, device=values.device)
        free[rows] = False
        return torch.where(free[:, None, None], free_values, only)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Forbids tokens that would repeat an n-gram of the hypothesis (Paulus et al. 2017)."""

    n: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values, with -inf for each token that repeats an n-gram."""
        if live.length < self.n:
            return values
        # (B, W, positions, n)
        ngrams = np.lib.stride_tricks.sliding_window_view(live.tokens, self.n, axis=-1)
        newest = live.tokens[:, :, None, live.length - self.n + 1 :]
        row, column, position = (ngrams[..., :-1] == newest).all(axis=-1).nonzero()
        repeated = np.stack([row, column, ngrams[row, column, position, -1]])
        values = values.clone()
        values[to_device(repeated, values.device).unbind()] = -torch.inf
        return values


class TokenTexts:
    """The texts of a vocabulary's tokens; a space starts a word."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._bytes = token_bytes
        starts = (each.decode("utf-8", "ignore")[:1] for each in token_bytes)
        self.continues_word = torch.tensor([is_word(start) for start in starts])

    def join(self, tokens: Sequence[int]) -> str:
        """Return the text of several tokens, without an incomplete character at its end."""
        return b"".join(self._bytes[i] for i in tokens).decode("utf-8", "ignore")


@dataclass(frozen=True)
class Required:
    """Makes each sentence contain its terms, by dynamic beam allocation (Post and Vilar 2018).

    Besides the best continuations, those that start or continue a missing term are candidates, and
    the best of each hypothesis, with and without those that continue a word. The beam is shared
    equally between the numbers of tokens of terms that the candidates have; none ends without all
    terms.
    """

    terms: Sequence[Sequence[Term]]
    """Of each sentence, with their tokens."""
    texts: TokenTexts
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with all but W selected continuations of each sentence at -inf."""
        values = values.clone()
        for row, sentence in enumerate(live.sentences.tolist()):
            if terms := self.terms[sentence]:
                hypotheses = live.tokens[row].tolist()
                values[row] = self._select(terms, hypotheses, live.log_probs[row], values[row])
        return values

    def _select(
        self,
        terms: Sequence[Term],
        hypotheses: list[list[int]],
        log_probs: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Return a sentence's values, (W, V), with all but W selected continuations at -inf."""
        beam, vocab_size = values.shape
        candidates: set[tuple[int, int]] = set()
        for i in log_probs.isfinite().nonzero()[:, 0].tolist():
            text = self.texts.join(hypotheses[i])
            missing = [term.tokens for term in terms if not term.kept(text)]
            if missing:
                values[i, self.eos_id] = -torch.inf
            candidates.add((i, int(values[i].argmax())))
            # A term is lost if its last word continues.
            next_word = values[i].masked_fill(
                self.texts.continues_word.to(values.device), -torch.inf
            )
            candidates.add((i, int(next_word.argmax())))
            for tokens in missing:
                candidates.add((i, tokens[_started(hypotheses[i], tokens)]))
        ranks = log_probs[:, None] + values
        indices = ranks.flatten().topk(min(2 * beam, ranks.numel())).indices
        candidates |= {divmod(index, vocab_size) for index in indices.tolist()}
        banks: dict[int, list[tuple[float, int, int]]] = {}
        for i, token in candidates:
            if (rank := float(ranks[i, token])) > -torch.inf:
                path = hypotheses[i] + [token] * (token != self.eos_id)
                banks.setdefault(self._tokens_kept(terms, path), []).append((rank, i, token))
        queues = [sorted(banks[count], reverse=True) for count in sorted(banks, reverse=True)]
        in_turn = filter(None, chain.from_iterable(zip_longest(*queues)))
        selected = torch.full_like(values, -torch.inf)
        for _, i, token in islice(in_turn, beam):
            selected[i, token] = values[i, token]
        return selected

    def _tokens_kept(self, terms: Sequence[Term], path: list[int]) -> int:
        """Return the number of tokens of terms in a hypothesis, one unfinished term included."""
        text = self.texts.join(path)
        missing = [term.tokens for term in terms if not term.kept(text)]
        whole = sum(len(term.tokens) for term in terms if term.tokens not in missing)
        return whole + max((_started(path, tokens) for tokens in missing), default=0)


def _started(path: list[int], tokens: Sequence[int]) -> int:
    """Return how many of the first tokens of an unfinished term a hypothesis ends with."""
    counts = range(min(len(tokens) - 1, len(path)), 0, -1)
    return next((n for n in counts if path[-n:] == list(tokens[:n])), 0)
