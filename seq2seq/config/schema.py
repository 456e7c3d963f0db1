"""Every key of a recipe, with its default and its unit, and the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from seq2seq.config.data import (
    CHANGEABLE,
    AtLeastOne,
    Count,
    CountOrZero,
    DataConfig,
    LabelledConfig,
    NonNegative,
    PairsConfig,
    Positive,
    Probability,
    Seed,
    Share,
    TextConfig,
    Width,
)


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece tokenizer, trained by `prepare` or pre-trained."""

    kind: Literal["bpe", "char", "byte"] = "bpe"
    """Tokens: BPE pieces, characters, or bytes (language models only). For a language model, char
    and byte do not use SentencePiece: each character or byte is a token."""
    vocab_size: Width = 8000
    """Vocabulary size, including special symbols and 256 bytes; an upper bound for `char`. Not used
    by character and byte language models."""
    shared: bool = True
    """Use one vocabulary for source and target instead of two."""
    sample: Count = 500_000
    """Maximum number of pairs (language model: lines) to train the tokenizer on."""
    models: tuple[str, ...] = ()
    """Pre-trained SentencePiece models: one shared, or source and target. `vocab_size` and `sample`
    are then ignored."""
    new_pieces: CountOrZero = 0
    """Maximum number of pieces that are added to pre-trained `models` for each language of the data
    that they lack, beside its symbol."""
    bpe_dropout: Probability = 0.0
    """Probability of skipping a BPE merge in training (BPE-dropout, Provilkov et al. 2020)."""


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of the Transformer. Defaults: base model of Vaswani et al. 2017 (the paper)."""

    dim: Width = 512
    """Hidden size: width of embeddings and layers. Must be a multiple of num_heads."""
    ffn_dim: Width = 2048
    """Inner width of the feed-forward networks."""
    num_heads: Width = 8
    """Number of attention heads per layer, with dim / num_heads dimensions per head."""
    encoder_layers: CountOrZero = 6
    """Number of encoder layers."""
    decoder_layers: CountOrZero = 6
    """Number of decoder layers."""
    dropout: Probability = 0.1
    """Dropout probability on the embeddings and on the output of each sublayer."""
    attention_dropout: Probability = 0.0
    """Dropout probability on the attention weights. Above 0 it disables flash attention on GPUs."""
    activation_dropout: Probability = 0.0
    """Dropout probability after the activation of the feed-forward networks."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual addition (post, the paper) or before each sublayer (pre)."""
    positions: Literal["sinusoidal", "fairseq", "marian", "learned", "rotary"] = "sinusoidal"
    """Positional encoding. sinusoidal: as in the paper; fairseq, marian: sinusoidal with the
    frequencies of fairseq (NLLB, M2M-100) or Marian; learned: embeddings; rotary: rotation of the
    queries and keys of self-attention (Su et al. 2021)."""
    start: Literal["symbol", "zero"] = "symbol"
    """First input of the decoder: the embedding of the start symbol, or zeros (Marian; required by
    `export --to browser`)."""
    activation: Literal["relu", "gelu", "silu", "swiglu"] = "relu"
    """Activation of the feed-forward networks. swiglu: SiLU(x W) * (x V), with 2/3 of ffn_dim to
    keep the number of parameters (Shazeer 2020)."""
    tied: bool = True
    """Share the output projection with the target embedding and, if the vocabulary is shared, with
    the source embedding (the paper)."""
    output_bias: bool = False
    """Add a bias to the logits."""
    pooling: Literal["mean", "first"] = "mean"
    """Input of a classifier's output layer: mean over all tokens, or the first (start) token."""
    context: Width = 512
    """Context length of language models and classifiers in tokens. It is also the number of learned
    positional embeddings. Of a longer text, a classifier reads the beginning (a quarter of the
    context) and the end."""


