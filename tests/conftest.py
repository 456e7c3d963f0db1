"""Shared fixtures and helpers: small models and a generated corpus."""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import sentencepiece
import torch
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.nn import functional as F

from seq2seq.config import Config, DecodingConfig, ModelConfig, TokenizerConfig
from seq2seq.data.batching import Packed, context_window_batch
from seq2seq.data.batching import pack as pack_rows
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet, train_vocabulary
from seq2seq.decoding.engines import Engines
from seq2seq.decoding.segments import EncodedRequest
from seq2seq.decoding.terms import Glossary
from seq2seq.decoding.torch_engine import TorchEngine
from seq2seq.decoding.translation import Options, Request
from seq2seq.decoding.translator import Translator
from seq2seq.evaluation.evaluators import validator
from seq2seq.formats.browser import VERSION
from seq2seq.formats.model_directory import load_config
from seq2seq.model.dropout import NO_DROPOUT
from seq2seq.model.packed_attention import PackedAttention
from seq2seq.model.transformer import LanguageModel, Network, Transformer
from seq2seq.training.run import train

ModelT = TypeVar("ModelT", bound=Network)


def pytest_configure() -> None:
    torch.set_num_threads(1)  # threads do not speed up small models
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, runs would inherit SIG_IGN


@pytest.fixture(autouse=True)
def fresh_accelerator() -> Iterator[None]:
    """Reset Accelerate's state. Otherwise the first precision stays for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """Return a factory of small models with random weights in evaluation mode."""

    def make(vocab_size: int = 13, **variant: Any) -> Transformer:
        torch.manual_seed(7)
        return drawn(Transformer(small_shape(**variant), vocab_size)).eval()

    return make


def small_shape(**variant: Any) -> ModelConfig:
    """Return the configuration of a small model without dropout."""
    shape = {"dim": 24, "ffn_dim": 40, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3}
    return ModelConfig(**{**shape, "dropout": 0.0, **variant})


def drawn(model: ModelT) -> ModelT:
    """Randomise norm weights and biases: tests would not notice missing ones and zeros."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                parameter.normal_(centre, 0.1)
    return model


VARIANTS: list[dict[str, Any]] = [
    {"norm": norm, "positions": positions, "activation": activation, "tied": tied}
    for norm in ("post", "pre")
    for positions in ("sinusoidal", "fairseq", "learned", "rotary")
    for activation in ("relu", "gelu", "swiglu")
    for tied in (True, False)
]
VARIANTS += [
    {**VARIANTS[0], "activation": "silu", "output_bias": True},
    {**VARIANTS[-1], "activation": "silu", "output_bias": True},
    {**VARIANTS[0], "positions": "marian", "start": "zero"},
    *({**variant, "start": "zero"} for variant in VARIANTS[:2]),
]
"""All combinations of layer and embedding variants, and some with the remaining keys."""


