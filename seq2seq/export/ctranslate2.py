"""Write a translation model for CTranslate2 (OpenNMT/CTranslate2 on GitHub).

Also as a package for Argos Translate (argosopentech/argos-translate on GitHub), which runs it.
"""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn

from seq2seq.config import ModelConfig
from seq2seq.decoding.exported import PATIENCE, table_positions
from seq2seq.errors import UserError
from seq2seq.extras import require_extra
from seq2seq.model.directory import LoadedModel, save_description
from seq2seq.model.layers import Layer, Stack
from seq2seq.model.positions import sinusoids
from seq2seq.model.transformer import Transformer

LAYER_NORM_EPSILON = 1e-5
PACKAGE_VERSION = "1.0"
ARGOS_VERSION = "1.9"
"""The oldest version of Argos Translate that can use the package."""

_USAGE = """\
With seq2seq: `seq2seq translate {folder} < FILE`. With CTranslate2 alone, which takes and returns
pieces of text:

```python
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="{folder}/{source_file}")
target = sentencepiece.SentencePieceProcessor(model_file="{folder}/{target_file}")
translator = ctranslate2.Translator("{folder}")
pieces = source.encode("A sentence.", out_type=str)
[result] = translator.translate_batch(
    [pieces], beam_size={beam}, length_penalty={length_penalty}, patience={patience}
)
print(target.decode(result.hypotheses[0]))
```
"""
_ARGOS_USAGE = """\
With [Argos Translate](https://github.com/argosopentech/argos-translate), after
`pip install argostranslate`:

    python -c "from argostranslate import package; package.install_from_path('{file}')"
    argos-translate --from {source} --to {target} "A sentence."

[LibreTranslate](https://github.com/LibreTranslate/LibreTranslate) serves what is installed so.

At the first translation, Argos Translate downloads a model that splits texts into sentences. It
searches with a length penalty of its own, and writes every underscore as a space.
"""


