"""Run updates, a search step and a generation step on a fake device, without a GPU.

Usage: python scripts/check_devices.py [--device meta|cuda ...]

One whole update of each family with each optimizer (forward, loss, backward, clipping, skipping),
one step of a search, and one of text generation. `meta` works everywhere. `cuda` uses fake tensors,
and goes through autocast and the shape checks of flash attention too, but not through the backward
pass, nor through pinned memory, which have no fakes; it needs a build of torch with CUDA, and no
GPU. Nothing is computed: what fails is a tensor made on the wrong device, and a value that the host
reads, for which an update would wait.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from seq2seq.config import Config, ModelConfig, TrainingConfig
from seq2seq.data.context_windows import context_window_batch
from seq2seq.data.packing import Batch, pack, pack_pairs
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.engine import SearchEngine
from seq2seq.decoding.sampling import Sampling, draw
from seq2seq.machine.precision import Precision
from seq2seq.model.classifier import Classifier
from seq2seq.model.gpu_attention import varlen_kernel
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.network import Network
from seq2seq.model.transformer import Transformer
from seq2seq.training.updater import Updater

ALPHABET = Alphabet("abcdefgh\n ")
ROWS = [np.array(row, dtype=np.int32) for row in ([5, 6, 7], [8, 9], [4, 5, 6, 7, 8, 9])]
SHAPE = {"dim": 64, "ffn_dim": 96, "num_heads": 2, "norm": "pre", "context": 16}
FAMILIES: dict[str, tuple[type[Network], dict[str, int], tuple[int, ...], Batch]] = {
    "translation": (
        Transformer, {"encoder_layers": 1, "decoder_layers": 2}, (ALPHABET.size,),
        pack_pairs(ROWS, ROWS, ROWS),
    ),
    "language_model": (
        LanguageModel, {"encoder_layers": 0, "decoder_layers": 2}, (ALPHABET.size,),
        context_window_batch(np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])),
    ),
    "classification": (
        Classifier, {"encoder_layers": 2, "decoder_layers": 0}, (ALPHABET.size, 3),
        Batch((pack(ROWS),), torch.tensor([0, 2, 1]), 3),
    ),
}  # fmt: skip
"""Return for each task its model, the arguments it was made with, and a batch."""


class FakeAccelerator:
    """What an update asks of Accelerate, for one process."""

    num_processes = 1

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device, self._parameters = device, list[nn.Parameter]()

    def prepare(self, module: nn.Module) -> nn.Module:
        """Leave the model as it is: autocast is on for all of `check`."""
        self._parameters = list(module.parameters())
        return module

    def no_sync(self, _: nn.Module) -> contextlib.AbstractContextManager[None]:
        """There is nobody to exchange gradients with."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients."""
        if self.device.type != "cuda":
            loss.backward()
            return
        # autograd starts a thread for each GPU, and would need one.
        assert loss.requires_grad
        for parameter in self._parameters:
            parameter.grad = torch.empty_like(parameter)


def build(task: str, device: torch.device, **variant: Any) -> tuple[Network, Batch]:
    """Return a family's small model on a device, and a batch, which stays on the host."""
    family, depth, sizes, batch = FAMILIES[task]
    config = ModelConfig(**{**SHAPE, **depth, **variant})
    with device:
        return family(config, *sizes), batch


@patch("seq2seq.training.optimizer.fused_adam_skips", lambda _: True)
@patch("torch.nn.Module.to", lambda module, _: module)  # fake parameters cannot be replaced
@patch("torch.optim.adam._device_dtype_check_for_fused", lambda *_: None)
def check(device: torch.device, precision: Precision) -> None:
    """Make an update of every family, and a step of each kind of decoding.

    Nothing is computed on this device, so that it cannot be asked what works on it.
    """
    accelerator: Any = FakeAccelerator(device, precision)
    for task in FAMILIES:
        for optimizer in ("adam", "muon"):
            for positions in ("sinusoidal", "learned", "rotary"):
                model, batch = build(task, device, positions=positions)
                training = TrainingConfig(
                    optimizer=optimizer,
                    clip_norm=1.0, weight_decay=0.1, r_drop=1.0,
                )  # fmt: skip
                updater = Updater(model, training, accelerator, precision)
                sums, skip = updater.update([batch, batch], 2 * batch.num_labels, 0.01)
                assert sums.device.type == skip.device.type == device.type
    search_step(device)
    generation_step(device)


@torch.inference_mode()
def search_step(device: torch.device) -> None:
    """Encode sources, make a step from them, and another with the hypotheses reordered."""
    model, _ = build("translation", device)
    assert isinstance(model, Transformer)
    engine = SearchEngine(model.eval(), Tokenizer(ALPHABET, ALPHABET), [Config()])
    state = model.start(pack(ROWS).to(device))
    for _ in range(2):
        log_probs = engine.step(torch.ones(len(ROWS), dtype=torch.int64, device=device), state)
        assert log_probs.device.type == device.type
        state.select_rows(torch.arange(len(ROWS), device=device).flip(0))


@torch.inference_mode()
def generation_step(device: torch.device) -> None:
    """Read a prompt, and say what the next token is drawn from."""
    model, _ = build("language_model", device)
    assert isinstance(model, LanguageModel)
    logits = model.eval().step(torch.ones(2, 3, dtype=torch.int64, device=device), model.start())
    restricted = Sampling(0.8, top_k=3, top_p=0.9).restrict(logits)
    assert draw(restricted, [(1, 0), (1, 1)]).device.type == device.type


@contextlib.contextmanager
def fake_cuda() -> Iterator[torch.device]:
    """Let tensors be fake tensors on a GPU, under autocast in bf16 as in training."""
    device = torch.device("cuda")
    # Numbers drawn on the host, as dropout's seed, would be fakes too, and could not be read.
    drawn = patch("torch.randint", lambda *_: 1)
    # It is tried out with a backward pass.
    flash = patch("seq2seq.model.gpu_attention.find_kernel", lambda *_: varlen_kernel())
    with FakeTensorMode(allow_non_fake_inputs=True), drawn, flash:
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_autocast_enabled("cuda", True)
        try:
            yield device
        finally:
            torch.set_autocast_enabled("cuda", False)


def main() -> None:
    """Check the devices named."""
    parser = argparse.ArgumentParser(description="run the code for GPUs on fake devices")
    parser.add_argument("--device", choices=["meta", "cuda"], action="append", help="(meta)")
    for name in parser.parse_args().device or ["meta"]:
        if name == "meta":
            check(torch.device("meta"), "fp32")
            print("meta: no tensor elsewhere, none read by the host")
            continue
        if not torch.backends.cuda.is_built():
            sys.exit("check_devices: error: this torch is built without CUDA; install one with it")
        with fake_cuda() as device:
            check(device, "bf16")
        print("cuda: no tensor elsewhere, none read by the host")


if __name__ == "__main__":
    main()
