"""BLEU, chrF2, chrF2++, TER and spBLEU with sacreBLEU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import _bootstrap_resample, estimate_ci
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR

from seq2seq.errors import UserError

DEFAULT_TOKENIZER = "13a"
ALL_KEYS = ("bleu", "chrf", "chrf++", "ter", "spbleu")
VALIDATION_METRICS = ("bleu", "chrf")
EVALUATION_METRICS = (*VALIDATION_METRICS, "ter")
RESAMPLES = 1_000
"""Of a bootstrap, as sacreBLEU's default."""
MAX_RESAMPLED_LINES = 10_000
"""sacreBLEU holds the statistics of all resamples in memory: some gigabytes for more lines."""


@dataclass(frozen=True)
class Score:
    """One metric of a translation, with its sacreBLEU signature."""

    key: str
    """bleu, chrf, chrf++, ter or spbleu."""
    name: str
    """Name in sacreBLEU: BLEU, chrF2, chrF2++, TER."""
    value: float
    """From 0 to 100; TER may be higher."""
    details: str
    """For BLEU: n-gram precisions, brevity penalty and lengths."""
    signature: str
    interval: float | None = None
    """Half the width of the 95 % confidence interval, by bootstrap resampling (Koehn 2004)."""

    @property
    def margin(self) -> str:
        """The confidence interval, as it is written after the value."""
        return "" if self.interval is None else f" ± {self.interval:.2f}"

    @property
    def signature_key(self) -> str:
        """The field of a JSON object with the signature; BLEU's is `signature`."""
        return "signature" if self.key == "bleu" else f"{self.key}_signature"


@contextmanager
def sacrebleu_errors() -> Iterator[None]:
    """Turn what sacreBLEU raises for a tokenizer or a seed that it cannot use into a UserError."""
    try:
        yield
    except UserError:
        raise
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


def metric_keys() -> list[str]:
    """Return the metrics of `seq2seq score`: spBLEU only where sacreBLEU has its tokenizer."""
    model = Path(SACREBLEU_DIR) / "models" / Path(SPM_MODELS["flores200"]["url"]).name
    return [key for key in ALL_KEYS if key != "spbleu" or model.exists()]


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
    metric: Any,
    key: str,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    intervals: bool = False,
) -> Score:
    """Return the score of hypotheses by one metric.

    intervals: with a confidence interval, for at most `MAX_RESAMPLED_LINES` lines.
    """
    statistics = metric._extract_corpus_statistics(hypotheses, references)
    result = metric._aggregate_and_compute(statistics)
    details = ""
    if key in ("bleu", "spbleu"):
        lengths = f"hyp_len = {result.sys_len} ref_len = {result.ref_len}"
        details = f"{result.prec_str} (BP = {result.bp:.3f} {lengths})"
    name = "spBLEU" if key == "spbleu" else result.name
    interval = None
    if intervals and len(hypotheses) <= MAX_RESAMPLED_LINES:
        # As `corpus_score` does with n_bootstrap, whose mean fails where some resample scores 0.
        _, resampled = _bootstrap_resample(statistics, metric, RESAMPLES)
        _, half = estimate_ci(np.array([float(each.score) for each in resampled]))
        interval = float(half)
    signature = str(metric.get_signature()) if key in ALL_KEYS else ""
    return Score(key, name, result.score, details, signature, interval)


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


def scores_tree(scores: Sequence[Score]) -> dict[str, float | str]:
    """Return the scores as fields of a JSON object."""
    fields: dict[str, float | str] = {each.key: round(each.value, 4) for each in scores}
    for each in scores:
        fields[each.signature_key] = each.signature
        if each.interval is not None:
            fields[f"{each.key}_interval"] = round(each.interval, 4)
    return fields
