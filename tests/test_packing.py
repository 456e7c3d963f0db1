"""Packed sentences: layout, and independence of the sentences of a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import VOCABULARY
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from seq2seq.data.batching import TOKENS_ROUND, Batch, Packed, collate, pack_grid
from seq2seq.data.store import Ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss

MakeModel = Callable[..., Transformer]
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY)
LENS = [(5, 9), (64, 64), (1, 30), (70, 3), (2, 71), (31, 33), (40, 12), (12, 40), (1, 1), (20, 25)]
"""Lengths of sources and targets without end symbols."""


def rows(lens: list[int], seed: int) -> list[Ids]:
    """Draw a sentence of each length from a vocabulary of 13."""
    random = np.random.default_rng(seed)
    return [random.integers(4, 13, n).astype(np.int32) for n in lens]


SOURCES, TARGETS = rows([s for s, _ in LENS], 1), rows([t for _, t in LENS], 2)


def check_side(side: Packed, expected: list[list[int]]) -> None:
    """Check one side against the description of `Packed`."""
    size, real = len(side.ids), sum(map(len, expected))
    assert size % TOKENS_ROUND == 0 and real < size <= real + TOKENS_ROUND
    assert side.lens.tolist() == [*map(len, expected)] and side.longest == max(side.lens)
    # Each token once, sentence after sentence, with its place in its sentence; then padding.
    assert side.ids[:real].tolist() == [token for row in expected for token in row]
    assert side.positions[:real].tolist() == [i for row in expected for i in range(len(row))]
    assert (side.ids[real:] == 0).all() and (side.positions[real:] == 0).all()
    lens = [*map(len, expected), size - real]
    assert side.offsets.tolist() == [sum(lens[:i]) for i in range(len(lens) + 1)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=40))
@example([(63, 63)] * 4)  # a multiple of 64 tokens
def test_every_token_has_one_place(lens: list[tuple[int, int]]) -> None:
    numbers = np.arange(sum(s + t for s, t in lens), dtype=np.int32) + 10  # all tokens different
    ends = np.cumsum(lens)
    pieces = np.split(numbers, ends[:-1])
    sources, targets = pieces[0::2], pieces[1::2]
    batch = collate(sources, targets, TOKENIZER)
    check_side(batch.inputs[0], [[*row, VOCABULARY.eos_id] for row in sources])
    check_side(batch.inputs[1], [[VOCABULARY.bos_id, *row] for row in targets])
    labels = [token for row in targets for token in (*row, VOCABULARY.eos_id)]
    assert batch.num_labels == len(labels)
    assert batch.labels[: len(labels)].tolist() == labels
    assert (batch.labels[len(labels) :] == 0).all()


def test_a_grid_has_no_padding() -> None:
    side = pack_grid(np.arange(12).reshape(3, 4))
    assert side.ids.tolist() == list(range(12)) and side.positions.tolist() == [0, 1, 2, 3] * 3
    assert side.offsets.tolist() == [0, 4, 8, 12, 12] and (len(side), side.longest) == (3, 4)


def packed() -> Batch:
    return collate(SOURCES, TARGETS, TOKENIZER)


def gradients(model: Transformer, batch: Batch) -> list[Tensor]:
    loss, _ = ModelLoss(model, 0.1)(batch)
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_equal_the_sum_over_pairs(make_model: MakeModel, norm: str) -> None:
    model = make_model(norm=norm).double()
    together = gradients(model, packed())
    alone = [
        gradients(model, collate([source], [target], TOKENIZER))
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    for whole, *parts in zip(together, *alone, strict=True):
        total = torch.stack(parts).sum(0)
        assert (whole - total).abs().max() <= 1e-9 * total.abs().max()


def test_padding_has_no_gradient(make_model: MakeModel) -> None:
    """Neither the padding's embeddings nor other parameters get a gradient from it."""
    model = Transformer(make_model().config, 13, 15).double()
    batch = packed()
    before = gradients(model, batch)
    names = [name for name, _ in model.named_parameters()]
    batch.inputs[0].ids[batch.inputs[0].offsets[-2] :] = 14
    batch.inputs[1].ids[batch.inputs[1].offsets[-2] :] = 11
    after = gradients(model, batch)
    assert all(map(torch.equal, before, after))
    assert (after[names.index("source_embedding.weight")][14] == 0).all()
