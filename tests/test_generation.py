"""Text generation: sampling, streaming, and texts longer than the context."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import LETTERS, logits_of, make_language_model, small_shape
from torch import Tensor

from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Alphabet
from seq2seq.decoding.generation import TextGenerator
from seq2seq.decoding.rules import Sampling, gumbel_noise, sample_tokens
from seq2seq.errors import UserError
from seq2seq.model.transformer import LanguageModel

TOKENIZER = Tokenizer(LETTERS, LETTERS)


def step_by_step(model: LanguageModel, prompt: list[int], length: int) -> Iterator[int]:
    """Generate without a key/value cache, from the same context windows as `TextGenerator`."""
    context, window = model.config.context, prompt
    for step in range(length):
        token = int(sample_tokens(logits_of(model, window)[-1:], [(1, 0, step)]))
        yield token
        window = [*window, token]
        if len(window) > context:
            window = window[-(context // 2) :]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("prompt", ["a", "abcdefgh", "abcdefghijabcdefghij"])
def test_generation_equals_recomputation_beyond_the_context(positions: str, prompt: str) -> None:
    model = make_language_model(positions=positions)
    generator = TextGenerator(model, TOKENIZER)
    parts = generator.generate(prompt, length=40, sampling=Sampling(), seed=1)
    text = "".join(part for [part] in parts)
    [ids] = LETTERS.encode([prompt])
    expected = list(step_by_step(model, ids[-8:], 40))
    assert LETTERS.encode([text])[0] == expected
    assert len(set(expected)) > 5  # a constant output would prove nothing


def test_a_sample_depends_on_its_seed_and_number_only() -> None:
    generator = TextGenerator(make_language_model(), TOKENIZER)

    def texts(**options: int) -> list[str]:
        parts = generator.generate("ab", length=30, sampling=Sampling(), **options)
        return ["".join(sample) for sample in zip(*parts, strict=True)]

    three = texts(seed=5, samples=3)
    assert texts(seed=5) == three[:1] and texts(seed=5, samples=2) == three[:2]
    assert len(set(three)) == 3 and texts(seed=6) != three[:1]


def test_a_model_that_predicts_nan_is_an_error() -> None:
    model = make_language_model()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    generator = TextGenerator(model, TOKENIZER, "runs/bad")
    with pytest.raises(UserError, match="runs/bad predicts NaN probabilities"):
        list(generator.generate("ab", length=3, sampling=Sampling(), seed=1))


def test_samples_are_streamed_with_their_prompt() -> None:
    generator = TextGenerator(make_language_model(), TOKENIZER)
    options = {"length": 9, "sampling": Sampling(), "seed": 5, "samples": 2}
    parts = list(generator.stream("ab", **options))  # type: ignore[arg-type]
    first, second = (
        "ab" + "".join(sample)
        for sample in zip(*generator.generate("ab", **options), strict=True)  # type: ignore[arg-type]
    )
    assert "".join(parts) == f"{first}\n{'-' * 20}\n{second}\n"
    assert parts[0] == first[:3] and len(parts) > 9


def test_the_distribution_of_gumbel_noise() -> None:
    """The mean of standard Gumbel noise is Euler's constant."""
    noise = gumbel_noise([(3, i) for i in range(400)], 500, torch.device("cpu")).double()
    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)
    for matrix in (noise, noise.T):  # rows and columns are independent
        correlations = torch.corrcoef(torch.cat([matrix[:200], matrix[:200].roll(1, dims=1)]))
        bound = 5.5 / math.sqrt(matrix.shape[1])
        assert float((correlations - torch.eye(400)).abs().max()) < bound
    cdf = (-(-noise.flatten().sort().values).exp()).exp()
    distance = (cdf - torch.linspace(0, 1, len(cdf), dtype=torch.float64)).abs().max()
    assert float(distance) < 2 / math.sqrt(len(cdf))  # Kolmogorov-Smirnov distance


def test_improbable_tokens_are_not_sampled_too_often() -> None:
    """Random numbers of low precision would sample them too often."""
    logits = torch.full((20_000, 2_000), -18.0)
    logits[:, 0] = 0.0
    tokens = sample_tokens(logits, [(6, i) for i in range(len(logits))])
    expected = len(logits) * 2_000 * math.exp(-18)  # 0.6
    assert int((tokens != 0).sum()) <= expected + 5


def test_rounding_of_the_logits_hardly_changes_samples() -> None:
    """Rounding depends on the batch. Inverse transform sampling would change some samples."""
    torch.manual_seed(2)
    logits = torch.randn(2_000, 1_000) * 3
    seeds = [(4, i) for i in range(len(logits))]
    rounded = logits + 1e-6 * torch.randn_like(logits)
    assert int((sample_tokens(logits, seeds) != sample_tokens(rounded, seeds)).sum()) <= 1


def test_temperature_top_k_and_top_p_against_their_definitions() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0], [0.0, 0.0, 5.0, 1.0]])

    def probabilities(**options: Any) -> Tensor:
        return Sampling(**options).restrict(logits).softmax(dim=-1)

    torch.testing.assert_close(probabilities(), logits.softmax(dim=-1))
    torch.testing.assert_close(probabilities(temperature=0.5), (logits * 2).softmax(dim=-1))
    for temperature in (0, 1e-45, 1e-30):
        assert probabilities(temperature=temperature).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    first, second = [False, True, True, False], [False, False, True, True]
    assert (probabilities(top_k=2) > 0).tolist() == [first, second]
    ties = Sampling(top_k=3).restrict(torch.ones(1, 9, dtype=torch.bfloat16))
    assert int(ties.isfinite().sum()) == 3
    # First row: 0.64 + 0.24 > 0.7. Second row: 0.97 > 0.7.
    assert (probabilities(top_p=0.7) > 0).tolist() == [first, [False, False, True, False]]
    assert (probabilities(top_p=1e-9) > 0).sum(dim=-1).tolist() == [1, 1]
    wrong: list[tuple[str, Any]] = [("temperature", -1), ("temperature", math.nan)]
    wrong += [("top_k", 0), ("top_p", 0.0), ("top_p", 1.5)]
    for name, value in wrong:
        with pytest.raises(UserError, match=name):
            Sampling(**{name: value})


def test_text_is_streamed_in_whole_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    alphabet = Alphabet(None)
    model = LanguageModel(small_shape(encoder_layers=0, context=8), 256).eval()
    tokens = iter([*"é你".encode(), 0xE4])
    monkeypatch.setattr(model, "step", lambda *_: torch.eye(256)[[next(tokens)]])
    generator = TextGenerator(model, Tokenizer(alphabet, alphabet))
    parts = [part for [part] in generator.generate("a", length=6, sampling=Sampling(0), seed=1)]
    assert parts == ["", "é", "", "", "你", "", "\ufffd"]


def test_invalid_prompts() -> None:
    generator = TextGenerator(make_language_model(), TOKENIZER)
    with pytest.raises(UserError, match="'Z' is not in the alphabet of 12"):
        next(generator.generate("aZ", length=1, sampling=Sampling(), seed=1))
    prompt = "a\udcff"  # the byte 0xff in a command-line argument
    assert Alphabet(None).encode([prompt]) == [[97, 255]]
