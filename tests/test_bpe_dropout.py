"""BPE-dropout: segmentations, their distribution, and reproducibility."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from conftest import sentencepiece_model
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.config import TokenizerConfig
from seq2seq.data.augmentation import BPEDropout, generators
from seq2seq.data.store import Ids
from seq2seq.data.vocabulary import SentencePieces, train_vocabulary
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare

TEXTS = ["the quick brown fox jumps", "over the lazy dog", "Füchse springen über Hunde"] * 20
BPE = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=330), ["<news>"])


def own_model(**options: Any) -> bytes:
    """Return a user's own model: without bytes, with other special symbols."""
    wanted: dict[str, Any] = {"model_type": "bpe", "vocab_size": 70, "pad_id": -1} | options
    return sentencepiece_model(TEXTS, **wanted)


OWN = [
    SentencePieces(own_model(), "own"),
    SentencePieces(own_model(character_coverage=0.98), "some characters unknown"),
    SentencePieces(own_model(split_by_whitespace=False), "pieces of several words"),
    SentencePieces(own_model(treat_whitespace_as_suffix=True), "spaces behind words"),
]


def row_of(vocabulary: SentencePieces, text: str) -> Ids:
    return np.array(vocabulary.encode([text])[0], dtype=np.int32)


def drawn(vocabulary: SentencePieces, text: str, dropout: float, count: int) -> list[list[int]]:
    cut, row = BPEDropout(vocabulary, dropout), row_of(vocabulary, text)
    return [cut(row, random).tolist() for random in generators(np.arange(count), seed=1, epoch=0)]


@pytest.mark.parametrize("vocabulary", [BPE, *OWN])
@given(
    text=st.lists(st.sampled_from([*" ".join(TEXTS[:3]).split(), " ", "ü", "€", "<news>", "fo"]))
)
@settings(max_examples=100, deadline=None)
def test_probability_zero_equals_sentencepiece(vocabulary: SentencePieces, text: list[str]) -> None:
    sentence = "".join(text)
    assert drawn(vocabulary, sentence, 1e-12, 1) == vocabulary.encode([sentence])


@pytest.mark.parametrize("vocabulary", [BPE, *OWN])
def test_segmentations_vary_and_decode_to_the_same_text(vocabulary: SentencePieces) -> None:
    text = "the quick brown fox jumps €"
    samples = drawn(vocabulary, text, 0.3, 30)
    assert len({tuple(sample) for sample in samples}) > 10
    assert {vocabulary.decode([sample])[0] for sample in samples} == {
        vocabulary.decode(vocabulary.encode([text]))[0]
    }
    [characters] = drawn(vocabulary, "the dog", 1.0, 1)
    assert len(characters) == len("_the_dog")


@pytest.mark.parametrize("vocabulary", [BPE, OWN[2]])
def test_segmentations_are_as_frequent_as_sentencepieces(vocabulary: SentencePieces) -> None:
    text, count = "quick springen", 5_000
    found = Counter(map(tuple, drawn(vocabulary, text, 0.2, count)))
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    expected = Counter(
        tuple(processor.encode(text, enable_sampling=True, alpha=0.2)) for _ in range(count)
    )
    for pieces, times in expected.most_common(8):
        deviation = np.sqrt(2 * times * (1 - times / count))
        assert abs(found[pieces] - times) < 5 * deviation, vocabulary.decode([list(pieces)])


def test_tags_and_bytes_are_not_split() -> None:
    [tag] = row_of(BPE, "<news>")[-1:]
    assert all(sample.count(tag) == 1 for sample in drawn(BPE, "<news> the fox €", 0.9, 20))


def test_each_sentence_has_its_own_random_numbers() -> None:
    cut, row = BPEDropout(BPE, 0.3), row_of(BPE, "the quick brown fox jumps")

    def samples(*, seed: int, epoch: int, offset: int) -> list[list[int]]:
        places = np.arange(offset, offset + 9)
        return [cut(row, random).tolist() for random in generators(places, seed=seed, epoch=epoch)]

    first = samples(seed=1, epoch=0, offset=0)
    assert first == samples(seed=1, epoch=0, offset=0)
    assert first[4:] == samples(seed=1, epoch=0, offset=4)[:5]  # wherever an update begins
    assert first != samples(seed=2, epoch=0, offset=0) != samples(seed=1, epoch=1, offset=0)
    assert len(set(map(tuple, first))) > 4
    samples(seed=2**80 + 1, epoch=0, offset=0)


@pytest.mark.parametrize("kind", ["unigram", "word", "char"])
def test_a_model_without_merges_is_refused(recipe: Path, tmp_path: Path, kind: str) -> None:
    model = tmp_path / "own.model"
    model.write_bytes(own_model(model_type=kind, vocab_size=40, hard_vocab_limit=False))
    options = [f"tokenizer.models=[{model}]", "tokenizer.bpe_dropout=0.1"]
    with pytest.raises(UserError, match=r"own\.model is not a BPE model: set"):
        prepare(load_config(recipe, options))
    model.write_bytes(own_model())
    prepare(load_config(recipe, options))
