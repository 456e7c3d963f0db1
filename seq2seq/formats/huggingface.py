"""Hugging Face transformers: Marian models are read, Marian and Pegasus models are written.

MarianMTModel corresponds to this package's post-norm Transformer, Pegasus to pre-norm.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config import Config
from seq2seq.data.lines import read_object_file
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import IDS_FILES, MARIAN_FILES, marian_files
from seq2seq.errors import UserError, require_extra, short

if TYPE_CHECKING:  # not at run time: settings are read without torch
    from torch import Tensor

    from seq2seq.model.transformer import Network, Transformer

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


def marian_names(name: str) -> tuple[str, ...]:
    """Return Hugging Face's names of a weight; several are concatenated in this package."""
    for part, marian_part in RENAMED:
        name = name.replace(part, marian_part)
    if ".key_value." in name:
        return name.replace("key_value", "k_proj"), name.replace("key_value", "v_proj")
    return (name,)


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
    source, target = map(tokenizer_settings.get, ("source_lang", "target_lang"))
    directions = [[source or "", code] for code in tokenizer.languages()]
    recipe = {
        "data": {
            "source": source,
            "target": target,
            # Without files: the directions of a model of several languages.
            "train": [{"languages": pair} for pair in settings.get("directions", directions)],
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


def from_marian(model: Network, marian: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Marian model under the names of this package."""
    import torch

    marian["output.bias"] = marian.get(BIAS, torch.zeros(1, model.output.out_features))[0]
    weights = {}
    for name, _ in model.named_parameters():
        names = [key for key in EMBEDDINGS.get(name, ()) if key in marian][:1] or marian_names(name)
        if marian.keys() >= {*names}:
            weights[name] = torch.cat([marian[key] for key in names])
    return weights


USAGE = """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")
ids = model.generate(**tokenizer(["{example}"], return_tensors="pt", padding=True))
print(tokenizer.batch_decode(ids, skip_special_tokens=True))
```

`Seq2SeqTrainer` fine-tunes the model, with examples from `tokenizer(source, text_target=target)`
and `DataCollatorForSeq2Seq`.
"""


def write_huggingface(
    model: Transformer, tokenizer: Tokenizer, config: Config, folder: Path, quantization: str | None
) -> None:
    """Write a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`, without custom code.

    quantization: must be None.
    """
    if quantization:
        raise UserError("--quantization is for ctranslate2 and argos")
    _require_supported(config, tokenizer)
    require_extra("transformers", "--to huggingface")
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    kind = "pegasus" if config.model.norm == "pre" else "marian"
    settings = AutoConfig.for_model(kind, **_settings(config, tokenizer))
    exported = AutoModelForSeq2SeqLM.from_config(settings)
    unknown = exported.load_state_dict(_weights(model, tokenizer), strict=False).unexpected_keys
    assert not unknown, unknown
    exported.generation_config = GenerationConfig(**_search(config, tokenizer))
    disable_progress_bar()
    exported.save_pretrained(folder)
    _write_tokenizer(config, tokenizer, folder)


def _require_supported(config: Config, tokenizer: Tokenizer) -> None:
    """Raise UserError with the recipe key if Marian and Pegasus do not support the model."""
    model_config, pre = config.model, config.model.norm == "pre"
    ids = [[v.unk_id, v.pad_id, v.eos_id] for v in (tokenizer.source, tokenizer.target)]
    unsupported = {
        "model.positions=rotary: train with model.positions=learned and model.norm=pre (no worse "
        "on Multi30k, docs/sizes.md)": model_config.positions == "rotary",
        "model.activation=swiglu: train with model.activation=relu (no worse on Multi30k, "
        "docs/sizes.md)": model_config.activation == "swiglu",
        "model.positions=learned with model.norm=post: train with model.norm=pre (1.5 BLEU better "
        "on Multi30k, docs/sizes.md)": model_config.positions == "learned" and not pre,
        "tokenizer.shared=false with model.norm=pre: train with tokenizer.shared=true": (
            pre and not tokenizer.shared
        ),
        "vocabularies with different ids of the unknown, padding and end symbols, here "
        f"{ids[0]} and {ids[1]}": ids[0] != ids[1],
    }
    for reason, applies in unsupported.items():
        if applies:
            raise UserError(f"--to huggingface does not support {reason}; or use --to ctranslate2")


def _settings(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of config.json."""
    shape = config.model
    return {
        **{theirs: getattr(shape, ours) for theirs, ours in SHAPE.items()},
        **{key: getattr(shape, key) for key in DROPOUTS},
        "vocab_size": tokenizer.source.size,
        "decoder_vocab_size": tokenizer.target.size,
        "activation_function": shape.activation,
        "max_position_embeddings": config.num_positions,
        "scale_embedding": True,
        "normalize_before": shape.norm == "pre",
        "normalize_embedding": False,
        "share_encoder_decoder_embeddings": shape.tied and tokenizer.shared,
        "tie_word_embeddings": shape.tied,
        "directions": [list(direction) for direction in config.pairs.directions],
        **_symbols(tokenizer),
    }


def _symbols(tokenizer: Tokenizer) -> dict[str, int]:
    target = tokenizer.target
    return {
        "pad_token_id": target.pad_id,
        "bos_token_id": target.bos_id,
        "eos_token_id": target.eos_id,
        "decoder_start_token_id": target.bos_id,
        "forced_eos_token_id": target.eos_id,  # the default is 0
    }


def _search(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of generation_config.json."""
    decoding, target = config.decoding, tokenizer.target
    length = math.floor(decoding.max_factor * config.max_source_tokens) + decoding.max_extra + 1
    return {
        "num_beams": decoding.beam,
        "length_penalty": decoding.length_penalty,
        "min_length": decoding.min_length,
        "max_length": min(length + 1, config.num_positions),  # with the start symbol
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "bad_words_ids": [[i] for i in sorted({target.pad_id, target.bos_id, target.unk_id})],
        **_symbols(tokenizer),
    }


def _weights(model: Transformer, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return the weights by their names in transformers, tied weights under all names."""
    import torch

    shape, parameters = model.config, dict(model.named_parameters())
    weights = {
        BIAS: parameters.pop("output.bias", torch.zeros(tokenizer.target.size))[None],
        ENCODER: model.source_embedding.weight,
        DECODER: model.target_embedding.weight,
        HEAD: model.output.weight,
    }
    if shape.norm == "pre" or (shape.tied and tokenizer.shared):
        weights[SHARED] = model.source_embedding.weight
    for name, parameter in parameters.items():
        if name not in EMBEDDINGS:
            scale = math.sqrt(shape.dim) if name.endswith("positions.weight") else 1.0
            names = marian_names(name)
            weights |= zip(names, (parameter * scale).chunk(len(names)), strict=True)
    return weights


def _write_tokenizer(config: Config, tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import MarianTokenizer

    sources, targets = map(set, zip(*config.pairs.directions, strict=True))
    for name, content in marian_files(tokenizer.translation_vocabularies).items():
        (folder / name).write_bytes(content)
    target = tokenizer.target
    unk, eos, pad, bos = target.pieces([target.unk_id, target.eos_id, target.pad_id, target.bos_id])
    source_file, target_file, source_ids, target_ids = (
        str(folder / name) for name in (*MARIAN_FILES, *IDS_FILES)
    )
    exported = MarianTokenizer(
        source_spm=source_file,
        target_spm=target_file,
        vocab=source_ids,
        target_vocab_file=None if tokenizer.shared else target_ids,
        source_lang=sources.pop() if len(sources) == 1 else None,
        target_lang=targets.pop() if len(targets) == 1 else None,
        unk_token=unk,
        eos_token=eos,
        pad_token=pad,
        additional_special_tokens=[bos],
        model_max_length=config.max_source_tokens + 1,
        separate_vocabs=not tokenizer.shared,
    )
    exported.save_pretrained(folder)