def covering(variants: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a subset of the variants that contains every pair of values (pairwise testing).

    For tests that take seconds for each variant.
    """
    pairs = [set(combinations(variant.items(), 2)) for variant in variants]
    missing, selected = set().union(*pairs), []
    while missing:
        best = max(range(len(pairs)), key=lambda i: len(pairs[i] & missing))
        selected.append(best)
        missing -= pairs[best]
    return [variants[i] for i in sorted(selected)]


def name_of(variant: dict[str, Any]) -> str:
    """Return the test id of a variant."""
    return "-".join(str(value) for value in variant.values())


def pack(rows: Sequence[Sequence[int]]) -> Packed:
    """Pack sentences of ids."""
    return pack_rows([np.array(row, dtype=np.int32) for row in rows])


def sentence(x: Tensor, side: Packed, number: int) -> Tensor:
    """Return the rows of a sentence from packed tokens, (N, ...)."""
    return x[side.offsets[number] : side.offsets[number + 1]]


SentenceLens = list[tuple[int, int]]
"""Lengths of each sentence on two sides, in tokens."""


def packed_lens(lens: SentenceLens) -> tuple[Packed, Packed]:
    """Pack the two sides of sentences with these lengths."""
    a, b = ([np.zeros(n, dtype=np.int32) for n in side] for side in zip(*lens, strict=True))
    return pack_rows(a), pack_rows(b)


def draw_heads(side: Packed, parts: int, seed: int) -> Tensor:
    """Return two random heads of width 4 for each token and part, (N, parts, 2, 4)."""
    random = torch.Generator().manual_seed(seed)
    shape = (len(side.ids), parts, 2, 4)
    return torch.randn(shape, dtype=torch.float64, generator=random).requires_grad_()


def attend_by_sentence(
    queries: Tensor, keys: Tensor, values: Tensor, cu_q: Tensor, cu_k: Tensor, *_: int, causal: bool
) -> Tensor:
    """Reference for torch.nn.attention.varlen.varlen_attn: loop over the sentences."""
    assert cu_q.dtype == cu_k.dtype == torch.int32 and len(cu_q) == len(cu_k)
    assert cu_q[-1] == len(queries) and cu_k[-1] == len(keys) == len(values)
    outputs = []
    for start, end, first, last in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        q, k, v = queries[start:end], keys[first:last], values[first:last]
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (H, T, K)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        outputs.append(attended.transpose(0, 1))
    return torch.cat(outputs)


ATTENDED: list[SentenceLens] = [
    [(6, 10), (65, 65), (2, 31), (71, 4), (3, 72), (32, 34), (41, 13), (13, 41), (2, 2)],
    [(1, 1)],
    [(64, 64)] * 4,
    [(5, 120), (120, 5)],
    [(31, 31), (32, 32)],  # with padding, as many tokens as two sentences of 32
    [(16, 16), (15, 16), (16, 15), (16, 16)],
    [(1, 1), (64, 64)],
]
"""Batches for tests of attention: query and key lengths of each sentence."""


def check_attention(
    attend: Callable[..., Tensor], side: Packed, memory: Packed, *, causal: bool
) -> Tensor:
    """Compare outputs and gradients with torch's attention, applied to each sentence.

    attend: method of PackedAttention. Returns the outputs, (N, 2, 4).
    """
    inputs = [draw_heads(side, 3, 0)]
    if memory is not side:
        inputs = [draw_heads(side, 1, 0), draw_heads(memory, 2, 1)]
    q, k, v = (part for x in inputs for part in x.unbind(1))
    outputs = attend(PackedAttention(side, memory, NO_DROPOUT.attention, causal=causal), inputs)
    num_queries, num_keys = int(side.offsets[-2]), int(memory.offsets[-2])  # without padding
    offsets = side.offsets[:-1], memory.offsets[:-1]
    q, k, v = q[:num_queries], k[:num_keys], v[:num_keys]
    expected = attend_by_sentence(q, k, v, *offsets, causal=causal)
    torch.testing.assert_close(outputs[:num_queries], expected, rtol=0, atol=1e-12)
    grad_outputs = draw_heads(side, 1, 3)[:, 0].detach()
    grad_outputs[num_queries:] = 0  # padding has no label
    for gradient, expected_gradient in zip(
        torch.autograd.grad(outputs, inputs, grad_outputs),
        torch.autograd.grad(expected, inputs, grad_outputs[:num_queries]),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)
    return outputs


LETTERS = Alphabet("abcdefghij \n")


def make_language_model(context: int = 8, **variant: Any) -> LanguageModel:
    """Return a small untrained language model with the alphabet LETTERS."""
    torch.manual_seed(3)
    shape = small_shape(encoder_layers=0, context=context, **variant)
    return drawn(LanguageModel(shape, LETTERS.size)).eval()


def logits_of(model: LanguageModel, row: list[int]) -> Tensor:
    """Return the logits after each token of a text, (T, V), without a key/value cache."""
    batch = context_window_batch(np.array([[*row, 0]]))
    with torch.no_grad():
        return model.output(model(*batch.inputs))


def sentencepiece_model(texts: Iterable[str], vocab_size: int, **options: Any) -> bytes:
    """Train a SentencePiece model of a user's own."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=vocab_size,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


TEXTS = ["a man sees the red house", "the dog likes a small tree", "ein Mann sieht das Haus"] * 9
VOCABULARY = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=330), [])


@pytest.fixture
def make_translator(make_model: Callable[..., Transformer]) -> Callable[..., Translator]:
    """Return a factory of translators with an untrained model."""

    def make(limit: int | None = 256, **decoding: float | str) -> Translator:
        config = Config()
        clean = replace(config.pairs.clean, max_len=limit)
        config = replace(config, data=replace(config.pairs, clean=clean))
        model = make_model(vocab_size=VOCABULARY.size)
        options = DecodingConfig(**{"max_extra": 8, **decoding})  # type: ignore[arg-type]
        return Translator(
            Engines.of_model(model, Tokenizer(VOCABULARY, VOCABULARY), config), options
        )

    return make


def torch_engine(translator: Translator) -> TorchEngine:
    """Make a translator search with PyTorch for all options, and return the engine."""
    engine = translator.engines.torch
    translator.engines.__dict__["ctranslate2"] = engine  # value of the cached property
    return engine


def encoded(
    translator: Translator, text: str, glossary: Glossary | None = None, **decoding: Any
) -> EncodedRequest:
    """Return a text as the engine's sources."""
    changed = replace(translator.decoding, **decoding)
    [request] = translator.encoder().encode([Request(text)], Options(glossary=glossary), changed)
    return request


