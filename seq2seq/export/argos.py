"""Write a package for Argos Translate (argosopentech/argos-translate on GitHub)."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from seq2seq.errors import UserError
from seq2seq.export.ctranslate2 import CTranslate2Format
from seq2seq.extras import require_extra
from seq2seq.model.directory import LoadedModel

PACKAGE_VERSION = "1.0"
ARGOS_VERSION = "1.9"
"""The oldest version of Argos Translate that can use the package."""

_USAGE = """\
With [Argos Translate](https://github.com/argosopentech/argos-translate), after
`pip install argostranslate`:

    python -c "from argostranslate import package; package.install_from_path('{file}')"
    argos-translate --from {source} --to {target} "A sentence."

[LibreTranslate](https://github.com/LibreTranslate/LibreTranslate) serves what is installed so.

At the first translation, Argos Translate downloads a model that splits texts into sentences. It
searches with a length penalty of its own, and writes every underscore as a space.
"""


class ArgosFormat(CTranslate2Format):
    """A folder with a .argosmodel: a zip of a model for CTranslate2 and its SentencePiece model."""

    def __init__(self, loaded: LoadedModel, quantization: str | None) -> None:
        """quantization: the data type of the weights; None for float32."""
        require_extra("babel", "--to argos")
        super().__init__(loaded, quantization)
        data = self.config.pairs
        if not (data.source and data.target):
            raise UserError("a package for Argos Translate needs data.source and data.target")
        if loaded.tokenizer.source is not loaded.tokenizer.target:
            raise UserError(
                "a package for Argos Translate has one SentencePiece model for both languages: "
                "train with tokenizer.shared=true, or export --to ctranslate2"
            )
        version = PACKAGE_VERSION.replace(".", "_")
        self.name = f"translate-{data.source}_{data.target}-{version}"

    def usage(self, folder: Path) -> str:
        """Return how to use the exported package, in Markdown."""
        data = self.config.pairs
        return _USAGE.format(
            file=f"{folder.name}/{self.name}.argosmodel", source=data.source, target=data.target
        )

    def write(self, folder: Path, card: str) -> None:
        """Write the package, with its card, to a folder."""
        data = self.config.pairs
        metadata = {
            "package_version": PACKAGE_VERSION,
            "argos_version": ARGOS_VERSION,
            "from_code": data.source,
            "from_name": language_name(data.source),
            "to_code": data.target,
            "to_name": language_name(data.target),
        }
        content: dict[str, str | bytes] = {
            "metadata.json": json.dumps(metadata, indent=2, ensure_ascii=False),
            "sentencepiece.model": self.tokenizer.source.model,
            "README.md": card,
        }
        package = folder / f"{self.name}.argosmodel"
        with (
            TemporaryDirectory(dir=folder) as model,
            zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            self.write_model(Path(model))
            for file in sorted(Path(model).iterdir()):
                archive.write(file, f"{self.name}/model/{file.name}")
            for name, text in content.items():
                archive.writestr(f"{self.name}/{name}", text)


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if it is unknown."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (UnknownLocaleError, ValueError):
        return code
