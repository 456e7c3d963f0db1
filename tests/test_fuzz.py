"""Translation of arbitrary bytes: one output line per line, independent of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seq2seq.data.streams import process_streams
from seq2seq.decoding.translator import Translator
from seq2seq.processes import Processes

SPECIAL = [
    b"",
    b" ",
    b"\t",
    b"\r",
    b"\x00",
    b"\x0b\x0c\x1b[31m",
    b"\xff\xfe",
    b"\xed\xa0\x80",  # a lone surrogate
    "\u2028\u2029\u0085".encode(),
    "שלום עולם".encode(),
    "\u202eabc".encode(),
    "👩‍👩‍👧‍👦🏳️‍🌈".encode(),
    "e\u0301".encode(),
    b"dog\r",
    b"the dog " * 40,
    "。".encode() * 90,
    b"a" * 300,
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
