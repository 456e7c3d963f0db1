"""Folders of transformers' M2M-100 family, read, trained and exported here."""

from __future__ import annotations

import pytest
from m2m100 import FAMILIES, Family, make_family
from trained import LINES

from seq2seq.decoding import translator as translator_module
from seq2seq.decoding.translator import Translator

MAX_LEN = 30
"""Maximum number of tokens of the translations that are compared."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family(request.param, tmp_path_factory.mktemp("m2m100") / request.param)


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
@pytest.mark.parametrize("beam", [1, 4])
def test_translations_have_the_same_tokens(
    family: Family, engine: str, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "torch":
        monkeypatch.setattr(translator_module, "has_ctranslate2", lambda: False)
    translator, (source, target) = Translator.load(family.folder, device="cpu"), family.direction
    found = translator.translations(
        LINES, to=target, source=source, beam=beam, patience=1.0, max_factor=0.0, max_extra=MAX_LEN
    )
    pairs = [
        (theirs, list(x.nbest[0].pieces))
        for theirs, x in zip(family.generate(beam, MAX_LEN), found, strict=True)
        if len(theirs) < MAX_LEN - 1  # at the maximum length the end is not forced there
    ]
    assert len(pairs) > 150 and len({tuple(pieces) for pieces, _ in pairs}) > 100
    assert [own for _, own in pairs] == [theirs for theirs, _ in pairs]
