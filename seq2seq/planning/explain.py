"""A plan in words: the recipe with its comments, and what to expect of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
import yaml

from seq2seq.machine.devices import describe_device
from seq2seq.planning.corpus import CorpusFacts
from seq2seq.planning.plan import Plan, num_gpus
from seq2seq.progress_bar import duration
from seq2seq.task import load_task, task_names

DATA = {
    "source": "language of the source; names of files end in it",
    "target": "language of the target",
    "train": "a list may have several corpora, each with a weight",
    "text": "a file, or a folder of files",
    "dev": "development set: chooses the best model",
    "test": "test set: for `seq2seq evaluate`, once",
    "dev_size": "examples held out as the development set",
    "test_size": "examples held out as the test set",
}
"""Why the keys of the section `data` are there."""


def explained(plan: Plan, facts: CorpusFacts, data: dict[str, Any]) -> str:
    """Return the recipe of a plan; data: its section `data`."""
    config = plan.config
    task, names = load_task(config.task), task_names()
    planner = task.planner
    title = [
        f"{config.name}: {facts.num_kept:,} {planner.unit}, {duration(plan.minutes)} of training "
        "on this machine, by `seq2seq new`.",
        f"Every key: docs/recipe.md. Sizes: docs/sizes.md. This one is `{plan.size.name}`: "
        f"{plan.trial.parameters / 1e6:.1f} million parameters,",
        f"{plan.trial.tokens_per_second:,.0f} training tokens per second here, "
        f"{plan.tokens / 1e6:,.1f} million in all, {_epochs(plan)}.",
    ]
    recipe: dict[str, Any] = {
        "task": (config.task, f"{', '.join(names[:-1])} or {names[-1]}"),
        "data": {name: (value, DATA[name]) for name, value in data.items()},
        "tokenizer": {},
    }
    for key, why in {**_comments(plan), **planner.comments}.items():
        value = attrgetter(key)(config)
        if value or value != attrgetter(key)(task.defaults):  # not those that are off by default
            section, _, name = key.partition(".")
            recipe.setdefault(section, {})[name] = value, why
    return recipe_text(title, recipe)


def _comments(plan: Plan) -> dict[str, str]:
    """Return why the keys that all tasks have in common are there, in the recipe's order."""
    model, training = plan.config.model, plan.config.training
    translates, cosine = load_task(plan.config.task).translates, training.schedule == "cosine"
    return {
        "model.dim": "width; double it for several times the time and data",
        "model.ffn_dim": "width inside of the feed-forward networks",
        "model.num_heads": f"of {model.dim // model.num_heads} dimensions each",
        "model.encoder_layers": "depth",
        "model.decoder_layers": "depth",
        "model.dropout": f"for {_epochs(plan)}: more repetitions need more",
        "model.norm": "layer normalisation before each sublayer: learns faster",
        "model.positions": "how it knows the order of words",
        "training.max_minutes": "the learning rate reaches its end then",
        "training.max_steps": "or after so many updates, on a faster machine",
        "training.batch_tokens": f"{'target ' if translates else ''}tokens per update",
        "training.micro_batch_tokens":
            "in memory at once; lower it if memory is short: the updates stay the same",
        "training.optimizer": "muon needs half of the tokens of adam"
            if training.optimizer == "muon" else "the paper's",
        "training.schedule": "linear warm-up, then down to zero" if cosine else "the paper's",
        "training.lr": "peak; halve it if the loss jumps" if cosine else "scale of the schedule",
        "training.warmup_steps": "updates",
        "training.clip_norm": "limits the gradient's norm",
        "training.validate_every": "updates; the best model is kept",
        "training.validate_every_epochs": "not by epochs",
        "training.validation_sentences": "of the development set, to save time",
        "training.checkpoint_every_minutes": "what an interruption can cost",
        "training.log_every": "updates",
    }  # fmt: skip


def _epochs(plan: Plan) -> str:
    if plan.epochs < 1:
        return f"{plan.epochs:.0%} of the corpus"
    return f"about {plan.epochs:.0f} epoch{'s' if plan.epochs >= 1.5 else ''}"


def recipe_text(title: Sequence[str], recipe: Mapping[str, Any]) -> str:
    """Return a recipe as YAML, with a comment on every line.

    title: lines of comment. recipe: of each key, or of each key of a section, its value and why.
    """
    lines = [f"# {line}" for line in title]
    for name, content in recipe.items():
        if isinstance(content, Mapping):
            lines.append(f"{name}:")
            lines += [_entry(f"  {key}", *each) for key, each in content.items()]
        else:
            lines.append(_entry(name, *content))
    return "".join(f"{line}\n" for line in lines)


def _entry(name: str, value: Any, why: str) -> str:
    items = value if isinstance(value, list) else []
    if len(items) == 1:
        [value], items = items, []
    head = f"{name}:" if items else f"{name}: {_flow(value)}"
    return "\n".join([f"{head:44}  # {why}", *(f"    - {_flow(item)}" for item in items)])


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def expectations(plan: Plan) -> str:
    """Return what the training will cost and need."""
    trial, config = plan.trial, plan.config
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    several = f" on each of {num_gpus()} GPUs" if num_gpus() > 1 else ""
    lines = [
        f"this machine ({describe_device(device)}): {trial.tokens_per_second:,.0f} tokens/s"
        f"{several} with a model of {trial.parameters / 1e6:.1f} million parameters",
        f"expect: {duration(plan.minutes)} of training, {_epochs(plan)}, "
        f"{max(0.1, plan.disk):.1f} GB on disk, {max(0.5, 1.2 * trial.memory):.1f} GB of memory",
    ]
    if config.training.max_steps * config.training.batch_tokens < 500_000:
        lines.append("this is little training: more text, or more minutes, would help")
    return "\n".join(lines)
