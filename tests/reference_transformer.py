"""A plain NumPy Transformer that reads like the paper: the oracle for the fast one.

Vaswani et al., "Attention Is All You Need" (2017).  One sentence at a time, one head at a time,
one position at a time; no batches, no padding, no dropout; everything in float64.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = dict[str, Array]

LAYER_NORM_EPSILON = 1e-5


def linear(weights: Weights, name: str, x: Array) -> Array:
    """Apply the linear map called `name` to each row: x W^T + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: Array) -> Array:
    """Normalize each position over its features (section 3.1, after Ba et al. 2016)."""
    result = np.empty_like(x)
    for position, vector in enumerate(x):
        mean = vector.sum() / len(vector)
        variance = ((vector - mean) ** 2).sum() / len(vector)
        normalized = (vector - mean) / math.sqrt(variance + LAYER_NORM_EPSILON)
        result[position] = normalized * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


def softmax(scores: Array) -> Array:
    """Turn one query's scores into weights that sum to 1 (equation 1)."""
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def sinusoidal_position(position: int, dim: int, kind: str = "sinusoidal") -> Array:
    """Encode one position by sines, then cosines, of the same angles (section 3.5)."""
    encoding = np.empty(dim)
    for i in range(dim // 2):
        angle = position / 10000 ** (2 * i / dim)
        if kind == "fairseq":
            angle = (position + 2) / 10000 ** (i / (dim / 2 - 1))
        if kind == "marian":
            angle = position / 10000 ** (i / (dim / 2 - 1))
        encoding[i] = math.sin(angle)
        encoding[dim // 2 + i] = math.cos(angle)
    return encoding


def rotate(vector: Array, position: int) -> Array:
    """Rotate one head's query or key by its position (Su et al. 2021; not in the paper)."""
    dim = len(vector)
    rotated = np.empty(dim)
    for i in range(dim // 2):
        angle = position / 10000 ** (2 * i / dim)
        a, b = vector[i], vector[i + dim // 2]
        rotated[i] = a * math.cos(angle) - b * math.sin(angle)
        rotated[i + dim // 2] = b * math.cos(angle) + a * math.sin(angle)
    return rotated


def attention_weights(queries: Array, keys: Array, *, causal: bool) -> Array:
    """Compute softmax(Q K^T / sqrt(d_k)) of one head, row by row (section 3.2.1, equation 1)."""
    result = np.zeros((len(queries), len(keys)))
    for t, query in enumerate(queries):
        visible = t + 1 if causal else len(keys)  # a position sees itself and the ones before it
        scores = np.array([query @ key / math.sqrt(len(query)) for key in keys[:visible]])
        result[t, :visible] = softmax(scores)
    return result


def multi_head_attention(
    weights: Weights,
    name: str,
    x: Array,
    memory: Array,
    *,
    num_heads: int,
    causal: bool = False,
    rotary: bool = False,
) -> Array:
    """Attend from x to memory with every head, concatenate and project (section 3.2.2)."""
    dim = x.shape[1]
    head_dim = dim // num_heads
    queries = linear(weights, f"{name}.query", x)
    keys_and_values = linear(weights, f"{name}.key_value", memory)
    keys, values = keys_and_values[:, :dim], keys_and_values[:, dim:]

    heads = []
    for h in range(num_heads):
        columns = slice(h * head_dim, (h + 1) * head_dim)
        q, k, v = queries[:, columns], keys[:, columns], values[:, columns]
        if rotary:
            q = np.array([rotate(vector, position) for position, vector in enumerate(q)])
            k = np.array([rotate(vector, position) for position, vector in enumerate(k)])
        heads.append(attention_weights(q, k, causal=causal) @ v)
    return linear(weights, f"{name}.output", np.concatenate(heads, axis=1))


def feed_forward(weights: Weights, name: str, x: Array, activation: str) -> Array:
    """Compute max(0, x W_1 + b_1) W_2 + b_2 at each position (section 3.3, equation 2).

    Or, not in the paper: x Phi(x) in place of the maximum (gelu, Hendrycks and Gimpel 2016), or a
    gate that passes through x / (1 + e^-x) and multiplies a second map (swiglu, Shazeer 2020).
    """
    hidden = linear(weights, f"{name}.up", x)
    if activation == "relu":
        hidden = np.maximum(0.0, hidden)
    elif activation == "silu":
        hidden = hidden / (1 + np.exp(-hidden))
    elif activation == "gelu":
        phi = np.array([[0.5 * (1 + math.erf(v / math.sqrt(2))) for v in row] for row in hidden])
        hidden = hidden * phi
    else:
        width = hidden.shape[1] // 2
        gate, value = hidden[:, :width], hidden[:, width:]
        hidden = gate / (1 + np.exp(-gate)) * value
    return linear(weights, f"{name}.down", hidden)


def embed(weights: Weights, side: str, table: str, tokens: list[int], positions: str) -> Array:
    """Look up the tokens, scale by sqrt(d_model), add the positions (sections 3.4 and 3.5)."""
    dim = weights[table].shape[1]
    rows = []
    for position, token in enumerate(tokens):
        vector = weights[table][token] * math.sqrt(dim)
        if positions in ("sinusoidal", "fairseq", "marian"):
            vector = vector + sinusoidal_position(position, dim, positions)
        elif positions == "learned":
            vector = vector + weights[f"{side}.positions.weight"][position] * math.sqrt(dim)
        rows.append(vector)
    return np.array(rows)


def depth(weights: Weights, side: str) -> int:
    """Count the layers of the encoder or decoder stack (N in section 3.1)."""
    layers = 0
    while f"{side}.layers.{layers}.self_attention.query.weight" in weights:
        layers += 1
    return layers


@dataclass(frozen=True)
class Shape:
    """The part of the configuration that the weights do not determine."""

    num_heads: int
    norm: str
    positions: str
    activation: str


def run_stack(
    weights: Weights,
    side: str,
    table: str,
    tokens: list[int],
    shape: Shape,
    memory: Array | None = None,
) -> Array:
    """Run the encoder, or the decoder, over the encoder's output `memory` if there is one.

    Section 3.1. A decoder without an encoder has no attention across (Liu et al. 2018).
    """
    causal, rotary, norm = side == "decoder", shape.positions == "rotary", shape.norm
    sublayers = ["self_attention", "feed_forward"]
    if memory is not None:
        sublayers = ["self_attention", "cross_attention", "feed_forward"]
    x = embed(weights, side, table, tokens, shape.positions)
    for i in range(depth(weights, side)):
        for sublayer in sublayers:
            name = f"{side}.layers.{i}.{sublayer}"
            inputs = layer_norm(weights, f"{name}_norm", x) if norm == "pre" else x
            if sublayer == "self_attention":
                result = multi_head_attention(
                    weights,
                    name,
                    inputs,
                    inputs,
                    num_heads=shape.num_heads,
                    causal=causal,
                    rotary=rotary,
                )
            elif sublayer == "cross_attention":
                assert memory is not None
                result = multi_head_attention(
                    weights, name, inputs, memory, num_heads=shape.num_heads
                )
            else:
                result = feed_forward(weights, name, inputs, shape.activation)
            x = x + result if norm == "pre" else layer_norm(weights, f"{name}_norm", x + result)
    return layer_norm(weights, f"{side}.norm", x) if norm == "pre" else x


def project(weights: Weights, hidden: Array) -> Array:
    """Map hidden states to logits, with a bias if there is one."""
    return hidden @ weights["output.weight"].T + weights.get("output.bias", 0.0)


def translation(weights: Weights, source: list[int], target: list[int], shape: Shape) -> Array:
    """Return the logits (len(target), V_t) of the whole model of figure 1, before its softmax."""
    memory = run_stack(weights, "encoder", "source_embedding.weight", source, shape)
    hidden = run_stack(weights, "decoder", "target_embedding.weight", target, shape, memory)
    return project(weights, hidden)


def language_model(weights: Weights, text: list[int], shape: Shape) -> Array:
    """Return the logits (len(text), V) of each token's successor: the decoder alone."""
    hidden = run_stack(weights, "decoder", "embedding.weight", text, shape)
    return project(weights, hidden)


def classifier(weights: Weights, text: list[int], shape: Shape, *, pooling: str) -> Array:
    """Return the scores of each label: the encoder alone, and the mean or the first vector."""
    hidden = run_stack(weights, "encoder", "embedding.weight", text, shape)
    vector = hidden[0] if pooling == "first" else hidden.sum(axis=0) / len(text)
    return project(weights, vector)
