"""Models exported to CTranslate2 compute and translate what they did before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VARIANTS, covering, name_of, records
from trained import (
    LINES,
    PAIRS,
    exported,
    own_translator,
    quantization_error,
    require_same_search,
    run_example,
    trained_model,
    vocabulary,
)

from seq2seq.cli import main
from seq2seq.config import Config, DecodingConfig
from seq2seq.decoding.ctranslate2_engine import UNSUPPORTED
from seq2seq.decoding.engine import Source, length_penalty
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.export import export, portable
from seq2seq.formats.weights import LoadedModel, load_model

ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")


def library(folder: Path) -> Any:
    return ctranslate2.Translator(str(folder), intra_threads=1)


def require_same_scores(loaded: LoadedModel, folder: Path) -> None:
    own, vocabularies = own_translator(loaded), loaded.tokenizer.translation_vocabularies
    sources, targets = (
        side.encode_pieces([pair[i] for pair in PAIRS[:100]]) for i, side in enumerate(vocabularies)
    )
    scores = library(folder).score_batch(sources, targets)
    pairs = list(zip(sources, targets, strict=True))
    expected = own.engines.torch.log_probs(pairs, own.decoding)
    for found, right in zip(scores, expected, strict=True):
        assert found.log_probs == pytest.approx(right, abs=1e-4)


def pieces_of(translator: Translator, lines: list[str], **options: Any) -> list[Sequence[str]]:
    return [each.nbest[0].pieces for each in translator.translations(lines, tokens=True, **options)]


def require_parity(loaded: LoadedModel, folder: Path) -> None:
    require_same_scores(loaded, folder)
    own = own_translator(loaded)
    # Without </s>, which the format adds.
    sources = loaded.tokenizer.translation_vocabularies[0].encode_pieces(LINES)
    limits = {"max_decoding_length": 30, "min_decoding_length": 0}
    results = library(folder).translate_batch(sources, beam_size=1, **limits)
    greedy = pieces_of(own, LINES, beam=1, max_factor=0.0, max_extra=30)
    require_same_search(own, LINES, [result.hypotheses[0] for result in results], greedy)
    found, expected = (pieces_of(each, LINES) for each in (Translator.load(folder), own))
    assert len(set(map(tuple, expected))) > 100, "the translations are too alike to compare"
    require_same_search(own, LINES, found, expected)


@pytest.mark.parametrize("variant", covering(VARIANTS), ids=name_of)
def test_trained_variants_translate_the_same(variant: dict[str, Any], tmp_path: Path) -> None:
    loaded = trained_model(**variant)
    require_parity(loaded, exported(loaded, tmp_path, "ctranslate2"))


@pytest.mark.parametrize("tied", [True, False])
def test_separate_vocabularies_translate_the_same(tied: bool, tmp_path: Path) -> None:
    loaded = trained_model(shared=False, tied=tied)
    folder = exported(loaded, tmp_path, "ctranslate2")
    assert (folder / "source_vocabulary.json").exists()
    require_parity(loaded, folder)


def test_long_sources_and_translations_are_not_cut(tmp_path: Path) -> None:
    # By default CTranslate2 cuts sources at 1,024 tokens and translations at 256.
    loaded = trained_model(steps=1)
    clean = replace(loaded.config.pairs.clean, max_len=1500)
    config = replace(loaded.config, data=replace(loaded.config.pairs, clean=clean))
    loaded = replace(loaded, config=config)
    both = Translator.load(exported(loaded, tmp_path, "ctranslate2")), own_translator(loaded)
    text = " ".join(pair[0] for pair in PAIRS)[:2600]
    [pieces] = vocabulary().encode_pieces([text])
    assert 1024 < len(pieces) < 1500
    reference = vocabulary().decode_pieces([pieces[:700]])
    options: dict[str, Any] = {"references": [reference], "beam": 1, "min_length": 300}
    [found], [right] = (each.translations([text], tokens=True, **options) for each in both)
    [scored], [expected] = found.references, right.references
    assert len(scored.log_probs) > 600
    assert scored.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    [a], [b] = found.nbest, right.nbest
    assert len(b.pieces) > 300 and a.pieces[:300] == b.pieces[:300]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_translation_ends_at_the_last_position(positions: str, tmp_path: Path) -> None:
    # Beyond it, CTranslate2 raises an error.
    loaded = trained_model(steps=1, positions=positions)
    translator = Translator.load(exported(loaded, tmp_path, "ctranslate2"))
    [pieces] = pieces_of(translator, ["a house"], min_length=5000, beam=1)
    assert len(pieces) == (127 if positions == "learned" else 2047)


def test_an_empty_translation_is_possible(tmp_path: Path) -> None:
    # CTranslate2's default minimum length is 1.
    loaded = trained_model()
    with torch.no_grad():
        eos_id = loaded.tokenizer.target.eos_id
        loaded.model.output.weight[eos_id] *= 40
    texts = own_translator(loaded).translate(LINES)
    assert texts.count("") > 10
    folder = exported(loaded, tmp_path, "ctranslate2")
    assert Translator.load(folder).translate(LINES) == texts


def test_symbols_that_are_never_written_are_not_written(tmp_path: Path) -> None:
    loaded = trained_model(steps=1, output_bias=True)
    target = loaded.tokenizer.target
    with torch.no_grad():
        loaded.model.output.bias[[target.unk_id, target.bos_id, target.pad_id]] = 9.0
    translator = Translator.load(exported(loaded, tmp_path, "ctranslate2"))
    expected = own_translator(loaded).translate(LINES[:50], beam=1)
    assert translator.translate(LINES[:50], beam=1) == expected


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Translator, Translator, Path]:
    """Return a translator, the one of its export, and the exported folder."""
    loaded = trained_model(norm="pre", positions="rotary")
    folder = exported(loaded, tmp_path_factory.mktemp("rotary"), "ctranslate2")
    return own_translator(loaded), Translator.load(folder), folder


def test_rules_hold_in_a_beam(both: tuple[Translator, Translator, Path]) -> None:
    # CTranslate2 normalises over the tokens that a rule leaves, so that scores differ.
    other = both[1]
    assert min(map(len, pieces_of(other, LINES, min_length=9))) == 9
    for pieces in pieces_of(other, LINES, no_repeat_ngram=2):
        bigrams = list(pairwise(pieces))
        assert len(set(bigrams)) == len(bigrams)


@pytest.mark.parametrize("rule", [{}, {"min_length": 5}, {"no_repeat_ngram": 2}], ids=str)
@pytest.mark.parametrize("prefix", ["", "das Haus"])
def test_every_score_is_that_of_the_whole_hypothesis(
    both: tuple[Translator, Translator, Path], prefix: str, rule: dict[str, Any]
) -> None:
    # Some hypotheses end by themselves, and others at the maximum length.
    own, other, _ = both
    decoding = replace(own.decoding, beam=4, max_factor=0.0, max_extra=9, **rule)
    [beginning] = vocabulary().encode_pieces([prefix])
    queries = [Source(source, beginning) for source in vocabulary().encode_pieces(LINES[:60])]
    found = other.engines.ctranslate2.search(queries, decoding, nbest=4)
    for query, hypotheses in zip(queries, found, strict=True):
        penalties = [length_penalty(decoding, len(each.pieces) + 1) for each in hypotheses]
        log_probs = [each.log_prob for each in hypotheses]
        pairs = [(query.pieces, each.pieces) for each in hypotheses]
        exact = list(map(sum, own.engines.torch.log_probs(pairs, decoding)))
        assert log_probs == pytest.approx(exact, abs=1e-3)
        scores = [x / penalty for x, penalty in zip(exact, penalties, strict=True)]
        assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-4)


def test_other_commands_refuse_an_exported_folder(
    both: tuple[Translator, Translator, Path], tmp_path: Path
) -> None:
    folder = both[2]
    with pytest.raises(UserError, match="only `translate` and `serve` can use"):
        load_model(folder)
    with pytest.raises(UserError, match="does not support ensembles"):
        Translator.load(folder.parent / "model", others=[folder])
    with pytest.raises(UserError, match="only `translate` and `serve` can use"):
        export(folder, tmp_path / "again", to="ctranslate2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "float16", "bfloat16"])
def test_quantized_models_translate(quantization: str, tmp_path: Path) -> None:
    loaded = trained_model(norm="pre", positions="rotary")
    whole = exported(loaded, tmp_path / "whole", "ctranslate2")
    folder = exported(loaded, tmp_path / quantization, "ctranslate2", quantization=quantization)
    assert (folder / "model.bin").stat().st_size < 0.7 * (whole / "model.bin").stat().st_size
    # Weights of eight bits overflow on processors with AVX2 alone: the difference is above 0.2.
    error = quantization_error(Translator.load(folder), Translator.load(whole))
    assert 0 < error < 0.05


def test_bad_output_and_bad_models_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "ctranslate2")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="belongs to a run or a model"):
        export(tmp_path / "model", folder / "sub", to="ctranslate2")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ctranslate2.specs.TransformerSpec.save", fail)
    with pytest.raises(UserError, match="could not be written: No space left"):
        export(tmp_path / "model", tmp_path / "out", to="ctranslate2")
    assert sorted(tmp_path.iterdir()) == before


def test_the_card_of_an_export_may_be_edited_but_not_the_model(tmp_path: Path) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "ctranslate2")
    with (folder / "README.md").open("a") as card:
        card.write("MIT")
    (folder / "LICENSE").write_text("MIT")
    assert Translator.load(folder).translate(["a house"])
    whole = (folder / "model.bin").read_bytes()
    for content in (whole[:1000], b"", whole[:-500] + bytes(500)):
        (folder / "model.bin").write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged: model\.bin has changed"):
            Translator.load(folder)


def test_the_card_and_the_recipe_travel(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    main(["train", str(recipe), "--run", str(run)])
    main(["export", str(run), "--to", "ctranslate2", "-o", str(out), "--quantization", "int8"])
    assert capsys.readouterr().out == f"{out}\n"
    card = (out / "README.md").read_text()
    start = json.loads((run / "starts.jsonl").read_text().splitlines()[-1])
    bleu = records(run, "validation")[0]["bleu"]
    for fact in (
        '- "en"\n- "de"\n',
        "# Translation from en to de\n",
        "After update 6 (beam 1",
        "license: unknown # fill in",
        f", BLEU {bleu:.2f}, chrF2 ",
        "(sacreBLEU, tokenizer 13a)",
        start["data"]["inputs"][0]["sha256"],
        start["commit"] or "commit unknown",
        "max_steps: 6",
    ):
        assert fact in card
    # Without the folders of this machine.
    expected = (run / "recipe.yaml").read_text().replace(f"{tmp_path}/", "")
    assert (out / "recipe.yaml").read_text() == expected
    assert (out / "tokenizer.model").read_bytes() == (run / "tokenizer.model").read_bytes()
    run_example(out)
    (tmp_path / "in").write_text("a house\n")
    capsys.readouterr()
    main(["translate", str(out), str(tmp_path / "in")])
    assert capsys.readouterr().out.count("\n") == 1


def test_unsupported_options_are_not_exported() -> None:
    default = vars(DecodingConfig())
    others: dict[str, Any] = {
        key: default[key] + 1 if isinstance(default[key], int | float) else 2 for key in UNSUPPORTED
    }
    allowed = portable(Config()).decoding
    for key, value in others.items():
        decoding = replace(allowed, **{key: value})
        assert portable(Config(decoding=decoding)).decoding == allowed
