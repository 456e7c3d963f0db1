"""Every key of a recipe, with its default and its unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple


class Range(NamedTuple):
    """The valid values of a number."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"from {self.least:,} to {self.most:,}"


_MOST = 2**31 - 1

Count = Annotated[int, Range(1, _MOST)]
CountOrZero = Annotated[int, Range(0, _MOST)]
BeamWidth = Annotated[int, Range(1, 1000)]
Width = Annotated[int, Range(1, 2**20)]
Depth = Annotated[int, Range(0, 1000)]
TokenCount = Annotated[int, Range(0, 100_000)]
Positive = Annotated[float, Range(1e-30, 1e30)]
NonNegative = Annotated[float, Range(0, 1e6)]
Weight = Annotated[float, Range(1e-9, 1000)]
Factor = Annotated[float, Range(0, 100)]
Patience = Annotated[float, Range(1, 100)]
Exponent = Annotated[float, Range(0, 10)]
Temperature = Annotated[float, Range(0, 1000)]
Probability = Annotated[float, Range(0, 1 - 1e-9)]
Share = Annotated[float, Range(1e-9, 1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
DecodingPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]


FREE = {"free": True}
"""Metadata of keys that may change when a run resumes."""


@dataclass(frozen=True)
class CorpusConfig:
    """The location of one corpus: `path`, or `source` and `target`, or `dataset`."""

    path: str | None = None
    """PREFIX of PREFIX.<source language> and PREFIX.<target language>, or a .tsv; for a classifier
    a file of `label<TAB>text` lines; for a language model a file or a folder. Files may be
    gzipped (.gz)."""
    source: str | None = None
    """File of source sentences, one per line."""
    target: str | None = None
    """File of target sentences, aligned with `source`."""
    dataset: str | None = None
    """Hugging Face dataset: a hub name or a local folder."""
    subset: str | None = None
    """The dataset's configuration, such as `de-en` of wmt14."""
    split: str | None = None
    """The dataset's split, such as `train`."""
    weight: Weight = 1.0
    """How often an epoch contains each pair; a fraction is sampled again in every epoch."""
    tag: str | None = None
    """Symbol before each source sentence, such as `<news>`."""


@dataclass(frozen=True)
class CleaningConfig:
    """Which training pairs are dropped; development and test sets are never filtered."""

    blank: bool = True
    """Drop pairs with an empty side."""
    control: bool = False
    """Drop pairs with control characters or the replacement character U+FFFD."""
    max_ratio: Positive | None = 4.0
    """Drop pairs with a larger ratio of lengths in characters (if the longer has over 20)."""
    languages: bool = False
    """Drop pairs with a side that py3langid confidently assigns to another language. Slow: some
    8,000 pairs per second."""
    duplicates: bool = True
    """Drop repeated pairs."""
    overlap: bool = True
    """Drop pairs whose source sentence is in the development or test set."""
    max_len: Count | None = 256
    """Drop pairs with a side longer than this, in tokens."""


@dataclass(frozen=True)
class DataConfig:
    """The data; further keys depend on the task."""

    store: str = "data/store"
    """Folder for the prepared data of all recipes."""

    @property
    def bleu_tokenizer(self) -> str:
        """The sacreBLEU tokenizer for these texts."""
        return "13a"

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """All corpora."""
        return ()


@dataclass(frozen=True)
class PairsConfig(DataConfig):
    """Languages and corpora of sentence pairs."""

    source: str = ""
    """Source language, such as `en`."""
    target: str = ""
    """Target language, such as `de`."""
    train: tuple[CorpusConfig, ...] = ()
    """Training corpora: one, or a list."""
    dev: CorpusConfig | None = None
    """Development set, which selects the best model."""
    test: CorpusConfig | None = None
    """Test set, for `evaluate` and `score`."""
    dev_size: CountOrZero = 0
    """Source sentences held out of the first training corpus if `dev` is not given."""
    test_size: CountOrZero = 0
    """Source sentences held out of the first training corpus if `test` is not given."""
    exclude: tuple[CorpusConfig, ...] = ()
    """Corpora whose source sentences are dropped from the training corpora, such as the test sets
    of `training.init_from`."""
    clean: CleaningConfig = field(default_factory=CleaningConfig)
    tokenized: bool = False
    """The files are tokenised already: BLEU uses sacreBLEU's tokenize=none."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """All corpora, those of the training set first."""
        return (*self.train, *(each for each in (self.dev, self.test) if each), *self.exclude)

    @property
    def bleu_tokenizer(self) -> str:
        """The sacreBLEU tokenizer for these texts."""
        return "none" if self.tokenized else "13a"


@dataclass(frozen=True)
class LabelledConfig(PairsConfig):
    """Corpora of labelled texts."""

    source: str = ""
    """The dataset's column of text (`text`)."""
    target: str = ""
    """The dataset's column of labels (`label`)."""
    # Text and label differ in length and language, and long texts are truncated.
    clean: CleaningConfig = field(
        default_factory=lambda: CleaningConfig(max_ratio=None, languages=False, max_len=None)
    )


@dataclass(frozen=True)
class TextConfig(DataConfig):
    """A text, of which development and test set are held out."""

    text: CorpusConfig | None = None
    """The text: a file, a folder of files, or a dataset."""
    source: str = ""
    """The dataset's column of text (`text`)."""
    dev_share: Probability = 0.05
    """Fraction of the text for the development set, which follows the training text."""
    test_share: Probability = 0.05
    """Fraction at the end of the text for the test set."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """The text."""
        return (self.text,) if self.text else ()


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece, trained by `prepare` or pre-trained."""

    kind: Literal["bpe", "char", "byte"] = "bpe"
    """byte: for language models only. For a language model, char and byte do not use
    SentencePiece: each character or byte is an id."""
    vocab_size: Width = 8000
    """Pieces, including special symbols and 256 bytes; for `char` an upper bound. Not used by a
    language model of characters or bytes."""
    shared: bool = True
    """One model for both languages, or one for each."""
    sample: Count = 500_000
    """Maximum number of pairs (of a language model's text: lines) to train the tokenizer on."""
    models: tuple[str, ...] = ()
    """Pre-trained SentencePiece models: one shared, or source and target. `vocab_size` and `sample`
    are then ignored."""
    bpe_dropout: Probability = 0.0
    """Probability of dropping a merge in training (Provilkov et al. 2020)."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the Transformer; the defaults are the paper's base model."""

    dim: Width = 512
    """Width of embeddings and layers; a multiple of num_heads."""
    ffn_dim: Width = 2048
    """Width inside of the feed-forward networks."""
    num_heads: Width = 8
    """Attention heads of each layer, of dim / num_heads dimensions each."""
    encoder_layers: Depth = 6
    """Depth of the encoder."""
    decoder_layers: Depth = 6
    """Depth of the decoder."""
    dropout: Probability = 0.1
    """Of the embeddings and of each sublayer's output."""
    attention_dropout: Probability = 0.0
    """Of the attention weights. Flash attention, on GPUs, has none, and is not used then."""
    activation_dropout: Probability = 0.0
    """After the activation of the feed-forward network."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual addition (the paper) or before each sublayer."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Fixed (the paper) or learned positional embeddings, or rotation of the queries and keys of
    self-attention (Su et al. 2021)."""
    activation: Literal["relu", "gelu", "silu", "swiglu"] = "relu"
    """swiglu: SiLU(x W) * (x V) (Shazeer 2020), with 2/3 of the width and so as many
    parameters."""
    tied: bool = True
    """Share the output projection with the target embedding and, with a shared vocabulary, with the
    source embedding (the paper)."""
    output_bias: bool = False
    """Add a bias to the logits."""
    pooling: Literal["mean", "first"] = "mean"
    """Input of a classifier's output layer: the mean over the tokens, or the start symbol's."""
    context: Width = 512
    """Context length of a language model or a classifier (of a longer text, a classifier reads a
    quarter of that from the beginning and the rest from the end), and the number of learned
    positional embeddings."""


@dataclass(frozen=True)
class TrainingConfig:
    """Optimisation, batches, validations and checkpoints."""

    init_from: str | None = None
    """A run or model directory to take weights, model size and tokenizer from."""
    max_steps: Count = field(default=100_000, metadata=FREE)
    """Updates."""
    max_minutes: Positive | None = field(default=None, metadata=FREE)
    """Wall-clock limit of updates and validations; the final validation is not included."""
    batch_tokens: Count = field(default=25_000, metadata=FREE)
    """Target tokens (of a classifier: tokens) per update, over all processes."""
    micro_batch_tokens: Count = field(default=25_000, metadata=FREE)
    """Tokens of the longer side per forward pass of one process: less memory with fewer, the same
    updates apart from dropout masks."""
    schedule: Literal["noam", "inverse_sqrt", "cosine"] = "noam"
    """Of the learning rate. noam (the paper): linear warm-up, then with the inverse square root of
    the update, scaled by the model's width. inverse_sqrt: the same with a given peak. cosine:
    linear warm-up, then half a cosine that ends with the run."""
    lr: Positive = 1.0
    """Scale of the noam schedule; peak learning rate of the other two."""
    lr_end: NonNegative = 0.0
    """Final learning rate of the cosine."""
    warmup_steps: Count = 4000
    """Updates."""
    optimizer: Literal["adam", "muon"] = "adam"
    """muon: for the matrices; adam for embeddings, biases and LayerNorm weights."""
    adam_beta1: Probability = 0.9
    """Decay of Adam's mean of gradients."""
    adam_beta2: Probability = 0.98
    """Decay of Adam's mean of squared gradients."""
    adam_eps: Positive = 1e-9
    """Added to the root of the squared gradients; a larger one slows rare words."""
    weight_decay: NonNegative = 0.0
    """Decoupled, for matrices and embeddings (Loshchilov and Hutter 2019)."""
    clip_norm: Positive | None = None
    """Maximum norm of the whole gradient."""
    max_skipped: Count = field(default=10, metadata=FREE)
    """Consecutive updates with a non-finite gradient, each skipped, after which the run ends."""
    label_smoothing: Probability = 0.1
    """Probability that is shared by all labels instead of the right one (Szegedy et al. 2016)."""
    r_drop: NonNegative = 0.0
    """alpha of R-Drop (Wu et al. 2021; 5 for translation): each batch runs twice with different
    dropout masks. 0 disables it."""
    seed: Seed = 1
    """Of initial weights, order of the data and dropout."""
    precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """Of matrix products in training. auto: bf16 if it is measured to be faster, else, on a GPU,
    fp16 if that is, else fp32. fp16 scales the loss. Unless fp32 is asked for, products that stay
    in fp32 use TF32 on a CUDA GPU."""
    gradient_checkpointing: bool = field(default=False, metadata=FREE)
    """Store only the input of each layer and recompute the rest: less memory, more time."""
    compile: bool = field(default=False, metadata=FREE)
    """Compile the layers with torch.compile, if it works; slow to start."""
    validate_every: Count | None = field(default=None, metadata=FREE)
    """Updates between validations; the last update is always validated."""
    validate_every_epochs: Count | None = field(default=1, metadata=FREE)
    """Epochs between validations."""
    validation_sentences: Count | None = field(default=None, metadata=FREE)
    """Use only the first N sentences (texts, context windows) of the development set."""
    best_by: Literal["bleu", "nll", "accuracy"] = "bleu"
    """Metric on the development set that selects the best model; with nll, validations do not
    translate. Defaults to nll for a language model, accuracy for a classifier."""
    patience: Count | None = field(default=None, metadata=FREE)
    """Stop after N validations without a better model."""
    checkpoint_every: Count | None = field(default=None, metadata=FREE)
    """Updates between checkpoints; one is always written at the end."""
    checkpoint_every_minutes: Positive | None = field(default=10.0, metadata=FREE)
    """Minutes between checkpoints: what a crash can cost."""
    checkpoint_every_epochs: Count | None = field(default=None, metadata=FREE)
    """Epochs between checkpoints."""
    keep_last: Count = field(default=5, metadata=FREE)
    """Number of checkpoints to keep."""
    keep_best: Count = field(default=1, metadata=FREE)
    """Number of models to keep in kept/, the best on the development set."""
    average_last: CountOrZero = field(default=0, metadata=FREE)
    """Average the last N checkpoints at the end, and keep that model if it is better."""
    log_every: Count = field(default=50, metadata=FREE)
    """Updates between lines of metrics.jsonl."""
    tensorboard: bool = field(default=False, metadata=FREE)
    """Write the metrics for TensorBoard, too, to tensorboard/ in the run directory."""


@dataclass(frozen=True)
class DecodingConfig:
    """Search."""

    beam: BeamWidth = 4
    """Beam width W; 1 is greedy search."""
    patience: Patience = 1.5
    """A sentence is done when W times this many hypotheses have ended (Kasai et al. 2022)."""
    length_penalty: Exponent = 1.0
    """Exponent alpha."""
    penalty_form: Literal["power", "wu"] = "power"
    """power: length^alpha; wu: ((5 + length) / 6)^alpha (Wu et al. 2016)."""
    min_length: TokenCount = 0
    """Minimum length of a translation, in tokens."""
    max_factor: Factor = 1.0
    """Maximum length of a translation: max_factor times the tokens of its source plus max_extra."""
    max_extra: TokenCount = 50
    """See max_factor, in tokens."""
    no_repeat_ngram: TokenCount = 0
    """Length of n-grams of tokens that occur only once in a translation; 0 allows all."""
    sample: bool = False
    """Draw translations at random instead of searching for the best."""
    temperature: Temperature = 1.0
    """Divisor of the logits when sampling; 0 selects the most probable token."""
    top_k: Count | None = None
    """Sample only from the K most probable tokens."""
    top_p: Share | None = None
    """Sample only from the most probable tokens with this total probability (Holtzman et al.
    2020)."""
    seed: Seed = 0
    """Seed of the samples."""
    precision: DecodingPrecision = "auto"
    """Precision of matrix products: fp32 or int8 on a CPU, fp32, bf16 or fp16 on a GPU. auto: fp32
    on a CPU, the fastest on a GPU."""
    batch_tokens: Count = 16384
    """Source tokens times beam width that are searched at the same time."""
    validation_beam: BeamWidth = 1
    """Beam width of the validations during training."""


@dataclass(frozen=True)
class Config:
    """The whole recipe."""

    name: str = ""
    """Name of the default run directory; defaults to the recipe's file name, or the folder's of a
    `recipe.yaml`."""
    task: str = "translation"
    """What the model does: translation (encoder and decoder), language_model (decoder only) or
    classification (encoder only)."""
    data: DataConfig = field(default_factory=PairsConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    @property
    def pairs(self) -> PairsConfig:
        """The section `data` of a task that has pairs."""
        assert isinstance(self.data, PairsConfig)
        return self.data

    @property
    def text(self) -> TextConfig:
        """The section `data` of a task that has one text."""
        assert isinstance(self.data, TextConfig)
        return self.data

    @property
    def translates(self) -> bool:
        """Whether the model translates, so that translations can be searched and scored."""
        return self.task == "translation"
