"""The attention of a search's newest tokens, by its kernel and by masks, against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from seq2seq.machine.kernels import exponentials
from seq2seq.model.cache import Visible, attend_cached

HEADS, WIDTH = 2, 3
CPU = torch.device("cpu")


def by_definition(queries: Tensor, pool: Tensor, columns: list[int]) -> Tensor:
    """Attend from one query, (D,), to some columns of a pool, (columns, 2D): equation 1."""
    keys, values = pool[columns].unflatten(1, (2, HEADS, -1)).unbind(1)
    scores = torch.einsum("hk,chk->hc", queries.unflatten(0, (HEADS, -1)), keys)
    weights = (scores / keys.shape[2] ** 0.5).softmax(dim=1)
    return torch.einsum("hc,chk->hk", weights, values).flatten()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_each_query_attends_to_its_columns(
    dtype: torch.dtype, need_weights: bool, in_order: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    places, lens, dim = np.array([2, 0, 3]), np.array([4, 1, 2]), HEADS * 5
    pool = torch.randn(5, 4 * WIDTH, 2 * dim, dtype=dtype, generator=generator)
    queries = torch.randn(3, WIDTH, 3 * dim, dtype=dtype, generator=generator)
    drawn = torch.rand(3, WIDTH, 4 * WIDTH, generator=generator).argsort(dim=-1)[..., :4]
    for sentence, length in enumerate(lens):
        drawn[sentence] %= length * WIDTH  # what comes after is not in use yet
        for row in drawn[sentence]:
            row[:length] = torch.randperm(length * WIDTH, generator=generator)[:length]
    columns = None if in_order else drawn.int()
    visible = Visible(places, lens, columns, CPU)
    found, weights = attend_cached(queries, pool, visible, HEADS, need_weights=need_weights)
    for sentence, length in enumerate(lens):
        for query in range(WIDTH):
            own = [*range(length)] if in_order else drawn[sentence, query, :length].tolist()
            row = queries[sentence, query, :dim]
            expected = by_definition(row, pool[places[sentence]], own)
            torch.testing.assert_close(found[sentence, query], expected)
            if weights is not None:
                shown = weights[sentence, :, query]
                torch.testing.assert_close(shown.sum(dim=-1), torch.ones(HEADS))
                assert set(shown[0].nonzero().flatten().tolist()) == set(own)
    assert (weights is not None) == need_weights


def test_first_tokens_attend_to_those_before_with_weights_and_without() -> None:
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(2, 4, 10, generator=generator)
    pool = torch.randn(2, 4, 20, generator=generator)
    plain, _ = attend_cached(queries, pool, None, HEADS, need_weights=False)
    weighted, _ = attend_cached(queries, pool, None, HEADS, need_weights=True)
    for sentence in range(2):
        for place in range(4):
            columns = [*range(place + 1)]
            expected = by_definition(queries[sentence, place], pool[sentence], columns)
            torch.testing.assert_close(plain[sentence, place], expected)
            torch.testing.assert_close(weighted[sentence, place], expected)


def test_what_is_not_a_number_stays_so() -> None:
    queries, pool = torch.ones(1, 1, 10), torch.ones(1, 2, 20)
    pool[0, 1, 3] = torch.nan
    visible = Visible(np.array([0]), np.array([2]), None, CPU)
    found, _ = attend_cached(queries, pool, visible, HEADS, need_weights=False)
    assert found.isnan().any()


def test_exponentials_are_exact_to_a_few_units_of_the_last_place() -> None:
    x = np.linspace(-90, 0, 9001, dtype=np.float32)
    found, bits = np.empty_like(x), np.empty(len(x), dtype=np.int32)
    total = exponentials(x, np.float32(0), bits, found)
    expected = np.exp(np.maximum(x.astype(np.float64), -87))
    np.testing.assert_allclose(found, expected, rtol=5e-7)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
