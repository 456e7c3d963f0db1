"""The model: parameter counts of the paper, cache, initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import VARIANTS, name_of, pack, sentence
from torch import Tensor

from seq2seq.config import ModelConfig
from seq2seq.model import cache
from seq2seq.model.positions import sinusoids
from seq2seq.model.transformer import Transformer

MakeModel = Callable[..., Transformer]


def all_logits(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Tensor:
    """Return the logits, (B, T, V), of pairs whose targets have one length."""
    side = pack(targets)
    with torch.no_grad():
        logits = model.output(model(pack(sources), side))
    return torch.stack([sentence(logits, side, i) for i in range(len(targets))])


@pytest.mark.parametrize(
    ("config", "millions"),
    [(ModelConfig(), 63.1), (ModelConfig(dim=1024, ffn_dim=4096, num_heads=16), 214.2)],
    ids=["base", "big"],
)
def test_parameter_counts_of_the_paper(config: ModelConfig, millions: float) -> None:
    with torch.device("meta"):
        model = Transformer.__new__(Transformer)
        Transformer.__init__(model, config, 37_000)
    assert round(model.num_parameters() / 1e6, 1) == millions


def test_positions_against_the_closed_form() -> None:
    table = sinusoids(60, 12)
    for position in (0, 1, 7, 59):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert table[position, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 6 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoids_are_extended_for_long_sentences(make_model: MakeModel) -> None:
    model = make_model()
    model.start(pack([[1] * 700]))
    positions = model.encoder.positions
    assert len(positions.table) >= 700
    assert torch.equal(positions.table[:256], sinusoids(256, 24))


def test_initial_embeddings_have_unit_variance_when_scaled() -> None:
    torch.manual_seed(0)
    model = Transformer(ModelConfig(dim=64, ffn_dim=8, num_heads=2, dropout=0.0), 2000)
    scaled = model.target_embedding.weight * math.sqrt(64)
    assert scaled.std().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_cached_steps_equal_the_uncached_pass(
    make_model: MakeModel, variant: dict[str, Any]
) -> None:
    model = make_model(**variant)
    sources = [[3, 1, 4], [9, 2, 6, 5, 3]]
    # Three hypotheses a sentence, which share the keys and values of their source.
    target = torch.randint(1, 13, (2, 3, 7), generator=torch.Generator().manual_seed(2))
    whole = all_logits(
        model, [row for row in sources for _ in range(3)], target.flatten(0, 1).tolist()
    )
    with torch.no_grad():
        state = model.start(pack(sources))
        state.alignment_layer = 0
        newest = target.flatten(0, 1).split(1, dim=1)
        steps = [(model.decode(tokens, state), state.cross_attention) for tokens in newest]
        found = torch.cat([model.output(x) for x, _ in steps], dim=1)
        # All tokens of one hypothesis of each sentence at once, then one more.
        state = model.start(pack(sources))
        state.alignment_layer = 0
        hidden, weights = model.decode(target[:, 0, :6], state), state.cross_attention
        last = model.decode(target[:, 0, 6:], state)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)
    both = torch.cat([hidden, last], dim=1)
    torch.testing.assert_close(model.output(both), whole[::3], rtol=0, atol=1e-5)
    for t, (_, seen) in enumerate(steps[:6]):
        torch.testing.assert_close(seen[:, 0], weights[:, t], rtol=0, atol=1e-6)
        torch.testing.assert_close(seen.sum(dim=-1), torch.ones(2, 3))
        assert seen[0, :, 3:].eq(0).all()  # beyond its source


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("beam", [1, 2])
def test_selected_hypotheses_and_sentences_continue(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, positions: str, beam: int
) -> None:
    """Hypotheses are replaced by others, sentences are dropped, and the cache grows."""
    monkeypatch.setattr(cache, "GROWTH", 2)
    model = make_model(positions=positions, context=64)
    generator = torch.Generator().manual_seed(2)
    sources = [[3, 1, 4, 2], [9, 2, 6, 5, 3, 1], [7, 7], [4, 8]]
    rows = torch.randint(1, 13, (4, beam, 20), generator=generator)
    left = np.arange(4)
    with torch.no_grad():
        state = model.start(pack(sources))
        for t in range(20):
            hidden = model.decode(rows[..., t].reshape(-1, 1), state)
            read = [sources[i] for i in left for _ in range(beam)]
            whole = all_logits(model, read, rows[..., : t + 1].flatten(0, 1).tolist())
            found = model.output(hidden)[:, 0]
            torch.testing.assert_close(found, whole[:, -1], rtol=0, atol=1e-5)
            # The longest is the first to be dropped; those that remain have the same length.
            kept = {4: np.array([0, 2, 3]), 11: np.array([1, 2])}.get(t, np.arange(len(left)))
            origins = torch.randint(beam, (len(kept), beam), generator=generator)
            state.select((kept[:, None] * beam + origins.numpy()).flatten(), kept)
            rows, left = rows[kept], left[kept]
            before = rows[..., : t + 1].gather(1, origins[..., None].expand(-1, -1, t + 1))
            rows[..., : t + 1] = before
    assert left.tolist() == [2, 3] and state.length == 20


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_gradient_checkpointing_changes_no_bit(
    make_model: MakeModel, norm: str, positions: str
) -> None:
    def gradients(model: Transformer) -> list[Tensor]:
        torch.manual_seed(5)  # of the dropout, which is drawn again on the way back
        sides = pack([[3, 1, 4, 1, 5], [9, 2]]), pack([[2, 7, 1], [1, 8, 2]])
        model(*sides).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    options: dict[str, Any] = {"norm": norm, "positions": positions, "attention_dropout": 0.2}
    plain, frugal = (
        make_model(dropout=0.3, activation_dropout=0.1, **options).train() for _ in range(2)
    )
    frugal.set_gradient_checkpointing(True)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for layer in [*frugal.encoder.layers, *frugal.decoder.layers]:
        layer.register_forward_pre_hook(count)
    for precise in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            calls = 0
            for expected, gradient in zip(gradients(plain), gradients(frugal), strict=True):
                assert torch.equal(expected, gradient)
        assert calls == 2 * (2 + 3)  # every layer forward twice
        plain.zero_grad()
        frugal.zero_grad()
