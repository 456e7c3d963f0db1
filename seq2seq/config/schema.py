"""Every key of a recipe, with its default and its unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class CorpusConfig:
    """Where the pairs of one corpus are: give `path`, or `source` and `target`, or `dataset`."""

    path: str | None = None
    """PREFIX for PREFIX.<source language> and PREFIX.<target language>, or a .tsv; for a classifier
    a file of `label<TAB>text` lines; for a language model a file or a folder. Each may end in
    .gz."""
    source: str | None = None
    """File of source sentences, one a line."""
    target: str | None = None
    """File of target sentences, line by line with `source`."""
    dataset: str | None = None
    """Hugging Face data set: a hub name or a local folder."""
    subset: str | None = None
    """The data set's configuration, as `de-en` of wmt14."""
    split: str | None = None
    """The data set's split, as `train`."""
    weight: float = 1.0
    """How often an epoch sees each pair; fractions are drawn anew every epoch."""
    tag: str | None = None
    """Symbol put before each source sentence, as `<news>`."""


@dataclass(frozen=True)
class CleaningConfig:
    """Which training pairs are dropped; development and test sets always come through whole."""

    blank: bool = True
    """Drop pairs with an empty side."""
    control: bool = False
    """Drop pairs with control characters, or the one that replaces what could not be converted."""
    max_ratio: float | None = 4.0
    """Drop pairs whose sides differ more in characters (if the longer has over 20)."""
    languages: bool = False
    """Drop pairs of which py3langid is sure that a side is not in its language; takes long."""
    duplicates: bool = True
    """Drop repetitions of a pair."""
    overlap: bool = True
    """Drop pairs whose source sentence is in the development or test set."""
    max_len: int | None = 256
    """Drop pairs with a side longer than this, in tokens."""


@dataclass(frozen=True)
class DataConfig:
    """Languages and corpora."""

    source: str = ""
    """Source language, as `en`; of a data set for the other tasks, the column of texts (`text`)."""
    target: str = ""
    """Target language, as `de`; of a data set for a classifier, the column of labels (`label`)."""
    text: CorpusConfig | None = None
    """What a language model reads."""
    dev_share: float = 0.05
    """Share of the text that is the development set; it comes behind the training text."""
    test_share: float = 0.05
    """Share of the text, its end, that is the test set."""
    train: tuple[CorpusConfig, ...] = ()
    dev: CorpusConfig | None = None
    test: CorpusConfig | None = None
    dev_size: int = 0
    """Source sentences held out of train where `dev` is not given."""
    test_size: int = 0
    """Source sentences held out of train where `test` is not given."""
    clean: CleaningConfig = field(default_factory=CleaningConfig)
    tokenized: bool = False
    """The files hold tokens between spaces: BLEU counts those (sacreBLEU's tokenize=none)."""
    store: str = "data/store"
    """Folder that holds the prepared data of every recipe."""

    @property
    def bleu_tokenizer(self) -> str:
        """How sacreBLEU cuts these texts into words."""
        return "none" if self.tokenized else "13a"


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece, trained by `prepare` or brought along."""

    kind: Literal["bpe", "char", "byte"] = "bpe"
    """byte: for language models only. A language model's char and byte are no SentencePiece: each
    character or byte is an id."""
    vocab_size: int = 8000
    """Pieces, special symbols and 256 bytes included; for `char` an upper bound. Not given for a
    language model of characters or bytes, which are as many as they are."""
    shared: bool = True
    """One model for both languages, or one for each."""
    sample: int = 500_000
    """Pairs that the tokenizer's training reads at most; of a language model's text, lines."""
    models: tuple[str, ...] = ()
    """SentencePiece models of your own: one shared, or source and target. `vocab_size` and `sample`
    are then not looked at."""
    bpe_dropout: float = 0.0
    """Probability that a merge is left out in training (Provilkov et al. 2020)."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the Transformer; the defaults are the paper's base model."""

    dim: int = 512
    ffn_dim: int = 2048
    num_heads: int = 8
    encoder_layers: int = 6
    """0 for a language model, where it need not be given."""
    decoder_layers: int = 6
    """0 for a classifier, where it need not be given."""
    dropout: float = 0.1
    """Of the embeddings and of what each sublayer adds."""
    attention_dropout: float = 0.0
    """Of the attention weights."""
    activation_dropout: float = 0.0
    """Of what the feed-forward network's activation gives."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual addition (the paper) or before each sublayer."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Added to the embeddings from a fixed table (the paper) or a learned one; or the queries and
    keys of self-attention are rotated, and there is no table (Su et al. 2021)."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """swiglu: SiLU(x W) * (x V) (Shazeer 2020), two thirds as wide, so that there are as many
    parameters."""
    tied: bool = True
    """The output's table is that of the target's embeddings, and with a shared vocabulary that of
    the source's too (the paper); else each has its own."""
    pooling: Literal["mean", "first"] = "mean"
    """What a classifier judges by: the mean of a text's tokens, or the first, its start symbol."""
    context: int = 512
    """Tokens that a language model or a classifier reads at once (of a longer text, a classifier
    reads the first quarter of so many and the last three quarters), and the positions that a
    learned table knows."""


