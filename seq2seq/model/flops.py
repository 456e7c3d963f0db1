"""How much arithmetic training is."""

from __future__ import annotations

from seq2seq.model.network import Network


def training_flops(
    model: Network, source_tokens: int, target_tokens: int, passes: int = 1
) -> float:
    """Return the floating-point operations of training on so many real tokens, so many times.

    Counted are the products with the weights, two operations for each weight and token forward and
    four backward (Kaplan et al. 2020, section 2.1), and a language model's own products of
    attention; not those of the other families, a few per cent at sentence length and more in long
    texts, nor what padding or recomputing costs.
    """
    source, target = model.weights_per_token()
    return 6.0 * passes * (source_tokens * source + target_tokens * target)
