"""Which sentences meet in an update, in which order, and on which process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from seq2seq.config import load_config
from seq2seq.data.batching import (
    Batch,
    TrainingData,
    collate,
    micro_batches,
    sentence_order,
    updates,
)
from seq2seq.data.prepare import PreparedData, prepare


def real_targets(batch: Batch) -> torch.Tensor:
    """Return (B, T), True on real target tokens."""
    mask = torch.zeros(batch.target_output.numel(), dtype=torch.bool)
    mask[batch.target_places] = True
    return mask.view(batch.target_output.shape)


RANDOM = np.random.default_rng(0)
TARGET = RANDOM.integers(2, 60, 3000).astype(np.int32)
SOURCE = np.maximum(2, TARGET + RANDOM.integers(-5, 6, 3000)).astype(np.int32)


def order(seed: int = 1, epoch: int = 0) -> NDArray[np.int64]:
    return sentence_order(
        SOURCE, TARGET, corpus_sizes=[3000], corpus_weights=[1.0], seed=seed, epoch=epoch
    )


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    assert np.array_equal(order(), order())
    assert not np.array_equal(order(), order(epoch=1))
    assert not np.array_equal(order(), order(seed=2))
    assert np.array_equal(np.sort(order()), np.arange(3000))


def test_corpus_weights_count_how_often_a_sentence_comes() -> None:
    def counts(epoch: int) -> NDArray[np.int64]:
        numbers = sentence_order(
            SOURCE, TARGET, corpus_sizes=[1000, 2000], corpus_weights=[2.25, 0.5], seed=1,
            epoch=epoch,
        )  # fmt: skip
        return np.bincount(numbers, minlength=3000)

    first, second = counts(0), counts(1)
    assert sorted(set(first[:1000])) == [2, 3] and first[:1000].sum() == 2250
    assert sorted(set(first[1000:])) == [0, 1] and first[1000:].sum() == 1000
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("batch_tokens", [100, 1000, 5000])
def test_updates_cut_the_order_without_gap_or_overlap(batch_tokens: int) -> None:
    parts = list(updates(order(), TARGET, batch_tokens))
    assert np.array_equal(np.concatenate(parts), order())
    sizes = [int(TARGET[part].sum()) for part in parts]
    assert all(batch_tokens - 60 < size <= batch_tokens for size in sizes[:-1])
    assert batch_tokens / 2 <= sizes[-1] <= 1.5 * batch_tokens + 60


def test_a_place_in_the_data_survives_another_batch_size() -> None:
    parts = list(updates(order(), TARGET, 1000))
    offset = sum(len(part) for part in parts[:7])
    rest = np.concatenate(list(updates(order(), TARGET, 333, offset)))
    assert np.array_equal(rest, order()[offset:])


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_micro_batches_keep_their_bounds_and_lose_nothing(num_processes: int) -> None:
    for part in updates(order(), TARGET, 4000):
        plan = micro_batches(
            SOURCE[part], TARGET[part], max_tokens=700, num_processes=num_processes
        )
        places = np.concatenate([batch for hand in plan for batch in hand])
        assert np.array_equal(np.sort(places), np.arange(len(part)))
        assert all(hand for hand in plan)
        for batch in (batch for hand in plan for batch in hand):
            longest = max(SOURCE[part][batch].max(), TARGET[part][batch].max())
            assert len(batch) * longest <= 700 or len(batch) == 1


@pytest.mark.parametrize("batch_tokens", [1024, 4096, 25_000])
def test_over_nine_tenths_of_the_tokens_are_real(batch_tokens: int) -> None:
    target = RANDOM.integers(2, 60, 30_000).astype(np.int32)
    source = np.maximum(2, target + RANDOM.integers(-5, 6, 30_000)).astype(np.int32)
    numbers = sentence_order(
        source, target, corpus_sizes=[30_000], corpus_weights=[1.0], seed=1, epoch=0
    )
    real = padded = 0
    for part in updates(numbers, target, batch_tokens):
        [hand] = micro_batches(source[part], target[part], max_tokens=4096)
        real += int(source[part].sum() + target[part].sum())
        padded += sum(len(b) * int(source[part][b].max() + target[part][b].max()) for b in hand)
    assert real / padded > 0.9


@pytest.fixture
def data(recipe: Path) -> PreparedData:
    return prepare(load_config(recipe))


def stream(
    data: PreparedData, *, process: int = 0, num_processes: int = 1, bpe_dropout: float = 0.0,
    batch_tokens: int = 300,
) -> TrainingData:  # fmt: skip
    return TrainingData(
        data.store("train"),
        data.tokenizer,
        corpus_sizes=data.manifest["splits"]["train"]["pairs_per_corpus"],
        corpus_weights=[1.0],
        batch_tokens=batch_tokens,
        micro_batch_tokens=200,
        bpe_dropout=bpe_dropout,
        seed=1,
        process=process,
        num_processes=num_processes,
    )


def rows(training: TrainingData, epoch: int = 0) -> list[list[tuple[int, ...]]]:
    """Each update's target rows, unpadded and sorted."""
    return [
        sorted(
            tuple(ids[mask].tolist())
            for batch in update.batches
            for ids, mask in zip(batch.target_output, real_targets(batch), strict=True)
            if mask.any()
        )
        for update in training.epoch(epoch)
    ]


@pytest.mark.parametrize("bpe_dropout", [0.0, 0.2])
def test_processes_share_every_update_out(data: PreparedData, bpe_dropout: float) -> None:
    alone = rows(stream(data, bpe_dropout=bpe_dropout))
    hands = [
        rows(stream(data, process=i, num_processes=3, bpe_dropout=bpe_dropout)) for i in range(3)
    ]
    assert len({len(hand) for hand in hands}) == 1
    together = [sorted(a + b + c) for a, b, c in zip(*hands, strict=True)]
    assert together == alone


def test_every_process_takes_part_even_in_an_update_of_one_sentence(data: PreparedData) -> None:
    parts = [
        next(stream(data, process=i, num_processes=2, batch_tokens=1).epoch(0)) for i in range(2)
    ]
    assert [len(part.batches) for part in parts] == [1, 1]
    tokens = [part.batches[0].num_target_tokens for part in parts]
    assert sorted(tokens) == [0, parts[0].num_target_tokens]


def test_bpe_dropout_draws_new_pieces_every_epoch_but_the_same_every_run(
    data: PreparedData,
) -> None:
    dropping = stream(data, bpe_dropout=0.2)
    assert rows(dropping) == rows(stream(data, bpe_dropout=0.2)) != rows(stream(data))
    tokens = sum(u.num_target_tokens for u in dropping.epoch(0))
    assert tokens > sum(u.num_target_tokens for u in stream(data).epoch(0))


def test_targets_are_shifted_by_one_and_padding_is_masked(data: PreparedData) -> None:
    sources, targets = data.store("train").pairs(np.array([0, 1, 2]))
    batch = collate(sources, targets, data.tokenizer)
    vocabulary = data.tokenizer.target
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        length = len(target) + 1
        assert batch.target_input[i, :length].tolist() == [vocabulary.bos_id, *target]
        assert batch.target_output[i, :length].tolist() == [*target, vocabulary.eos_id]
        assert real_targets(batch)[i].sum() == length and real_targets(batch)[i, :length].all()
        assert batch.source[i, : len(source) + 1].tolist() == [*source, vocabulary.eos_id]
        assert not batch.source_mask[i, len(source) + 1 :].any()
        assert (batch.source[i, len(source) + 1 :] == vocabulary.pad_id).all()
