"""Print values of a recipe as assignments of the shell, for the scripts of other recipes.

Usage: python recipes/values.py RECIPE [section.key=value ...]

`corpus` is the prefix of the training corpus. It is an error if there are several corpora, or one
that is given in another way or has other keys, or if there is no test set.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from seq2seq.config import Config, CorpusConfig
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import load_config


def only_corpus(config: Config) -> str:
    """Return the prefix of the training corpus. Raises UserError for unsuitable data."""
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


def main(path: str, *overrides: str) -> str | None:
    """Print the assignments. Returns an error message, if any."""
    try:
        config = load_config(path, overrides)
        values = {
            "name": config.name,
            "source": config.pairs.source,
            "target": config.pairs.target,
            "corpus": only_corpus(config),
            "steps": config.training.max_steps,
            "minutes": config.training.max_minutes,
            "lr": config.training.lr,
            "dim": config.model.dim,
            "ffn_dim": config.model.ffn_dim,
            "num_heads": config.model.num_heads,
        }
    except UserError as error:
        return f"error: {error}"
    for name, value in values.items():
        print(f"{name}={shlex.quote(str(value))}")
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
