"""Options of translate: n-best lists, scores, references, terms, prefixes, samples, warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
import trained
from conftest import VOCABULARY
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
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.options import Options
from seq2seq.decoding.segments import Request, Segment, split_text
from seq2seq.decoding.terms import Glossary, Term
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
    """Return a translator that searches with the engine that is chosen for the options."""
    return make_translator(beam=4, max_extra=8, length_penalty=0.6)


@pytest.fixture
def either(translator: Translator, engine: str) -> Translator:  # noqa: F811
    """Return a translator that searches with each engine."""
    return searching_with(engine, translator)


def alike(one: Translation, other: Translation) -> None:
    assert [each.pieces for each in one.nbest] == [each.pieces for each in other.nbest]
    assert [each.text for each in one.nbest] == [each.text for each in other.nbest]
    for first, second in zip(one.nbest, other.nbest, strict=True):
        assert first.score == pytest.approx(second.score, abs=1e-4)
        assert first.log_prob == pytest.approx(second.log_prob, abs=1e-4)
        assert first.log_probs == pytest.approx(second.log_probs, abs=1e-4)
        assert first.alignment == second.alignment
    assert one.repeats == other.repeats


TOGETHER = [
    *((name,) for name in OPTIONS),
    ("nbest", "lengths", "ngrams", "tokens and alignment"),
    ("nbest", "lengths", "prefixes"),
    ("greedy", "lengths", "ngrams"),
    ("greedy", "ngrams", "prefixes", "tokens and alignment"),
    ("samples", "lengths", "ngrams"),
    ("samples", "greedy", "prefixes", "tokens and alignment"),
]
"""Options that are tried together: every two of them that do not exclude each other."""
IN_BOTH = [names for names in TOGETHER if not TORCH_ONLY & {*names}]
"""Those that both engines have."""
WITH_EACH_ENGINE = [(names, "torch") for names in TOGETHER]
WITH_EACH_ENGINE += [(names, "ctranslate2") for names in IN_BOTH]


def options_of(names: Sequence[str]) -> dict[str, Any]:
    return {"max_extra": 4} | {key: x for name in names for key, x in OPTIONS[name].items()}


def label(value: str | Sequence[str]) -> str:
    """Name an engine or options for pytest."""
    return value if isinstance(value, str) else " and ".join(value) or "plain"


@pytest.mark.parametrize(("names", "used"), WITH_EACH_ENGINE, ids=label)
def test_with_any_options_a_line_is_translated_alike_alone_and_in_any_batch(
    translator: Translator, names: Sequence[str], used: str
) -> None:
    searching_with(used, translator)
    options = options_of(names)
    together = translator.translations(TEXTS, **options)
    small = translator.translations(TEXTS, batch_tokens=60, **options)
    prefixes = options.pop("prefixes", [""] * len(TEXTS))
    outputs = {key: options.pop(key) for key in ("nbest", "tokens", "alignment") if key in options}
    changed = changed_decoding(translator.decoding, options)
    assert (translator.engines.choose(changed) is translator.engines.torch) == (used == "torch")
    for number, (text, prefix) in enumerate(zip(TEXTS, prefixes, strict=True)):
        requests = [Request(text, number, prefix)]
        [alone] = translator.process(requests, Options(**outputs), changed)
        alike(together[number], alone)
        alike(together[number], small[number])
        assert all(each.text.startswith(prefix) for each in alone.nbest)


@pytest.mark.parametrize(
    ("names", "used"), [each for each in WITH_EACH_ENGINE if len(each[0]) < 2], ids=label
)
def test_every_option_changes_something(
    translator: Translator, names: Sequence[str], used: str
) -> None:
    searching_with(used, translator)
    [changes] = [OPTIONS[name] for name in names]
    plain, changed = (translator.translations(TEXTS, **given) for given in ({}, changes))
    assert plain != changed


@pytest.mark.parametrize("names", [(), *IN_BOTH], ids=label)
def test_both_engines_give_the_same_texts_scores_and_alignments(names: Sequence[str]) -> None:
    """Compare hypotheses that end before the maximum length.

    With a rule or a prefix CTranslate2 normalises the probabilities of the tokens that are left, so
    that a beam may keep other hypotheses: greedy search is compared.
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
    found = [each.translations(texts, **options) for each in translators]
    for one, other in zip(*found, strict=True):
        alike(one, other)
    for own in ("nbest", "tokens", "alignment"):
        options.pop(own, None)
    # Texts alone are ranked by the scores of the search, which are not computed again.
    assert translators[0].translate(texts, **options) == [each.text for each in found[0]]


