"""Protected spans: patterns, symbols, and their repair in translations."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import TEXTS, VOCABULARY, encoded, run_recipe
from hypothesis import given
from hypothesis import strategies as st

from seq2seq.cli import main
from seq2seq.config import Config, DecodingConfig, Direction, PairsConfig, TokenizerConfig
from seq2seq.data.store import PreparedData
from seq2seq.data.tokenizer import Tokenizer, pipeline_of
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.decoding.engine import Hypothesis
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.segments import Decoder, Encoder
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.decoding.translation import Candidate, Options, Request
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.evaluation.evaluate import evaluate_run
from seq2seq.evaluation.systems import load_systems
from seq2seq.formats.model_directory import load_config
from seq2seq.model.transformer import Transformer
from seq2seq.preparation.prepare import prepare
from seq2seq.processes import Processes
from seq2seq.text.augment import copy
from seq2seq.text.case import Recase, names, recase_outside, sentence_case, title_case, unusual_case
from seq2seq.text.protect import PLACEHOLDERS, compile_patterns, protect, protect_pair

WITH_PLACEHOLDERS = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=350), list(PLACEHOLDERS))
LINES = [
    "the dog https://a.org/x?y=1 likes %s a {name} tree",
    "<b>the red</b> house &amp; the <i>small</i> tree",
    "%1$s %2$s %1$s",
    "a man",
    f"a {' '.join(f'%{i}' for i in range(40))} dog",
    "the ~File dog \ue003 tree 🎉",
]


def spans_of(text: str) -> Counter[str]:
    return Counter(pattern().findall(text))


def pattern(*names: str) -> re.Pattern[str]:
    compiled = compile_patterns(names or ["all"], "protect")
    assert compiled
    return compiled


@pytest.mark.parametrize(
    ("name", "text", "spans"),
    [
        ("url", "See (https://a.org/b?c=1), www.d.de.", ["https://a.org/b?c=1", "www.d.de"]),
        ("email", "Mail john.doe@example.com.", ["john.doe@example.com"]),
        ("printf", "%1$s of %5.2f, %d%% %-8s, 5 % of, %1.", ["%1$s", "%5.2f", "%d", "%-8s", "%1"]),
        ("printf", "%(name)s costs 100%.", ["%(name)s"]),
        ("brace", "{} {0} {name!r} {a b}", ["{}", "{0}", "{name!r}"]),
        ("variable", "$(VAR) ${a} $HOME %NAME $5", ["$(VAR)", "${a}", "$HOME", "%NAME"]),
        ("tag", 'a <b class="x">c</b> <br/> 1 < 2', ['<b class="x">', "</b>", "<br/>"]),
        ("entity", "a &amp; b &amp;amp; &#160; AT&T", ["&amp;", "&amp;amp;", "&#160;"]),
        ("accelerator", "~File Sa~ve _Edit &Help a_b 1~2", ["~", "~", "_", "&"]),
        ("path", "In /etc/fstab, /usr/bin/: and/or km/h /x", ["/etc/fstab", "/usr/bin/"]),
        ("path", "~/.rc ./run.sh $HOME/a. <b/>", ["~/.rc", "./run.sh", "$HOME/a"]),
        ("path", r"Open C:\Temp\x.odt. (D:\)", [r"C:\Temp\x.odt"]),
        ("version", "v2.10.3, 1.2.3-rc1, V8, 3.0.0b2.", ["v2.10.3", "1.2.3-rc1", "V8", "3.0.0b2"]),
        ("version", "1.000.000, 2.10 and v2x", []),
        ("emoji", "so 🎉 good 👍🏽!", ["🎉", "👍🏽"]),
        ("number", "5 km, 3.5 %, 1,234 and 10:30", ["5 km", "3.5 %", "1,234", "10:30"]),
    ],
)
def test_patterns(name: str, text: str, spans: list[str]) -> None:
    assert pattern(name).findall(text) == spans


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["urls"], "unknown pattern 'urls'; did you mean url"),
        (["id=[A-Z"], r"regular expression: unterminated character set at position 0"),
        (["id=(a)"], "has a capturing group"),
        (["id=a*"], "matches the empty text"),
    ],
)
def test_wrong_patterns(names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"data.protect: .*{message}"):
        compile_patterns(names, "data.protect")


def test_the_first_pattern_wins_where_spans_overlap() -> None:
    text = "http://a.org/%s <b>"
    assert pattern("url", "printf").findall(text) == ["http://a.org/%s"]
    assert pattern("printf", "tag=<b>").findall(text) == ["%s", "<b>"]


@given(st.text(alphabet=st.sampled_from([*"ab %s{}<>&;~/", *PLACEHOLDERS, "🎉"]), max_size=60))
def test_a_protected_text_can_be_restored(text: str) -> None:
    protected = protect(text, pattern())
    assert protected.restore(protected.text) == text
    assert not protected.lost(protected.text)
    assert protected.clean(protected.text) == protected.text
    assert protected.protect(text, pattern()) == protected.text


def test_lost_and_repeated_symbols() -> None:
    protected = protect(" ".join(f"%{i}" for i in range(20)), pattern())
    first, last = protected.spans[0][0], protected.spans[16][0]
    assert first == last  # 16 symbols for 20 spans
    assert protected.lost(protected.text.replace(first, "", 1)) == [16]
    assert protected.lost(protected.text.replace(first, "")) == [0, 16]
    assert protected.clean(protected.text + first) == protected.text
    assert protect("%s", pattern()).clean("\ue000") in ("", "\ue000")
    assert protected.restore(first + last + first) == "%0%16"


def test_spans_of_both_sides_of_a_pair_become_placeholders() -> None:
    source, target = protect_pair("%s in %s at www.a.org", "%s bei www.b.org", pattern())
    [symbol] = set(source) & set(PLACEHOLDERS)
    assert source == f"{symbol} in %s at www.a.org" and target == f"{symbol} bei www.b.org"
    source, target = protect_pair("from %1 to %2", "nach %2 von %1", pattern())
    assert target == f"nach {source[10]} von {source[5]}"
    assert protect_pair("a", "b %s", pattern()) == ("a", "b %s")


def test_copied_words_become_symbols() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        source, target = copy(
            ("LibreOffice Writer has text", "Text hat Writer LibreOffice"), random
        )
        [symbol] = set(source) & set(PLACEHOLDERS)
        assert symbol in target and len({"Writer", "LibreOffice"} & set(target.split())) == 1
    assert copy(("a dog", "ein Hund"), random) == ("a dog", "ein Hund")


@pytest.fixture(params=[True, False], ids=["symbols", "no symbols"])
def protecting(
    request: pytest.FixtureRequest, make_model: Callable[..., Transformer]
) -> Translator:
    vocabulary = WITH_PLACEHOLDERS if request.param else VOCABULARY
    model = make_model(vocab_size=vocabulary.size)
    engines = Engines.of_model(model, Tokenizer(vocabulary, vocabulary), Config())
    return Translator(engines, DecodingConfig(max_extra=8), protect=["all"])


def test_even_an_untrained_model_keeps_all_spans(protecting: Translator) -> None:
    for options in ({}, {"nbest": 3}, {"sample": True, "nbest": 2}, {"paragraphs": True}):
        translations = protecting.translations(LINES, alignment=True, tokens=True, **options)
        for line, translation in zip(LINES, translations, strict=True):
            assert translation.spans == spans_of(line).total()
            for hypothesis in translation.nbest:
                for span, count in spans_of(line).items():
                    assert hypothesis.text.count(span) >= count, hypothesis.text
                assert len(hypothesis.log_probs) in (0, len(hypothesis.pieces) + 1)
                words = len(line.split()), len(hypothesis.text.split())
                assert all(i < words[0] and j < words[1] for i, j in hypothesis.alignment)
    assert sum(translation.spans_repaired for translation in translations) > 0


def test_the_model_reads_the_spans_of_each_sentence(protecting: Translator) -> None:
    text = f"A {' '.join(f'%{i}' for i in range(20))} dog. A {{name}} man. The <b> tree"
    line = encoded(protecting, text, paragraphs=True)
    read = [segment.read for segment in line.prepared.segments]
    if not protecting.tokenizer.has_placeholders:
        assert read[1:] == ["A {name} man.", "The <b> tree"]
    source, _ = protecting.tokenizer.translation_vocabularies
    assert [x.pieces for x in line.sources] == source.encode_pieces(read)
    [whole] = protecting.translations([text], references=[[text]], search=False, paragraphs=True)
    assert whole.error is None and len(whole.references) == 1


def test_a_line_of_spans_is_copied(protecting: Translator) -> None:
    [translation] = protecting.translations(["%s:  %s"])
    assert translation.text == "%s:  %s" and translation.spans == 2


def repaired(source: str, target: str, symbols: bool, attention: dict[int, int]) -> Candidate:
    """Repair a translation. attention: source piece of each target piece (else the first)."""
    vocabulary = WITH_PLACEHOLDERS if symbols else VOCABULARY
    tokenizer = Tokenizer(vocabulary, vocabulary)
    pipeline = pipeline_of(PairsConfig(), tokenizer, [Direction("en", "de")], protect=["all"])
    encoder = Encoder(tokenizer, pipeline, 99, 99)
    requests = encoder.encode([Request(source)], Options(), DecodingConfig())
    [pieces] = vocabulary.encode_pieces([target])
    weights = np.zeros((len(pieces), len(requests[0].sources[0].pieces)), dtype=np.float32)
    for row in range(len(pieces)):
        weights[row, attention.get(row, 0)] = 1
    engine: Any = SimpleNamespace(
        source=vocabulary,
        target=vocabulary,
        attention=lambda pairs, decoding: [weights for _ in pairs],
        log_probs=lambda pairs, decoding: [],
    )
    decoder = Decoder(engine, pipeline.spelling, Options(scores=False), DecodingConfig())
    [translation] = decoder.decode(requests, [[Hypothesis(pieces)]])
    return translation.nbest[0]


def test_a_lost_span_is_inserted_where_the_model_attends_to_it() -> None:
    source = "the dog %s likes"
    pieces = WITH_PLACEHOLDERS.encode_pieces([protect(source, pattern()).text])[0]
    symbol = next(i for i, piece in enumerate(pieces) if piece in PLACEHOLDERS)
    target = WITH_PLACEHOLDERS.encode_pieces(["ein Mann sieht"])[0]
    for word, expected in [("▁Mann", "ein %s Mann sieht"), ("▁sieht", "ein Mann %s sieht")]:
        hypothesis = repaired(source, "ein Mann sieht", True, {target.index(word): symbol})
        assert hypothesis.text == expected and hypothesis.num_repaired == 1


def test_a_changed_span_is_replaced_without_symbols() -> None:
    source, target = "the dog %s likes", "ein %d Mann"
    own = VOCABULARY.encode_pieces([source])[0].index("<0x25>")
    pieces = VOCABULARY.encode_pieces([target])[0]
    assert pieces == ["▁ein", "▁", "<0x25>", "d", "▁Mann"]
    hypothesis = repaired(source, target, False, {1: own, 2: own, 3: own})
    assert hypothesis.text == "ein %s Mann" and hypothesis.num_repaired == 1


@pytest.mark.parametrize("symbols", [True, False])
def test_a_repeated_span_is_removed(symbols: bool) -> None:
    protected = protect("the %s dog", pattern()).text if symbols else "the %s dog"
    span = protected.split()[1]
    hypothesis = repaired("the %s dog", f"ein {span} Mann {span}", symbols, {})
    assert hypothesis.text == "ein %s Mann" and hypothesis.num_repaired == 1


def test_an_accelerator_stays_before_its_word() -> None:
    hypothesis = repaired("the ~dog likes", "ein Mann", False, {1: 1, 2: 1})
    assert re.fullmatch(r"~?ein ~?Mann", hypothesis.text) and "~" in hypothesis.text


def test_prefixes_and_references_have_symbols(protecting: Translator) -> None:
    line = "the dog %s likes %d"
    [translation] = protecting.translations([line], prefixes=["ein %d"], references=[[f"x {line}"]])
    assert translation.text.startswith("ein %d")
    [reference] = translation.references
    assert reference.text == f"x {line}"
    has_placeholders = protecting.tokenizer.has_placeholders
    assert bool(set(reference.pieces) & set(PLACEHOLDERS)) == has_placeholders


@pytest.fixture
def protected_run(recipe: Path, corpus: Path) -> Path:
    for language in ("en", "de"):
        path = corpus / f"train.{language}"
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{line} %s\n" for line in lines[:150]) + "\n".join(lines[150:]))
    return run_recipe(recipe, corpus / "run", "data.protect=[all]", "data.augment.copy=0.1")


def test_training_and_translation_with_symbols(
    protected_run: Path,
    corpus: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = load_config(protected_run / "recipe.yaml")
    data: PreparedData = prepare(config)
    store = data.store("train")
    pairs = store.pairs(np.arange(len(store)))
    sources, targets = (
        data.tokenizer.source.decode([row.tolist() for row in side]) for side in pairs
    )
    assert sum("%s" in text for text in [*sources, *targets]) == 0
    assert sum(bool(set(text) & set(PLACEHOLDERS)) for text in sources) > 100
    assert len({symbol for text in sources for symbol in text if symbol in PLACEHOLDERS}) == 16
    (corpus / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    main(["translate", str(protected_run), str(corpus / "in.txt"), "--json"])
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    for fields in objects:
        for span, count in spans_of(fields["text"]).items():
            assert fields["translation"].count(span) >= count
    total = sum(spans_of(line).total() for line in LINES)
    lost = sum(fields.get("spans_repaired", 0) for fields in objects)
    assert f"protected spans: {total}, lost or repeated and then repaired: {lost}" in caplog.text
    main(["translate", str(protected_run), str(corpus / "in.txt"), "--protect", "word=dog|man"])
    lines = capfd.readouterr().out.splitlines()
    assert [line.count("dog") for line in lines] == [line.count("dog") for line in LINES]


def test_the_tag_of_a_held_out_set_is_no_span_of_its_text(
    recipe: Path, corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Validations and scores read what `translate --tag` reads."""
    train = f"data.train={{path: {corpus}/train, tag: <x>}}"
    dev = "data.dev=null", "data.dev_size=20"
    run = run_recipe(recipe, corpus / "run", "data.protect=[all]", train, *dev)
    [(test_set, [system])] = load_systems([run], [], Processes(), split="dev").values()
    assert len(test_set.sources) == 20 and "<" not in "".join(test_set.sources)
    assert list(system.lines) == Translator.load(run, tag="<x>").translate(test_set.sources)
    evaluate_run(run, None, "dev", Processes(), output=corpus / "out")
    assert (corpus / "out").read_text().splitlines() == system.lines
    assert "<x>" not in "".join(system.lines) and "have no tag" not in caplog.text


