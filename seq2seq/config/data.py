"""Types of the values of a recipe, and the keys of its section `data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Annotated, NamedTuple

_MAX = 2**31 - 1

# Numbers with inclusive bounds.
Count = Annotated[int, (1, _MAX)]
CountOrZero = Annotated[int, (0, _MAX)]
Width = Annotated[int, (1, 2**20)]
Positive = Annotated[float, (1e-30, 1e30)]
NonNegative = Annotated[float, (0, 1e6)]
AtLeastOne = Annotated[float, (1, 1e6)]
Probability = Annotated[float, (0, 1 - 1e-9)]
Share = Annotated[float, (1e-9, 1)]
Seed = Annotated[int, (0, 2**32 - 1)]


CHANGEABLE = {"changeable": True}
"""Metadata of keys that may change when a run is resumed."""


class Direction(NamedTuple):
    """Source and target language of a translation."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"

    def fits(self, to: str, source: str) -> bool:
        """Return whether the direction has a target and a source language; empty for any."""
        return to in ("", self.target) and source in ("", self.source)


@dataclass(frozen=True)
class CorpusConfig:
    """A corpus, given by `path`, by `source` and `target`, or by `dataset`."""

    path: str | None = None
    """Translation: common prefix of two files (`PREFIX.en` and `PREFIX.de`), or a .tsv file.
    Classification: a file of `label<TAB>text` lines. Language model: a file or a folder. Files may
    be gzipped (.gz)."""
    source: str | None = None
    """File of source sentences, one per line."""
    target: str | None = None
    """File of target sentences, aligned with `source`."""
    dataset: str | None = None
    """Hugging Face dataset: a hub name or a local folder."""
    subset: str | None = None
    """Configuration of the dataset, such as `de-en` for wmt14."""
    split: str | None = None
    """Split of the dataset, such as `train`."""
    weight: Positive = 1.0
    """Repetitions of each pair per epoch. A fraction selects a new random subset each epoch."""
    tag: str | None = None
    """Symbol prepended to each source sentence, such as `<news>`."""
    languages: tuple[str, ...] = ()
    """Source and target language, such as `[en, fr]`. Defaults to `data.source` and
    `data.target`."""
    reverse: bool = False
    """Whether to use the pairs in both directions."""
    scores: str | None = None
    """File with the score of each training pair, one per line, for `data.clean`. If a line has
    several columns, separated by tabs, the last is the score."""


@dataclass(frozen=True)
class CleaningConfig:
    """Filters for training pairs. Development and test sets are never filtered."""

    blank: bool = True
    """Drop pairs with an empty side."""
    control: bool = False
    """Drop pairs with control characters or the replacement character U+FFFD."""
    max_ratio: Positive | None = 4.0
    """Drop pairs with a larger length ratio in characters, if the longer side has over 20."""
    languages: bool = False
    """Drop pairs with a side for which py3langid finds another language 30 times as probable. Slow:
    about 7,000 pairs per second."""
    duplicates: bool = True
    """Drop repeated pairs."""
    overlap: bool = True
    """Drop pairs whose source sentence is in the development or test set."""
    min_score: float | None = None
    """Drop pairs with a lower score in `scores` of their corpus."""
    best_share: Share | None = None
    """Keep only this share of the remaining pairs of each corpus with `scores`: the best."""
    max_len: Count | None = 256
    """Drop pairs with more tokens than this on either side."""


@dataclass(frozen=True)
class AugmentConfig:
    """Shares of training pairs that are changed at random. Each epoch draws other pairs."""

    lower: Probability = 0.0
    """lower case, on both sides of pairs whose source ends with punctuation."""
    spaces: Probability = 0.0
    """An extra or a missing space in the source."""
    typos: Probability = 0.0
    """Typos in a fifth of the words of the source."""
    quotes: Probability = 0.0
    """Straight quotes and hyphens for curly quotes and dashes in the source, or the reverse."""
    noise: Probability = 0.0
    """The same rare character, such as an emoji, at the end or the beginning of both sides."""
    join: Probability = 0.0
    """One or two other pairs on the same line, if all are short."""
    copy: Probability = 0.0
    """A symbol of `data.protect` for a word that is equal on both sides. This adds examples of what
    the model is to copy."""