class CTranslate2Format:
    """A folder for CTranslate2, which `translate` runs too."""

    def __init__(self, loaded: LoadedModel, quantization: str | None) -> None:
        """quantization: the data type of the weights; None for float32."""
        require_extra("ctranslate2", "--to ctranslate2")
        if not isinstance(loaded.model, Transformer):
            raise UserError(
                "--to ctranslate2 and argos are for translation models, not for "
                f"task={loaded.config.task}"
            )
        self.model, self.tokenizer, self.config = loaded.model, loaded.tokenizer, loaded.config
        self.quantization = quantization or "float32"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported model, in Markdown."""
        return _USAGE.format(
            folder=folder.name,
            beam=self.config.decoding.beam,
            length_penalty=self.config.decoding.length_penalty,
            patience=PATIENCE,
            source_file=next(iter(self.tokenizer.files)),
            target_file=list(self.tokenizer.files)[-1],
        )

    def write(self, folder: Path, card: str) -> None:
        """Write the model to a folder, with what `translate` needs besides."""
        self.write_model(folder)
        save_description(folder, self.model.num_parameters(), self.tokenizer, self.config)

    def write_model(self, folder: Path) -> None:
        """Write model.bin, config.json and the vocabularies to a folder."""
        from ctranslate2.specs import transformer_spec

        model, shape, variant = self.model, self.model.config, _variant(self.model.config)
        encoder = transformer_spec.TransformerEncoderSpec(
            shape.encoder_layers, shape.num_heads, **variant
        )
        decoder = transformer_spec.TransformerDecoderSpec(
            shape.decoder_layers,
            shape.num_heads,
            # All heads of the last layer but one, as in `default_heads`; by default one of the
            # last.
            alignment_layer=max(0, shape.decoder_layers - 2),
            alignment_heads=0,
            **variant,
        )
        [embeddings] = encoder.embeddings
        embeddings.weight = model.source_embedding.weight
        decoder.embeddings.weight = model.target_embedding.weight
        _fill_linear(decoder.projection, model.output)
        for side, stack in ((encoder, model.encoder), (decoder, model.decoder)):
            _fill_stack(side, stack, table_positions(self.config))
        spec = transformer_spec.TransformerSpec(encoder, decoder)
        source, target = self.tokenizer.source, self.tokenizer.target
        spec.register_source_vocabulary(source.pieces(range(source.size)))
        spec.register_target_vocabulary(target.pieces(range(target.size)))
        unk, bos, eos = target.pieces([target.unk_id, target.bos_id, target.eos_id])
        spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = unk, bos, eos
        spec.config.decoder_start_token = bos
        spec.config.add_source_eos = True
        spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
        spec.validate()
        spec.optimize(quantization=self.quantization)
        spec.save(str(folder))


class ArgosFormat(CTranslate2Format):
    """A folder with a .argosmodel: a zip of a model for CTranslate2 and its SentencePiece model."""

    def __init__(self, loaded: LoadedModel, quantization: str | None) -> None:
        """quantization: the data type of the weights; None for float32."""
        require_extra("babel", "--to argos")
        super().__init__(loaded, quantization)
        data = self.config.pairs
        if not (data.source and data.target):
            raise UserError("a package for Argos Translate needs data.source and data.target")
        if loaded.tokenizer.source is not loaded.tokenizer.target:
            raise UserError(
                "a package for Argos Translate has one SentencePiece model for both languages: "
                "train with tokenizer.shared=true, or export --to ctranslate2"
            )
        version = PACKAGE_VERSION.replace(".", "_")
        self.name = f"translate-{data.source}_{data.target}-{version}"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported package, in Markdown."""
        data = self.config.pairs
        return _ARGOS_USAGE.format(
            file=f"{folder.name}/{self.name}.argosmodel", source=data.source, target=data.target
        )

    def write(self, folder: Path, card: str) -> None:
        """Write the package, with its card, to a folder."""
        data = self.config.pairs
        metadata = {
            "package_version": PACKAGE_VERSION,
            "argos_version": ARGOS_VERSION,
            "from_code": data.source,
            "from_name": language_name(data.source),
            "to_code": data.target,
            "to_name": language_name(data.target),
        }
        content: dict[str, str | bytes] = {
            "metadata.json": json.dumps(metadata, indent=2, ensure_ascii=False),
            "sentencepiece.model": self.tokenizer.source.model,
            "README.md": card,
        }
        package = folder / f"{self.name}.argosmodel"
        with (
            TemporaryDirectory(dir=folder) as model,
            zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            self.write_model(Path(model))
            for file in sorted(Path(model).iterdir()):
                archive.write(file, f"{self.name}/model/{file.name}")
            for name, text in content.items():
                archive.writestr(f"{self.name}/{name}", text)


def _variant(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments of a stack's specification."""
    from ctranslate2.specs.common_spec import Activation

    activations = {"relu": Activation.RELU, "gelu": Activation.GELU}
    variant = {
        "pre_norm": config.norm == "pre",
        "activation": activations.get(config.activation, Activation.SWISH),  # also of swiglu
        "ffn_glu": config.activation == "swiglu",
    }
    if config.positions == "rotary":  # of all dimensions of a head, in halves
        variant |= {"rotary_dim": 0, "rotary_interleave": False}
    return variant


def _fill_stack(spec: Any, stack: Stack, positions: int) -> None:
    """positions: of the sinusoidal table; CTranslate2 fails beyond it."""
    config = stack.config
    if config.positions == "learned":
        spec.position_encodings.encodings = stack.positions.weight * math.sqrt(config.dim)
    elif config.positions == "sinusoidal":  # left out, CTranslate2 takes other frequencies
        spec.position_encodings.encodings = sinusoids(positions, config.dim)
    if config.norm == "pre":
        _fill_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, stack.each_layer(), strict=True):
        _fill_layer(layer_spec, layer)


def _fill_layer(spec: Any, layer: Layer) -> None:
    own = spec.self_attention
    _fill(own.linear[0], *layer.self_attention.joined_weights())
    _fill_linear(own.linear[1], layer.self_attention.output)
    _fill_norm(own.layer_norm, layer.self_attention_norm)
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        for each, linear in zip(
            spec.attention.linear, (cross.query, cross.key_value, cross.output), strict=True
        ):
            _fill_linear(each, linear)
        _fill_norm(spec.attention.layer_norm, layer.cross_attention_norm)
    up, down = layer.feed_forward.up, layer.feed_forward.down
    # Those of swiglu are the gate's and the value's.
    ups = [spec.ffn.linear_0, *([spec.ffn.linear_0_noact] if up.parts == 2 else [])]
    for each, weight, bias in zip(
        ups, up.weight.chunk(up.parts), up.bias.chunk(up.parts), strict=True
    ):
        _fill(each, weight, bias)
    _fill_linear(spec.ffn.linear_1, down)
    _fill_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _fill_linear(spec: Any, linear: nn.Linear) -> None:
    _fill(spec, linear.weight, linear.bias)


def _fill(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = weight
    if bias is not None:
        spec.bias = bias


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = norm.weight, norm.bias


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if it is unknown."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (UnknownLocaleError, ValueError):
        return code
