"""Word alignments by attention, the attention of both engines, and repetitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, pack, sentence, sentencepiece_model
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from seq2seq import Translator
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.decoding.alignment import (
    WORDS,
    align,
    first_words,
    longest_run,
    piece_words,
    repeats_itself,
)
from seq2seq.decoding.engine import Engine
from seq2seq.text.language import TOKENS


def test_word_indices_with_a_normalising_tokenizer() -> None:
    """SentencePiece's default normalisation replaces a zero-width space by a space."""
    texts = ["the dog", "a small house", "it is"] * 20
    model = sentencepiece_model(texts, 40, model_type="bpe", hard_vocab_limit=False)
    vocabulary = SentencePieces(model, "test")
    text = "it the\u200bdog \u00ad is\u00a0small \u00e9"
    [pieces] = vocabulary.encode_pieces([text])
    indices = piece_words(text, pieces, vocabulary)
    words = text.split()
    assert len(indices) == len(pieces) and set(indices) <= set(range(len(words)))
    [ids] = vocabulary.piece_ids([pieces])
    for index, piece, token in zip(indices, pieces, ids, strict=True):
        assert piece.strip("\u2581") in words[index] or token == vocabulary.unk_id
    assert piece_words("", pieces[:2], vocabulary) == []


def test_a_target_word_is_linked_to_the_source_word_that_it_attends_to_most() -> None:
    # Source words: tokens 0-1 and 2. Target words: tokens 0 and 1-2. The last column is the end.
    rows = [[0.3, 0.2, 0.4, 0.1], [0.4, 0.1, 0.4, 0.1], [0.0, 0.1, 0.8, 0.1]]
    attention = np.array(rows, dtype=np.float32)
    assert align(attention, [0, 0, 1], [0, 1, 1]) == [(0, 0), (1, 1)]
    assert align(attention, [], [0]) == []


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_attention_is_the_mean_of_the_heads_of_the_penultimate_layer(
    make_translator: Callable[..., Translator], engine: str
) -> None:
    """Compare with attention weights computed from queries and keys, for different lengths."""
    translator = make_translator()
    assert translator.engines.models
    [model] = translator.engines.models()
    texts = ["a man sees the red house", "the dog", "tree"]
    sources, targets = VOCABULARY.encode(texts), VOCABULARY.encode(["ein Mann", "das", "sees red"])
    source = pack([[*ids, VOCABULARY.eos_id] for ids in sources])
    target = pack([[VOCABULARY.bos_id, *ids] for ids in targets])
    cross, projections = model.decoder.layers[1].cross_attention, []  # 3 layers
    project = cross.project

    def record(*args: Any) -> list[Tensor]:
        projections.append(project(*args))
        return projections[-1]

    with patch.object(cross, "project", record), torch.no_grad():
        model(source, target)
    [(queries, keys_values)] = projections
    pairs = [*zip(*(map(VOCABULARY.pieces, side) for side in (sources, targets)), strict=True)]
    tested: Engine = getattr(translator.engines, engine)
    for number, attention in enumerate(tested.attention(pairs, translator.decoding)):
        q = sentence(queries[:, 0], target, number)
        k = sentence(keys_values[:, 0], source, number)
        scores = torch.einsum("thk,shk->hts", q, k) / q.shape[-1] ** 0.5
        weights = scores.softmax(dim=-1).mean(dim=0)[: len(targets[number]), :-1]
        np.testing.assert_allclose(attention, weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "length"),
    [("aaaaaa", 6), ("aaaaa", 0), ("xabcabcabcay", 9), ("abcdefabcdef", 0), ("", 0)],
)
def test_the_length_of_a_repetition(text: str, length: int) -> None:
    assert longest_run(text) == length
    assert repeats_itself([], text) == bool(length)
    assert not repeats_itself(text, text)  # equal repetition in the source
    assert not length or repeats_itself(text, text * 7)


@given(st.lists(st.tuples(st.sampled_from(["", " ", "\n"]), st.text("ab .狗", max_size=5))))
def test_joined_texts_have_the_words_of_the_whole(parts: list[tuple[str, str]]) -> None:
    for words in (WORDS, TOKENS):
        separators, texts = [x for x, _ in parts], [x for _, x in parts]
        firsts = first_words(separators, texts, words)
        before = ""
        for separator, text, first in zip(separators, texts, firsts, strict=True):
            before += separator + text
            if words.search(text):
                assert first == len(words.findall(before)) - len(words.findall(text))
