"""Run updates, a search step and a generation step on a fake device, without a GPU.

Usage: python scripts/check_devices.py [--device meta|cuda ...] [--precision fp32|fp16|bf16 ...]
       [--shape tiny|base|big ...] [--few]

Whole updates (forward, loss, backward, clipping, skipping) of each family with each optimizer, one
step of a search, and one of text generation. `meta` works everywhere, in fp32. `cuda` uses fake
tensors: in each precision, with autocast and the loss scale, with flash attention and rows, with
and without dropout of attention weights, recomputed and compiled layers; it needs a build of torch
without CUDA and a C++ compiler (fake_cuda.py). Layers are compiled by Dynamo and AOTAutograd, but
not by Inductor, which asks a GPU for its properties.

Nothing is computed: what fails is a shape, a tensor made on the wrong device, and a value that the
host reads, for which an update would wait. Pinned memory has no fake.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.data.packing import Batch, context_window_batch, pack, pack_pairs
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.sampling import Sampling, sample_tokens
from seq2seq.decoding.search import best_continuations
from seq2seq.decoding.torch_engine import EnsembleDecoder
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.model.gpu_attention import varlen_kernel
from seq2seq.model.transformer import Classifier, LanguageModel, Network, Transformer
from seq2seq.training.run import compile_layers
from seq2seq.training.update import Updater

ALPHABET = Alphabet("abcdefgh\n ")
ROWS = [np.array(row, dtype=np.int32) for row in ([5, 6, 7], [8, 9], [4, 5, 6, 7, 8, 9])]
SHAPE = {"dim": 64, "ffn_dim": 96, "num_heads": 2, "norm": "pre", "context": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 64, "ffn_dim": 96, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "base": {},
    "big": {"dim": 1024, "ffn_dim": 4096, "num_heads": 16},
}
"""Of the translation model, where it differs from base."""
FAMILIES: dict[str, tuple[type[Network], dict[str, int], tuple[int, ...], Batch]] = {
    "translation": (
        Transformer,
        {"encoder_layers": 1, "decoder_layers": 2},
        (ALPHABET.size,),
        pack_pairs(ROWS, ROWS, ROWS),
    ),
    "language_model": (
        LanguageModel,
        {"encoder_layers": 0, "decoder_layers": 2},
        (ALPHABET.size,),
        context_window_batch(np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])),
    ),
    "classification": (
        Classifier,
        {"encoder_layers": 2, "decoder_layers": 0},
        (ALPHABET.size, 3),
        Batch((pack(ROWS),), torch.tensor([0, 2, 1]), 3),
    ),
}
"""Return for each task its model, the arguments it was made with, and a batch."""


class FakeAccelerator:
    """What an update asks of Accelerate, for one process."""

    num_processes = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, module: nn.Module) -> nn.Module:
        """Leave the model as it is."""
        return module

    def no_sync(self, _: nn.Module) -> contextlib.AbstractContextManager[None]:
        """There is nobody to exchange gradients with."""
        return contextlib.nullcontext()


class HostReads(TorchDispatchMode):
    """Counts the operators that give the host a value of the device, for which it would wait.

    Operators whose result's shape depends on values have no fakes, and fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.num_operators = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let torch.compile work: it compiles nothing within other modes."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.num_operators += 1
        on_device = devices((args, kwargs)) - {"cpu"}
        if on_device and torch.Tag.data_dependent_output in func.tags:
            self.seen[str(func)] += 1
        result = func(*args, **(kwargs or {}))
        if on_device and "cpu" in devices(result):
            self.seen[str(func)] += 1
        return result


