"""Translation: blank and long lines, model directories, ensembles, mistakes in Python."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from conftest import TEXTS, VOCABULARY, encoded, pack, torch_engine
from torch import Tensor

import seq2seq
from seq2seq import Translator
from seq2seq.config import CleaningConfig, Config, DecodingConfig, PairsConfig, TokenizerConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import train_vocabulary
from seq2seq.decoding.ctranslate2_engine import CTranslate2Engine
from seq2seq.decoding.engine import Hypothesis, Source, length_penalty
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.segments import Decoder
from seq2seq.decoding.torch_engine import EnsembleDecoder
from seq2seq.decoding.translation import Request
from seq2seq.decoding.translator import changed_decoding
from seq2seq.errors import UserError
from seq2seq.formats.weights import save_model, snapshot
from seq2seq.model.transformer import Transformer

LINES = [
    "the dog",
    "a man sees the red house",
    "",
    "   ",
    "tree",
    "a small house likes the red man and the old tree of the dog",
    "ein Haus",
    "dog dog dog",
] * 4
SOURCES = [line for line in LINES[:8] if line.strip()]
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)


@pytest.fixture(params=["ctranslate2", "torch"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def searching_with(engine: str, translator: Translator) -> Translator:
    """Return the translator. It searches with PyTorch if `engine` is torch."""
    if engine == "torch":
        torch_engine(translator)
    return translator


def search(translator: Translator, texts: Sequence[str], **options: Any) -> list[Hypothesis]:
    decoding = changed_decoding(translator.decoding, options)
    sources = [Source(pieces) for pieces in VOCABULARY.encode_pieces(texts)]
    results = translator.engines.engine_for(decoding).search(sources, decoding)
    return [best for [best] in results]


def only_model(translator: Translator) -> Transformer:
    """Return the model of a translator. Its weights may be changed before the first search."""
    assert translator.engines.models
    [model] = translator.engines.models()
    return model


def next_probs(model: Transformer, text: str, target: Sequence[str]) -> Tensor:
    """Return next-token probabilities, (T, V), by teacher forcing without a key/value cache."""
    [source, ids] = VOCABULARY.piece_ids([*VOCABULARY.encode_pieces([text]), target])
    target_side = pack([[VOCABULARY.bos_id, *ids]])
    with torch.no_grad():
        hidden = model(pack([[*source, VOCABULARY.eos_id]]), target_side)[: len(ids) + 1]
        logits = model.output(hidden)
    logits[:, [VOCABULARY.pad_id, VOCABULARY.bos_id]] = -torch.inf
    return logits.softmax(-1)


def target_log_prob(models: Sequence[Transformer], text: str, target: Sequence[str]) -> float:
    """Return the log-probability of a target, including the end symbol, under an ensemble."""
    [ids] = VOCABULARY.piece_ids([target])
    mean = torch.stack([next_probs(model, text, target) for model in models]).mean(dim=0)
    labels = torch.tensor([*ids, VOCABULARY.eos_id])
    return mean.gather(1, labels[:, None]).log().sum().item()


@pytest.mark.parametrize(("beam", "form"), [(1, "wu"), (4, "power"), (4, "wu")])
def test_scores_agree_in_any_batch_and_with_teacher_forcing(
    make_translator: Callable[..., Translator], engine: str, beam: int, form: Any
) -> None:
    translator = make_translator(beam=beam, length_penalty=0.6, penalty_form=form)
    translator = searching_with(engine, translator)
    for text, hypothesis in zip(SOURCES, search(translator, SOURCES), strict=True):
        [alone] = search(translator, [text])
        assert alone.pieces == hypothesis.pieces
        assert alone.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        expected = target_log_prob([only_model(translator)], text, hypothesis.pieces)
        [result] = translator.translations([text])
        assert result.nbest[0].log_prob == pytest.approx(expected, abs=1e-4)
        expected /= length_penalty(translator.decoding, len(hypothesis.pieces) + 1)
        assert result.score == pytest.approx(expected, abs=1e-4)


def test_blank_lines_are_not_translated(
    make_translator: Callable[..., Translator], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("the model was used")

    monkeypatch.setattr(EnsembleDecoder, "__init__", fail)
    monkeypatch.setattr(ctranslate2.Translator, "translate_batch", fail)
    translator = searching_with(engine, make_translator())
    assert translator.translate(["", " ", "\t", "\u2581"]) == ["", "", "", ""]
    assert translator.translate([]) == []
    with pytest.raises(pytest.fail.Exception):
        translator.translate(["tree"])


def test_many_requests_are_searched_in_parts(
    make_translator: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, segments = make_translator(), list[int]()
    whole = translator.translate(LINES)
    monkeypatch.setattr(CTranslate2Engine, "search_size", 3)
    parts = translator.process(list(map(Request, LINES)), progress=segments.append)
    assert [part.text for part in parts] == whole
    assert sum(segments) == sum(1 for line in LINES if line.strip())
    monkeypatch.setattr(Decoder, "decode", lambda *_: pytest.fail("an error of the thread"))
    with pytest.raises(pytest.fail.Exception, match="thread"):
        translator.translate(LINES)


def test_no_translation_has_a_line_break(
    make_translator: Callable[..., Translator], engine: str
) -> None:
    [line_feed] = VOCABULARY.encode(["\n"])
    translator = make_translator(beam=1)
    with torch.no_grad():  # make the byte of the line feed the most probable token
        only_model(translator).output.weight[line_feed[-1]] *= 50
    [hypothesis] = search(searching_with(engine, translator), ["tree"])
    assert "<0x0A>" in hypothesis.pieces
    lines = translator.translate(LINES)
    assert len(lines) == len(LINES) and not any("\n" in line for line in lines)


def test_long_lines_are_split_at_sentence_ends_and_joined(
    make_translator: Callable[..., Translator], engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = "the dog likes a small tree and a house.", "a man sees the red house."
    limit = max(len(ids) for ids in VOCABULARY.encode([first, second]))
    translator = searching_with(engine, make_translator(limit=limit))
    parts = translator.translate([first, second])
    with caplog.at_level(logging.WARNING):
        [joined, short] = translator.translate([f"{first} {second}", "tree"])
    assert joined == " ".join(parts)
    assert "translated in 2 parts" in caplog.text
    assert short == translator.translate(["tree"])[0]


@pytest.mark.parametrize(
    "text", ["the dog " * 60, "x" * 500, "狗喜欢小树。" * 50, "a, b; c. " * 70]
)
def test_splitting_a_long_line_keeps_all_words(
    text: str, make_translator: Callable[..., Translator]
) -> None:
    parts = encoded(make_translator(limit=15), text)
    rows = [source.pieces for source in parts.sources]
    assert all(len(row) <= 15 for row in rows)
    assert parts.prepared.after(VOCABULARY.decode_pieces(rows)).split() == text.split()


def test_a_model_directory_is_self_contained(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    translator = make_translator()
    run = tmp_path / "run"
    for name in ("last", "checkpoints/step_5"):
        (run / name).mkdir(parents=True)
        config = replace(Config(), model=only_model(translator).config)
        save_model(run / name, snapshot(only_model(translator)), translator.tokenizer, config)
    with torch.no_grad():
        only_model(translator).output.weight.mul_(-1)
    (run / "best").mkdir()
    save_model(run / "best", snapshot(only_model(translator)), translator.tokenizer, config)
    lines = LINES[:8]
    best = Translator.load(run, device="cpu").translate(lines)
    last = Translator.load(run, checkpoint="last", device="cpu").translate(lines)
    assert best == Translator.load(run / "best", device="cpu").translate(lines)
    assert last == Translator.load(run, checkpoint="step_5", device="cpu").translate(lines)
    assert best != last
    names = {"model.json", "model.safetensors", "tokenizer.model", "ctranslate2"}
    assert {path.name for path in (run / "best").iterdir()} == names


@pytest.fixture
def folder(make_translator: Callable[..., Translator], tmp_path: Path) -> Path:
    """Return a model directory without checksums, such as one written by another program."""
    translator = make_translator()
    config = replace(Config(), model=only_model(translator).config)
    save_model(tmp_path, snapshot(only_model(translator)), translator.tokenizer, config)
    return tmp_path


def load_error(folder: Path, checkpoint: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        Translator.load(folder, checkpoint=checkpoint, device="cpu").translate(["tree"])
    return str(error.value)


def test_unusable_model_directories_are_errors(folder: Path) -> None:
    # A checkpoint must not be a path: it would select one model for all members of an ensemble.
    assert f"does not hold checkpoint '{folder}'" in load_error(folder, str(folder))
    description = (folder / "model.json").read_text()
    (folder / "model.json").write_text(description.replace('"format": 1', '"format": 99'))
    assert "model format 99, but" in load_error(folder)
    (folder / "model.json").write_text("{")
    assert "cannot be read" in load_error(folder)
    (folder / "model.json").write_text(description)
    other = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=320), [])
    (folder / "tokenizer.model").write_bytes(other.model)
    assert "is not the one the model was trained with" in load_error(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_heads", 0, "model.num_heads=0 must be at least 1"),
        ("dim", 2**20, "in the model that the folder describes"),
        ("decoder_layers", 2, "in the model that the folder describes"),
    ],
)
def test_a_model_json_that_does_not_match_the_weights_is_an_error_before_memory_is_used(
    folder: Path, key: str, value: int, message: str
) -> None:
    path = folder / "model.json"
    description = json.loads(path.read_text())
    description["recipe"]["model"][key] = value
    path.write_text(json.dumps(description))
    error = load_error(folder)
    assert message in error and str(folder) in error and "\n" not in error


@pytest.fixture
def models(make_model: Callable[..., Transformer]) -> list[Transformer]:
    models = [make_model(vocab_size=VOCABULARY.size, norm=norm) for norm in ("post", "pre", "post")]
    torch.manual_seed(5)
    for model in models:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return models


def translator_of(models: Sequence[Transformer], **decoding: Any) -> Translator:
    engines = Engines.of_model(models[0], TOKENIZER, Config())
    engines = replace(engines, configs=[Config()] * len(models), models=lambda: models)
    return Translator(engines, DecodingConfig(**{"max_extra": 8, "beam": 3, **decoding}))


def test_an_ensemble_averages_probabilities(models: list[Transformer]) -> None:
    hypotheses = search(translator_of(models), SOURCES)
    for text, hypothesis in zip(SOURCES, hypotheses, strict=True):
        expected = target_log_prob(models, text, hypothesis.pieces)
        assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)
    pieces = [hypothesis.pieces for hypothesis in hypotheses]
    for model in models:
        assert [h.pieces for h in search(translator_of([model]), SOURCES)] != pieces


def test_an_ensemble_is_loaded_from_runs_with_one_tokenizer(
    models: list[Transformer], tmp_path: Path
) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    vocabulary = train_vocabulary([*TEXTS, "other words"], TokenizerConfig(vocab_size=310), [])
    other = tmp_path / "other"
    for folder, model, tokenizer in (
        *((folder, model, TOKENIZER) for folder, model in zip(folders, models, strict=True)),
        (other, Transformer(models[0].config, vocabulary.size), Tokenizer(vocabulary, vocabulary)),
    ):
        folder.mkdir()
        config = Config(model=model.config, decoding=DecodingConfig(max_extra=8, beam=3))
        save_model(folder, snapshot(model), tokenizer, config)
    loaded = Translator.load(folders[0], others=folders[1:], device="cpu", precision="fp32")
    assert search(loaded, SOURCES) == search(translator_of(models), SOURCES)
    with pytest.raises(UserError, match=r"other and .*0 have different tokenizers"):
        Translator.load(folders[0], others=[other])


@pytest.mark.parametrize("beam", [1, 2])
def test_learned_positions_limit_the_translation(
    make_model: Callable[..., Transformer], engine: str, beam: int
) -> None:
    model = make_model(vocab_size=VOCABULARY.size, positions="learned", context=12)
    config = Config(model=model.config, data=PairsConfig(clean=CleaningConfig(max_len=11)))
    decoding = DecodingConfig(max_extra=50, beam=beam)
    engines = Engines.of_model(model, TOKENIZER, config)
    translator = searching_with(engine, Translator(engines, decoding))
    # An untrained model rarely predicts the end symbol.
    [hypothesis] = search(translator, ["tree"])
    assert 8 < len(hypothesis.pieces) < 12
    [limited] = search(translator, ["tree"], max_extra=11 - len(VOCABULARY.encode(["tree"])[0]))
    assert limited.pieces == hypothesis.pieces


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": "the dog"}, "texts must be a list"),
        ({"constraints": ["Hund"]}, "constraints needs a list of strings for each text"),
        ({"beem": 3}, "unknown key 'decoding.beem'; did you mean 'decoding.beam'?"),
        ({"beam": "wide"}, "beam='wide' should be a whole number"),
        ({"nbest": 9}, "nbest=9 is larger than the beam of 4; increase beam"),
        ({"sample": True, "constraints": [["a"]]}, "need beam search"),
        ({"temperature": 0.5}, "temperature=0.5 has no effect without decoding.sample"),
        ({"prefixes": ["der", "das"]}, "prefixes has length 2, but texts has length 1"),
    ],
)
def test_errors_in_python_name_keyword_arguments(
    make_translator: Callable[..., Translator], options: dict[str, Any], message: str
) -> None:
    translator = make_translator(beam=4)
    with pytest.raises((TypeError, seq2seq.UserError)) as error:
        translator.translations(**{"texts": ["the dog"], **options})
    assert message in str(error.value)
    assert "--" not in str(error.value)


def test_a_sentence_in_title_case_is_as_long_as_the_model_reads_it(
    make_translator: Callable[..., Translator],
) -> None:
    title = "Ein Haus Mann Hund Baum Mann Haus."
    [written, lower] = VOCABULARY.encode_pieces([title, "Ein haus mann hund baum mann haus."])
    assert len(written) < len(lower)
    parts = encoded(make_translator(limit=len(written)), f"the dog sees a man. {title} the dog")
    assert max(len(source.pieces) for source in parts.sources) <= len(written)
