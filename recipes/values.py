"""Print values of a recipe, for the scripts of other recipes.

Usage: python recipes/values.py KEY ... -- RECIPE [section.key=value ...]

`data.train` is the prefix of the training corpus. It is an error if there are several corpora, or
one that is given in another way.
"""

from __future__ import annotations

import sys
from functools import reduce

from seq2seq.config import Config
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import load_config


def value(config: Config, key: str) -> str:
    """Return a value. Raises UserError for an unsuitable training corpus."""
    if key != "data.train":
        return str(reduce(getattr, key.split("."), config))
    corpora = config.pairs.train
    if len(corpora) != 1 or not corpora[0].path or corpora[0].path.endswith((".tsv", ".gz")):
        raise UserError(
            "data.train: this needs one corpus, given by the prefix of two files, such as "
            "data.train=corpus/train"
        )
    return corpora[0].path


def main(arguments: list[str]) -> str | None:
    """Print the values, separated by spaces. Returns an error message, if any."""
    end = arguments.index("--")
    keys, (path, *overrides) = arguments[:end], arguments[end + 1 :]
    try:
        config = load_config(path, overrides)
        print(*(value(config, key) for key in keys))
    except UserError as error:
        return f"error: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
