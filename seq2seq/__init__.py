"""Transformers that translate, write and sort texts, after "Attention Is All You Need"."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seq2seq.decoding.translator import Translator

__version__ = "0.1.0"
__all__ = ["Translator", "__version__"]


def __getattr__(name: str) -> object:
    # Imported on first use, so that `seq2seq --help` does not wait for torch.
    if name == "Translator":
        from seq2seq.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module 'seq2seq' has no attribute {name!r}")
