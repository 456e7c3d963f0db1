"""Rules of a beam search, compared with exhaustive search in a language of two words."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from test_search import EOS, UNPRUNED, all_hypotheses, penalty_of, random_language, search_all
from torch import Tensor
from trained import LINES, own_translator, trained_model

from seq2seq.decoding import search as search_module
from seq2seq.decoding.engine import Source
from seq2seq.decoding.rules import (
    MinLength,
    NoRepeatNgram,
    Prefix,
    RequiredTerms,
    Sampler,
    Sampling,
    TokenTexts,
)
from seq2seq.decoding.search import Finished, Rule
from seq2seq.decoding.terms import Term
from seq2seq.decoding.torch_engine import EnsembleDecoder

A, B = 2, 3
TEXTS = TokenTexts([b"", b"", b" a", b" b"])
PENALTY = penalty_of(0.6, "wu")
NUM_SENTENCES = 3


def search(
    rules: Sequence[Rule],
    *,
    beam: int = UNPRUNED,
    sentences: Sequence[int] = range(NUM_SENTENCES),
    max_len: int = 5,
    **options: Any,
) -> list[list[Finished]]:
    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return random_language(sentences[sentence], prefix)

    max_lens = [max_len] * len(sentences)
    return search_all(table, max_lens, beam=beam, penalty=PENALTY, rules=rules, **options)


@dataclass(frozen=True)
class Option:
    """A rule, and a predicate of the token sequences that it allows."""

    rule: Callable[[], Rule]
    allows: Callable[[list[int]], bool]


def text(tokens: list[int]) -> str:
    return TEXTS.join(tokens)


def has_no_repeated(n: int, tokens: list[int]) -> bool:
    ngrams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(ngrams) == len(set(ngrams))


def required(*texts: str) -> RequiredTerms:
    ids = {"a": A, "b": B}
    terms = [Term(text, tokens=tuple(ids[word] for word in text.split())) for text in texts]
    return RequiredTerms([terms] * NUM_SENTENCES, TEXTS, EOS)


OPTIONS = {
    "min_length": Option(lambda: MinLength(3, EOS), lambda tokens: len(tokens) >= 3),
    "bigrams": Option(lambda: NoRepeatNgram(2), lambda tokens: has_no_repeated(2, tokens)),
    "unigrams": Option(lambda: NoRepeatNgram(1), lambda tokens: has_no_repeated(1, tokens)),
    "prefix": Option(lambda: Prefix([[B, A]] * NUM_SENTENCES), lambda tokens: tokens[:2] == [B, A]),
    "required word": Option(lambda: required("b"), lambda tokens: B in tokens),
    "required phrase": Option(lambda: required("a a b"), lambda t: "a a b" in text(t)),
    "required words": Option(
        lambda: required("b", "a b"), lambda tokens: B in tokens and "a b" in text(tokens)
    ),
}


@pytest.mark.parametrize(
    "names", [*((name,) for name in OPTIONS), *itertools.combinations(OPTIONS, 2)], ids=" and ".join
)
def test_rules_and_pairs_of_rules_equal_exhaustive_search(names: tuple[str, ...]) -> None:
    options = [OPTIONS[name] for name in names]
    # The prefix rule applies the other rules. Their order does not matter.
    rules = [option.rule() for name, option in zip(names, options, strict=True) if name != "prefix"]
    if "prefix" in names:
        rules = [Prefix([[B, A]] * NUM_SENTENCES, rules)]
    for sentence, hypotheses in enumerate(search(rules)):
        allowed = [
            hypothesis
            for hypothesis in all_hypotheses(random_language, sentence, 5, PENALTY)
            if all(option.allows(hypothesis.tokens) for option in options)
        ]
        if not allowed:
            continue
        assert hypotheses[0].tokens == allowed[0].tokens
        assert hypotheses[0].log_prob == pytest.approx(allowed[0].log_prob, abs=1e-5)
        assert hypotheses[0].score == pytest.approx(allowed[0].score, abs=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_with_a_narrow_beam_a_rule_holds_and_results_do_not_depend_on_the_batch(
    name: str, beam: int
) -> None:
    option = OPTIONS[name]
    together = search([option.rule()], beam=beam, max_len=7)
    assert all(option.allows(h.tokens) for hypotheses in together for h in hypotheses)
    alone = [search([option.rule()], beam=beam, max_len=7, sentences=[i])[0] for i in range(3)]
    assert together == alone


def test_the_end_symbol_is_forced_if_the_rules_allow_no_token() -> None:
    for [best, *_] in search([required("a a"), NoRepeatNgram(1)], max_len=4):
        assert has_no_repeated(1, best.tokens)


def samples(seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
    results = search([Sampler(sampling, seeds)], beam=1, sentences=[0] * len(seeds))
    return [best.tokens for [best] in results]


def test_sample_frequencies_match_the_probabilities_of_the_model() -> None:
    num_samples = 4_000
    seeds = [[1, i] for i in range(num_samples)]
    counts = Counter(tuple(tokens) for tokens in samples(seeds, Sampling()))
    for hypothesis in all_hypotheses(random_language, 0, 5, PENALTY):
        if len(hypothesis.tokens) < 4:  # the end symbol is forced after four tokens
            p = math.exp(hypothesis.log_prob)
            tolerance = 4 * math.sqrt(p * (1 - p) / num_samples) + 1e-9
            frequency = counts[tuple(hypothesis.tokens)] / num_samples
            assert frequency == pytest.approx(p, abs=tolerance)


def test_a_sample_depends_on_its_seed_only() -> None:
    seeds = [[5, i] for i in range(60)]
    together = samples(seeds, Sampling(temperature=1.3))
    assert together[::-1] == samples(seeds[::-1], Sampling(temperature=1.3))
    assert together == [samples([seed], Sampling(temperature=1.3))[0] for seed in seeds]
    assert len({tuple(tokens) for tokens in together}) > 5


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(top_k=1), Sampling(top_p=1e-9)]
)
def test_sampling_from_one_token_is_greedy_search(sampling: Sampling) -> None:
    rules = [Sampler(sampling, [[i] for i in range(NUM_SENTENCES)])]
    assert search(rules, beam=1) == search([], beam=1)


def test_samples_obey_the_other_rules() -> None:
    sampler = Sampler(Sampling(), [[7, i] for i in range(3)])
    for [best, *_] in search([MinLength(2, EOS), NoRepeatNgram(1), sampler], beam=1):
        assert len(best.tokens) == 2 and has_no_repeated(1, best.tokens)


def test_nan_is_an_error_even_if_a_rule_masks_it() -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [0.5, 0.0, math.nan, 0.5]

    with pytest.raises(FloatingPointError):
        search_all(table, [5], beam=2, rules=[Prefix([[B]])])


@pytest.mark.parametrize(
    "options",
    [{"beam": 4}, {"beam": 1}, {"beam": 4, "min_length": 3, "no_repeat_ngram": 2}],
    ids=str,
)
def test_a_step_of_the_search_waits_once_for_the_device(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step copies all results to the host at once."""
    loaded = trained_model()
    engine = own_translator(loaded).engines.torch
    decoding = replace(loaded.config.decoding, **options)
    source, _ = loaded.tokenizer.translation_vocabularies
    sources = [Source(pieces) for pieces in source.encode_pieces(LINES[:20])]
    counts: Counter[str] = Counter()

    def count_calls(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, wrapper)

    count_calls(EnsembleDecoder, "step")
    count_calls(search_module, "best_continuations")
    count_calls(Tensor, "cpu")
    count_calls(Tensor, "tolist")
    assert len(engine.search(sources, decoding)) == 20
    # `tolist` reads the lengths, from main memory, before the encoder runs.
    assert counts["step"] == counts["best_continuations"] == counts["cpu"] > 10
    assert counts["tolist"] <= 1
