"""The folder in which the examples of the documentation run: toy corpora, recipes and runs."""

from __future__ import annotations

import json
import random
import re
import shutil
import string
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from conftest import WORDS, run_recipe, write_lines

ROOT = Path(__file__).parents[1]
SOURCES = ["the dog", "", "the dog likes a tree", "a house number 1 is old"]
SMALL = yaml.safe_load("""
{dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1, context: 64,
 vocab_size: 340, max_steps: 6, batch_tokens: 300, micro_batch_tokens: 300, warmup_steps: 2,
 validate_every: 3, validation_sentences: 10}
""")
"""Values that make a recipe of the repository train in a second."""
TRANSLATION = """\
data: {source: en, target: de, train: {path: corpus/train, tag: <news>},
       dev: corpus/dev, test: corpus/test, clean: {max_len: 40}}
tokenizer: {vocab_size: 340}
model: {dim: 16, ffn_dim: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1}
training: {max_steps: 6, batch_tokens: 300, micro_batch_tokens: 300, warmup_steps: 2,
           precision: fp32, validation_sentences: 10, checkpoint_every: 2, log_every: 1,
           validate_every: 3, validate_every_epochs: null}
decoding: {max_extra: 3, precision: fp32}
"""


def prepare_folder(folder: Path) -> None:
    """Write everything that the examples name to a folder."""
    rng = random.Random(5)
    for name in ("corpus", "runs"):
        (folder / name).mkdir()
    for split, count in (("train", 3000), ("dev", 20), ("test", 20), ("other", 20)):
        rows = [rng.choices(list(WORDS), k=rng.randint(4, 12)) for _ in range(count)]
        write_lines(folder / "corpus" / f"{split}.en", map(" ".join, rows))
        for language in ("de", "fr"):
            target = (" ".join(map(WORDS.__getitem__, row)) for row in rows)
            write_lines(folder / "corpus" / f"{split}.{language}", target)
    for recipe in ROOT.glob("recipes/*/*.yaml"):
        small = folder / "recipes" / recipe.parent.name / recipe.name
        small.parent.mkdir(parents=True, exist_ok=True)
        small.write_text(_shrunk(recipe.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "recipes" / "mine.yaml").write_text(TRANSLATION, encoding="utf-8")
    (folder / "scripts").mkdir()
    for script in ROOT.glob("scripts/*.py"):
        shutil.copy(script, folder / "scripts")
    _write_inputs(folder, rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # so that the paths in the runs are valid in a copy too
        recipe = Path("recipes/mine.yaml")
        run_recipe(recipe, Path("runs/mine"))
        run_recipe(recipe, Path("runs/second"), "training.seed=2")
        run_recipe(
            Path("recipes/char_lm/any_text.yaml"), Path("runs/mybook"), "training.precision=fp32"
        )
        data = ["data.train=reviews.tsv", "data.dev_size=20", "data.test=null", "data.test_size=20"]
        reviews = Path("recipes/imdb/recipe.yaml"), Path("runs/reviews")
        run_recipe(*reviews, *data, "training.precision=fp32")
    for copy, run in (("one", "mine"), ("two", "second")):
        shutil.copytree(folder / "runs" / run, folder / "runs" / copy, symlinks=True)
    links = {"RUN": "mine", "OTHER_RUN": "second", "REVERSE_RUN": "mine", "LM_RUN": "mybook"}
    for link, run in links.items():
        (folder / link).symlink_to(Path("runs", run))
    (folder / "runs" / "libreoffice_en_de").symlink_to("mine")
    (folder / "runs" / "tuned").symlink_to("second")


def _write_inputs(folder: Path, rng: random.Random) -> None:
    text = [" ".join(rng.choices(list(WORDS), k=9)) for _ in range(2000)]
    references = ["der Hund", "", "der Hund mag ein Baum", "ein Haus"]
    one = {"text": "a", "score": -1.0, "comet": 0.5}
    other = {"text": "b", "score": -2.0, "comet": 0.7}
    files: dict[str, Iterable[str]] = {
        "input.en": SOURCES,
        "letter.en": SOURCES,
        "reference.de": references,
        "output.de": references,
        "a.de": references,
        "b.de": ["der Hund", "", "Hund", "ein altes Haus"],
        "prefixes.de": ["der", "", "", "ein"],
        "constraints.de": ["Hund", "", "", "Haus"],
        "glossary.tsv": ["dog\tHund", "house\tHaus"],
        "mybook.txt": [string.printable[:-5], *text],  # every character that a prompt may have
        "texts.txt": text[:3],
        "reviews.tsv": (f"{rng.choice(['neg', 'pos'])}\t{line}" for line in text),
        "input.jsonl": (json.dumps({"text": line, "id": i}) for i, line in enumerate(SOURCES)),
        "scored.jsonl": [json.dumps({"nbest": [one, other]})],
        "a.de.comet": [f"{0.5 + 0.1 * i}" for i in range(len(SOURCES))],
        "b.de.comet": [f"{0.6 + 0.1 * i}" for i in range(len(SOURCES))],
    }
    for name, lines in files.items():
        write_lines(folder / name, lines)


def _shrunk(recipe: str) -> str:
    keys = "|".join(SMALL)
    return re.sub(rf"\b({keys}): \d+", lambda match: f"{match[1]}: {SMALL[match[1]]}", recipe)
