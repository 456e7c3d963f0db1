"""`seq2seq new`: look at a corpus and this machine, and write a recipe for both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq.config import CleaningConfig, Config, CorpusConfig, check_name
from seq2seq.errors import UserError
from seq2seq.folders import write_text
from seq2seq.planning.corpus import CorpusFacts, examine, examine_text, language_of
from seq2seq.planning.explain import UNITS, expectations, explained
from seq2seq.planning.files import corpora_of, labelled_files, one_file, opened
from seq2seq.planning.fine_tune import fine_tuning, initial_model
from seq2seq.planning.plan import make_plan, num_gpus
from seq2seq.preparation.cleaning import RULES
from seq2seq.preparation.sources import Source, Sources
from seq2seq.preparation.text import TextFiles, open_text

logger = logging.getLogger(__name__)

FEWEST = 100
"""Examples below which nothing can be learned."""


def new_recipe(
    name: str,
    files: dict[str, Sequence[str]],
    *,
    task: str,
    source: str,
    target: str,
    minutes: float,
    run: Path | None = None,
) -> Path:
    """Write recipes/NAME.yaml; return its path.

    files: of `train`, `dev` and `test`. minutes: for the training. run: continue its model.
    Raises UserError for a corpus that cannot be read, and if there is such a recipe.
    """
    recipe = Path("recipes") / f"{name}.yaml"
    check_name(name)
    if recipe.exists():
        raise UserError(f"{recipe} exists: take another name, or remove it")
    initial = initial_model(run) if run else None
    if initial:
        task, source, target = initial.task, *_languages(initial, source, target)
    data = _data(files, task, source, target)
    facts = _examine(data, task)
    _report(facts, task, source, target)
    if facts.num_kept < FEWEST:
        raise UserError(
            f"--train: {', '.join(files['train'])} has {facts.num_kept} usable {UNITS[task]}; at "
            f"least {FEWEST} are needed, and some ten thousand for a useful model"
        )
    logger.info("measuring this machine: a training of a few seconds")
    if run and initial:
        text, expected = fine_tuning(name, run, initial, data, facts, minutes)
    else:
        data |= _held_out(data, task, facts)
        plan = make_plan(data, task, facts, minutes)
        plan = replace(plan, config=replace(plan.config, name=name))
        text, expected = explained(plan, facts, data), expectations(plan)
    recipe.parent.mkdir(exist_ok=True)
    write_text(recipe, text)
    train = "scripts/train" if num_gpus() > 1 else "seq2seq train"
    logger.info("%s\nwritten: %s\nnext:\n  %s %s", expected, recipe, train, recipe)
    return recipe


def _languages(initial: Config, source: str, target: str) -> tuple[str, str]:
    """Return the languages of the initial model, of which others that are given must be none."""
    own = initial.data.source, initial.data.target
    if (source or own[0], target or own[1]) != own:
        raise UserError(f"--from: that model is for {own[0]} to {own[1]}: leave languages out")
    return own


def _data(files: dict[str, Sequence[str]], task: str, source: str, target: str) -> dict[str, Any]:
    """Return the section `data` of the recipe."""
    if task != "translation" and (source or target):
        raise UserError(f"--source and --target are for translation, and not for --task {task}")
    if task == "language_model":
        for flag in ("dev", "test"):
            if files[flag]:
                raise UserError(f"--{flag}: parts of a language model's text are held out of it")
        return {"text": one_file(files["train"], "--train")}
    if task == "classification":
        data: dict[str, Any] = {"train": labelled_files(files["train"], "--train")}
        return data | {
            flag: one_file(files[flag], f"--{flag}") for flag in ("dev", "test") if files[flag]
        }
    if not (source and target):
        raise UserError("--source and --target name the languages, as in --source en --target de")
    data = {"source": source, "target": target}
    for flag in ("train", "dev", "test"):
        corpora = corpora_of(files[flag], source, target, f"--{flag}")
        if flag == "train":
            data["train"] = corpora
        elif len(corpora) > 1:
            raise UserError(f"--{flag}: name one corpus, not {len(corpora)}")
        elif corpora:
            data[flag] = corpora[0]
    return data


def _examine(data: dict[str, Any], task: str) -> CorpusFacts:
    if task == "language_model":
        text = open_text(CorpusConfig(path=data["text"]), "text", "--train")
        assert isinstance(text, TextFiles)  # no dataset
        return examine_text(text)
    clean = CleaningConfig()
    if task == "classification":  # text and label differ in length
        clean = replace(clean, max_ratio=None)
    corpora = opened(data, task)
    languages = data.get("source", ""), data.get("target", "")
    Sources([Source("train", None, each) for each in corpora], None).warn_of_headers(languages)
    return examine(corpora, clean)


def _report(facts: CorpusFacts, task: str, source: str, target: str) -> None:
    """Log what the corpus is, and warn of what is unusual."""
    if task == "language_model":
        logger.info("the text has %s characters", f"{facts.num_examples:,}")
        return
    unit = "pairs" if task == "translation" else "texts"
    about = "" if facts.share_read == 1 else "about "
    logger.info("the corpus has %s%s %s", about, f"{facts.num_examples:,}", unit)
    for rule, count in facts.dropped.most_common():
        logger.info("  dropped by cleaning: %s (%s)", f"{count:,}", RULES[rule])
    (source_words, target_words), (source_most, target_most) = facts.words, facts.longest
    if task == "classification":
        logger.info("  words: %.1f in a text on average; 99 %% of the texts have at most %d",
                    source_words, source_most)  # fmt: skip
        return
    logger.info(
        "  words: %.1f in a source and %.1f in a target on average; 99 %% of the pairs have at "
        "most %d and %d", source_words, target_words, source_most, target_most,
    )  # fmt: skip
    seen = [language_of(pair[side] for pair in facts.sample) for side in (0, 1)]
    if source != target and seen == [target, source]:
        raise UserError(
            f"--train: the source is in {target!r} and the target in {source!r}: name the files "
            "the other way round, or exchange --source and --target"
        )
    for side, expected, found in zip(("source", "target"), (source, target), seen, strict=True):
        if found == expected:
            logger.info("  the %s seems to be in %r, as it should be", side, found)
        elif found and len(expected) == 2:
            logger.warning(
                "the %s seems to be in %r, and not in %r: look at the files before you train",
                side, found, expected,
            )  # fmt: skip


def _held_out(data: dict[str, Any], task: str, facts: CorpusFacts) -> dict[str, Any]:
    """Return how much is held out for the sets that are not given."""
    if task == "language_model":
        return {}
    size = max(10, min(1000, facts.num_kept // 20))
    return {f"{split}_size": size for split in ("dev", "test") if split not in data}
