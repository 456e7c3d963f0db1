"""Folders of Hugging Face's Marian and Pegasus models: settings and the names of weights.

MarianMTModel is this package's post-norm Transformer, and PegasusForConditionalGeneration with
Marian's tokenizer the pre-norm one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.config import Config, check_decoding, check_model, config_of
from seq2seq.data.json_objects import read_object_file
from seq2seq.data.marian import IDS_FILES, MARIAN_FILES, SETTINGS_FILE
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, shown

NORMS = {"marian": "post", "pegasus": "pre"}
"""Layer normalisation of each model type."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
"""Activations by their names there."""
SHAPE = {
    "d_model": "dim",
    "encoder_ffn_dim": "ffn_dim",
    "decoder_ffn_dim": "ffn_dim",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
}
"""The whole numbers of their config.json by our names."""
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
"""Keys that have the same name there."""
LENGTH = 512
"""Maximum length, in tokens, of models that do not say theirs."""

_RENAMED = (
    ("encoder.norm.", "model.encoder.layer_norm."),
    ("decoder.norm.", "model.decoder.layer_norm."),
    ("encoder.layers.", "model.encoder.layers."),
    ("decoder.layers.", "model.decoder.layers."),
    ("encoder.positions.", "model.encoder.embed_positions."),
    ("decoder.positions.", "model.decoder.embed_positions."),
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


def their_names(name: str) -> tuple[str, ...]:
    """Return the names there of a weight of a layer; if several, ours is their concatenation."""
    for ours, theirs in _RENAMED:
        name = name.replace(ours, theirs)
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
"""The names that an embedding or the output projection may have there; tied ones are saved once."""
BIAS = "final_logits_bias"


def is_marian(folder: Path) -> bool:
    """Return whether a folder holds a model of these types."""
    return model_type(folder) in tuple(NORMS)


def model_type(folder: Path) -> object:
    """Return the type of a folder's model for transformers; None if it holds none."""
    try:
        return read_object_file(folder / SETTINGS_FILE).get("model_type")
    except UserError:
        return None


def read_marian(folder: Path) -> tuple[Config, Tokenizer]:
    """Return the recipe of a folder's model, as far as it says, and its tokenizer.

    Raises UserError, with the setting's name, for what this package's Transformer does not have.
    """
    weights, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if pickled.exists() and not weights.exists():
        raise UserError(
            f"{pickled} is a pickle, which may run any code and is not read; write {weights.name} "
            "with transformers: MarianMTModel.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    settings = read_object_file(folder / SETTINGS_FILE)
    # Older folders have the settings of the search in config.json.
    search = settings | read_object_file(folder / "generation_config.json", optional=True)
    names = read_object_file(folder / "tokenizer_config.json", optional=True)
    penalty = search.get("length_penalty")
    lengths = settings.get("max_position_embeddings"), names.get("model_max_length")
    try:
        tokenizer = Tokenizer.from_files([folder / MARIAN_FILES[0]])
        max_len = min(int(length or LENGTH) - 1 for length in lengths)
        model = _model_section(settings, folder / SETTINGS_FILE, shared=tokenizer.shared)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the settings of {folder} cannot be read: {error!r}") from None
    tree = {
        "data": {
            "source": names.get("source_lang"),
            "target": names.get("target_lang"),
            "clean": {"max_len": max_len},
        },
        "tokenizer": {
            "vocab_size": tokenizer.source.size,
            "shared": tokenizer.source is tokenizer.target,
            "models": list(marian_vocabulary(folder)),
        },
        "model": model,
        "decoding": {
            "beam": search.get("num_beams") or 1,
            "length_penalty": 1.0 if penalty is None else penalty,
            "penalty_form": "power",
            "min_length": search.get("min_length") or 0,
            "no_repeat_ngram": search.get("no_repeat_ngram_size") or 0,
        },
    }
    config = config_of(tree, f"the settings of {folder}")
    check_decoding(config.decoding)
    check_model(config)
    return config, tokenizer


def marian_vocabulary(folder: Path) -> tuple[str, ...]:
    """Return the tokenizer's files: one if both languages have the same."""
    files = [folder / name for name in MARIAN_FILES]
    contents = {file.read_bytes() for file in files if file.exists()}
    alike = len(contents) == 1 and not (folder / IDS_FILES[1]).exists()
    return tuple(map(str, files[:1] if alike else files))


def _model_section(settings: dict[str, Any], path: Path, *, shared: bool) -> dict[str, Any]:
    """Return the section `model` of a recipe; shared: whether the languages share a vocabulary."""

    def require(key: str, *allowed: object, default: object) -> None:
        if (value := settings.get(key, default)) not in allowed:
            raise UserError(
                f"{path}: {key}={shown(value)} has no equivalent here; models with "
                f"{key}={' or '.join(map(str, allowed))} can be read"
            )

    norm, tied = NORMS[settings["model_type"]], settings.get("tie_word_embeddings", True)
    activation = settings.get("activation_function", "gelu")
    require("activation_function", *ACTIVATIONS, default="gelu")
    require("scale_embedding", True, default=False)
    require("normalize_embedding", False, default=False)
    require("share_encoder_decoder_embeddings", tied and shared, default=tied)
    for key in ("normalize_before", "add_final_layer_norm"):
        require(key, norm == "pre", default=norm == "pre")
    for key in ("attention_heads", "ffn_dim"):
        require(f"decoder_{key}", settings[f"encoder_{key}"], default=None)
    for key in ("encoder_layerdrop", "decoder_layerdrop"):
        require(key, 0, default=0)
    section = {ours: settings[theirs] for theirs, ours in SHAPE.items()}
    section |= {key: settings.get(key, 0.0) for key in DROPOUTS}
    if norm == "pre":  # Pegasus saves its positions, which may have been trained
        section |= {"positions": "learned", "context": settings["max_position_embeddings"]}
    return section | {
        "norm": norm,
        "activation": ACTIVATIONS[activation],
        "tied": tied,
        "output_bias": True,
    }
