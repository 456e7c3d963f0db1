"""Terms and glossaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from seq2seq.decoding.terms import Glossary, Term
from seq2seq.errors import UserError


@pytest.mark.parametrize(
    ("term", "text", "expected"),
    [
        ("Haus", "das Haus.", True),
        ("Haus", "das Hausboot", False),
        ("Haus", "Baumhaus", False),
        ("a b", "x a b, c", True),
        ("C++", "in C++ geschrieben", True),
        (".NET", "unter .NET, x.NET", True),
        ("房子", "我的房子很大", True),
        ("Straße", "STRASSE", False),
        ("cafe", "das cafe\u0301.", False),
        ("cafe\u0301", "das cafe\u0301.", True),
        ("\u0915\u092e", "\u0915\u092e\u0940", False),
        ("\u0643\u062a\u0628", "\u0643\u064e\u0643\u062a\u0628", False),
        ("a", "\u00e9a", False),
    ],
)
def test_a_term_matches_whole_words_only(term: str, text: str, expected: bool) -> None:
    assert Term(term).kept(text) == expected


def test_a_glossary_prefers_the_longest_source_and_may_be_case_sensitive(tmp_path: Path) -> None:
    path = tmp_path / "glossary.tsv"
    path.write_text("house\tHaus\ntree  house\tBaumhaus\n\nIT\tEDV\nhouse\t Haus\ndog\t!Hund\n")
    glossary = Glossary.load(path)

    def terms(text: str) -> set[str]:
        return {term.text for term in glossary.terms(text)}

    assert terms("The House of the dogs") == {"Haus"}
    assert terms("A Tree house") == {"Baumhaus"}
    assert terms("A tree house and a house") == {"Baumhaus", "Haus"}
    assert terms("it is IT") == {"EDV"} and terms("it is") == set()
    assert terms("Dog") == {"!Hund"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nhouse Haus\n", "g.tsv, line 2: 'house Haus' is not source<TAB>target"),
        ("house\t \n", "line 1: "),
        ("a\tb\na\tc\n", "g.tsv, line 2: 'a' has two translations"),
    ],
)
def test_invalid_glossaries_are_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "g.tsv").write_text(text)
    with pytest.raises(UserError, match=message):
        Glossary.load(tmp_path / "g.tsv")


@pytest.mark.parametrize("space", ["\u00a0", " \u2009"])
def test_any_white_space_may_separate_the_words_of_a_glossary_source(space: str) -> None:
    glossary = Glossary([Term("Baumhaus", "tree house")])
    assert list(glossary.terms(f"a tree{space}house")) == [Term("Baumhaus", "tree house")]
    assert not glossary.terms(f"a tree{space}houses") and not glossary.terms("a treehouse")
