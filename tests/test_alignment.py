"""Word alignments from attention, and the choice of heads."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import sentencepiece
import torch
from conftest import VOCABULARY, engine_of

from seq2seq import Translator
from seq2seq.config import DecodingConfig
from seq2seq.data.vocabulary import SentencePieces
from seq2seq.decoding.alignment import align, word_attention, words_in, words_of
from seq2seq.decoding.segments import Segment
from seq2seq.model.cache import AttentionHeads


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
        sentence_iterator=iter(texts), model_writer=stream, vocab_size=40, model_type="bpe",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    vocabulary = SentencePieces(stream.getvalue(), "test")
    text = "it the\u200bdog \u00ad is\u00a0small \u00e9"
    [ids] = vocabulary.encode([text])
    words = words_in(text, ids, vocabulary)
    written = text.split()
    assert len(words) == len(ids) and set(words) <= set(range(len(written)))
    for number, piece in zip(words, vocabulary.pieces(ids), strict=True):
        if letters := piece.replace("\u2581", ""):
            assert letters in written[number] or letters == "<unk>"
    assert words_in("", [1, 2], vocabulary) == []


def test_attention_between_words_and_its_links() -> None:
    # Source words: tokens 0, 1 and 2; target words: token 0 and tokens 1, 2; the last is the end.
    attention = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.4, 0.3, 0.2, 0.1], [0.0, 0.1, 0.8, 0.1]])
    words = word_attention(attention, [0, 0, 1], [0, 1, 1])
    assert torch.allclose(words, torch.tensor([[0.6, 0.3], [0.4, 0.5]]))
    assert align(attention, [0, 0, 1], [0, 1, 1]) == [(0, 0), (1, 1)]
    assert align(attention, [], [0]) == []


@pytest.mark.parametrize("beam", [1, 3])
def test_the_attention_of_whole_targets_is_that_of_the_steps(
    make_translator: Callable[..., Translator], beam: int
) -> None:
    """The coverage of a search is the sum of the attention of its hypothesis, recomputed."""
    translator = make_translator(beam=beam, coverage_penalty=1.0, length_penalty=0.0)
    engine = engine_of(translator)
    sources = VOCABULARY.encode(["a man sees the red house", "the dog", "tree"])
    found = engine.search([Segment(source) for source in sources], translator.decoding)
    for source, [best] in zip(sources, found, strict=True):
        _, layers = engine.ensemble.force([(source, best.tokens)], need_weights=True)
        for layer in layers:
            assert layer.shape == (1, 4, len(best.tokens) + 1, len(source) + 1)
            assert torch.allclose(layer.sum(dim=-1), torch.ones(layer.shape[:-1]), atol=1e-5)
        summed = engine.heads.weights(layers)[0].sum(dim=0)[: len(source)]
        expected = best.log_prob + float(summed.clamp(max=1).log().sum())
        assert best.score == pytest.approx(expected, abs=1e-4)


def test_the_shift_chooses_the_position(make_translator: Callable[..., Translator]) -> None:
    engine = engine_of(make_translator())
    source, target = VOCABULARY.encode(["the red house", "a dog"])
    _, layers = engine.ensemble.force([(source, target)], need_weights=True)
    for shift in (0, 1):
        heads = AttentionHeads(((1, 2), (2, 0)), shift)
        [scored] = engine.score([(source, target)], DecodingConfig(), heads)
        assert scored.attention is not None
        expected = (layers[1][0, 2] + layers[2][0, 0]) / 2
        assert torch.allclose(scored.attention, expected[shift : shift + len(target)], atol=1e-6)
