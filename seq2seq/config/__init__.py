"""Recipes: frozen dataclasses, read from YAML, validated, and written back in full."""

from seq2seq.config.checks import (
    check_corpora,
    check_decoding,
    check_model,
    check_name,
    require,
)  # fmt: skip
from seq2seq.config.paths import with_paths
from seq2seq.config.recipe import (
    config_of,
    default_run,
    read_recipe,
    resolve,
    to_yaml,
    with_batch_tokens,
)  # fmt: skip
from seq2seq.config.schema import (
    CleaningConfig,
    Config,
    CorpusConfig,
    DataConfig,
    DecodingConfig,
    DecodingPrecision,
    ModelConfig,
    PairsConfig,
    TextConfig,
    TokenizerConfig,
    TrainingConfig,
)  # fmt: skip
from seq2seq.config.trees import from_tree, leaves, to_tree

__all__ = [
    "CleaningConfig", "Config", "CorpusConfig", "DataConfig", "DecodingConfig",
    "DecodingPrecision", "ModelConfig", "PairsConfig", "TextConfig", "TokenizerConfig",
    "TrainingConfig",
    "check_corpora", "check_decoding", "check_model", "check_name", "config_of",
    "default_run", "from_tree", "leaves", "read_recipe", "require", "resolve", "to_tree", "to_yaml",
    "with_batch_tokens", "with_paths",
]  # fmt: skip
