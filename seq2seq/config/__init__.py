"""Recipes: frozen dataclasses, read from YAML, validated, and written back in full."""

from seq2seq.config.checks import check_bounds, check_decoding, check_model, check_name
from seq2seq.config.recipe import default_run, to_yaml, with_batch_tokens
from seq2seq.config.schema import (
    AUTO,
    CleaningConfig,
    Config,
    CorpusConfig,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from seq2seq.config.trees import from_tree, to_tree

__all__ = [
    "AUTO",
    "CleaningConfig",
    "Config",
    "CorpusConfig",
    "DataConfig",
    "DecodingConfig",
    "ModelConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "check_bounds",
    "check_decoding",
    "check_model",
    "check_name",
    "default_run",
    "from_tree",
    "to_tree",
    "to_yaml",
    "with_batch_tokens",
]
