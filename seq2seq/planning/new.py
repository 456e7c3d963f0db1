"""`seq2seq new`: write a recipe sized for a corpus and this machine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from seq2seq.config import TASKS, Config, check_name, from_tree, resolve
from seq2seq.errors import UserError
from seq2seq.files import write_text
from seq2seq.planning.corpus import UNITS, Request, count_examples, data_of_files
from seq2seq.planning.fine_tune import fine_tuning, initial_model
from seq2seq.planning.sizes import MAX_EPOCHS, SIZES, Size, dropout, rounded, vocab_size
from seq2seq.planning.templates import (
    AUGMENT,
    MODEL,
    OPTIMIZERS,
    TASK_TRAINING,
    aligned,
    data_section,
)
from seq2seq.planning.trial import Trial, run_trial
from seq2seq.terminal import duration

MIN_EXAMPLES = 100
"""Minimum number of training examples."""
FEW_PAIRS = 20_000
"""Number of pairs below which quality is poor without a pre-trained model."""
MAX_STEPS_FACTOR = 4
"""max_steps as a multiple of the expected number of updates. Leaves room if other programs slowed
the trial down."""
VALIDATIONS = 10
"""Expected number of validations in a run."""
PLACEHOLDER_TRIAL = Trial(tokens_per_second=1000.0, tokens_per_epoch=1.0, parameters=0, memory=0.0)
"""Trial values for the recipe of the first trial, before any measurement."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A recipe and the expected cost of its training."""

    text: str
    """Recipe as YAML."""
    config: Config
    size: Size
    trial: Trial
    tokens: float
    """Number of training tokens that fit into the time limit."""
    epochs: float
    minutes: float
    """Expected training time, excluding preparation."""


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
    """Write recipes/NAME.yaml and return its path.

    files: names of files by split (`train`, `dev`, `test`). minutes: time limit of the training.
    run: start from its model. Raises UserError for unreadable corpora or an existing recipe.
    """
    recipe = Path("recipes") / f"{name}.yaml"
    check_name(name)
    if recipe.exists():
        raise UserError(f"{recipe} exists: choose another name or remove it")
    initial = initial_model(run, source, target) if run else None
    if initial:
        task, source, target = initial.task, initial.pairs.source, initial.pairs.target
    data = data_of_files(task, files, source, target)
    count = count_examples(from_tree(TASKS[task].defaults.data, data, "--train", "data"))
    logger.info("corpus: %s %s", f"{count:,}", UNITS[task])
    if count < MIN_EXAMPLES:
        raise UserError(
            f"--train: {', '.join(files['train'])} has {count} {UNITS[task]}: at least "
            f"{MIN_EXAMPLES} are needed, and tens of thousands for a useful model"
        )
    request = Request(name, task, data, minutes, count)
    if run and initial:
        text, expected = fine_tuning(request, run, initial)
    else:
        if task == "translation" and count < FEW_PAIRS:
            logger.warning(
                "only %s pairs: expect poor quality (see docs/sizes.md). Add data, or start from a "
                "trained model with --from RUN",
                f"{count:,}",
            )
        plan = make_plan(request)
        text, trial = plan.text, plan.trial
        expected = (
            f"model: {trial.parameters / 1e6:.1f} million parameters, "
            f"{trial.tokens_per_second:,.0f} training tokens per second on this machine\n"
            f"expected: {duration(plan.minutes)} of training, {plan.epochs:.1f} epochs, "
            f"{max(0.5, 1.2 * trial.memory):.1f} GiB of memory"
        )
    recipe.parent.mkdir(exist_ok=True)
    write_text(recipe, text)
    logger.info(expected)
    return recipe


def make_plan(request: Request) -> Plan:
    """Try increasing model sizes on this machine; return the plan for the largest useful size."""
    best: Plan | None = None
    for size in SIZES[request.task]:
        # A larger model trains on fewer tokens in the same time.
        if best and (request.num_examples < size.examples or best.tokens < size.tokens):
            break
        trial = run_trial(_plan(request, size, PLACEHOLDER_TRIAL).config)
        plan = _plan(request, size, trial)
        if best and plan.tokens < size.tokens:
            break
        best = plan
    assert best  # the first size has no minimum
    return best


def _plan(request: Request, size: Size, trial: Trial) -> Plan:
    """Return the plan for a size. Its trial determines the length of training."""
    task, count, minutes = request.task, request.num_examples, request.minutes
    data = dict(request.data)
    if task != "language_model":  # a language model holds out fractions of its text
        held_out = max(10, min(1000, count // 20))
        data |= {f"{split}_size": held_out for split in ("dev", "test") if split not in data}
    if task == "translation":
        data |= {"protect": ["all"], "augment": AUGMENT}
    tokens = trial.tokens_per_minute * minutes
    per_epoch = trial.tokens_per_epoch
    epochs = min(tokens / per_epoch, MAX_EPOCHS)
    repetitions = f"{epochs:.1f} epochs"
    expected = minutes * epochs * per_epoch / tokens
    updates = epochs * per_epoch / size.batch_tokens
    max_steps = min(MAX_STEPS_FACTOR * updates, MAX_EPOCHS * per_epoch / size.batch_tokens)
    text = f"""\
# {request.name}: {count:,} {UNITS[task]}, {duration(expected)} of training on this machine, by `seq2seq new`.
# All keys: docs/recipe.md. Model size `{size.name}` (docs/sizes.md): {trial.parameters / 1e6:.1f} million parameters,
# {trial.tokens_per_second:,.0f} training tokens per second, {tokens / 1e6:,.1f} million tokens in total, {repetitions}.
task: {task}  # translation, classification or language_model
{data_section(data)}{MODEL[task].format(size=size, pieces=vocab_size(task, count))}\
  dim: {size.dim}  # hidden size; doubling it needs several times the time and data
  ffn_dim: {size.ffn_dim}  # inner width of the feed-forward networks
  num_heads: {size.num_heads}  # attention heads with {size.dim // size.num_heads} dimensions
  dropout: {dropout(size, epochs)}  # for {repetitions}; raise it for more epochs
  norm: pre  # layer normalisation before each sublayer: faster training
training:
  max_minutes: {minutes}  # time limit; the learning rate schedule ends with it
  max_steps: {max(50, rounded(max_steps))}  # limit of updates, for faster machines
  batch_tokens: {size.batch_tokens}  # tokens per update
  micro_batch_tokens: {size.batch_tokens * 3 // 2}  # tokens in memory at once, with room for longer, changed pairs
{OPTIMIZERS[size.optimizer]}\
  lr: {size.lr}  # peak learning rate; halve it if the loss jumps
  warmup_steps: {min(100 if size.optimizer == "muon" else 4000, max(5, round(updates / 20)))}  # updates
  validate_every: {max(20, rounded(updates / VALIDATIONS))}  # updates between validations
  validate_every_epochs: null  # off: validate by updates
  checkpoint_every_minutes: {min(max(3.0, minutes / 5), 10.0, minutes / 3):.2f}  # at most this is lost in a crash
  log_every: {20 if max_steps < 20_000 else 100}  # updates
{TASK_TRAINING[task]}"""  # noqa: E501
    config = resolve({**yaml.safe_load(text), "name": request.name}, "the new recipe")
    return Plan(aligned(text), config, size, trial, tokens, epochs, expected)
