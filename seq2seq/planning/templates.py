"""The recipes that `seq2seq new` writes: templates with a comment on every line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

DATA = {
    "source": "language of the source; names of files end in it",
    "target": "language of the target",
    "train": "a list may have several corpora, each with a weight",
    "text": "a file, or a folder of files",
    "exclude": "sources that are dropped from the training corpora",
    "dev": "development set: chooses the best model",
    "test": "test set: for `seq2seq evaluate`, once",
    "dev_size": "examples held out as the development set",
    "test_size": "examples held out as the test set",
}
"""Comments of the section `data`."""


MODEL = {
    "translation": """\
tokenizer:
  vocab_size: {pieces}  # pieces of words; small corpora need fewer
model:
  encoder_layers: {size.layers}  # depth
  decoder_layers: {size.layers}  # depth
  positions: rotary  # how it knows the order of words
""",
    "language_model": """\
tokenizer:
  kind: char  # a token is a character; also: byte, bpe
model:
  decoder_layers: {size.layers}  # depth
  positions: rotary  # how it knows the order of characters
  context: {size.context}  # tokens that it sees at once
  activation: gelu  # of the feed-forward networks
""",
    "classification": """\
tokenizer:
  vocab_size: {pieces}  # pieces of words; small corpora need fewer
  bpe_dropout: 0.1  # splits words at random
model:
  encoder_layers: {size.layers}  # depth
  positions: learned  # how it knows the order of words
  context: {size.context}  # tokens that it sees at once
  activation: gelu  # of the feed-forward networks
""",
}
"""The sections `tokenizer` and `model` of a task, but for the keys of all tasks."""
OPTIMIZERS = {
    "muon": """\
  optimizer: muon  # needs half of the tokens of adam
  schedule: cosine  # linear warm-up, then down to zero
  clip_norm: 1.0  # limits the gradient's norm
""",
    "adam": """\
  optimizer: adam  # the paper's
  schedule: noam  # the paper's
""",
}
TASK_TRAINING = {
    "translation": """\
  validation_sentences: 200  # of the development set, to save time
decoding:
  beam: 5  # 1 is more than twice as fast, and one or two BLEU worse
  length_penalty: 1.0  # higher: longer translations
""",
    "classification": """\
  best_by: nll  # steadier than the accuracy
  weight_decay: 0.1  # a classifier overfits soon
  adam_eps: 1e-4  # rare words are learned slowly
""",
    "language_model": """\
  label_smoothing: 0.0  # not used for language models
""",
}
"""Keys of the section `training` that are those of a task, and what follows."""


def data_section(data: Mapping[str, Any]) -> str:
    """Return the section `data` with its comments."""
    return "data:\n" + "".join(f"  {key}: {flow(data[key])}  # {DATA[key]}\n" for key in data)


def flow(value: Any) -> str:
    """Return a value as YAML on one line; a list of one item as the item."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def aligned(recipe: str) -> str:
    """Return a recipe with its comments in one column."""
    rows = [line.rpartition("  # ") for line in recipe.splitlines()]
    return "".join(f"{key:44}  # {why}\n" if key else f"{why}\n" for key, _, why in rows)
