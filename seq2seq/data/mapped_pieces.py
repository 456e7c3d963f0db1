"""SentencePiece models whose pieces have the ids of a vocab.json, as in Hugging Face's models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from pathlib import Path
from typing import NamedTuple

from seq2seq.data.lines import read_object_file
from seq2seq.data.vocabulary import BOS, EOS, PAD, UNK, SentencePieces, language_symbols
from seq2seq.errors import UserError

MARIAN_FILES = ("source.spm", "target.spm")
"""Names of the SentencePiece models of a Marian model."""
M2M100_FILE = "sentencepiece.bpe.model"
"""Name of the SentencePiece model of M2M-100, NLLB and SMaLL-100."""
IDS_FILES = ("vocab.json", "target_vocab.json")
"""Names of the files with the ids of the pieces; the second one is for Marian and optional."""
LANGUAGES_FILE = "languages.json"
"""Name of the file with the fields of `Languages`."""
MASK = "<mask>"
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5
"""Types of the pieces of a SentencePiece model. Unused pieces are split into smaller ones."""
M2M100_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr "
    "ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk "
    "ur uz vi wo xh yi yo zh zu"
)
"""Languages of M2M-100 and SMaLL-100, in the order of their ids."""


class Languages(NamedTuple):
    """Symbols of the languages of M2M-100, NLLB or SMaLL-100, and where they are put."""

    symbols: Mapping[str, str]
    """Symbol of each language."""
    first: bool
    """See `Vocabulary.language_first`. If False, a source starts with the symbol of the target
    language (SMaLL-100)."""


class MappedPieces(SentencePieces):
    """A SentencePiece model whose pieces have the ids of a vocab.json.

    A piece without an id is encoded as unknown. Pieces of the other language can be decoded. A text
    may begin with symbols of languages, each followed by a space.
    """

    def __init__(
        self, model: bytes, ids: Mapping[str, int], name: str, given: Languages | None = None
    ) -> None:
        """ids: id of each piece, sorted by id. given: languages of the M2M-100 family."""
        super().__init__(model, name)
        self.ids, self._names, self.given = ids, list(ids), given
        self.size, self.unk_id, self.eos_id, self.pad_id = len(ids), ids[UNK], ids[EOS], ids[PAD]
        # Marian models start a translation with padding, exports of seq2seq with a start symbol.
        self.bos_id = self.eos_id if given else ids.get(BOS, self.pad_id)
        self.language_first = bool(given and given.first)
        self._symbols = {name.lstrip("\u2581"): name for name in self.languages.values()}
        self._special = {BOS, EOS, PAD, *self.languages.values()}

    @cached_property
    def languages(self) -> Mapping[str, str]:
        return self.given.symbols if self.given else language_symbols(self.ids)

    @property
    def checksum(self) -> str:
        """SHA-256 of model, ids and languages."""
        maps = json.dumps(self.ids) + (json.dumps(self.given) if self.given else "")
        return hashlib.sha256(self.model + maps.encode()).hexdigest()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[i] for i in ids]

    def knows(self, symbol: str) -> bool:
        return symbol in self.ids and symbol not in (BOS, EOS, PAD, UNK)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.piece_ids(self.encode_pieces(texts))

    def encode_pieces(self, texts: Sequence[str]) -> list[list[str]]:
        split = list(map(self._split, texts))
        rows = super().encode_pieces([text for _, text in split])
        return [[*symbols, *row] for (symbols, _), row in zip(split, rows, strict=True)]

    def _split(self, text: str) -> tuple[list[str], str]:
        """Return the symbols of languages at the beginning of a text, and the rest."""
        symbols: list[str] = []
        word, _, rest = text.partition(" ")
        while word in self._symbols:
            symbols.append(self._symbols[word])
            text = rest
            word, _, rest = text.partition(" ")
        return symbols, text

    def piece_starts(self, text: str) -> tuple[list[str], list[int]]:
        symbols, rest = self._split(text)
        pieces, starts = super().piece_starts(rest)
        ends = accumulate((len(name.lstrip("\u2581")) + 1 for name in symbols), initial=0)
        *before, first = ends
        return [*symbols, *pieces], [*before, *(first + start for start in starts)]

    def piece_ids(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        return [[self.ids.get(piece, self.unk_id) for piece in pieces] for pieces in texts]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence, with the symbols of languages at its beginning."""
        rows = [self.pieces(row) for row in ids]
        known = {*self._symbols.values()}
        symbols = [takewhile(known.__contains__, row) for row in rows]
        return [
            " ".join([*(name.lstrip("\u2581") for name in names), text]).strip()
            for names, text in zip(symbols, self.decode_pieces(rows), strict=True)
        ]

    def decode_pieces(self, texts: Sequence[Sequence[str]]) -> list[str]:
        plain = [[piece for piece in pieces if piece not in self._special] for pieces in texts]
        decoded = self._processor.decode(plain) if plain else []
        return [text.replace("\u2581", " ").replace("\n", " ").strip() for text in decoded]


