"""Translation of arbitrary bytes and of documents with random changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_documents import DOCUMENTS, HTML

from seq2seq.data.lines import process_streams
from seq2seq.decoding.translator import Translator
from seq2seq.documents.formats import FORMATS, read_document
from seq2seq.documents.markup import html_tokens
from seq2seq.errors import UserError
from seq2seq.processes import Processes
from seq2seq.text.language import TOKENS

SPECIAL = [
    *(b"", b" ", b"\t", b"\r", b"\x00", b"\x0b\x0c\x1b[31m", b"\xff\xfe", b"dog\r"),
    b"\xed\xa0\x80",  # a lone surrogate
    *map(str.encode, ["\u2028\u2029\u0085", "שלום עולם", "\u202eabc", "👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301"]),
    *(b"the dog " * 40, "。".encode() * 90, b"a" * 300),
]
LINE = st.one_of(
    st.sampled_from(SPECIAL),
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
    st.text(max_size=30).map(lambda text: text.replace("\n", "").encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from(SPECIAL), max_size=3).map(b" ".join),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(LINE, max_size=8), ends=st.booleans())
def test_any_bytes(
    make_translator: Callable[..., Translator], folder: Path, lines: list[bytes], ends: bool
) -> None:
    translator = make_translator(max_factor=0.0)  # which bounds the time of long lines
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    expected = data.count(b"\n") + (0 if data.endswith(b"\n") or not data else 1)
    (folder / "in").write_bytes(data)
    process_streams(
        translator.translate,
        [folder / "in"],
        folder / "out",
        errors="replace",
        processes=Processes(),
    )
    out = (folder / "out").read_bytes()
    assert out.count(b"\n") == expected
    translations = out.decode().split("\n")
    for line, translation in zip(data.split(b"\n")[:expected], translations, strict=False):
        text = line.removesuffix(b"\r").decode("utf-8", "replace")
        assert translator.translate([text]) == [translation]
        assert text.strip() or not translation


def test_a_line_of_a_hundred_thousand_characters(
    make_translator: Callable[..., Translator], folder: Path
) -> None:
    text = "the dog sees the big tree. " * 1_852 + "thedog" * 8_334
    (folder / "long").write_text(f"{text}\ndog\n")
    process_streams(
        make_translator(max_factor=0.0).translate,
        [folder / "long"],
        folder / "out",
        processes=Processes(),
    )
    assert (folder / "out").read_bytes().count(b"\n") == 2


MARKUP = r"""
< > & &amp; &#0; <![x <![CDATA[ ]]> <!-- --> </ <b> </b> <p> </p> <script> <source> <target> /> <?
msgstr[#0] msgstr[9] charset= nplurals=9999 00:00:0x - { } \ " ' * _ ` [ ]( ) é 红色 😀 <http://a.b>
"""
PIECES = [
    *MARKUP.split(),
    *("\0", "\r\n", "\r", "\n", "\n\n", "\t", " ", "    ", "\ud800", "\u2028", "\ufeff"),
    *('msgid ""\n', 'msgstr ""\n', "#~ ", "#|", "00:00:01,000 --> 00:00:02,000\n", "3\n"),
    *(f"&#{'9' * 5000};", "<a b='", "| ", "> ", "- ", "# ", "---\n", "```\n"),
]
"""Insertions that parsers treat specially."""


def mutated(text: str, rng: random.Random) -> str:
    """Return a text with a few random deletions, insertions, repetitions and exchanges."""
    for _ in range(rng.randint(1, 5)):
        a, b, c = sorted(rng.randint(0, len(text)) for _ in range(3))
        b, c = min(b, a + rng.randint(0, 20)), min(c, b + rng.randint(0, 20))
        text = rng.choice(
            [
                text[:a] + text[b:],
                text[:a] + rng.choice(PIECES) + text[a:],
                text[:b] + text[a:],
                text[:a] + text[b:c] + text[a:b] + text[c:],
            ]
        )
    return text


def characters(text: str, form: str) -> Counter[str]:
    """Count the characters that are no white space, without character references."""
    text = text.replace("\0", " ").replace("\ud800", "?")
    if form in ("html", "xml"):
        text = "".join(token.text or token.raw for token in html_tokens(text))
    return Counter("".join(text.split()))


SAMPLES = DOCUMENTS | {"html": HTML.replace("kbd", "em").replace("notranslate", "")}
"""Without elements in sentences that are not translated: text in the same word can be lost."""


def check_document(text: str, form: str, rng: random.Random) -> None:
    """Read and write a document. It may be refused by a UserError, but not later."""
    try:
        document = read_document(text, form)
    except UserError:
        return
    source = characters(text, form)
    result = document.write([block.place(block.text, ()) for block in document.blocks])
    if form in ("html", "xml", "srt"):
        assert result == text.encode("utf-8", "replace").decode()
        translations = [
            x.place(f"x {x.text}", [(i, i + 1) for i in range(len(TOKENS.findall(x.text)))])
            for x in document.blocks
        ]
        result = document.write(translations)  # tags in a word move to its end
        assert characters(result, form) == source + Counter(x=len(translations))
    if form == "xliff":
        assert not source - characters(result, form)
    translations = []
    for block in document.blocks:
        translation = " ".join(rng.choices(["x", "<y>", "&", "*z*", "1\n"], k=rng.randint(0, 5)))
        size, own = len(TOKENS.findall(translation)), len(TOKENS.findall(block.text))
        links = [(rng.randrange(own), rng.randrange(size)) for _ in range(3 * min(own, size, 1))]
        translations.append(block.place(translation, links))
    document.write(translations)


@pytest.mark.parametrize("form", FORMATS)
def test_a_document_with_random_changes_is_translated_or_refused(form: str) -> None:
    for seed in range(500):
        rng = random.Random(seed)
        check_document(mutated(SAMPLES[form], rng), form, rng)
