"""Documents: everything but the translated text stays, and markup stays balanced."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.parsers import expat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.cli import main
from seq2seq.decoding.translator import Translator
from seq2seq.documents.blocks import Block, Links
from seq2seq.documents.formats import (
    FORMATS,
    SUFFIXES,
    decode_document,
    encode_document,
    read_document,
)
from seq2seq.errors import UserError
from seq2seq.text.language import TOKENS, sentences

TAG = re.compile(r"<[^>]*>")
HTML = """<!DOCTYPE html>
<html><head><title>A &amp; B</title><style>p > b { color: red }</style></head>
<body class='x'><!-- a <b>comment</b> -->
<p>Click <b>the <i>red</i> button</b>, then <kbd>F1</kbd>.</p>
<script>if (a<b) { "<p>text</p>" }</script><ul><li>one<li>two&nbsp;words</ul>
<pre>keep</pre><textarea><p></textarea><![CDATA[x]]>
<p translate="no">keep <b>it</b></p><p>a <span class="big notranslate">name</span> and
<img src="a.png" alt='x > y'>a <a href="?a=1&amp;b=2">link</a> &copy; 1 &lt; 2</p>
<td>5</td></body></html>
"""
XML = """<?xml version="1.0"?><!DOCTYPE d [<!ENTITY co "ACME">]>
<d><s id = '2'><para>a <emph>b</emph> &co; c</para><lit>f &lt; g</lit></s><![CDATA[a < b]]></d>"""
XLIFF = """<xliff version="1.2"><file><body>
<trans-unit id="1"><source>Press <g id="1">OK</g><x id="2"/>.</source></trans-unit>
<trans-unit id="2"><source>Done</source>
 <target>Fertig</target></trans-unit>
<trans-unit id="3"><source>Go on</source><target state="new"/></trans-unit>
<trans-unit id="4" translate="no"><source>Off</source></trans-unit>
<trans-unit id="5"><alt-trans><source>Old</source></alt-trans></trans-unit>
<segment><source>a</source><seg-source>b</seg-source></segment>
</body></file></xliff>"""
PO = """# A comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=n%10;\\n"

#: a.c:1
#, c-format
msgid "open %s\\n"
msgstr ""

#, fuzzy
#| msgid "old"
msgctxt "x"
msgid "a long line "
"in two parts"
msgstr "alt"

msgid "file"
msgid_plural "files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

#~ msgid "obsolete"
#~ msgstr "veraltet"
"""
SRT = """1
00:00:01,000 --> 00:00:02,500 X1:40 X2:600
<i>open the file
and close it</i>

2
00:00:03,000 --> 00:00:04,000
{\\an8}- a <b>color</b>
- no

"""
DOCTYPE = """<!DOCTYPE p SYSTEM 'x>"' [ <!-- it's ]> --> <!ENTITY notice ']> "b"'><?a ']>?>]>"""
MARKDOWN = """---
title: front matter
---
# open *the file*

