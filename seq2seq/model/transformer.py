"""The models: encoder-decoder Transformer, language model, classifier, and their base class."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from seq2seq.config import Config, ModelConfig
from seq2seq.data.batching import Packed
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.model.attention import ConcatenatedLinear
from seq2seq.model.cache import DecoderState
from seq2seq.model.dropout import NO_DROPOUT, Dropout, Dropouts
from seq2seq.model.layers import Layer, Stack
from seq2seq.model.positions import Positions


class Network(nn.Module):
    """Base class: embeddings, stacks of layers and an output projection.

    `forward` maps the packed inputs of a batch to hidden states, row i for label i. `output` maps
    hidden states to logits. The loss calls it in chunks, to save memory.
    """

    output: nn.Linear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def reset_parameters(self) -> None:
        """Initialise embeddings with N(0, 1/D), matrices with Xavier, and biases with 0.

        Embeddings scaled by sqrt(D) then have variance 1.
        """
        for module in self.modules():
            if isinstance(module, nn.Embedding | Positions) and hasattr(module, "weight"):
                nn.init.normal_(module.weight, std=self.config.dim**-0.5)
        parts = num_matrices(self)
        for name, parameter in self.named_parameters():
            if "embedding" in name or "positions" in name or "norm" in name:
                continue
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
                continue
            for matrix in parameter.data.chunk(parts.get(name, 1)):
                nn.init.xavier_uniform_(matrix)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Set whether training stores only the input of each layer and recomputes the rest."""
        for module in self.children():
            if isinstance(module, Stack):
                module.gradient_checkpointing = enabled

    def dropouts(self, *inputs: Packed) -> Dropouts:
        """Return the dropouts of one forward pass over these inputs; NO_DROPOUT in inference."""
        if not self.training:
            return NO_DROPOUT
        config, num_tokens = self.config, max(len(packed.ids) for packed in inputs)
        rates = config.dropout, config.attention_dropout, config.activation_dropout
        return Dropouts(*(Dropout(rate, 3 * num_tokens * config.dim) for rate in rates))

    def num_parameters(self) -> int:
        """Return the number of parameters; tied parameters count once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Transformer(Network):
    """Encoder-decoder Transformer (Vaswani et al. 2017).

    If `config.tied`, source embedding, target embedding and output projection share a weight
    (section 3.4); with `source_vocab_size`, all but the source embedding.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        source_vocab_size: int | None = None,
        start_id: int | None = None,
    ) -> None:
        """start_id: id of the start symbol, if `config.start` is zero."""
        super().__init__(config)
        separate_source = source_vocab_size is not None or not config.tied
        self.target_embedding = nn.Embedding(vocab_size, config.dim)
        self.source_embedding = (
            nn.Embedding(source_vocab_size or vocab_size, config.dim)
            if separate_source
            else self.target_embedding
        )
        self.output = nn.Linear(config.dim, vocab_size, bias=config.output_bias)
        if config.tied:
            self.output.weight = self.target_embedding.weight
        self.encoder = Stack(config, config.encoder_layers)
        self.decoder = Stack(config, config.decoder_layers, causal=True, cross=True)
        self.reset_parameters()
        if start_id is not None:
            _fix_at_zero(self.target_embedding.weight, start_id)

    def forward(self, source: Packed, target: Packed) -> Tensor:
        """Return the decoder's hidden states, (N, D), for teacher-forced target tokens.

        Each target sentence starts with the start symbol and ends before the end symbol.
        """
        dropouts = self.dropouts(source, target)
        memory = self.encoder(self.source_embedding, source, dropouts)
        return self.decoder(self.target_embedding, target, dropouts, memory, source)

    @property
    def alignment_layer(self) -> int:
        """Index of the last decoder layer but one: its attention aligns best (Garg et al. 2019)."""
        return max(0, self.config.decoder_layers - 2)

    def start(self, source: Packed) -> DecoderState:
        """Encode sources, given in CPU memory, and return the initial state of a search."""
        lens = source.lens.tolist()
        encoded = self.encoder(self.source_embedding, source.to(self.device), NO_DROPOUT)
        sentences = encoded[: sum(lens)].split(lens)
        memory = pad_sequence(sentences, batch_first=True)  # (B, S, D)
        layers = self.decoder.layers
        key_values = [layer.cross_attention.key_value(memory) for layer in layers]  # (B, S, 2D)
        return DecoderState(len(layers), self.device, source_lens=lens, cross_key_values=key_values)

    def decode(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest tokens of each hypothesis, (R, T); return hidden states, (R, T, D)."""
        return self.decoder.step(self.target_embedding, tokens, state)


class LanguageModel(Network):
    """Decoder-only language model (Liu et al. 2018, Radford et al. 2018).

    Embedding and output projection share a weight if `config.tied`.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, vocab_size, bias=config.output_bias)
        if config.tied:
            self.output.weight = self.embedding.weight
        self.decoder = Stack(config, config.decoder_layers, causal=True)
        self.reset_parameters()

    def forward(self, text: Packed) -> Tensor:
        """Return the hidden states, (N, D), that predict the next tokens."""
        return self.decoder(self.embedding, text, self.dropouts(text))

    def start(self) -> DecoderState:
        """Return an empty key/value cache."""
        return DecoderState(len(self.decoder.layers), self.device)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed the newest token of every sample, (R, 1); return logits of the next token, (R, V).

        The first step may feed any number of tokens.
        """
        return self.output(self.decoder.step(self.embedding, tokens, state)[:, -1])


class Classifier(Network):
    """Encoder-only classifier: pools a text to one vector and maps it to label logits.

    Like BERT (Devlin et al. 2019), without pre-training.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, num_labels: int) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.output = nn.Linear(config.dim, num_labels, bias=config.output_bias)
        self.encoder = Stack(config, config.encoder_layers)
        self.reset_parameters()

    def forward(self, text: Packed) -> Tensor:
        """Return one vector per text, (texts, D): its first hidden state, or the mean of all."""
        x = self.encoder(self.embedding, text, self.dropouts(text))
        if self.config.pooling == "first":
            return x[text.offsets[:-2].long()]
        lens = text.offsets.diff()  # the last length is the padding's
        texts = torch.arange(len(lens), device=x.device)
        # output_size avoids a synchronisation with the GPU.
        text_of_token = torch.repeat_interleave(texts, lens, output_size=len(x))
        acc_dtype = torch.promote_types(x.dtype, torch.float32)
        sums = torch.zeros(len(lens), x.shape[1], dtype=acc_dtype, device=x.device)
        return (sums.index_add(0, text_of_token, x.to(sums)) / lens[:, None].clamp(min=1))[:-1]


