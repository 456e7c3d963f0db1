"""Templates for `seq2seq new`: recipes with a comment on every line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

DATA = {
    "source": "source language, the suffix of its files",
    "target": "target language",
    "train": "a corpus, or a list of corpora with weights",
    "text": "a file or a folder of files",
    "exclude": "sources to remove from the training data",
    "dev": "development set: selects the best model",
    "test": "test set, for `seq2seq evaluate`",
    "protect": "spans to keep, such as URLs and %s (docs/text.md)",
    "augment": "shares of pairs to change: capitals, typos (docs/text.md)",
    "dev_size": "examples held out as the development set",
    "test_size": "examples held out as the test set",
}
"""Comments on the keys of the section `data`."""

AUGMENT = {
    **{"typos": 0.2, "spaces": 0.1, "lower": 0.04, "join": 0.04},
    **{"copy": 0.03, "quotes": 0.02, "noise": 0.005},
}
"""Rates for `data.augment` of translation models (measured: docs/text.md)."""

MODEL = {
    "translation": """\
tokenizer:
  vocab_size: {pieces}  # pieces of words; small corpora need fewer
model:
  encoder_layers: {size.layers}  # depth
  decoder_layers: {size.layers}  # depth
  positions: rotary  # positional encoding
""",
    "language_model": """\
tokenizer:
  kind: char  # a token is a character; also: byte, bpe
model:
  decoder_layers: {size.layers}  # depth
  positions: rotary  # positional encoding
  context: {size.context}  # context length in tokens
  activation: gelu  # of the feed-forward networks
""",
    "classification": """\
tokenizer:
  vocab_size: {pieces}  # pieces of words; small corpora need fewer
  bpe_dropout: 0.1  # BPE-dropout: varies how words are split
model:
  encoder_layers: {size.layers}  # depth
  positions: learned  # positional encoding
  context: {size.context}  # context length in tokens
  activation: gelu  # of the feed-forward networks
""",
}
"""Sections `tokenizer` and `model` of a task, without the keys common to all tasks."""
OPTIMIZERS = {
    "muon": """\
  optimizer: muon  # needs half the tokens of adam
  schedule: cosine  # linear warm-up, then decay to zero
  clip_norm: 1.0  # maximum gradient norm
""",
    "adam": """\
  optimizer: adam  # as in the Transformer paper
  schedule: noam  # as in the Transformer paper
""",
}
TASK_TRAINING = {
    "translation": """\
  validation_sentences: 200  # of the development set, at most: to save time
decoding:
  beam: 5  # 1 is over twice as fast, but 1-2 BLEU worse
  length_penalty: 1.0  # higher for longer translations
""",
    "classification": """\
  best_by: nll  # less noisy than accuracy
  weight_decay: 0.1  # against overfitting
  adam_eps: 1e-4  # slows the learning of rare words
""",
    "language_model": """\
  label_smoothing: 0.0  # not used for language models
""",
}
"""Keys of the section `training` for a task, and the section `decoding`."""


def data_section(data: Mapping[str, Any]) -> str:
    """Return the section `data` with comments."""
    return "data:\n" + "".join(f"  {key}: {flow(data[key])}  # {DATA[key]}\n" for key in data)


def flow(value: Any) -> str:
    """Return a value as YAML on one line. A list with one item becomes the item."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def aligned(recipe: str) -> str:
    """Return a recipe with aligned comments."""
    rows = [line.rpartition("  # ") for line in recipe.splitlines()]
    return "".join(f"{key:44}  # {why}\n" if key else f"{why}\n" for key, _, why in rows)