@dataclass(frozen=True)
class TrainingConfig:
    """Updates, rates, batches, and when to look."""

    init_from: str | None = None
    """A run or model directory to start from: its weights, shape and tokenizer."""
    max_steps: int = 100_000
    """Updates."""
    max_minutes: float | None = None
    """Wall-clock limit of the updates and the validations between them; the last validation comes
    on top."""
    batch_tokens: int = 25_000
    """Target tokens (of a classifier: tokens) of one update, over all processes."""
    micro_batch_tokens: int = 25_000
    """Tokens, of the longer side, that one process holds at once."""
    schedule: Literal["noam", "inverse_sqrt", "cosine"] = "noam"
    lr: float = 1.0
    """Scale of the noam schedule; the peak rate of the other two."""
    lr_end: float = 0.0
    """Rate at the end of the cosine."""
    warmup_steps: int = 4000
    """Updates."""
    optimizer: Literal["adam", "muon"] = "adam"
    """muon: for the matrices; embeddings, biases and gains stay with adam."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_eps: float = 1e-9
    weight_decay: float = 0.0
    """Each update multiplies matrices and tables by 1 - rate * this (Loshchilov, Hutter 2019)."""
    clip_norm: float | None = None
    """Largest norm of the whole gradient."""
    max_skipped: int = 10
    """Updates in a row whose gradient is not finite: each is skipped, the last ends the run."""
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    """Go through every batch twice, with other dropout masks, and let both predictions agree: alpha
    of R-Drop (Wu et al. 2021), 5 there for translation; 0 goes once."""
    seed: int = 1
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products in training. auto: bf16 where it is measured to be faster, else fp32."""
    gradient_checkpointing: bool = False
    """Keep only what goes into each layer and compute the rest again: less memory, more time."""
    compile: bool = False
    """Compile the layers with torch.compile, where it works: slow to start."""
    validate_every: int | None = None
    """Updates between validations; one more comes at the end."""
    validate_every_epochs: int | None = 1
    """Epochs between validations."""
    validation_sentences: int | None = None
    """Use only the first so many sentences (texts, contexts) of the development set."""
    best_by: Literal["bleu", "nll", "accuracy"] = "bleu"
    """Which model is best on the development set: by BLEU, or by the nll of its references,
    and then validations do not translate. Where it is not given, a language model has nll, a
    classifier accuracy."""
    patience: int | None = None
    """Stop after so many validations without a better model."""
    checkpoint_every: int | None = None
    """Updates between checkpoints; one more comes at the end."""
    checkpoint_every_minutes: float | None = 10.0
    checkpoint_every_epochs: int | None = None
    keep_last: int = 5
    """Checkpoints kept."""
    keep_best: int = 1
    """Models kept in kept/, the best on the development set."""
    average_last: int = 0
    """Average so many last checkpoints at the end, and keep that model if it is better."""
    log_every: int = 50
    """Updates between lines of metrics.jsonl."""
    tensorboard: bool = False


@dataclass(frozen=True)
class DecodingConfig:
    """Search."""

    beam: int = 4
    """Beam width W; 1 is greedy search."""
    length_penalty: float = 0.6
    """The exponent alpha."""
    penalty_form: Literal["wu", "power"] = "wu"
    """wu: ((5 + length) / 6)^alpha (Wu et al. 2016); power: length^alpha."""
    max_extra: int = 50
    """Tokens that a translation may have beyond its source's."""
    batch_tokens: int = 4096
    """Source tokens times beam width that are decoded at once."""
    validation_beam: int = 1
    """Beam width of the validations during training."""


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    name: str = ""
    """Names the default run directory; by default the recipe's file, of a `recipe.yaml` the
    folder."""
    task: Literal["translation", "language_model", "classification"] = "translation"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