def test_the_terms_of_a_line_change_no_other(translator: Translator) -> None:
    requests = [
        Request("the dog", 0),
        Request("tree", 1, constraints=("Hund",)),
        Request(" ", 2),
        Request("a man", 3),
    ]
    done: list[int] = []
    found = translator.process(requests, advance=done.append)
    for request, one in zip(requests, found, strict=True):
        alike(one, *translator.process([request]))
    assert "Hund" in found[1].text and found[2].text == "" and sum(done) == 3


def test_a_reference_is_scored_as_the_tokenizer_segments_it(either: Translator) -> None:
    references = [["ein Haus", ""], ["der  Hund "], [], ["Baum"], ["sieht"], ["rot"]]
    found = either.translations(TEXTS, references=references, tokens=True)
    engine = either.engines.choose(either.decoding)  # noqa: F811
    sources = VOCABULARY.encode_pieces(TEXTS)
    for source, given, each in zip(sources, references, found, strict=True):
        assert [reference.text for reference in each.references] == given
        for reference, pieces in zip(each.references, VOCABULARY.encode_pieces(given), strict=True):
            [expected] = engine.score([(source, pieces)], either.decoding)
            assert reference.pieces == pieces and len(reference.log_probs) == len(pieces) + 1
            assert reference.log_prob == pytest.approx(expected.log_prob, rel=1e-5)
            assert reference.score == pytest.approx(expected.score, rel=1e-5)
            assert sum(reference.log_probs) == pytest.approx(reference.log_prob, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"penalty_form": "wu"}])
def test_what_is_not_asked_for_is_not_there(
    translator: Translator, options: dict[str, Any]
) -> None:
    options["references"] = [["ein Haus"]]
    [plain] = translator.translations(["the dog"], **options)
    [tokens] = translator.translations(["the dog"], tokens=True, **options)
    [links] = translator.translations(["the dog"], alignment=True, **options)
    for one in (plain, tokens, links):
        for each in (*one.nbest, *one.references):
            assert bool(each.log_probs) == (one is tokens)
            assert bool(each.alignment) == (one is links)
            assert each.text


def test_references_and_prefixes_have_the_limits_of_lines(
    make_translator: Callable[..., Translator], caplog: pytest.LogCaptureFixture
) -> None:
    """A text over the limit costs its line, at once, and no other."""
    translator, long = make_translator(limit=20, beam=2), "der Hund " * 3_000
    texts = ["the dog", "the dog", "a man " * 30, "the dog"]
    given = [["der Hund"], ["der Hund", long], ["der Hund"], ["ein Mann"]]
    for search in (True, False):
        found = translator.translations(texts, references=given, search=search)
        assert [len(each.references) for each in found] == [1, 0, 0, 1]
        assert "a reference has 24000 tokens, above the maximum" in str(found[1].error)
        assert "maximum source length of 20 tokens" in str(found[2].error)
        assert not found[0].error and not found[3].error
    long_prefix = translator.translations(["the dog"], prefixes=[long], nbest=2)
    assert "the prefix, with terms, has" in str(long_prefix[0].error)
    with pytest.raises(UserError, match="references has 1 entries for 4 texts"):
        translator.translations(texts, references=given[:1])


def test_the_first_of_n_best_is_the_translation(either: Translator) -> None:
    plain = either.translate(TEXTS)
    for text, found in zip(plain, either.translations(TEXTS, nbest=4), strict=True):
        assert text == found.text == found.nbest[0].text
        scores = [each.score for each in found.nbest]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)


