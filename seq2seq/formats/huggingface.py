"""Export to Hugging Face transformers.

MarianMTModel corresponds to this package's post-norm Transformer, Pegasus to pre-norm, M2M100 to
pre-norm with the positions of fairseq.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config import Config, Direction
from seq2seq.data.extension import fields
from seq2seq.data.mapped_pieces import (
    IDS_FILES,
    LANGUAGES_FILE,
    M2M100_FILE,
    MARIAN_FILES,
    MASK,
    MappedPieces,
    mapped_files,
)
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import UNK
from seq2seq.errors import UserError, require_extra
from seq2seq.formats.pretrained import (
    BIAS,
    DECODER,
    DROPOUTS,
    EMBEDDINGS,
    ENCODER,
    HEAD,
    SHAPE,
    SHARED,
    names_there,
)

if TYPE_CHECKING:
    from torch import Tensor

    from seq2seq.model.transformer import Transformer

USAGE = """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}"{src})
model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")
ids = model.generate(**tokenizer(["{example}"], return_tensors="pt", padding=True){forced})
print(tokenizer.batch_decode(ids, skip_special_tokens=True))
```

`Seq2SeqTrainer` fine-tunes the model, with examples from `tokenizer(source, text_target=target)`
and `DataCollatorForSeq2Seq`.
"""


def usage(tokenizer: Tokenizer, direction: Direction) -> dict[str, str]:
    """Return an example, and the arguments of tokenizer and `generate` that name languages."""
    if not is_m2m100(tokenizer):
        words = tokenizer.prefix(direction), "A sentence."
        return {"example": " ".join(filter(None, words)), "src": "", "forced": ""}
    start, [source] = tokenizer.symbols(direction)
    forced = f", forced_bos_token_id=tokenizer.convert_tokens_to_ids({start[0]!r})" if start else ""
    return {"example": "A sentence.", "src": f", src_lang={source!r}", "forced": forced}


def is_m2m100(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer is of the M2M-100 family."""
    return isinstance(tokenizer.source, MappedPieces) and tokenizer.source.given is not None


def write_huggingface(
    model: Transformer, tokenizer: Tokenizer, config: Config, folder: Path
) -> None:
    """Write a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`, without custom code."""
    _require_supported(config, tokenizer)
    require_extra("transformers", "--to huggingface")
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    kind = "pegasus" if config.model.norm == "pre" else "marian"
    kind = "m2m_100" if is_m2m100(tokenizer) else kind
    settings = AutoConfig.for_model(kind, **_settings(config, tokenizer))
    exported = AutoModelForSeq2SeqLM.from_config(settings)
    unknown = exported.load_state_dict(_weights(model, tokenizer), strict=False).unexpected_keys
    assert not unknown, unknown
    exported.generation_config = GenerationConfig(**_search(config, tokenizer))
    disable_progress_bar()
    exported.save_pretrained(folder)
    write_tokenizer = _write_m2m100_tokenizer if is_m2m100(tokenizer) else _write_tokenizer
    write_tokenizer(config, tokenizer, folder)


def _require_supported(config: Config, tokenizer: Tokenizer) -> None:
    """Raise UserError with the recipe key if Marian and Pegasus do not support the model."""
    model_config, pre = config.model, config.model.norm == "pre"
    ids = [[v.unk_id, v.pad_id, v.eos_id] for v in (tokenizer.source, tokenizer.target)]
    unsupported = {
        "model.positions=rotary: train with model.positions=learned and model.norm=pre (no worse "
        "on Multi30k, docs/sizes.md)": model_config.positions == "rotary",
        "model.positions=marian: train with model.positions=sinusoidal": (
            model_config.positions == "marian"
        ),
        "model.activation=swiglu: train with model.activation=relu (no worse on Multi30k, "
        "docs/sizes.md)": model_config.activation == "swiglu",
        f"model.positions={model_config.positions} with this tokenizer": (
            (model_config.positions == "fairseq") != is_m2m100(tokenizer)
        ),
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
        "directions": [x.languages for x in config.pairs.train if len(x.languages) > 2]
        or [list(direction) for direction in config.pairs.directions],
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
        "bad_words_ids": [[i] for i in [*target.never_generated, target.unk_id]],
        **_symbols(tokenizer),
    }


def _weights(model: Transformer, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Return the weights by their names in transformers, tied weights under all names."""
    import torch

    shape, parameters = model.config, dict(model.named_parameters())
    bias = parameters.pop("output.bias", torch.zeros(tokenizer.target.size))[None]
    weights = {
        **({} if is_m2m100(tokenizer) else {BIAS: bias}),
        ENCODER: model.source_embedding.weight,
        DECODER: model.target_embedding.weight,
        HEAD: model.output.weight,
    }
    if shape.norm == "pre" or (shape.tied and tokenizer.shared):
        weights[SHARED] = model.source_embedding.weight
    for name, parameter in parameters.items():
        if name not in EMBEDDINGS:
            scale = math.sqrt(shape.dim) if name.endswith("positions.weight") else 1.0
            names = names_there(name)
            weights |= zip(names, (parameter * scale).chunk(len(names)), strict=True)
    return weights


def _write_tokenizer(config: Config, tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import MarianTokenizer

    sources, targets = map(set, zip(*config.pairs.directions, strict=True))
    for name, content in mapped_files(tokenizer.translation_vocabularies).items():
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


def _write_m2m100_tokenizer(config: Config, tokenizer: Tokenizer, folder: Path) -> None:
    """Write an NllbTokenizer, also for M2M-100: M2M100Tokenizer has a fixed list of languages."""
    from transformers import NllbTokenizer
    from transformers.tokenization_utils_base import generate_merges

    vocabulary = tokenizer.source
    assert isinstance(vocabulary, MappedPieces)
    symbols, ids = vocabulary.languages, vocabulary.ids
    if {*vocabulary.model_pieces()} - vocabulary.scores.keys() - ids.keys():  # unused
        raise UserError(
            "--to huggingface does not support a vocabulary that --keep-pieces made smaller: "
            "tokenizers there cannot split a dropped piece; use --to ctranslate2"
        )
    source, target = config.pairs.directions[0]
    used = {piece: i for piece, i in ids.items() if not piece.startswith("<unused")}
    specification = next(body for number, body in fields(vocabulary.model) if number == 3)
    charsmap: Any = next((body for number, body in fields(specification) if number == 2), None)
    exported = NllbTokenizer(
        vocab=used,
        merges=generate_merges(used, vocabulary.scores),
        extra_special_tokens=list(symbols.values()),
        mask_token=MASK if MASK in ids else UNK,  # else it would get an id
        src_lang=symbols[source if vocabulary.language_first else target],
        tgt_lang=symbols[target],
        model_max_length=config.max_source_tokens + 1,
        _spm_precompiled_charsmap=charsmap or None,
    )
    exported.save_pretrained(folder)
    for name in (M2M100_FILE, LANGUAGES_FILE):  # to read the folder again
        (folder / name).write_bytes(tokenizer.files[name])
