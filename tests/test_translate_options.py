"""Options of translate: n-best lists, scores, references, terms, prefixes, samples, warnings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import VOCABULARY
from test_translator import LINES, members, only_model  # noqa: F401

from seq2seq import Translator
from seq2seq.decoding.engine import Query
from seq2seq.decoding.ensemble import Ensemble
from seq2seq.decoding.options import Output, changed_decoding
from seq2seq.decoding.request import Request
from seq2seq.decoding.segments import split_text
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.decoding.translation import Translation
from seq2seq.errors import UserError
from seq2seq.model.recipe import load_config

TEXTS = [line for line in LINES[:8] if line.strip()]

OPTIONS: dict[str, dict[str, Any]] = {
    "nbest": {"nbest": 3},
    "greedy": {"beam": 1, "scores": True},
    "coverage": {"coverage_penalty": 0.4, "scores": True},
    "lengths": {"min_length": 4, "max_factor": 0.5, "max_extra": 9, "scores": True},
    "ngrams": {"no_repeat_ngram": 2, "scores": True},
    "groups": {"diverse_groups": 2, "nbest": 4},
    "samples": {"sample": True, "nbest": 3, "seed": 11, "temperature": 0.8, "top_p": 0.9},
    "retries": {"retry_repetitions": False, "scores": True},
    "tokens and alignment": {"tokens": True, "alignment": True, "pieces": True},
}


@pytest.fixture
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator(beam=4, max_extra=8, length_penalty=0.6)


def alike(one: Translation, other: Translation) -> None:
    assert [each.text for each in one.nbest] == [each.text for each in other.nbest]
    for first, second in zip(one.nbest, other.nbest, strict=True):
        assert first.score == pytest.approx(second.score, abs=1e-4)
        assert first.alignment == second.alignment
        assert [piece for piece, _ in first.tokens] == [piece for piece, _ in second.tokens]
    assert one.warnings == other.warnings and one.pieces == other.pieces


OUTPUTS = {"nbest", "scores", "tokens", "alignment", "pieces"}


def check_batches(translator: Translator, options: dict[str, Any]) -> None:
    """Check that lines are translated alike together, in small batches, and alone."""
    together = translator.translate(TEXTS, **options)
    small = translator.translate(TEXTS, batch_tokens=60, **options)
    wanted = Output(**{key: options[key] for key in OUTPUTS & options.keys()})
    decoding = {key: value for key, value in options.items() if key not in OUTPUTS}
    changed = changed_decoding(translator.decoding, decoding)
    for number, text in enumerate(TEXTS):
        [alone] = translator.process([Request(text, number)], changed, wanted)
        alike(together[number], alone)
        alike(together[number], small[number])


@pytest.mark.parametrize("name", OPTIONS)
def test_with_any_option_a_line_is_translated_alike_alone_and_in_any_batch(
    translator: Translator, name: str
) -> None:
    check_batches(translator, OPTIONS[name])


REFUSED = {
    frozenset({"nbest", "greedy"}): "needs a beam of at least as many",
    frozenset({"greedy", "groups"}): "not divisible",
    frozenset({"groups", "samples"}): "leave decoding.diverse_groups out",
}


@pytest.mark.parametrize("names", itertools.combinations(OPTIONS, 2), ids=" and ".join)
def test_pairs_of_options_work_together_or_are_refused(
    translator: Translator, names: tuple[str, str]
) -> None:
    first, second = names
    options = OPTIONS[first] | OPTIONS[second]
    if reason := REFUSED.get(frozenset(names)):
        with pytest.raises(UserError, match=reason):
            translator.translate(TEXTS, **options)
    else:
        check_batches(translator, options)


@pytest.mark.parametrize("options", [{}, {"coverage_penalty": 0.5}, {"beam": 1}])
@pytest.mark.parametrize("ensemble", [False, True])
def test_forced_scoring_gives_the_numbers_of_the_search(
    translator: Translator,
    members: list[Translator],  # noqa: F811
    options: dict[str, float],
    ensemble: bool,
) -> None:
    if ensemble:
        translator.engine.model = Ensemble([only_model(member) for member in members])
    decoding = changed_decoding(translator.decoding, options)
    engine = translator.engine
    sources = VOCABULARY.encode(TEXTS)
    found = engine.search([Query(source) for source in sources], decoding)
    pairs = [(s, best.tokens) for s, [best] in zip(sources, found, strict=True)]
    for [best], scored in zip(found, engine.score(pairs, decoding, engine.heads), strict=True):
        assert scored.hypothesis.log_prob == pytest.approx(best.log_prob, rel=1e-6, abs=1e-5)
        assert scored.hypothesis.score == pytest.approx(best.score, rel=1e-6, abs=1e-5)
        assert sum(scored.log_probs) == pytest.approx(best.log_prob, rel=1e-6, abs=1e-5)
        assert len(scored.log_probs) == len(best.tokens) + 1
        assert scored.attention is not None and len(scored.attention) == len(best.tokens)
    for source, [best] in zip(sources, found, strict=True):  # and in the text's own batch
        [scored] = engine.score([(source, best.tokens)], decoding)
        assert scored.hypothesis.log_prob == pytest.approx(best.log_prob, rel=1e-6, abs=1e-5)


def test_the_translation_of_a_search_scores_as_much_as_a_reference(translator: Translator) -> None:
    found = translator.translate(TEXTS, scores=True, retry_repetitions=False)
    references = [[each.text] for each in found]
    again = translator.translate(TEXTS, references=references, tokens=True)
    for first, second in zip(found, again, strict=True):
        [reference] = second.references
        assert reference.text == first.text
        if "\ufffd" in first.text:  # not what the model wrote
            continue
        # Another segmentation may be better than that of the search.
        assert reference.log_prob >= first.log_prob - 1e-4
        assert sum(x for _, x in reference.tokens) == pytest.approx(reference.log_prob, abs=1e-5)


def test_the_first_of_n_best_is_the_translation(translator: Translator) -> None:
    plain = translator.translate(TEXTS)
    for text, found in zip(plain, translator.translate(TEXTS, nbest=4), strict=True):
        assert text == found.text == found.nbest[0].text
        scores = [each.score for each in found.nbest]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)


def test_terms_and_prefixes_in_text(translator: Translator) -> None:
    constraints = [["red tree", "!dog"], ["house"], [], ["small"], ["!a", "man"], ["the"]]
    prefixes = ["the", "a man", "", "tree", "", "dog"]
    found = translator.translate(TEXTS, constraints=constraints, prefixes=prefixes, beam=6)
    for each, terms, prefix in zip(found, constraints, prefixes, strict=True):
        text = each if isinstance(each, str) else each.text
        assert text.startswith(prefix)
        for term in map(Term.parse, terms):
            assert term.kept(text), (term, text)


def test_a_glossary_applies_where_its_source_occurs(translator: Translator) -> None:
    glossary = Glossary(
        [("dog", Term("Hund")), ("house", Term("Haus")), ("dog", Term("the", False))]
    )
    found = translator.translate(TEXTS, glossary=glossary, scores=True, beam=6)
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
        ({"nbest": 0}, "must be at least 1"),
        ({"sample": True, "constraints": [["a"]]}, "need a beam search"),
        ({"diverse_groups": 2, "constraints": [["a"]]}, "need the whole beam"),
        ({"diverse_groups": 3}, "not divisible"),
        ({"sample": True, "diverse_groups": 2}, "leave decoding.diverse_groups out"),
        ({"top_k": 3}, "no effect without decoding.sample"),
        ({"temperature": -1.0, "sample": True}, "decoding.temperature=-1.0 must be"),
        ({"constraints": [["!"]]}, "'!' is not a word or phrase"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    translator: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        translator.translate(["a dog"], **options)
    with pytest.raises(TypeError, match="beams is not an option"):
        translator.translate(["a dog"], beams=3)


def test_a_translation_that_repeats_itself_is_searched_again(translator: Translator) -> None:
    [dog] = VOCABULARY.encode(["dog"])
    with torch.no_grad():  # the model's favourite, at any time
        only_model(translator).output.weight[dog[-1]] *= 30
    [looped] = translator.translate(["tree"], retry_repetitions=False, scores=True)
    [retried] = translator.translate(["tree"], scores=True)
    assert looped.warnings == ("repetition",)
    assert retried.warnings == ("retried",)
    assert retried.text != looped.text


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
        found = translator.translate([long, "tree"], scores=True, **options)
        assert found[0].error and "exceeds the maximum source length of 10" in found[0].error
        assert found[0].text == "" and found[1].error is None
    terms = Glossary([("tree", Term("Baum")), ("man", Term("Mann"))])
    [parts_with_terms] = translator.translate([long], glossary=terms, scores=True, beam=6)
    assert parts_with_terms.terms == parts_with_terms.terms_kept == 2
    [joined] = translator.translate([long], tokens=True, alignment=True, nbest=2)
    assert joined.text and joined.error is None
    parts = split_text(long, lambda text: VOCABULARY.encode([text])[0], 10)
    assert len(parts) > 1
    expected: list[tuple[int, int]] = []
    words = 0, 0
    for _, text, _ in parts:
        [part] = translator.translate([text], alignment=True, nbest=2)
        expected += [(i + words[0], j + words[1]) for i, j in part.alignment]
        words = words[0] + len(text.split()), words[1] + len(part.text.split())
    assert list(joined.alignment) == expected
    assert sum(x for _, x in joined.tokens) == pytest.approx(joined.log_prob, abs=1e-4)


def test_equal_lines_have_different_samples(translator: Translator) -> None:
    drawn = translator.translate(["the dog"] * 5, sample=True)
    assert len(set(drawn)) > 2 and drawn == translator.translate(["the dog"] * 5, sample=True)


def test_blank_lines_with_options(translator: Translator) -> None:
    for each in translator.translate(["", " "], nbest=3, tokens=True, alignment=True):
        assert each.text == "" and each.error is None


def test_a_recipe_sets_what_the_options_set(recipe: Path) -> None:
    overrides = [
        "decoding.coverage_penalty=0.4",
        "decoding.min_length=4",
        "decoding.max_factor=0.5",
        "decoding.no_repeat_ngram=2",
        "decoding.retry_repetitions=false",
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
