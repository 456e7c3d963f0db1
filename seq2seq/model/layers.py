"""The layers of all stacks (Vaswani et al. 2017, sections 3.1 and 3.3), and their variants."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import ModelConfig
from seq2seq.model.attention import MultiHeadAttention, Pattern
from seq2seq.model.cache import AttentionCache, Place
from seq2seq.model.dropout import NO_DROPOUT, Dropout, Dropouts


def gated_width(ffn_dim: int) -> int:
    """Return the width of a gated network with a plain one's parameters: 2/3, in multiples of 8."""
    return max(8, round(ffn_dim * 2 / 3 / 8) * 8)


class FeedForward(nn.Module):
    """From D to F, through the activation, and to D again.

    relu: max(0, x W1 + b1) W2 + b2 (equation 2); gelu: x * Phi(x) instead of the maximum (Hendrycks
    and Gimpel 2016); swiglu: (SiLU(x W + b) * (x V + c)) W2 + b2 (Shazeer 2020, equation 6, with
    biases), in which `up` holds W and then V.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        gated = config.activation == "swiglu"
        width = gated_width(config.ffn_dim) if gated else config.ffn_dim
        self.up = nn.Linear(config.dim, 2 * width if gated else width)
        self.down = nn.Linear(width, config.dim)

    def forward(self, x: Tensor, dropout: Dropout) -> Tensor:
        """Map each position by itself: (..., D) to (..., D)."""
        y = self.up(x)
        if self.activation == "swiglu":
            gate, value = y.chunk(2, dim=-1)
            y = F.silu(gate) * value
        else:
            y = F.relu(y) if self.activation == "relu" else F.gelu(y)
        return self.down(dropout.drop(y))


class Layer(nn.Module):
    """Self-attention, attention to a memory where there is one, then the feed-forward network.

    Around each stands a residual connection with dropout and layer normalisation. post:
    LayerNorm(x + Dropout(Sublayer(x))), the paper; pre: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, config: ModelConfig, *, cross: bool) -> None:
        """cross: whether there is a memory to attend to."""
        super().__init__()
        self.pre = config.norm == "pre"
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.dim)
        if cross:
            self.cross_attention = MultiHeadAttention(config.dim, config.num_heads)
            self.cross_attention_norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.dim)

    def _enter(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return what the sublayer reads, of what comes in, (..., D)."""
        return norm(x) if self.pre else x

    def _leave(self, x: Tensor, y: Tensor, norm: nn.LayerNorm, dropouts: Dropouts) -> Tensor:
        """Put what comes in, x, and what the sublayer made of it, y, together."""
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
        """Map packed tokens, (N, D), with the memory, (M, D)."""
        norm = self.self_attention_norm
        y = self.self_attention(self._enter(x, norm), None, own, dropouts.attention)
        x = self._leave(x, y, norm, dropouts)
        if memory is not None and cross is not None:
            norm = self.cross_attention_norm
            y = self.cross_attention(self._enter(x, norm), memory, cross, dropouts.attention)
            x = self._leave(x, y, norm, dropouts)
        norm = self.feed_forward_norm
        y = self.feed_forward(self._enter(x, norm), dropouts.activation)
        return self._leave(x, y, norm, dropouts)

    def step(
        self,
        x: Tensor,
        place: Place,
        cache: AttentionCache,
        cross: tuple[Tensor, Tensor] | None = None,
        cross_mask: Tensor | None = None,
    ) -> Tensor:
        """Map the newest positions of every hypothesis, (R, T, D).

        cross: the memory's keys and values, each (B, H, S, K); the hypotheses of a sentence, R/B of
        them, attend to its one copy.
        """
        norm = self.self_attention_norm
        y = self._enter(x, norm)
        y = self.self_attention.step_self(y, cache, place.mask, place.rotation)
        x = self._leave(x, y, norm, NO_DROPOUT)
        if cross is not None and cross_mask is not None:
            norm = self.cross_attention_norm
            y = self._enter(x, norm).reshape(cross_mask.shape[0], -1, x.shape[-1])
            y = self.cross_attention.step_cross(y, *cross, cross_mask).view_as(x)
            x = self._leave(x, y, norm, NO_DROPOUT)
        norm = self.feed_forward_norm
        y = self.feed_forward(self._enter(x, norm), NO_DROPOUT.activation)
        return self._leave(x, y, norm, NO_DROPOUT)
