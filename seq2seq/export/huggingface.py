"""Export to Hugging Face transformers, as a Marian or Pegasus model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.config import Config
from seq2seq.data.marian import IDS_FILES, MARIAN_FILES, marian_files
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.extras import require_extra
from seq2seq.model.directory import LoadedModel
from seq2seq.model.marian import BIAS, DROPOUTS, EMBEDDINGS, SHAPE, marian_names
from seq2seq.model.saved import max_source_tokens, num_positions
from seq2seq.model.transformer import Transformer

_USAGE = """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")
ids = model.generate(**tokenizer(["A sentence."], return_tensors="pt", padding=True))
print(tokenizer.batch_decode(ids, skip_special_tokens=True))
```

`Seq2SeqTrainer` fine-tunes the model, with examples from `tokenizer(source, text_target=target)`
and `DataCollatorForSeq2Seq`.
"""


class HuggingFaceFormat:
    """Model directory for `AutoModelForSeq2SeqLM` and `AutoTokenizer`, without custom code."""

    def __init__(self, loaded: LoadedModel, quantization: str | None) -> None:
        """quantization: must be None."""
        assert isinstance(loaded.model, Transformer)
        if quantization:
            raise UserError("--quantization is for ctranslate2 and argos")
        _require_representable(loaded.config, loaded.tokenizer)
        require_extra("transformers", "--to huggingface")
        self.model, self.tokenizer, self.config = loaded.model, loaded.tokenizer, loaded.config

    def usage(self, folder: Path) -> str:
        """Return how to use the exported model, in Markdown."""
        return _USAGE.format(folder=folder.name)

    def write(self, folder: Path, card: str) -> None:
        """Write the model and its tokenizer to a folder."""
        from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig
        from transformers.utils.logging import disable_progress_bar

        kind = "pegasus" if self.config.model.norm == "pre" else "marian"
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **self._settings()))
        unknown = model.load_state_dict(self._weights(), strict=False).unexpected_keys
        assert not unknown, unknown
        model.generation_config = GenerationConfig(**self._search())
        disable_progress_bar()
        model.save_pretrained(folder)
        self._write_tokenizer(folder)

    def _settings(self) -> dict[str, Any]:
        """Return the content of config.json."""
        model_config = self.config.model
        return {
            **{theirs: getattr(model_config, ours) for theirs, ours in SHAPE.items()},
            **{key: getattr(model_config, key) for key in DROPOUTS},
            "vocab_size": self.tokenizer.source.size,
            "decoder_vocab_size": self.tokenizer.target.size,
            "activation_function": model_config.activation,
            "max_position_embeddings": num_positions(self.config),
            "scale_embedding": True,
            "normalize_before": model_config.norm == "pre",
            "add_final_layer_norm": model_config.norm == "pre",
            "normalize_embedding": False,
            "static_position_embeddings": model_config.positions == "sinusoidal",
            "share_encoder_decoder_embeddings": model_config.tied and self.tokenizer.shared,
            "tie_word_embeddings": model_config.tied,
            **self._symbols(),
        }

    def _symbols(self) -> dict[str, int]:
        target = self.tokenizer.target
        return {
            "pad_token_id": target.pad_id,
            "bos_token_id": target.bos_id,
            "eos_token_id": target.eos_id,
            "decoder_start_token_id": target.bos_id,
            "forced_eos_token_id": target.eos_id,  # the default is 0
        }

    def _search(self) -> dict[str, Any]:
        """Return the content of generation_config.json."""
        decoding, target = self.config.decoding, self.tokenizer.target
        longest = max_source_tokens(self.config)
        length = math.floor(decoding.max_factor * longest) + decoding.max_extra + 1
        return {
            "num_beams": decoding.beam,
            "length_penalty": decoding.length_penalty,
            "min_length": decoding.min_length,
            "max_length": min(length + 1, num_positions(self.config)),  # with the start symbol
            "no_repeat_ngram_size": decoding.no_repeat_ngram,
            "bad_words_ids": [[i] for i in sorted({target.pad_id, target.bos_id, target.unk_id})],
            **self._symbols(),
        }

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights by their names in transformers, tied weights under all names."""
        model, model_config = self.model, self.config.model
        parameters = dict(model.named_parameters())
        weights = {
            BIAS: parameters.pop("output.bias", torch.zeros(self.tokenizer.target.size))[None],
            "model.encoder.embed_tokens.weight": model.source_embedding.weight,
            "model.decoder.embed_tokens.weight": model.target_embedding.weight,
            "lm_head.weight": model.output.weight,
        }
        if model_config.norm == "pre" or (model_config.tied and self.tokenizer.shared):
            weights["model.shared.weight"] = model.source_embedding.weight
        for name, parameter in parameters.items():
            if name in EMBEDDINGS:
                continue
            scale = math.sqrt(model_config.dim) if name.endswith("positions.weight") else 1.0
            theirs = marian_names(name)
            weights |= zip(theirs, (parameter * scale).chunk(len(theirs)), strict=True)
        return weights

    def _write_tokenizer(self, folder: Path) -> None:
        from transformers import MarianTokenizer

        separate = not self.tokenizer.shared
        for name, content in marian_files(self.tokenizer.translation_vocabularies).items():
            (folder / name).write_bytes(content)
        target = self.tokenizer.target
        special = [target.unk_id, target.eos_id, target.pad_id, target.bos_id]
        unk, eos, pad, bos = target.pieces(special)
        source_file, target_file, *vocabularies = (
            str(folder / name) for name in (*MARIAN_FILES, *IDS_FILES)
        )
        tokenizer = MarianTokenizer(
            source_spm=source_file,
            target_spm=target_file,
            vocab=vocabularies[0],
            target_vocab_file=vocabularies[1] if separate else None,
            source_lang=self.config.pairs.source,
            target_lang=self.config.pairs.target,
            unk_token=unk,
            eos_token=eos,
            pad_token=pad,
            additional_special_tokens=[bos],
            model_max_length=max_source_tokens(self.config) + 1,
            separate_vocabs=separate,
        )
        tokenizer.save_pretrained(folder)


def _require_representable(config: Config, tokenizer: Tokenizer) -> None:
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
