"""Small trained translation models of every variant, for tests of export."""

from __future__ import annotations

import copy
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import WORDS, drawn, small_shape, torch_engine

from seq2seq.config import Config, DecodingConfig, ModelConfig, PairsConfig, TokenizerConfig
from seq2seq.data.batching import collate
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import SentencePieces, train_vocabulary
from seq2seq.decoding.engine import length_penalty
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.translator import Translator
from seq2seq.export import export
from seq2seq.files import atomic_folder
from seq2seq.formats.weights import LoadedModel, save_model, snapshot
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss

_RNG = random.Random(11)


def sentences(count: int) -> list[str]:
    """Return sentences of the words of `WORDS`."""
    return [" ".join(_RNG.choices(list(WORDS), k=_RNG.randint(1, 11))) for _ in range(count)]


PAIRS = [(line, " ".join(WORDS[word] for word in line.split())) for line in sentences(400)]
LINES = sentences(200)
FOR_BROWSERS: dict[str, Any] = {"start": "zero", "positions": "marian"}
"""Variant of a model that can be exported for browsers."""


@cache
def vocabulary(side: int | None = None) -> SentencePieces:
    """Return a vocabulary of both sides, or of one."""
    texts = [pair[i] for pair in PAIRS for i in ((0, 1) if side is None else (side,))]
    return train_vocabulary(texts, TokenizerConfig(vocab_size=330 if side is None else 310), [])


def trained_model(*, shared: bool = True, steps: int = 120, **variant: Any) -> LoadedModel:
    """Return a small model after some updates, so that its translations are sensible and differ.

    shared: one vocabulary for both sides.
    """
    shape = small_shape(**{"dim": 32, "ffn_dim": 48, "context": 128, **variant})
    loaded = _trained(shape, shared, steps)
    return replace(loaded, model=copy.deepcopy(loaded.model))


@cache
def _trained(shape: ModelConfig, shared: bool, steps: int) -> LoadedModel:
    torch.manual_seed(5)
    tokenizer = Tokenizer(vocabulary(), vocabulary())
    if not shared:
        tokenizer = Tokenizer(vocabulary(0), vocabulary(1))
    source_size = None if shared else tokenizer.source.size
    start_id = tokenizer.target.bos_id if shape.start == "zero" else None
    model = drawn(Transformer(shape, tokenizer.target.size, source_size, start_id))
    optimizer = torch.optim.Adam(model.parameters())
    criterion = ModelLoss(model, 0.0)
    sources, targets = (
        [np.array(ids, dtype=np.int32) for ids in side.encode([pair[i] for pair in PAIRS])]
        for i, side in enumerate((tokenizer.source, tokenizer.target))
    )
    for step in range(steps):
        rows = [i % len(PAIRS) for i in range(step * 40, step * 40 + 40)]
        batch = collate([sources[i] for i in rows], [targets[i] for i in rows], tokenizer)
        loss, _ = criterion(batch)
        optimizer.param_groups[0]["lr"] = 0.005 * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        (loss / batch.num_labels).backward()
        optimizer.step()
    # A limit that no search reaches: CTranslate2 may return other hypotheses at the limit.
    decoding = DecodingConfig(beam=4, penalty_form="power", max_extra=30, precision="fp32")
    data = PairsConfig(source="en", target="de")
    config = Config(data=data, model=shape, decoding=decoding)
    clean = replace(config.pairs.clean, max_len=100)
    config = replace(config, data=replace(config.pairs, clean=clean))
    return LoadedModel(model.eval(), tokenizer, config)


def exported(loaded: LoadedModel, folder: Path, to: str, **options: Any) -> Path:
    """Save a model and export it; return the exported folder."""
    with atomic_folder(folder / "model") as draft:
        save_model(draft, snapshot(loaded.model), loaded.tokenizer, loaded.config)
    export(folder / "model", folder / "exported", to=to, **options)
    return folder / "exported"


def own_translator(loaded: LoadedModel) -> Translator:
    """Return a translator that searches with torch."""
    assert isinstance(loaded.model, Transformer)
    engines = Engines.of_model(loaded.model, loaded.tokenizer, loaded.config)
    translator = Translator(engines, loaded.config.decoding)
    torch_engine(translator)
    return translator


def require_same_search(
    own: Translator,
    lines: Sequence[str],
    found: Sequence[Sequence[str]],
    expected: Sequence[Sequence[str]],
) -> None:
    """Compare the pieces of translations. Different ones must have the same score.

    Hypotheses whose scores are within rounding of each other may change places.
    """
    differing = [i for i, pieces in enumerate(found) if list(pieces) != list(expected[i])]
    sources = own.tokenizer.translation_vocabularies[0].encode_pieces([lines[i] for i in differing])
    scores = []
    for side in (found, expected):
        pairs = [(source, side[i]) for source, i in zip(sources, differing, strict=True)]
        rows = own.engines.torch.log_probs(pairs, own.decoding)
        scores.append([sum(row) / length_penalty(own.decoding, len(row)) for row in rows])
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def quantization_error(translator: Translator, whole: Translator) -> float:
    """Return the mean absolute difference of two models' log-probabilities of a token."""
    sources, targets = zip(*PAIRS[:100], strict=True)
    references = [[target] for target in targets]
    scored = (
        each.translations(sources, references=references, search=False, tokens=True)
        for each in (translator, whole)
    )
    found, right = (np.concatenate([x.references[0].log_probs for x in side]) for side in scored)
    return float(np.abs(found - right).mean())


def run_example(folder: Path) -> None:
    """Run the Python example of an exported folder's card."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    # Not in a fork: CTranslate2's threads, of earlier tests, would be missing there.
    subprocess.run([sys.executable, "-c", example], cwd=folder.parent, check=True)
