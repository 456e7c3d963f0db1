"""Vocabularies: round trips, tags, special symbols, files."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from conftest import sentencepiece_model
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.config import TokenizerConfig
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import SentencePieces, Vocabulary, train_vocabulary
from seq2seq.errors import UserError

TEXTS = ["the quick brown fox jumps", "over the lazy dog", "Füchse springen über Hunde"] * 20
BPE = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=330), ["<news>", "<2de>"])
CHAR = train_vocabulary(TEXTS, TokenizerConfig(kind="char", vocab_size=400), [])


def normalised(text: str) -> str:
    return re.sub(" +", " ", text.replace("\u2581", " ")).strip(" ")


@pytest.mark.parametrize("vocabulary", [BPE, CHAR], ids=["bpe", "char"])
@given(text=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n")))
@settings(max_examples=300, deadline=None)
def test_decoding_restores_every_character(vocabulary: Vocabulary, text: str) -> None:
    [ids] = vocabulary.encode([text])
    assert vocabulary.unk_id not in ids
    assert vocabulary.decode([ids]) == [normalised(text)]


def test_special_symbols_are_neither_decoded_nor_encoded() -> None:
    [ids] = BPE.encode(["the dog"])
    framed = [BPE.bos_id, *ids, BPE.eos_id, BPE.pad_id, BPE.pad_id]
    assert BPE.decode([framed]) == ["the dog"]
    assert BPE.decode(BPE.encode(["the dog\nover"])) == ["the dog over"]
    [typed] = BPE.encode(["<s> </s> <pad>"])
    assert not {BPE.bos_id, BPE.eos_id, BPE.pad_id} & set(typed)


def test_tags_are_single_symbols() -> None:
    assert BPE.knows("<news>") and BPE.knows("<2de>")
    for other in ("<other>", "</s>", "<s>", "<unk>", "<pad>"):
        assert not BPE.knows(other)
    [plain], [tagged] = BPE.encode(["the dog"]), BPE.encode(["<news> the dog"])
    assert tagged[-len(plain) :] == plain and len(tagged) <= len(plain) + 2


def test_missing_special_symbols_are_added() -> None:
    model = sentencepiece_model(TEXTS, 40, model_type="bpe", bos_id=-1, eos_id=-1, pad_id=-1)
    own = SentencePieces(model, "own")
    assert sorted([own.pad_id, own.bos_id, own.eos_id]) == [40, 41, 42] and own.size == 43
    [ids] = own.encode(["the dog"])
    assert own.decode([[own.bos_id, *ids, own.eos_id]]) == ["the dog"]


def test_separate_vocabularies_are_saved_together(tmp_path: Path) -> None:
    Tokenizer(BPE, CHAR).save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert not loaded.shared
    assert loaded.checksum == f"{BPE.checksum}+{CHAR.checksum}"
    assert loaded.target.encode(["dog"]) == CHAR.encode(["dog"])


def test_user_errors_name_their_cause(tmp_path: Path) -> None:
    (tmp_path / "text.model").write_text("no model")
    with pytest.raises(UserError, match=r"text\.model is not a SentencePiece model"):
        Tokenizer.from_files([tmp_path / "text.model"])
    for size in (1, 20, 260):
        with pytest.raises(UserError, match=rf"vocab_size={size} does not fit .* larger"):
            train_vocabulary(TEXTS, TokenizerConfig(vocab_size=size), [])
    with pytest.raises(UserError, match="lines of over 16,384 bytes are skipped"):
        train_vocabulary(["long " * 9_999], TokenizerConfig(vocab_size=300), [])


def test_a_text_of_few_pieces_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="seq2seq"):
        size = train_vocabulary(TEXTS, TokenizerConfig(vocab_size=9_000), []).size
    assert f"only {size} pieces" in caplog.text and size < 9_000
