"""BLEU, chrF2, chrF2++, TER and spBLEU, computed by sacreBLEU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seq2seq.errors import UserError

DEFAULT_TOKENIZER = "13a"
NAMES = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF2++", "ter": "TER", "spbleu": "spBLEU"}
DEFAULT_KEYS = ("bleu", "chrf", "chrf++", "ter")
"""Metrics of `seq2seq score`. sacreBLEU downloads the tokenizer of spBLEU."""
VALIDATION_METRICS = ("bleu", "chrf")
EVALUATION_METRICS = (*VALIDATION_METRICS, "ter")


@dataclass(frozen=True)
class Score:
    """One metric of a translation, with its sacreBLEU signature."""

    key: str
    """A key of `NAMES`, or the name of another program's metric."""
    name: str
    value: float
    """From 0 to 100; TER may be higher."""
    details: str = ""
    """N-gram precisions, brevity penalty and lengths, for BLEU."""
    signature: str = ""
    interval: float | None = None
    """Half the width of the 95 % confidence interval, by bootstrap resampling (Koehn 2004)."""

    @property
    def text(self) -> str:
        """The value with its confidence interval."""
        margin = "" if self.interval is None else f" ± {self.interval:.2f}"
        return f"{self.value:.2f}{margin}"

    @property
    def signature_key(self) -> str:
        """The field of a JSON object with the signature; BLEU's is `signature`."""
        return "signature" if self.key == "bleu" else f"{self.key}_signature"


@contextmanager
def sacrebleu_errors() -> Iterator[None]:
    """Turn what sacreBLEU raises for a tokenizer or a seed that it cannot use into a UserError."""
    try:
        yield
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"sacreBLEU cannot score: {reason or type(error).__name__}; see --tokenize, --metrics "
            "and SACREBLEU_SEED"
        ) from None


def make_metric(key: str, *, tokenize: str = DEFAULT_TOKENIZER, lowercase: bool = False) -> Any:
    """Return sacreBLEU's metric of this key."""
    # force: without a warning for tokenised input, which published results may use.
    if key == "bleu":
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    if key == "spbleu":
        return BLEU(tokenize="flores200", lowercase=lowercase, force=True)
    if key == "ter":
        return TER(case_sensitive=not lowercase)
    return CHRF(word_order=2 if key == "chrf++" else 0, lowercase=lowercase)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = DEFAULT_TOKENIZER,
    lowercase: bool = False,
    keys: Sequence[str] = EVALUATION_METRICS,
) -> list[Score]:
    """Return scores of hypotheses against one or more lists of references."""
    require_aligned("hypotheses", hypotheses, references)
    with sacrebleu_errors():
        metrics = {key: make_metric(key, tokenize=tokenize, lowercase=lowercase) for key in keys}
        return [score_by(metrics[key], key, hypotheses, references) for key in keys]


def score_by(
    metric: Any, key: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Score:
    """Return the score of hypotheses by one metric."""
    result = metric.corpus_score(hypotheses, references)
    details = ""
    if isinstance(metric, BLEU):
        lengths = f"hyp_len = {result.sys_len} ref_len = {result.ref_len}"
        details = f"{result.prec_str} (BP = {result.bp:.3f} {lengths})"
    return named_score(metric, key, result.score, details)


def named_score(metric: Any, key: str, value: float, details: str = "") -> Score:
    """Return a value that a metric has computed with its name and, of sacreBLEU, its signature."""
    signature = str(metric.get_signature()) if key in NAMES else ""
    return Score(key, NAMES.get(key) or metric.name, value, details, signature)


def require_aligned(
    name: object, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> None:
    """Raise UserError for no lines, or for another number of references; name: of the lines."""
    for lines in references:
        if len(lines) != len(hypotheses):
            raise UserError(
                f"{len(hypotheses)} {name} but {len(lines)} references: they must "
                "be aligned line by line"
            )
    if not hypotheses:
        raise UserError("there are no lines to score")
