"""Recipes: frozen dataclasses, read from YAML, validated, and written back in full."""

from seq2seq.config.data import (
    CleaningConfig,
    CorpusConfig,
    DataConfig,
    Direction,
    LabelledConfig,
    PairsConfig,
    TextConfig,
)
from seq2seq.config.recipe import (
    attribute_docs,
    check_name,
    commented_yaml,
    config_of,
    read_recipe,
    require_effects,
    resolve,
    to_yaml,
    with_batch_tokens,
    with_paths,
)
from seq2seq.config.schema import (
    TASKS,
    Config,
    DecodingConfig,
    ModelConfig,
    TokenizerConfig,
    TrainingConfig,
)
from seq2seq.config.trees import from_tree, leaves, to_tree
