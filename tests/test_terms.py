"""Terms, glossaries, and the rules that they make of a vocabulary's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import VOCABULARY

from seq2seq.decoding.constraints import Forbidden, TokenTexts
from seq2seq.decoding.terms import Glossary, Term, kept_of
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
    ],
)
def test_a_term_is_found_as_whole_words(term: str, text: str, found: bool) -> None:
    assert Term.parse(term).kept(text) == found
    assert Term.parse(f"!{term}").kept(text) != found
    assert kept_of([Term.parse(term), Term.parse(f"!{term}")], text) == 1


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
    assert "'a' has two translations" in message("a\tb\na\tc\n")
    with pytest.raises(UserError, match="cannot be read"):
        Glossary.load(tmp_path / "none")
    (tmp_path / "g.tsv").write_text("a  b\tx\na b\t!y\n\na b\tx\n")
    assert len(Glossary.load(tmp_path / "g.tsv").terms("so a b")) == 3


def test_every_segmentation_of_a_forbidden_term_is_forbidden() -> None:
    texts = TokenTexts(VOCABULARY.token_bytes())
    term = Term("red tree", required=False)
    rule = Forbidden([[term]], texts)
    for start in (
        "",
        "the",
        "the re",
        "the red",
        "the red ",
        "the red tre",
        "the red t",
        "hundred",
    ):
        [ids] = VOCABULARY.encode([start])
        completing = set(rule.completing(texts.join(ids), term))
        for token in range(VOCABULARY.size):
            before, after = texts.join(ids), texts.join([*ids, token])
            completed = not term.kept(after) and term.kept(before)
            assert (token in completing) == completed, (start, VOCABULARY.pieces([token]))
