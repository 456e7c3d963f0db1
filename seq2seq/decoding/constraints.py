"""Terms that must or must not appear in a translation, glossaries, and their rules of a search."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from unicodedata import category

import torch
from torch import Tensor

from seq2seq.data.lines import read_file
from seq2seq.data.words import UNSPACED
from seq2seq.decoding.search import Live
from seq2seq.errors import UserError


@dataclass(frozen=True)
class Term:
    """A word or phrase that must appear in a translation, or must not."""

    text: str
    required: bool = True
    source: str = ""
    """The source side of a glossary's term."""

    @classmethod
    def parse(cls, text: str) -> Term:
        """Read a term; an exclamation mark before it means that it must not appear."""
        required = not text.startswith("!")
        term = " ".join(text.removeprefix("!").split())
        if not term:
            raise UserError(f"{text!r} is not a word or phrase")
        return cls(term, required)

    @cached_property
    def words(self) -> WholeWords:
        """Finds the term in a text."""
        return WholeWords(self.text, re.escape(self.text))

    def awaits_end(self, text: str) -> bool:
        """Return whether a text ends with the term, and the term ends unless a word continues."""
        if not is_bound(self.text[-1]):
            return False
        return any(match.end() == len(text) for match in self.words.finditer(text))

    def appears(self, before: str, after: str, *, ended: bool = False) -> bool:
        """Return whether a text contains the term, but did not yet `before`.

        At its end the term does not count, as a word may continue there, unless the text has ended.
        """
        bound = is_bound(self.text[-1])
        return any(
            match.end() > len(before) or (match.end() == len(before) and bound and not ended)
            for match in self.words.finditer(after)
            if match.end() < len(after) or ended or not bound
        )

    def kept(self, translation: str) -> bool:
        """Return whether a translation contains the term, or does not contain a forbidden one."""
        return bool(self.words.search(translation)) == self.required


class WholeWords:
    """Finds a text as whole words, in scripts with spaces between words."""

    def __init__(self, text: str, pattern: str, flags: int = 0) -> None:
        self._pattern = re.compile(pattern, flags)
        self._bounds = is_bound(text[0]), is_bound(text[-1])

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yield all matches that do not overlap."""
        position = 0
        while match := self._pattern.search(text, position):
            start, end = match.span()
            around = text[start - 1 : start] if start else "", text[end : end + 1]
            inside = [bound and is_word(c) for bound, c in zip(self._bounds, around, strict=True)]
            position = start + 1 if any(inside) else end
            if not any(inside):
                yield match

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match."""
        return next(self.finditer(text), None)


def source_words(source: str) -> WholeWords:
    """Return what finds the source side of a term; in lower case it matches any case.

    Its words may be separated by any white space.
    """
    pattern = r"\s+".join(re.escape(word) for word in source.split())
    return WholeWords(source, pattern, re.IGNORECASE if source == source.lower() else 0)


def is_word(character: str) -> bool:
    r"""Return whether a character is a part of words: \w, or a mark such as an accent."""
    return bool(re.match(r"\w", character)) or (
        character != "" and category(character) in ("Mn", "Mc")
    )


def is_bound(letter: str) -> bool:
    """Return whether a word that starts or ends with a letter has to start or end there."""
    return is_word(letter) and not UNSPACED.match(letter)


def contradiction(terms: Sequence[Term]) -> str | None:
    """Return why no translation can keep all terms; None if nothing shows that."""
    for required in (term for term in terms if term.required):
        for term in terms:
            if not term.required and term.words.search(required.text):
                return f"{required.text!r} must appear, but {term.text!r} must not"
    return None


class Glossary:
    """Terms that apply to the lines in which their source side occurs.

    A source side in lower case matches any case, others match exactly. Where source sides overlap,
    the longest applies.
    """

    def __init__(self, entries: Iterable[tuple[str, Term]]) -> None:
        self._terms: dict[str, list[Term]] = {}
        for source, target in entries:
            term = replace(target, source=source)
            known = self._terms.setdefault(source, [])
            if term.required and any(other.required and other != term for other in known):
                raise UserError(f"{source!r} has two translations in the glossary; leave one out")
            known.append(term)
            if problem := contradiction(known):
                raise UserError(f"the glossary's terms for {source!r} contradict: {problem}")
        longest_first = sorted(self._terms, key=len, reverse=True)
        self._sources = [(source, source_words(source)) for source in longest_first]

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Read a file of `source<TAB>target` lines; `!target` must not appear."""
        path, entries = Path(path), []
        for number, line in enumerate(read_file(path), start=1):
            if not line.strip():
                continue
            source, tab, target = line.partition("\t")
            source = " ".join(source.split())
            if not tab or not source or not target.removeprefix("!").strip() or "\t" in target:
                raise UserError(f"{path}, line {number}: {line!r} is not source<TAB>target")
            entries.append((source, Term.parse(target.strip())))
        try:
            return cls(entries)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def terms(self, text: str) -> list[Term]:
        """Return the terms that apply to a source text."""
        found: list[Term] = []
        taken: list[tuple[int, int]] = []
        for source, words in self._sources:
            spans = [match.span() for match in words.finditer(text)]
            free = [
                s for s in spans if not any(s[0] < end and begin < s[1] for begin, end in taken)
            ]
            if free:
                found += self._terms[source]
                taken += free
        return found


class TokenTexts:
    """The texts of a vocabulary's tokens; a space starts a word."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._bytes = list(token_bytes)
        self.texts = [each.decode("utf-8", "ignore") for each in self._bytes]
        continues = [is_word(text[:1]) for text in self.texts]
        self.continues_word = torch.tensor(continues)
        self.ending_word = [i for i, text in enumerate(self.texts) if text and not continues[i]]
        """Tokens that end a word before them."""
        self.incomplete = {i for i, text in enumerate(self.texts) if self._bytes[i] and not text}
        """Tokens that are a part of a character."""
        self._sorted = sorted(range(len(self.texts)), key=lambda i: self.texts[i])
        self._keys = [self.texts[i] for i in self._sorted]
        self.containing = cache(self._containing)

    def join(self, tokens: Sequence[int]) -> str:
        """Return the text of several tokens, without an incomplete character at its end."""
        return b"".join(self._bytes[i] for i in tokens).decode("utf-8", "ignore")

    def starting_with(self, prefix: str) -> list[int]:
        """Return the tokens whose text starts with a prefix."""
        first, end = (bisect_left(self._keys, key) for key in (prefix, f"{prefix}\U0010ffff"))
        return self._sorted[first:end]

    def _containing(self, part: str) -> list[int]:
        """Return the tokens whose text contains a part."""
        return [i for i, text in enumerate(self.texts) if part in text]