def test_terms_and_prefixes_in_text(translator: Translator) -> None:
    constraints = [["red tree", "dog"], ["house"], [], ["small"], ["man"], ["the"]]
    prefixes = ["the", "a man", "", "tree", "", "dog"]
    found = translator.translate(TEXTS, constraints=constraints, prefixes=prefixes, beam=6)
    for each, terms, prefix in zip(found, constraints, prefixes, strict=True):
        assert each.startswith(prefix)
        for term in map(Term, terms):
            assert term.kept(each), (term, each)


def test_a_glossary_applies_where_its_source_occurs(translator: Translator) -> None:
    glossary = Glossary([Term("Hund", "dog"), Term("Haus", "house")])
    found = translator.translations(TEXTS, glossary=glossary, beam=6)
    for text, each in zip(TEXTS, found, strict=True):
        words = text.split()
        assert each.terms == each.terms_kept == ("dog" in words) + ("house" in words)
        assert "Hund" in each.text or "dog" not in words


def test_a_greedy_search_meets_its_terms_too(translator: Translator) -> None:
    [text] = translator.translate(["tree"], constraints=[["small dog"]], beam=1)
    assert "small dog" in text


def test_a_translation_that_repeats_itself_has_a_warning(either: Translator) -> None:
    [dog] = VOCABULARY.encode(["dog"])
    with torch.no_grad():  # the model's favourite, at any time
        only_model(either).output.weight[dog[-1]] *= 30
    [looped] = either.translations(["tree"])
    [blocked] = either.translations(["tree"], no_repeat_ngram=2)
    assert looped.repeats and not blocked.repeats


def test_lines_that_are_too_long_for_a_term_a_prefix_or_no_split(
    make_translator: Callable[..., Translator],
) -> None:
    translator = make_translator(limit=10)
    long = "the dog likes a small tree and a house and a man."
    for options in (
        {"split": False},
        {"constraints": [["tree"], []]},
        {"prefixes": ["the", ""]},
    ):
        found = translator.translations([long, "tree"], **options)
        assert found[0].error and "exceeds the maximum source length of 10" in found[0].error
        assert found[0].text == "" and found[1].error is None
    terms = Glossary([Term("Baum", "tree"), Term("Mann", "man")])
    [parts_with_terms] = translator.translations([long], glossary=terms, beam=6)
    assert parts_with_terms.terms == parts_with_terms.terms_kept == 2
    [joined] = translator.translations([long], tokens=True, alignment=True, nbest=2)
    assert joined.text and joined.error is None
    parts = split_text(long, lambda text: VOCABULARY.encode_pieces([text])[0], 10)
    assert len(parts) > 1
    expected: list[tuple[int, int]] = []
    words = 0, 0
    for _, text, _ in parts:
        [part] = translator.translations([text], alignment=True, nbest=2)
        expected += [(i + words[0], j + words[1]) for i, j in part.alignment]
        words = words[0] + len(text.split()), words[1] + len(part.text.split())
    assert list(joined.alignment) == expected
    [best, _] = joined.nbest
    assert sum(best.log_probs) == pytest.approx(best.log_prob, abs=1e-4)


def test_equal_lines_have_different_samples(translator: Translator) -> None:
    drawn = translator.translate(["the dog"] * 5, sample=True)
    assert len(set(drawn)) > 2 and drawn == translator.translate(["the dog"] * 5, sample=True)


def test_blank_lines_with_options(either: Translator) -> None:
    for each in either.translations(["", " "], nbest=3, tokens=True, alignment=True):
        assert each.text == "" and each.error is None


def test_a_translation_has_at_most_the_promised_tokens(either: Translator) -> None:
    """The end symbol is none of them."""
    for factor, extra in ((2, 0), (0, 0), (0, 1), (0.29, 0), (1, 3)):
        found = either.translations(TEXTS, max_factor=factor, max_extra=extra, nbest=3)
        lens = [len(ids) for ids in VOCABULARY.encode(TEXTS)]
        allowed = [int(Fraction(str(factor)) * size) + extra for size in lens]
        longest = [max(len(each.pieces) for each in one.nbest) for one in found]
        assert all(size <= limit for size, limit in zip(longest, allowed, strict=True))
        assert longest == allowed or factor == 1  # an untrained model writes on


