"""Every task and layer variant against an independent NumPy Transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference_transformer as reference
import torch
from conftest import VARIANTS, ModelT, name_of, pack, sentence, small_shape
from torch import Tensor

from seq2seq.data.batching import context_window_batch
from seq2seq.model.layers import Stack
from seq2seq.model.transformer import Classifier, LanguageModel, Transformer

CONTEXT = 9
TEXTS = [[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 12]]


def exact(model: ModelT) -> ModelT:
    """Return the model in float64 (sinusoids too), with random LayerNorm weights and biases."""
    model = model.double().eval()
    # The model keeps its positional embeddings in fp32; their formula has a separate test.
    for stack in (module for module in model.children() if isinstance(module, Stack)):
        width, kind = stack.positions.width, stack.positions.kind
        table = np.stack([reference.sinusoidal_position(p, width, kind) for p in range(CONTEXT)])
        stack.positions.table = torch.tensor(table)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # LayerNorm weights near 1: small ones would hide mistakes of the layers before them.
            gain = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if gain else 0.0, 0.1 if gain else 0.3)
    return model


def weights_of(model: torch.nn.Module) -> reference.Weights:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def shape_of(variant: dict[str, Any]) -> reference.Shape:
    return reference.Shape(
        4, norm=variant["norm"], positions=variant["positions"], activation=variant["activation"]
    )


def assert_equal(found: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
@pytest.mark.parametrize("separate", [False, True])
def test_translation(variant: dict[str, Any], separate: bool) -> None:
    torch.manual_seed(1)
    model = exact(
        Transformer(small_shape(context=CONTEXT, **variant), 13, 11 if separate else None)
    )
    source, target = TEXTS[0], [2, 7, 1, 8, 10]
    with torch.no_grad():
        logits = model.output(model(pack([source]), side := pack([target])))
    expected = reference.translation(weights_of(model), source, target, shape_of(variant))
    assert_equal(sentence(logits, side, 0), expected)


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_language_model(variant: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = exact(LanguageModel(small_shape(encoder_layers=0, context=CONTEXT, **variant), 13))
    rows = np.array([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 12, 8, 1]])
    batch = context_window_batch(rows)
    with torch.no_grad():
        logits = model.output(model(*batch.inputs)).view(2, 6, 13)
    for found, row in zip(logits, rows.tolist(), strict=True):
        expected = reference.language_model(weights_of(model), row[:-1], shape_of(variant))
        assert_equal(found, expected)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_classifier(variant: dict[str, Any], pooling: str) -> None:
    torch.manual_seed(1)
    shape = small_shape(decoder_layers=0, context=CONTEXT, pooling=pooling, **variant)
    model = exact(Classifier(shape, 13, 3))
    with torch.no_grad():
        scores = model.output(model(pack(TEXTS)))
    for found, text in zip(scores, TEXTS, strict=True):
        weights = weights_of(model)
        assert_equal(found, reference.classifier(weights, text, shape_of(variant), pooling=pooling))
