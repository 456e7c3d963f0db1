"""Export to CTranslate2 (OpenNMT/CTranslate2 on GitHub).

A package for Argos Translate (argosopentech/argos-translate on GitHub) contains such a model.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from seq2seq.errors import UserError
from seq2seq.extras import require_extra
from seq2seq.model.ctranslate2 import write_model
from seq2seq.model.directory import LoadedModel, save_description
from seq2seq.model.transformer import Transformer

PACKAGE_VERSION = "1.0"
ARGOS_VERSION = "1.9"
"""Minimum version of Argos Translate for the package."""

_USAGE = """\
With seq2seq: `seq2seq translate {folder} < FILE`. With CTranslate2 alone (it takes and returns
subword pieces):

```python
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="{folder}/{source_file}")
target = sentencepiece.SentencePieceProcessor(model_file="{folder}/{target_file}")
translator = ctranslate2.Translator("{folder}")
pieces = source.encode("A sentence.", out_type=str)
[result] = translator.translate_batch(
    [pieces], beam_size={decoding.beam}, length_penalty={decoding.length_penalty},
    patience={decoding.patience},
)
print(target.decode(result.hypotheses[0]))
```
"""
_ARGOS_USAGE = """\
With [Argos Translate](https://github.com/argosopentech/argos-translate), after
`pip install argostranslate`:

    python -c "from argostranslate import package; package.install_from_path('{file}')"
    argos-translate --from {source} --to {target} "A sentence."

[LibreTranslate](https://github.com/LibreTranslate/LibreTranslate) serves the installed packages.

At the first translation, Argos Translate downloads a model for sentence splitting. It uses its own
length penalty, and writes underscores as spaces.
"""


class CTranslate2Format:
    """Model directory for CTranslate2. `seq2seq translate` reads it too."""

    def __init__(self, loaded: LoadedModel, quantization: str | None) -> None:
        """quantization: data type of the weights; None for float32."""
        require_extra("ctranslate2", "--to ctranslate2")
        assert isinstance(loaded.model, Transformer)
        self.model, self.tokenizer, self.config = loaded.model, loaded.tokenizer, loaded.config
        self.quantization = quantization or "float32"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported model, in Markdown."""
        files = list(self.tokenizer.files)
        names = {"folder": folder.name, "source_file": files[0], "target_file": files[-1]}
        return _USAGE.format(**names, decoding=self.config.decoding)

    def write(self, folder: Path, card: str) -> None:
        """Write the model, the tokenizer and the description that `translate` needs to a folder."""
        write_model(self.model, self.tokenizer, self.config, folder, self.quantization)
        save_description(folder, self.model.num_parameters(), self.tokenizer, self.config)


class ArgosFormat(CTranslate2Format):
    """Folder with a .argosmodel: a zip of a CTranslate2 model and its SentencePiece model."""

    def __init__(self, loaded: LoadedModel, quantization: str | None) -> None:
        """quantization: data type of the weights; None for float32."""
        require_extra("babel", "--to argos")
        super().__init__(loaded, quantization)
        data = self.config.pairs
        if not (data.source and data.target):
            raise UserError("--to argos needs data.source and data.target, the language codes")
        if loaded.tokenizer.source is not loaded.tokenizer.target:
            raise UserError(
                "--to argos needs one SentencePiece model for both languages: train with "
                "tokenizer.shared=true, or export --to ctranslate2"
            )
        self.name = f"translate-{data.source}_{data.target}-{PACKAGE_VERSION.replace('.', '_')}"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported package, in Markdown."""
        data = self.config.pairs
        return _ARGOS_USAGE.format(
            file=f"{folder.name}/{self.name}.argosmodel", source=data.source, target=data.target
        )

    def write(self, folder: Path, card: str) -> None:
        """Write the package and its model card to a folder."""
        data = self.config.pairs
        metadata = {
            "package_version": PACKAGE_VERSION,
            "argos_version": ARGOS_VERSION,
            "from_code": data.source,
            "from_name": language_name(data.source),
            "to_code": data.target,
            "to_name": language_name(data.target),
        }
        package = folder / f"{self.name}.argosmodel"
        with (
            TemporaryDirectory(dir=folder) as name,
            zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            model = Path(name)
            write_model(self.model, self.tokenizer, self.config, model, self.quantization)
            for file in sorted(model.iterdir()):
                archive.write(file, f"{self.name}/model/{file.name}")
            text = json.dumps(metadata, indent=2, ensure_ascii=False)
            archive.writestr(f"{self.name}/metadata.json", text)
            archive.writestr(f"{self.name}/sentencepiece.model", self.tokenizer.source.model)
            archive.writestr(f"{self.name}/README.md", card)


def language_name(code: str) -> str:
    """Return the English name of a language code, or the code itself if it is unknown."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (UnknownLocaleError, ValueError):
        return code
