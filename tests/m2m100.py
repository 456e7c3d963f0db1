"""Folders of small models of the M2M-100 family, written by transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from conftest import sentencepiece_model
from test_export_huggingface import load_there
from trained import LINES, PAIRS

from seq2seq.config import Direction
from seq2seq.formats.weights import load_model

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")

FAMILIES = "nllb", "m2m100", "small100"
NLLB_LANGUAGES = ["deu_Latn", "eng_Latn", "fra_Latn", "nld_Latn"]
TEXTS = [text for pair in PAIRS for text in pair]
SPM = sentencepiece_model(TEXTS, 130, model_type="bpe", hard_vocab_limit=False)


@dataclass(frozen=True)
class Family:
    """A model of the family in a folder."""

    name: str
    folder: Path

    @property
    def direction(self) -> Direction:
        """Languages to translate from and to."""
        return Direction("eng_Latn", "deu_Latn") if self.name == "nllb" else Direction("en", "de")

    @property
    def start(self) -> int:
        """Number of tokens before a translation: the start symbol, and its language."""
        return 1 if self.name == "small100" else 2

    def tokenizer(self) -> Any:
        """Return the tokenizer there; the language of sources is set."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        source, target = self.direction
        if self.name != "nllb" and "Nllb" in type(tokenizer).__name__:  # exported by this package
            source, target = f"__{source}__", f"__{target}__"
        tokenizer.src_lang, tokenizer.tgt_lang = target if self.start == 1 else source, target
        return tokenizer

    def generate(self, beam: int, max_len: int, lines: Sequence[str] = LINES) -> list[list[str]]:
        """Return the pieces that the model there writes, without its language and end symbol."""
        (model, _), tokenizer = load_there(self.folder), self.tokenizer()
        forced = {}
        if self.start == 2:
            [language, *_] = tokenizer(text_target="").input_ids
            forced["forced_bos_token_id"] = language
        rows = model.generate(
            **tokenizer(list(lines), return_tensors="pt", padding=True),
            **forced,
            num_beams=beam,
            early_stopping=beam > 1,
            max_length=self.start + max_len,
            logits_processor=transformers.LogitsProcessorList([Excluded(self.start)]),
        ).tolist()
        rows = [[*row[self.start :], 2] for row in rows]
        pieces = load_model(self.folder, "cpu").tokenizer.target.pieces
        return [pieces(row[: row.index(2)]) for row in rows]


class Excluded(transformers.LogitsProcessor):  # type: ignore[name-defined]
    """Excludes what this package never generates: padding and the unknown symbol."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] < self.start:  # the language is forced
            return scores
        scores = scores.index_fill(1, torch.tensor([1]), -torch.inf).log_softmax(-1)
        return scores.index_fill(1, torch.tensor([3]), -torch.inf)


def make_family(name: str, folder: Path) -> Family:
    """Write a folder like NLLB's, M2M-100's or SMaLL-100's; some rows have no token."""
    family = Family(name, folder)
    folder.mkdir()
    spm, vocab = folder / "sentencepiece.bpe.model", folder / "vocab.json"
    spm.write_bytes(SPM)
    if name == "nllb":
        settings = {
            "tokenizer_class": "NllbTokenizer",
            "additional_special_tokens": NLLB_LANGUAGES,
            "model_max_length": 1024,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        num_rows = len(tokenizer) + 2
    else:
        own = sentencepiece.SentencePieceProcessor(model_proto=SPM)
        pieces = [own.id_to_piece(i) for i in range(3, own.get_piece_size())]
        ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
        vocab.write_text(json.dumps(ids))
        tokenizer = transformers.M2M100Tokenizer(str(vocab), str(spm))
        num_rows = len(ids) + 108
    tokenizer.save_pretrained(folder)
    if name == "small100":  # its tokenizer is not in transformers
        (folder / "tokenization_small100.py").write_text("class SMALL100Tokenizer: ...\n")
    _train(family, num_rows).save_pretrained(folder)
    return family


def _train(family: Family, num_rows: int) -> Any:
    """Return a model after some updates, so that its translations are sensible and differ."""
    sizes = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (("layers", 2), ("ffn_dim", 64), ("attention_heads", 4))
    }
    config = transformers.M2M100Config(
        vocab_size=num_rows, d_model=32, dropout=0.0, init_std=0.15, **sizes
    )
    torch.manual_seed(4)
    model, tokenizer = transformers.M2M100ForConditionalGeneration(config), family.tokenizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    for step in range(150):
        pairs = [PAIRS[i % len(PAIRS)] for i in range(step * 40, step * 40 + 40)]
        sources, targets = map(list, zip(*pairs, strict=True))
        batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
        labels = batch["labels"][:, 2 - family.start :]
        batch["labels"] = labels.masked_fill(labels == 1, -100)
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()
