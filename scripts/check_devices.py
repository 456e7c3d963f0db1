"""Run training updates, a search step and a generation step on a fake device, without a GPU.

Usage: python scripts/check_devices.py [--device meta|cuda ...] [--precision fp32|fp16|bf16 ...]
       [--shape tiny|base|big ...] [--few]

The updates (forward, loss, backward, clipping, skipping) cover all model families and optimizers.
`meta` works everywhere, in fp32. `cuda` uses fake tensors. It covers all precisions with autocast
and loss scaling, flash attention and padded rows, attention dropout and gradient checkpointing. It
needs a build of torch without CUDA and a C++ compiler (fake_cuda.py).

Nothing is computed. The checks find wrong shapes, tensors on the wrong device, and values that the
host reads, for which an update would wait. Pinned memory is not covered.
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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seq2seq.config import ModelConfig, TrainingConfig
from seq2seq.data.batching import Batch, context_window_batch, pack, pack_pairs
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.rules import Sampling, sample_tokens
from seq2seq.decoding.search import best_continuations
from seq2seq.decoding.torch_engine import EnsembleDecoder
from seq2seq.machine.precision import DTYPES, Precision
from seq2seq.model.packed_attention import varlen_kernel
from seq2seq.model.transformer import Classifier, LanguageModel, Network, Transformer
from seq2seq.training.update import Updater

ALPHABET = Alphabet("abcdefgh\n ")
ROWS = [np.array(row, dtype=np.int32) for row in ([5, 6, 7], [8, 9], [4, 5, 6, 7, 8, 9])]
SHAPE = {"dim": 64, "ffn_dim": 96, "num_heads": 2, "norm": "pre", "context": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 64, "ffn_dim": 96, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "base": {},
    "big": {"dim": 1024, "ffn_dim": 4096, "num_heads": 16},
}
"""Shapes of the translation model, as differences from base."""
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
"""Model class, depth, vocabulary sizes and a batch for each task."""


class FakeAccelerator:
    """Accelerator of one process, with the methods that an update needs."""

    num_processes = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, module: nn.Module) -> nn.Module:
        """Return the model unchanged."""
        return module

    def no_sync(self, _: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Return an empty context: one process exchanges no gradients."""
        return contextlib.nullcontext()


