"""Beam search in toy languages, compared with exhaustive search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.config import DecodingConfig
from seq2seq.decoding.engine import length_penalty
from seq2seq.decoding.search import Finished, beam_search, best_continuations

EOS, BOS = 0, 1
UNPRUNED = 64
Penalty = Callable[[int], float]

Table = Callable[[int, tuple[int, ...]], list[float]]
"""Maps sentence number and prefix to the probabilities of the next token."""


def penalty_of(alpha: float, form: Any) -> Penalty:
    return partial(length_penalty, DecodingConfig(length_penalty=alpha, penalty_form=form))


NO_PENALTY = penalty_of(0.0, "power")


class Language:
    """A decoder that looks up probabilities in a table. Stores the tokens of each hypothesis."""

    def __init__(self, table: Table, count: int, beam: int) -> None:
        self.table, self.device = table, torch.device("cpu")
        self.sentences = list(range(count))
        self.rows: list[list[list[int]]] = [[[] for _ in range(beam)] for _ in range(count)]

    def select(self, kept: NDArray[np.int64], beam_ids: NDArray[np.int64]) -> None:
        self.sentences = [self.sentences[row] for row in kept]
        self.rows = [
            [list(self.rows[row][i]) for i in ids] for row, ids in zip(kept, beam_ids, strict=True)
        ]

    def step(self, tokens: Tensor) -> Tensor:
        probs = []
        for sentence, rows, new in zip(self.sentences, self.rows, tokens.tolist(), strict=True):
            for row, token in zip(rows, new, strict=True):
                row.append(token)
            probs.append([self.table(sentence, tuple(row[1:])) for row in rows])
        return torch.tensor(probs, dtype=torch.float64).log().float()


def search_all(
    table: Table,
    max_lens: Sequence[int],
    *,
    beam: int,
    penalty: Penalty = NO_PENALTY,
    **options: Any,
) -> list[list[Finished]]:
    language = Language(table, len(max_lens), beam)
    return beam_search(
        language, max_lens, beam=beam, bos_id=BOS, eos_id=EOS, penalty=penalty, **options
    )


@cache
def random_language(sentence: int, prefix: tuple[int, ...]) -> list[float]:
    """Return random probabilities of the end symbol, the start symbol (always 0) and two words."""
    generator = torch.Generator().manual_seed(hash((sentence, *prefix, 5)) % 2**31)
    weights = torch.rand(4, generator=generator).double() ** 2
    weights[BOS] = 0
    return (weights / weights.sum()).tolist()


def all_hypotheses(table: Table, sentence: int, max_len: int, penalty: Penalty) -> list[Finished]:
    """Return all sentences of up to max_len tokens, including the end symbol, the best first."""
    hypotheses = []
    for length in range(max_len):
        for tokens in itertools.product((2, 3), repeat=length):
            path = [*tokens, EOS]
            log_prob = sum(
                math.log(table(sentence, tuple(path[:t]))[token]) for t, token in enumerate(path)
            )
            hypotheses.append(Finished(list(tokens), log_prob, log_prob / penalty(length + 1)))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


@pytest.mark.parametrize(
    "penalty",
    [
        NO_PENALTY,
        penalty_of(0.6, "wu"),
        penalty_of(2.0, "wu"),
        penalty_of(1.0, "power"),
        penalty_of(0.5, "power"),
    ],
    ids=["none", "wu-0.6", "wu-2", "power-1", "power-0.5"],
)
def test_a_beam_without_pruning_equals_exhaustive_search(penalty: Penalty) -> None:
    """Compare all hypotheses, their order and their scores."""
    max_lens = [5, 3, 4]
    results = search_all(random_language, max_lens, beam=UNPRUNED, penalty=penalty)
    for sentence, hypotheses in enumerate(results):
        expected = all_hypotheses(random_language, sentence, max_lens[sentence], penalty)
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        for name in ("log_prob", "score"):
            values = [getattr(h, name) for h in expected]
            assert [getattr(h, name) for h in hypotheses] == pytest.approx(values, abs=1e-5)


def garden_path(sentence: int, prefix: tuple[int, ...]) -> list[float]:
    """Return probabilities for which greedy search misses the most probable sentence."""
    return {(): [0.0, 0.0, 0.6, 0.4], (2,): [0.3, 0.0, 0.3, 0.4], (3,): [0.9, 0.0, 0.05, 0.05]}.get(
        prefix, [1.0, 0.0, 0.0, 0.0]
    )


def test_beam_search_against_a_result_computed_by_hand() -> None:
    # Greedy: 2 (0.6), 3 (0.4), end (1): 0.24. A beam of two also follows 3 (0.4), end (0.9): 0.36.
    [[best, *_]] = search_all(garden_path, [6], beam=2)
    assert best.tokens == [3] and best.log_prob == pytest.approx(math.log(0.36), abs=1e-6)
    [[greedy]] = search_all(garden_path, [6], beam=1)
    assert greedy.tokens == [2, 3]


@pytest.mark.parametrize(
    ("beam", "patience", "nbest", "count"),
    [
        (2, 0.5, 1, 1),
        (2, 1.0, 1, 3),
        (2, 1.5, 1, 3),
        (2, 1.75, 1, 5),  # 3.5, rounded up
        (2, 2.0, 1, 5),
        (2, 1.0, 3, 3),
        (2, 1.0, 4, 5),
        (1, 2.0, 1, 1),
    ],
)
def test_a_sentence_is_done_once_beam_times_patience_hypotheses_are_finished(
    beam: int, patience: float, nbest: int, count: int
) -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [0.6, 0.0, 0.25, 0.15] if prefix == (3,) else [0.6, 0.0, 0.22, 0.18]

    # With a beam of two; end symbols among the two best continuations of a step are in brackets:
    # [0.6], 2: 0.22, 3: 0.18; [2: 0.132], [3: 0.108], 2 2: 0.0484, 3 2: 0.045;
    # [2 2: 0.02904], [3 2: 0.027].
    finished = [([], 0.6), ([2], 0.132), ([3], 0.108), ([2, 2], 0.02904), ([3, 2], 0.027)]
    [hypotheses] = search_all(table, [50], beam=beam, patience=patience, nbest=nbest)
    assert [h.tokens for h in hypotheses] == [tokens for tokens, _ in finished[:count]]
    log_probs = [math.log(probability) for _, probability in finished[:count]]
    assert [h.log_prob for h in hypotheses] == pytest.approx(log_probs, abs=1e-5)


def test_an_end_symbol_outside_the_beam_does_not_finish_a_hypothesis() -> None:
    """The end symbol is the third best continuation, with a beam of two."""

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [1.0, 0.0, 0.0, 0.0] if prefix else [0.2, 0.0, 0.5, 0.3]

    [hypotheses] = search_all(table, [5], beam=2, patience=9.0)
    assert [h.tokens for h in hypotheses] == [[2], [3]]


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_sentences_of_a_batch_are_independent(beam: int) -> None:
    max_lens = [6, 2, 5, 4]
    penalty = penalty_of(0.6, "wu")

    def run(first: int, last: int) -> list[list[Finished]]:
        def shifted(sentence: int, prefix: tuple[int, ...]) -> list[float]:
            return random_language(sentence + first, prefix)

        return search_all(shifted, max_lens[first:last], beam=beam, penalty=penalty)

    together = run(0, 4)
    alone = [run(i, i + 1)[0] for i in range(4)]
    assert together == alone


def test_length_penalties_against_their_formulas() -> None:
    assert penalty_of(0.6, "wu")(7) == pytest.approx((12 / 6) ** 0.6)
    assert penalty_of(0.6, "power")(7) == pytest.approx(7**0.6)
    assert penalty_of(0.0, "wu")(9) == penalty_of(0.0, "power")(9) == 1.0


@pytest.mark.parametrize("where", [2, 3, EOS])
@pytest.mark.parametrize("beam", [1, 2])
def test_nan_stops_the_search_at_once(beam: int, where: int) -> None:
    steps = []

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        steps.append(len(prefix))
        probs = [0.0, 0.0, 0.5, 0.5]
        if sentence == 1 and len(prefix) == 2:
            probs[where] = math.nan
        return probs

    with pytest.raises(FloatingPointError):
        search_all(table, [9, 9], beam=beam)
    assert max(steps) == 2


@pytest.mark.parametrize("count", [1, 2, 8, 10])
@pytest.mark.parametrize("vocab_size", [5, 97, 640])
def test_best_continuations_against_a_full_sort(vocab_size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size + count)
    log_probs = torch.randn(7, 4, vocab_size, generator=generator)
    sums = torch.randn(7, 4, generator=generator)
    sums[0, 1:], log_probs[1, 3, 2], log_probs[2, :, 2:] = -torch.inf, torch.nan, -torch.inf
    values = log_probs + torch.randn(log_probs.shape, generator=generator)  # as changed by rules
    priorities, totals, beam_ids, tokens = best_continuations(sums, values, log_probs, count)
    candidates = sums[:, :, None] + values
    expected = candidates.flatten(1).sort(descending=True).values[:, : min(count, 4 * vocab_size)]
    torch.testing.assert_close(priorities, expected, rtol=0, atol=0, equal_nan=True)
    indices = torch.arange(7)[:, None], beam_ids, tokens
    torch.testing.assert_close(priorities, candidates[indices], rtol=0, atol=0, equal_nan=True)
    expected = (sums[:, :, None] + log_probs)[indices]
    torch.testing.assert_close(totals, expected, rtol=0, atol=0, equal_nan=True)
