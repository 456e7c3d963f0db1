"""Packages for Argos Translate are installed and translate as it searches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor
from trained import LINES, exported, trained_model, vocabulary

from seq2seq.errors import UserError

pytest.importorskip("argostranslate", reason="argostranslate is not installed")
ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra argos is not installed")

# In a process of its own, since Argos Translate reads its folders when it is imported. Its splitter
# of sentences, which it would download, is replaced.
SCRIPT = """
import json, sys
from argostranslate import package, translate
translate.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
package.install_from_path(sys.argv[1])
[installed] = package.get_installed_packages()
translation = translate.get_translation_from_codes("en", "de")
lines = json.load(sys.stdin)
json.dump([str(installed), [translation.translate(line) for line in lines]], sys.stdout)
"""


def translate_there(package: Path, lines: list[str], home: Path) -> tuple[str, list[str]]:
    # By default it computes in int8 where the processor can.
    settings = {"ARGOS_COMPUTE_TYPE": "float32"}
    folders = {"XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache"}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(package)],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | settings | {name: str(home / path) for name, path in folders.items()},
    )
    name, texts = json.loads(found.stdout.splitlines()[-1])
    return name, texts


def test_a_package_is_installed_and_translates_the_same(tmp_path: Path) -> None:
    loaded = trained_model(norm="pre", positions="rotary")
    folder = exported(loaded, tmp_path, "argos")
    files = ["README.md", "SHA256SUMS", "recipe.yaml", "translate-en_de-1_0.argosmodel"]
    assert sorted(path.name for path in folder.iterdir()) == files
    name, texts = translate_there(folder / "translate-en_de-1_0.argosmodel", LINES[:60], tmp_path)
    assert name == "English → German"
    # Its own search: a beam of 4, length^0.2, and the end of the search as CTranslate2 sees it.
    model = exported(loaded, tmp_path / "again", "ctranslate2")
    pieces = vocabulary().encode_pieces(LINES)
    results = ctranslate2.Translator(str(model)).translate_batch(
        pieces[:60], beam_size=4, length_penalty=0.2
    )
    decode = SentencePieceProcessor(model_proto=loaded.tokenizer.target.model).decode_pieces
    assert [text.strip() for text in texts] == [
        decode(result.hypotheses[0]).strip() for result in results
    ]
    assert len(set(texts)) > 30


def test_the_zip_has_one_root_with_all_that_is_needed(tmp_path: Path) -> None:
    loaded = trained_model(steps=1)
    folder = exported(loaded, tmp_path, "argos", quantization="int8")
    with zipfile.ZipFile(folder / "translate-en_de-1_0.argosmodel") as archive:
        names = archive.namelist()
        root = "translate-en_de-1_0"
        assert {name.split("/")[0] for name in names} == {root}
        model = "model/model.bin model/config.json model/shared_vocabulary.json"
        files = f"metadata.json sentencepiece.model README.md {model}".split()
        assert {name.removeprefix(f"{root}/") for name in names} == {*files}
        metadata = json.loads(archive.read(f"{root}/metadata.json"))
        assert (metadata["from_code"], metadata["to_name"]) == ("en", "German")
        # It passes no </s>.
        assert json.loads(archive.read(f"{root}/model/config.json"))["add_source_eos"] is True
        assert archive.read(f"{root}/sentencepiece.model") == loaded.tokenizer.source.model
        assert archive.read(f"{root}/README.md") == (folder / "README.md").read_bytes()


def test_separate_vocabularies_and_unnamed_languages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one SentencePiece model for both"):
        exported(trained_model(steps=1, shared=False), tmp_path, "argos")
    loaded = trained_model(steps=1)
    data = replace(loaded.config.pairs, source="")
    with pytest.raises(UserError, match=r"needs data\.source and data\.target"):
        exported(replace(loaded, config=replace(loaded.config, data=data)), tmp_path, "argos")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
