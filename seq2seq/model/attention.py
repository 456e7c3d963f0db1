"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    """Attention of H heads of width K = D/H, from queries to the positions of a memory.

    In self-attention the memory is the sequence itself; in cross-attention the queries come from
    the decoder, the keys *and* the values from the encoder.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, H, T, K)."""
        batch, length, dim = x.shape
        return x.view(batch, length, self.num_heads, dim // self.num_heads).transpose(1, 2)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project a memory, (B, S, D), to keys and values, each (B, H, S, K)."""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return self.split_heads(keys), self.split_heads(values)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend from x, (B, T, D), to keys and values, (B, H, S, K); return (B, T, D).

        mask: boolean, broadcastable to (B, H, T, S), True where a query may attend. causal: query t
        sees the keys up to t alone.
        """
        attended = attend(self.split_heads(self.query(x)), keys, values, mask=mask, causal=causal)
        attended = attended.transpose(1, 2).flatten(2)  # (B, T, D)
        return self.output(attended)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V (equation 1) for each head: (B, H, T, K)."""
    if queries.device.type == "cpu" and queries.dtype == torch.bfloat16:
        # On a CPU the bf16 kernel's backward is about 25 times slower than fp32 at sentence length.
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(
                queries.float(), keys.float(), values.float(), attn_mask=mask, is_causal=causal
            )
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
