"""Search in languages that are small enough for exhaustive search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seq2seq.decoding.search import Hypothesis, LengthPenalty, beam_search

EOS, BOS = 0, 1


class Prefixes:
    """A state that stores the tokens of each row and checks the selection of sentences."""

    def __init__(self, num_sentences: int) -> None:
        self.rows: list[list[int]] = []
        self.sentences = list(range(num_sentences))

    def select_rows(self, rows: Tensor) -> None:
        self.rows = [list(self.rows[row]) for row in rows.tolist()]

    def select_sentences(self, sentences: Tensor) -> None:
        self.sentences = [self.sentences[i] for i in sentences.tolist()]


def language(
    table: Callable[[int, tuple[int, ...]], list[float]],
) -> Callable[[Tensor, Prefixes], Tensor]:
    """Make a step from a function of sentence number and prefix to next-token probabilities."""

    def step(tokens: Tensor, state: Prefixes) -> Tensor:
        if not state.rows:
            state.rows = [[] for _ in tokens]
        for row, token in zip(state.rows, tokens.tolist(), strict=True):
            row.append(token)
        width = len(state.rows) // len(state.sentences)
        probs = [
            table(state.sentences[i // width], tuple(row[1:])) for i, row in enumerate(state.rows)
        ]
        return torch.tensor(probs, dtype=torch.float64).log().float()

    return step


def random_language(sentence: int, prefix: tuple[int, ...]) -> list[float]:
    """Four symbols: end, start (never), and two words; probabilities depend on the prefix."""
    generator = torch.Generator().manual_seed(hash((sentence, *prefix, 5)) % 2**31)
    weights = torch.rand(4, generator=generator).double() ** 2
    weights[BOS] = 0
    return (weights / weights.sum()).tolist()


def all_hypotheses(
    table: Callable[[int, tuple[int, ...]], list[float]],
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
    max_lens = torch.tensor([5, 3, 4])
    found = beam_search(
        language(random_language),
        Prefixes(3),
        beam=64,
        bos_id=BOS,
        eos_id=EOS,
        max_lens=max_lens,
        penalty=penalty,
    )
    for sentence, [hypothesis] in enumerate(found):
        expected = all_hypotheses(random_language, sentence, int(max_lens[sentence]), penalty)[0]
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


def search(
    table: Callable[[int, tuple[int, ...]], list[float]], beam: int, alpha: float, max_len: int = 6
) -> Hypothesis:
    [[best]] = beam_search(
        language(table),
        Prefixes(1),
        beam=beam,
        bos_id=BOS,
        eos_id=EOS,
        max_lens=torch.tensor([max_len]),
        penalty=LengthPenalty(alpha),
    )
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
    max_lens = torch.tensor([6, 2, 5, 4])
    penalty = LengthPenalty(0.6)

    def run(first: int, last: int) -> list[list[Hypothesis]]:
        def shifted(sentence: int, prefix: tuple[int, ...]) -> list[float]:
            return random_language(sentence + first, prefix)

        return beam_search(
            language(shifted),
            Prefixes(last - first),
            beam=beam,
            bos_id=BOS,
            eos_id=EOS,
            max_lens=max_lens[first:last],
            penalty=penalty,
        )

    together = run(0, 4)
    alone = [run(i, i + 1)[0] for i in range(4)]
    assert together == alone


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_a_beam_of_one_is_greedy_search(alpha: float) -> None:
    max_lens = torch.tensor([6, 3, 5, 4, 6, 6])
    found = beam_search(
        language(random_language),
        Prefixes(6),
        beam=1,
        bos_id=BOS,
        eos_id=EOS,
        max_lens=max_lens,
        penalty=LengthPenalty(alpha),
    )
    for sentence, [hypothesis] in enumerate(found):
        path: list[int] = []
        while len(path) < int(max_lens[sentence]) - 1:
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
        beam_search(
            language(table),
            Prefixes(2),
            beam=beam,
            bos_id=BOS,
            eos_id=EOS,
            max_lens=torch.tensor([9, 9]),
            penalty=LengthPenalty(1.0),
        )
    assert max(steps) == 2