@dataclass(frozen=True)
class TrainingConfig:
    """Optimisation, batches, validations and checkpoints."""

    init_from: str | None = None
    """Run or model directory that provides the initial weights, model size and tokenizer."""
    max_steps: Count = field(default=100_000, metadata=CHANGEABLE)
    """Maximum number of updates."""
    max_minutes: Positive | None = field(default=None, metadata=CHANGEABLE)
    """Wall-clock limit of updates and validations in minutes. Excludes the final validation."""
    batch_tokens: Count = field(default=25_000, metadata=CHANGEABLE)
    """Maximum target tokens (classifier: input tokens) per update, over all processes."""
    micro_batch_tokens: Count = field(default=25_000, metadata=CHANGEABLE)
    """Maximum tokens per micro-batch of a process, counted on the longer side. A smaller value
    needs less memory. It does not change the updates, apart from dropout masks."""
    schedule: Literal["noam", "inverse_sqrt", "cosine"] = "noam"
    """Learning rate schedule after a linear warm-up. noam (the paper): inverse square root decay,
    scaled by the model's width. inverse_sqrt: inverse square root decay from the peak `lr`.
    cosine: half a cosine that ends with the run."""
    lr: Positive = 1.0
    """Factor of the noam schedule; peak learning rate of inverse_sqrt and cosine."""
    lr_end: NonNegative = 0.0
    """Final learning rate of the cosine schedule."""
    warmup_steps: Count = 4000
    """Number of warm-up updates."""
    optimizer: Literal["adam", "muon"] = "adam"
    """With muon, embeddings, biases and LayerNorm weights still use Adam."""
    adam_beta1: Probability = 0.9
    """Decay rate of Adam's running mean of the gradients."""
    adam_beta2: Probability = 0.98
    """Decay rate of Adam's running mean of the squared gradients."""
    adam_eps: Positive = 1e-9
    """Term added to Adam's denominator. A larger value slows the learning of rare words."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of matrices and embeddings (Loshchilov and Hutter 2019)."""
    clip_norm: Positive | None = None
    """Maximum norm of the gradient over all parameters. A larger gradient is scaled down."""
    max_skipped: Count = field(default=10, metadata=CHANGEABLE)
    """Number of consecutive skipped updates (non-finite gradient) after which the run ends."""
    label_smoothing: Probability = 0.1
    """Probability mass that is spread uniformly over all labels (Szegedy et al. 2016)."""
    r_drop: NonNegative = 0.0
    """Weight alpha of the R-Drop loss (Wu et al. 2021; 5 for translation). Each batch runs twice
    with different dropout masks. 0 disables R-Drop."""
    seed: Seed = 1
    """Random seed for weight initialisation, data order and dropout."""
    precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """Precision of matrix multiplications in training. auto: bf16 if it is measured to be faster
    than fp32; else, on a GPU, fp16 if it is faster; else fp32. fp16 uses loss scaling. On a CUDA
    GPU, the remaining fp32 multiplications use TF32 unless `fp32` is set."""
    freeze_embeddings: bool = False
    """Whether embeddings (and a tied output projection) stay as they are in `init_from`. This saves
    the memory of their gradients and optimiser state."""
    gradient_checkpointing: bool = field(default=False, metadata=CHANGEABLE)
    """Store only the input of each layer and recompute its activations: less memory, more time."""
    validate_every: Count | None = field(default=None, metadata=CHANGEABLE)
    """Number of updates between validations. The last update is always validated."""
    validate_every_epochs: Count | None = field(default=1, metadata=CHANGEABLE)
    """Number of epochs between validations."""
    validation_sentences: Count | None = field(default=None, metadata=CHANGEABLE)
    """Use only the first N sentences (texts, context windows) of the development set."""
    best_by: Literal["bleu", "nll", "accuracy"] = "bleu"
    """Development set metric that selects the best model. With nll, validations do not translate.
    Defaults to nll for language models and accuracy for classifiers."""
    patience: Count | None = field(default=None, metadata=CHANGEABLE)
    """Early stopping: end the run after N validations without a better model."""
    checkpoint_every: Count | None = field(default=None, metadata=CHANGEABLE)
    """Number of updates between checkpoints. A final checkpoint is always written."""
    checkpoint_every_minutes: Positive | None = field(default=10.0, metadata=CHANGEABLE)
    """Minutes between checkpoints: the most that a crash can lose."""
    checkpoint_every_epochs: Count | None = field(default=None, metadata=CHANGEABLE)
    """Number of epochs between checkpoints."""
    keep_last: Count = field(default=5, metadata=CHANGEABLE)
    """Number of checkpoints to keep."""
    keep_best: Count = field(default=1, metadata=CHANGEABLE)
    """Number of models to keep in kept/: the best by `best_by`."""
    average_last: CountOrZero = field(default=0, metadata=CHANGEABLE)
    """Average the last N checkpoints at the end, and keep the average if it is better. 0: off."""
    log_every: Count = field(default=50, metadata=CHANGEABLE)
    """Number of updates between lines in metrics.jsonl."""
    tensorboard: bool = field(default=False, metadata=CHANGEABLE)
    """Also write the metrics for TensorBoard, to tensorboard/ in the run directory."""


