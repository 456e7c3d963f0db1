"""CTranslate2 (OpenNMT/CTranslate2 on GitHub): conversion of models, exports, and Argos packages.

The folders `ctranslate2` and `ctranslate2_int8` in a model directory are written when needed, and
can be deleted at any time. They record the checksum of the weights and are written again when it
changes.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seq2seq.config import Config
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError, not_a_number, require_extra
from seq2seq.files import atomic_folder, exclusive, find_damage, read_sums, sha256_of
from seq2seq.formats.model_directory import CONVERTED_FOLDER, WEIGHTS_FILE, save_description
from seq2seq.text.language import language_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from seq2seq.model.layers import Layer, Stack
    from seq2seq.model.transformer import Transformer

logger = logging.getLogger(__name__)

CHECKSUM_FILE = "weights.sha256"
VERSION = 1
"""Version of the conversion: increased when its output changes."""
EXCLUDED = -1e9
"""Output bias of padding and start symbol: they are never generated."""


def has_ctranslate2() -> bool:
    """Return whether CTranslate2 can be imported; it does not exist for every platform."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def converted(folder: Path, quantization: str = "float32") -> Iterator[Path]:
    """Yield the folder of a model directory converted to CTranslate2.

    It is temporary if the model directory is not writable. Raises UserError for non-finite weights.
    quantization: float32 or int8.
    """
    folder = folder.resolve()
    name = f"{CONVERTED_FOLDER}_int8" if quantization == "int8" else CONVERTED_FOLDER
    cached, weights = folder / name, folder / WEIGHTS_FILE
    checksum = (read_sums(folder) or {}).get(WEIGHTS_FILE) or sha256_of(weights)
    fingerprint = f"{checksum}, version {VERSION}\n"
    if find_damage(cached) or (cached / CHECKSUM_FILE).read_text() != fingerprint:
        from seq2seq.formats.weights import load_model

        loaded = load_model(folder, "cpu")
        model = cast("Transformer", loaded.model)
        if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
            raise UserError(not_a_number(str(folder)))
        try:
            with exclusive(cached), atomic_folder(cached) as draft:
                write_model(model, loaded.tokenizer, loaded.config, draft, quantization)
                (draft / CHECKSUM_FILE).write_text(fingerprint)
        except (OSError, UserError) as error:
            logger.warning("%s cannot be written: converting at each start (%s)", cached, error)
            arguments = model, loaded.tokenizer, loaded.config, quantization
            with temporarily_converted(*arguments) as temporary:
                yield temporary
            return
    yield cached


@contextmanager
def temporarily_converted(
    model: Transformer, tokenizer: Tokenizer, config: Config, quantization: str = "float32"
) -> Iterator[Path]:
    """Yield a temporary folder with a model converted to CTranslate2."""
    with TemporaryDirectory() as name:
        write_model(model, tokenizer, config, Path(name), quantization)
        yield Path(name)


def write_model(
    model: Transformer,
    tokenizer: Tokenizer,
    config: Config,
    folder: Path,
    quantization: str = "float32",
    *,
    start: str | None = None,
) -> None:
    """Write model.bin, config.json and the vocabularies to a folder.

    quantization: data type of the weights. start: piece that CTranslate2 puts before every source.
    """
    from ctranslate2.specs import transformer_spec
    from ctranslate2.specs.common_spec import Activation

    shape = model.config
    activations = {"relu": Activation.RELU, "gelu": Activation.GELU}
    activations |= dict.fromkeys(("silu", "swiglu"), Activation.SWISH)
    variant = {
        "pre_norm": shape.norm == "pre",
        "activation": activations[shape.activation],
        "ffn_glu": shape.activation == "swiglu",
        "rotary_dim": 0 if shape.positions == "rotary" else None,  # all dimensions of a head
        "rotary_interleave": False,
    }
    encoder = transformer_spec.TransformerEncoderSpec(
        shape.encoder_layers, shape.num_heads, **variant
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        shape.decoder_layers,
        shape.num_heads,
        alignment_layer=model.alignment_layer,
        alignment_heads=0,  # all
        **variant,
    )
    [embeddings] = encoder.embeddings
    embeddings.weight = model.source_embedding.weight.float()
    decoder.embeddings.weight = model.target_embedding.weight.float()
    _fill(decoder.projection, model.output.weight, output_bias(model, tokenizer))
    for side, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        _fill_stack(side, stack, config.num_positions)
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    source, target = tokenizer.source, tokenizer.target
    spec.register_source_vocabulary(source.pieces(range(source.size)))
    spec.register_target_vocabulary(target.pieces(range(target.size)))
    unk, bos, eos = target.pieces([target.unk_id, target.bos_id, target.eos_id])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = unk, bos, eos
    spec.config.decoder_start_token = bos
    spec.config.add_source_eos = True
    if start:
        spec.config.bos_token, spec.config.add_source_bos = start, True
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize(quantization=quantization)
    if quantization.startswith("int8"):
        _reduce_range(spec)
    spec.save(str(folder))


def _reduce_range(spec: Any) -> None:
    """Halve the weights of a model in int8, so that they have seven bits.

    Processors without int8 dot products (VNNI) add two products of eight bits in a register of 16
    bits. With weights of eight bits, many of these sums would overflow.
    """
    variables = spec.variables()
    for name, scale in variables.items():
        if name.endswith("_scale"):
            weight = variables[name.removesuffix("_scale")].numpy()
            np.rint(weight / 2, out=weight, casting="unsafe")
            np.divide(scale.numpy(), 2, out=scale.numpy())


