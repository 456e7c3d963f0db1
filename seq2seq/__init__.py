"""Transformers for translation, language modelling and text classification.

"The paper" is "Attention Is All You Need", Vaswani et al. 2017.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seq2seq.decoding.classification import TextClassifier as TextClassifier
    from seq2seq.decoding.generation import TextGenerator as TextGenerator
    from seq2seq.decoding.rules import Sampling as Sampling
    from seq2seq.decoding.terms import Glossary as Glossary
    from seq2seq.decoding.translation import Translation as Translation
    from seq2seq.decoding.translator import Translator as Translator
    from seq2seq.errors import UserError as UserError

_MODULES = {
    "Glossary": "decoding.terms",
    "Sampling": "decoding.rules",
    "TextClassifier": "decoding.classification",
    "TextGenerator": "decoding.generation",
    "Translation": "decoding.translation",
    "Translator": "decoding.translator",
    "UserError": "errors",
}
__version__ = "0.1.0"
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    # Imported on first use, so that `seq2seq --help` does not wait for torch.
    if name in _MODULES:
        return getattr(importlib.import_module(f"seq2seq.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'seq2seq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # help(seq2seq) shows these
