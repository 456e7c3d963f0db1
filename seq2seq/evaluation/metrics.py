"""BLEU, chrF2 and TER with sacreBLEU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seq2seq.errors import UserError


@dataclass(frozen=True)
class Score:
    """One metric of a translation, from 0 to 100, with its sacreBLEU signature."""

    key: str
    """bleu, chrf or ter."""
    name: str
    """Name in sacreBLEU: BLEU, chrF2, TER."""
    value: float
    details: str
    """For BLEU: n-gram precisions, brevity penalty and lengths."""
    signature: str


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
                f"{len(hypotheses)} hypotheses but {len(lines)} references: they must "
                "be aligned line by line"
            )
    if not hypotheses:
        raise UserError("there are no lines to score")
    # force: without a warning for tokenised input, which published results may use.
    metrics = {
        "bleu": BLEU(tokenize=tokenize, lowercase=lowercase, force=True),
        "chrf": CHRF(lowercase=lowercase),
        "ter": TER(case_sensitive=not lowercase),
    }
    scores = []
    for key, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
        details = ""
        if key == "bleu":
            precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
            details = (
                f"{precisions} (BP = {result.bp:.3f} hyp_len = {result.sys_len} "
                f"ref_len = {result.ref_len})"
            )
        signature = str(metric.get_signature())
        scores.append(Score(key, result.name, result.score, details, signature))
    return scores


def scores_text(scores: Sequence[Score]) -> str:
    """Return the scores as readable lines, each with its signature."""
    lines = []
    for each in scores:
        lines += [f"{each.name:5} {each.value:6.2f}  {each.details}".rstrip()]
        lines += [f"      {each.signature}"]
    return "\n".join(lines)


def scores_json(scores: Sequence[Score]) -> str:
    """Return the scores as one JSON object; `signature` is BLEU's."""
    values: dict[str, float | str] = {each.key: round(each.value, 4) for each in scores}
    signatures = {f"{each.key}_signature": each.signature for each in scores[1:]}
    return json.dumps(values | {"signature": scores[0].signature} | signatures)
