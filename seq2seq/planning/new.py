"""`seq2seq new`: write a recipe sized for a corpus and this machine, or for fine-tuning a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from seq2seq.config import (
    TASKS,
    Config,
    CorpusConfig,
    DataConfig,
    Direction,
    PairsConfig,
    TrainingConfig,
    check_name,
    commented_yaml,
    from_tree,
    with_paths,
)
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.errors import UserError
from seq2seq.evaluation.systems import split_of_run
from seq2seq.files import write_file
from seq2seq.formats.model_directory import describe_model, find_model, vocabulary_files
from seq2seq.formats.pretrained import is_pretrained
from seq2seq.planning.plan import COMMENTS, SIZES, UNITS, Request, rounded, run_trial, sized_recipe
from seq2seq.preparation.corpora import open_corpus
from seq2seq.preparation.prepare import new_languages
from seq2seq.preparation.text import read_texts, text_files
from seq2seq.terminal import duration
from seq2seq.text.language import listed, unknown_language
from seq2seq.training.records import corpus_files, current_path
from seq2seq.training.schedule import learning_rate

MIN_EXAMPLES = 100
"""Minimum number of training examples."""
FEW_PAIRS = 20_000
"""Number of pairs below which quality is poor without a pre-trained model."""

LR_FRACTION = 0.25
"""Peak learning rate as a fraction of the initial model's."""
LR_FRACTION_NEW_ONLY = 1 / 16
"""Fraction if no old data are mixed in: the model forgets less, and learns less."""
LR_FRACTION_NEW_LANGUAGE = 0.5
"""Fraction if a language is added."""
EPOCHS = 30
"""Maximum number of repetitions of the new data."""
MIN_UPDATES = 100
NEW_PIECES = 4_000, 1_000
"""`tokenizer.new_pieces` for a new language with many and with few pairs."""
TEMPERATURE = 5.0
"""`data.temperature` of several directions (Arivazhagan et al. 2019)."""
MIN_HELD_OUT, MAX_HELD_OUT = 20, 500
"""Bounds of the size of the development and of the test set (else a fifth of the new pairs)."""

logger = logging.getLogger(__name__)


def new_recipe(
    name: str,
    files: Mapping[str, Sequence[str]],
    *,
    pairs: Sequence[tuple[str, str, str]] = (),
    task: str,
    source: str,
    target: str,
    minutes: float,
    run: Path | None = None,
) -> Path:
    """Write recipes/NAME.yaml and return its path.

    files: names of files by split (`train`, `dev`, `test`). pairs: source, target and prefix of
    the corpora of several directions, instead of files. minutes: time limit of the training.
    run: start from its model. Raises UserError for unreadable corpora or an existing recipe.
    """
    path = Path("recipes") / f"{name}.yaml"
    check_name(name)
    if path.exists():
        raise UserError(f"{path} exists: choose another name or remove it")
    if pairs and (source or target or task != "translation" or any(files.values())):
        raise UserError(
            "--pairs names languages and corpora: give only --minutes and --from with it"
        )
    if run:
        initial, tokenizer = initial_model(run)
        task = initial.task
        if not pairs:
            source, target = fine_tuned_direction(run, initial, source, target)
        elif not tokenizer.languages:  # a model of one direction
            for direction in pairs:
                fine_tuned_direction(run, initial, *direction[:2])
    if not (pairs or files["train"]):
        raise UserError("give the training data with --train, or with --pairs en-de:PREFIX ...")
    data = data_of_pairs(pairs) if pairs else data_of_files(task, files, source, target)
    option = "--pairs" if pairs else "--train"
    section: DataConfig = from_tree(TASKS[task].defaults.data, data, option, "data")
    counts = count_examples(section, option)
    count = sum(counts)
    smallest = min(counts) if pairs else count
    if smallest < MIN_EXAMPLES:
        names = ", ".join([*files["train"], *(prefix for *_, prefix in pairs)])
        raise UserError(
            f"{option}: {names} has {smallest} {UNITS[task]}: at least {MIN_EXAMPLES} are needed, "
            "and tens of thousands for a useful model"
        )
    num_languages = len(section.languages) if isinstance(section, PairsConfig) else 0
    request = Request(name, task, data, minutes, count, smallest, num_languages)
    if run:
        assert isinstance(section, PairsConfig)
        new = new_languages(section, tokenizer) if pairs else []
        if new:  # half of an epoch is in new languages
            is_new = [bool({*corpus["languages"]} & {*new}) for corpus in data["train"]]
            weight = max(1.0, is_new.count(False) / is_new.count(True))
            for corpus, chosen in zip(data["train"], is_new, strict=True):
                corpus |= {"weight": float(f"{weight:.3g}")} if chosen else {}
        new_pieces = NEW_PIECES[count < FEW_PAIRS] if new else 0
        text = fine_tuning(request, run, initial, new_pieces)
    else:
        if task == "translation" and count < FEW_PAIRS:
            logger.warning(
                "only %s pairs: expect poor quality (see docs/sizes.md). Add data, or start from a "
                "trained model with --from RUN",
                f"{count:,}",
            )
        text = sized_recipe(request)
    path.parent.mkdir(exist_ok=True)
    write_file(path, text)
    return path