@dataclass(frozen=True)
class DataConfig:
    """Training, development and test data. The other keys depend on the task."""

    store: str = "data/store"
    """Folder of prepared data, shared by all recipes."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """All corpora."""
        return ()


@dataclass(frozen=True)
class PairsConfig(DataConfig):
    """Languages and parallel corpora."""

    source: str = ""
    """Source language, such as `en`."""
    target: str = ""
    """Target language, such as `de`."""
    train: tuple[CorpusConfig, ...] = ()
    """Training corpus, or a list of training corpora."""
    temperature: AtLeastOne = 1.0
    """Sampling temperature T: a corpus of N pairs has the share N^(1/T), times its weight, in an
    epoch (Arivazhagan et al. 2019). The largest corpus is not repeated. 1 is no change."""
    dev: tuple[CorpusConfig, ...] = ()
    """Development set, used to select the best model. A list has one set for each direction."""
    test: tuple[CorpusConfig, ...] = ()
    """Test set, for `evaluate` and `score`. A list has one set for each direction."""
    dev_size: CountOrZero = 0
    """Number of source sentences held out as the development set if `dev` is not given. They are
    taken from the first training corpus of each direction, or only of `source` to `target` if
    these are given."""
    test_size: CountOrZero = 0
    """Number of source sentences held out as the test set if `test` is not given, as for
    `dev_size`."""
    exclude: tuple[CorpusConfig, ...] = ()
    """Corpora whose source sentences are removed from the training data. For fine-tuning: the
    development and test sets of the model in `training.init_from`."""
    clean: CleaningConfig = field(default_factory=CleaningConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    protect: tuple[str, ...] = ()
    """Patterns of spans that translations keep, such as URLs. A pattern is a name of docs/text.md,
    `all`, or NAME=REGEX. The model sees symbols instead of the spans."""
    tokenized: bool = False
    """Whether the files are already tokenised. BLEU then uses sacreBLEU's tokenize=none."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """All corpora, training corpora first."""
        return (*self.train, *self.dev, *self.test, *self.exclude)

    def directions_of(self, corpus: CorpusConfig) -> list[Direction]:
        """Return the direction of a corpus and, if it is used in both, the reverse direction.

        A pre-trained model without corpora has a list of languages: it has all their directions.
        """
        languages = corpus.languages or (self.source, self.target)
        if len(languages) > 2 or corpus.reverse:
            return [Direction(*pair) for pair in permutations(languages, 2)]
        return [Direction(*languages)]

    def tag(self, split: str, direction: Direction) -> str | None:
        """Return the tag of the development or test set of a direction. It is not in its texts.

        A held-out set has the tag of the first training corpus of its direction.
        """
        held_out = self.train if getattr(self, f"{split}_size") else ()
        for corpus in getattr(self, split) or held_out:
            if direction in self.directions_of(corpus):
                return corpus.tag
        return None

    def weights(self, sizes: Sequence[int]) -> list[float]:
        """Return the repetitions per epoch of each training corpus and each reversed corpus.

        sizes: their numbers of pairs.
        """
        given = [corpus.weight for corpus in self.train for _ in self.directions_of(corpus)]
        largest, exponent = max(1, *sizes), 1 / self.temperature - 1
        return [
            weight * (max(1, size) / largest) ** exponent
            for weight, size in zip(given, sizes, strict=True)
        ]

    def restricted(self, languages: Sequence[str]) -> PairsConfig:
        """Return the data with only the directions between some languages."""
        train = []
        for corpus in self.train:
            if len(corpus.languages) > 2:
                train.append(replace(corpus, languages=tuple(languages), reverse=True))
            elif {*self.directions_of(corpus)[0]} <= {*languages}:
                train.append(corpus)
        return replace(self, train=tuple(train))

    @property
    def directions(self) -> list[Direction]:
        """Directions of the training corpora, each once."""
        every = (direction for corpus in self.train for direction in self.directions_of(corpus))
        return list(dict.fromkeys(every)) or [Direction(self.source, self.target)]

    @property
    def languages(self) -> list[str]:
        """Languages of the training corpora, each once, source languages first."""
        sources = [direction.source for direction in self.directions]
        return list(dict.fromkeys([*sources, *self.targets]))

    @property
    def targets(self) -> list[str]:
        """Target languages of the training corpora, each once."""
        return list(dict.fromkeys(direction.target for direction in self.directions))


@dataclass(frozen=True)
class LabelledConfig(PairsConfig):
    """Corpora of labelled texts."""

    source: str = ""
    """Name of the dataset's text column; `text` if empty."""
    target: str = ""
    """Name of the dataset's label column; `label` if empty."""
    # Text and label differ in length and language, and long texts are truncated.
    clean: CleaningConfig = field(
        default_factory=lambda: CleaningConfig(max_ratio=None, languages=False, max_len=None)
    )


@dataclass(frozen=True)
class TextConfig(DataConfig):
    """Text of a language model. Its last parts are the development and the test set."""

    text: CorpusConfig | None = None
    """File, folder of files, or dataset with the text."""
    source: str = ""
    """Name of the dataset's text column; `text` if empty."""
    dev_share: Probability = 0.05
    """Fraction of the text used as the development set, after the training text."""
    test_share: Probability = 0.05
    """Fraction of the text used as the test set, at its end."""

    @property
    def corpora(self) -> tuple[CorpusConfig, ...]:
        """The text."""
        return (self.text,) if self.text else ()
