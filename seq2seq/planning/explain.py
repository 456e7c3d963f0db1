"""A plan in words: the recipe with its comments, and what to expect of it."""

from __future__ import annotations

from typing import Any

import torch

from seq2seq.machine.processor import describe_device
from seq2seq.planning.corpus import CorpusFacts
from seq2seq.planning.plan import Plan, num_gpus
from seq2seq.planning.recipe_text import Key, recipe_text
from seq2seq.progress_bar import duration
from seq2seq.task import load_task, task_names


def explained(plan: Plan, facts: CorpusFacts, data: dict[str, Any]) -> str:
    """Return the recipe of a plan; data: its section `data`."""
    config = plan.config
    model, training = config.model, config.training
    task = load_task(config.task)
    planner, names = task.planner(), task_names()
    title = [
        f"{config.name}: {facts.num_kept:,} {planner.unit}, {duration(plan.minutes)} of training "
        "on this machine, by `seq2seq new`.",
        f"Every key: docs/recipe.md. Sizes: docs/sizes.md. This one is `{plan.size.name}`: "
        f"{plan.trial.parameters / 1e6:.1f} million parameters,",
        f"{plan.trial.tokens_per_second:,.0f} training tokens per second here, "
        f"{plan.tokens / 1e6:,.1f} million in all, {_epochs(plan)}.",
    ]
    top = [Key("task", config.task, f"{', '.join(names[:-1])} or {names[-1]}")]
    sections: dict[str, list[Key]] = {
        "data": [Key(name, value, DATA[name]) for name, value in data.items()],
        "tokenizer": [],
        "model": [
            Key("dim", model.dim, "width; double it for several times the time and data"),
            Key("ffn_dim", model.ffn_dim, "width inside of the feed-forward networks"),
            Key("num_heads", model.num_heads, f"of {model.dim // model.num_heads} dimensions each"),
            *(
                Key(f"{stack}_layers", getattr(model, f"{stack}_layers"), "depth")
                for stack in ("encoder", "decoder")
                if getattr(model, f"{stack}_layers")
            ),
            Key("dropout", model.dropout, f"for {_epochs(plan)}: more repetitions need more"),
            Key("norm", model.norm, "layer normalisation before each sublayer: learns faster"),
            Key("positions", model.positions, "how it knows the order of words"),
        ],
        "training": [
            Key("max_minutes", training.max_minutes, "the learning rate reaches its end then"),
            Key("max_steps", training.max_steps, "or after so many updates, on a faster machine"),
            Key("batch_tokens", training.batch_tokens, "target tokens per update"
                if task.translates else "tokens per update"),
            Key("micro_batch_tokens", training.micro_batch_tokens,
                "in memory at once; lower it if memory is short: the updates stay the same"),
            Key("optimizer", training.optimizer, "muon needs half of the tokens of adam"
                if training.optimizer == "muon" else "the paper's"),
            Key("schedule", training.schedule, "linear warm-up, then down to zero"
                if training.schedule == "cosine" else "the paper's"),
            Key("lr", training.lr, "peak; halve it if the loss jumps"
                if training.schedule == "cosine" else "scale of the schedule"),
            Key("warmup_steps", training.warmup_steps, "updates"),
            *([Key("clip_norm", training.clip_norm, "limits the gradient's norm")]
              if training.clip_norm else []),
            Key("validate_every", training.validate_every, "updates; the best model is kept"),
            Key("validate_every_epochs", None, "not by epochs"),
            *([Key("validation_sentences", training.validation_sentences,
                   "of the development set, to save time")]
              if training.validation_sentences else []),
            Key("checkpoint_every_minutes", training.checkpoint_every_minutes,
                "what an interruption can cost"),
            Key("log_every", training.log_every, "updates"),
        ],
    }  # fmt: skip
    for key, why in planner.comments.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name)
        sections.setdefault(section, []).append(Key(name, value, why))
    return recipe_text(title, top, sections)


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


def _epochs(plan: Plan) -> str:
    if plan.epochs < 1:
        return f"{plan.epochs:.0%} of the corpus"
    return f"about {plan.epochs:.0f} epoch{'s' if plan.epochs >= 1.5 else ''}"


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