def test_a_pretrained_tokenizer_needs_symbols(recipe: Path, run: Path) -> None:
    overrides = ["data.protect=[url]", f"tokenizer.models=[{run}/tokenizer.model]"]
    with pytest.raises(UserError, match=r"data\.protect needs reserved symbols"):
        prepare(load_config(recipe, overrides))


def spans_in(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in pattern().finditer(text)]


LOWER = "The dog http://A.org/x likes %s a tree. A man"
UPPER = "THE DOG http://A.org/x LIKES %s A TREE. A MAN"
TITLE = "The Dog http://A.org/x Likes %s A Tree. A Man"


@pytest.mark.parametrize(
    ("texts", "recase"), [([UPPER, "THE DOG"], str.upper), ([TITLE], title_case)]
)
def test_upper_and_title_case_are_translated_in_lower_case(
    texts: list[str], recase: Recase, protecting: Translator
) -> None:
    expected = protecting.translations([LOWER, "The dog"][: len(texts)], alignment=True, nbest=2)
    found = protecting.translations(texts, alignment=True, nbest=2)
    for a, b in zip(expected, found, strict=True):
        assert [x.text for x in b.nbest] == [
            recase_outside(x.text, recase, spans_in(x.text)) for x in a.nbest
        ]
        assert [x.alignment for x in b.nbest] == [x.alignment for x in a.nbest]
    assert "http://A.org/x" in found[0].text and "%s" in found[0].text
    assert protecting.translate(["THE"]) != [protecting.translate(["The"])[0].upper()]


