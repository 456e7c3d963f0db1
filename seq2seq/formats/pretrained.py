"""Hugging Face transformers: Marian models and models of the M2M-100 family are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.data.lines import read_object_file
from seq2seq.data.mapped_pieces import M2M100_FILE, MARIAN_FILES
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, short

if TYPE_CHECKING:  # not at run time: settings are read without torch
    from torch import Tensor

    from seq2seq.model.transformer import Network

SETTINGS_FILE = "config.json"
FAMILIES = "marian", "m2m_100"
"""Values of `model_type` that can be read."""
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
SEARCH = {
    "beam": "num_beams",
    "length_penalty": "length_penalty",
    "min_length": "min_length",
    "no_repeat_ngram": "no_repeat_ngram_size",
}
"""Names of recipe keys in generation_config.json."""
DEFAULT_LENGTH = 512
"""Maximum length in tokens if a model does not specify it."""
RENAMED = (
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
"""Parts of the names of weights in this package and in transformers, in the order of renaming."""
SHARED = "model.shared.weight"
ENCODER = "model.encoder.embed_tokens.weight"
DECODER = "model.decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
EMBEDDINGS = {
    "source_embedding.weight": (ENCODER, SHARED),
    "target_embedding.weight": (DECODER, SHARED, HEAD),
    "output.weight": (HEAD, DECODER, SHARED),
}
"""Possible names of embeddings and output projection; tied weights are saved once."""
BIAS = "final_logits_bias"


def names_there(name: str) -> tuple[str, ...]:
    """Return Hugging Face's names of a weight; several are concatenated in this package."""
    for part, their_part in RENAMED:
        name = name.replace(part, their_part)
    if ".key_value." in name:
        return name.replace("key_value", "k_proj"), name.replace("key_value", "v_proj")
    return (name,)


def is_pretrained(folder: Path) -> bool:
    """Return whether a folder holds a model of transformers."""
    path = folder / SETTINGS_FILE
    return path.is_file() and "model_type" in read_object_file(path)


def read_pretrained(folder: Path) -> tuple[dict[str, Any], Tokenizer]:
    """Return a model's settings, in the form of a recipe, and its tokenizer.

    Raises UserError for a model, or a setting, that this package's Transformer does not support.
    """
    settings = read_object_file(folder / SETTINGS_FILE)
    if (family := settings["model_type"]) not in FAMILIES:
        raise UserError(
            f"it is a model of the family {short(family)}: of transformers' models, Marian "
            "(OPUS-MT) and M2M-100 (with NLLB-200 and SMaLL-100) can be read"
        )
    if not find_weights(folder) and (pickled := sorted(folder.glob("pytorch_model*.bin"))):
        raise UserError(
            f"{pickled[0].name} is a pickle file, and loading it could run any code: convert it to "
            "safetensors with transformers, "
            "AutoModelForSeq2SeqLM.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    # Older models have the search settings in config.json.
    search = settings | read_object_file(folder / "generation_config.json", optional=True)
    tokenizer_settings = read_object_file(folder / "tokenizer_config.json", optional=True)
    files = [M2M100_FILE] if family == "m2m_100" else list(MARIAN_FILES)
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.json")):
        files.insert(0, "tokenizer.json (NLLB) or vocab.json")
    if not (folder / files[0]).exists():
        raise UserError(
            f"it has no {files[0]}, a file of its tokenizer: copy the file from the folder of the "
            "original model"
        )
    tokenizer = Tokenizer.from_files([folder / files[0]])
    lengths = settings.get("max_position_embeddings"), tokenizer_settings.get("model_max_length")
    source, target = map(tokenizer_settings.get, ("source_lang", "target_lang"))
    directions = [[source or "", target] for target in tokenizer.languages]
    if family == "m2m_100":
        directions = [list(tokenizer.languages)]
    recipe = {
        "data": {
            "source": source,
            "target": target,
            # Without files: the directions of a model of several languages.
            "train": [{"languages": x} for x in settings.get("directions", directions)],
            "clean": {"max_len": min(length or DEFAULT_LENGTH for length in lengths) - 1},
        },
        "tokenizer": {
            "vocab_size": tokenizer.source.size,
            "shared": family == "m2m_100",
            "models": files,
        },
        "model": _model_section(settings, tokenizer, folder / SETTINGS_FILE),
        "decoding": {
            key: search[name] for key, name in SEARCH.items() if search.get(name) is not None
        },
    }
    return recipe, tokenizer


def _model_section(settings: dict[str, Any], tokenizer: Tokenizer, path: Path) -> dict[str, Any]:
    tied, is_marian = settings.get("tie_word_embeddings", True), settings["model_type"] == "marian"
    required = {
        "scale_embedding": True,
        "decoder_attention_heads": settings["encoder_attention_heads"],
        "decoder_ffn_dim": settings["encoder_ffn_dim"],
        "decoder_start_token_id": tokenizer.target.bos_id,
    }
    if is_marian:
        required |= {
            "normalize_embedding": False,
            "normalize_before": False,
            "share_encoder_decoder_embeddings": tied and tokenizer.shared,
        }
    else:
        required |= {"tie_word_embeddings": True}
    wrong = [key for key, value in required.items() if settings.get(key, value) != value]
    if wrong:
        raise UserError(f"{path}: {wrong[0]}={short(settings[wrong[0]])} has no equivalent here")
    section = {key: settings[name] for name, key in SHAPE.items()}
    section |= {key: settings[key] for key in DROPOUTS}
    return section | {
        "norm": "post" if is_marian else "pre",
        "positions": "sinusoidal" if is_marian else "fairseq",
        "activation": settings["activation_function"].replace("swish", "silu"),
        "tied": tied,
        "output_bias": is_marian,
    }


def find_weights(folder: Path) -> list[Path]:
    """Return the files of the weights: one, or the parts of a large model."""
    return sorted(folder.glob("model*.safetensors"))


def from_pretrained(model: Network, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model of transformers under the names of this package."""
    import torch

    theirs["output.bias"] = theirs.get(BIAS, torch.zeros(1, model.output.out_features))[0]
    weights = {}
    for name, _ in model.named_parameters():
        names = [key for key in EMBEDDINGS.get(name, ()) if key in theirs][:1] or names_there(name)
        if theirs.keys() >= {*names}:
            first, *others = (theirs[key] for key in names)
            weights[name] = torch.cat([first, *others]) if others else first  # cat would copy it
    return weights
