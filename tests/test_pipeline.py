"""The way of a text to a model and back, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from seq2seq.text.language import Sentences
from seq2seq.text.pipeline import Pipeline, Stage, training_pair
from seq2seq.text.protect import ProtectedText, Spelling, compile_patterns

PATTERN = compile_patterns(["all"], "protect")
PARTS = [
    "the dog",
    "THE DOG",
    "%s",
    "https://a.org/x?y",
    "{name}",
    "A man.",
    " ",
    "NO! ",
    "狗喜欢。",
    "🎉",
]


class Reversed:
    """A stage: the model reads and writes texts from right to left."""

    def before(self, text: ProtectedText) -> tuple[list[ProtectedText], None]:
        return [ProtectedText(text.text[::-1], text.spans[::-1], text.separator)], None

    def given(self, text: str, undo: None) -> str:
        return text[::-1]

    def after(self, texts: Sequence[str], undo: None) -> str:
        [text] = texts
        return text[::-1]


def pipeline(*, placeholders: bool = True, tag: str | None = None) -> Pipeline:
    return Pipeline(Spelling(PATTERN, placeholders), languages=["en"], tag=tag)


def count(texts: Sequence[ProtectedText]) -> list[int]:
    return [len(text.text) for text in texts]


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=30).map(" ".join),
    st.booleans(),
    st.sampled_from([None, Sentences(["en"]), Sentences(["en"], 12, count)]),
)
def test_a_model_that_copies_its_source_returns_the_text(
    text: str, placeholders: bool, sentences: Sentences | None
) -> None:
    """Also in capitals, and however the text is split; white space at the end is dropped."""
    whole = pipeline(placeholders=placeholders)
    stages: list[Stage] = [*whole.stages(recase=False, sentences=sentences), Reversed()]
    for used in (stages[:-1], stages):
        prepared = whole.before(text, used)
        copied = prepared.after([segment.read for segment in prepared.segments])
        assert copied.rstrip() == text.rstrip() or not text.strip()
    if sentences and sentences.max_len:
        assert all(len(x.text.text) <= 12 for x in prepared.segments)


def test_stages_are_undone_in_the_reverse_order() -> None:
    way = pipeline(tag="<x>")
    stages = way.stages(sentences=Sentences(["en"]))
    prepared = way.before("SEE %s NOW. Go to {b}, %s", stages)
    [first, second] = prepared.segments
    [symbol] = [x for x, span in first.text.spans if span == "%s"]
    assert first.read == f"<x> See {symbol} now."
    assert [span for _, span in second.text.spans] == ["{b}", "%s"]
    b, s = (x for x, _ in second.text.spans)
    # The first sentence lost its span, and the second repeats one.
    assert prepared.after(["Jetzt.", f"{b} {s} {s}"]) == "JETZT. %s {b} %s"


def test_a_given_translation_goes_through_all_stages() -> None:
    way = pipeline()
    prepared = way.before("THE DOG %s", [*way.stages(), Reversed()])
    [symbol] = [x for x, _ in prepared.whole.spans]
    assert prepared.given("DER HUND %s") == f"{symbol} dnuh reD"
    assert prepared.after([prepared.given("DER HUND %s")]) == "DER HUND %s"
    assert pipeline(placeholders=False).before("a %s", []).given("b %s") == "b %s"


def test_training_pairs_have_placeholders_and_a_tag() -> None:
    source, target = training_pair("a %s", "%s b", PATTERN, "<x>")
    assert source == f"<x> a {target[0]}" and target[1:] == " b"
    assert training_pair("a %s", "b", None, None) == ("a %s", "b")


def test_capitals_are_counted_as_they_are_read() -> None:
    """A sentence is split by the length of what the model reads, in sentence case."""

    def as_read(texts: Sequence[ProtectedText]) -> list[int]:
        read = [way.stages()[0].before(text)[0][0].text for text in texts]
        return [len(text) + 20 * text.startswith("The") for text in read]

    way = pipeline()
    stages = way.stages(sentences=Sentences(["en"], 30, as_read))
    prepared = way.before("THE DOG SEES A MAN", stages)
    assert len(prepared.segments) > 1
    assert prepared.after([x.read for x in prepared.segments]).upper() == "THE DOG SEES A MAN"


def test_spans_keep_their_case() -> None:
    prepared = pipeline().before("PRESS THE BUTTON", pipeline().stages())
    assert prepared.after(["Drücken &amp; http://a.b/c."]) == "DRÜCKEN &amp; http://a.b/c."
    assert prepared.given("DIE DATEI https://A.b/c") == "Die datei https://A.b/c"