def num_matrices(model: nn.Module) -> dict[str, int]:
    """Return the number of matrices in each concatenated weight, by parameter name."""
    return {
        f"{name}.weight": module.parts
        for name, module in model.named_modules()
        if isinstance(module, ConcatenatedLinear)
    }


def _fix_at_zero(weight: Tensor, row: int) -> None:
    """Set a row of a weight to zero, and its gradient too, so that it stays zero."""

    def without_row(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[row] = 0.0
        return gradient

    with torch.no_grad():
        weight[row] = 0.0
    weight.register_hook(without_row)  # before gradients of several processes are summed


M = TypeVar("M", bound=Network)


class CastLinear(nn.Module):
    """Linear layer with weights and input cast to `dtype`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


def for_inference(model: M, precision: Precision) -> M:
    """Return a copy of a model for inference; unconverted weights share memory with the model.

    The query, key and value projections of each self-attention are fused.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    model, dtype = copy.deepcopy(model, shared).eval(), DTYPES[precision]
    for module in [*model.modules()]:
        if isinstance(module, Layer):
            attention = module.self_attention
            attention.fused_qkv = CastLinear(*attention.fused_weights(), dtype)
            del attention.query, attention.key_value
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(module, name, CastLinear(child.weight, child.bias, dtype))
    return model


def build_model(config: Config, tokenizer: Tokenizer) -> Network:
    """Return the newly initialised model of a recipe's task."""
    source_size, target_size = tokenizer.source.size, tokenizer.target.size
    if config.task == "language_model":
        return LanguageModel(config.model, target_size)
    if config.task == "classification":
        return Classifier(config.model, source_size, target_size)
    start_id = tokenizer.target.bos_id if config.model.start == "zero" else None
    return Transformer(
        config.model, target_size, None if tokenizer.shared else source_size, start_id
    )
