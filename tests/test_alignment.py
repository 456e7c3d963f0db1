"""Word alignments from attention, the attention of both engines, repetitions."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import sentencepiece
import torch
from conftest import VOCABULARY, pack, sentence
from torch import Tensor

from seq2seq import Translator
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.decoding.alignment import align, repeated, repeats_itself, words_in, words_of
from seq2seq.decoding.engine import Engine


def test_the_words_of_tokens_are_those_of_their_text() -> None:
    pieces = [
        b" the",
        b" ",
        b"ho",
        b"use",
        b"",
        b" x",
        "\u00a0".encode(),
        b"y ",
        b"\xe3",
        b"\x80\x80",
    ]
    assert words_of([0, 1, 2, 3, 4, 5], pieces) == [0, 1, 1, 1, 1, 2]
    assert words_of([2, 0], pieces) == [0, 1] and words_of([], pieces) == []
    assert words_of([1, 0, 1, 1, 5], pieces) == [0, 0, 1, 1, 1]  # starts with a lone space
    assert words_of([0, 6, 2, 7, 1], pieces) == [0, 1, 1, 1, 1]  # ends with one
    assert words_of([2, 8, 9, 3], pieces) == [0, 1, 1, 1]  # U+3000 in two tokens
    assert words_of([1, 4], pieces) == [0, 0]


def test_words_that_the_tokenizer_normalises() -> None:
    """SentencePiece's default normalisation makes a space of a zero-width one."""
    texts = ["the dog", "a small house", "it is"] * 20
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=stream,
        vocab_size=40,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    vocabulary = SentencePieces(stream.getvalue(), "test")
    text = "it the\u200bdog \u00ad is\u00a0small \u00e9"
    [pieces] = vocabulary.encode_pieces([text])
    words = words_in(text, pieces, vocabulary)
    written = text.split()
    assert len(words) == len(pieces) and set(words) <= set(range(len(written)))
    [ids] = vocabulary.piece_ids([pieces])
    for number, piece, token in zip(words, pieces, ids, strict=True):
        assert piece.strip("\u2581") in written[number] or token == vocabulary.unk_id
    assert words_in("", pieces[:2], vocabulary) == []


def test_a_target_word_is_linked_to_the_source_word_that_it_attends_to_most() -> None:
    # Source words: tokens 0, 1 and 2; target words: token 0 and tokens 1, 2; the last is the end.
    rows = [[0.3, 0.2, 0.4, 0.1], [0.4, 0.1, 0.4, 0.1], [0.0, 0.1, 0.8, 0.1]]
    attention = np.array(rows, dtype=np.float32)
    assert align(attention, [0, 0, 1], [0, 1, 1]) == [(0, 0), (1, 1)]
    assert align(attention, [], [0]) == []


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_the_attention_is_that_of_the_last_layer_but_one(
    make_translator: Callable[..., Translator], engine: str
) -> None:
    """The mean of its heads, of sentences of different lengths, by its definition."""
    translator = make_translator()
    assert translator.engines.models
    [model] = translator.engines.models()
    texts = ["a man sees the red house", "the dog", "tree"]
    sources, targets = VOCABULARY.encode(texts), VOCABULARY.encode(["ein Mann", "das", "sees red"])
    source = pack([[*ids, VOCABULARY.eos_id] for ids in sources])
    target = pack([[VOCABULARY.bos_id, *ids] for ids in targets])
    cross, seen = model.decoder.each_layer()[1].cross_attention, []  # of three layers
    project = cross.project

    def noted(*args: Any) -> tuple[Tensor, ...]:
        seen.append(project(*args))
        return seen[-1]

    with patch.object(cross, "project", noted), torch.no_grad():
        model(source, target)
    [(queries, keys, _)] = seen
    pairs = [*zip(*(map(VOCABULARY.pieces, side) for side in (sources, targets)), strict=True)]
    chosen: Engine = getattr(translator.engines, engine)
    for number, found in enumerate(chosen.attention(pairs, translator.decoding)):
        own = sentence(queries, target, number), sentence(keys, source, number)
        scores = torch.einsum("thk,shk->hts", *own) / own[0].shape[-1] ** 0.5
        weights = scores.softmax(dim=-1).mean(dim=0)[: len(targets[number]), :-1]
        np.testing.assert_allclose(found, weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "length"),
    [("aaaaaa", 6), ("aaaaa", 0), ("xabcabcabcay", 9), ("abcdefabcdef", 0), ("", 0)],
)
def test_the_length_of_a_repetition(text: str, length: int) -> None:
    assert repeated(text) == length
    assert repeats_itself([], text) == bool(length)
    assert not repeats_itself(text, text)  # the source does it too
    assert not length or repeats_itself(text, text * 7)


def test_repetitions_in_random_sequences() -> None:
    def repeats(tokens: str) -> bool:
        return any(
            tokens[start : start + n] * times == tokens[start : start + n * times]
            for start in range(len(tokens))
            for n in range(1, (len(tokens) - start) // 3 + 1)
            for times in [max(3, 6 // n)]
        )

    generator = np.random.default_rng(1)
    for length in range(30):
        for _ in range(20):
            tokens = "".join(generator.choice(["a", "b"], length))
            assert bool(repeated(tokens)) == repeats(tokens), tokens