ENGLISH = "a the man dog house tree red big small sees has likes old new green runs"
GERMAN = "ein der Mann Hund Haus Baum rot groß klein sieht hat mag alt neu grün läuft"
WORDS = dict(zip(ENGLISH.split(), GERMAN.split(), strict=True))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write a word-for-word parallel corpus (train, dev and test), and return its folder."""
    return write_corpus(tmp_path)


def write_corpus(folder: Path) -> Path:
    """Write a word-for-word parallel corpus (train, dev and test) to a folder."""
    rng = random.Random(3)
    for split, count in (("train", 300), ("dev", 20), ("test", 20)):
        rows = [rng.choices(list(WORDS), k=rng.randint(4, 12)) for _ in range(count)]
        pairs = [(" ".join(row), " ".join(WORDS[word] for word in row)) for row in rows]
        write_pairs(folder, split, pairs)
    return folder


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a text file, and return its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_pairs(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> Path:
    """Write pairs as two text files, and return their prefix."""
    for language, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        write_lines(folder / f"{name}.{language}", texts)
    return folder / name


@pytest.fixture
def recipe(corpus: Path) -> Path:
    """Write a recipe for `corpus` that trains in a second, and return its path."""
    return write_recipe(corpus)


RECIPES = {
    "translation": """
data: {source: en, target: de, train: @/train, dev: @/dev, test: @/test, store: @/store}
tokenizer: {vocab_size: 340}
model: {dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1}
training: {max_steps: 6, batch_tokens: 300, micro_batch_tokens: 200, schedule: inverse_sqrt,
           lr: 0.01, warmup_steps: 4, precision: fp32, log_every: 2, validate_every_epochs: null}
""",
    "language_model": """
task: language_model
data: {text: @/text.txt, store: @/store}
tokenizer: {kind: char}
model: {dim: 32, ffn_dim: 64, num_heads: 2, decoder_layers: 2, context: 16, dropout: 0, norm: pre}
training: {max_steps: 30, batch_tokens: 256, micro_batch_tokens: 128, schedule: cosine, lr: 0.01,
           warmup_steps: 4, label_smoothing: 0, precision: fp32, validate_every_epochs: null}
""",
    "classification": """
task: classification
data: {train: @/train.tsv, dev_size: 40, test: @/test.tsv, store: @/store}
tokenizer: {vocab_size: 330}
model: {dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1, context: 64, positions: learned,
        norm: pre, dropout: 0}
training: {max_steps: 50, batch_tokens: 1000, micro_batch_tokens: 500, schedule: cosine, lr: 0.03,
           warmup_steps: 5, label_smoothing: 0, precision: fp32, validate_every_epochs: null}
""",
}
"""A recipe of each task that trains in a second; `@` is the folder of its data."""


def write_recipe(folder: Path, task: str = "translation") -> Path:
    """Write a task's recipe to the folder of its data, and return its path."""
    path = folder / "tiny.yaml"
    path.write_text(RECIPES[task].replace("@", str(folder)), encoding="utf-8")
    return path


def records(run: Path, kind: str = "") -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, all records or one kind."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if kind in ("", record["kind"])]


def run_recipe(recipe: Path, run: Path, *overrides: str) -> Path:
    """Train a recipe in this process, and return the run directory."""
    config = load_config(recipe, overrides)
    train(config, run, validator)
    return run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of a tiny trained model. Tests must copy it before changing it."""
    folder = tmp_path_factory.mktemp("run")
    for split in ("train", "dev", "test"):
        for language, text in (("en", "the dog number {}\n"), ("de", "der Hund Nummer {}\n")):
            lines = [text.format(f"{i} {split if split != 'train' else ''}") for i in range(30)]
            (folder / f"{split}.{language}").write_text("".join(lines))
    recipe = folder / "tiny.yaml"
    recipe.write_text(
        f"data: {{source: en, target: de, dev: {folder}/dev, "
        f"train: {{path: {folder}/train, tag: <x>}}, "
        f"test: {folder}/test, store: {folder}/store, clean: {{max_len: 40}}}}\n"
        "tokenizer: {vocab_size: 310}\n"
        "model: {dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1}\n"
        "training: {max_steps: 4, batch_tokens: 300, precision: fp32, warmup_steps: 2}\n"
        "decoding: {max_extra: 3, precision: fp32}\n"
    )
    train(load_config(recipe), folder / "run", validator)
    return folder / "run"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of `prepared.py`. Tests must copy it before changing it."""
    from prepared import prepare_folder  # imports this module

    folder = tmp_path_factory.mktemp("prepared")
    prepare_folder(folder)
    return folder


@pytest.fixture(scope="session")
def bergamot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of Bergamot from npm."""
    folder = tmp_path_factory.mktemp("bergamot")
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("needs Node and npm")
    command = ["npm", "pack", "--loglevel=error", f"@browsermt/bergamot-translator@{VERSION}"]
    packed = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if packed.returncode:
        pytest.skip(f"npm cannot fetch Bergamot: {packed.stderr}")
    [archive] = folder.glob("*.tgz")
    shutil.unpack_archive(archive, folder)
    # Node would read the worker as a module, as the package.json above says.
    (folder / "package/worker/package.json").write_text('{"type": "commonjs"}')
    return folder / "package"
