"""Word alignment from cross-attention, and the heads that show it best."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq.config import DecodingConfig
from seq2seq.decoding.engine import SearchEngine, batches
from seq2seq.model.cache import AttentionHeads

MIN_ANCHORS = 20
"""Fewer identical words than that do not show which heads are best."""

logger = logging.getLogger(__name__)

Links = list[tuple[int, int]]
"""Pairs of source word and target word, counted from 0."""


def words_of(ids: Sequence[int], token_bytes: Sequence[bytes]) -> list[int]:
    """Return the number of the word, from 0, that each token belongs to; a space starts a word."""
    words: list[int] = []
    for i in ids:
        last = words[-1] if words else 0
        words.append(last + bool(words and token_bytes[i].startswith(b" ")))
    return words


def word_attention(attention: Tensor, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Return the attention of each target word to each source word, (..., target, source).

    attention: (..., T, S), to source tokens. source, target: the word of each token. Summed over
    the tokens of a source word, averaged over those of a target word.
    """
    columns, rows = torch.tensor(source), torch.tensor(target)
    shape = attention.shape
    summed = attention.new_zeros(*shape[:-1], int(columns.max()) + 1)
    summed.index_add_(-1, columns, attention[..., : len(columns)])
    words = attention.new_zeros(*shape[:-2], int(rows.max()) + 1, summed.shape[-1])
    words.index_add_(-2, rows, summed)
    return words / torch.bincount(rows)[:, None]


def align(attention: Tensor, source: Sequence[int], target: Sequence[int]) -> Links:
    """Link each target word to the source word that it attends to most.

    attention: (T, S) or wider, as in `Scored`. source, target: the word of each token.
    """
    if not source or not target:
        return []
    best = word_attention(attention, source, target).argmax(dim=-1)
    return sorted((column, row) for row, column in enumerate(best.tolist()))


def choose_heads(
    engine: SearchEngine, sources: Sequence[str], targets: Sequence[str]
) -> AttentionHeads | None:
    """Choose the cross-attention heads that best align identical words; None for too few of those.

    The words are those that occur once in a source and once in its target and are more than
    punctuation: numbers and names. For each layer and each shift the heads are ordered by how
    many of these words they link; the first 1 to H of them are averaged, and the best average of
    all is chosen.
    """
    anchors_of = [_anchors(*pair) for pair in zip(sources, targets, strict=True)]
    if sum(map(len, anchors_of)) < MIN_ANCHORS:
        return None
    tokenizer = engine.tokenizer
    bytes_of = [each.token_bytes() for each in (tokenizer.source, tokenizer.target)]
    pairs = list(
        zip(tokenizer.source.encode(sources), tokenizer.target.encode(targets), strict=True)
    )
    lens = [max(map(len, pair)) + 1 for pair in pairs]
    found: list[Tensor] = []
    correct: list[int] = []
    for indices in batches(lens, DecodingConfig().batch_tokens):
        chosen = [
            (pairs[i], anchors_of[i])
            for i in indices
            if lens[i] <= engine.max_target_len and anchors_of[i]
        ]
        if not chosen:
            continue
        layers: list[Tensor] = []
        engine.score_batch([pair for pair, _ in chosen], DecodingConfig(), layers=layers)
        for row, ((source, target), anchors) in enumerate(chosen):
            weights = torch.stack([layer[row] for layer in layers]).cpu()  # (layers, H, T, S)
            ids = [words_of(*each) for each in zip((source, target), bytes_of, strict=True)]
            size = len(target)
            shifted = torch.stack([weights[:, :, shift : shift + size] for shift in (0, 1)])
            words = word_attention(shifted, *ids)  # (2, layers, H, target, source)
            for column, place in anchors:
                if place < words.shape[-2] and column < words.shape[-1]:
                    found.append(words[..., place, :])
                    correct.append(column)
    if len(found) < MIN_ANCHORS:
        return None
    return _best_heads(found, correct)


def _best_heads(found: list[Tensor], correct: list[int]) -> AttentionHeads:
    shifts, num_layers, num_heads, _ = found[0].shape

    def hits(shift: int, layer: int, heads: Sequence[int]) -> int:
        means = (words[shift, layer, list(heads)].mean(dim=0) for words in found)
        return sum(
            int(mean.argmax()) == column for mean, column in zip(means, correct, strict=True)
        )

    best, most = AttentionHeads(0, (0,)), -1
    for shift in range(shifts):
        for layer in range(num_layers):
            single = {head: hits(shift, layer, [head]) for head in range(num_heads)}
            order = sorted(single, key=lambda head: -single[head])
            for count in range(1, num_heads + 1):
                linked = hits(shift, layer, order[:count])
                if linked > most:
                    best = AttentionHeads(layer, tuple(sorted(order[:count])), shift)
                    most = linked
    logger.info(
        "alignment: layer %d, heads %s, link %d of %d identical words of the development set",
        best.layer + 1, ", ".join(str(head + 1) for head in best.heads), most, len(found),
    )  # fmt: skip
    return best


def _anchors(source: str, target: str) -> Links:
    """Return the places of words that occur once on each side, and are more than punctuation."""
    sides = source.split(), target.split()
    counts = [Counter(side) for side in sides]
    return [
        (sides[0].index(word), place)
        for place, word in enumerate(sides[1])
        if counts[0][word] == counts[1][word] == 1 and any(c.isalnum() for c in word)
    ]
