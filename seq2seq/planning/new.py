"""`seq2seq new`: look at a corpus and this machine, and write a recipe for both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from seq2seq.config import check_name
from seq2seq.errors import UserError
from seq2seq.files import write_text
from seq2seq.planning.explain import expectations, explained
from seq2seq.planning.fine_tune import fine_tuning, initial_model
from seq2seq.planning.plan import make_plan, num_gpus
from seq2seq.task import load_task

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
    initial = initial_model(run, source, target) if run else None
    if initial:
        task, source, target = initial.task, initial.pairs.source, initial.pairs.target
    planner = load_task(task).planner
    data = planner.data(files, source, target)
    facts = planner.examine(data)
    if facts.num_kept < FEWEST:
        raise UserError(
            f"--train: {', '.join(files['train'])} has {facts.num_kept} usable {planner.unit}; at "
            f"least {FEWEST} are needed, and some ten thousand for a useful model"
        )
    logger.info("measuring this machine: a training of a few seconds")
    if run and initial:
        text, expected = fine_tuning(name, run, initial, data, facts, minutes)
    else:
        if facts.num_kept < planner.enough:
            logger.warning(
                "%s %s are few: the model will be poor (docs/sizes.md has scores); more of them "
                "help most, or --from RUN, a model that was trained on others",
                f"{facts.num_kept:,}",
                planner.unit,
            )
        data |= planner.held_out(data, facts)
        plan = make_plan(data, task, facts, minutes)
        plan = replace(plan, config=replace(plan.config, name=name))
        text, expected = explained(plan, facts, data), expectations(plan)
    recipe.parent.mkdir(exist_ok=True)
    write_text(recipe, text)
    train = "scripts/train" if num_gpus() > 1 else "seq2seq train"
    logger.info("%s\nwritten: %s\nnext:\n  %s %s", expected, recipe, train, recipe)
    return recipe
