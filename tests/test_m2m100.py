"""Folders of transformers' M2M-100 family, read, trained and exported here."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from m2m100 import FAMILIES, Family, make_family, transformers
from trained import LINES, PAIRS

from seq2seq.data.batching import collate
from seq2seq.decoding import engines
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.export import export
from seq2seq.formats.weights import load_model
from seq2seq.training.loss import ModelLoss

MAX_LEN = 30
"""Maximum number of tokens of the translations that are compared."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family(request.param, tmp_path_factory.mktemp("m2m100") / request.param)


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
@pytest.mark.parametrize("beam", [1, 4])
def test_translations_have_the_same_tokens(
    family: Family, engine: str, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "torch":
        monkeypatch.setattr(engines, "has_ctranslate2", lambda: False)
    translator, (source, target) = Translator.load(family.folder, device="cpu"), family.direction
    found = translator.translations(
        LINES, to=target, source=source, beam=beam, patience=1.0, max_factor=0.0, max_extra=MAX_LEN
    )
    pairs = [
        (theirs, list(x.nbest[0].pieces))
        for theirs, x in zip(family.generate(beam, MAX_LEN), found, strict=True)
        if len(theirs) < MAX_LEN - 1  # at the maximum length the end is not forced there
    ]
    assert len(pairs) > 150 and len({tuple(pieces) for pieces, _ in pairs}) > 100
    assert [own for _, own in pairs] == [theirs for theirs, _ in pairs]


def test_log_probabilities_are_the_same(family: Family) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(family.folder).eval()
    tokenizer, (sources, targets) = family.tokenizer(), map(list, zip(*PAIRS[:50], strict=True))
    batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
    batch["labels"] = labels = batch["labels"][:, 2 - family.start :].contiguous()
    with torch.no_grad():
        logits = model(**batch).logits
    logits[..., tokenizer.pad_token_id] = -torch.inf
    found = logits.log_softmax(-1).gather(-1, labels[:, :, None])[:, :, 0]
    translator, (source, target) = Translator.load(family.folder, device="cpu"), family.direction
    scored = translator.translations(
        sources,
        references=[[text] for text in targets],
        to=target,
        source=source,
        search=False,
        tokens=True,
    )
    for row, own in zip(found.tolist(), scored, strict=True):
        right = own.references[0].log_probs
        first = family.start - 1
        assert row[first : first + len(right)] == pytest.approx(right, abs=1e-4)


def test_the_loss_of_training_is_the_same(family: Family) -> None:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(family.folder).eval()
    tokenizer, (sources, targets) = family.tokenizer(), map(list, zip(*PAIRS[:20], strict=True))
    batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
    labels = batch["labels"][:, 2 - family.start :].contiguous()
    batch["labels"] = labels.masked_fill(labels == 1, -100)
    loaded = load_model(family.folder, "cpu")
    prefix = loaded.tokenizer.prefix(family.direction)
    own_sources, own_targets = (
        [np.array(ids, dtype=np.int32) for ids in vocabulary.encode(texts)]
        for vocabulary, texts in (
            (loaded.tokenizer.source, [f"{prefix} {text}" for text in sources]),
            (loaded.tokenizer.target, targets),
        )
    )
    own = collate(own_sources, own_targets, loaded.tokenizer)
    with torch.no_grad():
        loss, _ = ModelLoss(loaded.model, 0.0)(own)
        mean = model(**batch).loss
    assert own.num_labels == int((labels != 1).sum())
    assert (loss / own.num_labels).item() == pytest.approx(mean.item(), abs=1e-5)


def test_a_folder_is_exported_without_a_difference(family: Family, tmp_path: Path) -> None:
    export(family.folder, tmp_path / "again", to="huggingface")
    again = Family(family.name, tmp_path / "again")
    theirs, ours = (
        transformers.AutoModelForSeq2SeqLM.from_pretrained(x.folder).state_dict()
        for x in (family, again)
    )
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
    texts = [*LINES, "Unknown: \u00c4 \u6f22", "a  b", "der Mann"]
    assert family.tokenizer()(texts).input_ids == again.tokenizer()(texts).input_ids
    generated = zip(again.generate(4, MAX_LEN), family.generate(4, MAX_LEN), strict=True)
    # Near the maximum length, repetitions of a token have nearly equal scores.
    rows = [row for row in generated if max(map(len, row)) < MAX_LEN - 1]
    assert len(rows) > 150 and all(own == there for own, there in rows)
    before, after = (load_model(x.folder, "cpu").tokenizer for x in (family, again))
    assert after.checksum == before.checksum


def test_a_folder_is_exported_to_ctranslate2(family: Family, tmp_path: Path) -> None:
    export(family.folder, tmp_path / "int8", to="ctranslate2", quantization="int8")
    card = (tmp_path / "int8" / "README.md").read_text()
    assert "int8/sentencepiece.bpe.model" in card and "languages.json" not in card
    assert "--from" in card and "```yaml" not in card
    exported, (source, target) = Translator.load(tmp_path / "int8"), family.direction
    own = Translator.load(family.folder, device="cpu", precision="int8")
    assert exported.data.directions == own.data.directions
    found = exported.translate(LINES, to=target, source=source)
    assert found == own.translate(LINES, to=target, source=source)


def test_words_are_aligned_without_the_languages(family: Family) -> None:
    """The pairs are translated word by word."""
    translator, (source, target) = Translator.load(family.folder, device="cpu"), family.direction
    lines = [line for line, _ in PAIRS[:50]]
    found = translator.translations(lines, to=target, source=source, alignment=True)
    links = [link for x in found for link in x.nbest[0].alignment]
    assert sum(i == j for i, j in links) > len(links) / 2


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family("nllb", tmp_path_factory.mktemp("m2m100") / "nllb")


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("config.json", {"model_type": "mbart"}, "the family 'mbart': of transformers' models"),
        ("config.json", {"scale_embedding": False}, "scale_embedding=False has no equivalent"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings=False has no"),
        ("config.json", {"vocab_size": 9}, "vocab_size=9, but the tokenizer has"),
        ("config.json", {"vocab_size": 900}, "in the model that the folder describes"),
        ("config.json", {"activation_function": "gelu_new"}, "model.activation='gelu_new'"),
        ("tokenizer_config.json", {"legacy_behaviour": True}, "legacy_behaviour=True has no"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(
    nllb: Family, file: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(nllb.folder, tmp_path / "nllb")
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(UserError, match=re.escape(message)):
        load_model(folder, "cpu")


def test_pickled_weights_and_a_missing_tokenizer_are_named(nllb: Family, tmp_path: Path) -> None:
    folder = shutil.copytree(nllb.folder, tmp_path / "nllb")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is a pickle file"):
        load_model(folder, "cpu")
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    (folder / "sentencepiece.bpe.model").unlink()
    with pytest.raises(UserError, match=r"it has no sentencepiece\.bpe\.model"):
        load_model(folder, "cpu")


def test_weights_in_several_files_are_read(nllb: Family, tmp_path: Path) -> None:
    folder = shutil.copytree(nllb.folder, tmp_path / "nllb")
    (folder / "model.safetensors").unlink()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(nllb.folder)
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    whole, parts = (load_model(x, "cpu").model.state_dict() for x in (nllb.folder, folder))
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


def test_a_server_offers_all_directions_or_those_of_some_languages(nllb: Family) -> None:
    pytest.importorskip("starlette", reason="the extra serve is not installed")
    from seq2seq.serve.models import Models

    every = Models([nllb.folder])
    assert len(every.hops) == 4 * 3
    some = Models([nllb.folder], languages=["deu_Latn", "eng_Latn"])
    assert [*some.hops] == [("deu_latn", "eng_latn"), ("eng_latn", "deu_latn")]
    assert some.detect("Das ist ein kleines Haus")[0]["language"] == "deu_latn"
    with pytest.raises(UserError, match=r"not 'de' \(nearest: deu_Latn\)"):
        Models([nllb.folder], languages=["eng_Latn", "de"])
    with pytest.raises(UserError, match="no direction between eng_Latn"):
        Models([nllb.folder], languages=["eng_Latn"])
