"""BLEU, chrF2 and TER by sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seq2seq.errors import UserError


@dataclass(frozen=True)
class Score:
    """One metric of a translation, in points of 100, and the signature that makes it comparable."""

    name: str
    value: float
    signature: str
    details: str
    """For BLEU the n-gram precisions, brevity penalty and lengths."""


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[Score]:
    """Return BLEU, chrF2 and TER of hypotheses against one or more lists of references."""
    for lines in references:
        if len(lines) != len(hypotheses):
            raise UserError(
                f"{len(hypotheses)} hypotheses but {len(lines)} references: line n of the one "
                "must answer line n of the other"
            )
    if not hypotheses:
        raise UserError("there are no lines to score")
    # `force`: tokenised input is legitimate here, for results published that way.
    metrics = [
        BLEU(tokenize=tokenize, lowercase=lowercase, force=True),
        CHRF(lowercase=lowercase),
        TER(case_sensitive=not lowercase),
    ]
    scores = []
    for metric in metrics:
        result = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
        details = result.format(score_only=False).split(" = ", 1)[1] if result.name == "BLEU" else ""
        scores.append(Score(result.name, result.score, str(metric.get_signature()), details))
    return scores


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a") -> float:
    """Return the BLEU of hypotheses against one list of references."""
    metric = BLEU(tokenize=tokenize, force=True)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)
