"""Packed sentences: layout, and independence of the sentences of a window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, sentence
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from seq2seq.data.packing import (
    TOKENS_ROUND,
    Batch,
    Packed,
    collate,
    one_each,
    window_lens,
)
from seq2seq.data.store import Ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.model.attention import attend
from seq2seq.model.dropout import NO_DROPOUT
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


def num_real(side: Packed) -> int:
    return int((side.sentences >= 0).sum())


def check_side(side: Packed, expected: list[list[int]], length: int) -> None:
    """Check one side against the description of `Packed`."""
    size, real, (num_windows, columns) = len(side.ids), num_real(side), side.tokens.shape
    assert columns == length
    assert size % TOKENS_ROUND == 0 and real < size <= real + TOKENS_ROUND
    # Each token once, sentence after sentence, with its place in its sentence.
    assert side.ids[:real].tolist() == [token for row in expected for token in row]
    assert side.positions[:real].tolist() == [i for row in expected for i in range(len(row))]
    tokens, sentences = side.tokens.flatten(), side.sentences.flatten()
    assert torch.equal(tokens[side.places[:real]], torch.arange(real))
    # A sentence has as many places as tokens, side by side in one window.
    start = 0
    for i, row in enumerate(expected):
        [places] = (sentences == i).nonzero().T
        first = int(side.places[start])
        assert places.tolist() == list(range(first, first + len(row)))
        assert torch.equal(places, side.places[start : start + len(row)])
        assert first // length == (first + len(row) - 1) // length < num_windows
        start += len(row)
    # Filler reads empty places, and empty places filler.
    assert (sentences[side.places[real:]] == -1).all()
    assert (tokens[sentences == -1] >= real).all()
    assert (side.ids[real:] == 0).all() and (side.positions[real:] == 0).all()
    # Every sentence and the filler, end to end.
    lens = [*map(len, expected), size - real]
    assert side.offsets.tolist() == [sum(lens[:i]) for i in range(len(lens) + 1)]
    assert max(lens) <= side.longest


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=40))
@example([(63, 63)] * 4)  # nothing is left of the tokens and of the windows
def test_every_token_has_one_place_and_both_sides_the_same_window(
    lens: list[tuple[int, int]],
) -> None:
    numbers = np.arange(sum(s + t for s, t in lens), dtype=np.int32) + 10  # all tokens different
    ends = np.cumsum(lens)
    pieces = np.split(numbers, ends[:-1])
    sources, targets = pieces[0::2], pieces[1::2]
    batch = collate(sources, targets, TOKENIZER)
    longest = [1 + max(pair[side] for pair in lens) for side in (0, 1)]
    lengths = window_lens(longest)
    check_side(batch.source, [[*row, VOCABULARY.eos_id] for row in sources], lengths[0])
    check_side(batch.target, [[VOCABULARY.bos_id, *row] for row in targets], lengths[1])
    labels = [token for row in targets for token in (*row, VOCABULARY.eos_id)]
    assert batch.num_labels == num_real(batch.target) == len(labels)
    assert batch.labels[: len(labels)].tolist() == labels
    assert (batch.labels[len(labels) :] == 0).all()
    # Window for window, the same sentences on both sides; and no two windows would go into one.
    for window, other in zip(batch.source.sentences, batch.target.sentences, strict=True):
        assert {-1, *window.tolist()} == {-1, *other.tolist()}
    used = torch.stack([(side.sentences >= 0).sum(1) for side in (batch.source, batch.target)])
    used = used[:, used.any(0)]
    both = (used[:, :, None] + used[:, None, :] <= torch.tensor(lengths)[:, None, None]).all(0)
    assert not both.triu(1).any()


@pytest.mark.parametrize(
    ("longest", "length"), [(1, 48), (7, 56), (17, 56), (24, 48), (34, 40), (64, 64), (65, 72)]
)
def test_window_lengths_are_multiples_of_the_longest_sentence(longest: int, length: int) -> None:
    assert window_lens([longest]) == [length]
    assert window_lens([longest, 1])[0] == length  # the longer side decides how many


def test_one_each_puts_sentence_i_into_window_i() -> None:
    side = one_each(SOURCES)
    check_side(side, [row.tolist() for row in SOURCES], max(map(len, SOURCES)))
    for i in range(len(SOURCES)):
        assert {-1, *side.sentences[i].tolist()} == {-1, i}


def packed(*changed: int) -> Batch:
    """Pack all pairs; those in `changed` have other tokens of the same number."""
    sources, targets = list(SOURCES), list(TARGETS)
    for i in changed:
        sources[i], targets[i] = 16 - sources[i], 16 - targets[i]
    return collate(sources, targets, TOKENIZER)


def test_sentences_share_windows() -> None:
    """Otherwise the tests below would prove little."""
    windows = packed().target.sentences
    assert sum(len(set(window.tolist()) - {-1}) > 1 for window in windows) >= 2


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_hidden_states_equal_those_of_each_pair_alone(make_model: MakeModel, norm: str) -> None:
    model = make_model(norm=norm).double()
    batch = packed()
    together = model(batch.source, batch.target)
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        single = collate([source], [target], TOKENIZER)
        alone = model(single.source, single.target)[: len(target) + 1]
        assert torch.allclose(sentence(together, batch.target, i), alone, rtol=0, atol=1e-9)


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


def test_filler_has_no_gradient(make_model: MakeModel) -> None:
    """Neither the filler's embeddings nor other parameters get a gradient from it."""
    model = Transformer(make_model().config, 13, 15).double()
    batch = packed()
    before = gradients(model, batch)
    names = [name for name, _ in model.named_parameters()]
    batch.source.ids[num_real(batch.source) :] = 14
    batch.target.ids[num_real(batch.target) :] = 11
    after = gradients(model, batch)
    assert all(map(torch.equal, before, after))
    assert (after[names.index("source_embedding.weight")][14] == 0).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_sentences_of_a_window_are_independent(make_model: MakeModel, norm: str) -> None:
    model = make_model(norm=norm).double()
    before, target = model(packed().source, packed().target), packed().target
    for changed in range(len(LENS)):
        batch = packed(changed)
        assert torch.equal(batch.target.sentences, target.sentences)
        after = model(batch.source, batch.target)
        for i in range(len(LENS)):
            one, other = (sentence(hidden, target, i) for hidden in (before, after))
            assert torch.allclose(one, other, rtol=0, atol=1e-12) == (i != changed)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(6, 6), (5, 9), (1, 4)])
def test_attend_equals_torch_in_values_and_gradients(num_queries: int, num_keys: int) -> None:
    random = torch.Generator().manual_seed(num_keys)

    def draw(count: int) -> Tensor:
        x = torch.randn(3, 2, count, 4, dtype=torch.float64, generator=random)
        return x.requires_grad_()  # (B, H, T, K)

    queries, keys, values = inputs = draw(num_queries), draw(num_keys), draw(num_keys)
    mask = torch.rand(3, num_queries, num_keys, generator=random) < 0.4
    seen = torch.randint(num_keys, (3, num_queries, 1), generator=random)
    mask.scatter_(-1, seen, True)
    bias = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e9)[:, None]
    heads = [x.flatten(0, 1) for x in inputs]
    ours = attend(heads[0], heads[1], heads[2], bias, NO_DROPOUT.attention).unflatten(0, (3, 2))
    torchs = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None])
    torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-12)
    outer = torch.randn(ours.shape, dtype=torch.float64, generator=random)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, outer),
        torch.autograd.grad(torchs, inputs, outer),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
