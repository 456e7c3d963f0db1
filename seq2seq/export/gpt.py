"""Write a language model for Hugging Face transformers, as a GPT-2 or GPT-NeoX model.

Both are pre-norm; GPT-2 adds positions to the embeddings, and GPT-NeoX rotates queries and keys.
They do not scale the embeddings by sqrt(D). So the scaled ones are written, and where they are
tied to the output projection, the last LayerNorm is divided by sqrt(D), which gives the same
logits.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.data.sentencepiece_file import NORMAL, read_model_type, read_pieces
from seq2seq.data.vocabulary import Alphabet, Vocabulary
from seq2seq.errors import UserError
from seq2seq.export.huggingface import fill, save
from seq2seq.model.directory import LoadedModel
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.layers import Layer
from seq2seq.model.positions import sinusoids

_USAGE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForCausalLM.from_pretrained("{folder}")
ids = tokenizer(["Once upon"], return_tensors="pt").input_ids
ids = model.generate(ids, do_sample=True, top_k=0, max_new_tokens={length})
print(tokenizer.decode(ids[0]))
```

The context is {context} tokens: a longer text must be cut.
"""


class GPTFormat:
    """A folder that `AutoModelForCausalLM` and `AutoTokenizer` load, without code of ours."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert isinstance(loaded.model, LanguageModel)
        self.model, self.config = loaded.model, loaded.config
        self.vocabulary = loaded.tokenizer.target
        shape = self.config.model
        refused = {
            "model.norm=post": shape.norm == "post",
            "model.activation=swiglu": shape.activation == "swiglu",
            "model.output_bias=true": shape.output_bias,
        }
        for key, given in refused.items():
            if given:
                raise UserError(
                    f"{key} has no equivalent in GPT-2 and GPT-NeoX: train without it "
                    "(docs/variants.md compares the variants)"
                )
        self.rotary = shape.positions == "rotary"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported model, in Markdown."""
        context = self.config.model.context
        return _USAGE.format(folder=folder.name, context=context, length=max(1, context // 2))

    def write(self, folder: Path, card: str) -> None:
        """Write the model and its tokenizer to a folder."""
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        settings = self._gpt_neox() if self.rotary else self._gpt2()
        config = AutoConfig.for_model(
            "gpt_neox" if self.rotary else "gpt2",
            vocab_size=self.vocabulary.size,
            tie_word_embeddings=self.config.model.tied,
            bos_token_id=None,
            eos_token_id=None,
            **settings,
        )
        model = AutoModelForCausalLM.from_config(config)
        fill(model, self._weights())
        save(model, folder)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=_tokenizer(self.vocabulary),
            model_max_length=self.config.model.context,
            clean_up_tokenization_spaces=False,
        )
        tokenizer.save_pretrained(folder)

    def _gpt2(self) -> dict[str, Any]:
        shape = self.config.model
        return {
            "n_positions": shape.context,
            "n_embd": shape.dim,
            "n_layer": shape.decoder_layers,
            "n_head": shape.num_heads,
            "n_inner": shape.ffn_dim,
            "activation_function": shape.activation,
            "resid_pdrop": shape.dropout,
            "embd_pdrop": shape.dropout,
            "attn_pdrop": shape.attention_dropout,
        }

    def _gpt_neox(self) -> dict[str, Any]:
        shape = self.config.model
        return {
            "max_position_embeddings": shape.context,
            "hidden_size": shape.dim,
            "num_hidden_layers": shape.decoder_layers,
            "num_attention_heads": shape.num_heads,
            "intermediate_size": shape.ffn_dim,
            "hidden_act": shape.activation,
            "hidden_dropout": shape.dropout,
            "attention_dropout": shape.attention_dropout,
            "use_parallel_residual": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        }

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights by their names there."""
        model, shape = self.model, self.config.model
        root = math.sqrt(shape.dim)
        last = {name: p / (root if shape.tied else 1) for name, p in _norm(model.decoder.norm)}
        embedding = model.embedding.weight * root
        weights = {"lm_head.weight": embedding if shape.tied else model.output.weight}
        layers = enumerate(model.decoder.each_layer())
        if self.rotary:
            weights["gpt_neox.embed_in.weight"] = embedding
            weights |= {f"gpt_neox.final_layer_norm.{name}": p for name, p in last.items()}
            for i, layer in layers:
                own = _gpt_neox_layer(layer, shape.num_heads)
                weights |= {f"gpt_neox.layers.{i}.{name}": p for name, p in own.items()}
            return weights
        table = (
            model.decoder.positions.weight * root
            if shape.positions == "learned"
            else sinusoids(shape.context, shape.dim)
        )
        weights |= {"transformer.wte.weight": embedding, "transformer.wpe.weight": table}
        weights |= {f"transformer.ln_f.{name}": p for name, p in last.items()}
        for i, layer in layers:
            own = _gpt2_layer(layer)
            weights |= {f"transformer.h.{i}.{name}": p for name, p in own.items()}
        return weights


def _norm(norm: torch.nn.Module) -> list[tuple[str, Tensor]]:
    return list(norm.named_parameters())


def _joined(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return weight and bias of queries, keys and values, (3D, D) and (3D,)."""
    query, key_value = layer.self_attention.query, layer.self_attention.key_value
    return (
        torch.cat([query.weight, key_value.weight]),
        torch.cat([query.bias, key_value.bias]),
    )


def _gpt2_layer(layer: Layer) -> dict[str, Tensor]:
    """Return the weights of a layer by GPT-2's names; its matrices are transposed."""
    weight, bias = _joined(layer)
    output, up, down = layer.self_attention.output, layer.feed_forward.up, layer.feed_forward.down
    weights = {"attn.c_attn.weight": weight.t(), "attn.c_attn.bias": bias}
    for name, linear in (("attn.c_proj", output), ("mlp.c_fc", up), ("mlp.c_proj", down)):
        weights |= {f"{name}.weight": linear.weight.t(), f"{name}.bias": linear.bias}
    weights |= {f"ln_1.{name}": p for name, p in _norm(layer.self_attention_norm)}
    return weights | {f"ln_2.{name}": p for name, p in _norm(layer.feed_forward_norm)}


def _gpt_neox_layer(layer: Layer, num_heads: int) -> dict[str, Tensor]:
    """Return the weights of a layer by GPT-NeoX's names; queries, keys and values go by head."""
    weight, bias = _joined(layer)
    by_head = weight.unflatten(0, (3, num_heads, -1)).transpose(0, 1).flatten(0, 2)
    bias_by_head = bias.unflatten(0, (3, num_heads, -1)).transpose(0, 1).flatten()
    output, up, down = layer.self_attention.output, layer.feed_forward.up, layer.feed_forward.down
    weights = {
        "attention.query_key_value.weight": by_head,
        "attention.query_key_value.bias": bias_by_head,
    }
    for name, linear in (
        ("attention.dense", output),
        ("mlp.dense_h_to_4h", up),
        ("mlp.dense_4h_to_h", down),
    ):
        weights |= {f"{name}.weight": linear.weight, f"{name}.bias": linear.bias}
    weights |= {f"input_layernorm.{name}": p for name, p in _norm(layer.self_attention_norm)}
    after = _norm(layer.feed_forward_norm)
    return weights | {f"post_attention_layernorm.{name}": p for name, p in after}


def _tokenizer(vocabulary: Vocabulary) -> Any:
    """Return the same tokenizer, of the package tokenizers."""
    if not isinstance(vocabulary, Alphabet):
        return _bpe(vocabulary)
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if vocabulary.characters is not None:
        ids = {character: i for i, character in enumerate(vocabulary.characters)}
        # An unknown character is an error here, and the first character there.
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token=vocabulary.characters[0]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return tokenizer
    names = _byte_names()
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_names() -> list[str]:
    """Return the character by which the package tokenizers names each byte: GPT-2's way.

    Printable bytes are their own character of Latin-1, and the others follow from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    names, others = [], 0
    for byte in range(256):
        names.append(chr(byte if byte in printable else 0x100 + others))
        others += byte not in printable
    return names


def _bpe(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    if (kind := read_model_type(vocabulary.model)) != "bpe":
        raise UserError(f"a SentencePiece model of type {kind} has no equivalent: only BPE has")
    pieces = read_pieces(vocabulary.model)
    names = vocabulary.pieces(range(vocabulary.size))
    ids = {name: i for i, name in enumerate(names)}
    known = {piece.text: piece.score for piece in pieces if piece.type == NORMAL}
    merges = [
        (score, (text[:cut], text[cut:]))
        for text, score in known.items()
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
    merges.sort(key=lambda merge: -merge[0])
    tokenizer = Tokenizer(
        models.BPE(
            ids,
            [pair for _, pair in merges],
            unk_token=names[vocabulary.unk_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
