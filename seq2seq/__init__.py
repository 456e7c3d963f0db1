"""Transformers that translate, continue and classify texts, after the paper.

"The paper" is "Attention Is All You Need", Vaswani et al. 2017.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seq2seq.decoding.labeller import Labeller
    from seq2seq.decoding.sampling import Sampling
    from seq2seq.decoding.translator import Translator
    from seq2seq.decoding.writer import Writer

__version__ = "0.1.0"
__all__ = ["Labeller", "Sampling", "Translator", "Writer", "__version__"]


def __getattr__(name: str) -> object:
    # Imported on first use, so that `seq2seq --help` does not wait for torch.
    if name in __all__:
        return getattr(importlib.import_module(f"seq2seq.decoding.{name.lower()}"), name)
    raise AttributeError(f"module 'seq2seq' has no attribute {name!r}")
