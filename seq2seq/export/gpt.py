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

from torch import Tensor

from seq2seq.data.sentencepiece_file import NORMAL, read_model_type, read_pieces
from seq2seq.data.vocabulary import Alphabet, Vocabulary
from seq2seq.errors import UserError
from seq2seq.export.huggingface import fill, save
from seq2seq.model.directory import LoadedModel
from seq2seq.model.layers import Layer
from seq2seq.model.positions import sinusoids
from seq2seq.model.transformer import LanguageModel

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


_OUTER_NAMES = {
    "gpt2": ("transformer.wte", "transformer.ln_f", "transformer.h"),
    "gpt_neox": ("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "gpt_neox.layers"),
}
"""The names there of the embedding, the last LayerNorm and the layers."""
_LAYER_NAMES = {
    "gpt2": ("attn.c_attn", "ln_1", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"),
    "gpt_neox": (
        "attention.query_key_value", "input_layernorm", "attention.dense",
        "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h",
    ),
}  # fmt: skip
"""The names in a layer of the product for queries, keys and values, the LayerNorm before it, the
output of attention, the LayerNorm of the feed-forward network, and its two products."""


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
        self.kind = "gpt_neox" if shape.positions == "rotary" else "gpt2"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported model, in Markdown."""
        context = self.config.model.context
        return _USAGE.format(folder=folder.name, context=context, length=max(1, context // 2))

    def write(self, folder: Path, card: str) -> None:
        """Write the model and its tokenizer to a folder."""
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        config = AutoConfig.for_model(self.kind, **self._settings())
        model = AutoModelForCausalLM.from_config(config)
        weights = self._weights()
        if "embed_out.weight" in model.state_dict():  # GPT-NeoX before transformers 5.13
            weights["embed_out.weight"] = weights.pop("lm_head.weight")
        fill(model, weights)
        save(model, folder)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=_tokenizer(self.vocabulary),
            model_max_length=self.config.model.context,
            clean_up_tokenization_spaces=False,
        )
        tokenizer.save_pretrained(folder)

    def _settings(self) -> dict[str, Any]:
        """Return the content of config.json."""
        shape = self.config.model
        settings = {
            "vocab_size": self.vocabulary.size,
            "max_position_embeddings": shape.context,
            "hidden_size": shape.dim,
            "num_hidden_layers": shape.decoder_layers,
            "num_attention_heads": shape.num_heads,
            "tie_word_embeddings": shape.tied,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        if self.kind == "gpt2":
            return settings | {
                "n_inner": shape.ffn_dim,
                "activation_function": shape.activation,
                "resid_pdrop": shape.dropout,
                "embd_pdrop": shape.dropout,
                "attn_pdrop": shape.attention_dropout,
            }
        return settings | {
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
        embedding_name, last_name, layers_name = _OUTER_NAMES[self.kind]
        embedding = model.embedding.weight * root
        weights = {
            "lm_head.weight": embedding if shape.tied else model.output.weight,
            f"{embedding_name}.weight": embedding,
        }
        for name, parameter in model.decoder.norm.named_parameters():
            weights[f"{last_name}.{name}"] = parameter / (root if shape.tied else 1)
        if shape.positions == "learned":
            weights["transformer.wpe.weight"] = model.decoder.positions.weight * root
        elif shape.positions == "sinusoidal":
            weights["transformer.wpe.weight"] = sinusoids(shape.context, shape.dim)
        for i, layer in enumerate(model.decoder.each_layer()):
            own = zip(_LAYER_NAMES[self.kind], self._products(layer), strict=True)
            for name, (weight, bias) in own:
                weights[f"{layers_name}.{i}.{name}.weight"] = weight
                weights[f"{layers_name}.{i}.{name}.bias"] = bias
        return weights

    def _products(self, layer: Layer) -> list[tuple[Tensor, Tensor]]:
        """Return weight and bias of each of `_LAYER_NAMES`."""
        attention, feed_forward = layer.self_attention, layer.feed_forward
        joined = attention.joined_weights()
        others = [
            (module.weight, module.bias)
            for module in (
                layer.self_attention_norm, attention.output,
                layer.feed_forward_norm, feed_forward.up, feed_forward.down,
            )
        ]  # fmt: skip
        if self.kind == "gpt2":  # whose matrices are transposed
            return [(weight.t(), bias) for weight, bias in (joined, *others)]
        by_head = (x.unflatten(0, (3, attention.num_heads, -1)).transpose(0, 1) for x in joined)
        weight, bias = (x.flatten(0, 2) for x in by_head)
        return [(weight, bias), *others]


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
    # It names printable bytes by their own character, and the others by the next ones of Unicode.
    alphabet, bytes_ = {*pre_tokenizers.ByteLevel.alphabet()}, [chr(i) for i in range(256)]
    others = iter(sorted(alphabet.difference(bytes_)))
    ids = {name if name in alphabet else next(others): i for i, name in enumerate(bytes_)}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


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
