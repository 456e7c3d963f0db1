"""Models exported to Hugging Face transformers compute and translate what they did before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VARIANTS, covering, name_of, sentencepiece_model, small_shape, torch_engine
from trained import (
    LINES,
    PAIRS,
    exported,
    own_translator,
    require_same_search,
    run_example,
    trained_model,
)

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.formats.weights import LoadedModel, load_model
from seq2seq.model.transformer import Transformer

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")


def representable(variant: dict[str, Any]) -> bool:
    learned = variant["positions"] == "learned"
    return (
        variant["positions"] not in ("rotary", "fairseq", "marian")
        and variant["activation"] != "swiglu"
        and not (learned and variant["norm"] == "post")
    )


def load_there(folder: Path) -> tuple[Any, Any]:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def log_probs_there(model: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> list[list[float]]:
    """Return the log-probability of each target token and of the end symbol."""
    sources, targets = ([pair[i] for pair in pairs] for i in range(2))
    inputs = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
    labels = inputs["labels"]
    with torch.no_grad():
        logits = model(**inputs).logits
    # There they have a probability, but are not written.
    logits[..., [model.config.pad_token_id, model.config.decoder_start_token_id]] = -torch.inf
    found = logits.log_softmax(-1).gather(-1, labels[:, :, None])[:, :, 0]
    ends = (labels == model.config.eos_token_id).int().argmax(dim=1).tolist()
    return [row[: end + 1] for row, end in zip(found.tolist(), ends, strict=True)]


def log_probs_here(loaded: LoadedModel, pairs: list[tuple[str, str]]) -> list[Sequence[float]]:
    """Return the same of a model in memory."""
    sources, references = [pair[0] for pair in pairs], [[pair[1]] for pair in pairs]
    own = own_translator(loaded)
    scored = own.translations(sources, references=references, search=False, tokens=True)
    return [each.references[0].log_probs for each in scored]


def require_same_scores(
    loaded: LoadedModel, model: Any, tokenizer: Any, pairs: list[tuple[str, str]] = PAIRS[:100]
) -> None:
    theirs, ours = log_probs_there(model, tokenizer, pairs), log_probs_here(loaded, pairs)
    for found, right in zip(theirs, ours, strict=True):
        assert found == pytest.approx(right, abs=1e-4)


def require_parity(loaded: LoadedModel, folder: Path) -> None:
    model, tokenizer = load_there(folder)
    require_same_scores(loaded, model, tokenizer)
    own = own_translator(loaded)
    source, target = loaded.tokenizer.source, loaded.tokenizer.target
    inputs = tokenizer(LINES, return_tensors="pt", padding=True)
    rows = [
        row[: sum(mask)]
        for row, mask in zip(
            inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True
        )
    ]
    assert rows == [[*row, source.eos_id] for row in source.encode(LINES)]
    for beam in (1, 4):
        # There one maximum length holds for all lines, with the start symbol.
        # With early_stopping, a sentence is done when as many have ended as the beam is wide.
        stop = {"early_stopping": True, "renormalize_logits": True} if beam > 1 else {}
        outputs = model.generate(**inputs, num_beams=beam, max_length=92, **stop).tolist()
        ends = [row.index(target.eos_id) for row in outputs]
        tokens = [row[1:end] for row, end in zip(outputs, ends, strict=True)]
        searched = own.translations(
            LINES, beam=beam, patience=1.0, max_factor=0.0, max_extra=90, tokens=True
        )
        found, expected = map(target.pieces, tokens), (x.nbest[0].pieces for x in searched)
        # At the maximum length, the end symbol has the probability 1 there.
        ended = [
            (line, *pieces)
            for line, *pieces in zip(LINES, found, expected, strict=True)
            if max(map(len, pieces)) < 90
        ]
        require_same_search(own, *zip(*ended, strict=True))
        distinct = {tuple(pieces) for _, pieces, _ in ended}
        assert len(distinct) > 100, "the translations are too alike to compare"
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        assert texts == [text.strip() for text in target.decode(tokens)]


FITTING = [variant for variant in VARIANTS if representable(variant)]


@pytest.mark.parametrize("variant", covering(FITTING), ids=name_of)
def test_trained_variants_translate_the_same(variant: dict[str, Any], tmp_path: Path) -> None:
    loaded = trained_model(**variant)
    require_parity(loaded, exported(loaded, tmp_path, "huggingface"))


@pytest.mark.parametrize("tied", [True, False])
def test_separate_vocabularies_translate_the_same(tied: bool, tmp_path: Path) -> None:
    loaded = trained_model(shared=False, tied=tied)
    folder = exported(loaded, tmp_path, "huggingface")
    assert (folder / "target_vocab.json").exists()
    require_parity(loaded, folder)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"positions": "rotary"}, r"model\.positions=rotary: .*no worse .*docs/sizes"),
        ({"activation": "swiglu"}, r"model\.activation=swiglu: .* model\.activation=relu"),
        ({"positions": "learned"}, r"model\.positions=learned with model\.norm=post"),
        ({"norm": "pre", "shared": False}, r"tokenizer\.shared=false with model\.norm=pre"),
        ({"positions": "marian"}, r"model\.positions=marian: train with"),
    ],
)
def test_what_the_format_cannot_say_is_refused_with_its_key(
    variant: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        exported(trained_model(steps=1, **variant), tmp_path, "huggingface")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "variant", [{}, {"tied": False, "activation": "gelu"}, {"shared": False}], ids=str
)
def test_an_export_is_read_back_without_a_difference(
    variant: dict[str, Any], tmp_path: Path
) -> None:
    loaded = trained_model(**variant)
    folder = tmp_path / "saved_there"
    for each in load_there(exported(loaded, tmp_path, "huggingface")):
        each.save_pretrained(folder)
    back = load_model(folder, "cpu")
    weights = dict(back.model.named_parameters())
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(weights.pop(name), parameter), name
    assert not weights.pop("output.bias").any() and not weights
    assert (back.config.pairs.source, back.config.pairs.target) == ("en", "de")
    assert back.config.pairs.clean.max_len == loaded.config.pairs.clean.max_len
    translator = Translator.load(folder)
    torch_engine(translator)
    right = own_translator(loaded).translate(LINES, max_extra=10)
    assert translator.translate(LINES, max_extra=10) == [text.strip() for text in right]


def test_a_save_there_keeps_what_was_exported(tmp_path: Path) -> None:
    # Pegasus saves its table of positions; Marian drops it, and so holds no learned ones.
    loaded = trained_model(norm="pre", positions="learned", tied=False)
    folder = exported(loaded, tmp_path, "huggingface")
    run_example(folder)
    for each in load_there(folder):
        each.save_pretrained(tmp_path / "again")
    require_parity(loaded, tmp_path / "again")


def test_symbols_that_sentencepiece_lacks_are_not_in_a_text(tmp_path: Path) -> None:
    symbols = {"bos_id": -1, "pad_id": -1}
    model = sentencepiece_model(LINES, 60, model_type="bpe", hard_vocab_limit=False, **symbols)
    own = SentencePieces(model, "model")
    torch.manual_seed(1)
    loaded = replace(
        trained_model(steps=1),
        model=Transformer(small_shape(), own.size),
        tokenizer=Tokenizer(own, own),
        config=Config(model=small_shape()),
    )
    _, tokenizer = load_there(exported(loaded, tmp_path, "huggingface"))
    [ids] = own.encode([LINES[0]])
    row = [own.bos_id, *ids, own.eos_id, own.pad_id]
    assert tokenizer.decode(row, skip_special_tokens=True) == LINES[0]


def test_a_missing_or_older_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.57.1")
    with pytest.raises(UserError, match=r"does not work with transformers 4\.57\.1: pip"):
        exported(trained_model(steps=1), tmp_path, "huggingface")
    monkeypatch.setattr("importlib.metadata.version", missing)
    packages = {"huggingface": "transformers", "ctranslate2": "ctranslate2", "argos": "ctranslate2"}
    for to, package in packages.items():
        with pytest.raises(UserError, match=f"--to {to} needs the package {package}: pip install"):
            exported(trained_model(steps=1), tmp_path, to)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_search_is_that_of_the_recipe_and_no_folder_of_this_machine_is_named(
    tmp_path: Path,
) -> None:
    folder = exported(trained_model(steps=1), tmp_path, "huggingface")
    target = load_model(tmp_path / "model", "cpu").tokenizer.target
    search = json.loads((folder / "generation_config.json").read_text())
    assert [target.pad_id] in search["bad_words_ids"]
    assert search["length_penalty"] == 1.0 and search["num_beams"] == 4
    assert str(tmp_path) not in (folder / "tokenizer_config.json").read_text()


def test_an_export_is_fine_tuned_there_and_read_back(tmp_path: Path) -> None:
    loaded = trained_model(steps=20)
    model, tokenizer = load_there(exported(loaded, tmp_path, "huggingface"))
    pairs = PAIRS[:32]
    rows = [tokenizer(source, text_target=target) for source, target in pairs]
    trainer = transformers.Seq2SeqTrainer(
        model=model,
        args=transformers.Seq2SeqTrainingArguments(
            output_dir=str(tmp_path / "there"),
            max_steps=1,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )

    def loss(model: Any) -> float:
        return -sum(map(sum, log_probs_there(model.eval(), tokenizer, pairs)))

    before = loss(model)
    trainer.train()
    assert loss(model) < before
    trainer.save_model(str(tmp_path / "tuned"))
    # It trains Marian's table of positions too, but does not save it.
    after = loss(load_there(tmp_path / "tuned")[0])
    assert after < before
    back = log_probs_here(load_model(tmp_path / "tuned", "cpu"), pairs)
    assert -sum(map(sum, back)) == pytest.approx(after, abs=1e-2)
