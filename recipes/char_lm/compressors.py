"""Measure the bits per byte of general compressors on the test set of a text.

Usage: python recipes/char_lm/compressors.py FILE [--dev-share 0.05] [--test-share 0.05]

Sizes are size(train + test) - size(train): like a model, a compressor has seen the training text.
"""

from __future__ import annotations

import argparse
import bz2
import lzma
from pathlib import Path

from seq2seq.data.lines import open_bytes
from seq2seq.preparation.text import split_ends

COMPRESSORS = {
    "xz -9e": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
    "bzip2 -9": lambda data: bz2.compress(data, 9),
}


def main() -> None:
    """Split the text by the shares of the recipe; print a line per compressor."""
    parser = argparse.ArgumentParser(description="bits per byte of xz and bzip2")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--dev-share", type=float, default=0.05)
    parser.add_argument("--test-share", type=float, default=0.05)
    options = parser.parse_args()
    with open_bytes(options.file) as stream:
        text = stream.read()
    train_end, dev_end = split_ends(len(text), options.dev_share, options.test_share)
    train, test = text[:train_end], text[dev_end:]
    print(f"train: {len(train):,} bytes, test: {len(test):,} bytes")
    for name, compress in COMPRESSORS.items():
        size = len(compress(train + test)) - len(compress(train))
        print(f"{name:9} {size:,} bytes, {8 * size / len(test):.3f} bits per byte")


if __name__ == "__main__":
    main()