def test_a_term_that_cannot_be_written_costs_its_line(translator: Translator) -> None:
    constraints = [["\u2581"], [" "], [], ["ein  Haus"], ["!"], []]
    found = translator.translations(TEXTS, constraints=constraints, nbest=2, beam=6, max_extra=20)
    for each in found[:2]:
        assert "cannot be written with this model's tokenizer" in str(each.error)
    assert [each.error for each in found[2:]] == [None] * 4
    assert found[3].terms_kept == 1 and "ein Haus" in found[3].text


def test_the_texts_of_an_n_best_list_differ(translator: Translator) -> None:
    """An untrained model writes one text with many pieces."""
    for each in translator.translations(TEXTS, max_factor=0, max_extra=4, nbest=8, beam=8):
        texts = [candidate.text for candidate in each.nbest]
        assert len(set(texts)) == len(texts) > 3


@pytest.mark.parametrize("search", [True, False])
def test_links_are_within_the_words_of_both_texts(
    make_translator: Callable[..., Translator],
    engine: str,  # noqa: F811
    search: bool,
) -> None:
    """Words are those of `str.split`, in lines that are translated in parts, too."""
    translator = searching_with(engine, make_translator(limit=12, beam=2))
    texts = ["\u6f22\u5b57" * 40, "\u00a0".join(["the dog"] * 9), "a\u200bman  sees\u3000it"]
    texts += ["x" * 50 + " the dog", "the dog", " the\tdog "]
    targets = ["\u2581der Hund", " \u2581 der", "ein\u00a0Haus", "", "\u2581", "\u200b a"]
    options: dict[str, Any] = {"alignment": True, "max_extra": 4}
    if not search:
        texts = ["the dog\u00a0sees"] * len(targets)
        options |= {"references": [[each] for each in targets], "search": False}
    found = translator.translations(texts, **options)
    for text, each in zip(texts, found, strict=True):
        for candidate in each.nbest if search else each.references:
            links, words = candidate.alignment, candidate.text.split()
            linked = {j for _, j in links}
            assert linked <= set(range(len(words))), (text, candidate)
            assert len(linked) == len(words) or not search  # `\u2581` alone has no tokens
            assert all(0 <= i < len(text.split()) for i, _ in links)


def test_a_sample_of_a_line_in_parts_is_one_draw_of_each_part(
    make_translator: Callable[..., Translator],
) -> None:
    translator = make_translator(limit=12, max_extra=4)
    text = "the dog. " * 6 + "a man sees"
    decoding = changed_decoding(translator.decoding, {"sample": True, "seed": 3})
    parts = split_text(text, lambda each: VOCABULARY.encode_pieces([each])[0], 12)
    assert len(parts) > 1
    segments = [Segment(pieces, seed=(7, i)) for i, (pieces, _, _) in enumerate(parts)]
    drawn = translator.engines.torch.search(segments, decoding, nbest=5)
    expected = []
    for one in zip(*drawn, strict=True):
        texts = VOCABULARY.decode_pieces([each.pieces for each in one])
        expected.append("".join(f"{part[2]}{own}" for part, own in zip(parts, texts, strict=True)))
    [found] = translator.process([Request(text, 7)], Options(nbest=5), decoding)
    assert sorted(each.text for each in found.nbest) == sorted(expected)
    scores = [each.score for each in found.nbest]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 5


def test_a_glossary_applies_to_each_part_by_its_own_overlaps(
    make_translator: Callable[..., Translator],
) -> None:
    translator = make_translator(limit=12)
    glossary = Glossary([Term("Hund", "dog"), Term("Wurst", "hot dog")])
    request = Request("a hot dog. " + "the man. " * 8 + "the dog")
    [one] = translator._segmenter.segmented([request], Options(glossary=glossary))
    terms = [tuple(term.text for term in segment.terms) for segment in one.segments]
    assert terms[0] == ("Wurst",) and terms[-1] == ("Hund",) and not any(terms[1:-1])