@dataclass(frozen=True)
class Forbidden:
    """Forbids tokens with which a term appears.

    Whether it is a whole word only the next character shows: `Mittel` may become `Mittelwert`. A
    search that has alternatives waits for that character, and forbids the end of the word; another
    one would be stuck with a word that it has to continue, and forbids the term at once.
    """

    terms: Sequence[Sequence[tuple[Term, bool]]]
    """Of each sentence, with whether to wait."""
    texts: TokenTexts
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with those of completing tokens at -inf."""
        values = values.clone()
        for row, sentence in enumerate(live.sentences):
            if not self.terms[sentence]:
                continue
            for column, tokens in enumerate(live.tokens[row].tolist()):
                for term, wait in self.terms[sentence]:
                    values[row, column, self.completing(tokens, term, wait=wait)] = -torch.inf
        return values

    def completing(self, tokens: Sequence[int], term: Term, *, wait: bool) -> list[int]:
        """Return the tokens with which a term appears after other tokens."""
        tail = list(tokens[-4 * len(term.text) - 8 :])  # a token may be one byte
        text, whole = self.texts.join(tail), term.text
        candidates = set(self.texts.containing(whole))
        if tail and tail[-1] in self.texts.incomplete:
            candidates |= self.texts.incomplete
        for count in range(1, len(whole)):
            if text.endswith(whole[:count]):
                candidates.update(self.texts.starting_with(whole[count:]))
        found = [
            i for i in candidates if term.appears(text, self.texts.join([*tail, i]), ended=not wait)
        ]
        if term.awaits_end(text):
            return [*found, *self.texts.ending_word, self.eos_id]
        return found


@dataclass(frozen=True)
class Required:
    """Makes each sentence contain its terms, by dynamic beam allocation (Post and Vilar 2018).

    Besides the best continuations, those that start or continue a missing term are candidates, and
    the best of each hypothesis, with and without those that continue a word. The beam is shared
    equally between the numbers of tokens of terms that the candidates have; none ends without all
    terms.
    """

    terms: Sequence[Sequence[tuple[Term, Sequence[int]]]]
    """Of each sentence, with their tokens."""
    texts: TokenTexts
    eos_id: int

    def __call__(self, live: Live, values: Tensor) -> Tensor:
        """Return the values with all but W selected continuations of each sentence at -inf."""
        values = values.clone()
        for row, sentence in enumerate(live.sentences):
            if terms := self.terms[sentence]:
                hypotheses = live.tokens[row].tolist()
                values[row] = self._select(terms, hypotheses, live.log_probs[row], values[row])
        return values

    def _select(
        self,
        terms: Sequence[tuple[Term, Sequence[int]]],
        hypotheses: list[list[int]],
        log_probs: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Return a sentence's values, (W, V), with all but W selected continuations at -inf."""
        beam, vocab_size = values.shape
        candidates: set[tuple[int, int]] = set()
        for i in log_probs.isfinite().nonzero()[:, 0].tolist():
            text = self.texts.join(hypotheses[i])
            missing = [tokens for term, tokens in terms if not term.kept(text)]
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
        queues = [sorted(banks[count]) for count in sorted(banks, reverse=True)]
        selected = torch.full_like(values, -torch.inf)
        left = beam
        while left and any(queues):
            for queue in queues:
                if left and queue:
                    _, i, token = queue.pop()
                    selected[i, token] = values[i, token]
                    left -= 1
        return selected

    def _tokens_kept(self, terms: Sequence[tuple[Term, Sequence[int]]], path: list[int]) -> int:
        """Return the number of tokens of terms in a hypothesis, one unfinished term included."""
        text = self.texts.join(path)
        missing = [tokens for term, tokens in terms if not term.kept(text)]
        whole = sum(len(tokens) for term, tokens in terms if tokens not in missing)
        return whole + max((_started(path, tokens) for tokens in missing), default=0)


def _started(path: list[int], tokens: Sequence[int]) -> int:
    """Return how many of the first tokens of an unfinished term a hypothesis ends with."""
    counts = range(min(len(tokens) - 1, len(path)), 0, -1)
    return next((n for n in counts if path[-n:] == list(tokens[:n])), 0)
