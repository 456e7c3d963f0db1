"""Options of translate: n-best lists, scores, references, terms, prefixes, samples, warnings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import VOCABULARY, engine_of
from test_translator import LINES, members, only_model  # noqa: F401

from seq2seq import Translator
from seq2seq.decoding.constraints import Glossary, Term
from seq2seq.decoding.segments import Request, Segment, split_text
from seq2seq.decoding.translator import Translation, changed_decoding
from seq2seq.errors import UserError
from seq2seq.model.recipe import load_config

TEXTS = [line for line in LINES[:8] if line.strip()]

OPTIONS: dict[str, dict[str, Any]] = {
    "nbest": {"nbest": 3},
    "greedy": {"beam": 1},
    "coverage": {"coverage_penalty": 0.4},
    "lengths": {"min_length": 4, "max_factor": 0.5, "max_extra": 9},
    "ngrams": {"no_repeat_ngram": 2},
    "groups": {"diverse_groups": 2, "nbest": 4},
    "samples": {"sample": True, "nbest": 3, "seed": 11, "temperature": 0.8, "top_p": 0.9},
    "tokens and alignment": {"tokens": True, "alignment": True},
}


@pytest.fixture
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator(beam=4, max_extra=8, length_penalty=0.6)


def alike(one: Translation, other: Translation) -> None:
    assert [each.text for each in one.nbest] == [each.text for each in other.nbest]
    for first, second in zip(one.nbest, other.nbest, strict=True):
        assert first.score == pytest.approx(second.score, abs=1e-4)
        assert first.alignment == second.alignment
        assert first.tokens == second.tokens and first.pieces == second.pieces
    assert one.warnings == other.warnings


OUTPUTS = {"nbest", "tokens", "alignment"}


def check_batches(translator: Translator, options: dict[str, Any]) -> None:
    """Check that lines are translated alike together, in small batches, and alone."""
    options = {"max_extra": 4, **options}
    together = translator.translations(TEXTS, **options)
    small = translator.translations(TEXTS, batch_tokens=60, **options)
    wanted = {key: options[key] for key in OUTPUTS & options.keys()}
    decoding = {key: value for key, value in options.items() if key not in OUTPUTS}
    changed = changed_decoding(translator.decoding, decoding)
    for number, text in enumerate(TEXTS):
        [alone] = translator.process([Request(text, number)], changed, **wanted)
        alike(together[number], alone)
        alike(together[number], small[number])


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_something(translator: Translator, name: str) -> None:
    plain, changed = (translator.translations(TEXTS, **given) for given in ({}, OPTIONS[name]))
    assert plain != changed


TOGETHER = [
    *((name,) for name in OPTIONS),
    ("nbest", "coverage", "ngrams", "tokens and alignment"),
    ("nbest", "lengths"),
    ("greedy", "coverage", "lengths"),
    ("greedy", "ngrams", "tokens and alignment"),
    ("groups", "coverage"),
    ("groups", "lengths", "ngrams", "tokens and alignment"),
    ("samples", "coverage", "lengths", "ngrams"),
    ("samples", "greedy", "tokens and alignment"),
]
"""Options that are tried together: every two of them are, and each without the other."""
APART = {
    ("nbest", "greedy"), ("greedy", "groups"), ("groups", "samples"),  # refused, as tested below
    ("nbest", "groups"), ("nbest", "samples"),  # which have n-best lists of their own
}  # fmt: skip


def test_every_two_options_are_tried_together() -> None:
    for pair in itertools.combinations(OPTIONS, 2):
        sets = {tuple(name in names for name in pair) for names in TOGETHER}
        assert {(True, False), (False, True)} <= sets, pair
        assert ((True, True) in sets) != (pair in APART), pair


@pytest.mark.parametrize("names", TOGETHER, ids=" and ".join)
def test_with_any_options_a_line_is_translated_alike_alone_and_in_any_batch(
    translator: Translator, names: Sequence[str]
) -> None:
    check_batches(translator, {key: x for name in names for key, x in OPTIONS[name].items()})


@pytest.mark.parametrize("options", [{}, {"coverage_penalty": 0.5}, {"beam": 1}])
@pytest.mark.parametrize("ensemble", [False, True])
def test_forced_scoring_gives_the_numbers_of_the_search(
    translator: Translator,
    members: list[Translator],  # noqa: F811
    options: dict[str, float],
    ensemble: bool,
) -> None:
    if ensemble:
        engine_of(translator).ensemble.models = [only_model(member) for member in members]
    decoding = changed_decoding(translator.decoding, options)
    engine = engine_of(translator)
    sources = VOCABULARY.encode(TEXTS)
    found = engine.search([Segment(source) for source in sources], decoding)
    pairs = [(s, best.tokens) for s, [best] in zip(sources, found, strict=True)]
    for [best], scored in zip(found, engine.score(pairs, decoding, engine.heads), strict=True):
        assert scored.log_prob == pytest.approx(best.log_prob, rel=1e-6, abs=1e-5)
        assert scored.score == pytest.approx(best.score, rel=1e-6, abs=1e-5)
        assert sum(scored.log_probs) == pytest.approx(best.log_prob, rel=1e-6, abs=1e-5)
        assert len(scored.log_probs) == len(best.tokens) + 1
        assert scored.attention is not None and len(scored.attention) == len(best.tokens)
    for source, [best] in zip(sources, found, strict=True):  # and in the text's own batch
        [scored] = engine.score([(source, best.tokens)], decoding)
        assert scored.log_prob == pytest.approx(best.log_prob, rel=1e-6, abs=1e-5)


def test_a_reference_is_scored_as_the_tokenizer_segments_it(translator: Translator) -> None:
    references = [["ein Haus", ""], ["der  Hund "], [], ["Baum"], ["sieht"], ["rot"]]
    found = translator.translations(TEXTS, references=references, tokens=True)
    for text, given, each in zip(TEXTS, references, found, strict=True):
        assert [reference.text for reference in each.references] == given
        [source] = VOCABULARY.encode([text])
        for reference, ids in zip(each.references, VOCABULARY.encode(given), strict=True):
            [expected] = engine_of(translator).score([(source, ids)], translator.decoding)
            pieces = VOCABULARY.pieces([*ids, VOCABULARY.eos_id])
            assert reference.tokens == ids and reference.pieces == pieces
            assert reference.log_prob == pytest.approx(expected.log_prob, rel=1e-5)
            assert reference.score == pytest.approx(expected.score, rel=1e-5)
            assert sum(reference.log_probs) == pytest.approx(reference.log_prob, rel=1e-6)


def test_what_is_not_asked_for_is_not_there(translator: Translator) -> None:
    options: dict[str, Any] = {"references": [["ein Haus"]], "coverage_penalty": 0.4}
    [plain] = translator.translations(["the dog"], **options)
    [tokens] = translator.translations(["the dog"], tokens=True, **options)
    [links] = translator.translations(["the dog"], alignment=True, **options)
    for one in (plain, tokens, links):
        for each in (*one.nbest, *one.references):
            assert bool(each.pieces) == (one is tokens) and bool(each.alignment) == (one is links)
            assert each.attention is None and each.text


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
        assert "reference 2: " in str(found[1].error) and "maximum length of 20" in str(
            found[1].error
        )
        assert "maximum source length of 20 tokens" in str(found[2].error)
        assert not found[0].error and not found[3].error
    long_prefix = translator.translations(["the dog"], prefixes=[long], nbest=2)
    assert "prefix and terms: " in str(long_prefix[0].error)
    with pytest.raises(UserError, match="references has 1 entries for 4 texts"):
        translator.translations(texts, references=given[:1])


def test_the_first_of_n_best_is_the_translation(translator: Translator) -> None:
    plain = translator.translate(TEXTS)
    for text, found in zip(plain, translator.translations(TEXTS, nbest=4), strict=True):
        assert text == found.text == found.nbest[0].text
        scores = [each.score for each in found.nbest]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)


def test_terms_and_prefixes_in_text(translator: Translator) -> None:
    constraints = [["red tree", "!dog"], ["house"], [], ["small"], ["!a", "man"], ["the"]]
    prefixes = ["the", "a man", "", "tree", "", "dog"]
    found = translator.translate(TEXTS, constraints=constraints, prefixes=prefixes, beam=6)
    for each, terms, prefix in zip(found, constraints, prefixes, strict=True):
        assert each.startswith(prefix)
        for term in map(Term.parse, terms):
            assert term.kept(each), (term, each)


def test_a_glossary_applies_where_its_source_occurs(translator: Translator) -> None:
    glossary = Glossary(
        [("dog", Term("Hund")), ("house", Term("Haus")), ("dog", Term("the", False))]
    )
    found = translator.translations(TEXTS, glossary=glossary, beam=6)
    for text, each in zip(TEXTS, found, strict=True):
        words = text.split()
        assert each.terms == each.terms_kept == 2 * ("dog" in words) + ("house" in words)
        if "dog" in words:
            assert "Hund" in each.text and "the" not in each.text.split()


def test_a_greedy_search_meets_its_terms_too(translator: Translator) -> None:
    [text] = translator.translate(["tree"], constraints=[["small dog"]], beam=1)
    assert "small dog" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nbest": 5}, "needs a beam of at least as many"),
        ({"nbest": 3, "beam": 1}, "needs a beam of at least as many"),
        ({"nbest": 0}, "must be at least 1"),
        ({"sample": True, "constraints": [["a"]]}, "need a beam search"),
        ({"diverse_groups": 2, "constraints": [["a"]]}, "need the whole beam"),
        ({"diverse_groups": 3}, "not divisible"),
        ({"diverse_groups": 2, "beam": 1}, "not divisible"),
        ({"sample": True, "diverse_groups": 2}, "leave diverse_groups out"),
        ({"top_k": 3}, "no effect without sample"),
        ({"temperature": -1.0, "sample": True}, "temperature=-1.0 must be"),
        ({"constraints": [["!"]]}, "'!' is not a word or phrase"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    translator: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        translator.translations(["a dog"], **options)
    with pytest.raises(TypeError, match="beams is not an option"):
        translator.translations(["a dog"], beams=3)
    with pytest.raises(TypeError, match="nbest is not an option"):
        translator.translate(["a dog"], nbest=3)


def test_a_translation_that_repeats_itself_has_a_warning(translator: Translator) -> None:
    [dog] = VOCABULARY.encode(["dog"])
    with torch.no_grad():  # the model's favourite, at any time
        only_model(translator).output.weight[dog[-1]] *= 30
    [looped] = translator.translations(["tree"])
    [blocked] = translator.translations(["tree"], no_repeat_ngram=2)
    assert looped.warnings == ("repetition",) and not blocked.warnings


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
    terms = Glossary([("tree", Term("Baum")), ("man", Term("Mann"))])
    [parts_with_terms] = translator.translations([long], glossary=terms, beam=6)
    assert parts_with_terms.terms == parts_with_terms.terms_kept == 2
    [joined] = translator.translations([long], tokens=True, alignment=True, nbest=2)
    assert joined.text and joined.error is None
    parts = split_text(long, lambda text: VOCABULARY.encode([text])[0], 10)
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


def test_blank_lines_with_options(translator: Translator) -> None:
    for each in translator.translations(["", " "], nbest=3, tokens=True, alignment=True):
        assert each.text == "" and each.error is None


def test_a_recipe_sets_what_the_options_set(recipe: Path) -> None:
    overrides = [
        "decoding.coverage_penalty=0.4",
        "decoding.min_length=4",
        "decoding.max_factor=0.5",
        "decoding.no_repeat_ngram=2",
        "decoding.diversity=0.7",
        "decoding.sample=true",
        "decoding.temperature=0.8",
        "decoding.top_k=9",
        "decoding.top_p=0.9",
        "decoding.seed=11",
    ]
    names = (override.removeprefix("decoding.").split("=") for override in overrides)
    options = {name: yaml.safe_load(value) for name, value in names}
    plain = load_config(recipe, [])
    assert load_config(recipe, overrides).decoding == changed_decoding(plain.decoding, options)
    grouped = load_config(recipe, ["decoding.beam=6", "decoding.diverse_groups=3"]).decoding
    assert grouped == changed_decoding(plain.decoding, {"beam": 6, "diverse_groups": 3})
    with pytest.raises(UserError, match=r"decoding\.diverse_groups"):
        load_config(recipe, ["decoding.beam=5", "decoding.diverse_groups=3"])


def test_a_translation_has_at_most_the_promised_tokens(
    make_translator: Callable[..., Translator],
) -> None:
    """The end symbol is none of them."""
    translator = make_translator(beam=3)
    for factor, extra in ((2, 0), (0, 0), (0, 1), (0.29, 0), (1, 3)):
        found = translator.translations(
            TEXTS, max_factor=factor, max_extra=extra, tokens=True, nbest=3
        )
        lens = [len(ids) for ids in VOCABULARY.encode(TEXTS)]
        allowed = [int(Fraction(str(factor)) * size) + extra for size in lens]
        longest = [max(len(each.tokens) for each in one.nbest) for one in found]
        assert all(size <= limit for size, limit in zip(longest, allowed, strict=True))
        assert longest == allowed or factor == 1  # an untrained model writes on


def test_terms_that_cannot_be_kept_cost_their_line(translator: Translator) -> None:
    constraints = [["Haus", "!Haus"], ["\u2581"], [], ["!", "ein"][1:], ["!der"], ["ein  Haus"]]
    found = translator.translations(TEXTS, constraints=constraints, nbest=2, beam=6, max_extra=20)
    assert "terms contradict each other: 'Haus' must appear" in str(found[0].error)
    assert "cannot be written with this model's tokenizer" in str(found[1].error)
    assert [each.error for each in found[2:]] == [None] * 4
    assert found[5].terms_kept == 1 and "ein Haus" in found[5].text
    found = translator.translations(
        TEXTS[:1], constraints=[["!der"]], prefixes=["der Hund"], nbest=2
    )
    assert "the prefix contains 'der'" in str(found[0].error)
    # But the end of a prefix may still become another word.
    found = translator.translations(TEXTS[:1], constraints=[["!der"]], prefixes=["der"], nbest=2)
    assert not found[0].error and found[0].terms_kept == 1


def test_a_word_that_contains_a_forbidden_one_can_be_required(translator: Translator) -> None:
    for beam in (1, 6):

        def kept(*terms: str, beam: int = beam) -> list[int]:
            constraints = [terms] * 3
            found = translator.translations(
                TEXTS[:3], constraints=constraints, beam=beam, max_extra=30
            )
            return [each.terms_kept for each in found]

        alone = kept("Mittelbreit")  # an untrained model may run out of tokens
        assert sum(alone) >= 2
        assert kept("!Mittel", "Mittelbreit") == [count + 1 for count in alone]


def test_the_texts_of_an_n_best_list_differ(translator: Translator) -> None:
    """An untrained model writes one text with many pieces."""
    for groups in (1, 2):
        found = translator.translations(
            TEXTS, max_factor=0, max_extra=4, nbest=8, beam=8, diverse_groups=groups
        )
        for each in found:
            texts = [candidate.text for candidate in each.nbest]
            assert len(set(texts)) == len(texts) > 3


@pytest.mark.parametrize("search", [True, False])
def test_links_are_within_the_words_of_both_texts(
    make_translator: Callable[..., Translator], search: bool
) -> None:
    """Words are those of `str.split`, in lines that are translated in parts, too."""
    translator = make_translator(limit=12, beam=2)
    texts = [
        "\u6f22\u5b57" * 40, "\u00a0".join(["the dog"] * 9), "a\u200bman  sees\u3000it",
        "x" * 50 + " the dog", "the dog", " the\tdog ",
    ]  # fmt: skip
    targets = ["\u2581der Hund", " \u2581 der", "ein\u00a0Haus", "", "\u2581", "\u200b a"]
    if not search:
        texts = ["the dog\u00a0sees"] * len(targets)
    found = translator.translations(
        texts, references=None if search else [[each] for each in targets], search=search,
        alignment=True, max_extra=4,
    )  # fmt: skip
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
    parts = split_text(text, lambda each: VOCABULARY.encode([each])[0], 12)
    assert len(parts) > 1
    queries = [Segment(ids, seed=(7, i)) for i, (ids, _, _) in enumerate(parts)]
    drawn = engine_of(translator).search(queries, decoding, nbest=5)
    expected = sorted(
        ["".join(gap + VOCABULARY.decode([each.tokens])[0] for (_, _, gap), each in
                 zip(parts, one, strict=True)) for one in zip(*drawn, strict=True)]
    )  # fmt: skip
    [found] = translator.process([Request(text, 7)], decoding, nbest=5)
    assert sorted(each.text for each in found.nbest) == expected
    scores = [each.score for each in found.nbest]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 5


def test_a_glossary_applies_to_each_part_by_its_own_overlaps(
    make_translator: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make_translator(limit=12, max_extra=20, beam=4)
    searched: list[Segment] = []
    search = engine_of(translator).search

    def noted(queries: list[Segment], *rest: Any, **options: Any) -> Any:
        searched.extend(queries)
        return search(queries, *rest, **options)

    monkeypatch.setattr(engine_of(translator), "search", noted)
    glossary = Glossary([("dog", Term("Hund")), ("hot dog", Term("Wurst"))])
    translator.translate(["a hot dog. " + "the man. " * 8 + "the dog"], glossary=glossary)
    terms = [tuple(term.text for term in query.terms) for query in searched]
    assert len(terms) > 2 and sorted(filter(None, terms)) == [("Hund",), ("Wurst",)]
