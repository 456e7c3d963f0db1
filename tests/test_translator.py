"""Translation: line order, blank and long lines, independence of the batch, ensembles."""

from __future__ import annotations

import copy
import inspect
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TEXTS, VOCABULARY, engine_of, pack

import seq2seq
from seq2seq import Translator
from seq2seq.config import CleaningConfig, Config, DecodingConfig, PairsConfig, TokenizerConfig
from seq2seq.data.packing import collate
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.beams import Hypothesis, LengthPenalty
from seq2seq.decoding.engine import SearchEngine
from seq2seq.decoding.ensemble import Ensemble
from seq2seq.decoding.options import ARGUMENTS
from seq2seq.decoding.segments import Segment, split_text
from seq2seq.errors import UserError
from seq2seq.model.directory import save_model, snapshot
from seq2seq.model.transformer import Transformer
from seq2seq.preparation.train_vocabulary import train_vocabulary
from seq2seq.training.loss import ModelLoss

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


def search(translator: Translator, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Return the best hypothesis of each row of source ids."""
    queries = [Segment(source) for source in sources]
    return [best for [best] in engine_of(translator).search(queries, translator.decoding)]


def only_model(translator: Translator) -> Transformer:
    [model] = engine_of(translator).ensemble.models
    return model


@pytest.mark.parametrize("beam", [1, 4])
def test_a_line_is_translated_alike_alone_in_any_batch_and_in_any_order(
    make_translator: Callable[..., Translator], beam: int
) -> None:
    translator = make_translator(beam=beam, batch_tokens=300)
    together = translator.translate(LINES)
    assert together[::-1] == translator.translate(LINES[::-1])
    assert together[:8] == make_translator(beam=beam, batch_tokens=10**6).translate(LINES[:8])
    assert together[:8] == [translator.translate([line])[0] for line in LINES[:8]]
    assert len(set(together)) > 4


@pytest.mark.parametrize("beam", [1, 4])
def test_scores_agree_in_any_batch_and_with_teacher_forcing(
    make_translator: Callable[..., Translator], beam: int
) -> None:
    translator = make_translator(beam=beam, length_penalty=0.6)
    sources = VOCABULARY.encode([line for line in LINES[:8] if line.strip()])
    found = search(translator, sources)
    penalty = LengthPenalty(0.6)
    for source, hypothesis in zip(sources, found, strict=True):
        [alone] = search(translator, [source])
        assert alone.tokens == hypothesis.tokens
        assert alone.score == pytest.approx(hypothesis.score, abs=1e-4)
        batch = collate(
            [np.array(source, dtype=np.int32)],
            [np.array(hypothesis.tokens, dtype=np.int32)],
            translator.tokenizer,
        )
        with torch.no_grad():
            _, nll = ModelLoss(only_model(translator), 0.0)(batch)
        assert hypothesis.log_prob == pytest.approx(-nll.item(), abs=1e-4)
        expected = -nll.item() / penalty(len(hypothesis.tokens) + 1)
        assert hypothesis.score == pytest.approx(expected, abs=1e-4)


def test_the_length_penalty_of_the_recipe_is_used(
    make_translator: Callable[..., Translator],
) -> None:
    translator = make_translator()
    sources = VOCABULARY.encode(["a man sees the red house", "tree"])
    for decoding in (
        DecodingConfig(length_penalty=0.9),
        DecodingConfig(length_penalty=0.9, penalty_form="power"),
    ):
        translator.decoding = decoding
        for hypothesis in search(translator, sources):
            length = len(hypothesis.tokens) + 1
            base = length if decoding.penalty_form == "power" else (5 + length) / 6
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / base**0.9)


def test_greedy_is_beam_one_without_penalty_in_the_model_too(
    make_translator: Callable[..., Translator],
) -> None:
    """Greedy against the uncached model, token by token."""
    translator = make_translator(beam=1)
    sources = VOCABULARY.encode(["a man sees the red house", "tree"])
    for source, hypothesis in zip(sources, search(translator, sources), strict=True):
        ids = pack([[*source, VOCABULARY.eos_id]])
        target = [VOCABULARY.bos_id]
        never = [VOCABULARY.pad_id, VOCABULARY.bos_id, VOCABULARY.unk_id]
        while len(target) < len(source) + 1 + 8:
            with torch.no_grad():
                hidden = only_model(translator)(ids, pack([target]))
                logits = only_model(translator).output(hidden[len(target) - 1])
            logits[never] = -torch.inf
            token = int(logits.argmax())
            if token == VOCABULARY.eos_id:
                break
            target.append(token)
        assert hypothesis.tokens == target[1:]


def test_blank_lines_are_not_translated(
    make_translator: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = make_translator()
    monkeypatch.setattr(
        only_model(translator), "start", lambda *_: pytest.fail("the model was asked")
    )
    assert translator.translate(["", " ", "\t", "\u2581"]) == ["", "", "", ""]
    assert translator.translate([]) == []


def test_no_translation_has_a_line_break(make_translator: Callable[..., Translator]) -> None:
    [line_feed] = VOCABULARY.encode(["\n"])
    translator = make_translator(beam=1)
    with torch.no_grad():  # make the line feed's byte the model's favourite
        only_model(translator).output.weight[line_feed[-1]] *= 50
    lines = translator.translate(LINES)
    assert len(lines) == len(LINES) and not any("\n" in line for line in lines)


def test_long_lines_are_split_at_sentence_ends_and_joined(
    make_translator: Callable[..., Translator], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = "the dog likes a small tree and a house.", "a man sees the red house."
    limit = max(len(ids) for ids in VOCABULARY.encode([first, second]))
    translator = make_translator(limit=limit)
    parts = translator.translate([first, second])
    with caplog.at_level(logging.WARNING):
        [joined, short] = translator.translate([f"{first} {second}", "tree"])
    assert joined == " ".join(parts)
    assert "translated in 2 parts" in caplog.text
    assert short == translator.translate(["tree"])[0]


@pytest.mark.parametrize(
    "text",
    ["the dog " * 60, "x" * 500, "狗喜欢小树。" * 50, "a, b; c. " * 70, "word " * 3 + "y" * 300],
)
def test_no_part_of_a_long_line_is_lost(text: str) -> None:
    parts = split_text(text, lambda part: VOCABULARY.encode([part])[0], 15)
    assert all(len(ids) <= 15 for ids, _, _ in parts)
    pieces = [joint + VOCABULARY.decode([ids])[0] for ids, _, joint in parts]
    assert "".join(pieces).split() == text.split()


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
    assert {path.name for path in (run / "best").iterdir()} == {
        "model.json", "model.safetensors", "tokenizer.model",
    }  # fmt: skip


def test_unusable_model_directories_are_errors(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    translator = make_translator()
    config = replace(Config(), model=only_model(translator).config)

    def saved(name: str) -> Path:
        (tmp_path / name).mkdir()
        save_model(tmp_path / name, snapshot(only_model(translator)), translator.tokenizer, config)
        return tmp_path / name

    def message(folder: Path, checkpoint: str | None = None) -> str:
        with pytest.raises(UserError) as error:
            Translator.load(folder, checkpoint=checkpoint, device="cpu")
        return str(error.value)

    assert "no such run or model directory" in message(tmp_path / "none")
    assert "does not hold a trained model" in message(tmp_path)
    # A path would be the same model for all members of an ensemble.
    path = str(saved("one"))
    assert f"does not hold checkpoint {path!r}" in message(saved("other"), path)
    assert "checkpoint 'step_9'" in message(saved("a"), "step_9")
    other = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=320), [])
    (saved("b") / "tokenizer.model").write_bytes(other.model)
    assert "is not the one the model was trained with" in message(tmp_path / "b")
    (saved("c") / "tokenizer.model").unlink()
    assert "tokenizer model not found" in message(tmp_path / "c")
    weights = saved("d") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    assert "model.safetensors is damaged or missing" in message(tmp_path / "d")
    (saved("e") / "model.json").write_text("{")
    assert "model.json cannot be read" in message(tmp_path / "e")
    text = (saved("f") / "model.json").read_text()
    (tmp_path / "f" / "model.json").write_text(text.replace('"format": 1', '"format": 99'))
    assert "has model format 99" in message(tmp_path / "f")


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model", "num_heads", 0, "model.num_heads=0 must be at least 1"),
        ("model", "num_heads", -1, "model.num_heads=-1 must be at least 1"),
        ("model", "num_heads", 7, "is not divisible by model.num_heads=7"),
        ("model", "dim", -16, "model.dim=-16 must be at least 1"),
        ("model", "dim", 10**9, "model.dim=1000000000 must be at most 2^20"),
        ("model", "dim", 2**20, "in the model that model.json describes"),
        ("model", "ffn_dim", 2**20, "in the model that model.json describes"),
        ("model", "decoder_layers", 1000, "in the model that model.json describes"),
        ("model", "decoder_layers", 2, "in the model that model.json describes"),
        ("model", "decoder_layers", 10**9, "must be at most 1000"),
        ("model", "dim", 48, "in the model that model.json describes"),
        ("model", "ffn_dim", 39, "in the model that model.json describes"),
        ("model", "dim", "x", "model.dim='x' should be a whole number"),
        ("decoding", "beam", 10**30, "must be at most 1000"),
        ("decoding", "batch_tokens", 10**30, "must be below 2^31"),
        ("decoding", "temperature", 1e39, "must be 0, or from 0.001 to 1000"),
    ],
)
def test_a_description_that_does_not_fit_is_an_error_before_memory_is_used(
    make_translator: Callable[..., Translator], tmp_path: Path, section: str, key: str,
    value: object, message: str,
) -> None:  # fmt: skip
    """In a directory without checksums, such as one that somebody else has made."""
    translator = make_translator()
    config = replace(Config(), model=only_model(translator).config)
    save_model(tmp_path, snapshot(only_model(translator)), translator.tokenizer, config)
    path = tmp_path / "model.json"
    description = json.loads(path.read_text())
    description["recipe"][section][key] = value
    path.write_text(json.dumps(description))
    with pytest.raises(UserError) as error:
        Translator.load(tmp_path, device="cpu")
    assert message in str(error.value) and str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "3", '{"format": 1}', '{"format": 1, "recipe": []}', "\ufeff{}",
             '{"format": [1]}', '{"format": 1, "recipe": {}, "tokenizer": 3}'],
)  # fmt: skip
def test_an_odd_description_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"model\.json|has model format") as error:
        Translator.load(tmp_path, device="cpu")
    assert len(str(error.value)) < 400


@pytest.fixture
def members(
    make_translator: Callable[..., Translator], make_model: Callable[..., Transformer]
) -> list[Translator]:
    """Return three translators with different weights and two architectures."""
    torch.manual_seed(5)
    translators = [make_translator(beam=3) for _ in range(3)]
    engine_of(translators[1]).ensemble.models = [make_model(vocab_size=VOCABULARY.size, norm="pre")]
    for translator in translators:
        with torch.no_grad():
            for parameter in only_model(translator).parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return translators


def test_an_ensemble_averages_probabilities(members: list[Translator]) -> None:
    together = members[0]
    models = [only_model(member) for member in members]
    engine_of(together).ensemble.models = models
    sources = VOCABULARY.encode(["a man sees the red house", "tree", "the dog likes a small tree"])
    found = search(together, sources)
    for source, hypothesis in zip(sources, found, strict=True):
        ids = pack([[*source, VOCABULARY.eos_id]])
        target = pack([[VOCABULARY.bos_id, *hypothesis.tokens]])
        labels = torch.tensor([*hypothesis.tokens, VOCABULARY.eos_id])
        with torch.no_grad():
            hidden = [model(ids, target)[: len(labels)] for model in models]
            probs = [m.output(h).softmax(-1) for m, h in zip(models, hidden, strict=True)]
        mean = torch.stack(probs).mean(dim=0).gather(1, labels[:, None])
        assert hypothesis.log_prob == pytest.approx(mean.log().sum().item(), abs=1e-4)
    alone = [search(replace_model(together, model), sources) for model in models]
    assert all([h.tokens for h in one] != [h.tokens for h in found] for one in alone)


def test_an_ensemble_of_one_model_twice_is_that_model(members: list[Translator]) -> None:
    model = only_model(members[0])
    alone = members[0].translate(LINES)
    assert replace_model(members[0], model, model).translate(LINES) == alone


def replace_model(translator: Translator, *models: Transformer) -> Translator:
    other = copy.copy(translator)
    other.engine = copy.copy(engine_of(translator))
    engine_of(other).ensemble = Ensemble(models, other.tokenizer)
    return other


def test_an_ensemble_is_loaded_from_runs_with_one_tokenizer(
    members: list[Translator], tmp_path: Path
) -> None:
    for number, member in enumerate(members):
        config = replace(Config(), model=only_model(member).config, decoding=member.decoding)
        folder = tmp_path / str(number)
        folder.mkdir()
        save_model(folder, snapshot(only_model(member)), member.tokenizer, config)
    first, *others = (tmp_path / str(number) for number in range(3))
    loaded = Translator.load(first, others=others, device="cpu", precision="fp32")
    expected = replace_model(members[0], *map(only_model, members))
    assert search(loaded, VOCABULARY.encode(["tree"])) == search(
        expected, VOCABULARY.encode(["tree"])
    )
    stranger = train_vocabulary([*TEXTS, "other words"], TokenizerConfig(vocab_size=310), [])
    tokenizer = Tokenizer(stranger, stranger)
    config = replace(Config(), model=only_model(members[0]).config)
    model = Transformer(config.model, stranger.size)
    (tmp_path / "stranger").mkdir()
    save_model(tmp_path / "stranger", snapshot(model), tokenizer, config)
    with pytest.raises(UserError, match=r"stranger and .*0 have different tokenizers"):
        Translator.load(first, others=[tmp_path / "stranger"])


def test_learned_positions_limit_the_translation(make_model: Callable[..., Transformer]) -> None:
    model = make_model(vocab_size=VOCABULARY.size, positions="learned", context=12)
    config = Config(model=model.config, data=PairsConfig(clean=CleaningConfig(max_len=11)))
    tokenizer = Tokenizer(VOCABULARY, VOCABULARY)
    for beam in (1, 2):
        decoding = DecodingConfig(max_extra=50, beam=beam)
        translator = Translator(SearchEngine([model], tokenizer, [config]), decoding)
        # An untrained model hardly ever ends a sentence itself.
        [hypothesis] = search(translator, [[5, 6, 7]])
        assert 8 < len(hypothesis.tokens) < 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": "the dog"}, "takes a list of texts"),
        ({"texts": ["the dog", None]}, "texts are strings, not NoneType"),
        ({"constraints": ["Hund"]}, "constraints has a list of strings for each text"),
        ({"references": ["der Hund"]}, "references has a list of strings for each text"),
        ({"glossary": "glossary.tsv"}, "Glossary.load"),
        ({"beem": 3}, "beem is not an option here; did you mean beam?"),
        ({"constraint": [["Hund"]]}, "did you mean constraints?"),
        ({"beam": "wide"}, "beam='wide' should be a whole number"),
        ({"beam": 0}, "beam=0 must be at least 1"),
        ({"nbest": 9}, "widen beam"),
        ({"temperature": 0.5}, "temperature=0.5 has no effect without sample"),
        ({"prefixes": ["der", "das"]}, "prefixes has 2 entries for 1 texts"),
    ],
)
def test_mistakes_in_python_name_keywords(
    make_translator: Callable[..., Translator], options: dict[str, Any], message: str
) -> None:
    translator = make_translator(beam=4)
    with pytest.raises((TypeError, seq2seq.UserError)) as error:
        translator.translations(**{"texts": ["the dog"], **options})
    assert message in str(error.value)
    assert "--" not in str(error.value)


def test_the_known_arguments_are_those_of_translations() -> None:
    names = list(inspect.signature(Translator.translations).parameters)
    assert set(ARGUMENTS) == {*names} - {"self", "texts", "decoding"}
