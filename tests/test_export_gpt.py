"""Language models exported to Hugging Face transformers compute and write what they did before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import VARIANTS, drawn, logits_of, name_of, small_shape
from trained import run_example

from seq2seq.config import Config, TokenizerConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, Vocabulary
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.sampling import Sampling
from seq2seq.errors import UserError
from seq2seq.export.export import export
from seq2seq.files import atomic_folder
from seq2seq.model.directory import save_model, snapshot
from seq2seq.model.transformer import Classifier, LanguageModel
from seq2seq.preparation.train_vocabulary import train_vocabulary

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")

TEXT = "Once upon a time\n  there was a café, and — 漢字 —\nthe\tend. " * 20
CHARACTERS, BYTES = Alphabet(TEXT), Alphabet(None)
PIECES = train_vocabulary(TEXT.splitlines(keepends=True), TokenizerConfig(vocab_size=330), [],
                          all_spaces=True)  # fmt: skip


def language_model(vocabulary: Vocabulary, **variant: Any) -> LanguageModel:
    torch.manual_seed(3)
    shape = small_shape(encoder_layers=0, context=64, **variant)
    return drawn(LanguageModel(shape, vocabulary.size)).eval()


def exported(model: LanguageModel | Classifier, vocabulary: Vocabulary, folder: Path) -> Path:
    task: Any = "classification" if isinstance(model, Classifier) else "language_model"
    config = replace(Config(), task=task, model=model.config)
    with atomic_folder(folder / "model") as draft:
        tokenizer = Tokenizer(vocabulary, vocabulary)
        save_model(draft, snapshot(model), tokenizer, config)
    export([folder / "model"], folder / "exported", to="huggingface")
    return folder / "exported"


def representable(variant: dict[str, Any]) -> bool:
    return (
        variant["norm"] == "pre"
        and variant["activation"] != "swiglu"
        and "output_bias" not in variant
    )


@pytest.mark.parametrize(
    "variant",
    [
        *(each for each in VARIANTS if representable(each)),
        {"norm": "pre", "positions": "rotary", "activation": "silu", "tied": True},
        {"norm": "pre", "positions": "learned", "activation": "silu", "tied": True},
    ],
    ids=name_of,
)
def test_every_variant_that_fits_computes_and_writes_the_same(
    variant: dict[str, Any], tmp_path: Path
) -> None:
    own = language_model(CHARACTERS, **variant)
    folder = exported(own, CHARACTERS, tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind = "gpt_neox" if variant["positions"] == "rotary" else "gpt2"
    assert model.config.model_type == kind
    row = np.random.default_rng(0).integers(0, CHARACTERS.size, 60).tolist()
    with torch.no_grad():
        found = model(torch.tensor([row])).logits[0].log_softmax(dim=-1)
    torch.testing.assert_close(found, logits_of(own, row).log_softmax(-1), atol=1e-4, rtol=0)
    generator = TextGenerator(own, Tokenizer(CHARACTERS, CHARACTERS), "own")
    greedy = Sampling(temperature=0.0)
    parts = generator.generate("Once upon", length=50, sampling=greedy, seed=0)
    ids = tokenizer(["Once upon"], return_tensors="pt").input_ids
    outputs = model.generate(ids, do_sample=False, max_new_tokens=50)
    assert tokenizer.decode(outputs[0, ids.shape[1] :]) == "".join(part[0] for part in parts)


@pytest.mark.parametrize("vocabulary", [CHARACTERS, BYTES, PIECES], ids=["char", "byte", "bpe"])
def test_texts_have_the_same_ids(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = language_model(vocabulary, norm="pre")
    folder = exported(model, vocabulary, tmp_path)
    if vocabulary is BYTES:
        run_example(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [TEXT, " a  e ", "\n\n the", "é—漢", TEXT[5:43], "t"]
    if vocabulary is not CHARACTERS:
        texts += ["unseen: ßÖ \U0001f600 ...", "x" * 40, "\r\n\x00"]
    for text in texts:
        [ids] = vocabulary.encode([text])
        assert tokenizer(text).input_ids == list(ids), repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("variant", "key"),
    [
        ({"norm": "post"}, r"model\.norm=post"),
        ({"norm": "pre", "activation": "swiglu"}, r"model\.activation=swiglu"),
        ({"norm": "pre", "output_bias": True}, r"model\.output_bias=true"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(
    variant: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"{key} has no equivalent in GPT-2 and GPT-NeoX"):
        exported(language_model(CHARACTERS, **variant), CHARACTERS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("to", ["ctranslate2", "argos"])
def test_a_language_model_is_no_translation_model(to: str, tmp_path: Path) -> None:
    exported(language_model(CHARACTERS, norm="pre"), CHARACTERS, tmp_path)
    with pytest.raises(UserError, match="not for task=language_model"):
        export([tmp_path / "model"], tmp_path / "out", to=to)


def test_a_classifier_is_refused(recipe: Path, tmp_path: Path) -> None:
    from seq2seq.cli import main

    corpus = tmp_path / "reviews.tsv"
    corpus.write_text("".join(f"{i % 2}\tthe house {i} is red\n" for i in range(60)))
    path = tmp_path / "reviews.yaml"
    path.write_text(
        f"task: classification\n"
        f"data: {{train: {corpus}, dev_size: 8, test_size: 8, store: {tmp_path / 'store'}}}\n"
        "tokenizer: {vocab_size: 280}\n"
        "model: {dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1}\n"
        "training: {max_steps: 2, warmup_steps: 1, precision: fp32}\n"
    )
    main(["train", str(path), "--run", str(tmp_path / "run")])
    with pytest.raises(UserError, match="task=classification has no equivalent"):
        export([tmp_path / "run"], tmp_path / "out", to="huggingface")
