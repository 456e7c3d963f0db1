"""What the values of a recipe must be, beyond their types."""

from __future__ import annotations

from operator import attrgetter

from seq2seq.config.schema import Config
from seq2seq.errors import UserError


def check_values(config: Config) -> None:
    """Raise UserError for a value, or a pair of values, that makes no sense."""
    model, training, tokenizer = config.model, config.training, config.tokenizer
    data = config.data

    def require(fact: bool, message: str) -> None:
        if not fact:
            raise UserError(message)

    require(
        model.num_heads > 0 and model.dim % model.num_heads == 0,
        f"model.dim={model.dim} is not divisible by model.num_heads={model.num_heads}",
    )
    require(model.dim % 2 == 0, f"model.dim={model.dim} must be even: sines and cosines share it")
    for key in [
        "model.dim",
        "model.ffn_dim",
        "model.encoder_layers",
        "model.decoder_layers",
        "training.max_steps",
        "training.batch_tokens",
        "training.micro_batch_tokens",
        "training.warmup_steps",
        "training.log_every",
        "training.keep_last",
        "training.keep_best",
        "training.max_skipped",
        "decoding.beam",
        "decoding.validation_beam",
        "decoding.batch_tokens",
        "tokenizer.vocab_size",
        "tokenizer.sample",
    ]:
        size = attrgetter(key)(config)
        require(size >= 1, f"{key}={size} must be at least 1")
    for key in [
        "training.validate_every",
        "training.validate_every_epochs",
        "training.checkpoint_every",
        "training.checkpoint_every_minutes",
        "training.checkpoint_every_epochs",
        "training.patience",
        "training.max_minutes",
        "data.clean.max_len",
        "data.clean.max_ratio",
        "training.clip_norm",
        "training.validation_sentences",
        "training.lr",
        "training.adam_eps",
    ]:
        every = attrgetter(key)(config)
        require(every is None or every > 0, f"{key}={every} must be above 0, or null for never")
    for key in [
        "training.seed",
        "training.average_last",
        "training.r_drop",
        "data.dev_size",
        "data.test_size",
        "decoding.length_penalty",
        "decoding.max_extra",
    ]:
        number = attrgetter(key)(config)
        require(number >= 0, f"{key}={number} must not be negative")
    for key in [
        "model.dropout",
        "training.label_smoothing",
        "tokenizer.bpe_dropout",
        "training.adam_beta1",
        "training.adam_beta2",
    ]:
        share = attrgetter(key)(config)
        require(0 <= share < 1, f"{key}={share} must be at least 0 and below 1")
    require(
        training.average_last <= training.keep_last,
        f"training.average_last={training.average_last} needs training.keep_last of as many, "
        f"not {training.keep_last}",
    )
    require(
        model.dropout == 0 or 1 / 256 <= model.dropout <= 255 / 256,
        f"model.dropout={model.dropout} must be 0, or from 1/256 to 255/256",
    )
    require(
        not training.r_drop or model.dropout > 0,
        f"training.r_drop={training.r_drop} needs model.dropout: without it both passes are alike",
    )
    require(
        tokenizer.kind == "bpe" or not tokenizer.bpe_dropout,
        "tokenizer.bpe_dropout is for tokenizer.kind=bpe: characters have no merges to leave out",
    )
    require(
        len(tokenizer.models) in ((0, 1) if tokenizer.shared else (0, 2)),
        f"tokenizer.models names {len(tokenizer.models)} models: one is needed with "
        "tokenizer.shared=true, two (source, target) with tokenizer.shared=false",
    )
    for key, language in [("data.source", data.source), ("data.target", data.target)]:
        require(bool(language.strip()), f"{key} is empty: name the language, as {key}=en")
    require(bool(data.train), "data.train is empty: name a corpus, as data.train=my/corpus")
    require(
        not (data.dev and data.dev_size) and not (data.test and data.test_size),
        "data.dev and data.dev_size (or data.test and data.test_size) exclude each other",
    )
    require(
        bool(data.dev or data.dev_size),
        "no development set: name it with data.dev=PREFIX, or hold one out with data.dev_size=1000",
    )
    for corpus in data.train:
        require(corpus.weight > 0, f"data.train: weight={corpus.weight} must be above 0")
    for named in (*data.train, data.dev, data.test):
        tag = named.tag if named else None
        require(
            tag is None or (bool(tag) and not any(c.isspace() for c in tag)),
            f"data: tag={tag!r} must be one symbol without spaces, as <news>",
        )
