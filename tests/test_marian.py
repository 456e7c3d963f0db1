"""Folders of Hugging Face's Marian models, as the OPUS-MT models are, read and trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import run_recipe, sentencepiece_model
from test_export_huggingface import load_there, require_same_scores
from trained import LINES, PAIRS, own_translator

from seq2seq.data.vocabulary import SentencePieces
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.export import export
from seq2seq.formats.weights import load_model

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")

SHAPE = {"d_model": 32, "ffn_dim": 64, "attention_heads": 4, "layers": 2}
CODES = (">>de<<", ">>nl<<")


# With the options of OPUS-MT: unigram, no start symbol.
SPM = [
    sentencepiece_model([pair[i] for pair in PAIRS], 60, bos_id=-1, hard_vocab_limit=False)
    for i in range(2)
]


def opus_folder(folder: Path, codes: tuple[str, ...] = ()) -> Path:
    """Write a folder like those of OPUS-MT, with random weights."""
    folder.mkdir(parents=True)
    models = [SentencePieces(spm, "") for spm in SPM]
    pieces = {piece for model in models for piece in model.pieces(range(model.size))}
    pieces -= {"<unk>", "<s>", "</s>", "<pad>"}
    names = ["</s>", "<unk>", *codes, *sorted(pieces, key=lambda text: text[::-1]), "<pad>"]
    for name, spm in zip(("source.spm", "target.spm"), SPM, strict=True):
        (folder / name).write_bytes(spm)
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    tokenizer = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    pad = len(names) - 1
    symbols = {
        "pad_token_id": pad,
        "eos_token_id": 0,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": 0,
    }
    sizes = {
        f"{side}_{key}": SHAPE[key]
        for side in ("encoder", "decoder")
        for key in ("layers", "ffn_dim", "attention_heads")
    }
    config = transformers.MarianConfig(
        vocab_size=len(names),
        d_model=SHAPE["d_model"],
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=600,
        static_position_embeddings=True,
        normalize_before=False,
        normalize_embedding=False,
        **symbols,
        **sizes,
    )
    torch.manual_seed(4)
    model = transformers.MarianMTModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model.final_logits_bias.normal_()
    model.generation_config = transformers.GenerationConfig(
        num_beams=6, max_length=512, bad_words_ids=[[pad], [1]], **symbols
    )
    model.save_pretrained(folder)
    return folder


def test_a_folder_computes_and_translates_the_same_here(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    model, tokenizer = load_there(folder)
    loaded = load_model(folder, "cpu")
    assert loaded.tokenizer.shared and loaded.tokenizer.source is not loaded.tokenizer.target
    require_same_scores(loaded, model, tokenizer, PAIRS[:20])
    inputs = tokenizer(LINES, return_tensors="pt", padding=True)
    outputs = model.generate(**inputs, num_beams=1, max_length=32)
    for own in (own_translator(loaded), Translator.load(folder, device="cpu")):
        found = own.translations(LINES, tokens=True, beam=1, max_factor=0.0, max_extra=30)
        pieces = [each.nbest[0].pieces for each in found]
        rows = [row[1 : row.index(0)] for row in outputs.tolist()]
        assert pieces == [loaded.tokenizer.target.pieces(row) for row in rows]
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        assert [each.text for each in found] == texts


def test_texts_have_the_same_ids(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    own = load_model(folder, "cpu").tokenizer
    for text in [*LINES, "Unknown: ÄÖ 漢字 \U0001f600", "a  b   c", "der Mann sieht", "x" * 50]:
        assert [*own.source.encode([text])[0], 0] == tokenizer(text).input_ids, text
    for text in [*(pair[1] for pair in PAIRS), "unbekannt: 漢字", "das  Haus "]:
        [target] = own.target.encode([text])
        assert [*target, 0] == tokenizer(text_target=text).input_ids, text
        if own.target.unk_id not in target:
            assert own.target.decode([target]) == [tokenizer.decode(target)]


def test_a_folder_of_several_target_languages_translates_the_same_here(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus", codes=CODES)
    model, tokenizer = load_there(folder)
    translator = Translator.load(folder, device="cpu")
    assert translator.data.targets == ["de", "nl"]
    options: dict[str, Any] = {"beam": 1, "max_factor": 0.0, "max_extra": 30}
    translations = []
    for language, code in zip(("de", "nl"), CODES, strict=True):
        inputs = tokenizer([f"{code} {line}" for line in LINES], return_tensors="pt", padding=True)
        outputs = model.generate(**inputs, num_beams=1, max_length=32).tolist()
        found = translator.translations(LINES, to=language, tokens=True, **options)
        translations.append([list(x.nbest[0].pieces) for x in found])
        rows = [row[1 : row.index(0)] for row in outputs]
        assert translations[-1] == list(map(translator.tokenizer.target.pieces, rows))
    assert translations[0] != translations[1]
    with pytest.raises(UserError, match="translates to de, nl: name one with --to"):
        translator.translate(LINES)


def test_a_folder_is_fine_tuned_here_and_exported_without_a_difference(
    recipe: Path, tmp_path: Path
) -> None:
    folder = opus_folder(tmp_path / "opus")
    text = recipe.read_text()
    start, end = text.index("tokenizer:"), text.index("training:")
    recipe.write_text(text[:start] + text[end:])
    run = run_recipe(
        recipe, tmp_path / "run", f"training.init_from={folder}", "training.max_steps=1"
    )
    before, after = load_model(folder, "cpu"), load_model(run / "last", "cpu")
    assert after.tokenizer.checksum == before.tokenizer.checksum
    assert after.config.model.activation == "silu" and after.config.model.output_bias
    changed = [
        name
        for (name, a), b in zip(
            before.model.named_parameters(), after.model.parameters(), strict=True
        )
        if not torch.equal(a, b)
    ]
    assert "output.bias" in changed and len(changed) > 50
    run_recipe(recipe, run, f"training.init_from={folder}", "training.max_steps=2")

    export(folder, tmp_path / "again", to="huggingface")
    theirs, ours = (load_there(each)[0].state_dict() for each in (folder, tmp_path / "again"))
    for name, tensor in theirs.items():
        if "embed_positions" not in name:
            assert torch.equal(ours[name], tensor), name
    a, b = (load_there(each)[1] for each in (folder, tmp_path / "again"))
    assert [a(line).input_ids for line in LINES] == [b(line).input_ids for line in LINES]

    export(run, tmp_path / "tuned", to="huggingface")
    tuned = load_model(run / "best", "cpu")
    require_same_scores(tuned, *load_there(tmp_path / "tuned"), PAIRS[:20])


def test_a_folder_is_exported_to_ctranslate2(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")
    folder = opus_folder(tmp_path / "opus")
    export(folder, tmp_path / "exported", to="ctranslate2")
    options: dict[str, Any] = {"beam": 1, "max_extra": 10}
    own, other = Translator.load(folder, precision="fp32"), Translator.load(tmp_path / "exported")
    assert other.translate(LINES, **options) == own.translate(LINES, **options)


def test_the_card_of_a_folder_says_what_is_not_known(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"en"', '"no"'))
    export(folder, tmp_path / "again", to="huggingface")
    card = (tmp_path / "again" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["language"] == ["no", "de"]
    assert card.count("Not recorded") == 3


def test_the_search_is_that_of_the_folder(tmp_path: Path) -> None:
    decoding = load_model(opus_folder(tmp_path / "opus"), "cpu").config.decoding
    assert (decoding.beam, decoding.length_penalty, decoding.penalty_form) == (6, 1.0, "power")
    path = tmp_path / "opus" / "generation_config.json"
    settings = {"length_penalty": 0.0, "min_length": 4, "no_repeat_ngram_size": 3}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    decoding = load_model(tmp_path / "opus", "cpu").config.decoding
    assert (decoding.length_penalty, decoding.min_length, decoding.no_repeat_ngram) == (0.0, 4, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "gelu_new"}, "model.activation='gelu_new'"),
        ({"scale_embedding": False}, "scale_embedding=False has no equivalent"),
        ({"d_model": 36}, "in the model that the folder describes"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id=0 has no equivalent"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(UserError) as error:
        load_model(folder, "cpu")
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["source.spm", "vocab.json", "model.safetensors"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    (folder / name).write_bytes(b"damaged")
    with pytest.raises(UserError, match=name):
        load_model(folder, "cpu")
    (folder / name).unlink()
    with pytest.raises((UserError, FileNotFoundError), match=name):
        load_model(folder, "cpu")


def test_pickled_weights_are_refused_with_a_way_out(tmp_path: Path) -> None:
    folder = opus_folder(tmp_path / "opus")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"save_pretrained"):
        load_model(folder, "cpu")


@pytest.mark.parametrize("codes", [(), CODES])
def test_pieces_that_are_not_needed_are_dropped(codes: tuple[str, ...], tmp_path: Path) -> None:
    folder, kept = opus_folder(tmp_path / "opus", codes=codes), tmp_path / "kept.txt"
    own = Translator.load(folder, device="cpu")
    options: dict[str, Any] = {"beam": 1, "max_extra": 10, "to": "de" if codes else ""}
    right = own.translate(LINES[:20], **options)
    kept.write_text("".join(f"{line}\n" for line in [*LINES[:20], *right]))
    export(folder, tmp_path / "small", to="seq2seq", keep_pieces=[kept])
    small = Translator.load(tmp_path / "small", device="cpu")
    assert small.tokenizer.target.size < own.tokenizer.target.size
    assert small.translate(LINES[:20], **options) == right
