"""Folders of Hugging Face's Marian and Pegasus models: settings and the names of weights.

MarianMTModel is this package's post-norm Transformer, and PegasusForConditionalGeneration with
Marian's tokenizer the pre-norm one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import safetensors

from seq2seq.config import (
    Config,
    DecodingConfig,
    ModelConfig,
    PairsConfig,
    TokenizerConfig,
    check_decoding,
    check_model,
    config_of,
    to_tree,
)
from seq2seq.data.json_objects import read_object_file
from seq2seq.data.marian import MARIAN_FILES, SETTINGS_FILE, whole_number
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, shown

NORMS = {"marian": "post", "pegasus": "pre"}
"""Of each model type."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
"""Of each name there; several names are one activation."""
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


EMBEDDINGS = {
    "source_embedding.weight": ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    "target_embedding.weight": (
        "model.decoder.embed_tokens.weight", "model.shared.weight", "lm_head.weight",
    ),
    "output.weight": ("lm_head.weight", "model.decoder.embed_tokens.weight", "model.shared.weight"),
}  # fmt: skip
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
    try:
        model = _model_config(settings, folder)
        tokenizer = Tokenizer.from_marian(folder)
        _require_embeddings(settings, tokenizer, folder)
        penalty = search.get("length_penalty")
        decoding = DecodingConfig(
            beam=int(search.get("num_beams") or 1),
            length_penalty=1.0 if penalty is None else float(penalty),
            penalty_form="power",
            min_length=int(search.get("min_length") or 0),
            no_repeat_ngram=int(search.get("no_repeat_ngram_size") or 0),
        )
        longest = int(settings.get("max_position_embeddings") or LENGTH) - 1
        longest = min(longest, int(names.get("model_max_length") or LENGTH) - 1)
    except KeyError as error:
        raise UserError(f"{folder / 'config.json'} has no {error}") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"the settings of {folder} cannot be read: {error}") from None
    languages = (names.get("source_lang") or "", names.get("target_lang") or "")
    data = PairsConfig(source=str(languages[0]), target=str(languages[1]))
    config = Config(
        data=replace(data, clean=replace(data.clean, max_len=longest)),
        tokenizer=TokenizerConfig(
            vocab_size=tokenizer.source.size,
            shared=tokenizer.source is tokenizer.target,
            models=marian_vocabulary(folder),
        ),
        model=model,
        decoding=decoding,
    )
    try:
        config = config_of(to_tree(config), SETTINGS_FILE)
        check_decoding(config.decoding)
        check_model(config)
    except UserError as error:
        raise UserError(f"the settings of {folder} cannot be read: {error}") from None
    return config, tokenizer


def marian_vocabulary(folder: Path) -> tuple[str, ...]:
    """Return the tokenizer's files: one if both languages have the same."""
    files = [folder / name for name in MARIAN_FILES]
    contents = {file.read_bytes() for file in files if file.exists()}
    alike = len(contents) == 1 and not (folder / "target_vocab.json").exists()
    return tuple(map(str, files[:1] if alike else files))


def _model_config(settings: dict[str, Any], folder: Path) -> ModelConfig:
    def require(key: str, *allowed: object, default: object) -> None:
        if (value := settings.get(key, default)) not in allowed:
            raise UserError(
                f"{folder / 'config.json'}: {key}={shown(value)} has no equivalent here; models "
                f"with {key}={' or '.join(map(str, allowed))} can be read"
            )

    def number(key: str) -> int:
        return whole_number(settings, key, folder)

    require("activation_function", *ACTIVATIONS, default="gelu")
    require("scale_embedding", True, default=False)
    require("normalize_embedding", False, default=False)
    pre = NORMS[settings["model_type"]] == "pre"
    for key in ("normalize_before", "add_final_layer_norm"):
        require(key, pre, default=pre)
    for key in ("attention_heads", "ffn_dim"):
        require(f"decoder_{key}", settings[f"encoder_{key}"], default=None)
    for key in ("encoder_layerdrop", "decoder_layerdrop"):
        require(key, 0, default=0)
    positions, default_context = _positions(settings, folder), ModelConfig().context
    numbers: dict[str, Any] = {ours: number(theirs) for theirs, ours in SHAPE.items()}
    numbers |= {key: float(settings.get(key, 0.0)) for key in DROPOUTS}
    return ModelConfig(
        **numbers,
        norm="pre" if pre else "post",
        activation=ACTIVATIONS[settings.get("activation_function", "gelu")],  # type: ignore[arg-type]
        positions=positions,
        context=number("max_position_embeddings") if positions == "learned" else default_context,
        tied=bool(settings.get("tie_word_embeddings", True)),
        output_bias=True,
    )


def _positions(settings: dict[str, Any], folder: Path) -> Literal["learned", "sinusoidal"]:
    """Pegasus saves its positions, which may be sinusoids or trained; Marian computes sinusoids."""
    if NORMS[settings["model_type"]] == "post":
        return "sinusoidal"
    import torch

    from seq2seq.model.positions import sinusoids

    try:
        with safetensors.safe_open(folder / "model.safetensors", "pt") as weights:
            table = weights.get_tensor("model.encoder.embed_positions.weight").float()
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: the positions cannot be read: {error}") from None
    alike = torch.allclose(table, sinusoids(*table.shape), atol=1e-6)
    return "sinusoidal" if alike else "learned"


def _require_embeddings(settings: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> None:
    """Raise UserError unless the embeddings are shared where this package shares them."""
    tied = bool(settings.get("tie_word_embeddings", True))
    shared = bool(settings.get("share_encoder_decoder_embeddings", tied))
    if shared != (tied and tokenizer.shared):
        raise UserError(
            f"{folder / 'config.json'}: share_encoder_decoder_embeddings={shared} with "
            f"tie_word_embeddings={tied} and {'one' if tokenizer.shared else 'a separate'} "
            "vocabulary has no equivalent here"
        )