def devices(tree: Any) -> set[str]:
    """Return the types of the devices of the tensors in nested containers."""
    return {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


def build(task: str, device: torch.device, **variant: Any) -> tuple[Network, Batch]:
    """Return a family's small model on a device, and a batch, which stays on the host."""
    family, depth, sizes, batch = FAMILIES[task]
    config = ModelConfig(**{**SHAPE, **depth, **variant})
    with device:
        return family(config, *sizes), batch


@patch("seq2seq.training.optimizer.fused_adam_skips", lambda _: True)  # it reads a value
@patch("torch.nn.Module.to", lambda module, _: module)  # fake parameters cannot be replaced
@patch.object(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_: None)
def make_updates(
    model: Network,
    batch: Batch,
    device: torch.device,
    precision: Precision,
    optimizer: Any = "adam",
) -> HostReads:
    """Make two updates of two micro-batches; return what the host read in them."""
    accelerator: Any = FakeAccelerator(device)
    training = TrainingConfig(optimizer=optimizer, clip_norm=1.0, weight_decay=0.1, r_drop=1.0)
    updater = Updater(model, training, accelerator, precision)
    with HostReads() as reads:
        for _ in range(2):
            result = updater.update([batch, batch], 2 * batch.num_labels, 0.01)
            assert {each.device.type for each in result} == {device.type}
    moved = [state for each in updater.optimizers for state in each.state]
    assert len(moved) == len([*model.parameters()]), "a parameter has no gradient"
    assert not reads.seen, f"the host reads {reads.seen}"
    return reads


def check(device: torch.device, precision: Precision) -> None:
    """Make updates of every family, and a step of each kind of decoding.

    Nothing is computed on this device, so that it cannot be asked what works on it.
    """
    variants = (("adam", "sinusoidal"), ("adam", "learned"), ("muon", "rotary"))
    for task, (optimizer, positions) in product(FAMILIES, variants):
        make_updates(*build(task, device, positions=positions), device, precision, optimizer)
    search_step(device)
    generation_step(device)


Way = tuple[str, float, bool, bool]
"""Flash attention or rows, dropout of attention weights, recomputed layers, compiled layers."""
FEW_WAYS: list[Way] = [("flash", 0.0, True, True), ("rows", 0.1, False, False)]


def all_ways(precision: Precision) -> list[Way]:
    """Return the ways that a GPU has for a precision: fp32 and dropout have no flash attention."""
    ways = product(("flash", "rows"), (0.0, 0.1), (False, True), (False, True))
    return [way for way in ways if way[0] == "rows" or (precision != "fp32" and not way[1])]


def check_ways(device: torch.device, shape: str, precision: Precision, ways: Sequence[Way]) -> None:
    """Make updates of the translation model in a shape."""
    random = np.random.default_rng(1)
    rows = [random.integers(4, ALPHABET.size, n).astype(np.int32) for n in range(1, 80)]
    batch = pack_pairs(rows, rows[::-1], rows[::-1])
    for attention, attention_dropout, recompute, compiled in ways:
        start = time.perf_counter()
        with device:
            config = ModelConfig(**{**SHAPES[shape], "attention_dropout": attention_dropout})
            model = Transformer(config, ALPHABET.size)
        model.gradient_checkpointing = recompute
        if compiled:
            torch._dynamo.reset()
            compile_layers(model, device, "aot_eager")
            counters.clear()
        kernel = varlen_kernel() if attention == "flash" else None
        with patch("seq2seq.model.gpu_attention.find_kernel", lambda *_, kernel=kernel: kernel):
            reads = make_updates(model, batch, device, precision)
        graphs = counters["stats"]["unique_graphs"] if compiled else 0
        assert bool(graphs) == compiled, "the layers were not compiled"
        print(
            f"{device.type} {shape} {precision}: {attention}, weights dropped {attention_dropout}, "
            f"{'recomputed' if recompute else 'stored'}, {graphs} compiled graphs: "
            f"{reads.num_operators // 2} operators per update, {reads.seen.total()} values read "
            f"({time.perf_counter() - start:.1f} s)",
            flush=True,
        )


@torch.inference_mode()
def search_step(device: torch.device) -> None:
    """Encode sources, make a step from them, and another with the hypotheses reordered."""
    model, _ = build("translation", device)
    assert isinstance(model, Transformer)
    tokenizer = Tokenizer(ALPHABET, ALPHABET)
    decoder = EnsembleDecoder([model.eval()], tokenizer, [row[:-1].tolist() for row in ROWS])
    for _ in range(2):
        tokens = torch.ones(len(ROWS), 2, dtype=torch.int64, device=device)
        live = torch.zeros(len(ROWS), 2, device=device)
        log_probs = decoder.step(tokens)
        best = best_continuations(live, log_probs, log_probs, 4)
        assert {each.device.type for each in best} == {device.type}
        decoder.select(np.arange(len(ROWS)), np.array([[1, 1]] * len(ROWS)))
    scored = EnsembleDecoder([model], tokenizer, [[5, 6]]).score([[7]])
    assert {each.device.type for each in scored} == {device.type}


@torch.inference_mode()
def generation_step(device: torch.device) -> None:
    """Read a prompt, and say what the next token is drawn from."""
    model, _ = build("language_model", device)
    assert isinstance(model, LanguageModel)
    logits = model.eval().step(torch.ones(2, 3, dtype=torch.int64, device=device), model.start())
    restricted = Sampling(0.8, top_k=3, top_p=0.9).restrict(logits)
    assert sample_tokens(restricted, [(1, 0), (1, 1)]).device.type == device.type


@contextlib.contextmanager
def fake_cuda() -> Iterator[torch.device]:
    """Let tensors be fake tensors on a GPU."""
    with contextlib.ExitStack() as stack:
        for target, value in (
            # Numbers drawn on the host, as dropout's seed, would be fakes, and could not be read.
            ("torch.randint", lambda *_: 1),
            # It is tried out with values that are read.
            (
                "seq2seq.model.gpu_attention.find_kernel",
                lambda _, dtype, __: None if dtype == DTYPES["fp32"] else varlen_kernel(),
            ),
            ("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
            ("torch.cuda.is_bf16_supported", lambda *_, **__: True),
        ):
            stack.enter_context(patch(target, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield torch.device("cuda")


def main() -> None:
    """Check the devices named."""
    parser = argparse.ArgumentParser(description="run the code for GPUs on fake devices")
    parser.add_argument("--device", choices=["meta", "cuda"], action="append", help="(meta)")
    parser.add_argument("--precision", choices=[*DTYPES], action="append", help="of cuda (all)")
    parser.add_argument("--shape", choices=[*SHAPES], action="append", help="of cuda (all)")
    parser.add_argument("--few", action="store_true", help="two ways only, of one family")
    arguments = parser.parse_args()
    if "cuda" in (arguments.device or []) and torch._C._get_accelerator().type != "cuda":
        loader = Path(__file__).with_name("fake_cuda.py")
        sys.exit(subprocess.run([sys.executable, str(loader), *sys.argv]).returncode)
    for name in arguments.device or ["meta"]:
        if name == "meta":
            check(torch.device("meta"), "fp32")
        else:
            with fake_cuda() as device:
                for precision in arguments.precision or DTYPES:
                    if not arguments.few:
                        check(device, precision)
                        print(f"cuda {precision}: every family, optimizer and encoding", flush=True)
                    ways = FEW_WAYS if arguments.few else all_ways(precision)
                    for shape in arguments.shape or SHAPES:
                        check_ways(device, shape, precision, ways)
        print(f"{name}: no tensor elsewhere, none read by the host")


if __name__ == "__main__":
    main()
