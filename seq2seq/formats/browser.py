"""Export for web browsers: models for Marian, which Bergamot runs in WebAssembly.

Bergamot (browsermt/bergamot-translator on GitHub) is a build of Marian for browsers. Marian defines
the file format in `io/binary.cpp`, and the names of the weights in `models/transformer.h`.
"""

from __future__ import annotations

import logging
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from seq2seq.config import Config, Direction
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.formats.ctranslate2 import EXCLUDED, output_bias
from seq2seq.page import page
from seq2seq.text.language import language_name

if TYPE_CHECKING:
    from torch import Tensor

    from seq2seq.model.layers import LayerNorm, Stack
    from seq2seq.model.transformer import Transformer

MODEL_FILE, VOCABULARY_FILE = "model.bin", "vocabulary.spm"
ROWS, COLUMNS = 8, 16
"""Divisors of the numbers of rows and columns of a quantised matrix."""
FLOAT32, INT8, QUANTIZED = 0x404, 0x101, 0x4101
"""Marian's codes of types: floats, bytes, and an int8 matrix followed by its factor."""
ALIGNMENT = 256

USAGE = """\
The web page `index.html` in the folder above translates with this model. Any web server can serve
that folder:

    python -m http.server --directory ..

Then open http://localhost:8000.
"""
VERSION = "0.4.9"
"""Version of Bergamot."""
NPM_SECONDS = 120
"""Limit of npm's time."""

logger = logging.getLogger(__name__)


