"""The order of sentences, updates, and micro-batches of each process."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import VOCABULARY
from numpy.typing import NDArray

from seq2seq.data.batching import (
    Packed,
    collate,
    micro_batches,
    sentence_order,
    shard,
    updates,
    worst_case_lens,
)
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.model.packed_attention import Rows

RANDOM = np.random.default_rng(0)
TARGET = RANDOM.integers(2, 60, 3000).astype(np.int32)
SOURCE = np.maximum(2, TARGET + RANDOM.integers(-5, 6, 3000)).astype(np.int32)


def order(seed: int = 1, epoch: int = 0) -> NDArray[np.int64]:
    return sentence_order(corpus_sizes=[3000], corpus_weights=[1.0], seed=seed, epoch=epoch)


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    assert np.array_equal(order(), order())
    assert not np.array_equal(order(), order(epoch=1))
    assert not np.array_equal(order(), order(seed=2))
    assert np.array_equal(np.sort(order()), np.arange(3000))


def test_corpus_weights_repeat_sentences() -> None:
    def counts(epoch: int) -> NDArray[np.int64]:
        numbers = sentence_order(
            corpus_sizes=[1000, 2000], corpus_weights=[2.25, 0.5], seed=1, epoch=epoch
        )
        return np.bincount(numbers, minlength=3000)

    first, second = counts(0), counts(1)
    assert sorted(set(first[:1000])) == [2, 3] and first[:1000].sum() == 2250
    assert sorted(set(first[1000:])) == [0, 1] and first[1000:].sum() == 1000
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("batch_tokens", [100, 1000, 5000])
def test_updates_split_the_order_without_gap_or_overlap(batch_tokens: int) -> None:
    parts = list(updates(order(), TARGET[order()], batch_tokens))
    assert np.array_equal(np.concatenate(parts), order())
    sizes = [int(TARGET[part].sum()) for part in parts]
    assert all(batch_tokens - 60 < size <= batch_tokens for size in sizes[:-1])
    assert batch_tokens / 2 <= sizes[-1] <= 1.5 * batch_tokens + 60


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_shares_are_equal_and_lose_nothing(num_processes: int) -> None:
    for part in updates(order(), TARGET[order()], 4000):
        found = [shard(TARGET[part], i, num_processes) for i in range(num_processes)]
        assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(part)))
        work = [TARGET[part][own].sum() for own in found]
        assert max(work) - min(work) <= TARGET[part].max()


def test_micro_batches_respect_max_tokens_and_lose_nothing() -> None:
    # Some pairs longer than a row of short ones, and one longer than a micro-batch.
    target = np.where(np.arange(3000) % 50 == 0, TARGET * 4, TARGET)
    source = np.where(np.arange(3000) % 70 == 0, SOURCE * 4, SOURCE)
    source[order()[0]] = 900
    for part in updates(order(), target[order()], 4000):
        plan = micro_batches(source[part], target[part], max_tokens=700)
        places = np.concatenate(plan)
        assert np.array_equal(np.sort(places), np.arange(len(part)))
        for batch in plan:
            sides = source[part][batch].sum(), target[part][batch].sum()
            assert max(sides) <= 700 or len(batch) == 1


def test_micro_batches_are_as_few_as_fit_and_about_equal() -> None:
    long = np.where(np.arange(3000) % 50 == 0, TARGET * 4, TARGET)
    for target in (TARGET, long):
        for part in updates(order(), target[order()], 4000):
            lens = SOURCE[part], target[part]
            plan = micro_batches(*lens, max_tokens=1100)
            sizes = [max(side[batch].sum() for side in lens) for batch in plan]
            assert max(sizes) - min(sizes) <= 3 * target[part].max()  # a sentence or so for each
            assert len(plan) <= -(-max(side.sum() for side in lens) // 1100) + 1


def unknown_rows(lens: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    return [np.full(length - 1, 5, dtype=np.int32) for length in lens]


def num_scores(side: Packed) -> int:
    """Return the number of attention scores of one head."""
    num_rows, length = Rows(side, side, causal=False).queries.sentences.shape
    return num_rows * length**2


@pytest.mark.parametrize("longest", [17, 40, 64, 65, 128, 129, 200, 256, 700])
def test_no_batch_needs_more_memory_than_the_dry_run(longest: int) -> None:
    max_tokens = 6000
    tokenizer = Tokenizer(VOCABULARY, VOCABULARY)
    worst = np.array(worst_case_lens(longest, max_tokens), dtype=np.int32)
    assert worst.sum() == max_tokens  # more, and the advice would be too careful
    longest_batch = unknown_rows(worst)
    most = num_scores(collate(longest_batch, longest_batch, tokenizer).inputs[0])
    random = np.random.default_rng(longest)
    for shortest in {2, longest // 2 + 1, longest // 3 + 1, longest * 3 // 4, longest}:
        shortest = max(2, shortest)
        for lens in (
            np.array([longest] + [shortest] * 2000),
            np.append(random.integers(shortest, longest + 1, 2000), longest),
        ):
            lens = lens.astype(np.int32)
            plan = micro_batches(lens, lens, max_tokens=max_tokens)
            for places in plan[:3]:
                planned = unknown_rows(lens[places])
                assert num_scores(collate(planned, planned, tokenizer).inputs[0]) <= most