def test_unusual_case() -> None:
    usual = ["OK", "USB 3.0", "The DOG", "", "狗 喜欢", "1 2", "狗 喜 欢 树 木 USB", "A - B - C"]
    usual += ["Show Only This Calendar", "How to Install It on Windows", "Open: Edit - Save As New"]
    assert not any(map(unusual_case, usual))
    assert unusual_case('How To Install "It" On Windows 10?') == title_case
    assert unusual_case("USE IT") == str.upper
    assert sentence_case("A DOG. (THE END) NO") == "A dog. (The end) no"


def test_names_keep_their_capitals() -> None:
    def in_lower_case(text: str) -> str:
        case = str.upper if text.isupper() else title_case
        return sentence_case(text, names(text, case, {"USB", "OK", "ok", "THE"}.__contains__))

    assert in_lower_case("PUT THE USB-STICK. USBX IS OK") == "Put THE USB-stick. Usbx is ok"
    title = "How To Use LibreOffice With USB And McDonald's"
    assert in_lower_case(title) == "How to use LibreOffice with USB and McDonald's"
    assert recase_outside("abcdef", str.upper, [(3, 5), (1, 4)]) == "AbcdeF"


def test_given_translations_of_capitals_are_read_in_lower_case(protecting: Translator) -> None:
    both = [LOWER, UPPER], [[LOWER], [UPPER]]
    lower, upper = protecting.translations(both[0], references=both[1], search=False)
    assert upper.references[0].text == UPPER
    assert upper.references[0].score == pytest.approx(lower.references[0].score, abs=1e-4)
    [plain] = protecting.translations([UPPER], references=[[UPPER]], search=False, recase=False)
    assert plain.references[0].pieces != upper.references[0].pieces == lower.references[0].pieces
    [found] = protecting.translate(["THE DOG"], prefixes=["EIN MANN"])
    assert found.startswith("EIN MANN")