class Item(NamedTuple):
    """An entry of a model file."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: bytes


def write_browser(
    model: Transformer,
    tokenizer: Tokenizer,
    config: Config,
    folder: Path,
    quantization: str = "int8",
) -> None:
    """Write a model and its vocabulary for Bergamot. quantization: int8 or float32."""
    _require_supported(config, tokenizer)
    if quantization not in ("int8", "float32"):
        raise UserError(
            f"--to browser supports --quantization int8 and float32, not {quantization}"
        )
    items = list(_items(model, tokenizer, quantized=quantization == "int8"))
    (folder / MODEL_FILE).write_bytes(_packed(items))
    (folder / VOCABULARY_FILE).write_bytes(tokenizer.source.model)


def write_page(folder: Path, models: Sequence[Direction], quantization: str) -> None:
    """Write index.html for the models in the folders SOURCE-TARGET, and Bergamot from npm.

    Without npm or network, a warning and the page name the command that fetches Bergamot.
    """
    command = ["npm", "pack", f"@browsermt/bergamot-translator@{VERSION}"]
    archive = f"browsermt-bergamot-translator-{VERSION}.tgz"
    install = f"{' '.join(command)} && tar xzf {archive}"
    listed = [
        {
            "from": source,
            "to": target,
            "fromName": language_name(source),
            "toName": language_name(target),
            "precision": "int8shiftAll" if quantization == "int8" else "float32",
        }
        for source, target in models
    ]
    html = page("browser", models=listed, install=install)
    (folder / "index.html").write_text(html, encoding="utf-8")
    logger.info("fetching Bergamot from npm")
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=NPM_SECONDS)
        shutil.unpack_archive(folder / archive, folder)
        (folder / archive).unlink()
    except (OSError, subprocess.SubprocessError, shutil.ReadError) as error:
        message = getattr(error, "stderr", None) or str(error).encode()
        reason = message.decode(errors="replace").strip().splitlines()[0]
        logger.warning(
            "the page does not work yet: npm did not fetch Bergamot (%s); with Node.js, run `%s` "
            "in the folder",
            reason,
            install,
        )


def _require_supported(config: Config, tokenizer: Tokenizer) -> None:
    """Raise UserError with the recipe key if Marian does not support the model."""
    model = config.model
    unsupported = {
        f"model.start={model.start}": model.start != "zero",
        f"model.norm={model.norm}": model.norm != "post",
        f"model.positions={model.positions}": model.positions != "marian",
        f"model.activation={model.activation}": model.activation not in ("relu", "silu"),
        "model.tied=false": not model.tied,
        "tokenizer.shared=false": not tokenizer.shared,
        "a model of several target languages": bool(tokenizer.languages),
    }
    for key, width in (("dim", model.dim), ("ffn_dim", model.ffn_dim)):
        unsupported[f"model.{key}={width}, not a multiple of {COLUMNS}"] = width % COLUMNS != 0
    if reasons := [reason for reason, applies in unsupported.items() if applies]:
        raise UserError(
            f"--to browser does not support {', '.join(reasons)}: train with the keys of "
            "recipes/libreoffice/browser.yaml"
        )


def _items(model: Transformer, tokenizer: Tokenizer, *, quantized: bool) -> Iterator[Item]:
    """Yield the weights by their names in Marian, and the settings of the model."""
    from torch.nn.functional import pad

    table = model.target_embedding.weight
    # Rows of the quantised table come in blocks.
    unused = -len(table) % ROWS
    yield _matrix("Wemb", pad(table, (0, 0, 0, unused)), quantized=quantized, transposed=False)
    bias = pad(output_bias(model, tokenizer), (0, unused), value=EXCLUDED)
    yield _floats("decoder_ff_logit_out_b", bias[None])
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        yield from _stack(side, stack, quantized=quantized)
    shape = model.config
    settings = {
        "version": "v1.9.56 seq2seq",
        "type": "transformer",
        "dim-vocabs": [len(bias)] * 2,
        "dim-emb": shape.dim,
        "transformer-dim-ffn": shape.ffn_dim,
        "transformer-decoder-dim-ffn": shape.ffn_dim,
        "transformer-heads": shape.num_heads,
        "enc-depth": shape.encoder_layers,
        "dec-depth": shape.decoder_layers,
        "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 2,
        "transformer-ffn-activation": "swish" if shape.activation == "silu" else shape.activation,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "self-attention",
        "tied-embeddings-all": True,
    }
    text = yaml.safe_dump(settings, sort_keys=False).encode() + b"\0"
    yield Item("special:model.yml", INT8, (len(text),), text)


def _stack(side: str, stack: Stack, *, quantized: bool) -> Iterator[Item]:
    for number, layer in enumerate(stack.layers, 1):
        for ours, theirs in (("self_attention", "self"), ("cross_attention", "context")):
            if not hasattr(layer, ours):
                continue
            attention, name = getattr(layer, ours), f"{side}_l{number}_{theirs}"
            key_value = attention.key_value
            weights = [attention.query.weight, *key_value.weight.chunk(2), attention.output.weight]
            biases = [attention.query.bias, *key_value.bias.chunk(2), attention.output.bias]
            for letter, weight, bias in zip("qkvo", weights, biases, strict=True):
                yield _matrix(f"{name}_W{letter}", weight, quantized=quantized)
                yield _floats(f"{name}_b{letter}", bias[None])
            yield from _norm(f"{name}_Wo", getattr(layer, f"{ours}_norm"))
        name = f"{side}_l{number}_ffn"
        for index, linear in enumerate((layer.feed_forward.up, layer.feed_forward.down), 1):
            yield _matrix(f"{name}_W{index}", linear.weight, quantized=quantized)
            yield _floats(f"{name}_b{index}", linear.bias[None])
        yield from _norm(f"{name}_ffn", layer.feed_forward_norm)


def _norm(name: str, norm: LayerNorm) -> Iterator[Item]:
    yield _floats(f"{name}_ln_scale", norm.weight[None])
    yield _floats(f"{name}_ln_bias", norm.bias[None])


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().cpu().float().numpy()


def _floats(name: str, tensor: Tensor) -> Item:
    array = _array(tensor)
    return Item(name, FLOAT32, array.shape, array.tobytes())


def _matrix(name: str, weight: Tensor, *, quantized: bool, transposed: bool = True) -> Item:
    """Return the item of a weight, (out, in).

    transposed: the stored shape is (in, out). In int8, the order in memory is (out, in) anyway.
    """
    array = _array(weight)
    shape = array.shape[::-1] if transposed else array.shape
    if not quantized:
        return Item(name, FLOAT32, shape, (array.T if transposed else array).tobytes())
    factor = np.float32(127 / np.abs(array).max())
    data = np.rint(array * factor).astype(np.int8).tobytes() + factor.tobytes()
    return Item(name, QUANTIZED, shape, data)


def _packed(items: list[Item]) -> bytes:
    """Return the content of Marian's binary file, version 1, little-endian."""
    names = [item.name.encode() + b"\0" for item in items]
    data = [item.data + bytes(-len(item.data) % ALIGNMENT) for item in items]
    parts = [struct.pack("<QQ", 1, len(items))]
    for item, name, content in zip(items, names, data, strict=True):
        parts.append(struct.pack("<QQQQ", len(name), item.kind, len(item.shape), len(content)))
    parts += names
    parts += (struct.pack(f"<{len(item.shape)}i", *item.shape) for item in items)
    padding = -(sum(map(len, parts)) + 8) % ALIGNMENT
    return b"".join([*parts, struct.pack("<Q", padding), bytes(padding), *data])
