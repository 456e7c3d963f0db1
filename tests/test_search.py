"""Search in languages that are small enough for exhaustive search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.decoding.beams import Beams, Hypothesis, LengthPenalty
from seq2seq.decoding.ensemble import Continuations
from seq2seq.decoding.search import Best, Plan, beam_search, best_of
from seq2seq.machine.kernels import best_continuations

EOS, BOS = 0, 1


Table = Callable[[int, tuple[int, ...]], list[float]]
"""Of sentence number and prefix: the probabilities of the next token."""


class Language:
    """A decoder made of a table, which stores the tokens of each hypothesis."""

    def __init__(self, table: Table, beam: int) -> None:
        self.table, self.beam, self.device = table, beam, torch.device("cpu")
        self.sentences: list[int] = []
        self.rows: list[list[list[int]]] = []

    def start(self, numbers: Sequence[int]) -> None:
        self.sentences += numbers
        self.rows += [[[] for _ in range(self.beam)] for _ in numbers]

    def select(self, origins: Tensor) -> None:
        self.rows = [
            [list(rows[origin]) for origin in chosen]
            for rows, chosen in zip(self.rows, origins.tolist(), strict=True)
        ]

    def keep(self, slots: Sequence[int]) -> None:
        self.sentences = [self.sentences[i] for i in slots]
        self.rows = [self.rows[i] for i in slots]

    def step(self, tokens: Tensor) -> Dense:
        probs = []
        for sentence, rows, new in zip(self.sentences, self.rows, tokens.tolist(), strict=True):
            for row, token in zip(rows, new, strict=True):
                row.append(token)
            probs.append([self.table(sentence, tuple(row[1:])) for row in rows])
        return Dense(torch.tensor(probs, dtype=torch.float64).log().float())


@dataclass(frozen=True)
class Dense:
    """Continuations from the log-probabilities of all tokens, (B, W, V)."""

    log_probs: Tensor

    def all(self) -> Tensor:
        return self.log_probs

    def best(self, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]) -> Best:
        log_probs = self.log_probs.clone()
        for place in np.flatnonzero(must_end):
            log_probs[place, :, torch.arange(log_probs.shape[-1]) != eos_id] = -torch.inf
        size, _, vocab_size = log_probs.shape
        ranks = (live[:, :, None] + log_probs).view(size, -1)
        found = ranks.topk(min(count, ranks.shape[-1]))
        return found.values, found.indices // vocab_size, found.indices % vocab_size


def search_all(
    table: Table,
    max_lens: Sequence[int],
    *,
    beam: int,
    penalty: LengthPenalty,
    nbest: int = 1,
    lookahead: int | None = None,
    text_of: Callable[[list[int]], object] = tuple,
    copies: int = 1,
    bonus: Callable[[Language], Tensor] | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    """Return the results of a search in the order of the sentences."""
    language = Language(table, beam)
    beams = Beams(max_lens, beam, BOS, EOS, penalty, nbest, lookahead, text_of, copies)
    if bonus:
        options["bonus"] = lambda: bonus(language)
    found = dict(beam_search(language, beams, **options))
    return [found[number] for number in range(len(max_lens))]


@cache
def random_language(sentence: int, prefix: tuple[int, ...]) -> list[float]:
    """Four symbols: end, start (never), and two words; probabilities depend on the prefix."""
    generator = torch.Generator().manual_seed(hash((sentence, *prefix, 5)) % 2**31)
    weights = torch.rand(4, generator=generator).double() ** 2
    weights[BOS] = 0
    return (weights / weights.sum()).tolist()


def all_hypotheses(
    table: Table,
    sentence: int,
    max_len: int,
    penalty: LengthPenalty,
) -> list[Hypothesis]:
    """Every sentence of up to max_len tokens, including the end symbol, the best first."""
    found = []
    for length in range(max_len):
        for tokens in itertools.product((2, 3), repeat=length):
            path = [*tokens, EOS]
            log_prob = sum(
                math.log(table(sentence, tuple(path[:t]))[token]) for t, token in enumerate(path)
            )
            found.append(Hypothesis(list(tokens), log_prob, log_prob / penalty(length + 1)))
    return sorted(found, key=lambda h: -h.score)


@pytest.mark.parametrize(
    "penalty",
    [
        LengthPenalty(0.0),
        LengthPenalty(0.6, "wu"),
        LengthPenalty(2.0, "wu"),
        LengthPenalty(1.0, "power"),
        LengthPenalty(0.5, "power"),
    ],
    ids=lambda p: f"{p.form}-{p.alpha}",
)
def test_a_beam_that_never_prunes_finds_what_exhaustive_search_finds(
    penalty: LengthPenalty,
) -> None:
    max_lens = [5, 3, 4]
    found = search_all(random_language, max_lens, beam=64, penalty=penalty)
    for sentence, [hypothesis] in enumerate(found):
        expected = all_hypotheses(random_language, sentence, max_lens[sentence], penalty)[0]
        assert hypothesis.tokens == expected.tokens
        assert hypothesis.log_prob == pytest.approx(expected.log_prob, abs=1e-5)
        assert hypothesis.score == pytest.approx(expected.score, abs=1e-5)


def garden_path(sentence: int, prefix: tuple[int, ...]) -> list[float]:
    """The more probable first word leads to the less probable sentence."""
    return {
        (): [0.0, 0.0, 0.6, 0.4],
        (2,): [0.3, 0.0, 0.3, 0.4],
        (3,): [0.9, 0.0, 0.05, 0.05],
    }.get(prefix, [1.0, 0.0, 0.0, 0.0])


def search(table: Table, beam: int, alpha: float, max_len: int = 6) -> Hypothesis:
    [[best]] = search_all(table, [max_len], beam=beam, penalty=LengthPenalty(alpha))
    return best


def test_a_beam_search_computed_by_hand() -> None:
    # Greedy: 2 (0.6), 3 (0.4), end (1): 0.24. A beam of two also follows 3 (0.4), end (0.9): 0.36.
    best = search(garden_path, beam=2, alpha=0.0)
    assert best.tokens == [3]
    assert best.log_prob == pytest.approx(math.log(0.36), abs=1e-6)
    assert search(garden_path, beam=1, alpha=0.0).tokens == [2, 3]


def test_the_length_penalty_changes_the_order() -> None:
    # 3, end has 0.36 at length 2; 2, 3, end has 0.24 at length 3.
    # Divided by ((5 + length) / 6)^alpha the longer wins once (8/7)^alpha > ln 0.24 / ln 0.36.
    turning = math.log(math.log(0.24) / math.log(0.36)) / math.log(8 / 7)
    assert search(garden_path, beam=2, alpha=turning - 0.05).tokens == [3]
    assert search(garden_path, beam=2, alpha=turning + 0.05).tokens == [2, 3]


def test_the_search_continues_while_a_live_hypothesis_can_win() -> None:
    def patient(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        if not prefix:
            return [0.55, 0.0, 0.45, 0.0]
        return [0.0, 0.0, 1.0, 0.0] if len(prefix) < 4 else [1.0, 0.0, 0.0, 0.0]

    # At once: ln 0.55 = -0.598. Four words, for free after the first: ln 0.45 / (10/6) = -0.479.
    assert search(patient, beam=2, alpha=1.0, max_len=10).tokens == [2, 2, 2, 2]
    assert search(patient, beam=2, alpha=0.0, max_len=10).tokens == []


def test_the_search_stops_as_soon_as_nothing_can_win() -> None:
    steps = 0

    def certain(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        nonlocal steps
        steps = max(steps, len(prefix) + 1)
        return [0.9, 0.0, 0.05, 0.05]

    assert search(certain, beam=2, alpha=0.0, max_len=50).tokens == []
    assert steps == 1


def test_hypotheses_end_at_the_length_limit_with_their_end_symbol_counted() -> None:
    def endless(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [0.1, 0.0, 0.9, 0.0]

    best = search(endless, beam=2, alpha=5.0, max_len=4)
    assert best.tokens == [2, 2, 2]
    assert best.log_prob == pytest.approx(3 * math.log(0.9) + math.log(0.1), abs=1e-5)


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_sentences_of_a_batch_are_independent(beam: int) -> None:
    max_lens = [6, 2, 5, 4]
    penalty = LengthPenalty(0.6)

    def run(first: int, last: int) -> list[list[Hypothesis]]:
        def shifted(sentence: int, prefix: tuple[int, ...]) -> list[float]:
            return random_language(sentence + first, prefix)

        return search_all(shifted, max_lens[first:last], beam=beam, penalty=penalty)

    together = run(0, 4)
    alone = [run(i, i + 1)[0] for i in range(4)]
    assert together == alone


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_a_beam_of_one_is_greedy_search(alpha: float) -> None:
    max_lens = [6, 3, 5, 4, 6, 6]
    found = search_all(random_language, max_lens, beam=1, penalty=LengthPenalty(alpha))
    for sentence, [hypothesis] in enumerate(found):
        path: list[int] = []
        while len(path) < max_lens[sentence] - 1:
            probs = random_language(sentence, tuple(path))
            if (best := probs.index(max(probs))) == EOS:
                break
            path.append(best)
        assert hypothesis.tokens == path


def test_length_penalties_against_their_formulas() -> None:
    assert LengthPenalty(0.6, "wu")(7) == pytest.approx((12 / 6) ** 0.6)
    assert LengthPenalty(0.6, "power")(7) == pytest.approx(7**0.6)
    assert LengthPenalty(0.0, "wu")(9) == LengthPenalty(0.0, "power")(9) == 1.0


@pytest.mark.parametrize("where", [2, 3, EOS])
@pytest.mark.parametrize("beam", [1, 2])
def test_nan_ends_the_search_at_once(beam: int, where: int) -> None:
    steps = []

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        steps.append(len(prefix))
        probs = [0.0, 0.0, 0.5, 0.5]
        if sentence == 1 and len(prefix) == 2:
            probs[where] = math.nan
        return probs

    with pytest.raises(FloatingPointError):
        search_all(table, [9, 9], beam=beam, penalty=LengthPenalty(1.0))
    assert max(steps) == 2


@pytest.mark.parametrize("beam", [1, 2, 3])
@pytest.mark.parametrize("capacity", [1, 3, 4, 9])
def test_sentences_that_wait_are_searched_as_if_alone(beam: int, capacity: int) -> None:
    max_lens = [6, 2, 5, 4, 1, 6, 6, 3, 4, 5, 2, 6]
    sizes = [3, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1]  # more fit as the sentences get smaller
    penalty = LengthPenalty(0.6)
    plan = Plan(sizes, capacity, most=7)
    together = search_all(random_language, max_lens, beam=beam, penalty=penalty, plan=plan)
    assert together == search_all(random_language, max_lens, beam=beam, penalty=penalty)
    assert plan.room([], 0) == max(1, capacity // 3) and plan.room([0], 11) == min(6, capacity - 3)


def test_lookahead_ends_a_sentence_when_nothing_better_is_near() -> None:
    def patient(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        if not prefix:
            return [0.55, 0.0, 0.45, 0.0]
        return [0.0, 0.0, 1.0, 0.0] if len(prefix) < 4 else [1.0, 0.0, 0.0, 0.0]

    # None: ln 0.55 = -0.598. Four words, for free after the first: ln 0.45 / (10/6) = -0.479. After
    # the first word the bound is ln 0.45 / (9/6) = -0.532 with three more tokens; with two it is
    # ln 0.45 / (8/6) = -0.599.
    def found(lookahead: int | None) -> list[int]:
        penalty = LengthPenalty(1.0)
        [[best]] = search_all(patient, [10], beam=2, penalty=penalty, lookahead=lookahead)
        return best.tokens

    assert found(None) == found(4) == found(3) == [2, 2, 2, 2]
    assert found(1) == found(2) == []


@pytest.mark.parametrize("count", [1, 2, 8, 10])
@pytest.mark.parametrize("vocab_size", [5, 97, 640, 8000, 9648])
def test_the_best_continuations_are_those_of_a_sort(vocab_size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size + count)
    log_probs = torch.randn(7, 4, vocab_size, generator=generator)
    live = torch.randn(7, 4, generator=generator)
    live[0, 1:], log_probs[1, 3, 2], log_probs[2, :, 2:] = -torch.inf, torch.nan, -torch.inf
    ranks, origins, tokens = best_of(log_probs, live, count)
    whole = live[:, :, None] + log_probs
    expected = whole.flatten(1).topk(min(count, 4 * vocab_size)).values
    torch.testing.assert_close(ranks, expected, rtol=0, atol=0, equal_nan=True)
    found = whole[torch.arange(7)[:, None], origins, tokens]
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [1, 2, 8, 10])
@pytest.mark.parametrize("vocab_size", [5, 97, 512, 8000, 9648])
def test_the_kernel_finds_the_best_continuations(vocab_size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size + count)
    logits = 5 * torch.randn(7, 4, vocab_size, generator=generator)
    live = torch.randn(7, 4, generator=generator)
    live[0, 1:], logits[1, 3, 2], logits[2, :, 2:] = -torch.inf, torch.nan, -torch.inf
    never, must_end = torch.tensor([1, 4]), np.arange(7) == 3
    whole = live[:, :, None] + logits.log_softmax(dim=-1)
    whole[:, :, never] = -torch.inf
    whole[3, :, :2], whole[3, :, 3:] = -torch.inf, -torch.inf
    expected = whole.flatten(1).topk(min(count, 4 * vocab_size)).values
    expected[1] = torch.nan
    size = expected.shape[1]
    ranks = np.empty((7, size), dtype=np.float32)
    origins, tokens = (np.empty((7, size), dtype=np.int64) for _ in range(2))
    best_continuations(
        logits.numpy(), live.numpy(), never.numpy(), 2, must_end, ranks, origins, tokens
    )
    found = torch.from_numpy(ranks)
    # Below e^-87 the kernel's exponentials stay the same.
    possible = expected.isfinite() & (expected > -80)
    torch.testing.assert_close(found[possible], expected[possible], rtol=0, atol=1e-4)
    assert found[1].isnan().all() and (found[0].isfinite() == expected[0].isfinite()).all()
    ends = torch.from_numpy(tokens) == 2
    assert not ends[found == -torch.inf].any() and ends[3][found[3].isfinite()].all()
    chosen = whole[torch.arange(7)[:, None], torch.from_numpy(origins), torch.from_numpy(tokens)]
    torch.testing.assert_close(chosen[possible], expected[possible], rtol=0, atol=1e-4)


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("size", [3, 40])
def test_continuations_in_chunks_are_those_of_the_whole_distribution(
    models: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(size)
    outputs = [torch.nn.Linear(8, 1280) for _ in range(models)]
    hidden = [3 * torch.randn(size, 5, 8, generator=generator) for _ in range(models)]
    live = torch.randn(size, 5, generator=generator)
    must_end = np.arange(size) % 7 == 2
    with torch.no_grad():
        outputs[0].bias[1] = 40.0  # nearly all probability is that of a token that is none
        continuations = Continuations(hidden, outputs, torch.tensor([1, 5]))
        ranks, origins, tokens = continuations.best(live, 10, 2, must_end)
        every = [output(each).log_softmax(-1) for output, each in zip(outputs, hidden, strict=True)]
    whole = torch.stack(every).exp().mean(dim=0).log() + live[:, :, None]
    whole[:, :, [1, 5]] = -torch.inf
    for place in range(size):
        own = whole[place, :, 2] if must_end[place] else whole[place].flatten()
        expected = own.topk(min(10, len(own))).values
        torch.testing.assert_close(ranks[place, : len(expected)], expected, rtol=0, atol=1e-4)
        finite = int(ranks[place].isfinite().sum())
        assert finite == len(expected)
        chosen = zip(origins[place].tolist(), tokens[place].tolist(), strict=True)
        pairs = set([*chosen][:finite])
        assert len(pairs) == finite and (not must_end[place] or (tokens[place, :finite] == 2).all())
