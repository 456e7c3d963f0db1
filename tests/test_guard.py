"""Signs of bad translations."""

from __future__ import annotations

import numpy as np
import pytest

from seq2seq.decoding.alignment import may_omit, omits, repeated, repeats_itself, sentences_of


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("aaaaaa", 6),
        ("aaaaa", 0),
        ("xabcabcabcay", 10),
        ("abcdefabcdef", 0),
        ("", 0),
    ],
)
def test_repetitions(text: str, length: int) -> None:
    tokens = list(text)
    assert repeated(tokens) == length
    assert repeats_itself([], tokens) == bool(length)
    assert not repeats_itself(tokens, tokens)  # the source does it too
    if length:
        assert not repeats_itself(tokens, tokens + tokens[:1])
        assert repeats_itself(tokens, tokens[1:-1] * 2 + tokens[2:3] * 40)


def test_repetitions_against_every_part_of_random_sequences() -> None:
    def slowly(tokens: list[str]) -> int:
        best = 0
        for start in range(len(tokens)):
            for n in range(1, (len(tokens) - start) // 3 + 1):
                end = start + n
                while end < len(tokens) and tokens[end] == tokens[end - n]:
                    end += 1
                if end - start >= max(3 * n, 6):
                    best = max(best, end - start)
        return best

    generator = np.random.default_rng(1)
    for length in range(30):
        for _ in range(20):
            tokens = generator.choice(["a", "b"], length).tolist()
            assert repeated(tokens) == slowly(tokens), tokens


def test_sentences_and_lengths() -> None:
    assert sentences_of("One. Two!  Three? e.g.") == ["One.", "Two!", "Three?", "e.g."]
    assert sentences_of("你好。再见。") == ["你好。", "再见。"]
    assert may_omit("One. Two.", "Eins.", 6, 3)
    assert not may_omit("One. Two.", "Eins. Zwei.", 6, 6)
    assert may_omit("a long line", "kurz", 20, 5) and not may_omit("short", "x", 6, 2)


def test_a_sentence_without_attention_is_left_out() -> None:
    whole = np.array([[0.5, 0.4, 0.0, 0.0, 0.1], [0.0, 0.0, 0.5, 0.4, 0.1]], np.float32)
    assert not omits(whole, [2, 2])
    first_only = np.array([[0.5, 0.4, 0.0, 0.0, 0.1], [0.4, 0.5, 0.05, 0.0, 0.05]], np.float32)
    assert omits(first_only, [2, 2])
    assert not omits(first_only, [4])
