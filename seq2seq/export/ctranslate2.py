"""Write a translation model for CTranslate2 (OpenNMT/CTranslate2 on GitHub)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.decoding.exported import PATIENCE, table_positions
from seq2seq.errors import UserError
from seq2seq.export.portable import portable_decoding, token_names
from seq2seq.extras import require_extra
from seq2seq.model.attention import MultiHeadAttention
from seq2seq.model.directory import LoadedModel, save_description
from seq2seq.model.layers import FeedForward, Layer
from seq2seq.model.positions import sinusoids
from seq2seq.model.stack import Stack
from seq2seq.model.transformer import Transformer

LAYER_NORM_EPSILON = 1e-5

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


class CTranslate2Format:
    """A folder for CTranslate2, which `translate` runs too."""

    def __init__(self, loaded: LoadedModel, quantization: str | None = None) -> None:
        """quantization: the data type of the weights; None for float32."""
        require_extra("ctranslate2", "--to ctranslate2")
        if not isinstance(loaded.model, Transformer):
            raise UserError(
                "--to ctranslate2 and argos are for translation models, not for "
                f"task={loaded.config.task}"
            )
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.config = replace(loaded.config, decoding=portable_decoding(loaded.config.decoding))
        self.quantization = quantization

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
        """Write the files that CTranslate2 reads to a folder."""
        write_ctranslate2(
            folder,
            self.model,
            self.tokenizer,
            positions=table_positions(self.config),
            quantization=self.quantization,
        )


def write_ctranslate2(
    folder: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    positions: int,
    quantization: str | None = None,
) -> None:
    """Write model.bin, config.json and the vocabularies to a folder.

    positions: of the sinusoidal table; CTranslate2 fails beyond it. quantization: a data type that
    CTranslate2 stores weights in; None for float32. Raises UserError for a vocabulary in which two
    ids have the same name.
    """
    from ctranslate2.specs import TransformerSpec

    spec = TransformerSpec(
        _encoder(model, positions),
        _decoder(model, positions),
    )
    spec.register_source_vocabulary(token_names(tokenizer.source))
    spec.register_target_vocabulary(token_names(tokenizer.target))
    vocabulary = tokenizer.target
    special = [vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id]
    unk, bos, eos = vocabulary.pieces(special)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = unk, bos, eos
    spec.config.decoder_start_token = bos
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize(quantization=quantization or "float32")
    spec.save(str(folder))


def _encoder(model: Transformer, positions: int) -> Any:
    from ctranslate2.specs import transformer_spec

    spec = transformer_spec.TransformerEncoderSpec(
        len(model.encoder.layers), model.config.num_heads, **_variant(model)
    )
    [embeddings] = spec.embeddings
    embeddings.weight = _array(model.source_embedding.weight)
    _fill_stack(spec, model.encoder, positions)
    return spec


def _decoder(model: Transformer, positions: int) -> Any:
    from ctranslate2.specs import transformer_spec

    depth = len(model.decoder.layers)
    spec = transformer_spec.TransformerDecoderSpec(
        depth,
        model.config.num_heads,
        # All heads of the last layer but one, as in `default_heads`; by default one of the last.
        alignment_layer=max(0, depth - 2),
        alignment_heads=0,
        **_variant(model),
    )
    spec.embeddings.weight = _array(model.target_embedding.weight)
    spec.projection.weight = _array(model.output.weight)
    if model.config.output_bias:
        spec.projection.bias = _array(model.output.bias)
    _fill_stack(spec, model.decoder, positions)
    return spec


def _variant(model: Transformer) -> dict[str, Any]:
    """Return the arguments of a stack's specification."""
    from ctranslate2.specs.common_spec import Activation

    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "silu": Activation.SWISH,
        "swiglu": Activation.SWISH,
    }
    config = model.config
    variant = {
        "pre_norm": config.norm == "pre",
        "activation": activations[config.activation],
        "ffn_glu": config.activation == "swiglu",
    }
    if config.positions == "rotary":  # of all dimensions of a head, in halves
        variant |= {"rotary_dim": 0, "rotary_interleave": False}
    return variant


def _fill_stack(spec: Any, stack: Stack, positions: int) -> None:
    config = stack.config
    if config.positions == "learned":
        table = stack.positions.weight * math.sqrt(config.dim)
        spec.position_encodings.encodings = _array(table)
    elif config.positions == "sinusoidal":  # left out, CTranslate2 takes other frequencies
        spec.position_encodings.encodings = _array(sinusoids(positions, config.dim))
    if config.norm == "pre":
        _fill_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, stack.each_layer(), strict=True):
        _fill_layer(layer_spec, layer)


def _fill_layer(spec: Any, layer: Layer) -> None:
    own = layer.self_attention
    _fill_linear(spec.self_attention.linear[0], own.query, own.key_value)
    _fill_linear(spec.self_attention.linear[1], own.output)
    _fill_norm(spec.self_attention.layer_norm, layer.self_attention_norm)
    if hasattr(layer, "cross_attention"):
        _fill_cross(spec.attention, layer.cross_attention)
        _fill_norm(spec.attention.layer_norm, layer.cross_attention_norm)
    _fill_feed_forward(spec.ffn, layer.feed_forward)
    _fill_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _fill_cross(spec: Any, attention: MultiHeadAttention) -> None:
    _fill_linear(spec.linear[0], attention.query)
    _fill_linear(spec.linear[1], attention.key_value)
    _fill_linear(spec.linear[2], attention.output)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward) -> None:
    up = feed_forward.up
    if feed_forward.activation == "swiglu":
        (gate, value), (gate_bias, value_bias) = up.weight.chunk(2), up.bias.chunk(2)
        spec.linear_0.weight, spec.linear_0.bias = _array(gate), _array(gate_bias)
        spec.linear_0_noact.weight, spec.linear_0_noact.bias = _array(value), _array(value_bias)
    else:
        _fill_linear(spec.linear_0, up)
    _fill_linear(spec.linear_1, feed_forward.down)


def _fill_linear(spec: Any, *linears: nn.Linear) -> None:
    """Fill in one linear layer, or the concatenation of several."""
    spec.weight = _joined([linear.weight for linear in linears])
    spec.bias = _joined([linear.bias for linear in linears])


def _joined(tensors: Sequence[Tensor]) -> NDArray[np.float32]:
    return np.concatenate([_array(tensor) for tensor in tensors])


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().cpu().numpy()
