"""Print values of a recipe as assignments of the shell, for the scripts of other recipes.

Usage: python recipes/values.py RECIPE [section.key=value ...]

`source_text` and `target_text` are the files of the training corpus, `prepared` is the folder of
the prepared data. The last lines add overrides to the arguments of the script: sets that the recipe
holds out are named as files, so that all trainings of the script have the same ones. It is an error
if there are several corpora or no test set.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from seq2seq.config import CorpusConfig, PairsConfig
from seq2seq.data.lines import require_files
from seq2seq.errors import UserError
from seq2seq.formats.model_directory import load_config
from seq2seq.preparation.prepare import prepare


def files_of(data: PairsConfig) -> tuple[str, str]:
    """Return the files of the training corpus. Raises UserError for unsuitable data."""
    if len(data.train) > 1:
        raise UserError(f"data.train has {len(data.train)} corpora: this needs exactly one")
    [corpus] = data.train
    files = (
        corpus.source or f"{corpus.path}.{data.source}",
        corpus.target or f"{corpus.path}.{data.target}",
    )
    if corpus != CorpusConfig(path=corpus.path, source=corpus.source, target=corpus.target):
        raise UserError("data.train: this needs a corpus with no keys but its files")
    if any(name.endswith(".gz") for name in files):
        raise UserError("data.train: this needs files that are not compressed")
    require_files(list(map(Path, files)))
    if not (data.test or data.test_size):
        raise UserError("this needs a test set: set data.test=PREFIX or data.test_size=1000")
    return files


def main(path: str, *overrides: str) -> str | None:
    """Print the assignments. Returns an error message, if any."""
    try:
        config = load_config(path, overrides)
        source_text, target_text = files_of(config.pairs)
        prepared = prepare(config).folder
        values = {
            "name": config.name,
            "source": config.pairs.source,
            "target": config.pairs.target,
            "source_text": source_text,
            "target_text": target_text,
            "prepared": prepared,
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
    for split, size in (("dev", config.pairs.dev_size), ("test", config.pairs.test_size)):
        if size:
            held_out = f"data.{split}_size=0", f"data.{split}={prepared}/{split}"
            print(f'set -- "$@" {shlex.join(held_out)}')
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