class HostReads(TorchDispatchMode):
    """Counts synchronisation points: operators that copy values from the device to the host.

    Also counts assignments of a Python number to an indexed tensor: on a GPU the number is copied
    from the host, and the copy waits. Operators with a data-dependent output shape fail on fake
    tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.num_operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.num_operators += 1
        on_device = devices((args, kwargs)) - {"cpu"}
        assigns_number = func is torch.ops.aten.index_put_.default and devices(args[2]) == {"cpu"}
        if on_device and (assigns_number or torch.Tag.data_dependent_output in func.tags):
            self.seen[str(func)] += 1
        result = func(*args, **(kwargs or {}))
        if on_device and "cpu" in devices(result):
            self.seen[str(func)] += 1
        return result


def devices(tree: Any) -> set[str]:
    """Return the device types of all tensors in nested containers."""
    return {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


def build(task: str, device: torch.device, **variant: Any) -> tuple[Network, Batch]:
    """Return a small model on a device, and a batch on the host."""
    family, depth, sizes, batch = FAMILIES[task]
    config = ModelConfig(**{**SHAPE, **depth, **variant})
    with device:
        return family(config, *sizes), batch


@patch("torch.nn.Module.to", lambda module, _: module)  # fails for fake tensors
@patch.object(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_: None)
def make_updates(
    model: Network,
    batch: Batch,
    device: torch.device,
    precision: Precision,
    optimizer: Any = "adam",
) -> HostReads:
    """Make two updates of two micro-batches; return the counters of host reads."""
    accelerator: Any = FakeAccelerator(device)
    training = TrainingConfig(optimizer=optimizer, clip_norm=1.0, weight_decay=0.1, r_drop=1.0)
    updater = Updater(model, training, accelerator, precision)
    with HostReads() as reads:
        for _ in range(2):
            result = updater.update([batch, batch], 2 * batch.num_labels, 0.01)
            assert result.device.type == device.type
    updated = [state for optimizer in updater.optimizers for state in optimizer.state]
    assert len(updated) == len([*model.parameters()]), "a parameter has no gradient"
    assert not reads.seen, f"the host reads values: {reads.seen}"
    return reads


def check(device: torch.device, precision: Precision) -> None:
    """Make updates of all model families, a search step and a generation step."""
    variants = (("adam", "sinusoidal"), ("adam", "learned"), ("muon", "rotary"))
    for task, (optimizer, positions) in product(FAMILIES, variants):
        make_updates(*build(task, device, positions=positions), device, precision, optimizer)
    search_step(device)
    generation_step(device)


Variant = tuple[str, float, bool]
"""`flash` or `rows`, attention dropout, gradient checkpointing."""
FEW_VARIANTS: list[Variant] = [("flash", 0.0, True), ("rows", 0.1, False)]


def all_variants(precision: Precision) -> list[Variant]:
    """Return all variants of a precision. Flash attention needs 16 bits and no dropout."""
    variants = product(("flash", "rows"), (0.0, 0.1), (False, True))
    return [v for v in variants if v[0] == "rows" or (precision != "fp32" and not v[1])]


def check_variants(
    device: torch.device, shape: str, precision: Precision, variants: Sequence[Variant]
) -> None:
    """Make updates of the translation model in one shape and precision."""
    random = np.random.default_rng(1)
    rows = [random.integers(4, ALPHABET.size, n).astype(np.int32) for n in range(1, 80)]
    batch = pack_pairs(rows, rows[::-1], rows[::-1])
    for attention, attention_dropout, recompute in variants:
        start = time.perf_counter()
        with device:
            config = ModelConfig(**{**SHAPES[shape], "attention_dropout": attention_dropout})
            model = Transformer(config, ALPHABET.size)
        model.set_gradient_checkpointing(recompute)
        kernel = varlen_kernel() if attention == "flash" else None
        with patch("seq2seq.model.packed_attention.find_kernel", lambda *_, kernel=kernel: kernel):
            reads = make_updates(model, batch, device, precision)
        print(
            f"{device.type} {shape} {precision}: {attention}, attention_dropout="
            f"{attention_dropout}, gradient_checkpointing={recompute}: "
            f"{reads.num_operators // 2} operators per update, {reads.seen.total()} host reads "
            f"({time.perf_counter() - start:.1f} s)",
            flush=True,
        )


@torch.inference_mode()
def search_step(device: torch.device) -> None:
    """Encode sources, and make two search steps with reordered hypotheses."""
    model, _ = build("translation", device)
    assert isinstance(model, Transformer)
    tokenizer = Tokenizer(ALPHABET, ALPHABET)
    decoder = EnsembleDecoder([model.eval()], tokenizer, [row[:-1].tolist() for row in ROWS])
    for _ in range(2):
        tokens = torch.ones(len(ROWS), 2, dtype=torch.int64, device=device)
        live = torch.zeros(len(ROWS), 2, device=device)
        log_probs = decoder.step(tokens)
        best = best_continuations(live, log_probs, log_probs, 4)
        assert {tensor.device.type for tensor in best} == {device.type}
        decoder.select(np.arange(len(ROWS)), np.array([[1, 1]] * len(ROWS)))
    scores = EnsembleDecoder([model], tokenizer, [[5, 6]]).score([[7]])
    assert {tensor.device.type for tensor in scores} == {device.type}


@torch.inference_mode()
def generation_step(device: torch.device) -> None:
    """Read a prompt, and sample the next token."""
    model, _ = build("language_model", device)
    assert isinstance(model, LanguageModel)
    logits = model.eval().step(torch.ones(2, 3, dtype=torch.int64, device=device), model.start())
    restricted = Sampling(0.8, top_k=3, top_p=0.9).restrict(logits)
    assert sample_tokens(restricted, [(1, 0), (1, 1)]).device.type == device.type


@contextlib.contextmanager
def fake_cuda() -> Iterator[torch.device]:
    """Make all tensors fake, and return a fake GPU."""
    with contextlib.ExitStack() as stack:
        for target, value in (
            # Random numbers on the host, such as the seed of dropout, would be fake.
            ("torch.randint", lambda *_: 1),
            # The original tests the kernel with real values.
            (
                "seq2seq.model.packed_attention.find_kernel",
                lambda _, dtype, __: None if dtype == DTYPES["fp32"] else varlen_kernel(),
            ),
            ("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
            ("torch.cuda.is_bf16_supported", lambda *_, **__: True),
        ):
            stack.enter_context(patch(target, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield torch.device("cuda")


def main() -> None:
    """Check the devices named on the command line."""
    parser = argparse.ArgumentParser(description="run the code for GPUs on fake devices")
    parser.add_argument("--device", choices=["meta", "cuda"], action="append", help="(meta)")
    parser.add_argument("--precision", choices=[*DTYPES], action="append", help="of cuda (all)")
    parser.add_argument("--shape", choices=[*SHAPES], action="append", help="of cuda (all)")
    parser.add_argument("--few", action="store_true", help="two variants of one model family")
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
                        print(
                            f"cuda {precision}: all families, optimizers and positions", flush=True
                        )
                    variants = FEW_VARIANTS if arguments.few else all_variants(precision)
                    for shape in arguments.shape or SHAPES:
                        check_variants(device, shape, precision, variants)
        print(f"{name}: all tensors on the device, no host reads")


if __name__ == "__main__":
    main()
