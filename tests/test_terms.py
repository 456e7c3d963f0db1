"""Terms, glossaries, and the rules that they make of a vocabulary's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import VOCABULARY

from seq2seq.decoding.rules import Forbidden, TokenTexts
from seq2seq.decoding.terms import Glossary, Term, contradiction
from seq2seq.errors import UserError


@pytest.mark.parametrize(
    ("term", "text", "found"),
    [
        ("Haus", "das Haus.", True),
        ("Haus", "das Hausboot", False),
        ("Haus", "Baumhaus", False),
        ("Haus", "Haus", True),
        ("a b", "x a b, c", True),
        ("C++", "in C++ geschrieben", True),
        ("C++", "C++17", True),
        (".NET", "unter .NET, x.NET", True),
        ("房子", "我的房子很大", True),
        ("Straße", "STRASSE", False),
        ("cafe", "das cafe\u0301.", False),
        ("cafe\u0301", "das cafe\u0301.", True),
        ("cafe\u0301", "das cafe\u0301s", False),
        ("\u0915\u092e", "\u0915\u092e\u0940", False),
        ("\u0915\u092e\u0940", "\u0915\u092e\u0940 \u0939\u0948", True),
        ("\u0643\u062a\u0628", "\u0643\u064e\u0643\u062a\u0628", False),
        ("a", "\u00e9a", False),
    ],
)
def test_a_term_is_found_as_whole_words(term: str, text: str, found: bool) -> None:
    assert Term.parse(term).kept(text) == found
    assert Term.parse(f"!{term}").kept(text) != found


def test_a_glossary_takes_the_longest_source_and_minds_capitals() -> None:
    glossary = Glossary(
        [
            ("house", Term("Haus")),
            ("tree house", Term("Baumhaus")),
            ("IT", Term("EDV")),
            ("dog", Term("Hund")),
            ("dog", Term("Köter", required=False)),
        ]
    )

    def terms(text: str) -> set[str]:
        return {term.text for term in glossary.terms(text)}

    assert terms("The House of the dogs") == {"Haus"}
    assert terms("A Tree house") == {"Baumhaus"}
    assert terms("A tree house and a house") == {"Baumhaus", "Haus"}
    assert terms("it is IT") == {"EDV"} and terms("it is") == set()
    assert terms("Dog") == {"Hund", "Köter"}


def test_mistakes_in_a_glossary_are_named(tmp_path: Path) -> None:
    def message(text: str) -> str:
        (tmp_path / "g.tsv").write_text(text)
        with pytest.raises(UserError) as error:
            Glossary.load(tmp_path / "g.tsv")
        return str(error.value)

    assert "g.tsv, line 2: 'house Haus' is not source<TAB>target" in message("\nhouse Haus\n")
    assert "line 1" in message("house\t!\n") and "line 1" in message("a\tb\tc\n")
    assert "g.tsv: 'a' has two translations" in message("a\tb\na\tc\n")
    with pytest.raises(UserError, match="cannot be read"):
        Glossary.load(tmp_path / "none")
    (tmp_path / "g.tsv").write_text("a  b\tx\na b\t!y\n\na b\tx\n")
    assert len(Glossary.load(tmp_path / "g.tsv").terms("so a b")) == 3


STARTS = ["", "the", "the re", "the red", "the red ", "the red tre", "the red t", "hundred",
          "the red tree", "a red tree", "red tree red", "rot", "rote", "B\u00e4"]  # fmt: skip


@pytest.mark.parametrize(
    "term", ["red tree", "red", "re\u0301d", "B\u00e4ume", "rot,", "\u6728", "C++"]
)
def test_a_token_is_forbidden_if_a_term_has_appeared_with_it(term: str) -> None:
    """A term at the end of an unfinished text has not: the word may continue."""
    texts, eos_id = TokenTexts(VOCABULARY.token_bytes()), VOCABULARY.eos_id
    forbidden = Term(term, required=False)
    rule = Forbidden([[(forbidden, True)]], texts, eos_id)

    def appeared(text: str) -> bool:
        """By definition: whatever character follows, a letter too."""
        return all(not forbidden.kept(f"{text}{after}") for after in ("", "x", "\u0301", " "))

    for start in (*STARTS, f"a {term}", f"a {term}x", f"x{term}"):
        [ids] = VOCABULARY.encode([start])
        before = texts.join(ids)
        if appeared(before):  # only a prefix could contain it
            continue
        completing = set(rule.completing(ids, forbidden, wait=True))
        for token in set(range(VOCABULARY.size)) - {eos_id}:
            new = appeared(texts.join([*ids, token]))
            assert (token in completing) == new, (start, VOCABULARY.pieces([token]))
        assert (eos_id in completing) == (not forbidden.kept(before)), start
        if forbidden.kept(before):  # at once, it never gets that far
            completing = set(rule.completing(ids, forbidden, wait=False))
            for token in set(range(VOCABULARY.size)) - {eos_id}:
                new = not forbidden.kept(texts.join([*ids, token]))
                assert (token in completing) == new, (start, VOCABULARY.pieces([token]))


def test_terms_that_contradict_each_other() -> None:
    def problem(*terms: str) -> str | None:
        return contradiction([Term.parse(term) for term in terms])

    assert problem("Datei", "!Datei") == "'Datei' must appear, but 'Datei' must not"
    assert problem("die Datei", "!Datei") and problem("!Mittel", "Mittel-Wert")
    assert problem("Mittelwert", "!Mittel") is None and problem("Datei", "!datei") is None
    assert problem("!die Datei", "Datei") is None and problem("a", "b", "!c", "!c") is None
    with pytest.raises(UserError, match="terms for 'file' contradict: 'Datei' must appear"):
        Glossary([("file", Term("Datei")), ("file", Term("Datei", required=False))])


@pytest.mark.parametrize("space", [" ", "  ", "\u00a0", "\t", " \u2009"])
def test_a_glossary_s_source_matches_across_any_white_space(space: str) -> None:
    glossary = Glossary([("tree house", Term("Baumhaus"))])
    assert glossary.terms(f"a tree{space}house") == [Term("Baumhaus", source="tree house")]
    assert not glossary.terms(f"a tree{space}houses") and not glossary.terms("a treehouse")
