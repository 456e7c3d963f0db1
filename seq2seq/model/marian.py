"""Settings and weight names of Hugging Face's Marian models.

MarianMTModel corresponds to this package's post-norm Transformer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.data.json_objects import read_object_file
from seq2seq.data.marian import MARIAN_FILES
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, short

SETTINGS_FILE = "config.json"
SHAPE = {
    "d_model": "dim",
    "encoder_ffn_dim": "ffn_dim",
    "decoder_ffn_dim": "ffn_dim",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
}
"""Recipe keys of the model sizes in config.json."""
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
"""Keys with equal names in config.json and in a recipe."""
DEFAULT_LENGTH = 512
"""Maximum length in tokens if a model does not specify it."""

_RENAMED = (
    ("encoder.", "model.encoder."),
    ("decoder.", "model.decoder."),
    (".norm.", ".layer_norm."),
    (".positions.", ".embed_positions."),
    ("self_attention_norm", "self_attn_layer_norm"),
    ("cross_attention_norm", "encoder_attn_layer_norm"),
    ("feed_forward_norm", "final_layer_norm"),
    ("self_attention", "self_attn"),
    ("cross_attention", "encoder_attn"),
    ("feed_forward.up", "fc1"),
    ("feed_forward.down", "fc2"),
    (".query.", ".q_proj."),
    (".output.", ".out_proj."),
)


def marian_names(name: str) -> tuple[str, ...]:
    """Return Hugging Face's names of a weight; several are concatenated in this package."""
    for part, marian_part in _RENAMED:
        name = name.replace(part, marian_part)
    if ".key_value." in name:
        return name.replace("key_value", "k_proj"), name.replace("key_value", "v_proj")
    return (name,)


_SHARED = "model.shared.weight"
_ENCODER = "model.encoder.embed_tokens.weight"
_DECODER = "model.decoder.embed_tokens.weight"
_HEAD = "lm_head.weight"
EMBEDDINGS = {
    "source_embedding.weight": (_ENCODER, _SHARED),
    "target_embedding.weight": (_DECODER, _SHARED, _HEAD),
    "output.weight": (_HEAD, _DECODER, _SHARED),
}
"""Possible names of embeddings and output projection; tied weights are saved once."""
BIAS = "final_logits_bias"


def is_marian(folder: Path) -> bool:
    """Return whether a folder holds a Marian model."""
    path = folder / SETTINGS_FILE
    return path.is_file() and read_object_file(path).get("model_type") == "marian"


def read_marian(folder: Path) -> tuple[dict[str, Any], Tokenizer]:
    """Return a model's settings, in the form of a recipe, and its tokenizer.

    Raises UserError for a setting that this package's Transformer does not support.
    """
    weights, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if pickled.exists() and not weights.exists():
        raise UserError(
            f"{pickled} is a pickle file, and loading it could run any code: convert it to "
            f"{weights.name} with transformers, "
            "MarianMTModel.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    settings = read_object_file(folder / SETTINGS_FILE)
    # Older models have the search settings in config.json.
    search = settings | read_object_file(folder / "generation_config.json", optional=True)
    search = {key: value for key, value in search.items() if value is not None}
    tokenizer_settings = read_object_file(folder / "tokenizer_config.json", optional=True)
    tokenizer = Tokenizer.from_files([folder / MARIAN_FILES[0]])
    lengths = settings.get("max_position_embeddings"), tokenizer_settings.get("model_max_length")
    recipe = {
        "data": {
            "source": tokenizer_settings.get("source_lang"),
            "target": tokenizer_settings.get("target_lang"),
            "clean": {"max_len": min(length or DEFAULT_LENGTH for length in lengths) - 1},
        },
        "tokenizer": {
            "vocab_size": tokenizer.source.size,
            "shared": False,
            "models": list(MARIAN_FILES),
        },
        "model": _model_section(settings, tokenizer, folder / SETTINGS_FILE),
        "decoding": {
            "beam": search.get("num_beams", 1),
            "length_penalty": search.get("length_penalty", 1.0),
            "penalty_form": "power",
            "min_length": search.get("min_length", 0),
            "no_repeat_ngram": search.get("no_repeat_ngram_size", 0),
        },
    }
    return recipe, tokenizer


def _model_section(settings: dict[str, Any], tokenizer: Tokenizer, path: Path) -> dict[str, Any]:
    tied = settings.get("tie_word_embeddings", True)
    required = {
        "scale_embedding": True,
        "normalize_embedding": False,
        "normalize_before": False,
        "share_encoder_decoder_embeddings": tied and tokenizer.shared,
        "decoder_attention_heads": settings["encoder_attention_heads"],
        "decoder_ffn_dim": settings["encoder_ffn_dim"],
        "decoder_start_token_id": tokenizer.target.bos_id,
    }
    wrong = [key for key, value in required.items() if settings.get(key, value) != value]
    if wrong:
        raise UserError(f"{path}: {wrong[0]}={short(settings[wrong[0]])} has no equivalent here")
    section = {key: settings[name] for name, key in SHAPE.items()}
    section |= {key: settings[key] for key in DROPOUTS}
    return section | {
        "norm": "post",
        "activation": settings["activation_function"].replace("swish", "silu"),
        "tied": tied,
        "output_bias": True,
    }