def output_bias(model: Transformer, tokenizer: Tokenizer) -> Tensor:
    """Return the bias of the output projection; padding and start symbol are excluded."""
    import torch

    target, output = tokenizer.target, model.output
    bias = torch.zeros(output.out_features) if output.bias is None else output.bias.detach().cpu()
    return bias.index_fill(0, torch.tensor(target.never_generated), EXCLUDED)


def _fill_stack(spec: Any, stack: Stack, positions: int) -> None:
    """positions: length of the sinusoidal table; CTranslate2 fails on longer sentences."""
    config = stack.config
    if config.positions != "rotary":  # CTranslate2's default has other frequencies
        spec.position_encodings.encodings = stack.positions.rows(positions).float()
    if config.norm == "pre":
        _fill_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_layer(layer_spec, layer)


def _fill_layer(spec: Any, layer: Layer) -> None:
    attention = spec.self_attention
    _fill(attention.linear[0], *layer.self_attention.fused_weights())
    _fill_linear(attention.linear[1], layer.self_attention.output)
    _fill_norm(attention.layer_norm, layer.self_attention_norm)
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        linears = cross.query, cross.key_value, cross.output
        for linear_spec, linear in zip(spec.attention.linear, linears, strict=True):
            _fill_linear(linear_spec, linear)
        _fill_norm(spec.attention.layer_norm, layer.cross_attention_norm)
    up = layer.feed_forward.up
    parts = zip(up.weight.chunk(up.parts), up.bias.chunk(up.parts), strict=True)
    _fill(spec.ffn.linear_0, *next(parts))
    for value in parts:  # swiglu only, after the gate
        _fill(spec.ffn.linear_0_noact, *value)
    _fill_linear(spec.ffn.linear_1, layer.feed_forward.down)
    _fill_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _fill_linear(spec: Any, linear: nn.Linear) -> None:
    _fill(spec, linear.weight, linear.bias)


def _fill(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = weight.float(), bias.float()


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = norm.weight.float(), norm.bias.float()


USAGE = """\
With seq2seq: `seq2seq translate {folder}{names} < FILE`. With CTranslate2 alone (it takes and
returns subword pieces):

```python
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="{folder}/{source}")
target = sentencepiece.SentencePieceProcessor(model_file="{folder}/{target}")
translator = ctranslate2.Translator("{folder}")
pieces = {before}source.encode("A sentence.", out_type=str)
[result] = translator.translate_batch(
    [pieces], {prefix}beam_size={config.decoding.beam}, \
length_penalty={config.decoding.length_penalty},
    patience={config.decoding.patience},
)
print(target.decode(result.hypotheses[0]{without}))
```
"""


def write_ctranslate2(
    model: Transformer,
    tokenizer: Tokenizer,
    config: Config,
    folder: Path,
    quantization: str = "float32",
) -> None:
    """Write a model directory for CTranslate2, which `seq2seq translate` reads too."""
    require_extra("ctranslate2", "--to ctranslate2")
    write_model(model, tokenizer, config, folder, quantization)
    save_description(folder, model.num_parameters(), tokenizer, config)


ARGOS_VERSION = "1.9"
"""Minimum version of Argos Translate for the package."""
ARGOS_USAGE = """\
With [Argos Translate](https://github.com/argosopentech/argos-translate), after
`pip install argostranslate`:

    python -c "from argostranslate import package; package.install_from_path('{folder}/\
translate-{direction.source}_{direction.target}-1_0.argosmodel')"
    argos-translate --from {direction.source} --to {direction.target} "A sentence."

[LibreTranslate](https://github.com/LibreTranslate/LibreTranslate) serves the installed packages.

At the first translation, Argos Translate downloads a model for sentence splitting. It uses its own
length penalty, and writes underscores as spaces.
"""


def write_argos(
    model: Transformer,
    tokenizer: Tokenizer,
    config: Config,
    folder: Path,
    quantization: str = "float32",
) -> None:
    """Write a package for Argos Translate for each direction.

    A package is a zip of a CTranslate2 model and its tokenizer. The model puts the symbol of the
    target language before every source by itself. folder: with the model card.
    """
    require_extra("ctranslate2", "--to argos")
    if not all(map(all, config.pairs.directions)):
        raise UserError("--to argos needs data.source and data.target, the language codes")
    if tokenizer.source.language_first:
        raise UserError("--to argos is not for the M2M-100 family: export --to ctranslate2")
    if tokenizer.source is not tokenizer.target:
        raise UserError(
            "--to argos needs one SentencePiece model for both languages: train with "
            "tokenizer.shared=true, or export --to ctranslate2"
        )
    for source, target in config.pairs.directions:
        metadata = {
            "package_version": "1.0",
            "argos_version": ARGOS_VERSION,
            "from_code": source,
            "from_name": language_name(source),
            "to_code": target,
            "to_name": language_name(target),
        }
        name = f"translate-{source}_{target}-1_0"
        start = tokenizer.languages.get(target)
        with (
            TemporaryDirectory(dir=folder) as draft,
            zipfile.ZipFile(folder / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            write_model(model, tokenizer, config, Path(draft), quantization, start=start)
            for file in sorted(Path(draft).iterdir()):
                archive.write(file, f"{name}/model/{file.name}")
            text = json.dumps(metadata, indent=2, ensure_ascii=False)
            archive.writestr(f"{name}/metadata.json", text)
            archive.writestr(f"{name}/sentencepiece.model", tokenizer.source.model)
            archive.write(folder / "README.md", f"{name}/README.md")
