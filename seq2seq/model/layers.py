"""Transformer layers (Vaswani et al. 2017, sections 3.1 and 3.3) and their variants."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import ModelConfig
from seq2seq.model.attention import MultiHeadAttention, Pattern
from seq2seq.model.cache import AttentionCache, NewPositions
from seq2seq.model.dropout import NO_DROPOUT, Dropout, Dropouts


def gated_width(ffn_dim: int) -> int:
    """Return 2/3 of the width, for as many parameters, rounded to a multiple of 8."""
    return max(8, round(ffn_dim * 2 / 3 / 8) * 8)


class FeedForward(nn.Module):
    """Position-wise feed-forward network: D to F, activation, F to D.

    relu: max(0, x W1 + b1) W2 + b2 (equation 2); gelu: x * Phi(x) instead of the maximum
    (Hendrycks and Gimpel 2016); swiglu: (SiLU(x W + b) * (x V + c)) W2 + b2 (Shazeer 2020, equation
    6, with biases), where `up` is the concatenation of W and V.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        gated = config.activation == "swiglu"
        width = gated_width(config.ffn_dim) if gated else config.ffn_dim
        self.up = nn.Linear(config.dim, 2 * width if gated else width)
        self.down = nn.Linear(width, config.dim)

    def forward(self, x: Tensor, dropout: Dropout) -> Tensor:
        """Map each position independently: (..., D) to (..., D)."""
        y = self.up(x)
        if self.activation == "swiglu":
            gate, value = y.chunk(2, dim=-1)
            y = F.silu(gate) * value
        else:
            y = F.relu(y) if self.activation == "relu" else F.gelu(y)
        return self.down(dropout.drop(y))


class Layer(nn.Module):
    """Self-attention, optional cross-attention and the feed-forward network.

    Each sublayer has a residual connection with dropout and layer normalisation. post:
    LayerNorm(x + Dropout(Sublayer(x))), the paper; pre: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, config: ModelConfig, *, cross: bool) -> None:
        """cross: with cross-attention."""
        super().__init__()
        self.pre = config.norm == "pre"
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.dim)
        if cross:
            self.cross_attention = MultiHeadAttention(config.dim, config.num_heads)
            self.cross_attention_norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.dim)

    def _before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the input of a sublayer, (..., D)."""
        return norm(x) if self.pre else x

    def _after(self, x: Tensor, y: Tensor, norm: nn.LayerNorm, dropouts: Dropouts) -> Tensor:
        """Add the output y of a sublayer to its input x."""
        x = dropouts.residual.add(x, y)
        return x if self.pre else norm(x)

    def forward(
        self,
        x: Tensor,
        own: Pattern,
        dropouts: Dropouts,
        memory: Tensor | None = None,
        cross: Pattern | None = None,
    ) -> Tensor:
        """Map packed tokens, (N, D); memory: packed encoder output, (M, D)."""
        norm = self.self_attention_norm
        y = self.self_attention.attend_self(self._before(x, norm), own, dropouts.attention)
        x = self._after(x, y, norm, dropouts)
        if memory is not None and cross is not None:
            norm = self.cross_attention_norm
            y = self._before(x, norm)
            y = self.cross_attention.attend_cross(y, memory, cross, dropouts.attention)
            x = self._after(x, y, norm, dropouts)
        norm = self.feed_forward_norm
        y = self.feed_forward(self._before(x, norm), dropouts.activation)
        return self._after(x, y, norm, dropouts)

    def step(
        self,
        x: Tensor,
        new: NewPositions,
        cache: AttentionCache,
        cross: tuple[Tensor, Tensor] | None = None,
        cross_mask: Tensor | None = None,
    ) -> Tensor:
        """Map the newest positions of every hypothesis, (R, T, D).

        cross: keys and values of the memory, each (B, H, S, K), one copy for the R/B hypotheses of
        a sentence.
        """
        norm = self.self_attention_norm
        y = self._before(x, norm)
        y = self.self_attention.step_self(y, cache, new.mask, new.rotation)
        x = self._after(x, y, norm, NO_DROPOUT)
        if cross is not None and cross_mask is not None:
            norm = self.cross_attention_norm
            y = self._before(x, norm).reshape(cross_mask.shape[0], -1, x.shape[-1])
            y = self.cross_attention.step_cross(y, *cross, cross_mask).view_as(x)
            x = self._after(x, y, norm, NO_DROPOUT)
        norm = self.feed_forward_norm
        y = self.feed_forward(self._before(x, norm), NO_DROPOUT.activation)
        return self._after(x, y, norm, NO_DROPOUT)
