"""Minimum Bayes risk against a case worked by hand, and in a translator."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from seq2seq import Translator
from seq2seq.config import Config, DecodingConfig
from seq2seq.config.checks import check_values
from seq2seq.decoding.mbr import TEMPERATURE, least_risk
from seq2seq.decoding.search import Hypothesis
from seq2seq.errors import UserError


def hypothesis(tokens: list[int], mean: float) -> Hypothesis:
    log_prob = mean * (len(tokens) + 1)
    return Hypothesis(tokens, log_prob, log_prob)


def test_two_that_agree_outvote_one_that_is_more_probable_up_to_the_turning_point() -> None:
    # BLEU of 5 6 7 8 against 5 6 7 9: precisions 3/4, 2/3, 1/2, and 0 of 1, smoothed to 1/2;
    # against 1 2 3 4, which shares no token, 0.
    agreement = (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    # The stranger counts for 1 with itself, the others for w and agreement * w.
    turning = TEMPERATURE * math.log(1 / (1 + agreement))
    alone = hypothesis([1, 2, 3, 4], -0.5)

    def chosen(behind: float) -> list[int]:
        pair = [hypothesis([5, 6, 7, 8], -0.5 + behind), hypothesis([5, 6, 7, 9], -0.5 + behind)]
        return least_risk([alone, *pair]).tokens

    assert chosen(turning + 0.001) == [5, 6, 7, 8]
    assert chosen(turning - 0.001) == [1, 2, 3, 4]


def test_the_mean_log_probability_counts_the_end_symbol_and_no_length() -> None:
    short, long = hypothesis([1], -0.5), hypothesis([2, 3, 4, 5, 6, 7], -0.51)
    assert least_risk([long, short]) is short
    assert least_risk([hypothesis([], -0.1)]).tokens == []


def test_a_translator_chooses_among_the_hypotheses_of_its_beam(
    make_translator: Callable[..., Translator],
) -> None:
    sources = [[7, 8, 9], [20, 5], [11, 12, 13, 14, 15]]
    plain, careful = make_translator(beam=4), make_translator(beam=4, mbr=True)
    careful.model = plain.model
    best, chosen = plain.search(sources), careful.search(sources)
    assert all(c.score <= b.score + 1e-6 for b, c in zip(best, chosen, strict=True))
    assert [c.tokens for c in chosen] != [b.tokens for b in best]
    assert make_translator(beam=1, mbr=True).translate(["the dog"])


def test_mbr_needs_a_beam() -> None:
    with pytest.raises(UserError, match=r"decoding.mbr=true needs decoding.beam"):
        check_values(Config(decoding=DecodingConfig(mbr=True, beam=1)))
