"""Optimisers: which parameters they update, and by how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from seq2seq.config import TrainingConfig
from seq2seq.model.transformer import Transformer
from seq2seq.training.optimizer import (
    Muon,
    build_optimizers,
    load_optimizer_state,
    optimizer_state,
    step_optimizers,
)

KINDS = get_args(get_type_hints(TrainingConfig)["optimizer"])
Optimizers = list[torch.optim.Optimizer]


def build(model: nn.Module, kind: str) -> Optimizers:
    config = TrainingConfig(optimizer=kind, weight_decay=0.1)  # type: ignore[arg-type]
    return build_optimizers(model, config, torch.float32)


def step(model: nn.Module, optimizers: Optimizers, grad: float, skip: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, grad)
    step_optimizers(optimizers, 0.1, torch.tensor(skip))


def tensors(model: nn.Module, optimizers: Optimizers) -> list[torch.Tensor]:
    """Return copies of all weights and of the state of the optimisers."""
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    state = optimizer_state(optimizers)
    return [*weights, *(state[key] for key in sorted(state))]


@pytest.mark.parametrize(("kind", "fused"), [("adam", True), ("muon", True), ("muon", False)])
def test_skipped_steps_change_nothing(
    make_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch, kind: str, fused: bool
) -> None:
    """Neither as first steps, when there is no state yet, nor later."""
    if not fused:
        monkeypatch.setattr("seq2seq.training.optimizer.FUSED_ADAM_DEVICES", ())
    model, other = make_model(), make_model()
    optimizers, reference = build(model, kind), build(other, kind)
    for _ in range(2):
        step(model, optimizers, torch.nan, skip=1.0)
        step(model, optimizers, 5.0, skip=1.0)
        assert all(parameter.grad is None for parameter in model.parameters())
        for each, made in ((model, optimizers), (other, reference)):
            step(each, made, 1.0, skip=0.0)
        assert all(map(torch.equal, tensors(model, optimizers), tensors(other, reference)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_uses_the_memory_of_a_step(
    make_model: Callable[..., Transformer], kind: str
) -> None:
    optimizers = build(model := make_model(), kind)
    step(model, optimizers, 0.0, skip=1.0)
    assert sum(len(each.state) for each in optimizers) == len(list(model.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_state_continues_bit_for_bit(
    make_model: Callable[..., Transformer], kind: str, tmp_path: Path
) -> None:
    model, other = make_model(), make_model()
    optimizers, loaded = build(model, kind), build(other, kind)
    step(model, optimizers, 2.0, skip=0.0)
    save_file(optimizer_state(optimizers), tmp_path / "state")
    load_optimizer_state(loaded, load_file(tmp_path / "state"))
    other.load_state_dict(model.state_dict())
    for each, made in ((model, optimizers), (other, loaded)):
        step(each, made, 1.0, skip=0.0)
    assert all(map(torch.equal, tensors(model, optimizers), tensors(other, loaded)))


def test_adam_equals_torch_with_the_values_of_the_recipe(
    make_model: Callable[..., Transformer],
) -> None:
    config = TrainingConfig(adam_beta1=0.7, adam_beta2=0.95, adam_eps=1e-3)
    model, other = make_model(), make_model()
    [adam] = build_optimizers(model, config, torch.float32)
    reference = torch.optim.Adam(other.parameters(), lr=0.01, betas=(0.7, 0.95), eps=1e-3)
    for step in range(3):
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            one.grad = torch.full_like(one, 0.1 * (step + 1))
            two.grad = one.grad.clone()
        step_optimizers([adam], 0.01, torch.tensor(0.0))
        reference.step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_muon_equals_torch() -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((4, 9), (9, 4), (5, 5))]
    theirs = [nn.Parameter(matrix.detach().clone()) for matrix in ours]
    muon = Muon(ours, torch.bfloat16)
    muon.found_inf = torch.tensor(0.0)
    reference = torch.optim.Muon(theirs, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (muon, reference):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9)])
def test_muon_updates_each_part_of_a_parameter_as_a_parameter_of_its_own(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    joined, other = nn.Parameter(torch.randn(3 * shape[0], shape[1])), torch.randn(shape)
    parts = [nn.Parameter(part.clone()) for part in joined.detach().chunk(3)]
    one, two = nn.Parameter(other.clone()), nn.Parameter(other.clone())
    muon = Muon([one, joined], dtype, parts=[1, 3], weight_decay=0.1)
    reference = Muon([two, *parts], dtype, weight_decay=0.1)
    for skip in (0.0, 1.0, 0.0):
        other.normal_()
        one.grad, two.grad = other.clone(), other.clone()
        for part, scale in zip(parts, (1.0, 1e3, 1e-3), strict=True):
            part.grad = torch.randn(shape) * scale
        joined.grad = torch.cat([part.grad for part in parts if part.grad is not None])
        for optimizer in (muon, reference):
            step_optimizers([optimizer], 0.1, torch.tensor(skip))
        assert torch.equal(one, two) and torch.equal(joined, torch.cat(tuple(parts)))
    assert muon.state[joined]["momentum"].shape == joined.shape


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_muon_knows_the_matrices_that_one_parameter_concatenates(
    make_model: Callable[..., Transformer], activation: str
) -> None:
    model = make_model(activation=activation)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    _, muon = build_optimizers(model, TrainingConfig(optimizer="muon"), torch.float32)
    [group] = muon.param_groups
    double = ("key_value.weight", "up.weight") if activation == "swiglu" else ("key_value.weight",)
    assert len(group["params"]) > 20
    for parameter, parts in zip(group["params"], group["parts"], strict=True):
        assert parts == (2 if names[id(parameter)].endswith(double) else 1), names[id(parameter)]


@pytest.mark.parametrize("kind", KINDS)
def test_weight_decay_applies_to_matrices_and_embeddings_only(
    make_model: Callable[..., Transformer], kind: str
) -> None:
    def moved(decay: float) -> dict[str, torch.Tensor]:
        model = make_model()
        config = TrainingConfig(optimizer=kind, weight_decay=decay)  # type: ignore[arg-type]
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizers = build_optimizers(model, config, torch.float32)
        step_optimizers(optimizers, 0.01, torch.tensor(0.0))
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    before, plain, decayed = dict(make_model().named_parameters()), moved(0.0), moved(0.5)
    for name, parameter in decayed.items():
        shrunk = 0.01 * 0.5 * before[name].detach() if parameter.dim() > 1 else 0.0
        torch.testing.assert_close(parameter, plain[name] - shrunk)
