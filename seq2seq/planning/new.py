"""`seq2seq new`: look at a corpus and this machine, and write a recipe for both."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from seq2seq.config import TASKS, Config, check_name, from_tree, resolve
from seq2seq.errors import UserError
from seq2seq.files import write_text
from seq2seq.planning.corpus import UNITS, Request, count_examples, data_of_files
from seq2seq.planning.fine_tune import fine_tuning, initial_model
from seq2seq.planning.sizes import MOST_EPOCHS, SIZES, Size, dropout, rounded, vocab_size
from seq2seq.planning.templates import MODEL, OPTIMIZERS, TASK_TRAINING, aligned, data_section
from seq2seq.planning.trial import Trial, run_trial
from seq2seq.progress_bar import duration

FEWEST = 100
"""Examples below which nothing can be learned."""
ENOUGH_PAIRS = 20_000
"""Sentence pairs below which a model that is trained on them alone is poor."""
TRAINING_SHARE = 0.93
"""Fraction of a run spent on training updates. Validations and checkpoints take the rest."""
SPARE = 4
"""Updates that a recipe allows, relative to those expected in its time: other programs may use
the machine while it is measured."""
VALIDATIONS = 10
"""Number of validations in the expected time."""
UNTRIED = Trial(tokens_per_second=1000.0, tokens_per_epoch=1.0, parameters=0, memory=0.0)
"""What the recipe for a trial is written from."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A recipe, and what its training will cost."""

    text: str
    """The recipe as YAML."""
    config: Config
    size: Size
    trial: Trial
    tokens: float
    """Training tokens that fit into the time."""
    epochs: float
    minutes: float
    """Expected training time, without preparation."""


def new_recipe(
    name: str,
    files: Mapping[str, Sequence[str]],
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
    data = data_of_files(task, files, source, target)
    count = count_examples(from_tree(TASKS[task].defaults.data, data, "--train", "data"))
    logger.info("the corpus has %s %s", f"{count:,}", UNITS[task])
    if count < FEWEST:
        raise UserError(
            f"--train: {', '.join(files['train'])} has {count} {UNITS[task]}; at least {FEWEST} "
            "are needed, and some ten thousand for a useful model"
        )
    request = Request(name, task, data, minutes, count)
    if run and initial:
        text, expected = fine_tuning(request, run, initial)
    else:
        if task == "translation" and count < ENOUGH_PAIRS:
            logger.warning(
                "%s pairs are few: the model will be poor (docs/sizes.md has scores); more of them "
                "help most, or --from RUN, a model that was trained on others",
                f"{count:,}",
            )
        plan = make_plan(request)
        text, trial = plan.text, plan.trial
        expected = (
            f"this machine: {trial.tokens_per_second:,.0f} training tokens per second with a model "
            f"of {trial.parameters / 1e6:.1f} million parameters\n"
            f"expect: {duration(plan.minutes)} of training, {plan.epochs:.1f} epochs, "
            f"{max(0.5, 1.2 * trial.memory):.1f} GB of memory"
        )
    recipe.parent.mkdir(exist_ok=True)
    write_text(recipe, text)
    train = "scripts/train" if num_gpus() > 1 else "seq2seq train"
    logger.info("%s\nwritten: %s\nnext:\n  %s %s", expected, recipe, train, recipe)
    return recipe


def make_plan(request: Request) -> Plan:
    """Try models of growing size on this machine; return the plan for the largest that pays."""
    best: Plan | None = None
    for size in SIZES[request.task]:
        # A larger model trains on fewer tokens in the same time.
        if best and (request.num_examples < size.examples or best.tokens < size.tokens):
            break
        trial = run_trial(_plan(request, size, UNTRIED).config)
        plan = _plan(request, size, trial)
        if best and plan.tokens < size.tokens:
            break
        best = plan
    assert best  # the first size needs nothing
    return best


def num_gpus() -> int:
    """Return how many processes `scripts/train` starts: one for each GPU, or one on a CPU."""
    return max(1, torch.cuda.device_count())


def _plan(request: Request, size: Size, trial: Trial) -> Plan:
    """Return the plan for a size, with the length of training that its trial suggests."""
    task, count, minutes = request.task, request.num_examples, request.minutes
    data = dict(request.data)
    if task != "language_model":  # it holds out shares of the text
        held_out = max(10, min(1000, count // 20))
        data |= {f"{split}_size": held_out for split in ("dev", "test") if split not in data}
    tokens = trial.tokens_per_second * num_gpus() * 60 * minutes * TRAINING_SHARE
    per_epoch = trial.tokens_per_epoch
    epochs = min(tokens / per_epoch, MOST_EPOCHS)
    shown = f"{epochs:.1f} epochs"
    expected = minutes * epochs * per_epoch / tokens
    updates = epochs * per_epoch / size.batch_tokens
    most = min(SPARE * updates, MOST_EPOCHS * per_epoch / size.batch_tokens)
    text = f"""\
# {request.name}: {count:,} {UNITS[task]}, {duration(expected)} of training on this machine, by `seq2seq new`.
# Every key: docs/recipe.md. Sizes: docs/sizes.md. This one is `{size.name}`: {trial.parameters / 1e6:.1f} million parameters,
# {trial.tokens_per_second:,.0f} training tokens per second here, {tokens / 1e6:,.1f} million in all, {shown}.
task: {task}  # translation, classification or language_model
{data_section(data)}{MODEL[task].format(size=size, pieces=vocab_size(task, count))}\
  dim: {size.dim}  # width; double it for several times the time and data
  ffn_dim: {size.ffn_dim}  # width inside of the feed-forward networks
  num_heads: {size.num_heads}  # of {size.dim // size.num_heads} dimensions each
  dropout: {dropout(size, epochs)}  # for {shown}: more repetitions need more
  norm: pre  # layer normalisation before each sublayer: learns faster
training:
  max_minutes: {minutes}  # the learning rate reaches its end then
  max_steps: {max(50, rounded(most))}  # or after so many updates, on a faster machine
  batch_tokens: {size.batch_tokens}  # tokens per update
  micro_batch_tokens: {size.batch_tokens}  # in memory at once; lower it if memory is short
{OPTIMIZERS[size.optimizer]}\
  lr: {size.lr}  # halve it if the loss jumps
  warmup_steps: {min(100 if size.optimizer == "muon" else 4000, max(5, round(updates / 20)))}  # updates
  validate_every: {max(20, rounded(updates / VALIDATIONS))}  # updates; the best model is kept
  validate_every_epochs: null  # not by epochs
  checkpoint_every_minutes: {min(max(3.0, minutes / 5), 10.0, minutes / 3):.2f}  # what an interruption can cost
  log_every: {20 if most < 20_000 else 100}  # updates
{TASK_TRAINING[task]}"""  # noqa: E501
    config = resolve({**yaml.safe_load(text), "name": request.name}, "the new recipe")
    return Plan(aligned(text), config, size, trial, tokens, epochs, expected)