def mapped_vocabularies(path: Path) -> list[MappedPieces]:
    """Return the vocabularies of source and target. path: the first SentencePiece model."""
    folder = path.parent
    if path.name == M2M100_FILE:
        vocabulary = MappedPieces(path.read_bytes(), *_m2m100_ids(folder))
        return [vocabulary, vocabulary]
    names = IDS_FILES if (folder / IDS_FILES[1]).exists() else IDS_FILES[:1]
    ids = [_sorted(read_object_file(folder / name)) for name in names]
    source, target = (
        MappedPieces((folder / name).read_bytes(), piece_ids, str(folder / name))
        for name, piece_ids in zip(MARIAN_FILES, (ids[0], ids[-1]), strict=True)
    )
    return [source, source if source.checksum == target.checksum else target]


def mapped_files(vocabularies: Sequence[SentencePieces]) -> dict[str, bytes]:
    """Return the files that `mapped_vocabularies` reads, by name, source first and target last."""
    source, target = vocabularies
    ids = [{piece: i for i, piece in enumerate(x.pieces(range(x.size)))} for x in vocabularies]
    maps = [json.dumps(x, ensure_ascii=False, indent=0).encode() for x in ids]
    if isinstance(source, MappedPieces) and source.given:
        languages = json.dumps(source.given._asdict(), ensure_ascii=False, indent=0).encode()
        return {M2M100_FILE: source.model, IDS_FILES[0]: maps[0], LANGUAGES_FILE: languages}
    files = dict(zip(IDS_FILES, dict.fromkeys(maps), strict=False))  # one file if both are equal
    return {MARIAN_FILES[0]: source.model, **files, MARIAN_FILES[1]: target.model}


def _sorted(ids: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def _m2m100_ids(folder: Path) -> tuple[dict[str, int], str, Languages]:
    """Return the id of each piece, sorted by id, the name of the model, and its languages."""
    settings = read_object_file(folder / "tokenizer_config.json", optional=True)
    if settings.get("legacy_behaviour"):
        raise UserError(f"{folder}: legacy_behaviour=True has no equivalent here")
    if (folder / "tokenizer.json").exists():
        tree = read_object_file(folder / "tokenizer.json")
        added = {token["content"]: token["id"] for token in tree["added_tokens"]}
        ids = {**tree["model"]["vocab"], **added}
        symbols = {name: name for name in _sorted(added) if not name.startswith("<")}
        languages = Languages(symbols, first=True)
    else:
        ids = read_object_file(folder / IDS_FILES[0])
        small = (folder / "tokenization_small100.py").exists()
        symbols = {code: f"__{code}__" for code in M2M100_LANGUAGES.split()}
        languages = Languages(symbols, first=not small)
    if (folder / LANGUAGES_FILE).exists():
        languages = Languages(**read_object_file(folder / LANGUAGES_FILE))
    new = [name for name in languages.symbols.values() if name not in ids]
    ids |= {name: len(ids) + i for i, name in enumerate(new)}
    size = read_object_file(folder / "config.json", optional=True).get("vocab_size", len(ids))
    if size < len(ids):
        raise UserError(
            f"{folder}: config.json has vocab_size={size}, but the tokenizer has {len(ids)} tokens"
        )
    tokens = {i: token for token, i in ids.items()}
    # Rows without a token: NLLB has two, M2M-100 eight.
    names = {tokens.get(i, f"<unused{i}>"): i for i in range(size)}
    return names, str(folder / M2M100_FILE), languages