def data_of_files(
    task: str, files: Mapping[str, Sequence[str]], source: str, target: str
) -> dict[str, Any]:
    """Return the section `data` of a recipe. Raises UserError for unsuitable files.

    files: names of files by split (`train`, `dev`, `test`).
    """
    languages = {"source": source, "target": target} if task == "translation" else {}
    if not all(languages.values()):
        raise UserError("give the languages, such as --source en --target de")
    if (source or target) and not languages:
        raise UserError(f"--source and --target are for translation, not for --task {task}")
    data: dict[str, Any] = dict(languages)
    for split, names in files.items():
        corpora = corpora_of(names, split, [source, target]) if languages else list(names)
        if len(corpora) > 1 and (split != "train" or task == "language_model"):
            raise UserError(f"--{split}: give one corpus, not {len(corpora)}")
        if task == "language_model" and split != "train" and corpora:
            raise UserError(f"--{split}: not for language models, which hold out parts of the text")
        if corpora:
            data[split] = corpora if split == "train" else corpora[0]
    return {"text": data["train"][0]} if task == "language_model" else data


def data_of_pairs(pairs: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Return the section `data` of a recipe for several directions."""
    corpora = [{"path": prefix, "languages": [a, b]} for a, b, prefix in pairs]
    if len(pairs) == 1:  # the other directions of the initial model are not held out
        (source, target, _) = pairs[0]
        return {"source": source, "target": target, "train": corpora}
    return {"train": corpora, "temperature": TEMPERATURE}


def corpora_of(names: Sequence[str], split: str, languages: Sequence[str]) -> list[Any]:
    """Return parallel corpora for data.train: prefixes, .tsv files, or pairs of files.

    split: name of the split, for errors. languages: suffixes of the files of a prefix.
    """
    corpora: list[Any] = []
    remaining = list(names)
    while remaining:
        name = remaining.pop(0)
        files = [f"{name}.{language}{end}" for language in languages for end in ("", ".gz")]
        is_prefix = any(Path(file).exists() for file in files)
        if is_prefix or name.removesuffix(".gz").endswith(".tsv"):
            corpora.append(name)
        elif remaining:
            corpora.append({"source": name, "target": remaining.pop(0)})
        elif not Path(name).exists():
            corpora.append(name)  # an error will name the missing file
        else:
            raise UserError(
                f"--{split}: {name} is alone: give a source file and a target file, their common "
                "prefix, or a .tsv file"
            )
    return corpora


def count_examples(data: DataConfig, option: str) -> list[int]:
    """Return the number of pairs, texts or characters of each training corpus.

    option: option that names the corpora, for errors.
    """
    if isinstance(data, PairsConfig):
        corpora = [open_corpus(data, corpus, option) for corpus in data.train]
        return [sum(1 for _ in corpus.read()) for corpus in corpora]
    [corpus] = data.corpora
    return [sum(map(len, read_texts(text_files(corpus.path or "", option))))]


def initial_model(run: Path) -> tuple[Config, Tokenizer]:
    """Return recipe and tokenizer of the initial model. Raises UserError if it is unsuitable."""
    config, tokenizer = describe_model(find_model(run))
    if not config.translates:
        raise UserError(f"--from: {run} does not translate: its task is {config.task}")
    return with_paths(config, partial(current_path, run=run)), tokenizer


def fine_tuned_direction(run: Path, config: Config, source: str, target: str) -> Direction:
    """Return the direction in which a model is fine-tuned.

    source, target: the languages required by the user, or empty. Raises UserError if the model does
    not have them.
    """
    directions = config.pairs.directions
    fitting = [direction for direction in directions if direction.fits(target, source)]
    names = listed(f"{a} to {b}" for a, b in directions)
    known = config.pairs.languages
    if missing := [x for x in (source, target) if x and x not in known]:
        raise UserError(f"--from: {run} has the languages {unknown_language(missing[0], known)}")
    if not fitting:
        raise UserError(f"--from: {run} is for {names}, not for these languages")
    if len(fitting) > 1:
        raise UserError(f"--from: {run} is for {names}: choose with --source and --target")
    return fitting[0]


def fine_tuning(request: Request, run: Path, config: Config, new_pieces: int) -> str:
    """Return a recipe for fine-tuning; log the expected cost.

    config: recipe of the initial model, in `run`. new_pieces: 0 without a new language.
    """
    minutes, initial = request.minutes, config.training
    if pretrained := is_pretrained(find_model(run)):
        initial = _usual_training(config)
    held_out = max(MIN_HELD_OUT, min(MAX_HELD_OUT, request.num_examples // 5))
    sizes = {f"{split}_size": held_out for split in ("dev", "test") if split not in request.data}
    num_new = request.num_examples - sum(sizes.values())
    data = {**request.data, **sizes}
    if config.pairs.protect:
        data["protect"] = list(config.pairs.protect)
    if rates := {name: rate for name, rate in asdict(config.pairs.augment).items() if rate}:
        data["augment"] = rates
    if old := {} if pretrained else _old_data(run, config, num_new):
        data |= old | {"train": [*data["train"], *old["train"]]}
        data.pop("temperature", None)  # the weights say how much of an epoch is old
    models, saving = vocabulary_files(find_model(run)), _memory_saving(config, bool(new_pieces))
    trial = run_trial(
        replace(
            config,
            name=request.name,
            data=from_tree(PairsConfig(), data, "the new recipe", "data"),
            tokenizer=replace(config.tokenizer, models=models, new_pieces=new_pieces),
            training=replace(config.training, **saving),
        )
    )
    size = min(initial.batch_tokens, 4096)
    tokens = min(EPOCHS * trial.tokens_per_epoch, trial.tokens_per_minute * minutes)
    updates = max(MIN_UPDATES, rounded(tokens / size))
    epochs = min(EPOCHS, updates * size / trial.tokens_per_epoch)
    fraction = LR_FRACTION if old or pretrained else LR_FRACTION_NEW_ONLY
    fraction = LR_FRACTION_NEW_LANGUAGE if new_pieces else fraction
    peak = learning_rate(initial, config.model.dim, initial.warmup_steps)
    recipe = {
        "data": data,
        **({"tokenizer": {"new_pieces": new_pieces}} if new_pieces else {}),
        "training": {
            "init_from": str(run),
            "max_steps": updates,
            "max_minutes": minutes,
            "batch_tokens": size,
            "micro_batch_tokens": min(initial.micro_batch_tokens, 8192),
            **saving,
            "optimizer": initial.optimizer,
            "schedule": "cosine",
            "lr": float(f"{fraction * peak:.3g}"),
            "warmup_steps": max(10, updates // 20),
            "clip_norm": initial.clip_norm,
            "validate_every": max(20, rounded(updates / 5)),
            "validate_every_epochs": None,
            "validation_sentences": 300,  # to save time
            "log_every": 20,
        },
        "decoding": {
            "beam": config.decoding.beam,
            "length_penalty": config.decoding.length_penalty,
        },
    }
    kept = "training.optimizer", "training.clip_norm", "decoding.beam", "decoding.length_penalty"
    comments = {
        "training.max_steps": f"About {epochs:.2g} epochs of the new pairs",
        "training.lr": f"{fraction:.4g} x the initial model's; higher forgets more",
        **dict.fromkeys(kept, "As in the initial model"),
    }
    expected = duration(min(minutes, updates * size / trial.tokens_per_minute))
    logger.info("expected: %s of training, %s updates", expected, f"{updates:,}")
    title = f"""\
# {request.name}: fine-tunes {run} on {num_new:,} pairs. Written by `seq2seq new --from`.
# Measurements: docs/fine-tune.md. Model and tokenizer: as in the initial model.
"""
    return title + commented_yaml(recipe, COMMENTS | comments)


def _usual_training(config: Config) -> TrainingConfig:
    """Return the presumed training settings of a pre-trained model, whose recipe is unknown.

    A small model is presumed to be trained as `new` trains its size. Larger models, such as all
    published ones, are trained with Adam.
    """
    small = [size for size in SIZES["translation"][:2] if size.dim >= config.model.dim]
    if not small:
        return config.training
    size = small[0]
    return replace(
        config.training,
        optimizer="muon",
        schedule="cosine",
        lr=size.lr,
        batch_tokens=size.batch_tokens,
        clip_norm=1.0,
    )


def _memory_saving(config: Config, has_new_pieces: bool) -> dict[str, Any]:
    """Return the keys of `training` with which a large model fits into the memory."""
    shape, vocabulary = config.model, config.tokenizer.vocab_size
    layers = shape.encoder_layers + 2 * shape.decoder_layers
    matrices = shape.dim * (
        4 * shape.dim * layers + 2 * shape.ffn_dim * (shape.encoder_layers + shape.decoder_layers)
    )
    # Weights, gradients and Adam's two averages, and a fifth for everything else.
    needed = 1.2 * 16 * (matrices + vocabulary * shape.dim)
    memory = psutil.virtual_memory().total
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
    if needed < memory:
        return {}
    return {
        "micro_batch_tokens": 1024,
        "gradient_checkpointing": True,
        **({} if has_new_pieces else {"freeze_embeddings": True}),
    }


def _old_data(run: Path, config: Config, num_new: int) -> dict[str, Any]:
    """Return the initial model's corpora, weighted to a total of `num_new` pairs per epoch.

    Also returns its development and test set, to be excluded, and the thresholds of its scores.
    Sets that were held out are files in the prepared data. Warns and returns {} if the corpora are
    unknown or missing.
    """
    try:
        if missing := [str(file) for file in corpus_files(run) if not file.exists()]:
            raise UserError(f"{missing[0]} not found")
        data = split_of_run(config, run, "train", Tokenizer.load(find_model(run)))
    except UserError as error:
        logger.warning(
            "cannot mix in the old training data (%s): the model will forget more of its old "
            "domain",
            error,
        )
        return {}
    old, sizes = config.pairs, data.facts("train")["pairs_per_corpus"]
    weights = old.weights(sizes)
    weighted = sum(size * weight for size, weight in zip(sizes, weights, strict=True))
    train, remaining = [], iter(weights)
    for corpus in old.train:
        weight, *_ = [next(remaining) for _ in old.directions_of(corpus)]
        train.append(_tree(corpus, old) | {"weight": float(f"{num_new / weighted * weight:.3g}")})
    exclude: list[Any] = []
    for split, given in (("dev", old.dev), ("test", old.test)):
        exclude += [_tree(corpus, old) for corpus in given]
        if split in data.manifest["splits"] and not given:
            for direction, file in zip(data.sets(split), data.facts(split)["files"], strict=True):
                prefix = str((data.folder / file.removesuffix(".arrow")).absolute())
                exclude.append({"path": prefix, "languages": list(direction)})
    thresholds = {key: getattr(old.clean, key) for key in ("min_score", "best_share")}
    if rules := {key: value for key, value in thresholds.items() if value is not None}:
        return {"train": train, "exclude": exclude, "clean": rules}
    return {"train": train, "exclude": exclude}


def _tree(corpus: CorpusConfig, data: PairsConfig) -> dict[str, Any]:
    """Return the keys of a corpus that differ from their defaults, and its languages."""
    default = vars(CorpusConfig())
    tree = {key: value for key, value in vars(corpus).items() if value != default[key]}
    return tree | {"languages": list(data.directions_of(corpus)[0])}
