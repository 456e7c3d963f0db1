"""The layers of encoder and decoder (Vaswani et al. 2017, sections 3.1 and 3.3)."""

from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq.config import ModelConfig
from seq2seq.model.attention import MultiHeadAttention, Pattern
from seq2seq.model.cache import AttentionCache
from seq2seq.model.dropout import NO_DROPOUT, Dropout


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (equation 2), D to F to D."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, ffn_dim)
        self.down = nn.Linear(ffn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map each position by itself: (..., D) to (..., D)."""
        return self.down(F.relu(self.up(x)))


class Residual(nn.Module):
    """The residual connection around a sublayer, its dropout, and its layer normalisation.

    post: LayerNorm(x + Dropout(Sublayer(x))), the paper; pre: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.pre = norm == "pre"

    def enter(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return what the sublayer reads, of what comes in, (..., D)."""
        return norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor, norm: nn.LayerNorm, dropout: Dropout) -> Tensor:
        """Put what comes in, x, and what the sublayer made of it, y, together."""
        x = dropout.add(x, y)
        return x if self.pre else norm(x)


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config.dim, config.ffn_dim)
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.residual = Residual(config.norm)

    def forward(self, x: Tensor, pattern: Pattern, dropout: Dropout) -> Tensor:
        """Map packed source tokens, (N, D)."""
        norm = self.self_attention_norm
        y = self.self_attention(self.residual.enter(x, norm), None, pattern)
        x = self.residual.leave(x, y, norm, dropout)
        norm = self.feed_forward_norm
        y = self.feed_forward(self.residual.enter(x, norm))
        return self.residual.leave(x, y, norm, dropout)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the source, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.dim)
        self.cross_attention = MultiHeadAttention(config.dim, config.num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.dim)
        self.feed_forward = FeedForward(config.dim, config.ffn_dim)
        self.feed_forward_norm = nn.LayerNorm(config.dim)
        self.residual = Residual(config.norm)

    def forward(
        self, x: Tensor, memory: Tensor, own: Pattern, cross: Pattern, dropout: Dropout
    ) -> Tensor:
        """Map packed target tokens, (N, D), with the memory of the source, (M, D)."""
        norm = self.self_attention_norm
        y = self.self_attention(self.residual.enter(x, norm), None, own)
        x = self.residual.leave(x, y, norm, dropout)
        norm = self.cross_attention_norm
        y = self.cross_attention(self.residual.enter(x, norm), memory, cross)
        x = self.residual.leave(x, y, norm, dropout)
        norm = self.feed_forward_norm
        y = self.feed_forward(self.residual.enter(x, norm))
        return self.residual.leave(x, y, norm, dropout)

    def step(
        self, x: Tensor, cross: tuple[Tensor, Tensor], cross_mask: Tensor, cache: AttentionCache
    ) -> Tensor:
        """Map the newest position of every hypothesis, (R, 1, D).

        cross: the source's keys and values, each (B, H, S, K); the hypotheses of a sentence, R/B of
        them, attend to its one copy.
        """
        norm = self.self_attention_norm
        y = self.residual.enter(x, norm)
        y = self.self_attention.step(y, *cache.append(*self.self_attention.keys_values(y)))
        x = self.residual.leave(x, y, norm, NO_DROPOUT)
        norm = self.cross_attention_norm
        y = self.residual.enter(x, norm).reshape(cross_mask.shape[0], -1, x.shape[-1])
        y = self.cross_attention.step(y, *cross, cross_mask).view_as(x)
        x = self.residual.leave(x, y, norm, NO_DROPOUT)
        norm = self.feed_forward_norm
        y = self.feed_forward(self.residual.enter(x, norm))
        return self.residual.leave(x, y, norm, NO_DROPOUT)
