"""Models exported to CTranslate2 compute and translate what they did before."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import VARIANTS, covering, name_of, records
from numpy.typing import NDArray
from torch import Tensor
from trained import LINES, PAIRS, exported, own_translator, run_example, trained_model

from seq2seq.cli import main
from seq2seq.config import Config, DecodingConfig
from seq2seq.decoding.ensemble import Continuations
from seq2seq.decoding.exported import OBEYED, ExportedEngine
from seq2seq.decoding.search import Best, best_of, only
from seq2seq.decoding.segments import Segment
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.export.export import export, portable
from seq2seq.model.directory import LoadedModel, load_model

ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")


def library(folder: Path) -> Any:
    return ctranslate2.Translator(str(folder), intra_threads=1)


def require_same_scores(loaded: LoadedModel, folder: Path) -> None:
    """Compare log-probabilities of a model and its export."""
    own, other = own_translator(loaded), library(folder)
    source, target = loaded.tokenizer.source, loaded.tokenizer.target
    pairs = list(
        zip(
            source.encode([pair[0] for pair in PAIRS[:100]]),
            target.encode([pair[1] for pair in PAIRS[:100]]),
            strict=True,
        )
    )
    scores = other.score_batch(
        [source.pieces(ids) for ids, _ in pairs], [target.pieces(ids) for _, ids in pairs]
    )
    expected = own.engine.score(pairs, own.decoding)
    for found, right in zip(scores, expected, strict=True):
        assert found.log_probs == pytest.approx(right.log_probs, abs=1e-4)


def require_parity(loaded: LoadedModel, folder: Path) -> None:
    """Compare log-probabilities, greedy search and beam search of a model and its export."""
    require_same_scores(loaded, folder)
    own, other = own_translator(loaded), library(folder)
    source, target = loaded.tokenizer.source, loaded.tokenizer.target
    ids = source.encode(LINES)
    tokens = [source.pieces(row) for row in ids]
    greedy = replace(own.decoding, beam=1, max_factor=0.0, max_extra=30)
    expected_tokens = [
        target.pieces(found.tokens)
        for [found] in own.engine.search([Segment(row) for row in ids], greedy)
    ]
    # Without </s>, which the format adds.
    results = other.translate_batch(
        tokens, beam_size=1, max_decoding_length=30, min_decoding_length=0
    )
    assert [result.hypotheses[0] for result in results] == expected_tokens
    texts = own.translate(LINES)
    assert len(set(texts)) > 100, "the translations are too alike to compare"
    require_alike(Translator.load(folder), own)


def require_alike(other: Translator, own: Translator, **options: Any) -> None:
    """Require the same translations of `LINES` from both.

    CTranslate2 normalises without the start, padding and unknown symbols, which are never written,
    so that another hypothesis can survive: this package's engine is made to do the same.
    """
    options = {**options}
    found, usual = (each.translate(LINES, **options) for each in (other, own))
    plain = Continuations.all

    def all_of(self: Continuations) -> Tensor:
        return plain(self).log_softmax(dim=-1)

    def best(
        self: Continuations, live: Tensor, count: int, eos_id: int, must_end: NDArray[np.bool_]
    ) -> Best:
        log_probs, ends = all_of(self), torch.from_numpy(must_end)[:, None, None]
        return best_of(torch.where(ends, only(eos_id, log_probs), log_probs), live, count)

    with patch.object(Continuations, "all", all_of), patch.object(Continuations, "best", best):
        expected = own.translate(LINES, **options)
    assert found == expected
    same = sum(a == b for a, b in zip(found, usual, strict=True))
    assert same >= len(LINES) - 2


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_every_variant_computes_the_same(variant: dict[str, Any], tmp_path: Path) -> None:
    loaded = trained_model(steps=1, **variant)
    folder = exported(loaded, tmp_path, "ctranslate2")
    require_same_scores(loaded, folder)
    own, other = own_translator(loaded), Translator.load(folder)
    queries = [Segment(ids) for ids in loaded.tokenizer.source.encode(LINES[:20])]
    decoding = replace(own.decoding, beam=1)
    found, expected = (each.engine.search(queries, decoding) for each in (other, own))
    assert [best.tokens for [best] in found] == [best.tokens for [best] in expected]


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
    translator, own = (
        Translator.load(exported(loaded, tmp_path, "ctranslate2")),
        own_translator(loaded),
    )
    text = " ".join(pair[0] for pair in PAIRS)[:2600]
    [ids] = loaded.tokenizer.source.encode([text])
    assert 1024 < len(ids) < 1500
    pairs = [(ids, ids[:700])]
    [scored], [expected] = (each.engine.score(pairs, own.decoding) for each in (translator, own))
    assert scored.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    decoding = replace(own.decoding, beam=1, min_length=300)
    [[found]], [[right]] = (
        each.engine.search([Segment(ids)], decoding) for each in (translator, own)
    )
    assert len(right.tokens) > 300 and found.tokens[:300] == right.tokens[:300]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_translation_ends_at_the_last_position(positions: str, tmp_path: Path) -> None:
    # Beyond it, CTranslate2 raises an error.
    loaded = trained_model(steps=1, positions=positions, context=128)
    translator = Translator.load(exported(loaded, tmp_path, "ctranslate2"))
    decoding = replace(translator.decoding, min_length=5000, beam=1)
    [[found]] = translator.engine.search([Segment([5, 6])], decoding)
    assert len(found.tokens) == (127 if positions == "learned" else 2047)


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
    loaded = trained_model(output_bias=True)
    target = loaded.tokenizer.target
    with torch.no_grad():
        loaded.model.output.bias[[target.unk_id, target.bos_id, target.pad_id]] = 9.0
    translator = Translator.load(exported(loaded, tmp_path, "ctranslate2"))
    options: dict[str, Any] = {"beam": 1}
    assert translator.translate(LINES, **options) == own_translator(loaded).translate(
        LINES, **options
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Translator, Translator, Path]:
    """Return a translator, the one of its export, and the exported folder."""
    loaded = trained_model(norm="pre", positions="rotary")
    folder = exported(loaded, tmp_path_factory.mktemp("rotary"), "ctranslate2")
    return own_translator(loaded), Translator.load(folder), folder


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 1, "min_length": 6},
        {"beam": 1, "no_repeat_ngram": 2},
        {"beam": 3},
        {"length_penalty": 0.0},
        {"length_penalty": 0.3},
        {"beam": 2, "max_extra": 0, "max_factor": 2.0},
        {"beam": 2, "max_extra": 0, "max_factor": 0.0},
        {"beam": 1, "max_extra": 1, "max_factor": 0.0},
        {"batch_tokens": 100},
    ],
    ids=str,
)
def test_options_mean_the_same(
    both: tuple[Translator, Translator, Path], options: dict[str, Any]
) -> None:
    own, other, _ = both
    require_alike(other, own, **options)


def test_rules_hold_in_a_beam(both: tuple[Translator, Translator, Path]) -> None:
    # CTranslate2 normalises over the tokens that a rule leaves, so that scores differ.
    other = both[1]
    queries = [Segment(ids) for ids in other.tokenizer.source.encode(LINES)]
    longer = other.engine.search(queries, replace(other.decoding, min_length=9))
    assert min(len(found.tokens) for [found] in longer) == 9
    for [found] in other.engine.search(queries, replace(other.decoding, no_repeat_ngram=2)):
        bigrams = list(zip(found.tokens, found.tokens[1:], strict=False))
        assert len(set(bigrams)) == len(bigrams)


@pytest.mark.parametrize("beam", [1, 4])
def test_prefixes_are_kept(both: tuple[Translator, Translator, Path], beam: int) -> None:
    own, other, _ = both
    prefixes = ["das Haus" if i % 2 else "" for i in range(len(LINES))]
    options: dict[str, Any] = {"prefixes": prefixes, "beam": beam}
    found, expected = (each.translate(LINES, **options) for each in (other, own))
    assert all(text.startswith("das Haus") for text in found[1::2])
    assert found[::2] == expected[::2]
    if beam == 1:
        assert found == expected


def test_scores_and_nbest_lists_agree(both: tuple[Translator, Translator, Path]) -> None:
    own, other, _ = both
    references = [[pair[1]] for pair in PAIRS[:20]]
    texts = [pair[0] for pair in PAIRS[:20]]
    options: dict[str, Any] = {"nbest": 3, "tokens": True}
    options |= {"references": references}
    pairs = zip(*(each.translations(texts, **options) for each in (own, other)), strict=True)
    for right, found in pairs:
        assert [each.text for each in found.nbest] == [each.text for each in right.nbest]
        for a, b in zip((*found.nbest, *found.references), (*right.nbest, *right.references),
                        strict=True):  # fmt: skip
            # CTranslate2 normalises without the start, padding and unknown symbols.
            assert a.score == pytest.approx(b.score, abs=3e-3)
            assert a.pieces == b.pieces
        [a], [b] = found.references, right.references
        assert a.log_prob == pytest.approx(b.log_prob, abs=3e-3)


def test_lines_keep_their_promises(both: tuple[Translator, Translator, Path]) -> None:
    own, other, _ = both
    long = " ".join(LINES[:60])
    lines = ["", "a house", "   ", long, *LINES[:20], "das \U0001f600 Haus"]
    found = other.translate(lines)
    assert found[0] == found[2] == ""
    assert other.translate(lines[::-1]) == found[::-1]
    assert [other.translate([line])[0] for line in lines] == found
    options: dict[str, Any] = {}
    assert other.translate(lines, **options) == own.translate(lines, **options)


def test_options_that_ctranslate2_lacks_are_refused_by_name(
    both: tuple[Translator, Translator, Path],
) -> None:
    other = both[1]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"penalty_form": "wu"}, "penalty_form=wu"),
        ({"coverage_penalty": 0.2}, "coverage_penalty"),
        ({"diverse_groups": 2}, "diverse_groups"),
        ({"sample": True}, "sample"),
        ({"alignment": True}, "alignment"),
        ({"constraints": [["Haus"]]}, "terms and glossaries"),
    ]
    for options, name in refused:
        with pytest.raises(UserError, match=f"has no {name}"):
            other.translations(["a house"], **options)
    assert other.translate(["a house"], penalty_form="wu", length_penalty=0.0)


@pytest.mark.parametrize("rule", [{}, {"min_length": 5}, {"no_repeat_ngram": 2}], ids=str)
@pytest.mark.parametrize("prefix", ["", "das Haus"])
def test_every_score_is_that_of_the_whole_hypothesis(
    both: tuple[Translator, Translator, Path], prefix: str, rule: dict[str, Any]
) -> None:
    # Some hypotheses end by themselves, and others at the maximum length.
    own, other, _ = both
    decoding = replace(own.decoding, beam=4, max_factor=0.0, max_extra=9, **rule)
    beginning = own.tokenizer.target.encode([prefix])[0]
    sources = own.tokenizer.source.encode(LINES[:60])
    queries = [Segment(ids, beginning) for ids in sources]
    for ids, hypotheses in zip(
        sources, other.engine.search(queries, decoding, nbest=4), strict=True
    ):
        scores = [each.score for each in hypotheses]
        assert scores == sorted(scores, reverse=True)
        forced = own.engine.score([(ids, each.tokens) for each in hypotheses], decoding)
        # Without a rule or a prefix, CTranslate2's normalisation remains.
        close = 2e-5 if rule or prefix else 3e-3
        assert scores == pytest.approx([each.score for each in forced], abs=close)


def test_the_card_of_an_export_may_be_edited(tmp_path: Path) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "ctranslate2")
    with (folder / "README.md").open("a") as card:
        card.write("MIT")
    (folder / "LICENSE").write_text("MIT")
    assert Translator.load(folder).translate(["a house"])


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "ctranslate2")
    (folder / "SHA256SUMS").unlink()
    path = folder / "shared_vocabulary.json"
    for content in ("[]", "damaged", path.read_text().replace("ein", "kein")):
        path.write_text(content)
        with pytest.raises(UserError, match=r"shared_vocabulary\.json"):
            Translator.load(folder)


def test_a_model_is_not_written_into_another(tmp_path: Path) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "ctranslate2")
    for inside in (folder, tmp_path / "model"):
        with pytest.raises(UserError, match="is a model; name a folder outside of it"):
            export([tmp_path / "model"], inside / "sub", to="ctranslate2")


def test_other_commands_refuse_an_exported_folder(
    both: tuple[Translator, Translator, Path], tmp_path: Path
) -> None:
    folder = both[2]
    with pytest.raises(UserError, match="only `translate` can use"):
        load_model(folder)
    with pytest.raises(UserError, match="forms no ensembles"):
        Translator.load(folder.parent / "model", others=[folder])
    with pytest.raises(UserError, match="only `translate` can use"):
        export([folder], tmp_path / "again", to="ctranslate2")
    assert not list(tmp_path.iterdir())


def test_the_exported_recipe_says_what_is_searched(tmp_path: Path) -> None:
    loaded = trained_model(steps=1)
    decoding = replace(loaded.config.decoding, penalty_form="wu", coverage_penalty=0.1)
    loaded = replace(loaded, config=replace(loaded.config, decoding=decoding))
    translator = Translator.load(exported(loaded, tmp_path, "ctranslate2"))
    assert translator.decoding.penalty_form == "power"
    assert translator.decoding.coverage_penalty == 0.0


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "float16", "bfloat16", "int16"])
def test_quantized_models_translate(quantization: str, tmp_path: Path) -> None:
    loaded = trained_model(norm="pre", positions="rotary")
    whole = exported(loaded, tmp_path / "whole", "ctranslate2")
    folder = exported(loaded, tmp_path / quantization, "ctranslate2", quantization=quantization)
    assert (folder / "model.bin").stat().st_size < 0.7 * (whole / "model.bin").stat().st_size
    found, right = (Translator.load(each).translate(LINES) for each in (folder, whole))
    same = sum(a == b for a, b in zip(found, right, strict=True))
    assert same > 0.7 * len(LINES)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    loaded = trained_model(steps=1)
    size = (exported(loaded, tmp_path, "ctranslate2") / "model.bin").stat().st_size
    positions = 2048 * loaded.config.model.dim
    assert size < 4 * (loaded.model.num_parameters() + positions) + 20_000


def test_bad_output_and_bad_models_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = trained_model(steps=1)
    folder = exported(loaded, tmp_path, "ctranslate2")
    model = tmp_path / "model"
    with pytest.raises(UserError, match="exported exists; name a new folder"):
        export([model], folder, to="ctranslate2")
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "out"
    with pytest.raises(UserError, match="not an ensemble of 2"):
        export([model, model], out, to="ctranslate2")
    with pytest.raises(UserError, match="no such run"):
        export([tmp_path / "nothing"], out, to="ctranslate2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="does not hold a trained model"):
        export([tmp_path / "empty"], out, to="ctranslate2")
    (tmp_path / "empty").rmdir()
    version = importlib.metadata.version
    old = {"ctranslate2": "3.9.1"}
    monkeypatch.setattr("seq2seq.extras.version", lambda name: old.get(name) or version(name))
    for use in (lambda: export([model], out, to="ctranslate2"), lambda: Translator.load(folder)):
        with pytest.raises(UserError, match=r"needs ctranslate2 4\.8 or newer, not 3\.9\.1: pip"):
            use()
    assert sorted(tmp_path.iterdir()) == before


def test_weights_that_are_not_finite_are_not_exported(tmp_path: Path) -> None:
    loaded = trained_model(steps=1)
    with torch.no_grad():
        loaded.model.output.weight[3, 4] = torch.nan
    with pytest.raises(UserError, match="is not finite"):
        exported(loaded, tmp_path, "ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ctranslate2.specs.TransformerSpec.save", fail)
    with pytest.raises(UserError, match="could not be written: No space left"):
        exported(trained_model(steps=1), tmp_path, "ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_two_tokens_of_one_name_are_refused(tmp_path: Path) -> None:
    loaded = trained_model(steps=1)
    vocabulary = loaded.tokenizer.target
    names = vocabulary.pieces(range(vocabulary.size))
    names[7] = names[8]
    pieces = type(vocabulary).pieces
    try:
        type(vocabulary).pieces = lambda self, ids: [names[i] for i in ids]  # type: ignore[method-assign]
        with pytest.raises(UserError, match="1 of this vocabulary have the name of another"):
            exported(loaded, tmp_path, "ctranslate2")
    finally:
        type(vocabulary).pieces = pieces  # type: ignore[method-assign]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "ctranslate2")
    whole = (folder / "model.bin").read_bytes()
    for content in (whole[:1000], b"", whole[:-500] + bytes(500)):
        (folder / "model.bin").write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged: model\.bin has changed"):
            Translator.load(folder)


def test_attention_is_that_of_the_heads_that_align(tmp_path: Path) -> None:
    # By default CTranslate2 returns that of one head of the last layer.
    loaded = trained_model()
    own, other = own_translator(loaded), library(exported(loaded, tmp_path, "ctranslate2"))
    [ids] = loaded.tokenizer.source.encode([LINES[0]])
    [[found]] = own.engine.search([Segment(ids)], replace(own.decoding, beam=1))
    [scored] = own.engine.score([(ids, found.tokens)], own.decoding, own.engine.heads)
    [result] = other.translate_batch(
        [loaded.tokenizer.source.pieces(ids)], beam_size=1, return_attention=True
    )
    attention = torch.tensor(result.attention[0])[: len(found.tokens)]
    assert scored.attention is not None
    # Without that to </s>, which it adds itself.
    torch.testing.assert_close(attention, scored.attention[:, : len(ids)], atol=1e-4, rtol=0)


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
        "after update 6, beam 1",
        "license: unknown # fill in",
        f"| BLEU | {bleu:.2f} | `nrefs:1\\|case:mixed\\|eff:no\\|tok:13a\\|smooth:exp\\|version:",
        start["data"]["inputs"][0]["sha256"],
        start["commit"] or "commit unknown",
        "max_steps: 6",
        "## Intended use",
    ):
        assert fact in card
    # Without the folders of this machine, and with the penalty that CTranslate2 has.
    expected = (run / "recipe.yaml").read_text().replace(f"{tmp_path}/", "")
    expected = expected.replace("penalty_form: wu", "penalty_form: power")
    assert (out / "recipe.yaml").read_text() == expected
    assert (out / "tokenizer.model").read_bytes() == (run / "tokenizer.model").read_bytes()
    run_example(out)
    (tmp_path / "in").write_text("a house\n")
    capsys.readouterr()
    main(["translate", str(out), str(tmp_path / "in")])
    assert capsys.readouterr().out.count("\n") == 1
    (tmp_path / "glossary").write_text("nothing of it\tnichts davon\n")  # occurs in no line
    with pytest.raises(SystemExit, match="has no terms and glossaries"):
        main(
            ["translate", str(out), str(tmp_path / "in"), "--glossary", str(tmp_path / "glossary")]
        )
    assert capsys.readouterr().out == ""


def test_what_another_program_does_not_obey_is_refused_or_left_out() -> None:
    """Every key of the section `decoding` but those that are known to work, new ones included."""
    default = DecodingConfig()
    others: dict[str, Any] = {
        key: value + 1 if isinstance(value, int | float) else 2
        for key, value in vars(default).items()
        if key not in OBEYED
    }
    assert {"coverage_penalty", "diverse_groups", "sample", "temperature"} <= others.keys()
    engine = object.__new__(ExportedEngine)
    engine.name = "the model"
    allowed = portable(Config()).decoding
    engine.require_supported(allowed, terms=False, alignment=False)
    for key, value in others.items():
        decoding = replace(allowed, **{key: value})
        with pytest.raises(UserError, match=f"has no {key}; translate with the run"):
            engine.require_supported(decoding, terms=False, alignment=False)
        assert portable(Config(decoding=decoding)).decoding == allowed
