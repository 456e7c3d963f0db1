"""Rules of a search, against exhaustive search in a language of two words."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import test_search
import torch
from test_search import EOS, Language, Table, all_hypotheses, random_language, search_all
from torch import Tensor

from seq2seq.decoding import search as search_module
from seq2seq.decoding.beams import FREE, Hypothesis, LengthPenalty
from seq2seq.decoding.constraints import Forbidden, Required, Term, TokenTexts
from seq2seq.decoding.sampling import Sampler, Sampling
from seq2seq.decoding.search import (
    DiverseGroups,
    Live,
    MinLength,
    NoRepeatNgram,
    Plan,
    Prefix,
    Rule,
)

A, B = 2, 3
TEXTS = TokenTexts([b"", b"", b" a", b" b"])
PENALTY = LengthPenalty(0.6)
NUM_SENTENCES = 3
UNPRUNED = 64


def search(
    rules: Sequence[Rule],
    *,
    beam: int = UNPRUNED,
    nbest: int = 1,
    sentences: Sequence[int] = range(NUM_SENTENCES),
    max_len: int = 5,
    bonus: Callable[[Language], Tensor] | None = None,
    plan: Plan | None = None,
) -> list[list[Hypothesis]]:

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return random_language(sentences[sentence], prefix)

    return search_all(
        table,
        [max_len] * len(sentences),
        beam=beam,
        penalty=PENALTY,
        nbest=nbest,
        rules=rules,
        bonus=bonus,
        plan=plan,
    )


@dataclass(frozen=True)
class Option:
    """A rule, and which token sequences it allows."""

    rule: Callable[[], Rule]
    allows: Callable[[list[int]], bool]


def text(tokens: list[int]) -> str:
    return TEXTS.join(tokens)


def has_no_repeated(n: int, tokens: list[int]) -> bool:
    ngrams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(ngrams) == len(set(ngrams))


def required(*terms: str) -> Required:
    ids = {"a": A, "b": B}
    pairs = [(Term(term), [ids[word] for word in term.split()]) for term in terms]
    return Required([pairs] * NUM_SENTENCES, TEXTS, EOS)


def forbidden(*terms: str, wait: bool = False) -> Forbidden:
    own = [(Term(term, required=False), wait) for term in terms]
    return Forbidden([own] * NUM_SENTENCES, TEXTS, EOS)


WAITING = "forbidden word, waiting for its end"
OPTIONS = {
    "min_length": Option(lambda: MinLength(3, EOS), lambda tokens: len(tokens) >= 3),
    "bigrams": Option(lambda: NoRepeatNgram(2), lambda tokens: has_no_repeated(2, tokens)),
    "unigrams": Option(lambda: NoRepeatNgram(1), lambda tokens: has_no_repeated(1, tokens)),
    "prefix": Option(
        lambda: Prefix([[B, A]] * NUM_SENTENCES), lambda tokens: tokens[:2] == [B, A]
    ),
    "forbidden word": Option(lambda: forbidden("a"), lambda tokens: A not in tokens),
    "forbidden phrase": Option(lambda: forbidden("b a"), lambda tokens: "b a" not in text(tokens)),
    WAITING: Option(lambda: forbidden("a", wait=True), lambda tokens: A not in tokens),
    "required word": Option(lambda: required("b"), lambda tokens: B in tokens),
    "required phrase": Option(lambda: required("a a b"), lambda t: "a a b" in text(t)),
    "required words": Option(
        lambda: required("b", "a b"), lambda tokens: B in tokens and "a b" in text(tokens)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [*((name,) for name in OPTIONS), *itertools.combinations(OPTIONS, 2)],
    ids=" and ".join,
)
def test_rules_and_pairs_of_them_find_what_exhaustive_search_finds(names: tuple[str, ...]) -> None:
    options = [OPTIONS[name] for name in names]
    # A prefix comes before the other rules, which apply after it; the others in any order.
    others = [
        option.rule() for name, option in zip(names, options, strict=True) if name != "prefix"
    ]
    rules = [Prefix([[B, A]] * NUM_SENTENCES, others)] if "prefix" in names else others
    found = search(rules)
    for sentence, hypotheses in enumerate(found):
        allowed = [
            each
            for each in all_hypotheses(random_language, sentence, 5, PENALTY)
            if all(option.allows(each.tokens) for option in options)
        ]
        if not allowed:
            continue
        assert hypotheses[0].tokens == allowed[0].tokens
        assert hypotheses[0].log_prob == pytest.approx(allowed[0].log_prob, abs=1e-5)
        assert hypotheses[0].score == pytest.approx(allowed[0].score, abs=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_with_a_narrow_beam_a_rule_holds_and_a_sentence_is_alike_alone_and_in_a_batch(
    name: str, beam: int
) -> None:
    if (name, beam) == (WAITING, 1):
        return  # needs alternatives
    option = OPTIONS[name]
    together = search([option.rule()], beam=beam, max_len=7)
    assert all(option.allows(best.tokens) for [best] in together)
    alone = [search([option.rule()], beam=beam, max_len=7, sentences=[i])[0] for i in range(3)]
    assert together == alone
    # The third starts when one of the others is done, beside one that has made steps.
    plan = Plan([1] * 3, capacity=2, most=3)
    assert together == search([option.rule()], beam=beam, max_len=7, plan=plan)


def test_n_best_lists_are_those_of_exhaustive_search() -> None:
    for sentence, found in enumerate(search([], nbest=7)):
        expected = all_hypotheses(random_language, sentence, 5, PENALTY)[:7]
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        scores = [each.score for each in expected]
        assert [each.score for each in found] == pytest.approx(scores, abs=1e-5)


def test_a_bonus_is_part_of_the_score() -> None:
    def of_tokens(language: Language) -> Tensor:
        return torch.tensor([[-0.4 * row.count(A) for row in rows] for rows in language.rows])

    for sentence, [best] in enumerate(search([], bonus=of_tokens)):
        every = all_hypotheses(random_language, sentence, 5, PENALTY)
        expected = max(every, key=lambda each: each.score - 0.4 * each.tokens.count(A))
        assert best.tokens == expected.tokens
        assert best.score == pytest.approx(
            expected.score - 0.4 * expected.tokens.count(A), abs=1e-5
        )
        assert best.log_prob == pytest.approx(expected.log_prob, abs=1e-5)


def test_where_the_rules_allow_nothing_the_hypothesis_ends() -> None:
    for [best] in search([required("a"), forbidden("a")], max_len=4):
        assert A not in best.tokens


def test_results_with_one_text_are_merged() -> None:
    """Tokens 2, 3 and 4: a word, its beginning, its end; the better segmentation remains."""
    texts = TokenTexts([b"", b"", b" ab", b" a", b"b"])
    probs = {
        (): [0, 0, 0.4, 0.6, 0],
        (3,): [0.1, 0, 0, 0, 0.9],
    }

    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return probs.get(prefix, [1.0, 0, 0, 0, 0])

    def found(nbest: int, beam: int = 4) -> list[tuple[list[int], float]]:
        penalty = LengthPenalty(0.0)
        [results] = search_all(
            table, [9], beam=beam, penalty=penalty, nbest=nbest, text_of=texts.join
        )
        return [(each.tokens, math.exp(each.log_prob)) for each in results]

    assert found(4) == [([3, 4], pytest.approx(0.54)), ([3], pytest.approx(0.06))]
    assert found(2) == found(4) and found(1) == found(4)[:1]


def diverse_by_hand(
    sentence: int, groups: int, beam: int, strength: float, max_len: int
) -> list[list[tuple[float, list[int]]]]:
    """Algorithm 1 of Vijayakumar et al. 2018: the live hypotheses of each group at each length."""
    live = [[(0.0, list[int]())] for _ in range(groups)]
    for _ in range(max_len):
        used: Counter[int] = Counter()
        for group in range(groups):
            every = [
                (total + math.log(p), total + math.log(p) - strength * used[token], path, token)
                for total, path in live[group]
                for token, p in enumerate(random_language(sentence, tuple(path)))
                if p
            ]
            every.sort(key=lambda each: -each[1])
            used.update(token for _, _, _, token in every[:beam])
            live[group] = [
                (total, [*path, token]) for total, _, path, token in every if token != EOS
            ][:beam]
    return live


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
def test_diverse_groups_against_the_algorithm_written_out(strength: float) -> None:
    groups, beam, steps = 3, 2, 4
    seen: list[Live] = []

    def watch(live: Live, values: Tensor) -> Tensor:
        seen.append(live)
        return values

    penalty = LengthPenalty(9.0)  # so high that no sentence is done before the maximum length
    search_all(
        lambda sentence, prefix: random_language(sentence // groups, prefix),
        [steps + 1] * (2 * groups),
        beam=beam,
        penalty=penalty,
        rules=[watch, DiverseGroups(groups, strength)],
    )
    last = seen[-1]
    assert last.tokens.shape[-1] == steps + 1 and len(last.sentences) == 2 * groups
    for sentence in range(2):
        expected = diverse_by_hand(sentence, groups, beam, strength, steps)
        for group in range(groups):
            row = sentence * groups + group
            tokens = last.tokens[row, :, 1:].tolist()
            assert tokens == [path for _, path in expected[group]]
            totals = [total for total, _ in expected[group]]
            assert last.log_probs[row].tolist() == pytest.approx(totals, abs=1e-4)


class OnGpu(Language):
    """A language whose finished sentences keep their slots."""

    def __init__(self, table: Table, beam: int) -> None:
        super().__init__(table, beam)
        self.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]


@pytest.mark.parametrize("name", OPTIONS)
def test_finished_sentences_that_keep_their_slots_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def watch(live: Live, values: Tensor) -> Tensor:
        seen.update(live.sentences)
        return values

    plans = [None, Plan([1] * 3, capacity=2, most=3)]
    expected = search([OPTIONS[name].rule()], beam=4, max_len=7)
    monkeypatch.setattr(test_search, "Language", OnGpu)
    monkeypatch.setattr(search_module, "_to_device", lambda x, _: torch.tensor(x))
    monkeypatch.setattr(search_module, "SHRINK", 2.0)
    for plan in plans:
        assert search([watch, OPTIONS[name].rule()], beam=4, max_len=7, plan=plan) == expected
    assert FREE in seen or name == "required phrase"  # whose sentences end at the same time


@pytest.mark.parametrize(
    "rule", [DiverseGroups(2, 0.3), Sampler(Sampling(), [[i] for i in range(8)])]
)
def test_groups_and_samples_of_sentences_that_wait_start_together(rule: Rule) -> None:
    """All that a sentence has, and as if nothing waited."""

    def found(plan: Plan | None) -> list[list[Hypothesis]]:
        return search_all(
            lambda sentence, prefix: random_language(sentence // 2, prefix),
            [7] * 8,
            beam=1 if isinstance(rule, Sampler) else 2,
            penalty=PENALTY,
            copies=2,
            rules=[rule],
            plan=plan,
        )

    for capacity in (1, 2, 3):
        assert found(Plan([1] * 4, capacity, most=4)) == found(None)


def samples(seeds: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
    found = search([Sampler(sampling, seeds)], beam=1, sentences=[0] * len(seeds))
    return [best.tokens for [best] in found]


def test_samples_have_the_probabilities_of_the_model() -> None:
    count = 4_000
    drawn = Counter(tuple(tokens) for tokens in samples([[1, i] for i in range(count)], Sampling()))
    for each in all_hypotheses(random_language, 0, 5, PENALTY):
        if len(each.tokens) < 4:  # the end is forced after four tokens
            p = math.exp(each.log_prob)
            assert drawn[tuple(each.tokens)] / count == pytest.approx(
                p, abs=4 * math.sqrt(p * (1 - p) / count) + 1e-9
            )


def test_a_sample_depends_on_its_seed_alone() -> None:
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
    rules: list[Rule] = [
        MinLength(2, EOS),
        forbidden("a"),
        Sampler(Sampling(), [[7, i] for i in range(3)]),
    ]
    for [best] in search(rules, beam=1):
        assert len(best.tokens) >= 2 and A not in best.tokens


def test_a_rule_does_not_hide_nan() -> None:
    def table(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [0.5, 0.0, math.nan, 0.5]

    with pytest.raises(FloatingPointError):
        search_all(table, [5], beam=2, penalty=PENALTY, rules=[forbidden("a")])
