"""The floating-point operations of training."""

from __future__ import annotations

from seq2seq.model.network import Network


def training_flops(
    model: Network, source_tokens: int, target_tokens: int, passes: int = 1
) -> float:
    """Return the floating-point operations of `passes` passes over non-padding tokens in training.

    Products with the weights, two operations per weight and token forward and four backward
    (Kaplan et al. 2020, section 2.1), and the attention of a language model. The attention of other
    models (a few per cent for sentences), padding and recomputation are not counted.
    """
    source, target = model.weights_per_token()
    return 6.0 * passes * (source_tokens * source + target_tokens * target)