def test_a_term_in_capitals_is_found_in_a_line_in_capitals(protecting: Translator) -> None:
    glossary = Glossary([Term("die NASA", "NASA"), Term("Mann", "man")])
    text = "THE NASA AND THE MAN"
    [segment] = encoded(protecting, text, glossary=glossary).prepared.segments
    assert segment.read == "The NASA and the man"
    [found] = protecting.translations([text], glossary=glossary, beam=2)
    assert (found.terms, found.terms_kept) == (2, 2) and "DIE NASA" in found.text


def test_the_case_of_each_sentence_counts(protecting: Translator) -> None:
    """A sentence in capitals among others, and all of a text in capitals."""
    line = encoded(protecting, "THE DOG LIKES A MAN. The house", paragraphs=True)
    assert [x.read for x in line.prepared.segments] == ["The dog likes a man.", "The house"]
    assert line.prepared.after(["Ein Hund.", "Ein Haus"]) == "EIN HUND. Ein Haus"
    capitals = encoded(protecting, "THE DOG. MAN. THE HOUSE", paragraphs=True)
    assert [x.read for x in capitals.prepared.segments] == ["The dog.", "Man.", "The house"]
    assert capitals.prepared.after(["Ein Hund.", "Mann.", "Ein Haus"]) == "EIN HUND. MANN. EIN HAUS"