click **the button** here
and [read](http://a.org "Title") `code` or ![picture](p.png)

> one [two][ref] 1\\*2
> three

| name | value |
|---|---|
| **bold** | 5 \\| 6 |

- one  
  <b>two</b>

```sh
code
```

[ref]: http://b.org
"""
DOCUMENTS = {"html": HTML, "xml": XML, "xliff": XLIFF, "po": PO, "srt": SRT, "markdown": MARKDOWN}


def translated(text: str, form: str, translate: Callable[[Block], tuple[str, Links]]) -> str:
    document = read_document(text, form)
    return document.write([block.place(*translate(block)) for block in document.blocks])


def upper(block: Block) -> tuple[str, Links]:
    """Translate to upper case, with the same words."""
    return block.text.upper(), [(i, i) for i in range(len(TOKENS.findall(block.text)))]


def same(block: Block) -> tuple[str, Links]:
    return block.text, ()


def shuffled(seed: int) -> Callable[[Block], tuple[str, Links]]:
    """Return a translation with other words, and random links."""
    rng = random.Random(seed)

    def translate(block: Block) -> tuple[str, Links]:
        words = [rng.choice(["x", "<y>", "&", "zz, z", "."]) for _ in range(rng.randint(0, 9))]
        text = " ".join(words)
        size, own = len(TOKENS.findall(text)), len(TOKENS.findall(block.text))
        count = rng.randint(0, 12) if size and own else 0
        return text, [(rng.randrange(own), rng.randrange(size)) for _ in range(count)]

    return translate


def test_sentences_keep_all_white_space() -> None:
    text = " Plan B\u00a0. Ende der Welt.\u2028\r\n\r\nEs geht\tgut!\u3000 Ja. "
    parts = sentences(text, "de")
    expected = ["Plan B\u00a0. Ende der Welt.", "Es geht\tgut!", "Ja."]
    assert [sentence for _, sentence in parts] == expected
    assert "".join(map("".join, parts)) == text.rstrip()


def test_html_keeps_everything_but_the_text() -> None:
    assert translated(HTML, "html", same) == HTML
    result = translated(HTML, "html", upper)
    assert "<title>A &amp; B</title>" in result
    assert "<p>CLICK <b>THE <i>RED</i> BUTTON</b>, THEN <kbd>F1</kbd>.</p>" in result
    assert "<li>ONE<li>TWO&nbsp;WORDS</ul>" in result
    assert '<p translate="no">keep <b>it</b></p>' in result
    assert (
        'A <span class="big notranslate">name</span> AND <img src="a.png" alt=\'x > y\'>A' in result
    )
    assert '<a href="?a=1&amp;b=2">LINK</a> © 1 &lt; 2</p>\n<td>5</td>' in result
    assert "<style>p > b { color: red }</style>" in result and "<script>if (a<b)" in result
    assert "<!-- a <b>comment</b> -->" in result


def test_markup_follows_its_words() -> None:
    [block] = read_document("<p>the <b>red</b> house <i>here</i><br/></p>", "html").blocks
    # here the house red
    assert block.place("hier das Haus rot", [(0, 1), (1, 3), (2, 2), (3, 0)]) == (
        "<i>hier</i> das Haus <b>rot</b>"
    )
    # The largest connected part of `red` is kept, without a word of another.
    assert block.place("rot das rot rot", [(1, 0), (0, 1), (1, 2), (1, 3), (3, 1)]) == (
        "rot <i>das</i> <b>rot rot</b>"
    )
    assert block.place("", []) == "<b></b><i></i>"


@pytest.mark.parametrize("form", ["html", "xml", "srt", "markdown"])
def test_deeply_nested_elements_stay(form: str) -> None:
    heads = {"srt": "1\n00:00:01,000 --> 00:00:02,500\n", "xml": "<d>"}
    depth, head = 5_000, heads.get(form, "x ")
    tail = "</d>" if form == "xml" else ""
    text = f"{head}{'<b>' * depth}x y{'</b>' * depth}{tail}"
    if form == "markdown":
        assert translated(text, form, upper).count("<b>") == depth
    else:
        assert translated(text, form, upper).replace("X", "x").replace("Y", "y") == text
    text = f"{head}{'<b>a ' * depth}x{' c</b>' * depth}{tail}"
    result = translated(text, form, shuffled(1))
    assert result.count("<b>") == result.count("</b>") == depth
    assert "<b>a x c</b>" in result  # too deep to be translated


# Each of these took from ten seconds to hours when the time was quadratic in the size.
@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("<b>" * 60_000 + "x" + "</i>" * 60_000, "html"),
        ("<a " * 100_000, "html"),
        ("<a x='" * 100_000, "html"),
        ("`a` b " * 20_000, "markdown"),
        ("<u>" + "<source>a</source>" * 20_000 + "</u>", "xliff"),
        ("<u><source>a" * 20_000 + "</source></u>" * 20_000, "xliff"),
        ("1\n00:00:01,000 --> 00:00:02,500\n" + "1" * 200_000, "srt"),
        (f"1\n00:00:01,000 --> 00:00:02,500\na{'<' * 200_000}\nb", "srt"),
        (f"1\n00:00:01,000 --> 00:00:02,500\n{'<i>a</i> ' * 20_000}", "srt"),
    ],
)
def test_the_time_is_linear(text: str, form: str) -> None:
    result = translated(text, form, upper).lower()
    assert re.sub(r"<target>.*?</target>|\s", "", result) == re.sub(r"\s", "", text.lower())


def test_characters_without_spaces_are_words_and_empty_elements_keep_their_spaces() -> None:
    [block] = read_document("<p>红<b>色</b>的 house</p>", "html").blocks
    assert block.place("a 色 b", [(0, 0), (1, 1), (2, 2)]) == "a <b>色</b> b"
    [block] = read_document("<p>a <img> b<wbr>c d<img></p>", "html").blocks
    assert block.place("a bc d", [(0, 0), (1, 1), (2, 2)]) == "a <img> bc<wbr> d<img>"


@st.composite
def trees(draw: st.DrawFn) -> str:
    texts = st.sampled_from(["one two", " ", "", "a &lt; b.", "x &amp; y", "Wort ", "<!-- c -->"])
    names = st.sampled_from(["b", "i", "p", "code", "td", "br"])

    def element(depth: int) -> str:
        parts = [draw(texts)]
        for _ in range(draw(st.integers(0, 3)) if depth < 4 else 0):
            parts += [element(depth + 1), draw(texts)]
        name = draw(names)
        attributes = draw(st.sampled_from(["", ' a="1"', " translate='no'", ' b="x &lt; y"']))
        content = "".join(parts)
        return f"<{name}{attributes}>{content}</{name}>" if content else f"<{name}{attributes} />"

    root = draw(st.sampled_from(["html", "doc"]))
    return f"<?xml version='1.0'?>\n<{root}>{element(0)}{draw(texts)}</{root}>\n"


@given(text=trees(), seed=st.integers(0, 99))
@settings(max_examples=300, deadline=None)
def test_well_formed_documents_stay_well_formed_with_the_same_tags(text: str, seed: int) -> None:
    assert translated(text, "xml", same) == text
    for translate in (shuffled(seed), upper):
        result = translated(text, "xml", translate)
        expat.ParserCreate().Parse(result, True)
        assert Counter(TAG.findall(result)) == Counter(TAG.findall(text))
    if not re.search(r"\w(<[^>]*>)+\w", text):  # tags within a word move to its end
        assert "".join(result.upper().split()) == "".join(text.upper().split())


def test_xml_blocks_are_elements_with_text() -> None:
    assert [block.text for block in read_document(XML, "xml").blocks] == ["a b  c", "f < g"]
    result = translated(XML, "xml", upper)
    assert "<para>A <emph>B</emph> &co; C</para><lit>F &lt; G</lit>" in result
    assert "<s id = '2'>" in result and "<![CDATA[a < b]]>" in result


def test_xliff_writes_missing_targets() -> None:
    result = translated(XLIFF, "xliff", upper)
    assert '</source><target>PRESS <g id="1">OK</g><x id="2"/>.</target></trans-unit>' in result
    assert '<source>Go on</source><target state="new">GO ON</target>' in result
    assert "<target>Fertig</target>" in result
    assert "<source>Off</source></trans" in result and "<source>Old</source></alt" in result
    assert len(re.findall("<target", result)) == 4


def test_po_fills_missing_messages() -> None:
    result = translated(PO, "po", upper)
    assert 'msgstr "OPEN %S\\n"' in result
    assert 'msgstr[0] "FILE"\nmsgstr[1] "FILES"\nmsgstr[2] "FILES"' in result
    before = PO.partition('msgid "open')[0]
    assert result.startswith(before)
    assert PO[PO.index("#, fuzzy") : PO.index('msgid "file"')] in result
    assert result.endswith('#~ msgid "obsolete"\n#~ msgstr "veraltet"\n')


def test_subtitles_keep_lines_and_tags() -> None:
    result = translated(SRT, "srt", upper)
    assert "<i>OPEN THE FILE\nAND CLOSE IT</i>\n" in result
    assert "{\\an8}- A <b>COLOR</b>\n- NO\n" in result
    assert "00:00:01,000 --> 00:00:02,500 X1:40 X2:600\n" in result
    assert translated(SRT, "srt", same) == SRT
    windows = SRT.replace("\n", "\r\n")
    assert translated(windows, "srt", same) == windows


def test_subtitles_keep_what_is_no_caption() -> None:
    text = (
        "1\r\n0:0:1.5 --> 00:00:02,500\r\nAt 10:30 --> go\r\n5\r\n\r\n7 -> 8 or 3\r\n\r\n\r\n"
        "00:00:03,000 --> 00:00:04,000\nBus 10:30 -> 11:45\n4\n"
        "00:00:05,000 --> 00:00:06,000\n- 1\n- b"
    )
    assert translated(text, "srt", same) == text
    assert [x.text for x in read_document(text, "srt").blocks] == [
        "At 10:30 --> go 5",
        "7 -> 8 or 3",
        "Bus 10:30 -> 11:45",
        "- b",
    ]


@pytest.mark.parametrize("encoding", ["hex", "undefined", "nope"])
def test_an_encoding_that_cannot_be_used_is_an_error(encoding: str) -> None:
    with pytest.raises(UserError, match=encoding):
        decode_document(f"<meta charset={encoding}>ab\xff".encode("latin-1"), "html")
    with pytest.raises(UserError, match=r"cannot be written in ascii"):
        encode_document("\xe4", "ascii", "po")


def test_markdown() -> None:
    result = translated(MARKDOWN, "markdown", upper)
    assert result.startswith("---\ntitle: front matter\n---\n# OPEN *THE FILE*\n")
    assert (
        'CLICK **THE BUTTON** HERE AND [READ](http://a.org "Title") `code` OR ![picture](p.png)'
        in result
    )
    assert "> ONE [TWO][REF] 1\\*2 THREE\n" in result
    assert "| NAME | VALUE |\n|---|---|\n| **BOLD** | 5 \\| 6 |\n" in result
    assert "- ONE<br> <b>TWO</b>\n" in result
    assert result.endswith("```sh\ncode\n```\n\n[ref]: http://b.org\n")


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("one  \ntwo\\\nthree", "markdown", "ONE<br> TWO<br> THREE"),
        ("see <http://a.org> a[^1] ok", "markdown", "SEE <http://a.org> A[^1] OK"),
        ("- [ ] to do", "markdown", "- [ ] TO DO"),
        ("[x](y 'it\"s') z", "markdown", '[X](y "it\\"s") Z'),
        ("<p>See Foo<![CDATA[a\nb]]>bar now</p>", "xml", "<p>SEE FOOBAR<![CDATA[a\nb]]> NOW</p>"),
        ("<!DOCTYPE p SYSTEM 'x'><p>a&nbsp;b</p>", "xml", "<!DOCTYPE p SYSTEM 'x'><p>A\xa0B</p>"),
        ("<p>\n  a \n  b\n</p>\n", "xml", "<p>\n  A B\n</p>\n"),
        (f"\ufeff{DOCTYPE}<p>&notice; a</p>", "xml", f"\ufeff{DOCTYPE}<p>&notice; A</p>"),
        ("<p>a b<![CD", "html", "<p>A B<![CD"),
        ("a <![x b> c", "html", "A <![x b> C"),
        ("1 < 2 </ 3> b <b c='>'>d</b> <i f='", "html", "1 &lt; 2 </ 3> B <b c='>'>D</b> <i f='"),
        ("<a href=b/>c</a> d", "html", "<a href=b/>C</a> D"),
        ("<script>a<b</scripts></SCRIPT >d", "html", "<script>a<b</scripts></SCRIPT >D"),
        (f"a &#{'9' * 5000}; b", "html", "A \ufffd B"),
        (
            "<u><source>a<u><source>b</source></u></source></u>",
            "xliff",
            "<u><source>a<u><source>b</source><target>B</target></u></source></u>",
        ),
        ("---\r\na: b\r\n---\r\n# c\r\n", "markdown", "---\r\na: b\r\n---\r\n# C\r\n"),
        ("a\nb\0b", "markdown", "a\nb\0b"),  # CommonMark reads another character
        ("a\rb\r\r- c\r", "markdown", "A B\r\r- C\r"),
    ],
)
def test_odd_documents(text: str, form: str, expected: str) -> None:
    assert translated(text, form, upper) == expected


def test_xliff_with_segmented_sources() -> None:
    text = XLIFF.replace(
        "<source>Done</source>", "<source>Done</source><seg-source>Done</seg-source><note>n</note>"
    ).replace("<source>Go on</source><target", "<source>Go on</source><note>n</note><target")
    result = translated(text, "xliff", upper)
    assert "<seg-source>Done</seg-source><note>n</note>\n <target>Fertig</target>" in result
    assert '<note>n</note><target state="new">GO ON</target>' in result


def test_a_protected_span_is_one_word_of_the_markup(
    make_translator: Callable[..., Translator],
) -> None:
    made = make_translator()
    translator = Translator(made.engines, made.decoding, protect=["all"])
    page = "<p><b>%s</b> of <i>{name}</i> the dog</p><p><b>%s</b> – {a}</p>"
    result = translator.translate_document(page, format="html")
    assert re.search(r"%s", result) and "{name}" in result
    assert result.endswith("<p><b>%s</b> – {a}</p>")


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("<a>\n<b></a>", "xml", r"mismatched tag \(line 2, column 6\)"),
        ("<a>&nope;</a>", "xml", "undefined entity"),
        ("msgid garbage", "po", "line 1"),
        (PO.replace("UTF-8", "latin-1"), "po", "charset=latin-1: convert it with msgconv"),
        ("garbage", "srt", "line 1: not a caption"),
        (SRT.replace("03,000 -->", "0x,000 -->"), "srt", "line 7: not a caption"),
        (PO.replace("nplurals=3", "nplurals=999999999"), "po", "999999999 forms are too many"),
        (PO.replace("msgstr[1]", "msgstr[#1]"), "po", "not a PO file"),
        (PO.replace("UTF-8", "UTF-\0"), "po", "charset"),
        ("x", "htm", "did you mean html"),
    ],
)
def test_invalid_documents(text: str, form: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_document(text, form)


def test_a_model_translates_documents(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    for form, text in DOCUMENTS.items():
        result = translator.translate_document(text, format=form)
        assert result != text
        missing = Counter(TAG.findall(text)) - Counter(TAG.findall(result))
        assert missing == Counter() or missing == Counter(['<target state="new"/>'])


def test_the_command_translates_a_file(run: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "a.HTML", tmp_path / "b.html"
    page = "<html><meta charset=iso-8859-1><p>the <b>dög</b></p><p translate=no>ä</p></html>"
    source.write_bytes(page.encode("iso-8859-1"))
    main(["translate", str(run), str(source), "-o", str(output)])
    content = output.read_bytes()
    assert content.startswith(b"<html><meta charset=iso-8859-1><p>")
    assert content.endswith(b"</p><p translate=no>\xe4</p></html>")
    as_text = ["--format", "text", "--errors", "replace"]
    main(["translate", str(run), str(source), *as_text, "-o", str(output)])
    assert b"<meta charset" not in output.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nbest", "2"], "--nbest is for lines of text, not for documents"),
        (["--format", "docx"], "unknown format 'docx'"),
        (["other.html"], "one document at a time"),
    ],
)
def test_mistakes(run: Path, tmp_path: Path, options: list[str], message: str) -> None:
    for name in ("a.html", "other.html"):
        (tmp_path / name).write_text("<p>the dog</p>")
    options = [str(tmp_path / x) if x.endswith(".html") else x for x in options]
    with pytest.raises(SystemExit, match=message):
        main(["translate", str(run), str(tmp_path / "a.html"), *options])


def test_the_place_of_an_error_is_named(run: Path, tmp_path: Path) -> None:
    path, output = tmp_path / "a.xml", tmp_path / "out"
    path.write_bytes(b"<a>\n\xff</a>")
    with pytest.raises(SystemExit, match=rf"{path}.*line"):
        main(["translate", str(run), str(path), "-o", str(output)])
    assert not output.exists()


def test_every_suffix_has_a_format() -> None:
    assert set(SUFFIXES.values()) == set(FORMATS) == set(DOCUMENTS)
