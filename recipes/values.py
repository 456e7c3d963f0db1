"""Print values of a recipe, one per line, for the scripts of other recipes.

Usage: python recipes/values.py KEY ... -- RECIPE [section.key=value ...]

`data.train` is the prefix of the training corpus. It is an error if there are several corpora, or
one that is given in another way or has other keys.
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path

from seq2seq.config import Config, CorpusConfig
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import load_config


def value(config: Config, key: str) -> str:
    """Return a value. Raises UserError for an unsuitable training corpus."""
    if key != "data.train":
        return str(reduce(getattr, key.split("."), config))
    data = config.pairs
    path = str(data.train[0].path)
    files = [Path(f"{path}.{language}") for language in (data.source, data.target)]
    if data.train != (CorpusConfig(path=path),) or not all(file.is_file() for file in files):
        raise UserError(
            "this needs one corpus without other keys, given by the prefix of two files that are "
            f"not compressed, such as data.train=corpus/train; not {' and '.join(map(str, files))}"
        )
    if not (data.test or data.test_size):
        raise UserError("this needs a test set: set data.test=PREFIX or data.test_size=1000")
    return path


def main(arguments: list[str]) -> str | None:
    """Print the values. Returns an error message, if any."""
    end = arguments.index("--")
    keys, (path, *overrides) = arguments[:end], arguments[end + 1 :]
    try:
        config = load_config(path, overrides)
        print(*(value(config, key) for key in keys), sep="\n")
    except UserError as error:
        return f"error: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
