"""Options of `translate`: n-best lists, scores, references, terms, prefixes, samples, warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
import trained
from conftest import VOCABULARY, encoded
from test_translator import SOURCES as TEXTS
from test_translator import (  # noqa: F401
    engine,
    models,
    only_model,
    searching_with,
    translator_of,
)
from trained import own_translator, trained_model

from seq2seq import Translator
from seq2seq.decoding.engine import length_penalty
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.decoding.translation import END, Options, Request
from seq2seq.decoding.translator import Translation, changed_decoding
from seq2seq.errors import UserError
from seq2seq.model.transformer import Transformer

OPTIONS: dict[str, dict[str, Any]] = {
    "nbest": {"nbest": 3},
    "greedy": {"beam": 1},
    "lengths": {"min_length": 4, "max_factor": 0.5, "max_extra": 9},
    "ngrams": {"no_repeat_ngram": 2},
    "penalty": {"penalty_form": "wu", "length_penalty": 2.0, "patience": 3.0},
    "prefixes": {"prefixes": ["der Hund", "", "ein", "", "das rote Haus", ""]},
    "tokens and alignment": {"tokens": True, "alignment": True},
    "samples": {"sample": True, "nbest": 3, "seed": 11, "temperature": 0.8, "top_p": 0.9},
}
TORCH_ONLY = {"samples"}


@pytest.fixture
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator(beam=4, max_extra=8, length_penalty=0.6)


@pytest.fixture
def either(translator: Translator, engine: str) -> Translator:  # noqa: F811
    return searching_with(engine, translator)


def assert_equal(a: Translation, b: Translation) -> None:
    assert [hypothesis.pieces for hypothesis in a.nbest] == [x.pieces for x in b.nbest]
    assert [hypothesis.text for hypothesis in a.nbest] == [x.text for x in b.nbest]
    for first, second in zip(a.nbest, b.nbest, strict=True):
        assert first.score == pytest.approx(second.score, abs=1e-4)
        assert first.log_prob == pytest.approx(second.log_prob, abs=1e-4)
        assert first.log_probs == pytest.approx(second.log_probs, abs=1e-4)
        assert first.alignment == second.alignment
    assert a.repeats == b.repeats


COMBINATIONS = [
    *((name,) for name in OPTIONS),
    ("nbest", "lengths", "ngrams", "tokens and alignment"),
    ("nbest", "lengths", "prefixes"),
    ("greedy", "lengths", "ngrams"),
    ("greedy", "ngrams", "prefixes", "tokens and alignment"),
    ("samples", "lengths", "ngrams"),
    ("samples", "greedy", "prefixes", "tokens and alignment"),
]
"""Combinations of options. Every valid pair of options is in one of them."""
BOTH_ENGINES = [names for names in COMBINATIONS if not TORCH_ONLY & {*names}]
"""Combinations that both engines support."""
WITH_EACH_ENGINE = [(names, "torch") for names in COMBINATIONS]
WITH_EACH_ENGINE += [(names, "ctranslate2") for names in BOTH_ENGINES]


def options_of(names: Sequence[str]) -> dict[str, Any]:
    return {"max_extra": 4} | {key: x for name in names for key, x in OPTIONS[name].items()}


def label(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else " and ".join(value) or "plain"


@pytest.mark.parametrize(("names", "engine_name"), WITH_EACH_ENGINE, ids=label)
def test_with_any_options_a_translation_does_not_depend_on_the_batch(
    translator: Translator, names: Sequence[str], engine_name: str
) -> None:
    searching_with(engine_name, translator)
    options = options_of(names)
    together = translator.translations(TEXTS, **options)
    small = translator.translations(TEXTS, batch_tokens=60, **options)
    prefixes = options.pop("prefixes", [""] * len(TEXTS))
    outputs = {key: options.pop(key) for key in ("nbest", "tokens", "alignment") if key in options}
    changed = changed_decoding(translator.decoding, options)
    uses_torch = translator.engines.engine_for(changed) is translator.engines.torch
    assert uses_torch == (engine_name == "torch")
    for number, (text, prefix) in enumerate(zip(TEXTS, prefixes, strict=True)):
        requests = [Request(text, number, prefix)]
        [alone] = translator.process(requests, Options(**outputs), changed)
        assert_equal(together[number], alone)
        assert_equal(together[number], small[number])
        assert all(hypothesis.text.startswith(prefix) for hypothesis in alone.nbest)


@pytest.mark.parametrize(
    ("names", "engine_name"), [case for case in WITH_EACH_ENGINE if len(case[0]) == 1], ids=label
)
def test_every_option_has_an_effect(
    translator: Translator, names: Sequence[str], engine_name: str
) -> None:
    searching_with(engine_name, translator)
    [options] = [OPTIONS[name] for name in names]
    assert translator.translations(TEXTS) != translator.translations(TEXTS, **options)


@pytest.mark.parametrize("names", [(), *BOTH_ENGINES], ids=label)
def test_both_engines_return_equal_texts_scores_and_alignments(names: Sequence[str]) -> None:
    """Compare hypotheses that end before the maximum length.

    With a rule or a prefix CTranslate2 normalises probabilities over the allowed tokens only. Its
    beam may then contain other hypotheses, so greedy search is compared.
    """
    loaded, texts = trained_model(), trained.LINES[:30]
    assert isinstance(loaded.model, Transformer)
    engines = Engines.of_model(loaded.model, loaded.tokenizer, loaded.config)
    options = options_of(names) | {"max_extra": 60}
    if "prefixes" in options:
        options["prefixes"] = options["prefixes"] * 5
    if {"lengths", "ngrams", "prefixes"} & {*names}:
        options |= {"beam": 1, "nbest": 1}
    translators = [Translator(engines, loaded.config.decoding), own_translator(loaded)]
    results = [translator.translations(texts, **options) for translator in translators]
    for ctranslate2_result, torch_result in zip(*results, strict=True):
        assert_equal(ctranslate2_result, torch_result)
    for key in ("nbest", "tokens", "alignment"):
        options.pop(key, None)
    # `translate` ranks by the scores of the search, without scoring the hypotheses again.
    assert translators[0].translate(texts, **options) == [result.text for result in results[0]]


def test_the_terms_of_a_line_do_not_affect_other_lines(translator: Translator) -> None:
    requests = [Request("the dog", 0), Request("tree", 1, constraints=("Hund",))]
    requests += [Request(" ", 2), Request("a man", 3)]
    done: list[int] = []
    results = translator.process(requests, progress=done.append)
    for request, result in zip(requests, results, strict=True):
        assert_equal(result, *translator.process([request]))
    assert "Hund" in results[1].text and results[2].text == "" and sum(done) == 3


def test_a_reference_is_scored_in_the_segmentation_of_the_tokenizer(either: Translator) -> None:
    references = [["ein Haus", ""], ["der  Hund "], [], ["Baum"], ["sieht"], ["rot"]]
    results = either.translations(TEXTS, references=references, tokens=True)
    engine = either.engines.engine_for(either.decoding)  # noqa: F811
    sources = VOCABULARY.encode_pieces(TEXTS)
    for source, texts, result in zip(sources, references, results, strict=True):
        assert [reference.text for reference in result.references] == texts
        pieces_of_all = VOCABULARY.encode_pieces(texts)
        for reference, pieces in zip(result.references, pieces_of_all, strict=True):
            [row] = engine.log_probs([(source, pieces)], either.decoding)
            penalty = length_penalty(either.decoding, len(row))
            assert reference.pieces == pieces and len(reference.log_probs) == len(pieces) + 1
            assert reference.log_prob == pytest.approx(sum(row), rel=1e-5)
            assert reference.score == pytest.approx(sum(row) / penalty, rel=1e-5)
            assert sum(reference.log_probs) == pytest.approx(reference.log_prob, rel=1e-6)


def test_outputs_that_are_not_requested_are_empty(translator: Translator) -> None:
    options: dict[str, Any] = {"references": [["ein Haus"]]}
    [plain] = translator.translations(["the dog"], **options)
    [tokens] = translator.translations(["the dog"], tokens=True, **options)
    [aligned] = translator.translations(["the dog"], alignment=True, **options)
    for result in (plain, tokens, aligned):
        for hypothesis in (*result.nbest, *result.references):
            assert bool(hypothesis.log_probs) == (result is tokens)
            assert bool(hypothesis.alignment) == (result is aligned)
            assert hypothesis.text


def test_references_and_prefixes_have_a_maximum_length(
    make_translator: Callable[..., Translator], caplog: pytest.LogCaptureFixture
) -> None:
    """A reference or prefix that is too long is an error of its line only."""
    translator, long = make_translator(limit=20, beam=2), "der Hund " * 3_000
    texts = ["the dog", "the dog", "a man " * 30, "the dog"]
    references = [["der Hund"], ["der Hund", long], ["der Hund"], ["ein Mann"]]
    for search in (True, False):
        results = translator.translations(texts, references=references, search=search)
        assert [len(result.references) for result in results] == [1, 0, 0, 1]
        assert "a reference has 24000 tokens, above the maximum" in str(results[1].error)
        assert "maximum source length of 20 tokens" in str(results[2].error)
        assert not results[0].error and not results[3].error
    long_prefix = translator.translations(["the dog"], prefixes=[long], nbest=2)
    assert "the prefix, with terms, has" in str(long_prefix[0].error)
    with pytest.raises(UserError, match="references has length 1, but texts has length 4"):
        translator.translations(texts, references=references[:1])


def test_an_n_best_list_is_sorted_and_starts_with_the_translation(either: Translator) -> None:
    plain = either.translate(TEXTS)
    for text, result in zip(plain, either.translations(TEXTS, nbest=4), strict=True):
        assert text == result.text == result.nbest[0].text
        scores = [hypothesis.score or 0.0 for hypothesis in result.nbest]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)


def test_translations_have_their_terms_and_prefixes(translator: Translator) -> None:
    constraints = [["red tree", "dog"], ["house"], [], ["small"], ["man"], ["the"]]
    prefixes = ["the", "a man", "", "tree", "", "dog"]
    texts = translator.translate(TEXTS, constraints=constraints, prefixes=prefixes, beam=6)
    for text, terms, prefix in zip(texts, constraints, prefixes, strict=True):
        assert text.startswith(prefix)
        for term in map(Term, terms):
            assert term.kept(text), (term, text)


def test_a_glossary_applies_where_its_source_occurs(translator: Translator) -> None:
    glossary = Glossary([Term("Hund", "dog"), Term("Haus", "house")])
    results = translator.translations(TEXTS, glossary=glossary, beam=6)
    for text, result in zip(TEXTS, results, strict=True):
        words = text.split()
        assert result.terms == result.terms_kept == ("dog" in words) + ("house" in words)
        assert "Hund" in result.text or "dog" not in words


def test_a_translation_that_repeats_itself_has_a_warning(either: Translator) -> None:
    [dog] = VOCABULARY.encode(["dog"])
    with torch.no_grad():  # make it the most probable token at every step
        only_model(either).output.weight[dog[-1]] *= 30
    [repetitive] = either.translations(["tree"])
    [blocked] = either.translations(["tree"], no_repeat_ngram=2)
    assert repetitive.repeats and not blocked.repeats


def test_long_lines_with_terms_prefixes_or_without_splitting(
    make_translator: Callable[..., Translator],
) -> None:
    translator = make_translator(limit=10)
    long = "the dog likes a small tree and a house and a man."
    for options in ({"constraints": [["tree"], []]}, {"prefixes": ["the", ""]}):
        failed, short = translator.translations([long, "tree"], **options)
        assert "exceeds the maximum source length of 10" in str(failed.error)
        assert short.error is None
    glossary = Glossary([Term("Baum", "tree"), Term("Mann", "man")])
    [with_glossary] = translator.translations([long], glossary=glossary, beam=6)
    assert with_glossary.terms == with_glossary.terms_kept == 2
    [joined] = translator.translations([long], tokens=True, alignment=True, nbest=2)
    assert joined.text and joined.error is None
    parts = encoded(translator, long).prepared.segments
    assert len(parts) > 1
    expected: list[tuple[int, int]] = []
    words = 0, 0
    for text in (segment.text.text for segment in parts):
        [part] = translator.translations([text], alignment=True, nbest=2)
        expected += [(i + words[0], j + words[1]) for i, j in part.alignment]
        words = words[0] + len(text.split()), words[1] + len(part.text.split())
    assert list(joined.alignment) == expected
    [best, _] = joined.nbest
    assert sum(best.log_probs) == pytest.approx(best.log_prob, abs=1e-4)
    assert len(best.log_probs) == len(best.pieces) + 1
    assert best.pieces.count(END) == len(parts) - 1


@pytest.mark.parametrize("space", ["\t", "\u00a0", "\u202f", "\u3000"])
def test_other_spaces_are_read_as_spaces(space: str, translator: Translator) -> None:
    texts = ["the dog likes", "a man. The dog sees"]
    found = translator.translate([text.replace(" ", space) for text in texts])
    assert found == translator.translate(texts)


def test_equal_lines_have_different_samples(translator: Translator) -> None:
    samples = translator.translate(["the dog"] * 5, sample=True)
    assert len(set(samples)) > 2 and samples == translator.translate(["the dog"] * 5, sample=True)


def test_the_maximum_length_of_a_translation(either: Translator) -> None:
    """It does not include the end symbol."""
    for factor, extra in ((2, 0), (0, 0), (0, 1), (0.29, 0), (1, 3)):
        results = either.translations(TEXTS, max_factor=factor, max_extra=extra, nbest=3)
        lens = [len(ids) for ids in VOCABULARY.encode(TEXTS)]
        limits = [int(Fraction(str(factor)) * size) + extra for size in lens]
        longest = [max(len(x.pieces) for x in result.nbest) for result in results]
        assert all(size <= limit for size, limit in zip(longest, limits, strict=True))
        assert longest == limits or factor == 1  # an untrained model rarely ends a sentence


def test_a_term_that_cannot_be_encoded_is_an_error_of_its_line(translator: Translator) -> None:
    constraints = [["\u2581"], [" "], [], ["ein  Haus"], ["!"], []]
    results = translator.translations(TEXTS, constraints=constraints, nbest=2, beam=6, max_extra=20)
    for result in results[:2]:
        assert "the tokenizer cannot encode the term" in str(result.error)
    assert [result.error for result in results[2:]] == [None] * 4
    assert results[3].terms_kept == 1 and "ein Haus" in results[3].text


def test_the_texts_of_an_n_best_list_differ(translator: Translator) -> None:
    """An untrained model finds several segmentations of a text."""
    for result in translator.translations(TEXTS, max_factor=0, max_extra=4, nbest=8, beam=8):
        texts = [candidate.text for candidate in result.nbest]
        assert len(set(texts)) == len(texts) > 3


@pytest.mark.parametrize("search", [True, False])
def test_alignments_are_within_the_words_of_both_texts(
    make_translator: Callable[..., Translator],
    engine: str,  # noqa: F811
    search: bool,
) -> None:
    """Words are defined by `str.split`, also in lines that are translated in parts."""
    translator = searching_with(engine, make_translator(limit=12, beam=2))
    texts = ["\u6f22\u5b57" * 40, "\u00a0".join(["the dog"] * 9), "a\u200bman  sees\u3000it"]
    texts += ["x" * 50 + " the dog", "the dog", " the\tdog "]
    targets = ["\u2581der Hund", " \u2581 der", "ein\u00a0Haus", "", "\u2581", "\u200b a"]
    options: dict[str, Any] = {"alignment": True, "max_extra": 4}
    if not search:
        texts = ["the dog\u00a0sees"] * len(targets)
        options |= {"references": [[target] for target in targets], "search": False}
    results = translator.translations(texts, **options)
    for text, result in zip(texts, results, strict=True):
        for candidate in result.nbest if search else result.references:
            links, words = candidate.alignment, candidate.text.split()
            aligned = {j for _, j in links}
            assert aligned <= set(range(len(words))), (text, candidate)
            assert len(aligned) == len(words) or not search  # the reference `\u2581` has no tokens
            assert all(0 <= i < len(text.split()) for i, _ in links)


def test_a_sample_of_a_line_in_parts_joins_one_sample_of_each_part(
    make_translator: Callable[..., Translator],
) -> None:
    translator = make_translator(limit=12, max_extra=4)
    text = "the dog. " * 6 + "a man sees"
    decoding = changed_decoding(translator.decoding, {"sample": True, "seed": 3})
    request = encoded(translator, text)
    assert len(request.sources) > 1
    sources = [source._replace(seed=(7, i)) for i, source in enumerate(request.sources)]
    samples = translator.engines.torch.search(sources, decoding, nbest=5)
    expected = []
    for sample in zip(*samples, strict=True):
        texts = VOCABULARY.decode_pieces([hypothesis.pieces for hypothesis in sample])
        expected.append(request.prepared.after(texts))
    [result] = translator.process([Request(text, 7)], Options(nbest=5), decoding)
    assert sorted(hypothesis.text for hypothesis in result.nbest) == sorted(expected)
    scores = [hypothesis.score or 0.0 for hypothesis in result.nbest]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 5
