"""Compiled layers: compiled once for all sizes of batches, and equal to those that are not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import drawn, small_shape
from torch import Tensor, fx

from seq2seq.data.packing import Batch, context_window_batch, pack, pack_pairs
from seq2seq.model.transformer import Classifier, LanguageModel, Network, Transformer
from seq2seq.training.loss import ModelLoss
from seq2seq.training.run import compile_layers

VOCAB_SIZE = 13
SIZES = [(40, 30), (6, 9), (1, 3), (90, 4), (2, 2), (6, 70)]
"""Numbers of sentences and lengths of the longest of micro-batches."""
GRAPHS = {"translation": 4, "language_model": 2, "classification": 2}
"""Before, between and behind the calls of `attend` in a layer.

Encoder and decoder have the first in common.
"""


class Counting:
    """A backend of torch.compile that counts what another one compiles."""

    def __init__(self, backend: str) -> None:
        self.calls, self._backend = 0, torch._dynamo.lookup_backend(backend)

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.calls += 1
        return self._backend(graph, inputs)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def make_model(task: str, **variant: Any) -> Network:
    torch.manual_seed(1)
    if task == "translation":
        return drawn(Transformer(small_shape(**variant), VOCAB_SIZE)).double()
    shape = small_shape(context=80, **variant)
    if task == "language_model":
        return drawn(LanguageModel(shape, VOCAB_SIZE)).double()
    return drawn(Classifier(shape, VOCAB_SIZE, 3)).double()


def make_batch(task: str, sentences: int, longest: int) -> Batch:
    random = np.random.default_rng(sentences)
    if task == "language_model":
        return context_window_batch(random.integers(VOCAB_SIZE, size=(sentences, longest + 1)))

    def rows(longest: int) -> list[Any]:
        lens = random.integers(1, longest, size=sentences, endpoint=True)
        return [random.integers(VOCAB_SIZE, size=n).astype(np.int32) for n in lens]

    if task == "classification":
        return Batch(
            (pack(rows(longest)),), torch.from_numpy(random.integers(3, size=sentences)), sentences
        )
    targets = rows(longest)
    # Of the first batch, both sides have another number of tokens.
    return pack_pairs(rows(longest + sentences // 4), targets, targets)


def train(loss: ModelLoss, batch: Batch) -> list[Tensor]:
    """Return the loss and its gradients."""
    loss.train()
    found, _ = loss(batch)
    return [found, *torch.autograd.grad(found, [*loss.parameters()])]


def evaluate(loss: ModelLoss, batch: Batch) -> list[Tensor]:
    """Return the loss and the nll."""
    loss.eval()
    with torch.inference_mode():
        return [*loss(batch)]


def check(task: str, backend: str = "eager", *, recompute: bool = False, **variant: Any) -> None:
    """Train and evaluate on batches of all sizes; compare with a model that is not compiled."""
    model = make_model(task, **variant)
    model.set_gradient_checkpointing(recompute)
    plain, loss = (ModelLoss(each, 0.1, 0.5) for each in (copy.deepcopy(model), model))
    compile_layers(model, torch.device("cpu"), counting := Counting(backend))
    tried_out = counting.calls
    batches = [make_batch(task, *size) for size in SIZES]
    batches += [replace(batch, num_labels=0) for batch in batches[:2]]
    train(loss, batches[0])
    assert counting.calls - tried_out == GRAPHS[task]
    evaluate(loss, batches[0])
    compiled = counting.calls
    for batch in batches:
        for run in (train, evaluate):
            torch.testing.assert_close(run(loss, batch), run(plain, batch), rtol=1e-10, atol=1e-10)
    assert counting.calls == compiled


@pytest.mark.parametrize(
    ("task", "norm", "positions"),  # each norm, and each kind of positions, computes differently
    [
        ("translation", "post", "sinusoidal"),
        ("translation", "pre", "rotary"),
        ("language_model", "pre", "rotary"),
        ("classification", "post", "sinusoidal"),
    ],
)
def test_batches_of_other_sizes_are_not_compiled_again(
    task: str, norm: str, positions: str
) -> None:
    check(task, norm=norm, positions=positions)


def test_layers_are_recomputed_as_they_were_compiled() -> None:
    check("translation", "aot_eager", recompute=True, norm="pre", activation="swiglu")


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_and_half_precision_are_compiled_once(recompute: bool) -> None:
    model = make_model("translation", dropout=0.1, attention_dropout=0.1, norm="post").float()
    model.set_gradient_checkpointing(recompute)
    loss = ModelLoss(model, 0.1)
    compile_layers(model, torch.device("cpu"), counting := Counting("aot_eager"))
    tried_out, batches = counting.calls, [make_batch("translation", *size) for size in SIZES]
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16):
            found = train(loss, batch)
        assert all(tensor.isfinite().all() for tensor in found)
        assert counting.calls - tried_out == GRAPHS["translation"]