@dataclass(frozen=True)
class DecodingConfig:
    """Beam search and sampling."""

    beam: Count = 4
    """Beam width. 1 is greedy search."""
    patience: AtLeastOne = 1.5
    """Search ends when beam x patience hypotheses are finished (Kasai et al. 2022)."""
    length_penalty: NonNegative = 1.0
    """Exponent alpha of the length penalty."""
    penalty_form: Literal["power", "wu"] = "power"
    """Length penalty. power: length^alpha; wu: ((5 + length) / 6)^alpha (Wu et al. 2016)."""
    min_length: CountOrZero = 0
    """Minimum length of a translation, in tokens."""
    max_factor: NonNegative = 1.0
    """Maximum length of a translation in tokens: `max_factor` x source length + `max_extra`."""
    max_extra: CountOrZero = 50
    """Number of tokens added to the maximum length (see `max_factor`)."""
    no_repeat_ngram: CountOrZero = 0
    """Size of token n-grams that may not occur twice in a translation. 0 allows repetition."""
    recase: bool = True
    """Translate texts in UPPER and Title Case in lower case, and put the translations in their
    case."""
    paragraphs: bool = False
    """Translate each sentence of a line separately. Lines with a prefix, constraints or references
    are not split."""
    sample: bool = False
    """Sample translations at random instead of using beam search."""
    temperature: NonNegative = 1.0
    """Sampling temperature: divides the logits. 0 selects the most probable token."""
    top_k: Count | None = None
    """Sample only from the N most probable tokens; by default from all."""
    top_p: Share | None = None
    """Sample only from the most probable tokens that reach this total probability; by default from
    all (nucleus sampling, Holtzman et al. 2020)."""
    seed: Seed = 0
    """Random seed for sampling."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """Precision of matrix multiplications: fp32 or int8 on a CPU; fp32, bf16 or fp16 on a GPU.
    auto: fp32 on a CPU, the fastest precision on a GPU."""
    batch_tokens: Count | None = None
    """Maximum size of a batch: source tokens x beam width. Defaults to 16,384 on a CPU, 65,536 on a
    GPU."""
    validation_beam: Count = 1
    """Beam width of validations during training."""


DEFAULT_LIMIT = 1_024
"""Maximum number of source tokens of a model trained without data.clean.max_len."""


@dataclass(frozen=True)
class Config:
    """A complete recipe."""

    name: str = ""
    """Name of the default run directory. Defaults to the name of the recipe file, or of its folder
    if the file is `recipe.yaml`."""
    task: str = "translation"
    """Task of the model: translation, language_model or classification. translation has an encoder
    and a decoder, language_model only a decoder, classification only an encoder."""
    data: DataConfig = field(default_factory=PairsConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    @property
    def pairs(self) -> PairsConfig:
        """Section `data` of a task with pairs."""
        assert isinstance(self.data, PairsConfig)
        return self.data

    @property
    def text(self) -> TextConfig:
        """Section `data` of a language model."""
        assert isinstance(self.data, TextConfig)
        return self.data

    @property
    def translates(self) -> bool:
        """Whether the task is translation."""
        return self.task == "translation"

    @property
    def max_source_tokens(self) -> int:
        """Maximum number of source tokens, without the end symbol."""
        return self.pairs.clean.max_len or DEFAULT_LIMIT

    @property
    def num_positions(self) -> int:
        """Maximum number of source or target tokens, with start or end symbol."""
        if self.model.positions == "learned":
            return self.model.context
        return max(2048, 2 * self.max_source_tokens)


@dataclass(frozen=True)
class TaskRecipe:
    """Rules for the recipes of a task."""

    defaults: Config
    """Recipe with the default of every key."""
    unused: tuple[str, ...]
    """Keys and sections without effect."""
    best_by: tuple[str, ...]
    """Valid values of `training.best_by`."""


TASKS = {
    "translation": TaskRecipe(Config(), unused=("model.pooling",), best_by=("bleu", "nll")),
    "classification": TaskRecipe(
        defaults=Config(
            task="classification",
            data=LabelledConfig(),
            model=ModelConfig(decoder_layers=0),
            training=TrainingConfig(best_by="accuracy"),
        ),
        unused=(
            "data.clean.max_len",
            "data.clean.max_ratio",
            "data.clean.languages",
            "data.augment",
            "data.protect",
            "data.tokenized",
            "tokenizer.shared",
            "model.decoder_layers",
            "model.start",
            "model.tied",
            "decoding",
        ),
        best_by=("accuracy", "nll"),
    ),
    "language_model": TaskRecipe(
        defaults=Config(
            task="language_model",
            data=TextConfig(),
            model=ModelConfig(encoder_layers=0),
            training=TrainingConfig(best_by="nll"),
        ),
        unused=(
            "tokenizer.shared",
            "tokenizer.bpe_dropout",
            "model.encoder_layers",
            "model.start",
            "model.pooling",
            "decoding",
        ),
        best_by=("nll",),
    ),
}
"""Rules for recipes, by the value of the key `task`."""
